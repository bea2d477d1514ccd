"""Replay a past run's batches, substitutions included, and single slots with their random draws. Read-only."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from ..dataset.shards.address import SampleAddress
from ..errors import Corrupt, InvalidRuntime, PenstockError
from ..order.occurrences import Occurrence
from ..order.plan import Plan
from ..order.random.generators import sample_generator
from ..order.slots import Slots, rank_slice
from ..order.sources.items_view import ItemsView, missing_text
from ..order.sources.packing import PackedView
from ..order.sources.window_view import view_ordinals
from .ahead.thread_pools import range_threads
from .batch.batch import Batch
from .batch.substitution import Substitution
from .making.assemble import Assembler
from .metrics import Metrics
from .recipe import slot_generators
from .recipe.decode import ByBucket, Decode, Transform, apply_transform
from .recipe.document_pieces import sequence_address
from .recipe.rank_slots import real_slots
from .recipe.recipe import Recipe, RecordedSubstitutions, SlotEntries, bounds, stored_view
from .recipe.world import World
from .trail.slot_columns import array_bytes
from .trail.trail import CodeFacts, decoder_facts, library_versions, transform_facts

Sample = dict[str, Any]
MAX_DRAWS = 32
"""Draws listed in `SlotReplay.draws`."""
_MAX_LETTERS = 80


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotReplay:
    step: int
    """Global step."""
    slot: int
    """The slot's number in the global batch."""
    source: str
    """Source name in the plan."""
    epoch: int
    """Epoch of the source."""
    position: int
    """Position in the source's stream."""
    attempt: int
    """0, or the substitute's number."""
    address: SampleAddress
    """Address of the sample's bytes; a packed sequence has no fields."""
    decoded: Sample = field(repr=False)
    """Field -> value, before the transform; may be empty."""
    trained: Sample = field(repr=False)
    """Field -> value after the transform; may be empty."""
    draws: tuple[str, ...] = ()
    """Calls on the sample's generator, such as 'integers(0, 57) = 23': the first 32, and the number of the rest."""
    repeats: bool = True
    """True if a second run of the transform gave the same values."""
    error: PenstockError | None = None
    """Reason why `decoded` or `trained` is empty."""
    transformed: Callable[[Sample], Sample] = field(default=dict, repr=False)
    """Applies the transform with this sample's generator. Raises: TransformFailed."""

    def __str__(self) -> str:
        how = f", substitute {self.attempt}" if self.attempt else ""
        return f"step {self.step} slot {self.slot}: {self.address.describe()}{how}"


def slot_address(plan: Plan, slots: Slots, row: int) -> SampleAddress:
    view, ordinal = list(plan.sources.values())[int(slots.source[row])].view, int(slots.ordinal[row])
    if isinstance(view, PackedView):
        return sequence_address(view, ordinal)
    if isinstance(view, ItemsView):
        from .items.item_samples import item_address  # only for datasets

        return item_address(view, ordinal)
    stored = stored_view(view)
    assert stored is not None  # the only views that `Recipe` accepts
    ordinals = view_ordinals(view, np.array([ordinal], np.int64))
    (address,) = stored.version.address(ordinals, stored.fields)
    return address


def seen(
    plan: Plan,
    step: int,
    number: int,
    slots: Slots,
    decoded: Sample | PenstockError,
    transform: Transform | None,
) -> SlotReplay:
    """Return one slot's replay. slots: only that slot. decoded: the sample, or its error."""
    key = slot_generators.generator_key(plan, slots, 0)
    address = slot_address(plan, slots, 0)

    def transformed(sample: Sample, rng: np.random.Generator | None = None) -> Sample:
        if transform is None:
            return sample
        return apply_transform(transform, sample, address, rng or sample_generator(*key))

    facts: dict[str, Any] = {
        "step": step,
        "slot": number,
        "source": plan.source_names[int(slots.source[0])],
        "epoch": int(slots.epoch[0]),
        "position": int(slots.position[0]),
        "attempt": int(slots.attempt[0]),
        "address": address,
        "transformed": transformed,
    }
    if isinstance(decoded, PenstockError):
        return SlotReplay(**facts, decoded={}, trained={}, error=decoded)
    if transform is None:  # nothing to repeat; an item may hold objects that cannot be copied
        return SlotReplay(**facts, decoded=decoded, trained=dict(decoded))
    rng = _Recording(sample_generator(*key).bit_generator)
    try:
        trained = transformed(copy.deepcopy(decoded), rng)
        again = transformed(copy.deepcopy(decoded))
    except PenstockError as error:
        return SlotReplay(**facts, decoded=decoded, trained={}, draws=rng.listed(), error=error)
    return SlotReplay(
        **facts, decoded=decoded, trained=trained, draws=rng.listed(), repeats=_same(trained, again)
    )


