"""Sources that grow: a run continues under a later version of a dataset from a chosen step.

A growth brings two views of the new version: the whole view has all of its samples, the delta view only the new ones.
From the growth's first position, the rest of the running epoch is mixed with the delta view, so that both end together.
Later epochs cover the whole view. A position costs O(number of growths), without a table.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..random.keyed_permutation import I64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Growth:
    step: int
    """First step under the new view."""
    source: str
    """Source name."""
    number: int
    """Number of this growth among the source's, from 1."""
    first: int
    """Version ordinal of the first new sample."""
    removed: I64
    """int64, ascending: previous ordinals of samples that the new version lacks."""


def delta_name(source: str, number: int) -> str:
    return f"{source}+{number}"


def whole_view_name(source: str, number: int) -> str:
    """Return the name of a source's whole view after a growth: `photos#1`; the source's name for growth 0."""
    if number == 0:
        return source
    return f"{source}#{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A source's stream from the position on at which a growth, or the plan, begins.

    [start, origin), the mixed stretch, has the previous stage's samples and `delta` samples of the delta view. From
    origin on, the stream is the whole view, in epochs.
    """

    start: int
    """First position of the stage."""
    origin: int
    """First position at which the stream is the whole view."""
    epoch: int
    """Number of the epoch that begins at `origin`."""
    n: int
    """Samples of the whole view; 0 for an empty bucket."""
    delta: int = 0
    """Samples of the delta view."""

    def next_stage(
        self,
        start: int,
        n: int,
        delta: int,
    ) -> "Stage":
        """Return the stage of a growth that begins at position start >= self.start.

        n: samples of the growth's whole view, 0 for a bucket that has become empty. delta: new ones among them.
        """
        since_origin = start - self.origin
        n_epochs = 0
        if since_origin > 0:  # otherwise this stage's mixed stretch has not ended
            n_epochs = -(-since_origin // self.n)  # begun since origin: rounded up
        epoch_end = self.origin + n_epochs * self.n
        remaining = epoch_end - start  # positions to the end of the current epoch; 0 if none has begun

        origin = start
        if remaining and n:  # the rest of the epoch is mixed with the new samples
            origin += remaining + delta
        return Stage(
            start=start,
            origin=origin,
            epoch=self.epoch + n_epochs,
            n=n,
            delta=delta,
        )

    @property
    def n_mixed(self) -> int:
        """Positions in the mixed stretch."""
        return self.origin - self.start

    def is_mid_epoch(self, position: int) -> bool:
        """Return whether an epoch has begun and not ended at a position >= self.start."""
        since_origin = position - self.origin
        if since_origin <= 0:  # also for an empty bucket, which has no samples to divide by
            return since_origin < 0  # the mixed stretch ends at origin, and an epoch with it
        return since_origin % self.n > 0

    def count_new(self, n_positions: int) -> int:
        """Return how many of the first positions of the mixed stretch hold delta samples; n_positions <= n_mixed.

        Rounding down spreads them evenly, and puts the last one at the end of the stretch.
        """
        return n_positions * self.delta // max(1, self.n_mixed)

    def count_former(self, n_positions: int) -> int:
        """Return how many of the first positions of the mixed stretch hold the previous stage's samples."""
        return n_positions - self.count_new(n_positions)

    def count_new_each(self, n_positions: I64) -> I64:
        """Return `count_new` of each number of positions (int64 [m])."""
        largest = int(n_positions.max(initial=0))
        largest_product = largest * self.delta
        if largest_product < 2**63:  # int64 does not overflow
            total = max(1, self.n_mixed)
            return n_positions * self.delta // total
        counts = [self.count_new(n) for n in n_positions.tolist()]  # Python's integers have no bound
        return np.array(counts, np.int64)


class ViewPositions(NamedTuple):
    """Stream positions as positions in epochs of a source's views; [m] each."""

    stage: I64
    """int64: number of the view's stage, which is the view's growth."""
    is_delta: NDArray[np.bool_]
    """True for the stage's delta view, False for its whole view."""
    epoch: I64
    """int64."""
    position_in_epoch: I64
    """int64. In a mixed stretch the delta view's positions count only its own samples."""


