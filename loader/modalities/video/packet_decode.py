"""Decode a clip from some packets and its packet table, without a container."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any, NamedTuple

import av

from .demux import Codec, VideoPacket, prepare
from .packet_table import PacketTable, StreamFacts
from .timeline import PacketGroup, Timeline

Body = bytes | memoryview

_LENGTH = Struct(">I")

_UNKNOWN, _IGNORED, _LASTING, _PICTURE, _IDR = range(5)
"""Kinds of units. _IGNORED: delimiters and padding. _LASTING: keeps its effect after a flush."""

# H.264's sequence parameter sets (7) are treated as unknown: the decoder carries colours over between them.
_H264 = {1: _PICTURE, 5: _IDR, 6: _LASTING, 8: _LASTING, 9: _IGNORED, 12: _IGNORED}
_AV1 = {
    1: _LASTING,
    2: _IGNORED,
    3: _PICTURE,
    4: _PICTURE,
    5: _LASTING,
    6: _PICTURE,
    7: _PICTURE,
    15: _IGNORED,
}


class _Syntax(NamedTuple):
    """A codec's packet syntax."""

    units: Callable[[Body], list[tuple[int, int, int]] | None]
    """Returns (begin, header, end) of each unit of a packet, or None if damaged."""
    kinds: list[int]
    """Kind of unit, indexed by the first byte of its header."""
    begin: int
    """Lowest kind of frame at which decoding may begin."""


def preamble(facts: StreamFacts, bodies: Mapping[int, Body], runs: Sequence[PacketGroup]) -> bytes | None:
    """Return the bytes before the first frame whose effect survives a flush; None if the clip needs a new decoder.

    O(units).
    """
    if (syntax := _stream_syntax(facts)) is None:
        return None
    first: bytes | None = None
    for run in runs:
        for number in range(run.first, run.stop):
            body = bodies[number]
            kept = b""
            picture = _picture_alone(body, syntax)
            if not picture:
                if (parts := _parts(body, syntax)) is None:
                    return None
                kept, picture = parts
            if number == run.first and picture < syntax.begin:
                return None
            if first is None:
                first = kept
            elif kept and kept != first:
                return None
    return first


def _stream_syntax(facts: StreamFacts) -> _Syntax | None:
    extra = facts.extradata
    if facts.codec == "libdav1d":
        return _AV1_SYNTAX
    is_like_mp4 = len(extra) >= 6 and extra[0] == 1  # ISO/IEC 14496-15
    if facts.codec == "h264" and is_like_mp4 and extra[4] & 3 == 3 and extra[5] & 31 == 1:
        return _H264_SYNTAX
    return None


def _picture_alone(body: Body, syntax: _Syntax) -> int:
    if syntax.units is not _nal_units or len(body) < 6 or _LENGTH.unpack_from(body)[0] != len(body) - 4:
        return 0
    kind = syntax.kinds[body[4]]
    if kind >= _PICTURE:
        return kind
    return 0


def _parts(body: Body, syntax: _Syntax) -> tuple[bytes, int] | None:
    """Return (a packet's lasting bytes, its first frame's kind); None if it is rejected."""
    kept = b""
    picture = _UNKNOWN
    units, kinds, _ = syntax
    if (spans := units(body)) is None:
        return None
    for begin, head, stop in spans:
        kind = kinds[body[head]]
        if kind >= _PICTURE:
            picture = picture or kind
        elif kind == _UNKNOWN or (kind == _LASTING and picture):
            return None
        elif kind == _LASTING:
            kept += body[begin:stop]
    return kept, picture


def _nal_units(body: Body) -> list[tuple[int, int, int]] | None:
    """Return (begin, header, end) of each unit of an H.264 packet (ISO/IEC 14496-15); None if damaged."""
    spans = list[tuple[int, int, int]]()
    at = 0
    end = len(body)
    while at < end:
        # Four bytes of length come before each unit.
        stop = at + 4 + int.from_bytes(body[at : at + 4], "big")
        # A length of 2 at least: FFmpeg reads 1 as a start code, and expects start codes from there on.
        if not at + 6 <= stop <= end:
            return None
        spans.append((at, at + 4, stop))
        at = stop
    return spans


