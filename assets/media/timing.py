"""When a video's frames are shown, as its timestamps say."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from .timestamps import Shown


class Timing:
    """Counts timestamps: backward and equal ones as tagged, gaps as shown. Memory does not grow."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.last = self.n_backward = self.n_dup = self.last_duration = 0
        self.low: int | None = None
        self.high = 0
        self._newest: int | None = None

    def add(self, shown: Shown) -> int:
        """The gap before this frame, in ticks; 0 for the first and for one that is not behind the last."""
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
        """Variable when gaps differ by more than a tick, or than 2 ms where ticks are finer than that."""
        assert self.first is not None  # called after a frame
        low = self.low or 0
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
