"""Compare photos with their file, read by FFmpeg instead of Pillow and turned by the loader's EXIF and XMP reader.

Only the shape is compared if FFmpeg cannot read the file, turns it, or misreads it (TIFF with RGB JPEG strips or an
unused predictor). Only light and dark are compared with a colour profile or CMYK.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from loader.modalities.image.crop import EXIF_TURNS, UPRIGHT, PixelTurn, metadata_turn

from ..container import open_container
from ..image.open import PHOTO_WORDS, photo
from ..unit import Unit, Unusable
from ..video.colour import bit_depth
from . import findings
from .clips import check_aspect, check_structure
from .findings import CELLS, Grid, Misreading, compare, distance, finding, frame_planes, pixel_grid
from .findings import turned as turned_grid

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from PIL.Image import Image

_ORIENTATION = 0x0112  # EXIF and TIFF
_TURNED_BY_DECODER = ("HEIF", "AVIF")
_COMPRESSED_OTHERWISE = ("jpeg", "tiff_jpeg")
_WITH_ALPHA = (
    "rgba",
    "bgra",
    "argb",
    "abgr",
    "rgba64be",
    "rgba64le",
    "ya8",
    "ya16be",
    "ya16le",
    "yuva420p",
    "pal8",
)
_AS_THEY_STAND = ("1", "L", "LA", "P", "PA", "RGB", "RGBA")
_PREDICTOR = 317  # TIFF
FAR_LEVELS = 16.0
"""Largest difference of one photo; halved chroma shifts stripes of pure colours by 8."""

WHITE, BLACK = 255.0, 0.0


class Original(NamedTuple):
    """Facts of a photo from its file."""

    size_px: tuple[int, int]
    """(width, height) as stored."""
    turn: PixelTurn
    """Turn that makes the photo upright."""
    is_plain: bool
    """True if the stored values are sRGB."""
    is_readable: bool
    """True if FFmpeg reads it correctly, unturned."""


def audit_photo(path: str, unit: Unit) -> None:
    """Compare a stored photo with its file. Raises: Unusable, named after the fault."""
    ground = _ground(unit)
    stored = _stored_pixels(unit, ground)
    original = _original(path)
    width, height = original.size_px
    if original.turn.transpose:
        width, height = height, width
    check_aspect((stored.shape[1], stored.shape[0]), (width, height), "the photo")
    if min(stored.shape[:2]) < 2 * CELLS:
        return  # cells of few pixels: JPEG changes their colours
    frame = None
    if original.is_readable:
        frame = _by_ffmpeg(path)
    if frame is None or (frame.width, frame.height) != original.size_px:
        return
    actual = pixel_grid(stored)
    expected = _upright(_colours(frame, ground), original.turn)
    try:
        _check_colours(actual, expected, frame, original, ground)
    except Unusable:
        _check_decoders(path, actual, expected, original, ground)
        raise


def _check_decoders(
    path: str,
    actual: Grid,
    expected: Grid,
    original: Original,
    ground: tuple[float, float, float],
) -> None:
    """Raise Unusable if Pillow and FFmpeg read different pixels, and the photo is as Pillow reads them."""
    pillow = _by_pillow(path, ground)
    if pillow is None:
        return
    read = _upright(pillow, original.turn)
    apart = distance(read, expected)
    if apart > findings.SAME_LEVELS and distance(actual, read) <= min(FAR_LEVELS, apart / 2):
        raise finding(
            findings.DECODERS,
            f"decoders disagree about this file: Pillow and FFmpeg read it {apart:.1f} levels apart, and the photo is "
            "as Pillow reads it; save it anew",
        )


def _by_pillow(path: str, ground: tuple[float, float, float]) -> Grid | None:
    """Return the unturned file's grid; None for modes that Pillow converts differently."""
    from PIL import Image

    with photo(path) as opened_photo:
        kind = opened_photo.kind
    with Image.open(path, formats=(kind,)) as image:
        if image.mode not in _AS_THEY_STAND or (kind == "TIFF" and _tiff_turn(path) != UPRIGHT):
            return None
        pixels = np.asarray(image.convert("RGBA")).astype(np.float64)
    share = pixels[..., 3:] / 255
    return pixel_grid(pixels[..., :3] * share + np.array(ground) * (1 - share))


