"""Lengths stated by WAV, W64 and Ogg: FFmpeg reads a truncated file as a shorter one."""

import struct
from typing import Final

from ...errors import DecodeFailed
from ..fields import Buffer

# Writers to a pipe cannot know the size: they leave 0, all ones, or (sox) a little less than 2 GiB.
_UNKNOWN_FROM = 0x7FFF0000

W64_RIFF: Final = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00"
"""The first bytes of a W64: Sony's RIFF with 64-bit sizes."""

_W64_DATA = b"data\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a"
_W64_UNKNOWN_FROM = 2**62

OGG: Final = b"OggS"
"""The bytes with which every page of an Ogg begins (RFC 3533)."""

_OGG_PAGE_BYTES = 27 + 255 + 255 * 255  # the longest page


def check_lengths(data: Buffer) -> None:
    """Accept a WAV, W64 or Ogg as long as it states, and other files. Raises: DecodeFailed."""
    check_wav(data)
    check_w64(data)
    check_ogg(data)


def check_wav(data: Buffer) -> int | None:
    """Accept a whole RIFF or RF64 WAV, and other files; return the bytes of samples that the header states, if any.

    Raises: DecodeFailed (the data chunk is longer than the rest of the file).
    """
    if bytes(data[:4]) not in (b"RIFF", b"RF64") or bytes(data[8:12]) != b"WAVE":
        return None
    at, long_size = 12, None
    while at + 8 <= len(data):
        name, nbytes = struct.unpack("<4sI", bytes(data[at : at + 8]))
        if name == b"ds64" and at + 24 <= len(data):
            (long_size,) = struct.unpack("<Q", bytes(data[at + 16 : at + 24]))
        if name == b"data":
            promised = long_size if nbytes == 0xFFFFFFFF and long_size is not None else nbytes
            remaining, is_told = len(data) - at - 8, 0 < promised < _UNKNOWN_FROM or long_size is not None
            if promised > remaining and (promised < _UNKNOWN_FROM or long_size is not None):
                raise DecodeFailed(f"wav: truncated: {remaining} of {promised} bytes of samples are there")
            return promised if is_told else None
        at += 8 + nbytes + nbytes % 2
    return None


def check_w64(data: Buffer) -> None:
    """Accept a whole W64, and other files. Raises: DecodeFailed.

    An impossible size was left by a writer that could not seek back.
    """
    if bytes(data[:16]) != W64_RIFF:
        return
    at = 40  # behind the head of the file
    while at + 24 <= len(data):
        identity, (nbytes,) = bytes(data[at : at + 16]), struct.unpack("<Q", bytes(data[at + 16 : at + 24]))
        if identity == _W64_DATA and 24 < nbytes < _W64_UNKNOWN_FROM and at + nbytes > len(data):
            remaining = len(data) - at - 24
            raise DecodeFailed(f"w64: truncated: {remaining} of {nbytes - 24} bytes of samples are there")
        if identity == _W64_DATA or nbytes < 24:
            return
        at += (nbytes + 7) // 8 * 8


def check_ogg(data: Buffer) -> None:
    """Accept an Ogg whose last page is whole, and other files. Raises: DecodeFailed.

    A live stream without an end mark, stopped between two pages, is accepted.
    """
    if bytes(data[:4]) != OGG:
        return
    low = max(0, len(data) - _OGG_PAGE_BYTES)
    tail = bytes(data[low:])
    at = tail.rfind(OGG)
    if at < 0 or (at + 27 <= len(tail) and tail[at + 4]):  # no page, or none of the only version
        return
    n_segments = tail[at + 26] if at + 27 <= len(tail) else 0
    head = 27 + n_segments
    end = at + head + sum(tail[at + 27 : at + head])
    if at + head > len(tail) or end > len(tail):
        raise DecodeFailed(
            f"ogg: truncated: the page at byte {low + at} ends behind the file's {len(data)} bytes"
        )
