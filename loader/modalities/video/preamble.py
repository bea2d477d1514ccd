"""The bytes before a clip's first frame that outlast a decoder's flush: parameter sets, messages, headers.

FFmpeg's decoders keep them. So a used decoder equals a new one only for clips that begin with the same such bytes and
have no others. H.264 must also begin with an IDR frame: its decoder remembers whether it ever saw one. A clip with
unknown units gets its own decoder, and so does HEVC: most damage goes unreported there and leaves the rest of the frame
unwritten, black in a new decoder, an earlier clip in a used one.
"""

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from .packet_table import StreamFacts
from .timeline import Run

Body = bytes | memoryview

_LENGTH = Struct(">I")

_UNKNOWN, _IGNORED, _LASTING, _PICTURE, _IDR = range(5)
"""Kinds of units. _IGNORED: delimiters and padding. _LASTING: outlasts a flush."""

# H.264's sequence parameter sets (7) are unknown here: its decoder carries colours over from one to the next.
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
    """Syntax of a codec's packets."""

    units: Callable[[Body], list[tuple[int, int, int]] | None]
    """Returns (begin, header, end) of each unit of a packet, or None if damaged."""
    kinds: list[int]
    """Kind of a unit, by the first byte of its header."""
    begin: int
    """Least kind of frame to begin at."""


def preamble(facts: StreamFacts, bodies: Mapping[int, Body], runs: Sequence[Run]) -> bytes | None:
    """Return the bytes before the first frame that outlast a flush; None if the clip needs its own decoder.

    O(units).
    """
    if (syntax := _syntax_of(facts)) is None:
        return None
    first: bytes | None = None
    for run in runs:
        for number in range(run.first, run.stop):
            body = bodies[number]
            kept, picture = b"", _picture_alone(body, syntax)
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


def _syntax_of(facts: StreamFacts) -> _Syntax | None:
    extra = facts.extradata
    if facts.codec == "libdav1d":
        return _AV1_SYNTAX
    is_like_mp4 = len(extra) >= 6 and extra[0] == 1  # as ISO/IEC 14496-15 has it
    if facts.codec == "h264" and is_like_mp4 and extra[4] & 3 == 3 and extra[5] & 31 == 1:
        return _H264_SYNTAX
    return None


def _picture_alone(body: Body, syntax: _Syntax) -> int:
    """Return the kind of a packet's only frame; 0 for other packets."""
    if syntax.units is not _nal_units or len(body) < 6 or _LENGTH.unpack_from(body)[0] != len(body) - 4:
        return 0
    kind = syntax.kinds[body[4]]
    return kind if kind >= _PICTURE else 0


def _parts(body: Body, syntax: _Syntax) -> tuple[bytes, int] | None:
    """Return a packet's lasting bytes, and its first frame's kind; None if it is refused."""
    kept, picture = b"", _UNKNOWN
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
    """Split a packet of H.264 (ISO/IEC 14496-15): four length bytes before each unit."""
    spans, at, end = list[tuple[int, int, int]](), 0, len(body)
    while at < end:
        stop = at + 4 + int.from_bytes(body[at : at + 4], "big")
        # FFmpeg takes a length of 1 for a start code, and expects start codes from there on.
        if not at + 6 <= stop <= end:
            return None
        spans.append((at, at + 4, stop))
        at = stop
    return spans


def _open_bitstream_units(body: Body) -> list[tuple[int, int, int]] | None:
    """Split a packet of AV1 (bitstream specification, 5.3): a size behind each unit's first byte."""
    spans, at, end = list[tuple[int, int, int]](), 0, len(body)
    while at < end:
        begin, size, shift, more = at, 0, 0, True
        if body[at] & 6 != 2:  # in a layer, or without a size
            return None
        while more:
            at += 1
            if at == end or shift > 28:
                return None
            size |= (body[at] & 127) << shift
            more, shift = body[at] > 127, shift + 7
        at += 1 + size
        if at > end:
            return None
        spans.append((begin, begin, at))
    return spans


_H264_SYNTAX = _Syntax(_nal_units, [_H264.get(byte & 31, _UNKNOWN) for byte in range(256)], _IDR)
_AV1_SYNTAX = _Syntax(_open_bitstream_units, [_AV1.get(byte >> 3, _UNKNOWN) for byte in range(256)], _PICTURE)
