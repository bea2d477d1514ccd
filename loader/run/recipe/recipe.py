"""The settings that, with the step, decide a rank's batch, and the substitutions that a replay repeats."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...dataset.shards.address import SampleAddress
from ...dataset.versions.version import View
from ...errors import InvalidRuntime
from ...keywords import whole_number
from ...modalities import Decoder, array, decode_bytes, text
from ...order.mixture import MASK
from ...order.plan import Plan
from ...order.random.keyed_permutation import I64
from ...order.slots import Slots, rank_slice
from ...order.sources.items_view import ItemsView
from ...order.sources.packing import STARTS, PackedView
from ...order.sources.views import ListedView, OrderView
from ...order.sources.window_view import WindowView
from ...order.substitutes import substitutes
from .decode import (
    ByBucket,
    Decode,
    SequenceLayout,
    Transform,
    check_signature,
    decoders,
    of_bucket,
    of_buckets,
)
from .world import World


class RecordedSubstitution(Protocol):
    @property
    def step(self) -> int:
        """Global step."""

    @property
    def slot(self) -> int:
        """The slot's number in the global batch."""

    @property
    def source(self) -> str:
        """Source name in the plan."""

    @property
    def attempt(self) -> int:
        """Number of the substitute; 0 for a masked document."""

    @property
    def address(self) -> SampleAddress:
        """Address of the corrupt sample."""


CHEAP = (decode_bytes, text.decode_cls, text.decode_txt)
"""Decoders that cost less than the copy of their bytes, as the decoders of arrays do."""
MOST_APART = 6
"""Most masked documents in a slot whose subsets are all listed, 2**n for n documents; above, only all or none."""


class SlotEntries(NamedTuple):
    """Ledger entries for a slot that one run may have had."""

    attempt: int = 0
    """Number of the substitute; 0 if there is none."""
    masked: frozenset[int] = frozenset()
    """Version ordinals of masked documents."""


class RecordedSubstitutions:
    """The substitutions in a plan's ledger, by step, which a replay writes into their slots.

    A ledger has the entries of all runs of the plan. A step uses all of its entries unless `choose` selects some.
    """

    def __init__(self, plan: Plan, substitutions: Iterable[RecordedSubstitution]) -> None:
        self._plan = plan
        self._steps: dict[int, dict[int, SlotEntries]] = {}
        self._chosen: dict[int, dict[int, SlotEntries]] = {}
        for entry in substitutions:
            if entry.source not in plan.source_names:
                raise InvalidRuntime(
                    f"a substitution of step {entry.step} is of source {entry.source!r}, and the plan "
                    f"{plan.hash[:14]} has {', '.join(plan.source_names)}; pass "
                    "the entries of loader.read_ledger(root, plan)",
                    what="substitutions",
                    where=f"step {entry.step}",
                    given=entry.source,
                    accepted=list(plan.source_names),
                )
            slots = self._steps.setdefault(entry.step, {})
            known = slots.get(entry.slot, SlotEntries())
            if entry.attempt:
                masked = known.masked
            else:
                masked = known.masked | {entry.address.ordinal}
            slots[entry.slot] = SlotEntries(max(entry.attempt, known.attempt), masked)

    def has(self, step: int) -> bool:
        return step in self._steps

    def options(self, step: int, slots: range) -> dict[int, list[SlotEntries]]:
        """Return slot -> its possible entries, all of them first, for slots that have any."""
        of_step = self._steps.get(step, {})
        return {slot: _options(of_step[slot]) for slot in slots if slot in of_step}

    def choose(self, step: int, chosen: Mapping[int, SlotEntries]) -> None:
        self._chosen[step] = dict(chosen)

    def _step_entries(self, step: int) -> dict[int, SlotEntries]:
        return self._steps.get(step, {}) | self._chosen.get(step, {})

    def apply_step(self, step: int, slots: Slots, number: I64) -> None:
        """Write a step's substitutes into its slots. number: int64, each slot's number in the batch."""
        for slot, (attempt, _) in self._step_entries(step).items():
            for row in np.flatnonzero(number == slot).tolist():
                source = int(slots.source[row])
                place = int(slots.position[row])
                for tried, view_ordinal, ordinal in substitutes(self._plan, step, source, place):
                    if tried == attempt:
                        slots.attempt[row] = attempt
                        slots.view_ordinal[row] = view_ordinal
                        slots.ordinal[row] = ordinal

    def masked(self, step: int, number: I64, document: I64) -> NDArray[np.bool_]:
        """Return bool [pieces]: True if the document was masked in its slot.

        number: int64 [pieces], slot in the batch. document: int64 [pieces], version ordinal.
        """
        known = self._step_entries(step)
        pairs = zip(number.tolist(), document.tolist(), strict=True)
        return np.array(
            [ordinal in known.get(slot, SlotEntries()).masked for slot, ordinal in pairs], np.bool_
        )


