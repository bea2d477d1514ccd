"""Decoded frames with their display times, and statistics of these."""

import heapq
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ..unit import rejected

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame

_WITHOUT_PTS = ("avi",)
"""Containers without display times: FFmpeg passes their packets' times on in decode order."""

_REORDER_FRAMES = 16
"""Most frames by which H.264 and HEVC decode a frame early."""


def has_display_times(container: "InputContainer") -> bool:
    """Return whether the container stores display times."""
    return container.format.name not in _WITHOUT_PTS


class TimedFrame(NamedTuple):
    """Decoded frame with its time."""

    frame: "VideoFrame"
    """Decoded frame."""
    tagged: int
    """The frame's own timestamp."""
    pts: int
    """Display time."""


class Clock:
    """Assigns times to frames in display order.

    Without display times in the container, the sorted times go to the frames in order; else each frame keeps its
    own.
    """

    def __init__(self, container: "InputContainer") -> None:
        self._sorts = not has_display_times(container)
        self._frames: deque[tuple[VideoFrame, int]] = deque()
        self._times: list[int] = []
        self._n = 0

    def take(self, frame: "VideoFrame") -> Iterator[TimedFrame]:
        """Yield the frames that are ready. Raises: Unusable for a frame without a timestamp."""
        pts = frame.dts if frame.pts is None else frame.pts
        if pts is None:
            raise rejected("decode", "no_timestamps", f"frame {self._n} has neither pts nor dts")
        self._n += 1
        if not self._sorts:
            yield TimedFrame(frame, pts, pts)
            return
        self._frames.append((frame, pts))
        heapq.heappush(self._times, pts)
        if len(self._frames) > _REORDER_FRAMES:
            yield self._next()

    def rest(self) -> Iterator[TimedFrame]:
        while self._frames:
            yield self._next()

    def _next(self) -> TimedFrame:
        frame, tagged = self._frames.popleft()
        return TimedFrame(frame, tagged, heapq.heappop(self._times))


def timed_frames(container: "InputContainer", frames: Iterator["VideoFrame"]) -> Iterator[TimedFrame]:
    """Yield all frames with their times. Raises: Unusable."""
    clock = Clock(container)
    for frame in frames:
        yield from clock.take(frame)
    yield from clock.rest()
