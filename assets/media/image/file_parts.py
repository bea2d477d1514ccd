"""Read parts of image files without decoding: segments and chunks, EXIF, coordinates and orientation.

HEIC and AVIF decoders apply the container's turn (irot, imir: ISO/IEC 23008-12, 6.5.10 and 6.5.12), and EXIF's number
is ignored (6.5.10 note). For other formats EXIF decides (CIPA DC-008, 4.6.4), or XMP without a valid number, because
editors that turn pixels reset EXIF but not XMP.
"""

import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple

from loader.limits import MAX_JPEG_SCANS, limit_message
from loader.modalities.container_parts import RIFF_HEAD, chunks
from loader.modalities.image.crop import exif_orientation, xmp_orientation

from ..unit import rejected

if TYPE_CHECKING:
    from PIL.Image import Image


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
    """Bytes of the part as stored; SOS with the compressed data."""


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
    """Return the bytes after a JPEG's EOI (a video, gain map or more images); 0 if it is broken."""
    try:
        return len(data) - sum(len(part.whole) for part in jpeg_parts(data))
    except BrokenParts:
        return 0


def missing_scans(data: bytes) -> str | None:
    """Describe the coefficients that a progressive JPEG's scans leave incomplete; None if complete.

    A truncated file that ends with an EOI decodes blurred.
    """
    to_come: dict[int, list[int]] = {}
    try:
        for part in jpeg_parts(data):
            if part.name == "c2":
                to_come = {part.body[6 + 3 * i]: [1] * 64 for i in range(part.body[5])}
            elif part.name == "da" and to_come:
                n = part.body[0]
                start = part.body[1 + 2 * n]
                stop = part.body[2 + 2 * n]
                bits = part.body[3 + 2 * n] & 15
                for i in range(n):
                    to_come[part.body[1 + 2 * i]][start : stop + 1] = [bits] * (stop + 1 - start)
    except (BrokenParts, LookupError):
        return None
    lacking = sum(bits > 0 for component in to_come.values() for bits in component)
    if lacking:
        return f"{lacking} of {64 * len(to_come)} coefficients do not come to their last bit"
    return None


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
    for name, start, end in chunks(memoryview(data)[:stop], 12, RIFF_HEAD):
        nbytes = end - start
        at = start - 8
        if end > stop:
            raise BrokenParts(f"chunk {name!r} at byte {at} takes {nbytes} bytes of {stop - at}")
        padded_end = end + nbytes % 2
        yield FilePart(name.decode("latin-1"), data[start:end], data[at:padded_end])


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
        raise rejected("probe", "too_many_scans", limit_message("jpg", n_scans, "scans", MAX_JPEG_SCANS))
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


_GPS = 0x8825  # EXIF's GPS directory
# Errors of Pillow's EXIF reader for damaged blocks, which leave pixels usable.
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, ArithmeticError, struct.error)
_VERSION = 0  # GPSVersionID is the only entry in many directories

# Coordinates in XMP, and QuickTime's in a motion photo's video.
_COORDINATES = re.compile(rb"GPSL(?:at|ong)itude|GPSPosition|location\.ISO6709")
_FILM_PLACE = b"\xa9xyz"
_END = b"\xff\xd9"


def _gps_tags(image: "Image") -> set[int]:
    try:
        return set(image.getexif().get_ifd(_GPS))
    except _DAMAGE:
        return set()


def has_coordinates(image: "Image", data: bytes) -> bool:
    """Return whether a file has coordinates (not place names) in EXIF, XMP, other text, or after a JPEG's end."""
    if _gps_tags(image) - {_VERSION}:
        return True
    if _COORDINATES.search(data):
        return True
    for value in image.info.values():  # texts that are compressed in the file
        if isinstance(value, str):
            text = value.encode()
        else:
            text = value
        if isinstance(text, bytes) and _COORDINATES.search(text):
            return True
    if image.format in ("JPEG", "MPO"):
        behind = data.find(b"ftyp", data.find(_END) + 2)
        return behind > 0 and data.find(_FILM_PLACE, behind) > 0
    return False


Decider = Literal["exif", "xmp", "container"]

_TAG = 0x0112
_WITH_METADATA = ("JPEG", "MPO", "PNG", "WEBP", "TIFF")
SIDEWAYS = (5, 6, 7, 8)


class Orientation(NamedTuple):
    """Orientation of a photo as tagged and as decided; EXIF's numbers, 1 to 8."""

    exif: int | None
    """Number in EXIF; None if missing or invalid."""
    xmp: int | None
    """Number in XMP; None if missing or invalid."""
    by: Decider | None
    """Source that decided; None if none did."""
    number: int
    """Orientation that was decided."""
    pending: int
    """Turn that the pixels still need, as EXIF's number; 1 is upright."""


def image_orientation(image: "Image") -> Orientation:
    """Return an opened image's orientation. Call it before loading: Pillow turns TIFFs on load."""
    kind = image.format
    if kind == "HEIF":  # libheif has turned it; pi_heif saved EXIF's number
        return Orientation(_valid(image.info.get("original_orientation")), _xmp(image), "container", 1, 1)
    if kind == "AVIF":  # Pillow replaces EXIF's number by the container's turn
        turn = _exif(image) or 1
        return Orientation(None, _xmp(image), "container", turn, turn)
    if kind not in _WITH_METADATA:
        return Orientation(None, None, None, 1, 1)
    exif = _exif(image)
    xmp = _xmp(image)
    if kind == "TIFF":
        return _of_tiff(image, xmp)
    by: Decider | None
    if exif:
        by = "exif"
    elif xmp:
        by = "xmp"
    else:
        by = None
    number = exif or xmp or 1
    return Orientation(exif, xmp, by, number, number)


def upright(image: "Image", pending: int) -> "Image":
    """Return the image turned upright."""
    from PIL.Image import Transpose

    method = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }.get(pending)
    if method is None:
        return image
    return image.transpose(method)


def _of_tiff(image: "Image", xmp: int | None) -> Orientation:
    """Return a TIFF's orientation; Pillow applies tag 274, or XMP in most spellings."""
    exif = _valid(getattr(image, "tag_v2", {}).get(_TAG))
    number = exif or xmp or 1
    source: Decider | None = None
    if exif:
        source = "exif"
    elif xmp:
        source = "xmp"
    by_pillow = image.getexif().get(_TAG)
    pending = 1 if by_pillow == number else number
    return Orientation(exif, xmp, source, number, pending)


def _exif(image: "Image") -> int | None:
    block = image.info.get("exif")
    if block is None and image.format == "PNG":
        block = hex_exif(image.info.get("Raw profile type exif"))
    if isinstance(block, bytes):
        return exif_orientation(block) or None
    return None


def _xmp(image: "Image") -> int | None:
    packet = image.info.get("xmp")
    if isinstance(packet, str):
        packet = packet.encode()
    if isinstance(packet, bytes):
        return xmp_orientation(packet) or None
    return None


def hex_exif(profile: object) -> bytes | None:
    """Return EXIF from a hexadecimal PNG text chunk, as older ImageMagick wrote it."""
    if not isinstance(profile, str):
        return None
    try:
        return bytes.fromhex("".join(profile.split("\n")[3:]))
    except ValueError:
        return None


def _valid(number: object) -> int | None:
    if isinstance(number, int) and 1 <= number <= 8:
        return number
    return None
