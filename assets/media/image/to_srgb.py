"""Find a photo's colour space, and convert it to sRGB.

The space is the first available of: PNG's cICP, ICC profile, AVIF or HEIC code points, PNG's gamma and primaries, Adobe
RGB if EXIF has "R03" (DCF), sRGB.

littleCMS converts with relative colorimetric intent and black point compensation, in bands of rows. CMYK without a
profile is converted arithmetically.
"""

import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from loader.modalities.video.mp4 import check_tables_of

from . import colour_spaces
from .colour_spaces import (
    ADOBE_RGB,
    SRGB,
    RgbSpace,
    colour_model,
    profile_of,
    space_of_code_points,
    transfer_of,
)
from .file_parts import png_parts
from .pixels import eight_bits

if TYPE_CHECKING:
    from PIL.Image import Image

ColourBy = Literal["icc", "icc_unusable", "code_points", "gamma", "srgb", "exif", "lab", "assumed"]

_EXIF_IFD, _INTEROP_IFD, _INTEROP_INDEX, _COLOUR_SPACE = 0x8769, 0xA005, 0x0001, 0xA001
_BAND_PX = 2**20
_GAMMA_OF_SRGB = (0.44, 0.47)  # 1/2.2 however it is rounded: writers mean sRGB

# Profile's colour model -> Pillow's mode.
_MODES = {"RGB": "RGB", "GRAY": "L", "CMYK": "CMYK"}


class Colour(NamedTuple):
    """Colour space of a photo."""

    by: ColourBy
    """Source of the space: 'assumed' if there is none, 'icc_unusable' for an ignored profile, 'srgb' for PNG's chunk.
    """
    profile: bytes | None = None
    """ICC profile of the space; None for sRGB."""
    hdr: bool = False
    """True for HDR, which no profile converts to sRGB."""


def colour_of(image: "Image", code_points: tuple[int, int] | None) -> Colour:
    """Return the colour space of an opened image.

    code_points: (primaries, transfer) of ITU-T H.273; None if the file has none.
    """
    if code_points is not None and image.format == "PNG":  # PNG, third edition, 4.3: cICP takes precedence
        return _of_code_points(*code_points)
    profile = image.info.get("icc_profile")
    if profile:
        return _of_profile(image, profile)
    if image.mode == "LAB":
        return Colour("lab")
    if code_points is not None:
        return _of_code_points(*code_points)
    if image.format == "PNG":
        return _of_png(image.info)
    if _is_adobe_rgb(image):
        return Colour("exif", profile_of(ADOBE_RGB))
    return Colour("assumed")


def to_srgb(image: "Image", colour: Colour) -> "Image":
    """Return the image in 8-bit sRGB without metadata, with straight alpha if it has transparency.

    Raises: Unusable for values of undefined range, such as floats.
    """
    from PIL import Image

    convert = _converter(image, colour.profile)
    rows = max(1, _BAND_PX // image.width)
    out: Image.Image | None = None
    for top in range(0, image.height, rows):
        area = (0, top, image.width, min(top + rows, image.height))
        band = convert(eight_bits(image, area))
        if out is None:
            out = Image.new(band.mode, image.size)
        out.paste(band, area[:2])
    if out is None:  # Pillow opens no image without rows
        raise ValueError("an image without rows")
    return out


def is_srgb(profile: bytes) -> bool:
    """Return whether an RGB profile is sRGB: conversion changes no 8-bit value by more than 1."""
    from PIL import Image

    steps = np.linspace(0, 255, 9).astype(np.uint8)
    lattice = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), axis=-1).reshape(9, 81, 3)
    converted = np.asarray(_transform(profile, "RGB")(Image.fromarray(lattice)))
    return bool(np.abs(converted.astype(int) - lattice).max() <= 1)


def _converter(image: "Image", profile: bytes | None) -> Callable[["Image"], "Image"]:
    from PIL import Image

    if image.mode == "LAB":
        return from_lab
    apply = None if profile is None else _transform(profile, _MODES[colour_model(profile)])
    mode = None if profile is None else _MODES[colour_model(profile)]

    def convert(band: Image.Image) -> Image.Image:
        alpha = band.getchannel("A") if band.mode in ("LA", "RGBA") else None
        colours = band.convert(band.mode[:-1]) if alpha is not None else band
        if apply is None:
            colours = colours.convert("RGB")
        else:
            colours = apply(colours if colours.mode == mode else colours.convert(mode))
        if alpha is not None:
            colours.putalpha(alpha)
        return colours

    return convert


def _transform(profile: bytes, mode: str) -> Callable[["Image"], "Image"]:
    from PIL import ImageCms

    flags = ImageCms.Flags.BLACKPOINTCOMPENSATION
    if mode == "L":  # littleCMS's optimization for gray is up to 10 levels off in dark tones
        flags |= ImageCms.Flags.NOOPTIMIZE
    transform = ImageCms.buildTransform(
        ImageCms.ImageCmsProfile(io.BytesIO(profile)),
        ImageCms.createProfile("sRGB"),
        mode,
        "RGB",
        renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
        flags=flags,
    )

    def apply(image: "Image") -> "Image":
        converted: Image | None = ImageCms.applyTransform(image, transform)
        return image if converted is None else converted

    return apply


