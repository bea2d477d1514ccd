"""Find the steps whose batches hold a sample: invert L1 to L4, epoch by epoch."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, count
from typing import NamedTuple, Protocol

import numpy as np

from ..errors import InvalidRuntime
from .content import PlanContent
from .planned_source import PlannedSource, unknown_key
from .random.keyed_permutation import I64
from .random.lane_inverse import find_positions
from .slots import find_slot
from .sources.growth import earlier_ordinals
from .sources.items_view import ItemsView
from .sources.packing import PackedView
from .sources.window_view import WindowView, view_ordinals
from .substitutes import MAX_ATTEMPTS, exclusion_mask, substitute, substitutes


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


class _SamplePosition(NamedTuple):
    """A position whose own sample this is, in one epoch."""

    view_ordinal: int
    epoch: int
    position: int
    """i_k in the source's endless stream."""
    position_in_epoch: int


class _Use(NamedTuple):
    """A step that uses a position, and gets the sample that is searched for from it."""

    step: int
    epoch: int
    position: int
    attempt: int
    """0 if it is the position's own sample, else the substitute's number."""


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
    views = _source_views(plan, source)
    before = plan.checked_step(before)
    ordinals_by_view: dict[str, list[int] | None] = {}  # None: the view has no such sample
    for view in views:
        ordinals_by_view[view.name] = _view_ordinals(view, key, ordinal)
    if all(ordinals is None for ordinals in ordinals_by_view.values()):
        raise unknown_key(source, key, views)

    # As planned: the steps that use the samples' positions.
    out: dict[tuple[int, int], Occurrence] = {}  # (step, slot) -> occurrence
    for view in views:
        ordinals = ordinals_by_view[view.name]
        if not ordinals:
            continue
        source_index = plan.source_names.index(view.name)
        own_uses = _own_uses(plan, view, ordinals, before)
        substitute_uses = _substitute_uses(plan, view, ordinals, before)
        for use in chain(own_uses, substitute_uses):
            slot = find_slot(plan, use.step, source_index, use.position)
            out[use.step, slot] = Occurrence(use.step, slot, use.epoch, use.attempt)

    # As the run substituted: its last substitute of a slot replaces the planned sample there.
    last = _last_substitutions(plan, source, substitutions, before)
    for step_and_slot, entry in last.items():
        out.pop(step_and_slot, None)
        if _is_substitute(plan, entry, key, ordinals_by_view[entry.source]):
            out[step_and_slot] = Occurrence(entry.step, entry.slot, entry.epoch, entry.attempt)
    return [out[step_and_slot] for step_and_slot in sorted(out)]


def _source_views(plan: PlanContent, source: str) -> list[PlannedSource]:
    """Return all views of a source or of one of its buckets: of each version and growth."""
    views = []
    for name, planned in plan.sources.items():
        if source in (planned.source, name):
            views.append(planned)
    if not views:
        known = dict.fromkeys(planned.source for planned in plan.sources.values())
        names = ", ".join(known)
        raise InvalidRuntime(
            f"source = {source!r}: the plan has {names}", what="source", given=source, accepted=names
        )
    return views


def _view_ordinals(
    source: PlannedSource,
    key: str,
    likely_ordinal: int | None,
) -> list[int] | None:
    """Return the view ordinals of a key; None if the view has no such sample.

    There are several if a list repeats the sample, or sequences share the document. A key of a windowed view is an
    episode's, or a window's.

    likely_ordinal: the sample's ordinal in some version; None searches for the key.
    """
    if isinstance(source.view, WindowView):
        return source.view.key_windows(key)

    if likely_ordinal is not None and _has_key(source, likely_ordinal, key):
        ordinal = likely_ordinal
    else:
        (ordinal,) = source.view.ordinals([key]).tolist()
    if ordinal < 0:
        return None
    if isinstance(source.view, PackedView):
        return source.view.table.document_sequences(ordinal)
    entries = _entries(source, ordinal)
    return list(entries) or None  # none if the version has the sample and the view does not


def _has_key(
    source: PlannedSource,
    ordinal: int,
    key: str,
) -> bool:
    """Return whether the view's version has this key at this ordinal, which may come from another version."""
    n = len(source.view)
    if n == 0:
        return False
    last_ordinal = _version_ordinal(source, n - 1)
    if ordinal > last_ordinal:  # the ordinal may be another version's
        return False
    keys = source.view.keys(np.array([ordinal], np.int64))
    return keys == [key]


