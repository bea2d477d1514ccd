"""Canonical clips: upright, SDR and re-encoded, in one decode of the spans.

x264 veryfast crf 21, tune fastdecode, keyframe every 12 frames, no B-frames, yuv420p, faststart, square pixels,
limited-range BT.601, source timestamps. With mbtree x264 sometimes writes other bytes for the same frames (4 of 100).
`qmax` bounds the error: with crf only, single frames fell to 34 dB; with it the worst is 36.5 dB.
"""

import contextlib
import math
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..container import PacketIndex, check_scratch, first_video, open_container
from ..policy import VideoPolicy
from ..unit import rejected
from ..video.colour import Rendering
from ..video.frame_filter import FrameFilter
from ..video.spans import CannotSeek, Clip, ClipSpan, PacketTables, prepare, span_frames
from ..video.timestamps import TimedFrame

if TYPE_CHECKING:
    from av.packet import Packet, PacketSideData
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream


QUALITIES = ({"crf": "21", "qmax": "28"}, {"crf": "16", "qmax": "22"}, {"crf": "10", "qmax": "14"})
"""Encoder settings by quality: if a frame falls below `MIN_PSNR_DB`, the next are used."""

MIN_PSNR_DB = 35.0
"""Lowest PSNR in dB of any frame."""

_X264 = {"preset": "veryfast", "tune": "fastdecode", "g": "12", "bf": "0", "x264-params": "mbtree=0"}
_MPEG_RANGE, _SMPTE170M = 1, 6  # AVCOL_RANGE_MPEG, AVCOL_SPC_SMPTE170M
_ERRORS = struct.Struct("<8x3Q")
_BEST_DB = 99.0  # PSNR in dB if there is no error


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """PSNR in dB of a clip against its resized source frames, over all samples of Y, U, V."""

    psnr_db: float
    """PSNR of the clip's mean squared error."""
    worst_db: float
    """PSNR of the worst frame."""


class ClipEncoder:
    """Encodes one clip into a scratch file."""

    def __init__(
        self,
        path: Path,
        stream: "VideoStream",
        quality: Mapping[str, str] = QUALITIES[0],
    ) -> None:
        assert stream.time_base is not None  # index_packets rejects such streams
        self.path = path
        self.pts: list[int] = []
        self.size_px = (0, 0)
        self._quality = quality
        self._errors: list[int] = []
        self._rate = stream.average_rate or stream.guessed_rate or Fraction(25)
        self._time_base = stream.time_base
        self.rendering: Rendering | None = None
        self._output: Any = None
        self._encoder: Any = None
        self._held: Any = None

    def add(self, frame: "VideoFrame", pts: int, rendering: Rendering) -> None:
        """Encode a yuv420p frame shown at `pts`. Raises: Unusable if size or colours change; av.error.FFmpegError."""
        if self._output is None:
            self._open(frame, rendering)
        if self.size_px != (frame.width, frame.height):
            now = (frame.width, frame.height)
            raise rejected("cut", "shape_change", f"{self.size_px} px becomes {now} px")
        if rendering is not self.rendering and (
            self.rendering is None or self.rendering.tags != rendering.tags
        ):
            raise rejected("cut", "colour_change", f"its colours change in mid-clip, at {pts} ticks")
        self.pts.append(pts)
        frame.pts = pts - self.pts[0]
        frame.time_base = self._time_base
        frame.pict_type = 0  # otherwise the encoder copies the source's I, P and B types
        self._write(self._encoder.encode(frame))

    def finish(self, end: int) -> None:
        """Write the encoder's remaining frames. end: end of the last frame in source ticks."""
        self._write(self._encoder.encode(None))
        if self._held is not None:  # all other frames last until the next one
            self._held.duration = end - self.pts[-1]
            self._output.mux(self._held)
        self.close()

    def close(self) -> None:
        """Write the muxer's remaining packets. Idempotent."""
        output = self._output
        self._output = None
        self._held = None
        if output is not None:
            output.close()

    def abandon(self) -> None:
        """Close an unwanted clip, ignoring FFmpeg errors."""
        import av

        with contextlib.suppress(av.error.FFmpegError):
            self.close()

    def fidelity(self) -> Fidelity:
        """Return the finished clip's PSNR, from x264's own error sums."""
        samples = self.size_px[0] * self.size_px[1] * 3 // 2
        return Fidelity(
            psnr_db=psnr_db(sum(self._errors), samples * len(self._errors)),
            worst_db=psnr_db(max(self._errors), samples),
        )

    def _write(self, packets: "Iterable[Packet[VideoStream]]") -> None:
        for packet in packets:
            self._errors.append(_sum_errors(packet.get_sidedata("quality_stats")))
            if self._held is not None:
                self._output.mux(self._held)
            self._held = packet

    def _open(self, frame: "VideoFrame", rendering: Rendering) -> None:
        import av
        from av.codec.context import Flags

        # Keep the source's ticks; the muxer would choose finer ones.
        options = {
            "movflags": "+faststart+write_colr",
            "video_track_timescale": str(self._time_base.denominator),
        }
        self._output = av.open(str(self.path), "w", format="mp4", options=options)
        self._encoder = self._output.add_stream(
            "libx264", rate=self._rate, options={**_X264, **self._quality}
        )
        self.rendering = rendering
        self.size_px = (frame.width, frame.height)
        self._encoder.width, self._encoder.height = self.size_px
        self._encoder.pix_fmt = "yuv420p"
        self._encoder.time_base = self._time_base
        context = self._encoder.codec_context
        context.time_base = self._time_base
        context.thread_count = 1
        context.flags |= Flags.psnr  # sums errors without changing the bytes
        context.color_range = _MPEG_RANGE
        context.colorspace = _SMPTE170M
        context.color_primaries = rendering.primaries
        context.color_trc = rendering.transfer


