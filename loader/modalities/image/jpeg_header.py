"""Read facts about a JPEG from its header, without a decoder."""

import re
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ...errors import DecodeFailed
from ...limits import JPEG_SCANS_ANYWAY, MAX_JPEG_SCAN_PX, MAX_JPEG_SCANS, limit_message
from ..fields import Buffer
from .crop import UPRIGHT, PixelTurn, metadata_turn

# Start-of-frame markers: SOF0..SOF15 without DHT (C4), JPG (C8) and DAC (CC). ITU-T T.81, table B.1.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
_APP1, _SCAN, _END = 0xE1, 0xDA, 0xD9
_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})
# Where a decoder finds the next marker: not a stuffed zero, fill byte or restart (T.81, B.1.1.5).
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_EXIF = b"Exif\0\0"
_XMP = b"http://ns.adobe.com/xap/1.0/\0"

_SCAN_MARKER = bytes([0xFF, _SCAN])
_SCAN_HEAD_BYTES = 5  # marker, length, number of components
_HEAD_BYTES = 2048
"""Longer headers, with metadata, are not cached."""


class JpegHeader(NamedTuple):
    height_px: int
    """Height as stored."""
    width_px: int
    """Width as stored."""
    components: int
    """1 gray, 3 colour, 4 CMYK."""
    turn: PixelTurn
    """Turn that makes the image upright."""
    is_multiscan: bool
    """True if libjpeg decodes every scan."""


def read_header(data: Buffer) -> JpegHeader:
    """Return the facts before the first scan. Takes 5 us, or 1 us for a cached header. Raises: DecodeFailed."""
    head = bytes(data[:_HEAD_BYTES])
    scan = head.find(_SCAN_MARKER)
    if scan > 0:
        try:  # (`suppress` takes three calls, for each image)
            return _known(head[: scan + _SCAN_HEAD_BYTES])
        except DecodeFailed:  # that was not the first scan: a thumbnail's, or truncated
            return _walk_segments(data)
    return _walk_segments(data)


def _walk_segments(data: Buffer) -> JpegHeader:
    at = 2
    height = width = components = 0
    is_progressive = False
    exif = xmp = None
    try:
        while True:
            if data[at] != 0xFF:
                raise DecodeFailed(f"jpg: byte {at} is {data[at]:#04x} where a marker belongs")
            marker = data[at + 1]
            if marker == 0xFF:  # a fill byte
                at += 1
                continue
            if marker in (_SCAN, _END):
                break
            if marker in _WITHOUT_LENGTH:
                at += 2
                continue
            nbytes = data[at + 2] << 8 | data[at + 3]
            if marker in _FRAMES:
                height = data[at + 5] << 8 | data[at + 6]
                width = data[at + 7] << 8 | data[at + 8]
                components = data[at + 9]
                is_progressive = marker in _PROGRESSIVE
            elif marker == _APP1:
                segment = bytes(data[at + 4 : at + 2 + nbytes])
                if exif is None and segment.startswith(_EXIF):
                    exif = segment
                elif xmp is None and segment.startswith(_XMP):
                    xmp = segment
            at += 2 + nbytes
        is_multiscan = is_progressive or (components > 1 and data[at + 4] < components)
    except IndexError:
        raise DecodeFailed(
            f"jpg: ends within its headers ({len(data)} bytes)", what="jpg", given=len(data)
        ) from None
    if not height or not width or not components:
        raise DecodeFailed(f"jpg: no frame header before the first scan, or one of {width} x {height} px")
    if exif or xmp:
        turn = metadata_turn(exif, xmp)
    else:
        turn = UPRIGHT
    return JpegHeader(height, width, components, turn, is_multiscan)


def check_scans(data: Buffer, n_px: int = 1) -> None:
    """Raise DecodeFailed for a JPEG with too many scans: 66 KB of scans can take 17 s to decode.

    Segments are parsed only if many bytes look like a scan. n_px: pixels of the image.
    """
    most = min(MAX_JPEG_SCANS, max(JPEG_SCANS_ANYWAY, MAX_JPEG_SCAN_PX // n_px))
    values = np.frombuffer(data, np.uint8)  # seven times as fast as bytes.count
    n_alike = np.count_nonzero((values[:-1] == 0xFF) & (values[1:] == _SCAN))
    if n_alike > most and (n_scans := _n_scans(bytes(data))) > most:
        raise DecodeFailed(
            limit_message("jpg", n_scans, "scans", most, "Write it anew as a baseline JPEG"),
            what="scans",
            given=n_scans,
            accepted=most,
        )


def _n_scans(data: bytes) -> int:
    n_scans = 0
    at = 2
    while (match := _MARKER.search(data, at)) is not None:
        at = match.end()
        marker = data[match.end() - 1]
        if marker == _END:
            break
        n_scans += marker == _SCAN
        if marker not in _WITHOUT_LENGTH:
            at += int.from_bytes(data[at : at + 2], "big")
    return n_scans


_known = lru_cache(maxsize=512)(_walk_segments)