@dataclass(frozen=True, slots=True)
class GrownStream:
    stages: Sequence[Stage]
    """Stages in order of start; stage 0 is the source before any growth."""

    def view_positions(self, position: I64) -> ViewPositions:
        """Return the position in a view's epoch of each stream position (int64 [m]). O(m * stages)."""
        n_positions = len(position)
        position = position.copy()  # [m]: counted in the stream of the stage at hand
        number = np.zeros_like(position)
        is_delta = np.zeros(n_positions, np.bool_)
        epoch = np.zeros_like(position)
        position_in_epoch = np.zeros_like(position)
        is_open = np.ones(n_positions, np.bool_)  # [m]: positions of stages before the current one

        # From the last stage that any position reaches, down to the first. A stage settles the positions that hold its
        # own samples. A position of its mixed stretch that holds a former sample goes on to the previous stage, whose
        # stream lacks the new samples before it.
        largest = int(position.max())
        n_reached = bisect_right(
            self.stages,
            largest,
            key=lambda stage: stage.start,
        )
        for stage_number in reversed(range(n_reached)):
            stage = self.stages[stage_number]
            # Large arrays that are used once have no name: alive to the end of a pass, they cost up to a third of the
            # time at 65,536 positions.
            in_whole_view = is_open & (position >= stage.origin)
            rows = np.flatnonzero(in_whole_view)
            n_epochs, position_in_epoch[rows] = np.divmod(position[rows] - stage.origin, stage.n)
            number[rows] = stage_number
            epoch[rows] = stage.epoch + n_epochs
            is_open[rows] = False

            is_mixed = is_open & (position >= stage.start)
            mixed_rows = np.flatnonzero(is_mixed)
            n_before = position[mixed_rows] - stage.start  # [mixed]: positions of the stretch before each
            new_before = stage.count_new_each(n_before)  # [mixed]: those with delta samples
            is_new = stage.count_new_each(n_before + 1) > new_before  # [mixed]: the position itself has one
            rows = mixed_rows[is_new]
            number[rows] = stage_number
            is_delta[rows] = True
            epoch[rows] = stage.epoch - 1
            position_in_epoch[rows] = new_before[is_new]
            is_open[rows] = False

            is_former = ~is_new
            position[mixed_rows[is_former]] -= new_before[is_former]
        return ViewPositions(number, is_delta, epoch, position_in_epoch)

    def stream_position(
        self,
        number: int,
        is_delta: bool,
        epoch: int,
        position_in_epoch: int,
    ) -> int | None:
        """Return the stream position of a view's position in an epoch: the inverse of `view_positions`.

        None if the stream skips it: the epoch is no longer, or not yet, read from this view. O(stages * log of their
        length).
        """
        stage = self.stages[number]
        if is_delta:
            mixed_epoch = stage.epoch - 1
            if epoch != mixed_epoch or not stage.delta:
                return None
            # The shortest beginning of the stretch with more new samples than lie before this one ends with it.
            lengths = range(1, stage.n_mixed + 1)
            n_before = bisect_right(
                lengths,
                position_in_epoch,
                key=stage.count_new,
            )
            position = stage.start + n_before
        else:
            n_epochs = epoch - stage.epoch
            epoch_start = stage.origin + n_epochs * stage.n
            position = epoch_start + position_in_epoch

        # `position` counts in the stage's own stream. Each later growth shifts it by the new samples before it.
        for later in self.stages[number + 1 :]:
            if position < later.start:
                break
            former_before = position - later.start  # former samples before it in the mixed stretch
            lengths = range(1, later.n_mixed + 1)
            n_before = bisect_right(
                lengths,
                former_before,
                key=later.count_former,
            )
            if n_before == later.n_mixed:
                return None  # beyond the stretch the stream has only the later view
            position = later.start + n_before
        return position

    def epoch_start(self, epoch: int) -> int:
        """Return the stream position at which an epoch begins, in the whole view that is then read."""
        n_begun = bisect_right(
            self.stages,
            epoch,
            key=lambda stage: stage.epoch,
        )
        stage = self.stages[n_begun - 1]  # the last one whose first whole epoch is this one or an earlier one
        n_epochs = epoch - stage.epoch  # epochs of the stage's whole view before this one
        return stage.origin + n_epochs * stage.n

    def last_position(self, number: int, is_delta: bool) -> int | None:
        """Return the stream position of the last sample of the first epoch of a stage's whole view or delta view.

        None if the stream never reads the view: the source grows again, or loses the samples, before the view begins.
        """
        stage = self.stages[number]
        if is_delta:  # a plan has a delta view only if it is mixed in
            first = stage.start
            last = self.epoch_start(stage.epoch) - 1
        else:
            later_stages = self.stages[number + 1 :]
            if later_stages and later_stages[0].epoch == stage.epoch:
                return None
            next_epoch = stage.epoch + 1
            first = stage.origin
            last = self.epoch_start(next_epoch) - 1
        if last < first:
            return None
        return last


