"""Times at which a video's frames are shown, by its timestamps."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from ..container import MAX_GAP_S
from ..unit import rejected
from .timestamps import TimedFrame

MAX_MISPLACED = 0.5
"""Largest share of frames at or before the time of a frame that is shown earlier."""


class Timing:
    """Counts timestamps: backward and equal ones as tagged, gaps as shown. Memory is constant."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.last = self.n_backward = self.n_dup = self.last_duration = 0
        self.low: int | None = None
        self.high = 0
        self._n = 0
        self._newest: int | None = None

    def add(self, shown: TimedFrame) -> int:
        """Return the gap in ticks before this frame; 0 for the first, and for a frame that is not later."""
        self._n += 1
        newest = self._newest
        if newest is not None:
            self.n_dup += shown.tagged == newest
            self.n_backward += shown.tagged < newest
        self._newest = shown.tagged if newest is None else max(newest, shown.tagged)
        gap = 0
        if self.first is None:
            self.first = self.last = shown.pts
        elif shown.pts > self.last:
            gap = shown.pts - self.last
            self.low = gap if self.low is None else min(self.low, gap)
            self.high = max(self.high, gap)
            self.last = shown.pts
        if shown.pts == self.last:
            self.last_duration = shown.frame.duration or 0
        return gap

    def facts(self, time_base: Fraction) -> Mapping[str, Any]:
        """Return the columns; variable if gaps differ by more than a tick or 2 ms, whichever is longer.

        Raises: Unusable for impossible timestamps.
        """
        assert self.first is not None  # called after a frame
        low = self.low or 0
        longest_s = max(self.high, self.last_duration) * time_base
        if longest_s > MAX_GAP_S:
            raise rejected("decode", "timestamps", f"one frame is shown for {float(longest_s):.0f} s")
        misplaced = self.n_backward + self.n_dup
        if misplaced > MAX_MISPLACED * self._n:
            raise rejected(
                "decode",
                "timestamps",
                f"{misplaced} of {self._n} frames lie at or before the time of another",
            )
        slack = max(1, round(Fraction(2, 1000) / time_base))
        end = self.last + max(1, self.last_duration or low)
        return {
            "start_pts": self.first,
            "end_pts": end,
            "duration_s": float((end - self.first) * time_base),
            "min_pts_gap": self.low,
            "max_pts_gap": self.high if self.low is not None else None,
            "is_vfr": self.high - low > slack,
            "n_pts_backward": self.n_backward,
            "n_pts_dup": self.n_dup,
        }
