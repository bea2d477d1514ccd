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
    difference = np.maximum(flat, earlier) - np.minimum(flat, earlier)
    squares = _row_sums(np.multiply(flat, flat, dtype=np.uint16))  # 255^2 fits into uint16
    total = _row_sums(flat)
    std = np.sqrt(pixels * squares - total**2) / pixels  # [n]
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
_LAGS = (6, 12, 24)  # half lengths of dissolves, in frames
_CONTEXT = max(_LAGS)
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
# Shifts of a thumbnail in px, wider sideways: cameras pan more than they tilt.
_DOWN = (-2, -1, 0, 1, 2)
_RIGHT = (-4, -2, -1, 0, 1, 2, 4)

_COARSE = 4  # dissolves are searched at 1/4 of the thumbnails' size, with 1/16 of the pixels
_DISSOLVE_LEVELS = 10.0  # least difference of the two scenes
_DISSOLVE_STD = 6.0  # least standard deviation of both: a flat frame mixes with everything
_DISSOLVE_SHARE = (0.2, 0.8)  # accepted weights of each scene in a mixed frame
_DISSOLVE_REST = 0.24  # largest share of the frame that no mixture explains
_DISSOLVE_SAME = 0.35  # highest correlation of the two scenes


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
        self._frames: Frames = np.zeros((0, SMALL_PX[1], SMALL_PX[0]), np.uint8)
        self._std: Floats = np.zeros(0)
        self._change: Whole = np.zeros(0, np.int64)
        self._pts: list[int] = []
        self._start = 0  # pts of the video's first frame
        self._first = 0  # number of the first frame in memory
        self._next = 0  # number of the first undecided frame
        self._cuts: list[tuple[int, int]] = []
        self._dissolves: list[_Dissolve] = []
        self._mixed = 0  # number of the last mixed frame
        self._fades = _Fades()
        self._decided: deque[int] = deque(maxlen=_SETTLED)  # pts of the last decided frames

    def feed(self, frames: Frames, pts: Sequence[int]) -> Levels:
        """Feed frames, uint8 [n, 36, 64] of full-range luma, and return their measurements."""
        previous = self._frames[-1] if len(self._frames) else None
        levels = levels_of(frames, previous)
        if not self._first and not self._pts and pts:
            self._start = pts[0]
        self._frames = np.concatenate([self._frames, frames])
        self._std = np.concatenate([self._std, levels.std])
        self._change = np.concatenate([self._change, levels.change])
        self._pts += pts
        self._decide(self._first + len(self._frames) - _CONTEXT)
        return levels

    def finish(self) -> list[int]:
        """Return the ascending pts of every shot's first frame except the first shot's. Call once."""
        n_frames = self._first + len(self._frames)
        self._decide(n_frames)
        sharp = {*self._cuts, *self._fades.finish()}
        return self._boundaries(sharp, n_frames)

    def settled(self) -> tuple[list[int], int | None]:
        """Return (pts of the final boundaries, pts of the frame before which they are complete, or None)."""
        if len(self._decided) < _SETTLED:
            return [], None
        # Later frames may still change what the last _SETTLED decided ones begin or end.
        front = self._decided[0]
        # A cut within a dissolve's length replaces it, and a dissolve moves while mixed frames follow.
        if self._dissolves and self._next - self._mixed <= _CONTEXT:
            front = min(front, self._dissolves[-1].pts)
        sharp = {*self._cuts, *self._fades.cuts}
        boundaries = self._boundaries(sharp, self._next)
        return [pts for pts in boundaries if pts < front], front

    def _boundaries(self, sharp: set[tuple[int, int]], n_frames: int) -> list[int]:
        numbers = [number for number, _ in sharp]
        slow: set[tuple[int, int]] = set()
        for dissolve in self._dissolves:
            # A cut within a dissolve's length replaces it.
            if all(abs(dissolve.at - number) > dissolve.lag for number in numbers):
                slow.add((dissolve.at, dissolve.pts))
        boundaries = [(0, self._start)]
        for number, pts in sorted(sharp | slow):
            before, latest = boundaries[-1]
            if number - before < _SHORTEST or n_frames - number < _SHORTEST:
                continue
            if pts > latest:  # strictly ascending, even if the times of a damaged video are not
                boundaries.append((number, pts))
        return [pts for _, pts in boundaries[1:]]

    def _decide(self, stop: int) -> None:
        if stop <= self._next:
            return
        # Positions in memory of the frames to decide; those around them are the context.
        begin = self._next - self._first
        end = stop - self._first
        for place in _hard_cuts(self._frames, self._std, self._change, begin, end):
            self._cuts.append((self._first + place, self._pts[place]))
        for place, lag, balance in _dissolves(self._frames, self._std, begin, end):
            dissolve = _Dissolve(
                at=self._first + place,
                lag=lag,
                balance=balance,
                pts=self._pts[place],
            )
            self._merge(dissolve)
        self._find_fades(begin, end)
        self._next = stop
        self._decided.extend(self._pts[begin:end])
        self._drop(end - _CONTEXT)

    def _find_fades(self, begin: int, end: int) -> None:
        flat = self._std < _FLAT_STD
        # If no fade is in progress, only the last frames matter, for the next fade.
        if self._fades.idle and not flat[begin:end].any():
            begin = max(begin, end - _NEAR)
        for place in range(begin, end):
            number = self._first + place
            self._fades.add(number, self._pts[place], self._frames[place], bool(flat[place]))

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
        if frames_since > max(last.lag, dissolve.lag):
            self._dissolves.append(dissolve)
        elif dissolve.balance > last.balance:
            self._dissolves[-1] = dissolve


