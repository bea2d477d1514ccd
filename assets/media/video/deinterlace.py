"""Interlaced frames made whole: FFmpeg's bwdif, one frame out for each that goes in, at the same time."""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..unit import rejected
from .timestamps import TimedFrame

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_BWDIF = "mode=send_frame:parity=auto:deint=interlaced"
"""A frame that is not marked as two fields passes unchanged."""


class Deinterlacer:
    """Passes frames on until one is interlaced; from then on each comes out when the next goes in.

    FFmpeg's bwdif: one frame out per frame in. Frames keep their display times; bwdif changes timestamps.
    """

    def __init__(self, stream: "VideoStream") -> None:
        self._stream = stream
        self._graph: Any = None
        self._input: tuple[int, int, str] | None = None
        self._waiting: deque[TimedFrame] = deque()

    def take(self, shown: TimedFrame) -> Iterator[tuple[TimedFrame, bool]]:
        """Yield the frames that are ready, and whether each was deinterlaced."""
        frame = shown.frame
        if self._graph is None and not frame.interlaced_frame:
            yield shown, False
            return
        now = (frame.width, frame.height, frame.format.name)
        if self._input != now:
            yield from self.rest()
            self._graph, self._input = self._make(frame), now
        self._waiting.append(shown)
        self._graph.push(frame)
        yield from self._ready()

    def rest(self) -> Iterator[tuple[TimedFrame, bool]]:
        """Yield the remaining frames."""
        if self._graph is not None:
            self._graph.push(None)
            yield from self._ready()
            if self._waiting:
                raise rejected("cut", "deinterlace", f"{len(self._waiting)} frames did not come back")

    def _ready(self) -> Iterator[tuple[TimedFrame, bool]]:
        import av

        while self._waiting:
            try:
                whole: VideoFrame = self._graph.pull()
            except (av.error.BlockingIOError, av.error.EOFError):
                return
            source = self._waiting.popleft()
            yield TimedFrame(whole, source.tagged, source.pts), source.frame.interlaced_frame

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