def from_lab(image: "Image") -> "Image":
    """Convert CIE L*a*b* to sRGB, which Pillow's `convert` cannot."""
    from PIL import ImageCms

    lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
    converted: Image | None = ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB")
    return image if converted is None else converted


def _of_profile(image: "Image", profile: bytes) -> Colour:
    from PIL import ImageCms

    if transfer_of(profile) in (colour_spaces.PQ, colour_spaces.HLG):
        return Colour("icc", hdr=True)
    if image.mode == "LAB":
        return Colour("lab")
    model = colour_model(profile)
    gray, ink = image.mode in ("1", "L", "LA", "La") or image.mode.startswith("I"), image.mode == "CMYK"
    fits = model == "CMYK" if ink else model == "RGB" or (gray and model == "GRAY")
    if not fits:
        return Colour("icc_unusable")
    try:
        if model == "RGB" and is_srgb(profile):
            return Colour("icc")
        _transform(profile, _MODES[model])
    except (ImageCms.PyCMSError, OSError, ValueError):
        return Colour("icc_unusable")
    return Colour("icc", profile)


def _of_code_points(primaries: int, transfer: int) -> Colour:
    if transfer in (colour_spaces.PQ, colour_spaces.HLG):
        return Colour("code_points", hdr=True)
    space = space_of_code_points(primaries, transfer)
    return Colour("code_points", None if space is None else profile_of(space))


def _of_png(info: Mapping[Any, Any]) -> Colour:
    """Return the space from gAMA and cHRM unless sRGB is present (PNG, third edition, 4.3)."""
    if "srgb" in info:
        return Colour("srgb")
    gamma, points = info.get("gamma"), info.get("chromaticity")
    curve = None
    if isinstance(gamma, float) and 0.1 <= gamma <= 5 and not _GAMMA_OF_SRGB[0] < gamma < _GAMMA_OF_SRGB[1]:
        curve = 1 / gamma
    space = RgbSpace(red=SRGB.red, green=SRGB.green, blue=SRGB.blue, gamma=curve)
    if isinstance(points, tuple) and len(points) == 8 and _is_near_srgb(points) is False:
        white, red, green, blue = ((points[i], points[i + 1]) for i in (0, 2, 4, 6))
        space = RgbSpace(red=red, green=green, blue=blue, white=white, gamma=curve)
    if space == SRGB or not colour_spaces.is_plausible(space):
        return Colour("assumed")
    return Colour("gamma", profile_of(space))


def _is_near_srgb(points: tuple[float, ...]) -> bool:
    srgb = (*SRGB.white, *SRGB.red, *SRGB.green, *SRGB.blue)
    return all(abs(value - other) < 0.002 for value, other in zip(points, srgb, strict=True))


def _is_adobe_rgb(image: "Image") -> bool:
    """Return whether ColorSpace is "uncalibrated" and the index "R03" (CIPA DC-008, 4.6.6)."""
    exif = image.getexif().get_ifd(_EXIF_IFD)
    if exif.get(_COLOUR_SPACE) != 0xFFFF:
        return False
    index = image.getexif().get_ifd(_INTEROP_IFD).get(_INTEROP_INDEX)
    text = index.decode("latin-1") if isinstance(index, bytes) else str(index)
    return text.rstrip("\0") == "R03"


_UNSPECIFIED = 2


def code_points_of(image: "Image", path: str) -> tuple[int, int] | None:
    """Return the ITU-T H.273 (primaries, transfer) of a PNG, HEIC or AVIF; None if it has none.

    Raises: BrokenParts if a PNG is damaged.
    """
    points: tuple[int, int] | None = None
    if image.format == "PNG":
        points = _cicp_of(path)
    elif image.format == "HEIF":
        profile = image.info.get("nclx_profile")
        if isinstance(profile, dict):
            points = (int(profile["color_primaries"]), int(profile["transfer_characteristics"]))
    elif image.format == "AVIF":
        points = _nclx_of(path)
    return None if points == (_UNSPECIFIED, _UNSPECIFIED) else points


def _cicp_of(path: str) -> tuple[int, int] | None:
    with open(path, "rb") as file:
        data = file.read()
    for part in png_parts(data):
        if part.name == "cICP" and len(part.body) == 4:
            return part.body[0], part.body[1]
        if part.name == "IDAT":
            break
    return None


def _nclx_of(path: str) -> tuple[int, int] | None:
    """Return code points that FFmpeg reads from the container or AV1 stream; Pillow does not expose them."""
    import av
    from av.error import FFmpegError

    try:
        with open(path, "rb") as file:
            check_tables_of(file)
        with av.open(path, format="mov", options={"protocol_whitelist": "file"}) as container:
            codec = container.streams.video[0].codec_context
            return int(codec.color_primaries), int(codec.color_trc)
    except (FFmpegError, LookupError, ValueError):
        return None
