"""Read photo metadata: readable EXIF, coordinates and orientation.

HEIC and AVIF decoders apply the container's turn (irot, imir: ISO/IEC 23008-12, 6.5.10 and 6.5.12), and EXIF's number
is ignored (6.5.10 note). For other formats EXIF decides (CIPA DC-008, 4.6.4), or XMP if EXIF has no valid number,
because editors that turn pixels reset EXIF but not XMP.
"""

import re
import struct
from typing import TYPE_CHECKING, Literal, NamedTuple

from loader.modalities.image.crop import exif_orientation, xmp_orientation

if TYPE_CHECKING:
    from PIL.Image import Image

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
    """Return whether a photo has coordinates in EXIF, XMP, other text, or after a JPEG's end.

    data: the whole file. Place names (IPTC, XMP) are not coordinates.
    """
    if _gps_tags(image) - {_VERSION}:
        return True
    if _COORDINATES.search(data):
        return True
    for value in image.info.values():  # texts that are compressed in the file
        text = value.encode() if isinstance(value, str) else value
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
    """Orientation of a photo as tagged and as decided; numbers are EXIF's, 1 to 8."""

    exif: int | None
    """Number in EXIF; None if missing or invalid."""
    xmp: int | None
    """Number in XMP; None if missing or invalid."""
    by: Decider | None
    """Source that decided; None if none did."""
    number: int
    """Orientation that was decided."""
    pending: int
    """Turn that the decoded pixels still need; 1 if they are upright."""


def orientation_of(image: "Image") -> Orientation:
    """Return an opened image's orientation. Call it before loading, because Pillow turns TIFFs on load."""
    kind = image.format
    if kind == "HEIF":  # libheif has turned it; pi_heif saved EXIF's number
        return Orientation(_valid(image.info.get("original_orientation")), _xmp(image), "container", 1, 1)
    if kind == "AVIF":  # Pillow replaces EXIF's number by the container's turn
        turn = _exif(image) or 1
        return Orientation(None, _xmp(image), "container", turn, turn)
    if kind not in _WITH_METADATA:
        return Orientation(None, None, None, 1, 1)
    exif, xmp = _exif(image), _xmp(image)
    if kind == "TIFF":
        return _of_tiff(image, xmp)
    by: Decider | None = "exif" if exif else "xmp" if xmp else None
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
    return image if method is None else image.transpose(method)


def _of_tiff(image: "Image", xmp: int | None) -> Orientation:
    """Return a TIFF's orientation; Pillow applies tag 274, or XMP in most spellings."""
    exif = _valid(getattr(image, "tag_v2", {}).get(_TAG))
    number = exif or xmp or 1
    by_pillow = image.getexif().get(_TAG)
    return Orientation(
        exif, xmp, "exif" if exif else "xmp" if xmp else None, number, 1 if by_pillow == number else number
    )


def _exif(image: "Image") -> int | None:
    block = image.info.get("exif")
    if block is None and image.format == "PNG":
        block = hex_exif(image.info.get("Raw profile type exif"))
    return exif_orientation(block) or None if isinstance(block, bytes) else None


def _xmp(image: "Image") -> int | None:
    packet = image.info.get("xmp")
    if isinstance(packet, str):
        packet = packet.encode()
    return xmp_orientation(packet) or None if isinstance(packet, bytes) else None


def hex_exif(profile: object) -> bytes | None:
    """Return EXIF from a hexadecimal PNG text chunk, as older ImageMagick wrote it."""
    if not isinstance(profile, str):
        return None
    try:
        return bytes.fromhex("".join(profile.split("\n")[3:]))
    except ValueError:
        return None


def _valid(number: object) -> int | None:
    return number if isinstance(number, int) and 1 <= number <= 8 else None
