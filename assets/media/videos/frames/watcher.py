"""Somebody who is shown every frame of a video while the audit decodes it, such as the maker of its clips."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from .timestamps import Shown

if TYPE_CHECKING:
    from av.video.stream import VideoStream

    from ...container import PacketIndex

Settled = Callable[[], tuple[list[int], int | None]]
"""(pts of scene cuts, pts of a frame): the cuts before that frame, and nothing will change there."""


class FrameWatcher(Protocol):
    """Called in this order: `begin`, `add` for each frame, then `finish` or `abandon`."""

    def begin(self, stream: "VideoStream", index: "PacketIndex", settled: Settled) -> None:
        """Before the first frame. settled: what is known of the scene cuts, whenever it is asked."""

    def add(self, shown: Shown) -> None:
        """The next frame. Raises: StoreError when the disk is full."""

    def finish(self, cuts: Sequence[int]) -> None:
        """After the last frame of a sound video. cuts: its scene cuts. Raises: StoreError when the disk is full."""

    def abandon(self) -> None:
        """The video is not sound: nothing that was made of it is kept."""