def _open_bitstream_units(body: Body) -> list[tuple[int, int, int]] | None:
    """Return (begin, header, end) of each unit of an AV1 packet (bitstream specification, 5.3); None if damaged."""
    spans = list[tuple[int, int, int]]()
    at = 0
    end = len(body)
    while at < end:
        begin = at
        if body[at] & 6 != 2:  # has an extension, or no size
            return None
        # The size after the header: 7 bits a byte, lowest first; the eighth bit is set if another byte follows.
        size = 0
        shift = 0
        more = True
        while more:
            at += 1
            if at == end or shift > 28:
                return None
            size |= (body[at] & 127) << shift
            more = body[at] > 127
            shift += 7
        at += 1 + size
        if at > end:
            return None
        spans.append((begin, begin, at))
    return spans


_H264_SYNTAX = _Syntax(_nal_units, [_H264.get(byte & 31, _UNKNOWN) for byte in range(256)], _IDR)
_AV1_SYNTAX = _Syntax(_open_bitstream_units, [_AV1.get(byte >> 3, _UNKNOWN) for byte in range(256)], _PICTURE)


MAX_DECODERS = 4
MAX_PX = 2**20
"""Most pixels of the cached decoders, one frame each: 32 MB per thread."""

Use = tuple[object, ...]


class BarePackets:
    """Some packets of a file. bodies: packet number -> verified bytes."""

    def __init__(
        self, table: PacketTable, timeline: Timeline, bodies: Mapping[int, bytes | memoryview]
    ) -> None:
        self.timeline = timeline
        self.display_matrix: tuple[int, ...] | None = table.facts.display_matrix
        self.reorder_frames = table.facts.reorder_frames
        self._table = table
        self._bodies = bodies

    def codec(self) -> Codec:
        return open_codec(self._table.facts)

    def use(self, runs: Sequence[PacketGroup]) -> Use | None:
        """Return the settings and preamble for these runs, the key of a cached decoder; None if it cannot be cached."""
        seen = preamble(self._table.facts, self._bodies, runs)
        if seen is None:
            return None
        return (*decoder_settings(self._table.facts), seen)

    def packet(self, number: int) -> VideoPacket:
        return copy_packet(self._bodies[number], number, bool(self._table.key[number]))


def copy_packet(body: bytes | memoryview, number: int, key: bool) -> VideoPacket:
    """Return a packet with a copy of its bytes, followed by the zeros that FFmpeg's decoders read."""
    packet: Any = av.Packet(len(body))  # the stub omits packets without streams, and accepts only bytes
    packet.update(body)
    packet.pts = number
    packet.is_keyframe = key
    typed: VideoPacket = packet
    return typed


def decoder_settings(facts: StreamFacts) -> Use:
    return (
        facts.codec,
        facts.codec_tag,
        facts.extradata,
        (facts.width_px, facts.height_px, facts.pix_fmt, facts.sar),
        (facts.color_range, facts.colorspace, facts.color_primaries, facts.color_trc),
        facts.reorder_frames,
    )


def open_codec(facts: StreamFacts) -> Codec:
    """Return an open decoder with the demuxer's settings. Raises: ValueError if the codec is unknown; FFmpegError."""
    codec = av.CodecContext.create(facts.codec, "r")
    if not isinstance(codec, av.VideoCodecContext):
        raise ValueError(f"{facts.codec!r} is not a video decoder")
    codec.extradata = facts.extradata or None
    if facts.codec_tag:
        codec.codec_tag = facts.codec_tag
    codec.width = facts.width_px
    codec.height = facts.height_px
    if facts.pix_fmt:
        codec.pix_fmt = facts.pix_fmt
    codec.color_range = facts.color_range
    codec.colorspace = facts.colorspace
    codec.color_primaries = facts.color_primaries
    codec.color_trc = facts.color_trc
    codec.sample_aspect_ratio = facts.sar
    codec.reorder_depth = facts.reorder_frames
    prepare(codec)
    codec.open()
    return codec


class DecoderCache(threading.local):
    """Least-recently-used cache of the current thread's decoders.

    Opening and freeing a decoder takes 0.17 of a clip's 6 ms, under the interpreter's lock.
    """

    def __init__(self) -> None:
        # Not a `SizedLru`: a decoder in use is not in the cache, and one thread needs no lock.
        self._decoders: dict[Use, tuple[Codec, int]] = {}

    def take(self, use: Use) -> Codec | None:
        cached = self._decoders.pop(use, None)
        return cached and cached[0]

    def give_back(self, use: Use, decoder: Codec, px: int) -> None:
        """Cache a decoder that worked. px: pixels per frame."""
        self._decoders[use] = decoder, px
        while len(self._decoders) > MAX_DECODERS or sum(size for _, size in self._decoders.values()) > MAX_PX:
            del self._decoders[next(iter(self._decoders))]
