"""Detect a video's shot boundaries from its frames at 64 x 36 px.

- Hard cut: a frame differs far more from the previous one than nearby frames do. The scene is not merely moved, relit
  or dimmed (best correlation over small shifts), and does not return within 1/3 s (a flash).
- Fade: frames without contrast between two different scenes. The shot starts at the first frame with contrast.
- Dissolve: a frame is a mix of two unrelated frames equally far before and after. The shot starts in the middle.
- Pans, passing objects and lights are no boundaries.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .mixed_frames import LAGS, UNRELATED, mixed_frames
from .shifted_correlation import best_correlation, best_correlations

SMALL_PX = (64, 36)
"""Width and height of thumbnails in px."""

Frames = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Whole = np.ndarray[Any, np.dtype[np.int64]]


class Levels(NamedTuple):
    """Measurements of n frames in levels of 255; sums are exact integers."""

    total: Whole
    """Sum of each frame's pixels."""
    std: Floats
    """Standard deviation of each frame's pixels."""
    change: Whole
    """Sum of differences from the previous frame; 0 for the first frame."""


def levels_of(frames: Frames, before: Frames | None) -> Levels:
    """Measure frames, uint8 [n, height, width], of less than 2^16 px each. before: the previous frame."""
    pixels = frames.shape[1] * frames.shape[2]
    flat = frames.reshape(len(frames), pixels)
    if before is None:
        first = flat[:1]  # compared with itself: its change is 0
    else:
        first = before.reshape(1, -1)
    earlier = np.concatenate([first, flat[:-1]])  # [n, pixels]: the frame before each frame

    # The absolute difference, without leaving uint8: a plain subtraction would wrap around.
    higher = np.maximum(flat, earlier)
    lower = np.minimum(flat, earlier)
    difference = higher - lower

    square = np.multiply(
        flat,
        flat,
        dtype=np.uint16,  # 255^2 fits
    )
    squares = _row_sums(square)
    total = _row_sums(flat)
    spread = pixels * squares - total**2
    std = np.sqrt(spread) / pixels  # [n]
    return Levels(
        total=total,
        std=std,
        change=_row_sums(difference),
    )


def _row_sums(rows: "np.ndarray[Any, np.dtype[Any]]") -> Whole:
    # 2^16 px of 255^2 fit into uint32, which numpy sums in half of int64's time.
    sums: Whole = rows.sum(axis=1, dtype=np.uint32).astype(np.int64)
    return sums


_NEAR = 6  # frames on each side to compare a change with
_FLASH = 8  # a change undone within so many frames is a flash: 1/3 s at 25 frames/s
_CONTEXT = max(LAGS)
_SHORTEST = 6  # shortest shot in frames
_SETTLED = _CONTEXT + _NEAR  # a boundary is final after so many frames

_FLAT_STD = 2.5  # largest standard deviation of a frame without contrast, in levels of 255
_CUT_LEVELS = 5.0
_CUT_RATIO = 2.2  # least ratio of a cut's difference to the mean on its busier side
_CUT_HISTOGRAM = 0.15  # least share of pixels whose level changed
_CUT_HARD_LEVELS = 30.0  # difference that suffices even if the histogram is unchanged
_LEVELS_PER_BIN = 8  # of the histograms
_SAME_SCENE = 0.6  # lowest correlation within a scene
_UNDONE = 0.85  # lowest correlation of an undone change
_DISSOLVE_LEVELS = 10.0  # least difference of the two scenes of a dissolve


class _Boundary(NamedTuple):
    number: int
    """Number of the shot's first frame."""
    pts: int


class _Dissolve(NamedTuple):
    """A mixed frame: the smaller of its two weights is largest in the middle of a dissolve."""

    at: int
    lag: int
    balance: float
    pts: int


