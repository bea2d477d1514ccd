"""Find the steps whose batches hold a sample: invert L1 to L4, epoch by epoch."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple, Protocol

import numpy as np

from ..errors import InvalidRuntime
from .content import PlanContent, PlannedSource
from .random.keyed_permutation import I64
from .random.lane_inverse import positions_of
from .slots import slot_of
from .sources.growth import earlier_ordinals
from .sources.packing import PackedView
from .sources.window_view import WindowView, stored_ordinals
from .substitutes import MAX_ATTEMPTS, held_back, substitute, substitutes


class Occurrence(NamedTuple):
    """One slot that held a sample."""

    step: int
    """Global step."""
    slot: int
    """Slot number in the step's canonical order."""
    epoch: int
    """Epoch of the source."""
    attempt: int
    """0 for the slot's own sample, else the substitute's number."""


class Substituted(Protocol):
    """The fields of a ledger entry that identify a slot's sample."""

    @property
    def step(self) -> int: ...

    @property
    def slot(self) -> int: ...

    @property
    def source(self) -> str:
        """Source name in the plan."""

    @property
    def epoch(self) -> int:
        """Epoch of the source."""

    @property
    def position(self) -> int:
        """Position in the source's stream."""

    @property
    def attempt(self) -> int:
        """Number of the substitute; 0 for a masked document."""

    @property
    def substitute(self) -> str:
        """Key of the substitute."""


def occurrences(
    plan: PlanContent,
    source: str,
    key: str,
    before: int,
    ordinal: int | None = None,
    substitutions: Iterable[Substituted] = (),
) -> list[Occurrence]:
    """Return the slots that held a source's sample in steps 0 ... before - 1, in order of step.

    With packing, slots are the sequences that contain pieces of the document, masked or not. source: may be a bucket
    (`photos/b0`). ordinal: the sample's, in any version.

    Costs a millisecond or two per epoch at any N. Packing adds a pass over the table of pieces;
    substitutes for a quarantined or removed sample add a tenth.
    """
    views = [planned for name, planned in plan.sources.items() if source in (planned.source, name)]
    if not views:
        names = ", ".join(dict.fromkeys(planned.source for planned in plan.sources.values()))
        raise InvalidRuntime(f"source = {source!r}: the plan has {names}")
    before = plan.checked_step(before)
    there = {planned.name: _view_ordinals(planned, key, ordinal) for planned in views}
    if all(ordinals is None for ordinals in there.values()):
        raise InvalidRuntime(
            f"key = {key!r}: no view of source {source!r} has a sample of this key; "
            + (
                "of a packed source keys are the documents', not the sequences' of `batch.ids`"
                if any(isinstance(planned.view, PackedView) for planned in views)
                else "keys are what `batch.ids` and `View.keys` give"
            )
        )
    occurrences: dict[tuple[int, int], Occurrence] = {}
    for planned in views:
        chosen = there[planned.name]
        held = (
            (*_own(plan, planned, chosen, before), *_stood_in(plan, planned, chosen, before))
            if chosen
            else ()
        )
        for step, epoch, position, attempt in held:
            slot, _ = slot_of(plan, step, plan.source_names.index(planned.name), position)
            occurrences[step, slot] = Occurrence(step, slot, epoch, attempt)
    last: dict[tuple[int, int], Substituted] = {}
    for entry in sorted(substitutions, key=lambda entry: entry.attempt):
        if (
            entry.attempt
            and entry.step < before
            and source in (plan.sources[entry.source].source, entry.source)
        ):
            last[entry.step, entry.slot] = entry
    for place, entry in last.items():
        occurrences.pop(place, None)
        if _is_substitute(plan, entry, key, there[entry.source]):
            occurrences[place] = Occurrence(entry.step, entry.slot, entry.epoch, entry.attempt)
    return [occurrences[place] for place in sorted(occurrences)]


def _is_substitute(plan: PlanContent, entry: Substituted, key: str, chosen: Sequence[int] | None) -> bool:
    """Return whether an entry's substitute is the sample; a windowed source's entries name the episode only."""
    if not isinstance(plan.sources[entry.source].view, WindowView):
        return entry.substitute == key
    if entry.substitute not in (key, key.rpartition("@")[0]):
        return False
    index = plan.source_names.index(entry.source)
    return substitute(plan, index, entry.position, entry.attempt)[0] in (chosen or ())


class _Place(NamedTuple):
    step: int
    epoch: int
    position: int
    attempt: int = 0


def _own(plan: PlanContent, source: PlannedSource, chosen: Sequence[int], before: int) -> Iterator[_Place]:
    for view_ordinal, epoch, position, _ in _positions(plan, source, chosen, before):
        step = plan.step_of(source.name, position)
        if step is not None and step < before and not _is_held(plan, source, step, view_ordinal):
            yield _Place(step, epoch, position)


