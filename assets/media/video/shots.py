"""Boundaries between the shots of a video, from its frames at 64 x 36 pixels.

Four kinds of change are told apart:

- A hard cut: a frame that differs from the one before by far more than the frames around it do (mean absolute
  difference). It is not the same picture moved, lit differently or dimmed (correlation, best of small shifts). It is
  not undone within a third of a second (a flash).
- A fade through black, white or any flat colour: frames without contrast between two pictures that are not the same.
  The new shot begins with the first frame that has contrast again.
- A dissolve: a frame that is the mean of two others which lie as far before it as behind it, and which have nothing in
  common. The new shot begins in the middle.
- Everything else (pans, things that pass, lights that go on) is no boundary.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .thumbnails import SMALL_PX, Floats, Frames, Levels, Whole, levels_of

_NEAR = 6  # frames on each side that a change is compared with
_FLASH = 8  # frames within which a change that is undone is none: a third of a second at 25 frames/s
_LAGS = (6, 12, 24)  # half lengths of dissolves, in frames
_CONTEXT = max(_LAGS)
_SHORTEST = 6  # frames: no shot is shorter
_SETTLED = _CONTEXT + _NEAR  # frames behind which nothing changes any more

_FLAT_STD = 2.5  # of a frame without contrast, in levels of 255
_CUT_LEVELS = 5.0
_CUT_RATIO = 2.2  # of a cut's difference to the mean of those on its busier side
_CUT_HISTOGRAM, _CUT_HARD_LEVELS = 0.15, 30.0  # share of the pixels whose level changed; enough without it
_LEVELS_PER_BIN = 8
_SAME_SCENE = 0.6  # correlation from which on two pictures are one scene
_UNDONE = 0.85  # ... and from which on a change was undone
_DOWN, _RIGHT = (-2, -1, 0, 1, 2), (-4, -2, -1, 0, 1, 2, 4)  # pixels by which a picture may have moved
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
    """Takes frames in display order, in pieces of any length: how they are split has no influence.

    Holds a few dozen frames and the boundaries found: memory grows with their number alone.
    """

    def __init__(self) -> None:
        self._frames: Frames = np.zeros((0, SMALL_PX[1], SMALL_PX[0]), np.uint8)
        self._std: Floats = np.zeros(0)
        self._change: Whole = np.zeros(0, np.int64)
        self._pts: list[int] = []
        self._start = 0  # pts of the first frame of all
        self._first = 0  # number of the first frame that is held
        self._next = 0  # of the first that is not decided
        self._cuts: list[tuple[int, int]] = []
        self._dissolves: list[_Dissolve] = []
        self._mixed = 0  # number of the last frame that is a mixture
        self._fades = _Fades()
        self._decided: deque[int] = deque(maxlen=_SETTLED)  # pts of the last frames that were decided on

    def feed(self, frames: Frames, pts: Sequence[int]) -> Levels:
        """Feed frames: uint8 [n, 36, 64], luma, full range; pts: n times. Return the measurements of each of them."""
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
        """Return the pts of the first frame of every shot but the first, ascending. Feed nothing after it."""
        n_frames = self._first + len(self._frames)
        self._decide(n_frames)
        return self._kept({*self._cuts, *self._fades.finish()}, n_frames)

    def settled(self) -> tuple[list[int], int | None]:
        """Return (pts of boundaries, pts of a frame): all boundaries of `finish` before that frame.

        They are final, whatever is fed; the frame is None while nothing is settled. O(boundaries).

        A fade is judged a few frames behind its end. A dissolve gives way to a cut within its length, and moves as long
        as mixed frames follow one another.
        """
        if len(self._decided) < _SETTLED:
            return [], None
        front = self._decided[0]
        if self._dissolves and self._next - self._mixed <= _CONTEXT:
            front = min(front, self._dissolves[-1].pts)
        found = self._kept({*self._cuts, *self._fades.cuts}, self._next)
        return [pts for pts in found if pts < front], front

    def _kept(self, sharp: set[tuple[int, int]], n_frames: int) -> list[int]:
        """Return the times of the boundaries between shots of `_SHORTEST` frames or more.

        A frame that is shown no later than one before it, as damaged timestamps say, begins no shot.
        """
        slow = {
            (one.at, one.pts)
            for one in self._dissolves
            if all(abs(one.at - number) > one.lag for number, _ in sharp)
        }
        kept = [(0, self._start)]
        for number, pts in sorted(sharp | slow):
            before, latest = kept[-1]
            if number - before >= _SHORTEST <= n_frames - number and pts > latest:
                kept.append((number, pts))
        return [pts for _, pts in kept[1:]]

    def _decide(self, stop: int) -> None:
        """Decide on the frames below number `stop`, and let go of those that later ones do not need."""
        if stop <= self._next:
            return
        begin, end = self._next - self._first, stop - self._first
        seen, std = self._frames, self._std
        for place in _hard_cuts(seen, std, self._change, begin, end):
            self._cuts.append((self._first + place, self._pts[place]))
        for place, lag, balance in _dissolves(seen, std, begin, end):
            self._merge(_Dissolve(self._first + place, lag, balance, self._pts[place]))
        flat = std < _FLAT_STD
        # Where no fade is under way and none begins, only the last frames count, for the next one.
        skip = self._fades.idle and not flat[begin:end].any()
        for place in range(max(begin, end - _NEAR) if skip else begin, end):
            self._fades.add(self._first + place, self._pts[place], seen[place], bool(flat[place]))
        self._next = stop
        self._decided.extend(self._pts[begin:end])
        drop = max(0, end - _CONTEXT)
        self._frames, self._pts = self._frames[drop:].copy(), self._pts[drop:]
        self._std, self._change = self._std[drop:], self._change[drop:]
        self._first += drop

    def _merge(self, found: _Dissolve) -> None:
        """Keep the most balanced of the frames of one dissolve, which follow one another."""
        same = bool(self._dissolves) and found.at - self._mixed <= max(self._dissolves[-1].lag, found.lag)
        self._mixed = found.at
        if not same:
            self._dissolves.append(found)
        elif found.balance > self._dissolves[-1].balance:
            self._dissolves[-1] = found


class _Fades:
    """Runs of flat frames between two pictures that are not the same: a boundary each, at the run's end.

    The pictures are compared beside the run and some frames away from it, where they have faded in.
    """

    def __init__(self) -> None:
        self.cuts: list[tuple[int, int]] = []
        self._before: deque[Frames] = deque(maxlen=_NEAR)  # the last with contrast
        self._old: tuple[Frames, Frames] | None = (
            None  # two to compare with, from the run on until it is judged
        )
        self._end: tuple[int, int] | None = None  # number and pts of the first behind the run

    @property
    def idle(self) -> bool:
        """True where no run waits for its end or its judgement."""
        return self._old is None

    def add(self, number: int, pts: int, frame: Frames, is_flat: bool) -> None:
        """Add the next frame."""
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
        """Return (number, pts) of each boundary."""
        self._judge()
        return self.cuts

    def _judge(self) -> None:
        if self._old is not None and self._end is not None:
            far, near = self._old
            same = max(moved(far, self._before[-1]), moved(near, self._before[0]))
            if same < _SAME_SCENE:
                self.cuts.append(self._end)
            self._old = self._end = None


def _hard_cuts(seen: Frames, std: Floats, changed: Whole, begin: int, end: int) -> Iterator[int]:
    """Yield the places in [begin, end) whose frame begins a shot at once."""
    change = changed / seen[0].size
    for place in np.flatnonzero(change[begin:end] >= _CUT_LEVELS) + begin:
        if min(std[place - 1], std[place]) < _FLAT_STD:
            continue  # to or from a flat colour: a fade's business
        sides = change[max(1, place - _NEAR) : place], change[place + 1 : place + 1 + _NEAR]
        busy = max((float(side.mean()) for side in sides if len(side)), default=0.0)
        if change[place] < _CUT_RATIO * busy or not _is_new(seen[place - 1], seen[place]):
            continue
        behind, ahead = seen[max(0, place - _FLASH) : place - 1], seen[place + 1 : place + _FLASH]
        if not _is_among(seen[place - 1], ahead) and not _is_among(seen[place], behind):
            yield int(place)


def _is_new(one: Frames, other: Frames) -> bool:
    """Return whether the second is another picture than the first, by its levels and by where they are."""
    bins = [np.bincount((frame // _LEVELS_PER_BIN).ravel(), minlength=32) for frame in (one, other)]
    changed = float(np.abs(bins[0] - bins[1]).sum()) / 2 / one.size
    if changed < _CUT_HISTOGRAM and _levels_apart(one, other) < _CUT_HARD_LEVELS:
        return False
    return moved(one, other) < _SAME_SCENE


def _levels_apart(one: Frames, other: Frames) -> float:
    """Return the mean absolute difference, in levels of 255."""
    return int(levels_of(other[None], one).change[0]) / one.size


def _is_among(frame: Frames, others: Frames) -> bool:
    """Return whether one of the others is nearly the same picture, so that the change between was undone."""
    return bool(len(others)) and float(all_moved(frame, others).max()) >= _UNDONE


def _dissolves(seen: Frames, std: Floats, begin: int, end: int) -> Iterator[tuple[int, int, float]]:
    """Yield (place in [begin, end), half length, share of the lesser picture), in order, of mixed frames.

    M is a frame, A the one `lag` before it, B the one `lag` after it. The weights a, b bring a A + b B nearest to M by
    least squares. All three are without their means, so that a fade's darkening does not count. They are at a quarter
    of the size, so that small movement does not count either.
    """
    coarse = _quarter(seen)
    plain = coarse - coarse.mean(axis=1, keepdims=True)
    power = np.einsum("tp,tp->t", plain, plain)
    found: list[tuple[int, int, float]] = []
    for lag in _LAGS:
        low, high = max(begin, lag), min(end, len(seen) - lag)
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
            before, after = seen[place - lag], seen[place + lag]
            if _levels_apart(before, after) >= _DISSOLVE_LEVELS and moved(before, after) < _DISSOLVE_SAME:
                found.append((int(place), lag, float(balance[place - low])))
    yield from sorted(found)


def _quarter(frames: Frames) -> Floats:
    """Return [n, 9 * 16]: the means of blocks of 4 x 4 pixels.

    Their sums are whole, and added where they lie side by side.
    """
    height, width = frames.shape[1] // _COARSE, frames.shape[2]
    rows = frames.reshape(len(frames), height, _COARSE, width).sum(axis=2, dtype=np.uint16)
    blocks = sum(rows[:, :, place::_COARSE] for place in range(1, _COARSE)) + rows[:, :, ::_COARSE]
    means: Floats = blocks.reshape(len(frames), -1) / _COARSE**2
    return means


def moved(one: Frames, other: Frames) -> float:
    """Return the greatest correlation of two frames, -1 to 1, over small shifts of one against the other."""
    return float(all_moved(one, other[None])[0])


def all_moved(one: Frames, others: Frames) -> Floats:
    """Return `moved` (Pearson's; 0 for a flat frame), [n], of uint8 [height, width] and each of [n, height, width].

    For every shift the sums over where the two overlap: of products from one against the other padded with zeros, of
    levels and their squares from sums over all rectangles. All of them are whole numbers below 2^53.
    """
    height, width = one.shape
    down, right = (axis.ravel() for axis in np.meshgrid(_DOWN, _RIGHT, indexing="ij"))
    most_down, most_right = max(_DOWN), max(_RIGHT)
    a, b = one.astype(np.float64), others.astype(np.float64)
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
    """Return [..., shifts]: sums of [..., height, width] over the part that overlaps a picture shifted so."""
    height, width = x.shape[-2:]
    sums = np.zeros((*x.shape[:-2], height + 1, width + 1))
    sums[..., 1:, 1:] = x.cumsum(axis=-2).cumsum(axis=-1)
    top, left = np.maximum(down, 0), np.maximum(right, 0)
    bottom, end = height + np.minimum(down, 0), width + np.minimum(right, 0)
    found: Floats = (
        sums[..., bottom, end] - sums[..., top, end] - sums[..., bottom, left] + sums[..., top, left]
    )
    return found
