"""Packets of one episode: cut from an mp4 file, put into another, never decoded and never encoded."""

import contextlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ...errors import Corrupt, DecodeFailed, MissingDependency
from ...storage.disk.scratch import HeldFolder, on_scratch
from .mp4 import check_tables_of

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

TOLERANCE_S = 1e-4
"""Seconds by which an episode's first frame may lie beside `from_timestamp`: a float64 sum, LeRobot's own tolerance."""
_BEFORE_S = 1.0
"""Seconds before the episode at which reading begins: an mp4 file is searched by times of decoding."""
_MOST_TICKS = 2**31 - 1
"""Ticks for which an mp4 file can show a frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Packets of an episode, in decode order."""

    bodies: Sequence[bytes]
    """Their bytes."""
    pts: Sequence[int]
    """Ticks at which their frames are shown, the first at 0."""
    key: Sequence[bool]
    """True for keyframes."""
    end: int
    """Tick at which the last frame ends, as `end_of` has it."""
    places: Sequence[int]
    """First byte of each in its file; -1 where the container does not say."""
    time_base: Fraction
    """Seconds per tick."""
    kind: tuple[Any, ...]
    """Facts that all packets of a file share: codec, configuration, size, pixel format, time base."""

    @property
    def shown(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Ticks of the frames in display order, int64 [frames]."""
        return np.sort(np.asarray(self.pts, np.int64))

    @property
    def decoded(self) -> list[int]:
        """Ticks at which packets go to a decoder, at ever later times, none later than its frame is shown.

        They are the times of the frames in order, moved back as far as reordering needs.
        """
        shown = self.shown.tolist()
        back = max(at - pts for at, pts in zip(shown, self.pts, strict=True))
        return [at - back for at in shown]


def end_of(pts: Sequence[int], told: int = 0) -> int:
    """Return the tick at which the last frame ends: as it is told, and it lasts as long as the one before at least.

    A packet's own duration says nothing of it: in an mp4 file that is the time to the next packet's decoding.
    """
    *_, before, last = 0, 0, *sorted(pts)[-2:]
    return max(told, last + max(1, last - before))


@contextlib.contextmanager
def opened(
    file: io.RawIOBase | BinaryIO, what: str, format: str = "mp4"
) -> Iterator[tuple["InputContainer", "VideoStream"]]:
    """Yield a video file and its first video stream. what: its name in errors. Raises: Corrupt; MissingDependency."""
    try:
        import av
    except ImportError as error:
        raise MissingDependency("videos of robots need PyAV: pip install 'penstock-data[video]'") from error
    try:
        check_tables_of(file)
    except DecodeFailed as error:
        raise Corrupt(f"{what}: {error}") from error
    try:
        # No other demuxer is tried, and none opens a second file.
        with av.open(file, mode="r", format=format, options={"protocol_whitelist": ""}) as container:
            if not container.streams.video or not container.streams.video[0].time_base:
                raise Corrupt(f"{what}: no video stream with a clock")
            if not container.streams.video[0].codec_context:
                raise Corrupt(f"{what}: its video is of a codec that FFmpeg does not know")
            yield container, container.streams.video[0]
    except (av.error.FFmpegError, ValueError, OverflowError) as error:
        raise Corrupt(f"{what}: {type(error).__name__}: {error}") from error


def read_span(
    opened_file: tuple["InputContainer", "VideoStream"],
    what: str,
    frames: int,
    from_s: float | None = None,
    to_s: float | None = None,
) -> Span:
    """Return the packets of an episode with `frames` frames: of the whole file, or from a time on.

    from_s, to_s: seconds in the file of the episode's first frame and of its end; None for a file of its own.

    Raises: Corrupt where the episode does not begin at a keyframe, or the file has more or fewer frames.
    """
    container, stream = opened_file
    assert stream.time_base is not None
    base = stream.time_base
    if from_s:
        container.seek(max(0, int((from_s - _BEFORE_S) / base)), stream=stream, backward=True)
    taken, after = _taken(container, stream, what, frames, from_s)
    if len(taken) < frames:
        raise Corrupt(
            f"{what}: the episode has {frames} rows, and the video {len(taken)} frames from its beginning on"
        )
    pts = [packet.pts for packet in taken]
    end = max(pts)
    if min(pts) != pts[0]:
        raise Corrupt(
            f"{what}: frames before the episode's first keyframe build on it (an open GOP): encode it anew"
        )
    if to_s is not None and float(end * base) > to_s - TOLERANCE_S:
        raise Corrupt(
            f"{what}: row {frames - 1} would be shown at {float(end * base):.6f} s, behind the end {to_s:.6f} s"
        )
    if after is not None and (after < end or to_s is None or float(after * base) < to_s - TOLERANCE_S):
        raise Corrupt(f"{what}: the episode has {frames} rows, and the video more frames")
    if len(set(pts)) < frames:
        raise Corrupt(f"{what}: two frames are shown at one moment")
    told = (stream.duration or 0) if to_s is None else round(Fraction(to_s) / base) - pts[0]
    last_end = end_of([at - pts[0] for at in pts], told)
    if last_end - (end - pts[0]) > _MOST_TICKS:
        raise Corrupt(
            f"{what}: row {frames - 1} would be shown for {last_end - (end - pts[0]):,} ticks of {base} s"
        )
    return Span(
        bodies=[bytes(packet) for packet in taken],
        pts=[at - pts[0] for at in pts],
        key=[packet.is_keyframe for packet in taken],
        end=last_end,
        places=[-1 if packet.pos is None else packet.pos for packet in taken],
        time_base=base,
        kind=kind_of(stream),
    )


def kind_of(stream: "VideoStream") -> tuple[Any, ...]:
    """Return the facts that all packets of a stream share."""
    codec = stream.codec_context
    return codec.name, codec.extradata or b"", codec.width, codec.height, codec.pix_fmt, stream.time_base


def _taken(
    container: "InputContainer", stream: "VideoStream", what: str, frames: int, from_s: float | None
) -> tuple[list[Any], int | None]:
    """Return at most `frames` packets from the episode's first on, and the tick of the packet behind them."""
    from .make_packet_table import HARMLESS

    taken: list[Any] = []
    assert stream.time_base is not None
    for packet in container.demux(stream):
        if not packet.size:
            continue
        if packet.pts is None or packet.is_corrupt or packet.is_discard:
            raise Corrupt(f"{what}: a packet without a time, cut short, or hidden by an edit list")
        if only := {side.data_type for side in packet.iter_sidedata()} - HARMLESS:
            raise Corrupt(f"{what}: a packet comes with {', '.join(sorted(only))}, which only its file has")
        if len(taken) == frames:
            return taken, packet.pts
        if not taken and from_s is not None:
            beside = float(packet.pts * stream.time_base) - from_s
            if abs(beside) > TOLERANCE_S:
                continue  # the beginning may lie behind packets of the episode before
        if not taken and not packet.is_keyframe:
            raise Corrupt(
                f"{what}: the frame at {float(packet.pts * stream.time_base):.6f} s is the episode's first and no "
                "keyframe; packets are never encoded anew: encode the video with a keyframe there"
            )
        taken.append(packet)
    return taken, None


class Mp4Writer:
    """An mp4 file of spans, one behind the other, in a scratch file; equal spans give equal bytes."""

    def __init__(self, template: "VideoStream", time_base: Fraction | None = None) -> None:
        """Begin. template: a stream of the same kind as the spans. time_base: of the spans, if not of the template."""
        import av

        self._folder = HeldFolder("lerobot")
        self._path = self._folder.path / "video.mp4"
        assert template.time_base is not None
        self._base = time_base or template.time_base
        options = {
            "movflags": "+faststart+write_colr",
            "video_track_timescale": str(self._base.denominator),
            "write_btrt": "0",  # the bit rate of the file that the packets came from
        }
        self._output = av.open(str(self._path), "w", format="mp4", options=options)
        # opaque: PyAV would look for an encoder by the decoder's name, and there is no encoder libdav1d
        self._stream = self._output.add_stream_from_template(template, opaque=True)
        self._stream.time_base = self._base
        self.end = 0
        """Tick at which the last frame ends."""
        self._decoded: int | None = None  # tick at which the last packet is

    def takes(self, span: Span) -> bool:
        """Return whether an episode can come next: one that is reordered further goes to the decoder too early."""
        return self._decoded is None or self.end + span.decoded[0] > self._decoded

    def add(self, span: Span) -> None:
        """Append an episode."""
        import av

        shown, decoded = span.shown.tolist(), span.decoded
        ends = dict(zip(shown, [*shown[1:], span.end], strict=True))
        for number, body in enumerate(span.bodies):
            packet: Any = av.Packet(body)
            packet.pts = self.end + span.pts[number]
            packet.dts = self.end + decoded[number]
            packet.is_keyframe = span.key[number]
            packet.time_base = self._base
            packet.duration = ends[span.pts[number]] - span.pts[number]
            if number + 1 == len(span.bodies):  # so that the whole lasts as long as its frames are shown
                packet.duration = span.end - shown[number]
            packet.stream = self._stream
            self._output.mux(packet)
        self._decoded = self.end + decoded[-1]
        self.end += span.end

    def finish(self) -> bytes:
        """Return the file's bytes."""
        self._output.close()
        return self._path.read_bytes()

    def close(self) -> None:
        """Remove the scratch file, whatever happened."""
        with contextlib.suppress(Exception):
            self._output.close()
        self._folder.close()


def mp4_of(
    opened_file: tuple["InputContainer", "VideoStream"],
    span: Span,
    what: str,
    time_base: Fraction | None = None,
) -> bytes:
    """Return an mp4 file of one episode's packets. Raises: StoreError where scratch is full.

    time_base: of the span, if not that of the file.
    """
    with on_scratch(
        None, f"when {what} was cut", room_for="an episode's video", again="run the same command again"
    ):
        writer = Mp4Writer(opened_file[1], time_base)
        try:
            writer.add(span)
            return writer.finish()
        finally:
            writer.close()
