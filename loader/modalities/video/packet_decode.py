"""Bare packets: a clip decoded from some packets of a file and its packet table, without opening a container."""

from collections.abc import Mapping
from typing import Any

import av

from .demux import Codec, VideoPacket, prepare
from .packet_table import PacketTable, StreamFacts
from .timeline import Timeline


class BarePackets:
    """Some packets of a file. bodies: packet number -> its bytes, verified."""

    def __init__(
        self, table: PacketTable, timeline: Timeline, bodies: Mapping[int, bytes | memoryview]
    ) -> None:
        self.timeline = timeline
        self.display_matrix: tuple[int, ...] | None = table.facts.display_matrix
        self.reorder_frames = table.facts.reorder_frames
        self._table, self._bodies = table, bodies

    def codec(self) -> Codec:
        return open_codec(self._table.facts)

    def packet(self, number: int) -> VideoPacket:
        return packet_of(self._bodies[number], number, bool(self._table.key[number]))


def packet_of(body: bytes | memoryview, number: int, key: bool) -> VideoPacket:
    """Return a packet that owns a copy of its bytes, and the zeros behind them that FFmpeg's decoders read.

    A packet made of `bytes` has none: they would read whatever lies there.
    """
    packet: Any = av.Packet(len(body))  # the stub has packets of streams, and updates from bytes alone
    packet.update(body)
    packet.pts, packet.is_keyframe = number, key
    made: VideoPacket = packet
    return made


def open_codec(facts: StreamFacts) -> Codec:
    """Return a decoder, open, told the same as by FFmpeg's demuxer.

    Raises: ValueError (this FFmpeg has no such video decoder); FFmpegError.
    """
    codec = av.CodecContext.create(facts.codec, "r")
    if not isinstance(codec, av.VideoCodecContext):
        raise ValueError(f"{facts.codec!r} is no video decoder")
    codec.extradata = facts.extradata or None
    if facts.codec_tag:
        codec.codec_tag = facts.codec_tag
    codec.width, codec.height = facts.width_px, facts.height_px
    if facts.pix_fmt:
        codec.pix_fmt = facts.pix_fmt
    codec.color_range, codec.colorspace = facts.color_range, facts.colorspace
    codec.color_primaries, codec.color_trc = facts.color_primaries, facts.color_trc
    codec.sample_aspect_ratio = facts.sar
    codec.reorder_depth = facts.reorder_frames
    prepare(codec)
    codec.open()
    return codec
