"""Cut one episode's packets from an mp4 file and write them to another, without decoding or encoding."""

import contextlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ...errors import Corrupt, DecodeFailed, MissingDependency
from ...storage.disk.scratch import HeldFolder, on_scratch
from .container_checks import check_file_tables

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

TOLERANCE_S = 1e-4
"""Largest deviation of an episode's first frame from `from_timestamp`, a float64 sum; the same as in LeRobot."""
_BEFORE_S = 1.0
"""Seconds read before the episode: mp4 is searched by decode times."""
_MOST_TICKS = 2**31 - 1
"""Most ticks for which an mp4 file can show a frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketSpan:
    """Packets of an episode, in decode order."""

    bodies: Sequence[bytes]
    pts: Sequence[int]
    """Tick at which each frame is shown; the first is 0."""
    key: Sequence[bool]
    """True for keyframes."""
    end: int
    """Tick at which the last frame ends, as `members_end` returns it."""
    places: Sequence[int]
    """Offset of each packet in its file; -1 if unknown."""
    time_base: Fraction
    """Seconds per tick."""
    kind: tuple[Any, ...]
    """Facts shared by a file's packets: codec, configuration, size, pixel format, time base."""
    n_extra: int = 0
    """Frames that the file shows after them, before the episode's end."""

    @property
    def shown(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Ticks of the frames in display order, int64 [frames]."""
        return np.sort(np.asarray(self.pts, np.int64))

    @property
    def decoded(self) -> list[int]:
        """Ascending ticks at which packets are decoded: the frames' ticks, moved back for reordering."""
        shown = self.shown.tolist()
        back = max(at - pts for at, pts in zip(shown, self.pts, strict=True))
        return [at - back for at in shown]


def last_frame_end(pts: Sequence[int], declared: int = 0) -> int:
    """Return the tick at which the last frame ends: `declared`, but at least as long as the frame before it."""
    *_, before, last = 0, 0, *sorted(pts)[-2:]
    return max(declared, last + max(1, last - before))


@contextlib.contextmanager
def open_video(
    file: io.RawIOBase | BinaryIO, what: str, format: str = "mp4"
) -> Iterator[tuple["InputContainer", "VideoStream"]]:
    """Yield (open video file, its first video stream). what: name of the file for errors.

    Raises: Corrupt; MissingDependency.
    """
    try:
        import av
    except ImportError as error:
        raise MissingDependency("videos of robots need PyAV: pip install 'penstock-data[video]'") from error
    try:
        check_file_tables(file)
    except DecodeFailed as error:
        raise Corrupt(f"{what}: {error}", what="tables of the file", where=what, given=str(error)) from error
    try:
        # The format is fixed so that no other demuxer is tried; none opens a second file.
        with av.open(file, mode="r", format=format, options={"protocol_whitelist": ""}) as container:
            if not container.streams.video or not container.streams.video[0].time_base:
                message = f"{what}: no video stream with a clock"
                raise Corrupt(message, what="video stream", where=what)
            if not container.streams.video[0].codec_context:
                message = f"{what}: its video is of a codec that FFmpeg does not know"
                raise Corrupt(message, what="codec", where=what)
            yield container, container.streams.video[0]
    except Corrupt as error:
        message = f"{what}: {type(error).__name__}: {error}"
        raise Corrupt(
            message, what=error.what, where=error.where, given=error.given, accepted=error.accepted
        ) from error
    except (av.error.FFmpegError, ValueError, OverflowError) as error:
        message = f"{what}: {type(error).__name__}: {error}"
        raise Corrupt(message, what="video", where=what, given=str(error)) from error


def read_span(
    opened_file: tuple["InputContainer", "VideoStream"],
    what: str,
    frames: int,
    from_s: float | None = None,
    to_s: float | None = None,
    *,
    extra_frames: bool = False,
) -> PacketSpan:
    """Return the packets of an episode with `frames` frames: the whole file, or part of it.

    from_s, to_s: start and end of the episode in seconds; None if the file has only this episode.
    extra_frames: accept frames after the episode's own, as of a camera that stops after the recording; they are left
    out.

    Raises: Corrupt if the episode does not begin at a keyframe, or the file has a different number of frames.
    """
    container, stream = opened_file
    assert stream.time_base is not None
    base = stream.time_base
    if from_s:
        container.seek(max(0, int((from_s - _BEFORE_S) / base)), stream=stream, backward=True)
    packets, extra, after = _episode_packets(container, stream, what, frames, from_s, to_s)
    _check_count(what, len(packets), 0 if extra_frames else len(extra), frames)
    pts = [packet.pts for packet in packets]
    end = max(pts)
    _check_order(what, pts, [*extra, *after])
    if to_s is not None and float(end * base) > to_s - TOLERANCE_S:
        raise Corrupt(
            f"{what}: row {frames - 1} would be shown at {float(end * base):.6f} s, after the end {to_s:.6f} s",
            what="time of the last frame",
            where=f"{what}, row {frames - 1}",
            given=float(end * base),
            accepted=to_s,
        )
    if to_s is None:
        declared = stream.duration or 0
    else:
        declared = round(Fraction(to_s) / base) - pts[0]
    if extra:
        declared = min(extra) - pts[0]
    last_end = last_frame_end([at - pts[0] for at in pts], declared)
    if last_end - (end - pts[0]) > _MOST_TICKS:
        raise Corrupt(
            f"{what}: row {frames - 1} would be shown for {last_end - (end - pts[0]):,} ticks of {base} s",
            what="ticks of the last frame",
            where=f"{what}, row {frames - 1}",
            given=last_end - (end - pts[0]),
            accepted=_MOST_TICKS,
        )
    return PacketSpan(
        bodies=[bytes(packet) for packet in packets],
        pts=[at - pts[0] for at in pts],
        key=[packet.is_keyframe for packet in packets],
        end=last_end,
        places=[-1 if packet.pos is None else packet.pos for packet in packets],
        time_base=base,
        kind=stream_kind(stream),
        n_extra=len(extra),
    )


def _check_count(what: str, n_packets: int, n_extra: int, frames: int) -> None:
    """Raise Corrupt unless the video has a frame for each row. n_extra: further frames that the caller rejects."""
    if n_packets < frames:
        message = (
            f"{what}: the episode has {frames} rows, and the video {n_packets} frames from its beginning on"
        )
        raise Corrupt(message, what="frames", where=what, given=n_packets, accepted=frames)
    if n_extra:
        message = f"{what}: the episode has {frames} rows, and the video more frames"
        raise Corrupt(message, what="frames", where=what, given=n_packets + n_extra, accepted=frames)


def _check_order(what: str, pts: Sequence[int], later: Sequence[int]) -> None:
    """Raise Corrupt unless packets are an episode's frames. pts: their ticks. later: ticks of packets after them."""
    if min(pts) != pts[0]:
        raise Corrupt(
            f"{what}: frames before the episode's first keyframe build on it (an open GOP): encode it anew",
            what="first keyframe",
            where=what,
            given=pts[0],
            accepted=min(pts),
        )
    # A frame that is decoded later and shown earlier builds on one of the packets, so these are not the first frames.
    if min(later, default=max(pts)) < max(pts):
        raise Corrupt(
            f"{what}: the episode has {len(pts)} rows, and the video more frames, on which its last ones build "
            "(B-frames): encode it anew with as many frames as rows",
            what="last frames",
            where=what,
            given=max(pts),
            accepted=min(later),
        )
    if len(set(pts)) < len(pts):
        message = f"{what}: two frames are shown at one moment"
        raise Corrupt(message, what="frames", where=what, given=len(set(pts)), accepted=len(pts))


def stream_kind(stream: "VideoStream") -> tuple[Any, ...]:
    """Return the `PacketSpan.kind` of a stream's packets: only spans of one kind fit into one file."""
    codec = stream.codec_context
    return codec.name, codec.extradata or b"", codec.width, codec.height, codec.pix_fmt, stream.time_base


def _episode_packets(
    container: "InputContainer",
    stream: "VideoStream",
    what: str,
    frames: int,
    from_s: float | None,
    to_s: float | None,
) -> tuple[list[Any], list[int], list[int]]:
    """Return the episode's packets; ticks of further frames before its end; and of the first frame after it."""
    from .make_packet_table import HARMLESS

    packets: list[Any] = []
    extra: list[int] = []
    assert stream.time_base is not None
    for packet in container.demux(stream):
        if not packet.size:
            continue
        if packet.pts is None or packet.is_corrupt or packet.is_discard:
            message = f"{what}: a packet without a time, cut short, or hidden by an edit list"
            raise Corrupt(message, what="packet", where=what)
        if only := {side.data_type for side in packet.iter_sidedata()} - HARMLESS:
            message = f"{what}: a packet comes with {', '.join(sorted(only))}, which only its file has"
            raise Corrupt(message, what="side data", where=what, given=sorted(only))
        seconds = float(packet.pts * stream.time_base)
        if len(packets) == frames:
            if to_s is not None and seconds >= to_s - TOLERANCE_S:
                return packets, extra, [packet.pts]
            extra.append(packet.pts)
            continue
        if not packets and from_s is not None and abs(seconds - from_s) > TOLERANCE_S:
            continue  # packets of the previous episode
        if not packets and not packet.is_keyframe:
            raise Corrupt(
                f"{what}: the frame at {seconds:.6f} s is the episode's first and no keyframe; packets are never "
                "encoded anew: encode the video with a keyframe there",
                what="first frame",
                where=what,
                given=round(seconds, 6),
                accepted="a keyframe",
            )
        packets.append(packet)
    return packets, extra, []


class Mp4Writer:
    """Writes consecutive spans to an mp4 file in scratch. Equal spans give equal bytes."""

    def __init__(self, template: "VideoStream", time_base: Fraction | None = None) -> None:
        """template: a stream of the spans' kind. time_base: the spans' time base, if it differs from the template's."""
        import av

        self._folder = HeldFolder("lerobot")
        self._path = self._folder.path / "video.mp4"
        assert template.time_base is not None
        self._base = time_base or template.time_base
        options = {
            "movflags": "+faststart+write_colr",
            "video_track_timescale": str(self._base.denominator),
            "write_btrt": "0",  # bit rate of the source file
        }
        self._output = av.open(str(self._path), "w", format="mp4", options=options)
        # opaque: PyAV would search for an encoder with the decoder's name, but libdav1d has none
        self._stream = self._output.add_stream_from_template(template, opaque=True)
        self._stream.time_base = self._base
        self.end = 0
        self._decoded: int | None = None  # decode tick of the last packet

    def takes(self, span: PacketSpan) -> bool:
        """Return whether an episode can be appended: with more reordering it would be decoded too early."""
        return self._decoded is None or self.end + span.decoded[0] > self._decoded

    def add(self, span: PacketSpan) -> None:
        import av

        shown = span.shown.tolist()
        decoded = span.decoded
        ends = dict(zip(shown, [*shown[1:], span.end], strict=True))
        for number, body in enumerate(span.bodies):
            packet: Any = av.Packet(body)
            packet.pts = self.end + span.pts[number]
            packet.dts = self.end + decoded[number]
            packet.is_keyframe = span.key[number]
            packet.time_base = self._base
            packet.duration = ends[span.pts[number]] - span.pts[number]
            if number + 1 == len(span.bodies):  # so that the file's duration includes the last frame's
                packet.duration = span.end - shown[number]
            packet.stream = self._stream
            self._output.mux(packet)
        self._decoded = self.end + decoded[-1]
        self.end += span.end

    def finish(self) -> bytes:
        self._output.close()
        return self._path.read_bytes()

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._output.close()
        self._folder.close()


def episode_mp4(
    opened_file: tuple["InputContainer", "VideoStream"],
    span: PacketSpan,
    what: str,
    time_base: Fraction | None = None,
) -> bytes:
    """Return an mp4 file with one episode's packets. time_base: the span's, if it differs from the file's.

    Raises: StoreError if scratch space is full.
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