def _entries(source: PlannedSource, ordinal: int) -> range:
    """Return the view ordinals of a version ordinal: none if the view lacks the sample, several if a list repeats it.

    For windows, version ordinals are their episodes'.
    """
    view_ordinals = range(len(source.view))
    # Version ordinals ascend with view ordinals, in every kind of view.
    first = bisect_left(
        view_ordinals,
        ordinal,
        key=lambda entry: _version_ordinal(source, entry),
    )
    stop = first
    while stop < len(source.view) and _version_ordinal(source, stop) == ordinal:
        stop += 1
    return range(first, stop)


def _version_ordinal(source: PlannedSource, view_ordinal: int) -> int:
    ordinals = source.view.version_ordinals(np.array([view_ordinal], np.int64))
    stored = view_ordinals(source.view, ordinals)
    return int(stored[0])


def _own_uses(
    plan: PlanContent,
    source: PlannedSource,
    ordinals: Sequence[int],
    before: int,
) -> Iterator[_Use]:
    """Yield the uses before a step of positions whose own sample is one of these view ordinals."""
    for at in _sample_positions(plan, source, ordinals, before):
        step = plan.step_of(source.name, at.position)
        if step is None or step >= before:
            continue
        if not _is_excluded(plan, source, step, at.view_ordinal):
            yield _Use(step, at.epoch, at.position, attempt=0)


def _is_excluded(
    plan: PlanContent,
    source: PlannedSource,
    step: int,
    view_ordinal: int,
) -> bool:
    """Return whether the plan's quarantine keeps this sample out of the step."""
    if plan.pack is not None:  # packed sequences keep their slots, with documents masked
        return False
    ordinal = source.view.version_ordinals(np.array([view_ordinal], np.int64))
    source_index = plan.source_names.index(source.name)
    is_excluded = exclusion_mask(plan, source_index, step, ordinal)
    return bool(is_excluded[0])


def _substitute_uses(
    plan: PlanContent,
    source: PlannedSource,
    ordinals: Collection[int],
    before: int,
) -> Iterator[_Use]:
    """Yield the uses before a step of positions whose planned substitute is one of these view ordinals."""
    if plan.pack is not None:  # packed sequences have no substitutes
        return
    own_ordinals = frozenset(ordinals)  # of the sample that is searched for
    source_index = plan.source_names.index(source.name)
    # Only positions whose own sample is excluded at some step have substitutes.
    ever_excluded: list[int] = []  # view ordinals
    for ordinal in _ever_excluded(plan, source).tolist():
        ever_excluded += _entries(source, ordinal)

    for at in _sample_positions(plan, source, ever_excluded, before):
        # The cheapest test first: it nearly always ends here.
        if not _draws_any(plan, source, at, own_ordinals):
            continue
        step = plan.step_of(source.name, at.position)
        if step is None or step >= before:
            continue
        if not _is_excluded(plan, source, step, at.view_ordinal):
            continue
        candidates = substitutes(plan, step, source_index, at.position)
        planned = next(candidates, None)
        if planned is None:  # all are excluded: no run can make this step
            continue
        attempt, view_ordinal, _ = planned
        if view_ordinal in own_ordinals:
            yield _Use(step, at.epoch, at.position, attempt)


def _draws_any(
    plan: PlanContent,
    source: PlannedSource,
    at: _SamplePosition,
    ordinals: Collection[int],
) -> bool:
    """Return whether one of these view ordinals is among the candidates for a position's substitute.

    A necessary condition only: the planned substitute is the first candidate that the step does not exclude.
    """
    for attempt in range(1, MAX_ATTEMPTS + 1):
        candidate = source.draw_substitute(
            plan.seed,
            at.view_ordinal,
            at.epoch,
            at.position_in_epoch,
            attempt,
        )
        if candidate in ordinals:
            return True
    return False