class _Fades:
    """Finds fades: runs of flat frames between different scenes, compared next to the run and further away."""

    def __init__(self) -> None:
        self.cuts: list[tuple[int, int]] = []
        self._before: deque[Frames] = deque(maxlen=_NEAR)  # last frames with contrast
        self._old: tuple[Frames, Frames] | None = None  # far and near frame before the run
        self._end: tuple[int, int] | None = None  # number and pts of the first frame after the run

    @property
    def idle(self) -> bool:
        return self._old is None

    def add(self, number: int, pts: int, frame: Frames, is_flat: bool) -> None:
        if is_flat:
            self._judge()
            if self._before:
                self._old = self._before[0], self._before[-1]
                self._before.clear()
            return
        if self._old is not None and self._end is None:
            self._end = (number, pts)
        self._before.append(frame)
        if len(self._before) == _NEAR:
            self._judge()

    def finish(self) -> list[tuple[int, int]]:
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


def _hard_cuts(frames: Frames, std: Floats, changed: Whole, begin: int, end: int) -> Iterator[int]:
    """Yield the positions in [begin, end) at which a hard cut starts a shot."""
    change = changed / frames[0].size  # [n]: mean difference of a pixel, in levels
    candidates = np.flatnonzero(change[begin:end] >= _CUT_LEVELS) + begin
    for place in candidates.tolist():
        if min(std[place - 1], std[place]) < _FLAT_STD:
            continue  # to or from a flat colour: handled as a fade
        if change[place] < _CUT_RATIO * _busier_side(change, place):
            continue
        last = frames[place - 1]  # of the shot that ends
        first = frames[place]  # of the one that may begin
        if not _is_new(last, first):
            continue
        before_last = frames[max(0, place - _FLASH) : place - 1]
        after_first = frames[place + 1 : place + _FLASH]
        # In a flash, the old scene returns, or the new one was there shortly before.
        if not _is_among(last, after_first) and not _is_among(first, before_last):
            yield place


def _busier_side(change: Floats, place: int) -> float:
    # From 1: frame 0 has no previous frame, so its change of 0 would dilute the mean.
    before = change[max(1, place - _NEAR) : place]
    after = change[place + 1 : place + 1 + _NEAR]
    means = [float(side.mean()) for side in (before, after) if len(side)]
    return max(means, default=0.0)


def _is_new(first: Frames, second: Frames) -> bool:
    # Cheap tests first: a correlation over 35 shifts costs more than both of them.
    difference = _histogram(first) - _histogram(second)
    changed = float(np.abs(difference).sum()) / 2 / first.size  # a changed pixel counts in two bins
    if changed < _CUT_HISTOGRAM and _levels_apart(first, second) < _CUT_HARD_LEVELS:
        return False
    return best_correlation(first, second) < _SAME_SCENE


