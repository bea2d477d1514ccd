"""Detect a video's shot boundaries from its frames at 64 x 36 px.

- Hard cut: a frame differs far more from the previous one than nearby frames do (`hard_cuts`).
- Fade: frames without contrast between two different scenes (`fades`). The shot starts at the first frame with
  contrast.
- Dissolve: a frame is a mix of two unrelated frames equally far before and after (`mixed_frames`). The shot starts in
  the middle.
- Pans, passing objects and lights are not boundaries.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .fades import COMPARED_FRAMES, FLAT_STD, Boundary, FadeFinder
from .frame_levels import Floats, Frames, Levels, Whole, levels_apart, measure_levels
from .hard_cuts import hard_cuts
from .mixed_frames import LAGS, UNRELATED, mixed_frames
from .shifted_correlation import best_correlation

SMALL_PX = (64, 36)
"""Width and height of thumbnails in px."""

_SHORTEST = 6  # shortest shot in frames
_DISSOLVE_LEVELS = 10.0  # least difference of the two scenes of a dissolve
_CONTEXT = max(LAGS)  # frames on each side that decide about a frame
# A decided frame's boundaries are final after so many further decided ones: a fade's cut comes COMPARED_FRAMES later,
# and may replace a dissolve up to _CONTEXT frames away.
_SETTLED = _CONTEXT + COMPARED_FRAMES


class _Dissolve(NamedTuple):
    """A frame in the middle of a dissolve: the smaller of its two weights is the largest around."""

    number: int
    """Number of the frame in the video."""
    lag: int
    """Frames from here to either scene that the frame mixes."""
    balance: float
    """Smaller of the two weights."""
    pts: int


class ShotDetector:
    """Finds boundaries in frames in display order, fed in blocks of any length.

    Holds a few dozen frames; memory grows with the number of boundaries. A `number` counts the video's frames, a
    `position` those in memory.
    """

    def __init__(self) -> None:
        width, height = SMALL_PX
        # The frames in memory: undecided ones, and `_CONTEXT` decided ones before them.
        self._frames: Frames = np.zeros((0, height, width), np.uint8)
        self._std: Floats = np.zeros(0)
        self._change: Whole = np.zeros(0, np.int64)
        self._pts: list[int] = []

        self._start_pts = 0  # of the video's first frame
        self._first_number = 0  # of the first frame in memory
        self._next_number = 0  # of the first undecided frame

        self._cuts: list[Boundary] = []
        self._dissolves: list[_Dissolve] = []
        self._last_mixed = 0  # number of the last mixed frame
        self._fades = FadeFinder()
        self._decided_pts: deque[int] = deque(maxlen=_SETTLED)  # of the last decided frames

    def feed(
        self,
        frames: Frames,
        pts: Sequence[int],
    ) -> Levels:
        """Feed frames, uint8 [n, 36, 64] of full-range luma, and return their measurements."""
        previous = None
        if len(self._frames):
            previous = self._frames[-1]
        levels = measure_levels(frames, previous)

        is_start = not self._first_number and not self._pts
        if is_start and pts:
            self._start_pts = pts[0]
        self._remember(frames, levels, pts)
        # The last frames wait for those after them.
        self._decide(self._n_frames - _CONTEXT)
        return levels

    @property
    def _n_frames(self) -> int:
        """Frames fed so far."""
        return self._first_number + len(self._frames)

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
        self._decide(self._n_frames)
        sharp = set(self._cuts)
        sharp.update(self._fades.finish())
        return self._shot_starts(sharp, self._n_frames)

    def final_boundaries(self) -> tuple[list[int], int | None]:
        """Return (pts of the final boundaries, pts of the frame before which they are complete, or None)."""
        if len(self._decided_pts) < _SETTLED:
            return [], None

        front_pts = self._decided_pts[0]
        # A cut within a dissolve's length replaces it, and a dissolve moves while mixed frames follow.
        frames_since = self._next_number - self._last_mixed
        if self._dissolves and frames_since <= _CONTEXT:
            last = self._dissolves[-1]
            front_pts = min(front_pts, last.pts)

        sharp = set(self._cuts)
        sharp.update(self._fades.cuts)
        starts = self._shot_starts(sharp, self._next_number)
        final = [pts for pts in starts if pts < front_pts]
        return final, front_pts

    def _shot_starts(
        self,
        sharp: set[Boundary],
        n_frames: int,
    ) -> list[int]:
        """Return the ascending pts of the boundaries that leave no shot too short.

        sharp: hard cuts and fades. n_frames: number of frames that the shots cover.
        """
        boundaries = set(sharp)
        for dissolve in self._dissolves:
            # A cut within a dissolve's length replaces it.
            distances = [abs(dissolve.number - cut.number) for cut in sharp]
            if not distances or min(distances) > dissolve.lag:
                middle = Boundary(dissolve.number, dissolve.pts)
                boundaries.add(middle)

        starts: list[int] = []
        latest = Boundary(0, self._start_pts)
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
        """Find the boundaries among the undecided frames before number `stop`, and forget what is no longer context."""
        if stop <= self._next_number:
            return
        # Positions of the frames to decide; those around them are the context.
        begin = self._next_number - self._first_number
        end = stop - self._first_number
        self._find_hard_cuts(begin, end)
        self._find_dissolves(begin, end)
        self._find_fades(begin, end)

        self._next_number = stop
        self._decided_pts.extend(self._pts[begin:end])
        self._forget(end - _CONTEXT)

    def _find_hard_cuts(
        self,
        begin: int,
        end: int,
    ) -> None:
        positions = hard_cuts(
            self._frames,
            self._std,
            self._change,
            begin,
            end,
        )
        for position in positions:
            cut = Boundary(
                number=self._first_number + position,
                pts=self._pts[position],
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
        # They come by lag; `_add_mixed` needs them in display order.
        for position, lag, balance in sorted(mixed):
            before = self._frames[position - lag]
            after = self._frames[position + lag]
            # The thumbnails decide last, because comparing them over shifts is slow.
            if levels_apart(before, after) < _DISSOLVE_LEVELS:
                continue
            if best_correlation(before, after) >= UNRELATED:
                continue
            dissolve = _Dissolve(
                number=self._first_number + position,
                lag=lag,
                balance=balance,
                pts=self._pts[position],
            )
            self._add_mixed(dissolve)

    def _add_mixed(self, dissolve: _Dissolve) -> None:
        """Add a mixed frame; neighbouring ones are one dissolve, at its most balanced frame."""
        frames_since = dissolve.number - self._last_mixed
        self._last_mixed = dissolve.number
        if not self._dissolves:
            self._dissolves.append(dissolve)
            return

        last = self._dissolves[-1]
        longer_lag = max(last.lag, dissolve.lag)
        if frames_since > longer_lag:
            self._dissolves.append(dissolve)
        elif dissolve.balance > last.balance:
            self._dissolves[-1] = dissolve

    def _find_fades(
        self,
        begin: int,
        end: int,
    ) -> None:
        is_flat = self._std < FLAT_STD  # bool [frames in memory]
        # If no frame is flat, and no earlier flat run waits for its scene, there is no fade here. The finder then needs
        # only the last frames, to compare them with the scene after a later run.
        if self._fades.is_idle and not is_flat[begin:end].any():
            begin = max(begin, end - COMPARED_FRAMES)
        for position in range(begin, end):
            self._fades.add(
                number=self._first_number + position,
                pts=self._pts[position],
                frame=self._frames[position],
                is_flat=bool(is_flat[position]),
            )

    def _forget(self, n_frames: int) -> None:
        """Drop the first frames in memory; none if the number is not positive."""
        if n_frames <= 0:
            return
        self._frames = self._frames[n_frames:].copy()  # a view would keep the whole block in memory
        self._pts = self._pts[n_frames:]
        self._std = self._std[n_frames:]
        self._change = self._change[n_frames:]
        self._first_number += n_frames
