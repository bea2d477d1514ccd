"""Open and fully decode photos, or refuse them with the reason."""

import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loader.errors import MissingDependency
from loader.limits import MAX_RAW_IMAGE_PX, MAX_TIFF_PAGES, limit_message

from ..container import check_machine
from ..unit import dropped, rejected
from .file_parts import SIDEWAYS, Orientation, check_jpeg, image_orientation, png_parts
from .to_srgb import Colour, image_code_points, image_colour

if TYPE_CHECKING:
    from PIL.Image import Image

PHOTO_WORDS = ("jpg", "img")
"""Fields of stored photos: JPEGs only, or any format."""

# Pillow readers to try; others run programs (EPS) or accept anything.
_FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF", "AVIF", "HEIF")

# Formats in which phones store previews, depth maps or gain maps after a photo.
_STILL_WITH_MORE = ("MPO", "HEIF")

# NewSubfileType (TIFF 6.0, tag 254): a smaller copy of another page, or its mask.
_SUBFILE_TYPE, _NO_PICTURE = 254, 0b101

DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    RuntimeError,  # from libavif and libheif
    LookupError,
    ArithmeticError,
    TypeError,  # TIFF pages without a size
    struct.error,
)
"""Pillow's errors for damaged files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Photo:
    """Decoded photo and its facts."""

    image: "Image"
    """Decoded image; only a TIFF's or HEIC's decoder has turned it."""
    kind: str
    """Pillow's format name."""
    mode: str
    """Pillow's pixel mode."""
    size_px: tuple[int, int]
    """(width, height) as stored."""
    upright_size_px: tuple[int, int]
    """(width, height) when upright."""
    orientation: Orientation
    """Orientation as tagged and as decided."""
    colour: Colour
    """Colour space."""
    is_animated: bool
    """True if there are several frames or pages."""
    warning: str | None
    """Possible fault, or None."""


@contextmanager
def photo(path: str) -> Iterator[Photo]:
    """Yield the photo at `path`, fully decoded; the first of several frames or pages.

    Raises: Unusable if the file is truncated, unreadable, above `MAX_RAW_IMAGE_PX` or HDR, also inside the block.
    """
    from PIL import AvifImagePlugin, Image, ImageFile, UnidentifiedImageError

    tolerant = ImageFile.LOAD_TRUNCATED_IMAGES  # other libraries may set it process-wide
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # the pipeline's workers use all cores
    Image.init()
    formats = [name for name in _FORMATS if name in Image.OPEN]  # `read_heif` registers HEIF
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd metadata, which is not used
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=formats) as source:
                yield _load_photo(source, path)
    except UnidentifiedImageError as error:
        raise rejected("probe", "unreadable", "no decoder recognises it as a picture") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise rejected("probe", "too_large", error) from error
    except DAMAGE as error:
        check_machine(error, path)
        raise rejected("decode", "undecodable", error) from error
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = tolerant


def _load_photo(source: "Image", path: str) -> Photo:
    """Return an opened image, decoded. Raises: Unusable; Pillow's errors."""
    _check_size(source)
    warning = _check_parts(source, path)
    is_animated = _has_more(source)
    colour = image_colour(source, image_code_points(source, path))
    if colour.hdr:
        raise dropped("probe", "hdr", "high dynamic range (PQ or HLG), which is not squeezed into sRGB")
    orientation = image_orientation(source)
    source.load()
    width_px, height_px = source.size
    turned = (height_px, width_px)
    is_sideways = orientation.number in SIDEWAYS
    is_pending = orientation.pending in SIDEWAYS
    size_px = source.size
    if is_sideways and not is_pending:  # Pillow has turned it already
        size_px = turned
    upright_size_px = source.size
    if is_pending:
        upright_size_px = turned
    return Photo(
        image=source,
        kind=str(source.format),
        mode=source.mode,
        size_px=size_px,
        upright_size_px=upright_size_px,
        orientation=orientation,
        colour=colour,
        is_animated=is_animated,
        warning=warning,
    )


def _check_size(image: "Image") -> None:
    if image.width * image.height > MAX_RAW_IMAGE_PX:
        what = f"an image of {image.width} x {image.height} px"
        raise rejected(
            "probe", "too_large", limit_message(what, image.width * image.height, "px", MAX_RAW_IMAGE_PX)
        )


def _check_parts(image: "Image", path: str) -> str | None:
    """Return a warning about a JPEG's parts, or None; note a PNG's bit depth, which Pillow does not keep."""
    if image.format not in ("PNG", "JPEG", "MPO"):
        return None
    with open(path, "rb") as file:
        data = file.read()
    if image.format != "PNG":
        return check_jpeg(data)
    for part in png_parts(data):
        if part.name == "IHDR" and len(part.body) == 13:
            image.info["bit_depth"] = part.body[8]
    return None


def _has_more(image: "Image") -> bool:
    """Return whether the file has more images than the first: frames, or pages that are no thumbnails."""
    if image.format in _STILL_WITH_MORE:
        return False
    if image.format != "TIFF":
        return bool(getattr(image, "is_animated", False))
    try:
        for page in range(1, MAX_TIFF_PAGES):
            try:
                image.seek(page)
            except EOFError:
                return False
            if not int(getattr(image, "tag_v2", {}).get(_SUBFILE_TYPE, 0)) & _NO_PICTURE:
                return True
        return True
    finally:
        image.seek(0)


def read_heif() -> None:
    """Let Pillow open HEIC. Raises: MissingDependency, which is not a verdict on the object."""
    try:
        import pi_heif  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingDependency(
            "HEIC needs the package pi-heif, which is not installed: pip install pi-heif, and run the batch again"
        ) from error
    pi_heif.options.DECODE_THREADS = 1
    pi_heif.register_heif_opener()