def _ever_excluded(plan: PlanContent, source: PlannedSource) -> I64:
    """Return the version ordinals, ascending, of a view's samples that some step excludes."""
    growths = plan.growths_of(source.source)
    parts = [np.empty(0, np.int64)]

    # Removed by a later growth. It lists ordinals of the version before it: find those in the view's version.
    for growth in growths[source.growth :]:
        versions = earlier_ordinals(growths, growth.number - 1, growth.removed)
        for number, ordinals in versions:
            if number == source.growth:
                exists = ordinals >= 0
                parts.append(ordinals[exists])

    # Quarantined. A list has ordinals of the view's version or an earlier one: follow them through each growth.
    for listed in plan.quarantine.lists:
        if listed.source != source.source or listed.growth > source.growth:
            continue
        ordinals = np.array([ordinal for ordinal, _ in listed.samples], np.int64)
        growths_since = growths[listed.growth : source.growth]
        for growth in growths_since:
            is_removed = np.isin(ordinals, growth.removed)
            survivors = ordinals[~is_removed]
            removed_below = np.searchsorted(growth.removed, survivors)
            ordinals = survivors - removed_below  # ordinals in this growth's version
        parts.append(ordinals)
    return np.unique(np.concatenate(parts))


def _sample_positions(
    plan: PlanContent,
    source: PlannedSource,
    view_ordinals: Sequence[int],
    before: int,
) -> Iterator[_SamplePosition]:
    """Yield the positions of a view's samples that are used before a step, epoch after epoch."""
    ordinals = np.array(view_ordinals, np.int64)
    used_by_stream = plan.used_before(before)
    n_used = used_by_stream.get(source.stream, 0)
    stream = plan.stream_of(source.stream)
    stage = stream.stages[source.growth]
    epochs: Iterable[int] = count(stage.epoch)
    if source.delta:  # mixed into one epoch, the one before the stage's first whole epoch
        epochs = [stage.epoch - 1]

    for epoch in epochs:
        earliest = stage.start + (epoch - stage.epoch) * stage.n  # the epoch begins here, or later
        if earliest >= n_used:
            return
        positions_in_epoch = _positions_in_epoch(plan, source, epoch, ordinals)
        is_in_stream = False
        for view_ordinal, position_in_epoch in zip(view_ordinals, positions_in_epoch.tolist(), strict=True):
            position = stream.stream_position(
                source.growth,
                source.delta,
                epoch,
                position_in_epoch,
            )
            if position is None:
                continue
            is_in_stream = True
            if position < n_used:
                yield _SamplePosition(
                    view_ordinal,
                    epoch,
                    position,
                    position_in_epoch,
                )
        if not is_in_stream:  # a later view has replaced this one
            return


def _positions_in_epoch(
    plan: PlanContent,
    source: PlannedSource,
    epoch: int,
    ordinals: I64,
) -> I64:
    """Return the position in an epoch of each view ordinal (int64)."""
    if epoch == 0:
        list_positions = getattr(source.view, "places", None)
        if list_positions is not None:  # a list (`ListedView`) has its own order in epoch 0
            return np.asarray(list_positions)[ordinals]
    return find_positions(
        source.shape,
        plan.seed,
        source.name,
        epoch,
        ordinals,
    )


def _last_substitutions(
    plan: PlanContent,
    source: str,
    substitutions: Iterable[Substituted],
    before: int,
) -> dict[tuple[int, int], Substituted]:
    """Return (step, slot) -> the entry of the source with the highest attempt, for slots before a step."""
    last: dict[tuple[int, int], Substituted] = {}
    by_attempt = sorted(substitutions, key=lambda entry: entry.attempt)
    for entry in by_attempt:
        is_masked_document = entry.attempt == 0
        if is_masked_document or entry.step >= before:
            continue
        planned = plan.sources[entry.source]
        if source in (planned.source, entry.source):
            last[entry.step, entry.slot] = entry
    return last


def _is_substitute(
    plan: PlanContent,
    entry: Substituted,
    key: str,
    ordinals: Sequence[int] | None,
) -> bool:
    """Return whether a ledger entry's substitute is the sample with this key.

    ordinals: view ordinals of the key in the entry's view, or None.
    """
    view = plan.sources[entry.source].view
    has_key_of_sample = not isinstance(view, WindowView | ItemsView)
    if has_key_of_sample:
        return entry.substitute == key
    if isinstance(view, WindowView):  # the entry may name only the episode
        episode, _, _ = key.rpartition("@")
        if entry.substitute not in (key, episode):
            return False

    # Draw the substitute again, and compare ordinals. (The names of items are unknown without their dataset.)
    if not ordinals:
        return False
    source_index = plan.source_names.index(entry.source)
    view_ordinal, _ = substitute(plan, source_index, entry.position, entry.attempt)
    return view_ordinal in ordinals
