"""Watchers that are shown every frame of a video while the audit decodes it, such as the maker of its clips."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from .timestamps import TimedFrame

if TYPE_CHECKING:
    from av.video.stream import VideoStream

    from ..container import PacketIndex

SettledCuts = Callable[[], tuple[list[int], int | None]]
"""Returns (pts of scene cuts, pts of a frame): all cuts before that frame, final."""


class FrameWatcher(Protocol):
    """Receives an audit's frames: `begin`, `add` for each, then `finish` or `abandon`."""

    def begin(self, stream: "VideoStream", index: "PacketIndex", settled: SettledCuts) -> None:
        """Begin, before the first frame. settled: returns the final scene cuts so far, at any time."""

    def add(self, shown: TimedFrame) -> None:
        """Add the next frame. Raises: StoreError for a full disk."""

    def finish(self, cuts: Sequence[int]) -> None:
        """Finish, after the last frame of a healthy video with these scene cuts.

        Raises: StoreError for a full disk.
        """

    def abandon(self) -> None:
        """Drop everything made of a video, if it is still open."""