class ShotDetector:
    """Finds boundaries in frames in display order, fed in blocks of any length.

    Holds a few dozen frames; memory grows with the number of boundaries.
    """

    def __init__(self) -> None:
        width, height = SMALL_PX
        self._frames: Frames = np.zeros((0, height, width), np.uint8)
        self._std: Floats = np.zeros(0)
        self._change: Whole = np.zeros(0, np.int64)
        self._pts: list[int] = []
        self._start = 0  # pts of the video's first frame
        self._first = 0  # number of the first frame in memory
        self._next = 0  # number of the first undecided frame
        self._cuts: list[_Boundary] = []
        self._dissolves: list[_Dissolve] = []
        self._mixed = 0  # number of the last mixed frame
        self._fades = _Fades()
        self._decided: deque[int] = deque(maxlen=_SETTLED)  # pts of the last decided frames

    def feed(
        self,
        frames: Frames,
        pts: Sequence[int],
    ) -> Levels:
        """Feed frames, uint8 [n, 36, 64] of full-range luma, and return their measurements."""
        previous = None
        if len(self._frames):
            previous = self._frames[-1]
        levels = levels_of(frames, previous)

        is_start = not self._first and not self._pts
        if is_start and pts:
            self._start = pts[0]
        self._remember(frames, levels, pts)

        n_frames = self._first + len(self._frames)
        self._decide(n_frames - _CONTEXT)
        return levels

    def _remember(
        self,
        frames: Frames,
        levels: Levels,
        pts: Sequence[int],
    ) -> None:
        self._frames = np.concatenate([self._frames, frames])
        self._std = np.concatenate([self._std, levels.std])
        self._change = np.concatenate([self._change, levels.change])
        self._pts += pts

    def finish(self) -> list[int]:
        """Return the ascending pts of every shot's first frame except the first shot's. Call once."""
        n_frames = self._first + len(self._frames)
        self._decide(n_frames)
        sharp = set(self._cuts)
        sharp.update(self._fades.finish())
        return self._boundaries(sharp, n_frames)

    def settled(self) -> tuple[list[int], int | None]:
        """Return (pts of the final boundaries, pts of the frame before which they are complete, or None)."""
        if len(self._decided) < _SETTLED:
            return [], None

        # Later frames may still change what the last _SETTLED decided ones begin or end.
        front = self._decided[0]
        # A cut within a dissolve's length replaces it, and a dissolve moves while mixed frames follow.
        frames_since = self._next - self._mixed
        if self._dissolves and frames_since <= _CONTEXT:
            last = self._dissolves[-1]
            front = min(front, last.pts)

        sharp = set(self._cuts)
        sharp.update(self._fades.cuts)
        boundaries = self._boundaries(sharp, self._next)
        final = [pts for pts in boundaries if pts < front]
        return final, front

    def _boundaries(
        self,
        sharp: set[_Boundary],
        n_frames: int,
    ) -> list[int]:
        boundaries = set(sharp)
        for dissolve in self._dissolves:
            # A cut within a dissolve's length replaces it.
            distances = [abs(dissolve.at - cut.number) for cut in sharp]
            if not distances or min(distances) > dissolve.lag:
                middle = _Boundary(dissolve.at, dissolve.pts)
                boundaries.add(middle)

        starts: list[int] = []
        latest = _Boundary(0, self._start)
        for boundary in sorted(boundaries):
            length = boundary.number - latest.number
            rest = n_frames - boundary.number
            if length < _SHORTEST or rest < _SHORTEST:
                continue
            if boundary.pts > latest.pts:  # strictly ascending, even if the times of a damaged video are not
                starts.append(boundary.pts)
                latest = boundary
        return starts

    def _decide(self, stop: int) -> None:
        if stop <= self._next:
            return
        # Positions in memory of the frames to decide; those around them are the context.
        begin = self._next - self._first
        end = stop - self._first
        self._find_hard_cuts(begin, end)
        self._find_dissolves(begin, end)
        self._find_fades(begin, end)

        self._next = stop
        decided_pts = self._pts[begin:end]
        self._decided.extend(decided_pts)
        self._drop(end - _CONTEXT)

    def _find_hard_cuts(
        self,
        begin: int,
        end: int,
    ) -> None:
        places = _hard_cuts(
            self._frames,
            self._std,
            self._change,
            begin,
            end,
        )
        for place in places:
            cut = _Boundary(
                number=self._first + place,
                pts=self._pts[place],
            )
            self._cuts.append(cut)

    def _find_dissolves(
        self,
        begin: int,
        end: int,
    ) -> None:
        mixed = mixed_frames(
            self._frames,
            self._std,
            begin,
            end,
        )
        for place, lag, balance in sorted(mixed):
            before = self._frames[place - lag]
            after = self._frames[place + lag]
            # The thumbnails decide last, because comparing them over shifts is slow.
            if _levels_apart(before, after) < _DISSOLVE_LEVELS:
                continue
            if best_correlation(before, after) >= UNRELATED:
                continue
            dissolve = _Dissolve(
                at=self._first + place,
                lag=lag,
                balance=balance,
                pts=self._pts[place],
            )
            self._merge(dissolve)

    def _find_fades(
        self,
        begin: int,
        end: int,
    ) -> None:
        is_flat = self._std < _FLAT_STD  # bool [frames in memory]
        # If no fade is in progress, only the last frames matter, for the next fade.
        if self._fades.idle and not is_flat[begin:end].any():
            begin = max(begin, end - _NEAR)
        for place in range(begin, end):
            self._fades.add(
                number=self._first + place,
                pts=self._pts[place],
                frame=self._frames[place],
                is_flat=bool(is_flat[place]),
            )

    def _drop(self, n_frames: int) -> None:
        if n_frames <= 0:
            return
        self._frames = self._frames[n_frames:].copy()  # a view would keep the whole block in memory
        self._pts = self._pts[n_frames:]
        self._std = self._std[n_frames:]
        self._change = self._change[n_frames:]
        self._first += n_frames

    def _merge(self, dissolve: _Dissolve) -> None:
        """Add a mixed frame; neighbouring ones are one dissolve, at its most balanced frame."""
        frames_since = dissolve.at - self._mixed
        self._mixed = dissolve.at
        if not self._dissolves:
            self._dissolves.append(dissolve)
            return

        last = self._dissolves[-1]
        longer_lag = max(last.lag, dissolve.lag)
        if frames_since > longer_lag:
            self._dissolves.append(dissolve)
        elif dissolve.balance > last.balance:
            self._dissolves[-1] = dissolve