def psnr_db(squared_error: float, n_samples: int) -> float:
    """Return 10 log10(255^2 / MSE) for 8-bit samples."""
    if squared_error <= 0:
        return _BEST_DB
    return min(_BEST_DB, 10 * math.log10(255**2 * n_samples / squared_error))


def _sum_errors(stats: "PacketSideData") -> int:
    # AV_PKT_DATA_QUALITY_STATS: u32 quality, u8 type, u8 n=3, u16, n u64 errors, one per plane.
    return sum(_ERRORS.unpack_from(memoryview(stats)))


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

    audit: the media row; if empty, the video is decoded to its end. If a frame falls below `MIN_PSNR_DB`, all clips are
    re-encoded at a higher quality. Raises: Unusable.
    """
    order = _Order(path=path, spans=spans, index=index, scratch=scratch, policy=policy)
    seeks = bool(audit)
    for quality in QUALITIES:
        try:
            clips = _encode_clips(order, audit, quality, seeks)
        except CannotSeek:
            seeks = False
            clips = _encode_clips(order, audit, quality, seeks)
        if is_good_enough(clips):
            return clips
    raise rejected(
        "cut", "psnr", f"no encoding of it has {MIN_PSNR_DB:.0f} dB in every frame", accepted=MIN_PSNR_DB
    )


def _encode_clips(
    order: _Order,
    audit: Mapping[str, Any],
    quality: Mapping[str, str],
    seeks: bool,
) -> list[Clip | None]:
    """Return the clips of an order at one quality. Raises: CannotSeek; Unusable."""
    import av

    with open_container(order.path) as container:
        stream = first_video(container)
        assert stream is not None  # the same file had one before
        prepare(stream, audit)
        maker = ClipMaker(order.spans, order.index, order.scratch, order.policy, stream, quality)
        try:
            for timed in span_frames(container, stream, order.spans, audit, seeks=seeks):
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
    """Encodes clips of possibly overlapping spans from frames in display order."""

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
        self._spans = spans
        self._index = index
        self._scratch = scratch
        self._stream = stream
        self._quality = quality
        self._deinterlacer = Deinterlacer(stream)
        self._filter = FrameFilter(stream, policy)
        self._packet_tables = PacketTables()
        self._last_pts: int | None = None
        # Numbers of the spans that have not begun, the next one last: `_advance` pops it.
        self._waiting = sorted(range(len(spans)), key=lambda number: -spans[number].start)
        self._open: dict[int, ClipEncoder] = {}  # number of a span that has begun -> its encoder
        self._n_deinterlaced: dict[int, int] = {}
        self._clips: list[Clip | None] = [None] * len(spans)

    def add(self, timed: TimedFrame) -> None:
        """Add the next frame; skip one that is not later than the last. Raises: Unusable; av.error.FFmpegError."""
        if not self.n:
            self._filter.begin(timed.frame)
        self.n += 1
        if self._last_pts is None or timed.pts > self._last_pts:
            self._last_pts = timed.pts
            self._encode(self._deinterlacer.take(timed))

    def finish(self) -> list[Clip | None]:
        """Return a clip per span, in order; None for a span without a frame."""
        self._encode(self._deinterlacer.rest())
        for number in list(self._open):
            self._finish(number)
        return self._clips

    def abandon(self) -> None:
        """Close all open clips."""
        for encoder in self._open.values():
            encoder.abandon()

    def _encode(self, ready: Iterable[tuple[TimedFrame, bool]]) -> None:
        """Add frames, each with whether it was interlaced, to all clips whose spans have them."""
        for timed, was_interlaced in ready:
            self._advance(timed.pts)
            if not self._open:
                continue
            timed.frame.pts = timed.pts
            small = self._filter.apply(timed.frame)
            assert self._filter.rendering is not None  # set by `apply`
            for number, encoder in self._open.items():
                encoder.add(small, timed.pts, self._filter.rendering)
                self._n_deinterlaced[number] += was_interlaced

    def _advance(self, pts: int) -> None:
        """Finish the clips that end at a time or before it, and begin the clips that have it."""
        ended = [number for number in self._open if pts >= self._spans[number].end]
        for number in ended:
            self._finish(number)
        while self._waiting and pts >= self._spans[self._waiting[-1]].start:
            number = self._waiting.pop()
            span = self._spans[number]
            if pts < span.end:
                target = self._scratch / f"clip-{number:04d}.mp4"
                self._open[number] = ClipEncoder(target, self._stream, self._quality)
                self._n_deinterlaced[number] = 0

    def _finish(self, number: int) -> None:
        encoder = self._open.pop(number)
        span = self._spans[number]
        n_deinterlaced = self._n_deinterlaced[number]
        self._clips[number] = finish_clip(encoder, span, self._index, n_deinterlaced, self._packet_tables)


def finish_clip(
    encoder: ClipEncoder,
    span: ClipSpan,
    index: PacketIndex,
    n_deinterlaced: int,
    tables: PacketTables,
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
    """Passes frames through until one is interlaced, then delays each by one (FFmpeg's bwdif, times restored)."""

    def __init__(self, stream: "VideoStream") -> None:
        self._stream = stream
        self._graph: Any = None
        self._input: tuple[int, int, str] | None = None
        """Width, height and pixel format of the graph's frames."""
        self._waiting: deque[TimedFrame] = deque()
        """Frames in the graph, which returns them in order but loses their times."""

    def take(self, timed: TimedFrame) -> Iterator[tuple[TimedFrame, bool]]:
        """Yield (frame, whether it was deinterlaced) for each frame that is ready once this one is added."""
        frame = timed.frame
        if self._graph is None and not frame.interlaced_frame:
            yield timed, False
            return
        form = (frame.width, frame.height, frame.format.name)
        if self._input != form:  # a graph takes frames of one form
            yield from self.rest()
            self._graph = self._make(frame)
            self._input = form
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
        """Yield the frames that the graph has ready, with the times that they had before."""
        import av

        while self._waiting:
            try:
                whole: VideoFrame = self._graph.pull()
            except (av.error.BlockingIOError, av.error.EOFError):
                return
            source = self._waiting.popleft()
            yield TimedFrame(whole, source.tagged, source.pts), source.frame.interlaced_frame

    def _make(self, frame: "VideoFrame") -> Any:
        """Return a deinterlacing graph for frames of this form."""
        import av.filter

        graph = av.filter.Graph()
        graph.threads = 1  # there is a worker per core, so more threads would only wait
        source = graph.add_buffer(
            template=self._stream,
            width=frame.width,
            height=frame.height,
            format=frame.format,
        )
        source.link_to(fields := graph.add("bwdif", _BWDIF))
        fields.link_to(graph.add("buffersink"))
        graph.configure()
        return graph
