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
    earlier = np.concatenate([flat[:1] if before is None else before.reshape(1, -1), flat[:-1]])
    difference = np.maximum(flat, earlier) - np.minimum(flat, earlier)
    total, change, squares = (
        x.sum(axis=1, dtype=np.uint32).astype(np.int64)
        for x in (flat, difference, np.multiply(flat, flat, dtype=np.uint16))
    )
    return Levels(total, np.sqrt(pixels * squares - total**2) / pixels, change)


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
_LEVELS_PER_BIN = 8
_SAME_SCENE = 0.6  # lowest correlation within a scene
_UNDONE = 0.85  # lowest correlation of an undone change
_DOWN, _RIGHT = (-2, -1, 0, 1, 2), (-4, -2, -1, 0, 1, 2, 4)  # shifts in pixels
_DISSOLVE_LEVELS, _DISSOLVE_STD = 10.0, 6.0
_COARSE = 4
_DISSOLVE_SHARE = (0.2, 0.8)
_DISSOLVE_REST, _DISSOLVE_SAME = 0.24, 0.35


class _Dissolve(NamedTuple):
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
        levels = levels_of(frames, self._frames[-1] if len(self._frames) else None)
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
        return self._boundaries({*self._cuts, *self._fades.finish()}, n_frames)

    def settled(self) -> tuple[list[int], int | None]:
        """Return (pts of the final boundaries, pts of the frame before which they are complete, or None)."""
        if len(self._decided) < _SETTLED:
            return [], None
        front = self._decided[0]
        # A cut within a dissolve's length replaces it, and a dissolve moves while mixed frames follow.
        if self._dissolves and self._next - self._mixed <= _CONTEXT:
            front = min(front, self._dissolves[-1].pts)
        boundaries = self._boundaries({*self._cuts, *self._fades.cuts}, self._next)
        return [pts for pts in boundaries if pts < front], front

    def _boundaries(self, sharp: set[tuple[int, int]], n_frames: int) -> list[int]:
        slow = {
            (dissolve.at, dissolve.pts)
            for dissolve in self._dissolves
            if all(abs(dissolve.at - number) > dissolve.lag for number, _ in sharp)
        }
        boundaries = [(0, self._start)]
        for number, pts in sorted(sharp | slow):
            before, latest = boundaries[-1]
            if number - before >= _SHORTEST <= n_frames - number and pts > latest:
                boundaries.append((number, pts))
        return [pts for _, pts in boundaries[1:]]

    def _decide(self, stop: int) -> None:
        if stop <= self._next:
            return
        begin, end = self._next - self._first, stop - self._first
        frames, std = self._frames, self._std
        for place in _hard_cuts(frames, std, self._change, begin, end):
            self._cuts.append((self._first + place, self._pts[place]))
        for place, lag, balance in _dissolves(frames, std, begin, end):
            self._merge(_Dissolve(self._first + place, lag, balance, self._pts[place]))
        flat = std < _FLAT_STD
        # If no fade is in progress, only the last frames matter, for the next fade.
        skip = self._fades.idle and not flat[begin:end].any()
        for place in range(max(begin, end - _NEAR) if skip else begin, end):
            self._fades.add(self._first + place, self._pts[place], frames[place], bool(flat[place]))
        self._next = stop
        self._decided.extend(self._pts[begin:end])
        drop = max(0, end - _CONTEXT)
        self._frames, self._pts = self._frames[drop:].copy(), self._pts[drop:]
        self._std, self._change = self._std[drop:], self._change[drop:]
        self._first += drop

    def _merge(self, dissolve: _Dissolve) -> None:
        same = bool(self._dissolves) and dissolve.at - self._mixed <= max(
            self._dissolves[-1].lag, dissolve.lag
        )
        self._mixed = dissolve.at
        if not same:
            self._dissolves.append(dissolve)
        elif dissolve.balance > self._dissolves[-1].balance:
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
        if self._old is not None and self._end is not None:
            far, near = self._old
            same = max(best_correlation(far, self._before[-1]), best_correlation(near, self._before[0]))
            if same < _SAME_SCENE:
                self.cuts.append(self._end)
            self._old = self._end = None


def _hard_cuts(frames: Frames, std: Floats, changed: Whole, begin: int, end: int) -> Iterator[int]:
    """Yield the positions in [begin, end) at which a hard cut starts a shot."""
    change = changed / frames[0].size
    for place in np.flatnonzero(change[begin:end] >= _CUT_LEVELS) + begin:
        if min(std[place - 1], std[place]) < _FLAT_STD:
            continue  # to or from a flat colour: handled as a fade
        sides = change[max(1, place - _NEAR) : place], change[place + 1 : place + 1 + _NEAR]
        busy = max((float(side.mean()) for side in sides if len(side)), default=0.0)
        if change[place] < _CUT_RATIO * busy or not _is_new(frames[place - 1], frames[place]):
            continue
        behind, ahead = frames[max(0, place - _FLASH) : place - 1], frames[place + 1 : place + _FLASH]
        if not _is_among(frames[place - 1], ahead) and not _is_among(frames[place], behind):
            yield int(place)


