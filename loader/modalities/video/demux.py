"""Open a video file, and read every packet of its first video stream without decoding."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeAlias, cast

import av
import numpy as np
from av.error import FFmpegError

from ...errors import DecodeFailed
from ...limits import MAX_FRAME_PX, MAX_PACKET_BYTES_RATIO, MP4_SAMPLES_ANYWAY, limit_message
from ..fields import Buffer, is_machine_fault
from .container_checks import HIDING, MAGIC, check_complete, check_segment, check_tables, is_hidden
from .timeline import Timeline

VideoPacket: TypeAlias = "av.Packet[av.VideoStream]"
Codec: TypeAlias = "av.VideoCodecContext"


class ClipSource(Protocol):
    @property
    def timeline(self) -> Timeline:
        """The frames that are shown, with their times."""

    @property
    def display_matrix(self) -> tuple[int, ...] | None:
        """Nine int32, or empty; None if the frames carry it."""

    @property
    def reorder_frames(self) -> int:
        """Number of frames that the decoder may hold back for reordering."""

    def codec(self) -> Codec:
        """Return a new decoder with one thread."""

    def packet(self, number: int) -> VideoPacket:
        """Return a packet by its number in decode order, which is its timestamp."""


class WholeFile:
    """An open file with every packet in memory."""

    def __init__(self, container: av.container.InputContainer, data: Buffer) -> None:
        """Read all packets.

        Raises: DecodeFailed if the file is not a video, is damaged or truncated, or lacks timestamps; FFmpegError and
        other errors from av.
        """
        if not container.streams.video:
            raise DecodeFailed(
                f"video: no video stream ({len(data)} bytes)", what="video stream", given="none"
            )
        self.stream = container.streams.video[0]
        # The stubs declare a codec context, but streams with an unknown codec have none.
        codec = cast("Codec | None", self.stream.codec_context)
        if codec is None:
            raise DecodeFailed("video: the codec is unknown or has no decoder here")
        self._codec = codec
        prepare(codec)
        self.reorder_frames = codec.reorder_depth
        self.display_matrix: tuple[int, ...] | None = None
        self.packets = _demux(container, self.stream, len(data))
        self.pts = np.array([packet.pts for packet in self.packets], np.int64)
        self.key = np.array([packet.is_keyframe for packet in self.packets], np.bool_)
        self.discard = np.array([packet.is_discard for packet in self.packets], np.bool_)
        if codec.codec.name in HIDING:
            hidden = [is_hidden(codec.codec.name, bytes(packet)) for packet in self.packets]
            self.discard |= np.array(hidden, np.bool_)  # there may be no packets
        self.timeline = Timeline.of(self.pts, self.key, self.discard, self.stream.time_base, self._end_pts())

    def codec(self) -> Codec:
        return self._codec

    def packet(self, number: int) -> VideoPacket:
        packet = self.packets[number]
        packet.pts = number
        return packet

    def _end_pts(self) -> int:
        """Return the tick at which the last frame ends: as stated, but at least as long as the frame before it."""
        shown = sorted(
            (packet.pts or 0, packet.duration or 1)
            for packet, hidden in zip(self.packets, self.discard, strict=True)
            if not hidden
        )
        if not shown:
            return 0
        gap = 1
        if len(shown) > 1:
            gap = shown[-1][0] - shown[-2][0]
        return shown[-1][0] + max(shown[-1][1], gap)


@contextmanager
def whole_file(data: Buffer) -> Iterator[WholeFile]:
    """Yield the open file. Raises: DecodeFailed, also for FFmpeg errors inside the block."""
    # The format is given so that no other demuxer is tried: some of them open files and URLs.
    name = "mp4"
    if bytes(data[:4]) == MAGIC:
        name = "matroska"
    try:
        if name == "matroska":
            check_segment(data)
        else:
            check_tables(data)
        options = {"protocol_whitelist": ""}  # this demuxer opens no URL either
        with av.open(io.BytesIO(data), mode="r", format=name, options=options) as container:
            yield WholeFile(container, data)
    except DecodeFailed:
        raise
    except (FFmpegError, ValueError, LookupError, MemoryError, OverflowError) as error:
        if is_machine_fault(error):
            raise
        raise DecodeFailed(
            f"video: {type(error).__name__}: {error} ({len(data)} bytes)",
            what="video",
            given=type(error).__name__,
        ) from error


def prepare(codec: Codec) -> None:
    """Set one thread per decoder: FFmpeg's own have dead-locked other projects."""
    codec.thread_count = 1
    codec.options = {"max_pixels": str(MAX_FRAME_PX)}


def _demux(container: av.container.InputContainer, stream: av.VideoStream, nbytes: int) -> list[VideoPacket]:
    packets = list[VideoPacket]()
    n_read = 0
    most = MAX_PACKET_BYTES_RATIO * nbytes
    if len(stream.index_entries) > most + MP4_SAMPLES_ANYWAY:
        raise DecodeFailed(
            limit_message("video: its index", len(stream.index_entries), "packets", most + MP4_SAMPLES_ANYWAY)
        )
    for packet in container.demux(stream):
        if packet.size:
            packets.append(packet)
            n_read += packet.size
            if n_read > most:
                raise DecodeFailed(
                    limit_message("video: packets", n_read, "bytes", most, "It is damaged or forged")
                )
    check_complete(stream, nbytes)
    for number, packet in enumerate(packets):
        if packet.pts is None or packet.is_corrupt:
            raise DecodeFailed(
                f"video: packet {number} {'has no timestamp' if packet.pts is None else 'is cut short'}"
            )
    return packets
