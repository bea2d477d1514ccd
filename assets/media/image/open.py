"""Opening a photo: decoded whole, or refused with the reason."""

import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loader.limits import MAX_RAW_IMAGE_PX, MAX_TIFF_PAGES, beyond

from ..colour.code_points import code_points_of
from ..colour.file_parts import check_jpeg, png_parts
from ..colour.to_srgb import Colour, colour_of
from ..container import check_machine
from ..unit import dropped, not_supported, rejected
from .orientation import SIDEWAYS, Orientation, orientation_of

if TYPE_CHECKING:
    from PIL.Image import Image

PHOTO_WORDS = ("jpg", "img")
"""The field of a stored photo: of a dataset whose photos are all JPEGs, and of one that has other formats as well."""

_FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF", "AVIF", "HEIF")
"""Pillow's readers that are asked; some of its others run programs (EPS), or take anything for their own."""

_STILL_WITH_MORE = ("MPO", "HEIF")
"""Phones store a preview, a depth map or a gain map behind a photo."""

# NewSubfileType (TIFF 6.0, tag 254): a smaller copy of another page, or its mask.
_SUBFILE_TYPE, _NO_PICTURE = 254, 0b101

DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    RuntimeError,  # of libavif and libheif
    LookupError,
    ArithmeticError,
    TypeError,  # TIFF pages without a size
    struct.error,
)
"""Errors that Pillow's decoders and metadata readers raise for damaged files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Photo:
    """An opened photo."""

    picture: "Image"
    """Decoded picture, as stored (a TIFF or HEIC as its decoder turned it)."""
    kind: str
    """Pillow's name of its format."""
    mode: str
    """Pillow's name of its pixels."""
    size_px: tuple[int, int]
    """(width, height) as stored."""
    upright_size_px: tuple[int, int]
    """(width, height) as seen."""
    orientation: Orientation
    """Way up, as told and as decided."""
    colour: Colour
    """Colour space."""
    is_animated: bool
    """True where it has more frames or pages than this first one."""
    warning: str | None
    """Possible fault although every pixel may be right; None for nothing."""


@contextmanager
def loaded(path: str) -> Iterator["Image"]:
    """Yield the picture at `path`, as stored, all its pixels decoded: `photo(path).picture`. Raises: Unusable."""
    with photo(path) as opened:
        yield opened.picture


@contextmanager
def photo(path: str) -> Iterator[Photo]:
    """Yield the photo at `path`, all its pixels decoded; of an animation or a TIFF of several pages, the first.

    Raises: Unusable for a truncated or otherwise unreadable file, for one above `MAX_RAW_IMAGE_PX`, for high dynamic
    range (dropped: nothing here makes it sRGB); inside the block too, for Pillow's errors there.
    """
    from PIL import AvifImagePlugin, Image, ImageFile, UnidentifiedImageError

    tolerant = ImageFile.LOAD_TRUNCATED_IMAGES  # many a library switches it on for its whole process
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # the pipeline's own workers fill the cores
    Image.init()
    formats = [name for name in _FORMATS if name in Image.OPEN]  # HEIF is there after `read_heif`
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata, which are not used
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=formats) as source:
                yield _loaded(source, path)
    except UnidentifiedImageError as error:
        raise rejected("probe", "unreadable", "no decoder recognises it as a picture") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise rejected("probe", "too_large", error) from error
    except DAMAGE as error:
        check_machine(error, path)
        raise rejected("decode", "undecodable", error) from error
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = tolerant


def _loaded(source: "Image", path: str) -> Photo:
    _check_size(source)
    warning = _check_parts(source, path)
    is_animated = _has_more(source)
    colour = colour_of(source, code_points_of(source, path))
    if colour.hdr:
        raise dropped("probe", "hdr", "high dynamic range (PQ or HLG), which is not squeezed into sRGB")
    orientation = orientation_of(source)
    source.load()
    width_px, height_px = source.size
    turned = (height_px, width_px)
    is_sideways, is_pending = orientation.told in SIDEWAYS, orientation.pending in SIDEWAYS
    return Photo(
        picture=source,
        kind=str(source.format),
        mode=source.mode,
        size_px=turned if is_sideways and not is_pending else source.size,
        upright_size_px=turned if is_pending else source.size,
        orientation=orientation,
        colour=colour,
        is_animated=is_animated,
        warning=warning,
    )


def _check_size(picture: "Image") -> None:
    if picture.width * picture.height > MAX_RAW_IMAGE_PX:
        what = f"an image of {picture.width} x {picture.height} px"
        raise rejected(
            "probe", "too_large", beyond(what, picture.width * picture.height, "px", MAX_RAW_IMAGE_PX)
        )


def _check_parts(picture: "Image", path: str) -> str | None:
    """Return the damage that Pillow overlooks: PNG chunks whose CRC is wrong, warnings of libjpeg.

    Raises: Unusable; BrokenParts.
    """
    if picture.format not in ("PNG", "JPEG", "MPO"):
        return None
    with open(path, "rb") as file:
        data = file.read()
    if picture.format != "PNG":
        return check_jpeg(data)
    for part in png_parts(data):
        if part.name == "IHDR" and len(part.body) == 13:
            picture.info["bit_depth"] = part.body[8]
    return None


def _has_more(picture: "Image") -> bool:
    """Return whether there are more frames or pages.

    Pictures that a phone stores behind a photo, and a page's thumbnail, are none.
    """
    if picture.format in _STILL_WITH_MORE:
        return False
    if picture.format != "TIFF":
        return bool(getattr(picture, "is_animated", False))
    try:
        for page in range(1, MAX_TIFF_PAGES):
            try:
                picture.seek(page)
            except EOFError:
                return False
            if not int(getattr(picture, "tag_v2", {}).get(_SUBFILE_TYPE, 0)) & _NO_PICTURE:
                return True
        return True
    finally:
        picture.seek(0)


def read_heif() -> None:
    """Let Pillow open HEIC. Raises: Unusable without the optional package."""
    try:
        import pi_heif  # type: ignore[import-untyped]
    except ImportError as error:
        raise not_supported(
            "probe", "not_supported", "HEIC needs a decoder: pip install pi-heif, and run the batch again"
        ) from error
    pi_heif.options.DECODE_THREADS = 1
    pi_heif.register_heif_opener()
