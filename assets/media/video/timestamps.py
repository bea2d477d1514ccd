"""Decoded frames with the time at which each is shown."""

import heapq
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ..unit import rejected

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame

_WITHOUT_PTS = ("avi",)
"""Containers that store no display time: FFmpeg hands their packets' times on in decode order."""

_REORDER_FRAMES = 16
"""The most by which H.264 and HEVC let a frame be decoded early."""


def has_display_times(container: "InputContainer") -> bool:
    """Return whether the container stores when a frame is shown."""
    return container.format.name not in _WITHOUT_PTS


class Shown(NamedTuple):
    """A decoded frame with its time."""

    frame: "VideoFrame"
    """Decoded frame."""
    tagged: int
    """Timestamp of the frame's own."""
    pts: int
    """Time at which it is shown."""


class Clock:
    """Tells frames, which come in display order, their times.

    Where the container has no display times, the sorted times are the frames' in that order; elsewhere each frame keeps
    its own.
    """

    def __init__(self, container: "InputContainer") -> None:
        self._sorts = not has_display_times(container)
        self._frames: deque[tuple[VideoFrame, int]] = deque()
        self._times: list[int] = []
        self._n = 0

    def take(self, frame: "VideoFrame") -> Iterator[Shown]:
        """Yield the frames that are ready. Raises: Unusable for a frame without any timestamp."""
        pts = frame.dts if frame.pts is None else frame.pts
        if pts is None:
            raise rejected("decode", "no_timestamps", f"frame {self._n} has neither pts nor dts")
        self._n += 1
        if not self._sorts:
            yield Shown(frame, pts, pts)
            return
        self._frames.append((frame, pts))
        heapq.heappush(self._times, pts)
        if len(self._frames) > _REORDER_FRAMES:
            yield self._next()

    def rest(self) -> Iterator[Shown]:
        while self._frames:
            yield self._next()

    def _next(self) -> Shown:
        frame, tagged = self._frames.popleft()
        return Shown(frame, tagged, heapq.heappop(self._times))


def shown(container: "InputContainer", frames: Iterator["VideoFrame"]) -> Iterator[Shown]:
    """Yield all of `frames` with their times. Raises: Unusable."""
    clock = Clock(container)
    for frame in frames:
        yield from clock.take(frame)
    yield from clock.rest()