def _histogram(frame: Frames) -> Whole:
    return np.bincount((frame // _LEVELS_PER_BIN).ravel(), minlength=256 // _LEVELS_PER_BIN)


def _levels_apart(first: Frames, second: Frames) -> float:
    return int(levels_of(second[None], first).change[0]) / first.size


def _is_among(frame: Frames, others: Frames) -> bool:
    if not len(others):
        return False
    return float(best_correlations(frame, others).max()) >= _UNDONE


def _dissolves(frames: Frames, std: Floats, begin: int, end: int) -> Iterator[tuple[int, int, float]]:
    """Yield each mixed frame's (position in [begin, end), half length, smaller weight), by least squares."""
    coarse = _quarter(frames)
    plain = coarse - coarse.mean(axis=1, keepdims=True)  # [n, blocks]: products are covariances
    power = _dots(plain, plain)  # [n]
    mixtures: list[tuple[int, int, float]] = []
    for lag in _LAGS:
        # Only frames with both neighbours in memory.
        low = max(begin, lag)
        high = min(end, len(frames) - lag)
        if low >= high:
            continue
        a = slice(low - lag, high - lag)  # frames of the scene that goes
        b = slice(low + lag, high + lag)  # frames of the scene that comes
        weights = _mixture(plain, power, a, slice(low, high), b)
        balance = np.minimum(weights.of_a, weights.of_b)
        mixed = balance > _DISSOLVE_SHARE[0]
        mixed &= np.maximum(weights.of_a, weights.of_b) < _DISSOLVE_SHARE[1]
        mixed &= weights.rest < _DISSOLVE_REST
        mixed &= weights.same < _DISSOLVE_SAME
        mixed &= np.minimum(std[a], std[b]) >= _DISSOLVE_STD
        # The thumbnails decide last, because comparing them over shifts is slow.
        for place in np.flatnonzero(mixed) + low:
            before = frames[place - lag]
            after = frames[place + lag]
            if _levels_apart(before, after) < _DISSOLVE_LEVELS:
                continue
            if best_correlation(before, after) < _DISSOLVE_SAME:
                mixtures.append((int(place), lag, float(balance[place - low])))
    yield from sorted(mixtures)


class _Mixture(NamedTuple):
    """Frames m, as mixtures of a and b. Each float64 [frames]; nan or inf where a and b are proportional."""

    of_a: Floats
    of_b: Floats
    rest: Floats
    same: Floats


def _mixture(plain: Floats, power: Floats, a: slice, m: slice, b: slice) -> _Mixture:
    # Normal equations of m = of_a * a + of_b * b, solved by Cramer's rule for all frames at once.
    ab = _dots(plain[a], plain[b])
    am = _dots(plain[a], plain[m])
    mb = _dots(plain[m], plain[b])
    determinant = power[a] * power[b] - ab * ab
    with np.errstate(divide="ignore", invalid="ignore"):
        of_a = (am * power[b] - mb * ab) / determinant
        of_b = (mb * power[a] - am * ab) / determinant
        explained = (of_a * am + of_b * mb) / power[m]  # share of m's power, which rounding may lift above 1
        rest = np.sqrt(np.maximum(0, 1 - explained))
        same = ab / np.sqrt(power[a] * power[b])
    return _Mixture(
        of_a=of_a,
        of_b=of_b,
        rest=rest,
        same=same,
    )


def _dots(x: Floats, y: Floats) -> Floats:
    dots: Floats = np.einsum("tp,tp->t", x, y)  # without the [t, p] temporary of a product
    return dots


def _quarter(frames: Frames) -> Floats:
    """Return the means of 4 x 4 px blocks, float64 [n, blocks]."""
    height = frames.shape[1] // _COARSE
    width = frames.shape[2]
    rows = frames.reshape(len(frames), height, _COARSE, width).sum(axis=2, dtype=np.uint16)
    # Strided sums: numpy is slow at summing a last axis of 4.
    blocks = rows[:, :, ::_COARSE] + rows[:, :, 1::_COARSE] + rows[:, :, 2::_COARSE] + rows[:, :, 3::_COARSE]
    means: Floats = blocks.reshape(len(frames), -1) / _COARSE**2
    return means


def best_correlation(first: Frames, second: Frames) -> float:
    """Return the largest correlation of two frames over small shifts, -1 to 1."""
    return float(best_correlations(first, second[None])[0])


def best_correlations(frame: Frames, others: Frames) -> Floats:
    """Return `best_correlation` (Pearson; 0 if flat) of a frame and each of `others`, uint8 [n, height, width].

    Overlaps are summed by integral images, in integers below 2^53.
    """
    height, width = frame.shape
    down_grid, right_grid = np.meshgrid(_DOWN, _RIGHT, indexing="ij")
    down = down_grid.ravel()  # [shifts]
    right = right_grid.ravel()
    a = frame.astype(np.float64)
    b = others.astype(np.float64)

    # Products of overlapping pixels: zeros around `a` add nothing where the frames do not overlap.
    most_down = max(_DOWN)
    most_right = max(_RIGHT)
    around = np.pad(a, ((most_down, most_down), (most_right, most_right)))
    windows = np.lib.stride_tricks.sliding_window_view(around, (height, width))  # of every shift, in place
    products = np.einsum("xyij,tij->txy", windows, b)
    products = products[:, down + most_down, right + most_right]  # [n, shifts]

    # Pearson's correlation from sums over only the overlap, as integers: n * sum(xy) - sum(x) * sum(y).
    overlap = (height - np.abs(down)) * (width - np.abs(right))  # [shifts]: pixels
    sum_a = _overlap_sums(a, down, right)  # [shifts]
    sum_b = _overlap_sums(b, -down, -right)  # [n, shifts]
    spread_a = overlap * _overlap_sums(a * a, down, right) - sum_a**2
    spread_b = overlap * _overlap_sums(b * b, -down, -right) - sum_b**2
    spread = spread_a * spread_b
    shared = overlap * products - sum_a * sum_b
    pearson = np.divide(shared, np.sqrt(spread), out=np.zeros_like(shared), where=spread > 0)
    best: Floats = pearson.max(axis=1)
    return best


def _overlap_sums(x: Floats, down: Whole, right: Whole) -> Floats:
    """Return the sums of x[..., height, width] over its overlap with each shift, [..., shifts]."""
    height, width = x.shape[-2:]
    # Integral images: a corner is the sum of all that is above and left of it.
    sums = np.zeros((*x.shape[:-2], height + 1, width + 1))
    sums[..., 1:, 1:] = x.cumsum(axis=-2).cumsum(axis=-1)
    top = np.maximum(down, 0)
    bottom = height + np.minimum(down, 0)
    start = np.maximum(right, 0)
    end = width + np.minimum(right, 0)
    above = sums[..., top, end] - sums[..., top, start]
    inside: Floats = sums[..., bottom, end] - sums[..., bottom, start] - above
    return inside
