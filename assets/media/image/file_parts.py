"""Read segments and chunks of JPEG, PNG and WebP files without decoding.

They reveal damage that JPEG decoders ignore: grey areas, endless scans, missing scans.
"""

import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from loader.limits import MAX_JPEG_SCANS, beyond

from ..unit import rejected

PNG_START = b"\x89PNG\r\n\x1a\n"

# 0xff ends a scan unless a stuffed zero, fill byte or restart marker follows (ITU-T T.81, B.1.1.5).
_END_OF_SCAN = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})
SOI, EOI, SOS = 0xD8, 0xD9, 0xDA


class BrokenParts(ValueError):
    """Raised if a file's parts are inconsistent; the message names the position."""


class FilePart(NamedTuple):
    """Segment or chunk of a file."""

    name: str
    """JPEG marker in two hexadecimal digits, or the chunk's name."""
    body: bytes
    """Payload."""
    whole: bytes
    """All bytes as stored; for SOS including the compressed data."""


def jpeg_parts(data: bytes) -> Iterator[FilePart]:
    """Yield the segments from SOI to the first EOI, where the image ends. Raises: BrokenParts."""
    if data[:2] != b"\xff\xd8":
        raise BrokenParts(f"begins with {data[:2]!r}, not with SOI")
    yield FilePart("d8", b"", data[:2])
    at = 2
    while True:
        start = at
        while data[at : at + 2] == b"\xff\xff":  # fill bytes
            at += 1
        if len(data) < at + 2 or data[at] != 0xFF:
            raise BrokenParts(f"no marker at byte {at} of {len(data)}")
        marker = data[at + 1]
        if marker == EOI:
            yield FilePart("d9", b"", data[start : at + 2])
            return
        if marker in _WITHOUT_LENGTH:
            at += 2
            yield FilePart(f"{marker:02x}", b"", data[start:at])
            continue
        nbytes = int.from_bytes(data[at + 2 : at + 4], "big")
        end = at + 2 + nbytes
        if nbytes < 2 or end > len(data):
            raise BrokenParts(f"segment {marker:02x} at byte {at} takes {nbytes} bytes of {len(data) - at}")
        body = data[at + 4 : end]
        if marker == SOS:
            match = _END_OF_SCAN.search(data, end)
            if match is None:
                raise BrokenParts("the last scan has no end")
            end = match.start()
        yield FilePart(f"{marker:02x}", body, data[start:end])
        at = end


def behind_end(data: bytes) -> int:
    """Return the number of bytes after a JPEG's EOI (a video, gain map or more images); 0 if it is broken."""
    try:
        return len(data) - sum(len(part.whole) for part in jpeg_parts(data))
    except BrokenParts:
        return 0


def missing_scans(data: bytes) -> str | None:
    """Describe the coefficients that a progressive JPEG's scans leave incomplete; None if complete.

    A truncated file that ends with an EOI decodes blurred, without a warning.
    """
    to_come: dict[int, list[int]] = {}
    try:
        for part in jpeg_parts(data):
            if part.name == "c2":
                to_come = {part.body[6 + 3 * i]: [1] * 64 for i in range(part.body[5])}
            elif part.name == "da" and to_come:
                n = part.body[0]
                start, stop, bits = part.body[1 + 2 * n], part.body[2 + 2 * n], part.body[3 + 2 * n] & 15
                for i in range(n):
                    to_come[part.body[1 + 2 * i]][start : stop + 1] = [bits] * (stop + 1 - start)
    except (BrokenParts, LookupError):
        return None
    lacking = sum(bits > 0 for component in to_come.values() for bits in component)
    return f"{lacking} of {64 * len(to_come)} coefficients do not come to their last bit" if lacking else None


def png_parts(data: bytes) -> Iterator[FilePart]:
    """Yield the chunks up to IEND after checking their CRCs. Raises: BrokenParts."""
    if not data.startswith(PNG_START):
        raise BrokenParts("it does not begin as a PNG")
    at = len(PNG_START)
    while True:
        if len(data) < at + 12:
            raise BrokenParts(f"ends at byte {len(data)}, before IEND")
        nbytes, name = struct.unpack_from(">I4s", data, at)
        end = at + 12 + nbytes
        if end > len(data):
            raise BrokenParts(f"chunk {name!r} at byte {at} takes {nbytes} bytes of {len(data) - at}")
        if zlib.crc32(memoryview(data)[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            raise BrokenParts(f"chunk {name!r} at byte {at} has a wrong CRC")
        yield FilePart(name.decode("latin-1"), data[at + 8 : end - 4], data[at:end])
        at = end
        if name == b"IEND":
            return


def webp_parts(data: bytes) -> Iterator[FilePart]:
    """Yield the chunks of a WebP's RIFF. Raises: BrokenParts."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP":
        raise BrokenParts("it does not begin as a WebP")
    stop = 8 + int.from_bytes(data[4:8], "little")
    if stop > len(data):
        raise BrokenParts(f"announces {stop} bytes and has {len(data)}")
    at = 12
    while at + 8 <= stop:
        name, nbytes = struct.unpack_from("<4sI", data, at)
        end = at + 8 + nbytes + nbytes % 2
        if at + 8 + nbytes > stop:
            raise BrokenParts(f"chunk {name!r} at byte {at} takes {nbytes} bytes of {stop - at}")
        yield FilePart(name.decode("latin-1"), data[at + 8 : at + 8 + nbytes], data[at:end])
        at = end


# libjpeg warnings despite which pixels may be correct: bytes between segments, markers of unusual encoders. Bytes left
# before a restart marker are not harmless: the scan is damaged.
_HARMLESS = (
    "extraneous bytes before marker",
    "Invalid SOS parameters for sequential JPEG",
    "Unknown Adobe color transform code",
    "unknown JFIF revision",
)
_RESTARTS = tuple(f"marker 0x{marker:02x}" for marker in range(0xD0, 0xD8))


def check_jpeg(data: bytes) -> str | None:
    """Return a warning about a JPEG whose pixels may all be correct, or None.

    Decodes at an eighth of the size. Raises: Unusable if the file is damaged or has too many scans.
    """
    import simplejpeg

    n_scans = 0
    with suppress(BrokenParts):  # libjpeg reports it below
        n_scans = sum(part.name == f"{SOS:02x}" for part in jpeg_parts(data))
    if n_scans > MAX_JPEG_SCANS:
        raise rejected("probe", "too_many_scans", beyond("jpg", n_scans, "scans", MAX_JPEG_SCANS))
    try:
        space = simplejpeg.decode_jpeg_header(data)[2]
        simplejpeg.decode_jpeg(
            data, "CMYK" if space in ("CMYK", "YCCK") else "GRAY", min_height=1, min_width=1
        )
    except ValueError as error:
        message = str(error)
        if any(words in message for words in _HARMLESS) and not message.endswith(_RESTARTS):
            return message
        raise rejected("decode", "undecodable", message) from error
    return missing_scans(data)
