"""One rank's slots in several steps, and the addresses of their samples, grouped by sources that are read alike."""

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...dataset.reading.places import Lookup, field_layout
from ...dataset.reading.sample_places import Int64s, Map, SamplePlaces
from ...dataset.versions.version import View
from ...errors import InvalidRuntime, PenstockError
from ...order.random.keyed_permutation import I64
from ...order.slots import Slots
from ...order.sources.window_view import WindowView, window_key
from .recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceKind:
    """Sources with the same fields and layout."""

    number: int
    """The kind's number."""
    fields: tuple[str, ...]
    """Fields that all of its sources have."""
    sources: Sequence[int]
    """The sources' indexes in the plan, in the order of `lookup`."""
    lookup: Lookup
    """Index look-up in the sources' versions."""
    columns: tuple[str, ...] = ()
    """Columns of the samples table that all of its sources deliver."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of a sample's values without a transform, in the order of a batch."""
        return (*self.fields, *self.columns)


class LocatedSamples(NamedTuple):
    kind: SourceKind
    source: I64
    """int64 [n]: index of the source in the plan."""
    rows: I64
    """int64 [n]: the sample's row in the batches."""
    places: SamplePlaces
    """Addresses of the samples; `of` numbers the sources within the kind."""
    anchor_rows: I64 | None = None
    """int64 [n]: each window's row of the anchor; None without windows."""

    def keys(self) -> list[str]:
        keys = self.places.keys()
        if self.anchor_rows is None:
            return keys
        return [window_key(key, row) for key, row in zip(keys, self.anchor_rows.tolist(), strict=True)]

    def field_crcs(self) -> Iterator[tuple[slice, dict[str, Int64s]]]:
        """Yield (numbers, field -> int64 CRC-32C of each) for all samples at once: they have the same fields."""
        yield slice(None), {field: at.crc32c for field, at in self.places.fields.items()}

    def of_rows(self, rows: slice) -> "LocatedSamples":
        """Return the samples in these rows of the batch, with their rows counted from the first of these."""
        first, stop = np.searchsorted(self.rows, [rows.start, rows.stop]).tolist()
        within = slice(first, stop)
        anchor_rows = None
        if self.anchor_rows is not None:
            anchor_rows = self.anchor_rows[within]
        return LocatedSamples(
            self.kind,
            self.source[within],
            self.rows[within] - rows.start,
            self.places.subset(within),
            anchor_rows,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankSlots:
    """Slots that a rank makes together, step after step. A row is a row of the batches."""

    steps: Sequence[int]
    """Global steps."""
    slots: Slots
    """Slots as planned; substitutes are written into them."""
    number: I64
    """int64 [rows]: the slot's number in its step's global batch."""
    starts: Sequence[int]
    """First row of each step, then the number of rows."""
    batches: Sequence[int]
    """Size of each step's global batch."""
    valid: NDArray[np.bool_]
    """bool [rows]: False at padding."""
    n_padded: int = 0
    """Number of slots if this rank's part is all padding, else 0.

    If it is, `slots` has another rank's slot, for the shapes.
    """
    located: Sequence[LocatedSamples] | None = None
    """Samples in all rows, if looked up together with other steps."""

    def __len__(self) -> int:
        return len(self.number)

    @property
    def real_rows(self) -> I64:
        return np.flatnonzero(self.valid)

    def parts(self) -> Iterator[tuple[int, slice]]:
        for step, (start, stop) in zip(self.steps, pairwise(self.starts), strict=True):
            yield step, slice(start, stop)

    def part(self, steps: Sequence[int]) -> "RankSlots":
        if len(steps) == len(self.steps):
            return self
        first = steps[0] - self.steps[0]
        starts = self.starts[first : first + len(steps) + 1]
        rows = slice(starts[0], starts[-1])
        located = None
        if self.located is not None:
            located = _of_rows(self.located, rows)
        return RankSlots(
            steps=steps,
            slots=self.slots.part(rows),
            number=self.number[rows],
            starts=[start - rows.start for start in starts],
            batches=self.batches[first : first + len(steps)],
            valid=self.valid[rows],
            located=located,
        )

    def step_of(self, row: int) -> int:
        return self.steps[bisect_right(self.starts, row) - 1]


def _of_rows(located: Sequence[LocatedSamples], rows: slice) -> list[LocatedSamples]:
    """Return the samples in these rows, by kind; without kinds that have none."""
    parts = [batch.of_rows(rows) for batch in located]
    return [part for part in parts if len(part.rows)]


def rank_slots(recipe: Recipe, steps: Sequence[int]) -> list[RankSlots]:
    """Return the slots of consecutive steps: a step with padding by itself, the steps between such steps together.

    Raises: InvalidRuntime for a step after the last epoch.
    """
    planned = _stack(recipe, steps)
    if planned.valid.all():
        return [planned]
    if len(steps) > 1:
        runs: list[RankSlots] = []
        for whole_steps, padded_step in _whole_runs(planned):
            if whole_steps:
                runs.append(planned.part(whole_steps))
            if padded_step is not None:
                runs += rank_slots(recipe, [padded_step])
        return runs
    if planned.valid.any():
        return [planned]
    # The rank's part is all padding: it has the shapes of another rank's slot.
    (step,) = steps
    slots, everyone = whole_step(recipe, step)
    if not len(everyone):
        raise InvalidRuntime(
            f"step = {step} lies after the last epoch of this Loader; seek further back",
            what="step",
            given=step,
            accepted="a step of the last epoch or before",
        )
    other = everyone[:1]
    first = int(other[0])
    padding = RankSlots(
        steps=steps,
        slots=slots.part(slice(first, first + 1)),
        number=other,
        starts=[0, 1],
        batches=planned.batches,
        valid=np.ones(1, bool),
        n_padded=len(planned),
    )
    return [padding]


def _whole_runs(planned: RankSlots) -> Iterator[tuple[list[int], int | None]]:
    """Yield (consecutive steps without padding, the step with padding that follows; None at the end)."""
    whole_steps: list[int] = []
    for step, rows in planned.parts():
        if planned.valid[rows].all():
            whole_steps.append(step)
            continue
        yield whole_steps, step
        whole_steps = []
    yield whole_steps, None


def real_slots(recipe: Recipe, step: int) -> tuple[Slots, I64]:
    """Return the rank's slots in a step, and the rows that it reads: none after the last epoch."""
    planned = _stack(recipe, [step])
    return planned.slots, planned.real_rows


def whole_step(recipe: Recipe, step: int) -> tuple[Slots, I64]:
    """Return the slots of all ranks in a step, and the rows that are not padding."""
    slots = recipe.plan.slots(step)
    return slots, np.flatnonzero(_valid(recipe, slots))


def _stack(recipe: Recipe, steps: Sequence[int]) -> RankSlots:
    stacked = recipe.plan.stack(steps, recipe.world.rank, recipe.world.world_size)
    if recipe.recorded is not None:
        for step, (start, stop) in zip(steps, pairwise(stacked.starts), strict=True):
            rows_of_step = slice(start, stop)
            slots = stacked.slots.part(rows_of_step)
            recipe.recorded.apply_step(step, slots, stacked.number[rows_of_step])
    return RankSlots(
        steps=steps,
        slots=stacked.slots,
        number=stacked.number,
        starts=stacked.starts,
        batches=stacked.batches,
        valid=_valid(recipe, stacked.slots),
    )


def _valid(recipe: Recipe, slots: Slots) -> NDArray[np.bool_]:
    """Return bool [slots]: False at padding, and after the last epoch of the recipe."""
    limit = recipe.position_limit
    if limit is None:
        return slots.valid
    return slots.valid & (slots.position < limit)


AHEAD = 256
"""Most steps that are planned together."""
AHEAD_SLOTS = 8192
"""Most slots of all ranks that are planned together, unless one call asks for more."""


class SlotPlanner:
    """Plans a recipe's `rank_slots` ahead; thread-safe.

    end: first step that is not made. locate: looks up the samples of steps planned together, if their indexes are in
    memory.
    """

    def __init__(self, recipe: Recipe, end: int | None = None, locate: "Locate | None" = None) -> None:
        self._recipe = recipe
        self._end = end
        self._locate = locate
        self._planned: dict[int, RankSlots] = {}
        """Step -> the stack of steps that it was planned in, until a call returns the step's part."""
        self._previous: int | None = None
        """First step of the call before; None before the first call."""
        self._turn = Lock()

    def __call__(self, steps: Sequence[int]) -> list[RankSlots]:
        """Return the slots of consecutive steps; the caller may change them."""
        planned = self.planned_ahead(steps)
        if planned is not None:
            return [planned]
        return rank_slots(self._recipe, steps)

    def planned_ahead(self, steps: Sequence[int]) -> RankSlots | None:
        """Return the slots of consecutive steps that are planned together with later ones; None for others.

        Plans later steps only for a caller that goes forwards: after a start or a seek one step may be enough.
        """
        if self._recipe.plan.pack is not None:  # packed steps are made one at a time
            return None
        first = steps[0]
        with self._turn:
            previous = self._previous
            self._previous = first
            goes_forwards = previous is not None and 0 < first - previous <= AHEAD
            if goes_forwards and first not in self._planned:
                self._plan(steps)
            stacks = [self._planned.pop(step, None) for step in steps]
        stack = stacks[0]
        # Steps of two stacks cannot be one part. Padded steps have stacks of their own.
        if stack is None or any(one is not stack for one in stacks):
            return None
        return stack.part(steps)

    def _plan(self, steps: Sequence[int]) -> None:
        """Plan these steps and as many after them as `AHEAD` and `AHEAD_SLOTS` allow."""
        first = steps[0]
        n = len(steps)
        most = min(AHEAD, AHEAD_SLOTS // self._recipe.plan.batch_size(first))
        # A multiple of n: calls of n steps each then end where the stack ends.
        stop = first + n * max(1, most // n)
        if self._end is not None:
            stop = min(stop, self._end)
        try:
            planned = rank_slots(self._recipe, range(first, stop))
        except Exception:  # noqa: BLE001 - a later step raises it in its turn
            return
        if self._locate is not None:
            for number, run in enumerate(planned):
                if run.valid.all() and not run.n_padded:
                    planned[number] = replace(run, located=self._locate.find_cached(run.slots))
        # Another thread may still need some of the earlier ones.
        remaining = {step: stack for step, stack in self._planned.items() if first - AHEAD < step < first}
        for stack in planned:
            remaining |= dict.fromkeys(stack.steps, stack)
        self._planned = remaining


class Locate:
    """Finds the addresses of slots' samples; thread-safe.

    views, fields, apart: source -> its view, its fields to read, and a value that is equal for sources read together.
    windows: per source, a WindowView or None.
    """

    def __init__(
        self,
        views: Mapping[int, View],
        fields: Mapping[int, tuple[str, ...]],
        apart: Mapping[int, Hashable],
        windows: Sequence[WindowView | None],
    ) -> None:
        self._windows = windows
        alike: dict[Hashable, list[int]] = {}
        for source, view in views.items():
            own_fields = fields[source]
            if not own_fields:
                continue
            if windows[source] is None:
                alone = None
            else:
                alone = source  # a kind of its own: only its table maps its windows to episodes
            layout = field_layout(view.version, own_fields)
            kind_of_source = (own_fields, tuple(view.columns), layout, apart[source], alone)
            alike.setdefault(kind_of_source, []).append(source)
        self.kinds: list[SourceKind] = []
        for number, sources in enumerate(alike.values()):
            first = sources[0]
            versions = [views[source].version for source in sources]
            kind = SourceKind(
                number=number,
                fields=fields[first],
                sources=sources,
                lookup=Lookup(versions, fields[first]),
                columns=tuple(views[first].columns),
            )
            self.kinds.append(kind)
        # int64 [sources] each: number of a source's kind, and of its look-up in that; -1 for items.
        self._kind, self._number = np.full((2, len(windows)), -1)
        for kind in self.kinds:
            self._kind[kind.sources] = kind.number
            self._number[kind.sources] = np.arange(len(kind.sources))

    def __call__(self, slots: Slots, real_rows: I64, run: Map = map) -> list[LocatedSamples]:
        """Return the samples in `real_rows` slots, one look-up per kind. run: `map`, or a thread pool's."""
        out = []
        for kind, source, numbers, rows in self._by_kind(slots, real_rows):
            ordinals = self._stored_ordinals(kind, slots.ordinal[rows])
            places = kind.lookup.places(numbers, ordinals, run)
            anchor_rows = self._anchor_rows(kind, slots, rows)
            out.append(LocatedSamples(kind, source, rows, places, anchor_rows))
        return out

    def find_cached(self, slots: Slots) -> list[LocatedSamples] | None:
        """Return all slots' samples; None if an index must be read, or a sample is missing."""
        out = []
        try:
            for kind, source, numbers, rows in self._by_kind(slots, np.arange(len(slots))):
                ordinals = self._stored_ordinals(kind, slots.ordinal[rows])
                places = kind.lookup.find_cached_places(numbers, ordinals)
                if places is None:
                    return None
                anchor_rows = self._anchor_rows(kind, slots, rows)
                out.append(LocatedSamples(kind, source, rows, places, anchor_rows))
        except PenstockError:  # the sample's own step raises it again
            return None
        return out

    def _stored_ordinals(self, kind: SourceKind, ordinals: I64) -> I64:
        """Return int64 [n]: the ordinal of the stored episode of each window; without windows, the sample's."""
        windows = self._windows[kind.sources[0]]
        if windows is None:
            return ordinals
        return windows.stored_ordinals(ordinals)

    def _anchor_rows(self, kind: SourceKind, slots: Slots, rows: I64) -> I64 | None:
        """Return the `LocatedSamples.anchor_rows` of some rows of the slots."""
        windows = self._windows[kind.sources[0]]
        if windows is None:
            return None
        return windows.rows(slots.ordinal[rows])

    def _by_kind(self, slots: Slots, real_rows: I64) -> Iterator[tuple[SourceKind, I64, I64, I64]]:
        """Yield (kind, each sample's source, its number in the kind, its row), int64 [n] each, if it has samples."""
        source = slots.source[real_rows].astype(np.int64)
        for kind in self.kinds:
            rows_of_kind: slice | I64 = slice(None)
            if len(kind.sources) < len(self._kind):
                rows_of_kind = np.flatnonzero(self._kind[source] == kind.number)
            rows = real_rows[rows_of_kind]
            if len(rows):
                source_of_kind = source[rows_of_kind]
                yield kind, source_of_kind, self._number[source_of_kind], rows

    def again(self, slots: Slots, row: int, run: Map = map) -> LocatedSamples:
        """Return the sample that a row of the slots has now, as the only one: a substitute may be in it."""
        (planned,) = self(slots, np.array([row], np.int64), run)
        return planned
