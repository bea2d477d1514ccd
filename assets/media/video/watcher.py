"""Watchers that are shown every frame of a video while the audit decodes it, such as the maker of its clips."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from .timestamps import Shown

if TYPE_CHECKING:
    from av.video.stream import VideoStream

    from ..container import PacketIndex

Settled = Callable[[], tuple[list[int], int | None]]
"""(pts of scene cuts, pts of a frame): all cuts before that frame, which are final."""


class FrameWatcher(Protocol):
    """Called in this order: `begin`, `add` for each frame, then `finish` or `abandon`."""

    def begin(self, stream: "VideoStream", index: "PacketIndex", settled: Settled) -> None:
        """Begin, before the first frame. settled: returns the scene cuts known so far, whenever it is called."""

    def add(self, shown: Shown) -> None:
        """Add the next frame. Raises: StoreError when the disk is full."""

    def finish(self, cuts: Sequence[int]) -> None:
        """Finish, after the last frame of a sound video.

        cuts: its scene cuts. Raises: StoreError when the disk is full.
        """

    def abandon(self) -> None:
        """Drop everything that was made of a video that is not sound."""
