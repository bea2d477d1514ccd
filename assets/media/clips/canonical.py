"""Canonical clips: upright, SDR and re-encoded, in one decode that covers only the spans."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..container import PacketIndex, check_scratch, first_video, opened
from ..policy import VideoPolicy
from ..unit import rejected
from ..video.frame_filter import FrameFilter
from ..video.span_frames import CannotSeek, frames_of, prepare
from ..video.spans import ClipSpan
from ..video.timestamps import TimedFrame
from .clip import Clip, PacketTables
from .encoder import MIN_PSNR_DB, QUALITIES, ClipEncoder

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    path: str
    spans: Sequence[ClipSpan]
    index: PacketIndex
    scratch: Path
    policy: VideoPolicy


def canonical_clips(
    path: str,
    spans: Sequence[ClipSpan],
    index: PacketIndex,
    scratch: Path,
    policy: VideoPolicy,
    audit: Mapping[str, Any],
) -> list[Clip | None]:
    """Return a clip per span, in order; None for a span without a frame.

    audit: the video's media table row; if it is empty, the video is decoded to its end. If a frame falls below
    `MIN_PSNR_DB`, all clips are re-encoded at a higher quality. Raises: Unusable.
    """
    order = _Order(path=path, spans=spans, index=index, scratch=scratch, policy=policy)
    seeks = bool(audit)
    for quality in QUALITIES:
        try:
            clips = _encoded(order, audit, quality, seeks)
        except CannotSeek:
            seeks = False
            clips = _encoded(order, audit, quality, seeks)
        if is_good_enough(clips):
            return clips
    raise rejected("cut", "psnr", f"no encoding of it has {MIN_PSNR_DB:.0f} dB in every frame")


def _encoded(
    order: _Order, audit: Mapping[str, Any], quality: Mapping[str, str], seeks: bool
) -> list[Clip | None]:
    import av

    with opened(order.path) as container:
        stream = first_video(container)
        assert stream is not None  # the same file had one before
        prepare(stream, audit)
        maker = ClipMaker(order.spans, order.index, order.scratch, order.policy, stream, quality)
        try:
            for timed in frames_of(container, stream, order.spans, audit, seeks=seeks):
                maker.add(timed)
            return maker.finish()
        except av.error.FFmpegError as error:
            check_scratch(error, order.scratch)
            if seeks:  # after a failed seek, decoding in order may work
                raise CannotSeek(str(error.strerror)) from error
            reason = f"after frame {maker.n}: {error.strerror}"
            raise rejected("decode", "undecodable", reason, at_frame=maker.n) from error
        finally:
            maker.abandon()


class ClipMaker:
    """Encodes clips of possibly overlapping spans from frames in display order. n: number of frames added."""

    def __init__(
        self,
        spans: Sequence[ClipSpan],
        index: PacketIndex,
        scratch: Path,
        policy: VideoPolicy,
        stream: "VideoStream",
        quality: Mapping[str, str],
    ) -> None:
        self.n = 0
        self._spans, self._index, self._scratch = spans, index, scratch
        self._stream, self._quality = stream, quality
        self._whole, self._shrink = Deinterlacer(stream), FrameFilter(stream, policy)
        self._tables = PacketTables()
        self._last_pts: int | None = None
        self._waiting = sorted(range(len(spans)), key=lambda place: -spans[place].start)
        self._open: dict[int, ClipEncoder] = {}
        self._n_deinterlaced: dict[int, int] = {}
        self._clips: list[Clip | None] = [None] * len(spans)

    def add(self, timed: TimedFrame) -> None:
        """Add the next frame, which is skipped unless it is later than the previous one.

        Raises: Unusable; av.error.FFmpegError.
        """
        if not self.n:
            self._shrink.begin(timed.frame)
        self.n += 1
        if self._last_pts is None or timed.pts > self._last_pts:
            self._last_pts = timed.pts
            self._encode(self._whole.take(timed))

    def finish(self) -> list[Clip | None]:
        """Return a clip per span, in order; None for a span without a frame."""
        self._encode(self._whole.rest())
        for place in list(self._open):
            self._finish(place)
        return self._clips

    def abandon(self) -> None:
        """Close all open clips."""
        for encoder in self._open.values():
            encoder.abandon()

    def _encode(self, ready: Iterable[tuple[TimedFrame, bool]]) -> None:
        for timed, was_interlaced in ready:
            self._turn_to(timed.pts)
            if not self._open:
                continue
            timed.frame.pts = timed.pts
            small = self._shrink.apply(timed.frame)
            assert self._shrink.rendering is not None  # set by `apply`
            for place, encoder in self._open.items():
                encoder.add(small, timed.pts, self._shrink.rendering)
                self._n_deinterlaced[place] += was_interlaced

    def _turn_to(self, pts: int) -> None:
        for place in [place for place in self._open if pts >= self._spans[place].end]:
            self._finish(place)
        while self._waiting and pts >= self._spans[self._waiting[-1]].start:
            place = self._waiting.pop()
            span = self._spans[place]
            if pts < span.end:
                target = self._scratch / f"clip-{place:04d}.mp4"
                self._open[place] = ClipEncoder(target, self._stream, self._quality)
                self._n_deinterlaced[place] = 0

    def _finish(self, place: int) -> None:
        encoder = self._open.pop(place)
        span, n_deinterlaced = self._spans[place], self._n_deinterlaced[place]
        self._clips[place] = finish_clip(encoder, span, self._index, n_deinterlaced, self._tables)


def finish_clip(
    encoder: ClipEncoder, span: ClipSpan, index: PacketIndex, n_deinterlaced: int, tables: PacketTables
) -> Clip:
    """Return a span's clip after its last frame was encoded. Raises: Unusable; av.error.FFmpegError."""
    end = max(encoder.pts[-1] + 1, min(span.end, index.end_pts))
    try:
        encoder.finish(end)
    finally:
        encoder.abandon()
    assert encoder.rendering is not None  # it has a frame
    fidelity = encoder.fidelity()
    return Clip(
        path=encoder.path,
        packets=tables.write(encoder.path),
        span=span,
        pts=encoder.pts,
        end=end,
        size_px=encoder.size_px,
        requested=(0, len(encoder.pts)),
        mode="canonical",
        metadata={
            "psnr_db": round(fidelity.psnr_db, 3),
            "worst_psnr_db": round(fidelity.worst_db, 3),
            "n_deinterlaced": n_deinterlaced,
            "colour_treatment": encoder.rendering.treatment,
            "colour_assumed": encoder.rendering.assumed,
        },
    )


