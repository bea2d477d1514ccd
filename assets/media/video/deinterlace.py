"""Interlaced frames made whole: FFmpeg's bwdif, one frame out for each that goes in, at the same time."""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..unit import rejected
from .timestamps import Shown

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_BWDIF = "mode=send_frame:parity=auto:deint=interlaced"
"""A frame that is not marked as two fields passes as it is."""


class Deinterlacer:
    """Passes frames on until one is interlaced; from there on a frame comes out when the next has come in.

    Times are those at which frames are shown, not their own timestamps: bwdif changes these.
    """

    def __init__(self, stream: "VideoStream") -> None:
        self._stream = stream
        self._graph: Any = None
        self._made_for: tuple[int, int, str] | None = None
        self._waiting: deque[Shown] = deque()

    def take(self, shown: Shown) -> Iterator[tuple[Shown, bool]]:
        """Yield the frames that are ready, and whether each was deinterlaced."""
        frame = shown.frame
        if self._graph is None and not frame.interlaced_frame:
            yield shown, False
            return
        now = (frame.width, frame.height, frame.format.name)
        if self._made_for != now:
            yield from self.rest()
            self._graph, self._made_for = self._make(frame), now
        self._waiting.append(shown)
        self._graph.push(frame)
        yield from self._ready()

    def rest(self) -> Iterator[tuple[Shown, bool]]:
        """Yield the frames that are left after the last one."""
        if self._graph is not None:
            self._graph.push(None)
            yield from self._ready()
            if self._waiting:
                raise rejected("cut", "deinterlace", f"{len(self._waiting)} frames did not come back")

    def _ready(self) -> Iterator[tuple[Shown, bool]]:
        import av

        while self._waiting:
            try:
                whole: VideoFrame = self._graph.pull()
            except (av.error.BlockingIOError, av.error.EOFError):
                return
            came = self._waiting.popleft()
            yield Shown(whole, came.tagged, came.pts), came.frame.interlaced_frame

    def _make(self, frame: "VideoFrame") -> Any:
        import av.filter

        graph = av.filter.Graph()
        graph.threads = 1  # a worker per core: more threads only wait for each other
        source = graph.add_buffer(
            template=self._stream, width=frame.width, height=frame.height, format=frame.format
        )
        source.link_to(fields := graph.add("bwdif", _BWDIF))
        fields.link_to(graph.add("buffersink"))
        graph.configure()
        return graph