def _check_colours(
    actual: Grid,
    expected: Grid,
    frame: "VideoFrame",
    original: Original,
    ground: tuple[float, float, float],
) -> None:
    """Compare the colours of a photo and its file, upright both. Raises: Unusable, named after the likeliest fault."""
    if not original.is_plain:
        check_structure(actual, expected, "the photo")
        return
    readings = [
        Misreading(findings.ROTATION, turned_grid(expected, turns, mirrored))
        for turns in range(4)
        for mirrored in (False, True)
        if turns or mirrored
    ]
    readings.append(Misreading(findings.INVERTED, 255 - expected))
    if frame.format.name in _WITH_ALPHA:
        readings.append(
            Misreading(findings.ALPHA, _upright(_colours(frame, (BLACK, BLACK, BLACK)), original.turn))
        )
    if bit_depth(frame) > 8:
        readings.append(Misreading(findings.SATURATED, np.minimum(expected * 257, 255)))
    planes = frame_planes(frame)
    if planes is not None:
        readings.append(
            Misreading(findings.COLOUR_RANGE, _upright(planes.with_other_range().rgb(), original.turn))
        )
    compare(actual, expected, readings, "the photo", FAR_LEVELS)


def _ground(unit: Unit) -> tuple[float, float, float]:
    """Return the colour behind transparent pixels of a stored photo, in levels."""
    red, green, blue = unit.fields["json"].get("stored", {}).get("ground", (WHITE, WHITE, WHITE))
    return red, green, blue


def _stored_pixels(unit: Unit, ground: tuple[float, float, float]) -> "np.ndarray[Any, Any]":
    """Return uint8 [H, W, 3] of the stored photo, as the loader decodes it, over a ground."""
    from loader.modalities import find_decoder

    (path,) = (value for name, value in unit.fields.items() if name in PHOTO_WORDS)
    pixels: Any = find_decoder("jpg", bits=8)(path.read_bytes(), None)
    if pixels.shape[2] == 4:
        share = pixels[..., 3:] / 255
        pixels = np.rint(pixels[..., :3] * share + np.array(ground) * (1 - share)).astype(np.uint8)
    if pixels.shape[2] == 1:
        pixels = np.repeat(pixels, 3, axis=2)
    values: np.ndarray[Any, Any] = pixels
    return values


def _original(path: str) -> Original:
    """Return the facts of a photo's file that decide how FFmpeg's pixels are compared."""
    with photo(path) as opened_photo:
        image = opened_photo.image
        exif = image.info.get("exif")
        xmp = image.info.get("xmp")
        if isinstance(xmp, str):
            xmp = xmp.encode()
        turn = metadata_turn(exif, xmp)
        size_px = image.size
        # Pillow has turned a TIFF, and dropped its tag. FFmpeg has not: take the tag and the size of the file.
        if image.format == "TIFF":
            turn = _tiff_turn(path)
            if turn.transpose:
                size_px = size_px[::-1]
        is_srgb = opened_photo.colour.profile is None
        is_readable = (
            image.format not in _TURNED_BY_DECODER
            and image.info.get("compression") not in _COMPRESSED_OTHERWISE
            and not _has_unused_predictor(image)
        )
        return Original(
            size_px=size_px,
            turn=turn,
            is_plain=is_srgb and image.mode not in ("CMYK", "LAB", "YCbCr", "F"),
            is_readable=is_readable,
        )


def _has_unused_predictor(image: "Image") -> bool:
    """Return whether an uncompressed TIFF names a predictor, which FFmpeg wrongly applies."""
    tags: Any = getattr(image, "tag_v2", {})
    return image.info.get("compression") == "raw" and tags.get(_PREDICTOR, 1) != 1


def _tiff_turn(path: str) -> PixelTurn:
    """Return the turn of a TIFF's own tag."""
    from PIL import Image

    with Image.open(path, formats=("TIFF",)) as unread:
        tags: Any = getattr(unread, "tag_v2", {})
        return EXIF_TURNS.get(tags.get(_ORIENTATION), UPRIGHT)


def _by_ffmpeg(path: str) -> "VideoFrame | None":
    """Return the file's first image as FFmpeg decodes it; None for a format that it cannot read."""
    import av

    try:
        with open_container(path) as container:
            return next(container.decode(video=0), None)
    except (Unusable, av.error.FFmpegError, IndexError):
        return None


def _upright(grid: Grid, turn: PixelTurn) -> Grid:
    """Return a grid of an image as stored, after the turn that makes it upright."""
    if turn.transpose:
        out = np.swapaxes(grid, 0, 1)
    else:
        out = grid
    if turn.flip_y:
        out = out[::-1]
    if turn.flip_x:
        return out[:, ::-1]
    return out


def _colours(frame: "VideoFrame", ground: tuple[float, float, float]) -> Grid:
    """Return the grid of a frame over a ground, in levels from 0 to 255."""
    planes = frame_planes(frame)
    if planes is not None:
        return planes.rgb()
    if bit_depth(frame) > 8:
        deep = frame.to_ndarray(format="rgba64le").astype(np.float64) / 257
    else:
        deep = frame.to_ndarray(format="rgba").astype(np.float64)
    share = deep[..., 3:] / 255
    return pixel_grid(deep[..., :3] * share + np.array(ground) * (1 - share))