def is_good_enough(clips: Sequence[Clip | None]) -> bool:
    """Return whether every frame of every clip reaches `MIN_PSNR_DB`."""
    worst = [float(clip.metadata["worst_psnr_db"] or 0) for clip in clips if clip is not None]
    return min(worst, default=MIN_PSNR_DB) >= MIN_PSNR_DB


# Frames that are not marked as interlaced pass unchanged.
_BWDIF = "mode=send_frame:parity=auto:deint=interlaced"


class Deinterlacer:
    """Passes frames through until one is interlaced; from then on each frame is delayed by one.

    Uses FFmpeg's bwdif and restores the display times, which it changes.
    """

    def __init__(self, stream: "VideoStream") -> None:
        self._stream = stream
        self._graph: Any = None
        self._input: tuple[int, int, str] | None = None
        self._waiting: deque[TimedFrame] = deque()

    def take(self, timed: TimedFrame) -> Iterator[tuple[TimedFrame, bool]]:
        """Add a frame and yield (frame, whether it was deinterlaced) for all that are ready."""
        frame = timed.frame
        if self._graph is None and not frame.interlaced_frame:
            yield timed, False
            return
        now = (frame.width, frame.height, frame.format.name)
        if self._input != now:
            yield from self.rest()
            self._graph, self._input = self._make(frame), now
        self._waiting.append(timed)
        self._graph.push(frame)
        yield from self._ready()

    def rest(self) -> Iterator[tuple[TimedFrame, bool]]:
        """Yield the remaining frames in the same form."""
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
        graph.threads = 1  # there is a worker per core, so more threads would only wait
        source = graph.add_buffer(
            template=self._stream, width=frame.width, height=frame.height, format=frame.format
        )
        source.link_to(fields := graph.add("bwdif", _BWDIF))
        fields.link_to(graph.add("buffersink"))
        graph.configure()
        return graph