def grow_streams(
    growths: Sequence[Growth],
    streams: Mapping[str, Iterable[str]],
    sizes: Mapping[tuple[str, int, bool], int],
    used_before: Callable[[int], Mapping[str, int]],
) -> dict[str, GrownStream]:
    """Return stream -> its stages, for the sources that grow.

    growths: in order of step.
    streams: source -> its stream, or its buckets' streams.
    sizes: (stream, growth, is delta view) -> samples.
    used_before: step -> stream -> positions used by earlier steps.
    """
    stages: dict[str, list[Stage]] = {}
    for growth in growths:
        used = used_before(growth.step)
        for name in streams[growth.source]:
            if name not in stages:
                first_view = (name, 0, False)
                n_first = sizes.get(first_view, 0)  # 0 for a bucket that comes with a growth
                first = Stage(
                    start=0,
                    origin=0,
                    epoch=0,
                    n=n_first,
                )
                stages[name] = [first]
            own_stages = stages[name]
            start = used.get(name, 0)
            whole_view = (name, growth.number, False)
            delta_view = (name, growth.number, True)
            n = sizes.get(whole_view, 0)  # 0 for a bucket that has become empty
            delta = sizes.get(delta_view, 0)
            former = own_stages[-1]
            stage = former.next_stage(start, n, delta)
            own_stages.append(stage)

    grown = {}
    for name, own_stages in stages.items():
        grown[name] = GrownStream(tuple(own_stages))
    return grown


def find_removals(
    growths: Sequence[Growth],
    number: int,
    step: int,
    ordinals: I64,
) -> NDArray[np.bool_]:
    """Return a bool per version ordinal (int64 [m]) of a view: True if a later version lacks the sample at the step.

    growths: the source's, in order. number: growth of the view.
    """
    is_removed = np.zeros(len(ordinals), np.bool_)
    for growth in growths[number:]:  # those after the view's own
        if growth.step > step:
            break
        removed = growth.removed
        n_below = np.searchsorted(removed, ordinals)  # [m]: removed samples below each ordinal
        is_match = n_below < len(removed)  # beyond the last one nothing can match
        is_match[is_match] = removed[n_below[is_match]] == ordinals[is_match]
        is_removed |= is_match
        ordinals = ordinals - n_below  # ordinals in the next version; arbitrary for removed samples
    return is_removed


def earlier_ordinals(
    growths: Sequence[Growth],
    number: int,
    ordinals: I64,
) -> Iterator[tuple[int, I64]]:
    """Yield (growth, ordinals): the samples' ordinals in each version, from the view's back to the plan's first.

    number: growth of the view. ordinals: int64 [m], in the view's version; -1 for samples that a version lacks.
    """
    yield number, ordinals
    for growth in reversed(growths[:number]):
        # A growth closes the gaps of the removed samples. Open them again: an ordinal rises by the removed samples
        # that lay before it.
        n_removed = len(growth.removed)
        survivors_before = growth.removed - np.arange(n_removed)  # [removed]: live samples before each
        # [m]: removed samples before each one
        removed_before = np.searchsorted(
            survivors_before,
            ordinals,
            side="right",
        )
        earlier = ordinals + removed_before
        is_live = ordinals >= 0
        is_older = is_live & (ordinals < growth.first)  # the others came with this growth or a later one
        ordinals = np.where(is_older, earlier, -1)
        yield growth.number - 1, ordinals


def origins(
    growths: Sequence[Growth],
    number: int,
    ordinals: I64,
) -> tuple[I64, I64]:
    """Return int64 [m] each: the growth that added each sample, and the sample's ordinal in that growth's version.

    Growth 0 is the plan's first version. Both numbers name the sample permanently in a plan.

    number: growth of the view. ordinals: int64 [m], version ordinals of samples of the view.
    """
    origin = np.full(len(ordinals), number, np.int64)
    ordinal = ordinals.copy()
    versions = earlier_ordinals(growths, number, ordinals)
    for version, earlier in versions:  # from the newest to the oldest: the last one that has a sample stays
        exists = earlier >= 0  # -1: the version lacks the sample
        origin[exists] = version
        ordinal[exists] = earlier[exists]
    return origin, ordinal