def _options(all_of_it: SlotEntries) -> list[SlotEntries]:
    documents = sorted(all_of_it.masked)
    sizes: Sequence[int] = (len(documents), 0)
    if len(documents) <= MOST_APART:
        sizes = range(len(documents), -1, -1)
    subsets = chain.from_iterable(combinations(documents, n) for n in sizes)
    masked = [frozenset(ordinals) for ordinals in subsets]
    return [
        SlotEntries(attempt, ordinals) for attempt in range(all_of_it.attempt, -1, -1) for ordinals in masked
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides the content of a rank's batch, except which samples are planned."""

    plan: Plan
    world: World
    """Rank and world size."""
    decode: Decode
    """True, False, or decoders by field or bucket."""
    transform: Transform | ByBucket | None
    """Transform, or one per bucket."""
    framework: str
    """"torch", "numpy" or "jax"."""
    position_limit: int | None
    """Stream position from which slots are padding, or None."""
    substitute: bool
    """True if corrupt samples are substituted."""
    recorded: "RecordedSubstitutions | None" = None
    """Substitutions of a replayed run: no others are made, and unreadable samples are masked."""

    def __post_init__(self) -> None:
        if not isinstance(self.plan, Plan):
            raise InvalidRuntime(
                f"plan = {self.plan!r}: a plan is needed, such as loader.plan({{'photos': version}}, seed=7, "
                "global_batch=64), or loader.open_plan(root, hash)",
                what="plan",
                given=self.plan,
                accepted="a plan",
            )
        labels = sorted({one.bucket for one in self.plan.sources.values() if one.bucket is not None})
        if isinstance(self.decode, Mapping):
            by_field = {
                name: of_buckets(one, labels, f"decode[{name!r}]") for name, one in self.decode.items()
            }
            for name, decoder in by_field.items():
                check_signature(decoder, ("data", "rng"), f"decode[{name!r}]")
            object.__setattr__(self, "decode", by_field)
        object.__setattr__(self, "transform", of_buckets(self.transform, labels, "transform"))
        if not (self.transform is None or callable(self.transform) or isinstance(self.transform, ByBucket)):
            raise InvalidRuntime(
                f"transform = {self.transform!r}; accepted: None, or a function (sample, rng) -> sample",
                what="transform",
                given=self.transform,
                accepted="None, or a function (sample, rng) -> sample",
            )
        check_signature(self.transform, ("sample", "rng"), "transform")
        if self.recorded is None:  # a replay covers single steps, which may have more slots than others
            rank_slice(self.plan.batch_range[0], self.world.rank, self.world.world_size)
        if self.plan.pack is not None and self.decode is False:
            raise InvalidRuntime(
                "decode=False with a packed plan: its sequences are made of decoded tokens; leave it True",
                what="decode",
                where="packed plan",
                given=False,
                accepted=True,
            )
        if isinstance(self.transform, SequenceLayout):
            self._check_layout(self.transform.field)
        for name, source in self.plan.sources.items():
            if stored_view(source.view) is None and not isinstance(source.view, ItemsView):
                raise InvalidRuntime(
                    f"source {name!r} is a {type(source.view).__name__} without bytes; a Loader needs views of "
                    "versions (loader.synthetic is for planning only)",
                    what="view",
                    where=f"source {name!r}",
                    given=type(source.view).__name__,
                    accepted="a view of a version",
                )

    def _check_layout(self, field: str) -> None:
        """Raise InvalidRuntime unless all samples are stored sequences with decoded tokens."""
        if self.plan.pack is not None:
            raise InvalidRuntime(
                f"transform = laid_out({field!r}) with a packed plan, which lays out its sequences; leave it out",
                what="transform",
                where="packed plan",
                given=self.transform,
            )
        if self.decode is False:
            raise InvalidRuntime(
                f"decode=False with laid_out({field!r}), which needs decoded tokens; leave it True",
                what="decode",
                where="laid_out",
                given=False,
                accepted=True,
            )
        for name, source in self.plan.sources.items():
            view = stored_view(source.view)
            fields: Sequence[str] = ()
            if view is not None:
                fields = view.fields
            if field not in fields or STARTS not in fields:
                raise InvalidRuntime(
                    f"transform = laid_out({field!r}) needs {field!r} and {STARTS!r} of source {name!r}, which has "
                    f"{list(fields)}; select both",
                    what="transform",
                    where=f"source {name!r}",
                    given=list(fields),
                    accepted=[field, STARTS],
                )

    def before_layout(self) -> "Recipe":
        """Return the recipe of the samples that `laid_out` adds to; the recipe itself without that transform."""
        if not isinstance(self.transform, SequenceLayout):
            return self
        own: Mapping[str, Decoder | ByBucket] = {}
        if isinstance(self.decode, Mapping):
            own = self.decode
        return replace(self, transform=None, decode={**own, STARTS: decode_bytes})

    def decoders(self) -> list[dict[str, Decoder]]:
        """Return field -> decoder for each source; sources that are decoded alike share one dict."""
        fields = list(dict.fromkeys(field for view in self.stored.values() for field in view.fields))
        differ = isinstance(self.decode, Mapping) and any(
            isinstance(one, ByBucket) for one in self.decode.values()
        )
        buckets = [one.bucket if differ else None for one in self.plan.sources.values()]
        decoders_of = {bucket: decoders(fields, self.decode, bucket) for bucket in buckets}
        return [decoders_of[bucket] for bucket in buckets]

    @property
    def list_fields(self) -> frozenset[str]:
        """Fields of a batch that are lists, even if their arrays have one shape."""
        if self.plan.pack is None:
            return frozenset()
        return self.plan.pack.list_fields

    @property
    def copies(self) -> bool:
        """True if samples are only copied: bytes, arrays and texts without a transform, such as tokens and latents."""
        is_layout = isinstance(self.transform, SequenceLayout)
        has_transform = self.transform is not None and not is_layout
        if has_transform or self.plan.pack is not None or any(window_views(self.plan)):
            return False
        if self.has_items:
            return False
        used = [decoder for by_field in self.decoders() for decoder in by_field.values()]
        return all(
            decoder in CHEAP or getattr(decoder, "__module__", None) == array.__name__ for decoder in used
        )

    def source_transform(self, source: int) -> Transform | None:
        bucket = list(self.plan.sources.values())[source].bucket
        choice: Transform | None = of_bucket(self.transform, bucket, "transform")
        return choice

    @property
    def has_items(self) -> bool:
        """True if a source is a dataset, whose items one thread at a time may get."""
        return any(isinstance(source.view, ItemsView) for source in self.plan.sources.values())

    @property
    def stored(self) -> dict[int, View]:
        return stored_views(self.plan)


def stored_views(plan: Plan) -> dict[int, View]:
    """Return source number -> view of its stored samples, without sources that are not stored under a root.

    For a packed source it is its documents' view.
    """
    views: dict[int, View] = {}
    for number, source in enumerate(plan.sources.values()):
        view = stored_view(source.view)
        if view is not None:
            views[number] = view
    return views


def window_views(plan: Plan) -> list[WindowView | None]:
    views = (source.view for source in plan.sources.values())
    return [view if isinstance(view, WindowView) else None for view in views]


def stored_view(view: OrderView) -> View | None:
    """Return the view of stored samples: itself, or what a packed view, windows or a list read.

    None for a view without bytes.
    """
    if isinstance(view, WindowView):
        return stored_view(view.episodes)
    if isinstance(view, PackedView):
        return stored_view(view.documents)
    if isinstance(view, ListedView):
        return stored_view(view.listed)
    if isinstance(view, View):
        return view
    return None


def bounds(plan: Plan, epochs: int | None, steps: int | None) -> tuple[int | None, int | None]:
    """Return (first step not to make, first stream position that is padding); None where there is no bound."""
    if steps is None:
        end = None
    else:
        end = whole_number("steps", steps, 0)
    if epochs is None:
        return end, None
    epochs = whole_number("epochs", epochs, 1)
    if plan.buckets is not None:
        raise InvalidRuntime(
            f"epochs = {epochs} with buckets, whose epochs end at different steps; use steps= (plan.describe() "
            "gives the steps per epoch)",
            what="epochs",
            where="buckets",
            given=epochs,
            accepted="steps=",
        )
    names = plan.streams[None].names
    if len(names) != 1:
        raise InvalidRuntime(
            f"epochs = {epochs} with {len(names)} sources, whose epochs end at different steps; use steps=",
            what="epochs",
            where=f"{len(names)} sources",
            given=epochs,
            accepted="steps=",
        )
    limit = plan.stream_of(names[0]).epoch_start(epochs)
    last = plan.step_of(names[0], limit - 1)
    assert last is not None  # the last segment has no end, and the only source has a weight in it
    # (with "mask" the plan itself pads)
    return last + 1 if end is None else min(end, last + 1), None if plan.boundary == MASK else limit


def run_length(end: int | None) -> int:
    """Return the number of steps in the whole run, which a framework takes for an epoch's length.

    Raises: TypeError if the run is endless.
    """
    if end is None:
        raise TypeError("an endless run has no length; steps=... or epochs=... bounds it")
    return end