def _is_new(first: Frames, second: Frames) -> bool:
    bins = [np.bincount((frame // _LEVELS_PER_BIN).ravel(), minlength=32) for frame in (first, second)]
    changed = float(np.abs(bins[0] - bins[1]).sum()) / 2 / first.size
    if changed < _CUT_HISTOGRAM and _levels_apart(first, second) < _CUT_HARD_LEVELS:
        return False
    return best_correlation(first, second) < _SAME_SCENE


def _levels_apart(first: Frames, second: Frames) -> float:
    return int(levels_of(second[None], first).change[0]) / first.size


def _is_among(frame: Frames, others: Frames) -> bool:
    return bool(len(others)) and float(best_correlations(frame, others).max()) >= _UNDONE


def _dissolves(frames: Frames, std: Floats, begin: int, end: int) -> Iterator[tuple[int, int, float]]:
    """Yield each mixed frame's (position in [begin, end), half length, smaller weight), by least squares."""
    coarse = _quarter(frames)
    plain = coarse - coarse.mean(axis=1, keepdims=True)
    power = np.einsum("tp,tp->t", plain, plain)
    mixtures: list[tuple[int, int, float]] = []
    for lag in _LAGS:
        low, high = max(begin, lag), min(end, len(frames) - lag)
        if low >= high:
            continue
        a, m, b = (slice(low + by, high + by) for by in (-lag, 0, lag))
        ab, am, mb = (np.einsum("tp,tp->t", plain[x], plain[y]) for x, y in ((a, b), (a, m), (m, b)))
        room = power[a] * power[b] - ab * ab
        with np.errstate(divide="ignore", invalid="ignore"):
            of_a, of_b = (am * power[b] - mb * ab) / room, (mb * power[a] - am * ab) / room
            rest = np.sqrt(np.maximum(0, 1 - (of_a * am + of_b * mb) / power[m]))
            same = ab / np.sqrt(power[a] * power[b])
        balance = np.minimum(of_a, of_b)
        mixed = (balance > _DISSOLVE_SHARE[0]) & (np.maximum(of_a, of_b) < _DISSOLVE_SHARE[1])
        mixed &= (rest < _DISSOLVE_REST) & (same < _DISSOLVE_SAME)
        mixed &= np.minimum(std[a], std[b]) >= _DISSOLVE_STD
        for place in np.flatnonzero(mixed) + low:
            before, after = frames[place - lag], frames[place + lag]
            if (
                _levels_apart(before, after) >= _DISSOLVE_LEVELS
                and best_correlation(before, after) < _DISSOLVE_SAME
            ):
                mixtures.append((int(place), lag, float(balance[place - low])))
    yield from sorted(mixtures)


def _quarter(frames: Frames) -> Floats:
    height, width = frames.shape[1] // _COARSE, frames.shape[2]
    rows = frames.reshape(len(frames), height, _COARSE, width).sum(axis=2, dtype=np.uint16)
    blocks = sum(rows[:, :, place::_COARSE] for place in range(1, _COARSE)) + rows[:, :, ::_COARSE]
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
    down, right = (axis.ravel() for axis in np.meshgrid(_DOWN, _RIGHT, indexing="ij"))
    most_down, most_right = max(_DOWN), max(_RIGHT)
    a, b = frame.astype(np.float64), others.astype(np.float64)
    around = np.pad(a, ((most_down, most_down), (most_right, most_right)))
    windows = np.lib.stride_tricks.sliding_window_view(around, (height, width))
    products = np.einsum("xyij,tij->txy", windows, b)[:, down + most_down, right + most_right]
    overlap = (height - np.abs(down)) * (width - np.abs(right))
    sum_a, squares_a = (_overlaps(x, down, right) for x in (a, a * a))
    sum_b, squares_b = (_overlaps(x, -down, -right) for x in (b, b * b))
    spread = (overlap * squares_a - sum_a**2) * (overlap * squares_b - sum_b**2)
    shared = overlap * products - sum_a * sum_b
    pearson = np.divide(shared, np.sqrt(spread), out=np.zeros_like(shared), where=spread > 0)
    best: Floats = pearson.max(axis=1)
    return best


def _overlaps(x: Floats, down: Whole, right: Whole) -> Floats:
    height, width = x.shape[-2:]
    sums = np.zeros((*x.shape[:-2], height + 1, width + 1))
    sums[..., 1:, 1:] = x.cumsum(axis=-2).cumsum(axis=-1)
    top, start = np.maximum(down, 0), np.maximum(right, 0)
    bottom, end = height + np.minimum(down, 0), width + np.minimum(right, 0)
    sums_inside: Floats = (
        sums[..., bottom, end] - sums[..., top, end] - sums[..., bottom, start] + sums[..., top, start]
    )
    return sums_inside
