"""The way up of a photo, told by its EXIF, its XMP and its container, and the choice between them.

- HEIC and AVIF turn by their container (irot, imir: ISO/IEC 23008-12, 6.5.10 and 6.5.12). Their decoders obey, and
  EXIF's number there is a leftover (6.5.10 note).
- Everywhere else EXIF decides (CIPA DC-008, 4.6.4). XMP decides where EXIF does not say, or says something that is no
  orientation. Editors that turn the pixels reset EXIF and forget XMP: where the two contradict, EXIF is right.

The number of each is kept in columns, so that contradictions can be looked at.
"""

from typing import TYPE_CHECKING, Literal, NamedTuple

from loader.modalities.image.crop import exif_orientation, xmp_orientation

if TYPE_CHECKING:
    from PIL.Image import Image

Decider = Literal["exif", "xmp", "container"]

_TAG = 0x0112
_BY_CONTAINER = ("HEIF", "AVIF")
_WITH_METADATA = ("JPEG", "MPO", "PNG", "WEBP", "TIFF")
SIDEWAYS = (5, 6, 7, 8)


class Orientation(NamedTuple):
    """The orientation of a photo as told and as decided; numbers are EXIF's, 1 to 8."""

    exif: int | None
    """Number in EXIF; None where there is none that makes sense."""
    xmp: int | None
    """Number in XMP; None where there is none that makes sense."""
    by: Decider | None
    """Source that decided; None when none said anything."""
    told: int
    """Orientation that was decided."""
    pending: int
    """Turn that the decoded pixels still need; 1 for none."""


def orientation_of(picture: "Image") -> Orientation:
    """Return the orientation of a picture that is opened and not loaded yet: Pillow turns TIFFs while it loads them."""
    kind = picture.format
    if kind == "HEIF":  # libheif has turned it; pi_heif has set EXIF's number aside
        return Orientation(_valid(picture.info.get("original_orientation")), _xmp(picture), "container", 1, 1)
    if kind == "AVIF":  # Pillow puts the container's turn in the place of EXIF's
        turn = _exif(picture) or 1
        return Orientation(None, _xmp(picture), "container", turn, turn)
    if kind not in _WITH_METADATA:
        return Orientation(None, None, None, 1, 1)
    exif, xmp = _exif(picture), _xmp(picture)
    if kind == "TIFF":
        return _of_tiff(picture, xmp)
    by: Decider | None = "exif" if exif else "xmp" if xmp else None
    told = exif or xmp or 1
    return Orientation(exif, xmp, by, told, told)


def upright(picture: "Image", pending: int) -> "Image":
    """Return the picture turned; itself where there is nothing to do."""
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
    return picture if method is None else picture.transpose(method)


def _of_tiff(picture: "Image", xmp: int | None) -> Orientation:
    """Return the orientation of a TIFF: Pillow obeys tag 274, and most spellings of XMP where the tag is missing."""
    exif = _valid(getattr(picture, "tag_v2", {}).get(_TAG))
    told = exif or xmp or 1
    by_pillow = picture.getexif().get(_TAG)
    return Orientation(
        exif, xmp, "exif" if exif else "xmp" if xmp else None, told, 1 if by_pillow == told else told
    )


def _exif(picture: "Image") -> int | None:
    block = picture.info.get("exif")
    if block is None and picture.format == "PNG":
        block = hex_exif(picture.info.get("Raw profile type exif"))
    return exif_orientation(block) or None if isinstance(block, bytes) else None


def _xmp(picture: "Image") -> int | None:
    packet = picture.info.get("xmp")
    if isinstance(packet, str):
        packet = packet.encode()
    return xmp_orientation(packet) or None if isinstance(packet, bytes) else None


def hex_exif(profile: object) -> bytes | None:
    """Return EXIF as older ImageMagick wrote it into PNG: a text chunk of hexadecimal digits."""
    if not isinstance(profile, str):
        return None
    try:
        return bytes.fromhex("".join(profile.split("\n")[3:]))
    except ValueError:
        return None


def _valid(number: object) -> int | None:
    return number if isinstance(number, int) and 1 <= number <= 8 else None