class _Fades:
    """Finds fades: runs of flat frames between different scenes, compared next to the run and further away."""

    def __init__(self) -> None:
        self.cuts: list[_Boundary] = []
        self._before: deque[Frames] = deque(maxlen=_NEAR)  # last frames with contrast
        self._old: tuple[Frames, Frames] | None = None  # far and near frame before the run
        self._end: _Boundary | None = None  # first frame after the run

    @property
    def idle(self) -> bool:
        return self._old is None

    def add(
        self,
        number: int,
        pts: int,
        frame: Frames,
        is_flat: bool,
    ) -> None:
        if is_flat:
            self._judge()
            if self._before:
                far = self._before[0]
                near = self._before[-1]
                self._old = (far, near)
                self._before.clear()
            return

        if self._old is not None and self._end is None:
            self._end = _Boundary(number, pts)
        self._before.append(frame)
        if len(self._before) == _NEAR:
            self._judge()

    def finish(self) -> list[_Boundary]:
        self._judge()
        return self.cuts

    def _judge(self) -> None:
        if self._old is None or self._end is None:
            return
        far, near = self._old
        # The frames next to the run may be dimmed, so those further away are compared as well.
        to_last = best_correlation(far, self._before[-1])
        to_first = best_correlation(near, self._before[0])
        if max(to_last, to_first) < _SAME_SCENE:
            self.cuts.append(self._end)
        self._old = None
        self._end = None


def _hard_cuts(
    frames: Frames,
    std: Floats,
    changed: Whole,
    begin: int,
    end: int,
) -> Iterator[int]:
    """Yield the positions in [begin, end) at which a hard cut starts a shot."""
    change = changed / frames[0].size  # [n]: mean difference of a pixel, in levels
    is_candidate = change[begin:end] >= _CUT_LEVELS  # bool [end - begin]: of few frames
    candidates = np.flatnonzero(is_candidate) + begin

    for place in candidates.tolist():
        contrast = min(std[place - 1], std[place])
        if contrast < _FLAT_STD:
            continue  # to or from a flat colour: handled as a fade
        usual = _busier_side(change, place)
        if change[place] < _CUT_RATIO * usual:
            continue

        last = frames[place - 1]  # of the shot that ends
        first = frames[place]  # of the one that may begin
        if not _is_new(last, first):
            continue

        begin_before = max(0, place - _FLASH)
        before_last = frames[begin_before : place - 1]
        after_first = frames[place + 1 : place + _FLASH]
        # In a flash, the old scene returns, or the new one was there shortly before.
        is_undone = _is_among(last, after_first) or _is_among(first, before_last)
        if not is_undone:
            yield place


def _busier_side(change: Floats, place: int) -> float:
    # From 1: frame 0 has no previous frame, so its change of 0 would dilute the mean.
    begin = max(1, place - _NEAR)
    before = change[begin:place]
    next_place = place + 1
    end = next_place + _NEAR
    after = change[next_place:end]

    busier = 0.0
    for side in (before, after):
        if len(side):
            mean = float(side.mean())
            busier = max(busier, mean)
    return busier


def _is_new(first: Frames, second: Frames) -> bool:
    # Cheap tests first: a correlation over 35 shifts costs more than both of them.
    difference = _histogram(first) - _histogram(second)
    n_differences = int(np.abs(difference).sum())
    n_changed = n_differences / 2  # a changed pixel counts in two bins
    share = n_changed / first.size
    if share < _CUT_HISTOGRAM and _levels_apart(first, second) < _CUT_HARD_LEVELS:
        return False
    return best_correlation(first, second) < _SAME_SCENE


def _histogram(frame: Frames) -> Whole:
    bins = frame // _LEVELS_PER_BIN
    n_bins = 256 // _LEVELS_PER_BIN
    return np.bincount(bins.ravel(), minlength=n_bins)


def _levels_apart(first: Frames, second: Frames) -> float:
    levels = levels_of(second[np.newaxis], first)
    (change,) = levels.change
    return int(change) / first.size


def _is_among(frame: Frames, others: Frames) -> bool:
    if not len(others):
        return False
    correlations = best_correlations(frame, others)
    return float(correlations.max()) >= _UNDONE
