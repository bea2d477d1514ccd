"""Sources that grow: a run continues under a later version of a dataset from a chosen step.

From the growth's first position, the rest of the view's epoch is mixed with the delta view (the new samples), so that
both end together. Later epochs cover the whole new view. A position costs O(number of growths), without a table.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

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


def whole_name(source: str, number: int) -> str:
    """Return the name of all samples after a growth: `photos#1`; the source's name for growth 0."""
    if number == 0:
        return source
    return f"{source}#{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Content of a source's stream from a position on.

    [start, origin) mixes the previous stage's stream with `delta` samples of the delta view. From origin on, the stream
    is the whole view, in epochs.
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

    def after(
        self,
        start: int,
        n: int,
        delta: int,
    ) -> "Stage":
        """Return the stage that a growth begins at position start >= self.start: n samples, `delta` of them new."""
        since_origin = start - self.origin
        n_epochs = 0
        if since_origin > 0:  # otherwise this stage's mixed epoch has not ended
            n_epochs = -(-since_origin // self.n)  # begun since origin: rounded up
        epoch_end = self.origin + n_epochs * self.n
        remaining = epoch_end - start  # positions to the end of the current epoch

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
        """Positions in [start, origin)."""
        return self.origin - self.start

    def is_mid_epoch(self, position: int) -> bool:
        """Return whether an epoch has begun and not ended at a position >= self.start."""
        since_origin = position - self.origin
        if since_origin <= 0:  # also for an empty bucket, which has no samples to divide by
            return since_origin < 0  # the mixed epoch ends at origin
        return since_origin % self.n > 0

    def new_among(self, j: int) -> int:
        """Return how many of the first j positions from start hold delta samples; j <= n_mixed.

        Rounding down spreads them evenly, and puts the last one at the end of the stretch.
        """
        length = self.origin - self.start
        return j * self.delta // max(1, length)

    def new_through(self, j: int) -> int:
        """Return how many of the positions start ... start + j hold delta samples."""
        n_positions = j + 1
        return self.new_among(n_positions)

    def former_through(self, j: int) -> int:
        """Return how many of the positions start ... start + j hold the previous stage's samples."""
        n_positions = j + 1
        return n_positions - self.new_among(n_positions)

    def new_before(self, j: I64) -> I64:
        """Return `new_among` of each count of positions (int64 [m])."""
        total = self.n_mixed
        largest = int(j.max(initial=0))
        largest_product = largest * self.delta
        if largest_product < 2**63:  # int64 does not overflow
            return j * self.delta // max(1, total)
        counts = [self.new_among(count) for count in j.tolist()]  # Python's integers have no bound
        return np.array(counts, np.int64)


@dataclass(frozen=True, slots=True)
class GrownStream:
    stages: Sequence[Stage]
    """Stages in order of start; stage 0 is the source before any growth."""

    def places(self, position: I64) -> tuple[I64, NDArray[np.bool_], I64, I64]:
        """Return (stage, is_delta, epoch, position in the epoch) of stream positions (int64 [m]). O(m * stages).

        is_delta is True for the stage's delta view, whose positions count only its own samples.
        """
        n_positions = len(position)
        position = position.copy()  # counts in the stream of the stage at hand
        number = np.zeros_like(position)
        epoch = np.zeros_like(position)
        inside = np.zeros_like(position)
        of_delta = np.zeros(n_positions, np.bool_)
        is_open = np.ones(n_positions, np.bool_)  # [m]: positions that no stage has placed so far

        # From the last stage that any position reaches down to the first: an earlier stage's position in a mixed
        # stretch is the later one's, less the new samples before it.
        largest = int(position.max())
        n_reached = bisect_right(
            self.stages,
            largest,
            key=lambda stage: stage.start,
        )
        for stage_number in range(n_reached - 1, -1, -1):
            stage = self.stages[stage_number]
            # Large arrays that are used once have no name: alive to the end of a pass, they cost up to a third of the
            # time at 65,536 positions.
            is_whole = is_open & (position >= stage.origin)
            whole = np.flatnonzero(is_whole)  # rows of the whole view
            passes, inside[whole] = np.divmod(position[whole] - stage.origin, stage.n)
            number[whole] = stage_number
            epoch[whole] = stage.epoch + passes
            is_open[whole] = False

            is_mixed = is_open & (position >= stage.start)
            mixed = np.flatnonzero(is_mixed)  # rows of [start, origin)
            j = position[mixed] - stage.start
            new = stage.new_before(j)  # [mixed]: delta samples before the position
            is_new = stage.new_before(j + 1) > new  # the position itself has one
            delta = mixed[is_new]  # rows of the delta view
            number[delta] = stage_number
            epoch[delta] = stage.epoch - 1
            inside[delta] = new[is_new]
            of_delta[delta] = True
            is_open[delta] = False

            is_former = ~is_new  # rows of the previous stage's samples
            position[mixed[is_former]] -= new[is_former]
        return number, of_delta, epoch, inside

    def position_of(
        self,
        number: int,
        of_delta: bool,
        epoch: int,
        inside: int,
    ) -> int | None:
        """Return the stream position that `places` maps to these values; None if growths skip it.

        O(stages * log of their length).
        """
        stage = self.stages[number]
        if of_delta:
            mixed_epoch = stage.epoch - 1
            if epoch != mixed_epoch or not stage.delta:
                return None
            mixed = range(stage.n_mixed)
            # The first position up to which the stretch has more than `inside` new samples.
            j = bisect_right(
                mixed,
                inside,
                key=stage.new_through,
            )
            position = stage.start + j
        else:
            n_epochs = epoch - stage.epoch
            epoch_start = stage.origin + n_epochs * stage.n
            position = epoch_start + inside

        for later in self.stages[number + 1 :]:
            if position < later.start:
                break
            former = position - later.start  # number among the previous stage's samples in the mixed stretch
            mixed = range(later.n_mixed)
            j = bisect_right(
                mixed,
                former,
                key=later.former_through,
            )
            if j == len(mixed):
                return None  # no position of the stretch holds it
            position = later.start + j
        return position

    def epoch_start(self, epoch: int) -> int:
        n_begun = bisect_right(
            self.stages,
            epoch,
            key=lambda stage: stage.epoch,
        )
        stage = self.stages[n_begun - 1]  # the last one whose first whole epoch is this one or an earlier one
        n_epochs = epoch - stage.epoch
        return stage.origin + n_epochs * stage.n

    def last_of(self, number: int, of_delta: bool) -> int | None:
        """Return the last position of the first epoch of a stage's view or delta view; None if unused."""
        stage = self.stages[number]
        if of_delta:  # only planned while it is mixed in
            first = stage.start
            last = self.epoch_start(stage.epoch) - 1
        else:
            later_stages = self.stages[number + 1 :]
            if later_stages and later_stages[0].epoch == stage.epoch:
                return None  # the source grows again before this view begins
            next_epoch = stage.epoch + 1
            first = stage.origin
            last = self.epoch_start(next_epoch) - 1
        if last < first:  # its samples were removed before it begins
            return None
        return last


def grown_streams(
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
            stage = former.after(start, n, delta)
            own_stages.append(stage)

    grown = {}
    for name, own_stages in stages.items():
        grown[name] = GrownStream(tuple(own_stages))
    return grown


def removed_since(
    growths: Sequence[Growth],
    number: int,
    step: int,
    ordinals: I64,
) -> NDArray[np.bool_]:
    """Return a bool per version ordinal (int64) of a view: True if a version up to `step` lacks the sample.

    growths: the source's, in order. number: growth of the view.
    """
    is_removed = np.zeros(len(ordinals), np.bool_)
    for growth in growths[number:]:
        if growth.step > step:
            break
        removed = growth.removed
        before = np.searchsorted(removed, ordinals)  # [m]: removed samples below each ordinal
        is_match = before < len(removed)  # beyond the last one nothing can match
        is_match[is_match] = removed[before[is_match]] == ordinals[is_match]
        is_removed |= is_match
        ordinals = ordinals - before  # ordinals in the next version; arbitrary for removed samples
    return is_removed


def earlier_ordinals(
    growths: Sequence[Growth],
    number: int,
    ordinals: I64,
) -> Iterator[tuple[int, I64]]:
    """Yield (number, ordinals): the samples' ordinals in each version, from the view's back to the plan's first.

    number: growth of the view. ordinals: int64; -1 for samples that a version lacks.
    """
    yield number, ordinals
    for growth in reversed(growths[:number]):
        n_removed = len(growth.removed)
        survivors = growth.removed - np.arange(n_removed)  # live samples before each removed one
        removed_before = np.searchsorted(
            survivors,
            ordinals,
            side="right",
        )  # [m]: removed samples before each one
        earlier = ordinals + removed_before
        is_live = ordinals >= 0
        is_earlier = is_live & (ordinals < growth.first)  # the others came with this growth or a later one
        ordinals = np.where(is_earlier, earlier, -1)
        yield growth.number - 1, ordinals


def origins(
    growths: Sequence[Growth],
    number: int,
    ordinals: I64,
) -> tuple[I64, I64]:
    """Return the growth that added each sample (0: the plan's first version), and its ordinal in that version.

    Both name the sample permanently in a plan. number: growth of the view. ordinals: its version ordinals (int64).
    """
    origin = np.full(len(ordinals), number, np.int64)
    ordinal = ordinals.copy()
    versions = earlier_ordinals(growths, number, ordinals)
    for version, earlier in versions:  # from the newest to the oldest
        exists = earlier >= 0
        origin[exists] = version
        ordinal[exists] = earlier[exists]
    return origin, ordinal
