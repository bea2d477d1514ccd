"""Bare packets: a clip decoded from some packets and its packet table, without a container."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import av

from .demux import Codec, VideoPacket, prepare
from .packet_table import PacketTable, StreamFacts
from .preamble import preamble
from .timeline import Run, Timeline

MAX_DECODERS = 4
MAX_PX = 2**20
"""Pixels of the kept decoders, one frame of each: 32 MB a thread."""

Use = tuple[object, ...]


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

    def use(self, runs: Sequence[Run]) -> Use | None:
        """Return the settings and preamble of these runs, a cached decoder's key; None if uncacheable."""
        seen = preamble(self._table.facts, self._bodies, runs)
        return None if seen is None else (*settings_of(self._table.facts), seen)

    def packet(self, number: int) -> VideoPacket:
        return packet_of(self._bodies[number], number, bool(self._table.key[number]))


def packet_of(body: bytes | memoryview, number: int, key: bool) -> VideoPacket:
    """Return a packet with a copy of its bytes, and the zeros that FFmpeg's decoders read behind them."""
    packet: Any = av.Packet(len(body))  # the stub has packets of streams, and updates only from bytes
    packet.update(body)
    packet.pts, packet.is_keyframe = number, key
    typed: VideoPacket = packet
    return typed


def settings_of(facts: StreamFacts) -> Use:
    """Return the settings that `open_codec` gives a decoder."""
    return (
        facts.codec,
        facts.codec_tag,
        facts.extradata,
        (facts.width_px, facts.height_px, facts.pix_fmt, facts.sar),
        (facts.color_range, facts.colorspace, facts.color_primaries, facts.color_trc),
        facts.reorder_frames,
    )


def open_codec(facts: StreamFacts) -> Codec:
    """Return an open decoder with the demuxer's settings. Raises: ValueError (unknown codec); FFmpegError."""
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


class DecoderCache(threading.local):
    """Least-recently-used cache of the current thread's decoders.

    Opening and freeing one takes 0.17 of a clip's 6 ms, under the interpreter's lock. A cached decoder has the same
    settings and preamble, so after a flush it equals a new one (`preamble.py`).
    """

    def __init__(self) -> None:
        self._decoders: dict[Use, tuple[Codec, int]] = {}

    def take(self, use: Use) -> Codec | None:
        """Return a decoder for this use, or None, and forget it: a failing one is not returned."""
        cached = self._decoders.pop(use, None)
        return cached and cached[0]

    def give_back(self, use: Use, decoder: Codec, px: int) -> None:
        """Keep a decoder that worked. px: pixels of one frame."""
        self._decoders[use] = decoder, px
        while len(self._decoders) > MAX_DECODERS or sum(size for _, size in self._decoders.values()) > MAX_PX:
            del self._decoders[next(iter(self._decoders))]