def _is_held(plan: PlanContent, source: PlannedSource, step: int, view_ordinal: int) -> bool:
    if plan.pack is not None:
        return False
    ordinal = source.view.version_ordinals(np.array([view_ordinal], np.int64))
    return bool(held_back(plan, plan.source_names.index(source.name), step, ordinal)[0])


def _stood_in(
    plan: PlanContent, source: PlannedSource, chosen: Collection[int], before: int
) -> Iterator[_Place]:
    """Yield the slots in which a view's samples are planned substitutes; none with packing."""
    index, chosen = plan.source_names.index(source.name), frozenset(chosen)
    held = () if plan.pack is not None else _ever_held(plan, source).tolist()
    others = [entry for ordinal in held for entry in _entries(source, ordinal)]
    for other, epoch, position, inside in _positions(plan, source, others, before):
        attempts = range(1, MAX_ATTEMPTS + 1)
        drawn = (source.substitute_of(plan.seed, other, epoch, inside, attempt) for attempt in attempts)
        if chosen.isdisjoint(drawn):  # the cheapest test, and nearly always true
            continue
        step = plan.step_of(source.name, position)
        if step is not None and step < before and _is_held(plan, source, step, other):
            attempt, drawn_now, _ = next(substitutes(plan, step, index, position), (0, -1, -1))
            if drawn_now in chosen:
                yield _Place(step, epoch, position, attempt)


def _ever_held(plan: PlanContent, source: PlannedSource) -> I64:
    growths = plan.growths_of(source.source)
    ordinals_held = [np.empty(0, np.int64)]
    for growth in growths[source.growth :]:
        for number, ordinals in earlier_ordinals(growths, growth.number - 1, growth.removed):
            if number == source.growth:
                ordinals_held.append(ordinals[ordinals >= 0])
    for listed in plan.quarantine.lists:
        if listed.source == source.source and listed.growth <= source.growth:
            ordinals = np.array([ordinal for ordinal, _ in listed.samples], np.int64)
            for growth in growths[
                listed.growth : source.growth
            ]:  # convert to ordinals in the next growth's version
                ordinals = ordinals[~np.isin(ordinals, growth.removed)]
                ordinals = ordinals - np.searchsorted(growth.removed, ordinals)
            ordinals_held.append(ordinals)
    return np.unique(np.concatenate(ordinals_held))


def _view_ordinals(source: PlannedSource, key: str, known: int | None) -> list[int] | None:
    """Return the view ordinals of a key, several if sequences share a document; None if there are none.

    A key of a windowed view is an episode's, or a window's.
    """
    if isinstance(source.view, WindowView):
        return source.view.windows_at(key)
    here = (
        known is not None and len(source.view) > 0 and known <= _version_ordinal(source, len(source.view) - 1)
    )
    if known is not None and here and source.view.keys(np.array([known], np.int64)) == [key]:
        ordinal = known
    else:
        (ordinal,) = source.view.ordinals([key]).tolist()
    if ordinal < 0:
        return None
    if isinstance(source.view, PackedView):
        return source.view.table.sequences_of(ordinal)
    return list(_entries(source, ordinal)) or None


def _entries(source: PlannedSource, ordinal: int) -> range:
    # View ordinals keep the version's order.
    first = stop = bisect_left(range(len(source.view)), ordinal, key=lambda x: _version_ordinal(source, x))
    while stop < len(source.view) and _version_ordinal(source, stop) == ordinal:
        stop += 1
    return range(first, stop)


def _version_ordinal(source: PlannedSource, view_ordinal: int) -> int:
    ordinals = source.view.version_ordinals(np.array([view_ordinal], np.int64))
    return int(stored_ordinals(source.view, ordinals)[0])


def _positions(
    plan: PlanContent, source: PlannedSource, chosen: Sequence[int], before: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yield samples' places before a step, one per epoch: (view ordinal, epoch, stream position, position in it)."""
    ordinals = np.array(chosen, np.int64)
    used, stream = plan.used_before(before).get(source.stream, 0), plan.stream_of(source.stream)
    stage = stream.stages[source.growth]
    for epoch in (stage.epoch - 1,) if source.delta else count(stage.epoch):
        if stage.start + (epoch - stage.epoch) * stage.n >= used:
            return
        places = getattr(source.view, "places", None) if epoch == 0 else None  # set for a list's view
        if places is None:
            inside_of = positions_of(source.shape, plan.seed, source.name, epoch, ordinals)
        else:
            inside_of = np.asarray(places)[ordinals]
        is_over = True  # from the next epoch on the source is read under a later view
        for view_ordinal, inside in zip(chosen, inside_of.tolist(), strict=True):
            position = stream.position_of(source.growth, source.delta, epoch, inside)
            is_over &= position is None
            if position is not None and position < used:
                yield view_ordinal, epoch, position, inside
        if is_over:
            return