class _Recording(np.random.Generator):
    def __init__(self, bits: np.random.BitGenerator) -> None:
        super().__init__(bits)
        self.draws: list[str] = []
        self.n_draws = 0

    # Not `__getattr__`, which Python calls only for names that the class lacks: the draws are methods of numpy's class.
    def __getattribute__(self, name: str) -> Any:
        attribute = super().__getattribute__(name)
        if (
            name.startswith("_")
            or name in ("draws", "n_draws", "listed", "bit_generator")
            or not callable(attribute)
        ):
            return attribute

        def record_draw(*args: Any, **named: Any) -> Any:
            value = attribute(*args, **named)
            self.n_draws += 1
            if len(self.draws) < MAX_DRAWS:
                words = [*map(repr, args), *(f"{key}={one!r}" for key, one in named.items())]
                self.draws.append(f"{name}({_short(', '.join(words))}) = {_short(str(value))}")
            return value

        return record_draw

    def listed(self) -> tuple[str, ...]:
        more = self.n_draws - len(self.draws)
        return (*self.draws, f"and {more:,} more") if more else tuple(self.draws)


def _short(text: str) -> str:
    line = " ".join(text[: 4 * _MAX_LETTERS].split())
    return line if len(line) <= _MAX_LETTERS else f"{line[: _MAX_LETTERS - 1]}…"


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if hasattr(a, "__array__") and hasattr(b, "__array__"):
        if type(a) is not type(b) or (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        try:
            return np.array_equal(array_bytes(a), array_bytes(b))
        except TypeError:  # an array of objects
            return bool(np.asarray(a).tolist() == np.asarray(b).tolist())
    if type(a) is type(b) and a.__class__.__eq__ is object.__eq__:
        return True  # such objects equal only themselves, and each of these is a copy
    return bool(a == b) or (a != a and b != b)


MOST_CHOICES = 2**18
"""Number of choices of a part's substitutions that are tried against its digest."""


class Functions(NamedTuple):
    """Code that made a run's tensors, as in the start record of its run log."""

    transforms: Mapping[str, CodeFacts]
    """Bucket ("" for all) -> its transform; may be empty."""
    decoders: Mapping[str, Mapping[str, CodeFacts]]
    """Field -> bucket ("" for all) -> its decoder; empty with `decode=False`."""
    libraries: Mapping[str, str]
    """Library -> version."""


class Replay:
    """Batches of any step and rank, as training received them. Not thread-safe; writes nothing.

        replay = loader.Replay(plan, loader.read_ledger(root, plan), transform=augment)
        replay.digest(1234) == recorded             # the stored bytes; reads no media
        replay.batch(1234, rank=3, world_size=8)

    A sample that is unreadable now becomes padding, with an entry of attempt 0 in `batch.substitutions`.
    Then `batch.digest` and `digest` differ.
    """

    plan: Plan
    """The replayed plan."""

    def __init__(
        self,
        plan: Plan,
        substitutions: Iterable[Substitution] = (),
        *,
        decode: Decode = True,
        transform: Transform | ByBucket | None = None,
        framework: str = "torch",
        epochs: int | None = None,
    ) -> None:
        """Take a plan and the entries from `read_ledger`; pass the other arguments as for the training run's Loader.

        Raises: InvalidRuntime.
        """
        self.plan = plan
        self._substitutions = tuple(substitutions)
        self._recorded = RecordedSubstitutions(plan, self._substitutions)
        self._how = {"decode": decode, "transform": transform, "framework": framework}
        self._limit = bounds(plan, epochs, None)[1]
        self._pool, self._run = range_threads(plan)
        self._world = World.of(0, 1)
        self._assembler = self._world_assembler(self._world)
        self._closed = False

    @property
    def missing_datasets(self) -> dict[str, str]:
        """Source -> text about its dataset, for sources whose dataset the plan was opened without."""
        missing: dict[str, str] = {}
        for name, planned in self.plan.sources.items():
            if isinstance(planned.view, ItemsView) and planned.view.source is None:
                missing[name] = missing_text(name, planned.view)
        return missing

    def substituted(self, step: int) -> bool:
        """Return whether any run recorded substitutions for a step."""
        return self._recorded.has(step)

    def settle(self, step: int, parts: Iterable[tuple[int, int, int, int]]) -> bool | None:
        """Find the substitutions that one run had at a step, by its digests, and use them from now on.

        A ledger lists the substitutions of all runs of its plan: one run may have read a sample before it was damaged,
        another after.

        parts: (rank, world size, digest, substituted slots) for one run's parts of the step, from its run log.

        Returns True if they are found; False if no choice gives a part's digest; None if there are too many choices, or
        if a dataset is missing. In the last two cases, and for other ranks, all recorded substitutions stay. Reads only
        indexes, but makes the items of datasets.
        """
        self._check_open()
        n = self.plan.batch_size(self.plan.checked_step(step))
        chosen: dict[int, SlotEntries] = {}
        answers: list[bool | None] = []
        answer: bool | None
        for rank, world_size, digest, substituted in parts:
            world = World.of(rank, world_size)
            rows = rank_slice(n, world.rank, world.world_size)
            options = self._recorded.options(step, range(rows.start, rows.stop))
            if not substituted:
                answer, laid = True, dict.fromkeys(options, SlotEntries())
            elif self.missing_datasets:
                answer, laid = None, {}
            elif options:
                answer, laid = self._settle_step(step, world, digest, options)
            else:
                answer, laid = False, {}
            answers.append(answer)
            chosen |= laid
        if self._recorded.has(step):
            self._choose(step, chosen)
        return None if None in answers else all(answers)

    def _settle_step(
        self, step: int, world: World, digest: int, options: Mapping[int, Sequence[SlotEntries]]
    ) -> tuple[bool | None, dict[int, SlotEntries]]:
        self._choose(step, {})
        whole = self.digest(step, world.rank, world.world_size)
        if whole == digest:
            return True, {}
        if prod(map(len, options.values())) > MOST_CHOICES:
            return None, {}
        # Digests add up over slots: each choice adds its difference to the whole.
        sums = np.zeros(1, np.uint64)
        for slot, choices in options.items():
            alone = np.array([self._slot_digest(step, slot, laid) for laid in choices], np.uint64)
            sums = np.add.outer(sums, alone - alone[0]).ravel()
        matches = np.flatnonzero(sums == np.uint64((digest - whole) % 2**64))
        if not len(matches):
            return False, {}
        picked = np.unravel_index(matches[0], [len(choices) for choices in options.values()])
        return True, {
            slot: choices[int(i)] for (slot, choices), i in zip(options.items(), picked, strict=True)
        }

    def _slot_digest(self, step: int, slot: int, laid: SlotEntries) -> int:
        self._choose(step, {slot: laid})
        return self.digest(step, slot, self.plan.batch_size(step))

    def _choose(self, step: int, chosen: Mapping[int, SlotEntries]) -> None:
        self._recorded.choose(step, chosen)
        self._rank_assembler(
            self._world.rank, self._world.world_size, anew=True
        )  # the old one may have planned the step

    def slots(self, step: int, rank: int = 0, world_size: int = 1) -> Slots:
        slots, _ = real_slots(self._rank_assembler(rank, world_size).recipe, self.plan.checked_step(step))
        return slots

    def digest(self, step: int, rank: int = 0, world_size: int = 1) -> int:
        """Return a rank's digest for a step: `batch.digest` of the training run, if all samples are readable.

        Reads only indexes, but makes the items of datasets. Raises: InvalidRuntime, also if a sample's dataset is
        missing; errors of reading indexes; Corrupt for an item that is damaged now.
        """
        return self._rank_assembler(rank, world_size).digest(self.plan.checked_step(step))

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> Batch:
        """Return a rank's part of a step.

        Raises: InvalidRuntime; Corrupt if none of its samples is readable; TransformFailed; errors of a store that does
        not respond.
        """
        return self._rank_assembler(rank, world_size).batch(self.plan.checked_step(step), alone=True)

    def each(
        self,
        step: int,
        take: Callable[[int, dict[str, Any]], object],
        rank: int = 0,
        world_size: int = 1,
        *,
        skip_missing: bool = False,
    ) -> Batch:
        """Pass each sample of a rank's part to `take`, and return the batch without fields.

        take: called with the slot's number in the part, from 0, and the transformed sample. For a part that is all
        padding, it gets -1 and another rank's sample, which supplies the shapes.

        skip_missing: True leaves out the samples of `missing_datasets`. The batch's digest then covers the others.

        Raises: as `batch`; errors of `take`.
        """
        assembler = self._rank_assembler(rank, world_size)
        return assembler.each(self.plan.checked_step(step), take, skip_missing=skip_missing)

    def slot(self, step: int, slot: int) -> SlotReplay:
        """Return one slot of the global batch: decoded, transformed, and the transform's random draws.

        `SlotReplay.error` has the error of an unreadable sample, a missing dataset or a failing transform. Raises:
        InvalidRuntime if the slot is padding or not in the step; errors of a store that does not respond.
        """
        self._check_open()
        n = self.plan.batch_size(self.plan.checked_step(step))
        if not 0 <= slot < n:
            message = f"slot = {slot}; step {step} has slots 0 to {n - 1}"
            raise InvalidRuntime(
                message, what="slot", where=f"step {step}", given=slot, accepted=f"0 to {n - 1}"
            )
        captured: list[dict[str, Any]] = []

        def capture(sample: dict[str, Any], rng: object) -> dict[str, Any]:
            captured.append(sample)
            return {"seen": np.zeros(1)}

        recipe = replace(self._recipe(World.of(slot, n)), transform=capture)
        slots, rows = real_slots(recipe, step)
        if not len(rows):
            message = f"slot {slot} of step {step} is padding"
            raise InvalidRuntime(message, what="padding", where=f"step {step}", given=slot)
        transform = self._recipe(recipe.world).source_transform(int(slots.source[0]))
        decoded: dict[str, Any] | PenstockError
        missing = self.missing_datasets.get(self.plan.source_names[int(slots.source[0])])
        if missing is not None:
            return seen(self.plan, step, slot, slots, InvalidRuntime(missing), transform)
        assembler = Assembler(recipe, Metrics(self.plan.source_names), self._run, kept=0)
        try:
            assembler.batch(step, alone=True)
            decoded = captured[-1]
        except Corrupt as error:
            decoded = error
        finally:
            assembler.close()
        return seen(self.plan, step, slot, slots, decoded, transform)

    def steps_of(self, source: str, key: str, *, before: int, ordinal: int | None = None) -> list[Occurrence]:
        """Return the slots that held a sample in steps 0 ... before - 1, recorded substitutions included.

        Otherwise as `Plan.steps_of`. Raises: InvalidRuntime if the source or key is unknown.
        """
        return self.plan.steps_of(
            source, key, before=before, ordinal=ordinal, substitutions=self._substitutions
        )

    def functions(self) -> Functions:
        recipe = self._recipe(self._world)
        return Functions(transform_facts(recipe), decoder_facts(recipe), library_versions())

    def close(self) -> None:
        self._closed = True
        self._assembler.close()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> "Replay":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRuntime("this Replay is closed; make a new one", what="Replay", given="closed")

    def _rank_assembler(self, rank: int, world_size: int, *, anew: bool = False) -> Assembler:
        self._check_open()
        world = World.of(rank, world_size)
        if anew or world != self._world:
            assembler = self._world_assembler(world)
            self._assembler.close()
            self._assembler, self._world = assembler, world
        return self._assembler

    def _recipe(self, world: World) -> Recipe:
        return Recipe(
            plan=self.plan,
            world=world,
            position_limit=self._limit,
            substitute=True,
            recorded=self._recorded,
            **self._how,  # type: ignore[arg-type]
        )

    def _world_assembler(self, world: World) -> Assembler:
        # (keeps no memory for a next batch, which rarely comes)
        return Assembler(self._recipe(world), Metrics(self.plan.source_names), self._run, kept=0)
