"""Find a photo's colour space, and convert it to sRGB.

The space is the first of: PNG's cICP, ICC profile, AVIF or HEIC code points, PNG's gamma and primaries, Adobe RGB if
EXIF has "R03" (DCF), sRGB. littleCMS: relative colorimetric intent, black point compensation.
"""

import io
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from loader.modalities.video.container_checks import check_file_tables

from .file_parts import png_parts
from .pixels import eight_bits

if TYPE_CHECKING:
    from PIL.Image import Image


Point = tuple[float, float]

D65: Point = (0.3127, 0.3290)
_D50_XYZ = np.array([0.9642, 1.0, 0.8249])  # ICC.1:2022, 7.2.16: white of the profile connection space
# Bradford: ICC.1:2022, annex E.3.
_BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])

PQ, HLG = 16, 18
"""Transfer characteristics of HDR (ITU-T H.273, table 3)."""

_SRGB_CURVE_POINTS = 1024
_WHITES = ((0.25, 0.5), (0.25, 0.5))  # x and y, from far beyond blue daylight to candles


@dataclass(frozen=True, slots=True, kw_only=True)
class RgbSpace:
    """RGB space; points are CIE 1931 xy."""

    red: Point
    """Red primary."""
    green: Point
    """Green primary."""
    blue: Point
    """Blue primary."""
    white: Point = D65
    gamma: float | None = None
    """Gamma of the transfer curve; None for sRGB's curve."""


SRGB = RgbSpace(red=(0.64, 0.33), green=(0.30, 0.60), blue=(0.15, 0.06))
ADOBE_RGB = RgbSpace(
    red=(0.64, 0.33),
    green=(0.21, 0.71),
    blue=(0.15, 0.06),
    gamma=563 / 256,
)
"""Adobe RGB (1998), 4.3."""

_P3 = {"red": (0.680, 0.320), "green": (0.265, 0.690), "blue": (0.150, 0.060)}
_PRIMARIES: dict[int, dict[str, Point]] = {  # ITU-T H.273, table 2
    1: {"red": (0.64, 0.33), "green": (0.30, 0.60), "blue": (0.15, 0.06)},
    4: {"red": (0.67, 0.33), "green": (0.21, 0.71), "blue": (0.14, 0.08), "white": (0.310, 0.316)},
    5: {"red": (0.64, 0.33), "green": (0.29, 0.60), "blue": (0.15, 0.06)},
    6: {"red": (0.630, 0.340), "green": (0.310, 0.595), "blue": (0.155, 0.070)},
    7: {"red": (0.630, 0.340), "green": (0.310, 0.595), "blue": (0.155, 0.070)},
    9: {"red": (0.708, 0.292), "green": (0.170, 0.797), "blue": (0.131, 0.046)},
    11: {**_P3, "white": (0.314, 0.351)},
    12: _P3,
}
# ITU-T H.273, table 3: gamma of power curves. Television curves (1, 6, 14, 15) and sRGB (13) are read as sRGB, as
# web browsers do: encoders of stills mean the display, not the camera.
_GAMMAS = {4: 2.2, 5: 2.8, 8: 1.0}


def space_of_code_points(primaries: int, transfer: int) -> RgbSpace | None:
    """Return the space of two ITU-T H.273 code points; None for sRGB, unspecified or unknown ones."""
    known = _PRIMARIES.get(primaries)
    gamma = _GAMMAS.get(transfer)
    if known is None and gamma is None:
        return None
    space = RgbSpace(**(known or _PRIMARIES[1]), gamma=gamma)
    if space == SRGB:
        return None
    return space


def is_plausible(space: RgbSpace) -> bool:
    """Return whether a space has a plausible white point and primaries that mix to it."""
    points = (space.red, space.green, space.blue, space.white)
    if not all(0 <= x <= 1 and 0 < y <= 1 and x + y <= 1 for x, y in points):
        return False
    if not all(low <= part <= high for part, (low, high) in zip(space.white, _WHITES, strict=True)):
        return False
    columns = np.array([_point_xyz(point) for point in points[:3]]).T
    try:
        shares = np.linalg.solve(columns, _point_xyz(space.white))
    except np.linalg.LinAlgError:
        return False
    return bool((shares > 0.005).all())


def display_profile(space: RgbSpace) -> bytes:
    """Return a matrix/TRC display profile (ICC.1:2001-04, version 2) of `space`."""
    columns = _to_d50(space)
    curve = _curve(space.gamma)
    blobs = {
        b"desc": b"desc" + bytes(4) + struct.pack(">I", 6) + b"space\0" + bytes(78),
        b"cprt": b"text" + bytes(4) + b"none\0",
        b"wtpt": _xyz(_D50_XYZ),
        **{name: _xyz(columns[:, i]) for i, name in enumerate((b"rXYZ", b"gXYZ", b"bXYZ"))},
        **dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve),
    }
    table = b""
    data = b""
    start = 128 + 4 + 12 * len(blobs)
    for name, blob in blobs.items():
        table += name + struct.pack(">II", start + len(data), len(blob))
        data += blob + bytes(-len(blob) % 4)
    body = struct.pack(">I", len(blobs)) + table + data
    head = struct.pack(">I4sI4s4s4s", 128 + len(body), bytes(4), 0x02400000, b"mntr", b"RGB ", b"XYZ ")
    head = head.ljust(36, b"\0") + b"acsp"
    head = head.ljust(68, b"\0") + _xyz(_D50_XYZ)[8:]
    return head.ljust(128, b"\0") + body


def colour_model(profile: bytes) -> str:
    """Return a profile's model: 'RGB', 'GRAY', 'CMYK', 'Lab' ...; '' if it is too short."""
    if len(profile) >= 128:
        return profile[16:20].decode("ascii", "replace").strip()
    return ""


def profile_transfer(profile: bytes) -> int | None:
    """Return the transfer in a profile's `cicp` tag (ICC.1:2022, 9.2.17) or None."""
    try:
        (count,) = struct.unpack_from(">I", profile, 128)
        for entry in range(132, 132 + 12 * min(count, 100), 12):
            name, offset, _ = struct.unpack_from(">4sII", profile, entry)
            if name == b"cicp":
                return int(profile[offset + 9])
    except (struct.error, IndexError):
        return None
    return None


def _to_d50(space: RgbSpace) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    """Return [3, 3] whose columns are the XYZ of linear R, G and B, relative to D50."""
    columns = np.array([_point_xyz(point) for point in (space.red, space.green, space.blue)]).T
    white = _point_xyz(space.white)
    columns = columns * np.linalg.solve(columns, white)
    gain = np.diag((_BRADFORD @ _D50_XYZ) / (_BRADFORD @ white))
    adapted: np.ndarray[tuple[int, int], np.dtype[np.float64]]
    adapted = np.linalg.inv(_BRADFORD) @ gain @ _BRADFORD @ columns
    return adapted


def _point_xyz(point: Point) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    x, y = point
    return np.array([x / y, 1.0, (1 - x - y) / y])


def _xyz(value: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> bytes:
    return b"XYZ " + bytes(4) + struct.pack(">3i", *(round(float(part) * 65536) for part in value))


def _curve(gamma: float | None) -> bytes:
    """Return a `curv` element; sRGB's curve is IEC 61966-2-1, 5.2."""
    if gamma is not None:
        return b"curv" + bytes(4) + struct.pack(">IH", 1, round(gamma * 256))
    level = np.linspace(0, 1, _SRGB_CURVE_POINTS)
    linear = np.where(level <= 0.04045, level / 12.92, ((level + 0.055) / 1.055) ** 2.4)
    points: bytes = np.rint(linear * 65535).astype(">u2").tobytes()
    return b"curv" + bytes(4) + struct.pack(">I", _SRGB_CURVE_POINTS) + points


ColourBy = Literal["icc", "icc_unusable", "code_points", "gamma", "srgb", "exif", "lab", "assumed"]

_EXIF_IFD, _INTEROP_IFD, _INTEROP_INDEX, _COLOUR_SPACE = 0x8769, 0xA005, 0x0001, 0xA001
_BAND_PX = 2**20
_GAMMA_OF_SRGB = (0.44, 0.47)  # 1/2.2 however it is rounded: writers mean sRGB

# Profile's colour model -> Pillow's mode.
_MODES = {"RGB": "RGB", "GRAY": "L", "CMYK": "CMYK"}


class Colour(NamedTuple):
    """Colour space of a photo."""

    by: ColourBy
    """'assumed' without a source, 'icc_unusable' for an ignored profile, 'srgb' for PNG's chunk."""
    profile: bytes | None = None
    """ICC profile of the space; None for sRGB."""
    hdr: bool = False
    """True for HDR, which no profile converts to sRGB."""


def image_colour(image: "Image", code_points: tuple[int, int] | None) -> Colour:
    """Return an opened image's colour space. code_points: (primaries, transfer) of ITU-T H.273; None without."""
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
        return Colour("exif", display_profile(ADOBE_RGB))
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
    """Return the conversion of an image's bands to sRGB. profile: ICC profile; None if the colours are sRGB."""
    from PIL import Image

    if image.mode == "LAB":
        return from_lab
    apply = None
    mode = None  # of the images that `apply` takes
    if profile is not None:
        mode = _MODES[colour_model(profile)]
        apply = _transform(profile, mode)

    def convert(band: Image.Image) -> Image.Image:
        # A profile describes colours only: alpha stays as it is.
        alpha = None
        colours = band
        if band.mode in ("LA", "RGBA"):
            alpha = band.getchannel("A")
            colours = band.convert(band.mode[:-1])
        if apply is None:
            colours = colours.convert("RGB")
        else:
            if colours.mode != mode:
                colours = colours.convert(mode)
            colours = apply(colours)
        if alpha is not None:
            colours.putalpha(alpha)
        return colours

    return convert


def _transform(profile: bytes, mode: str) -> Callable[["Image"], "Image"]:
    """Return littleCMS's conversion from a profile to sRGB, of images of a mode of Pillow's."""
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
        if converted is None:
            return image
        return converted

    return apply


def from_lab(image: "Image") -> "Image":
    """Convert CIE L*a*b* to sRGB, which Pillow's `convert` cannot."""
    from PIL import ImageCms

    lab = ImageCms.createProfile("LAB")
    srgb = ImageCms.createProfile("sRGB")
    converted: Image | None = ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB")
    if converted is None:
        return image
    return converted


def _of_profile(image: "Image", profile: bytes) -> Colour:
    """Return the colours of an image by its ICC profile, if that fits the image's mode."""
    from PIL import ImageCms

    if profile_transfer(profile) in (PQ, HLG):
        return Colour("icc", hdr=True)
    if image.mode == "LAB":
        return Colour("lab")
    model = colour_model(profile)
    gray = image.mode in ("1", "L", "LA", "La") or image.mode.startswith("I")
    ink = image.mode == "CMYK"
    if ink:
        fits = model == "CMYK"
    else:
        fits = model == "RGB" or (gray and model == "GRAY")
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
    if transfer in (PQ, HLG):
        return Colour("code_points", hdr=True)
    space = space_of_code_points(primaries, transfer)
    if space is None:
        return Colour("code_points", None)
    return Colour("code_points", display_profile(space))


def _of_png(info: Mapping[Any, Any]) -> Colour:
    """Return the space from gAMA and cHRM unless sRGB is present (PNG, third edition, 4.3)."""
    if "srgb" in info:
        return Colour("srgb")
    gamma = info.get("gamma")
    points = info.get("chromaticity")
    curve = None
    if isinstance(gamma, float) and 0.1 <= gamma <= 5 and not _GAMMA_OF_SRGB[0] < gamma < _GAMMA_OF_SRGB[1]:
        curve = 1 / gamma
    space = RgbSpace(red=SRGB.red, green=SRGB.green, blue=SRGB.blue, gamma=curve)
    if isinstance(points, tuple) and len(points) == 8 and _is_near_srgb(points) is False:
        white, red, green, blue = ((points[i], points[i + 1]) for i in (0, 2, 4, 6))
        space = RgbSpace(red=red, green=green, blue=blue, white=white, gamma=curve)
    if space == SRGB or not is_plausible(space):
        return Colour("assumed")
    return Colour("gamma", display_profile(space))


def _is_near_srgb(points: tuple[float, ...]) -> bool:
    srgb = (*SRGB.white, *SRGB.red, *SRGB.green, *SRGB.blue)
    return all(abs(value - other) < 0.002 for value, other in zip(points, srgb, strict=True))


def _is_adobe_rgb(image: "Image") -> bool:
    """Return whether ColorSpace is "uncalibrated" and the index "R03" (CIPA DC-008, 4.6.6)."""
    exif = image.getexif().get_ifd(_EXIF_IFD)
    if exif.get(_COLOUR_SPACE) != 0xFFFF:
        return False
    index = image.getexif().get_ifd(_INTEROP_IFD).get(_INTEROP_INDEX)
    if isinstance(index, bytes):
        text = index.decode("latin-1")
    else:
        text = str(index)
    return text.rstrip("\0") == "R03"


_UNSPECIFIED = 2


def image_code_points(image: "Image", path: str) -> tuple[int, int] | None:
    """Return the ITU-T H.273 (primaries, transfer) of a PNG, HEIC or AVIF, or None.

    Raises: BrokenParts for a damaged PNG.
    """
    points: tuple[int, int] | None = None
    if image.format == "PNG":
        points = _png_cicp(path)
    elif image.format == "HEIF":
        profile = image.info.get("nclx_profile")
        if isinstance(profile, dict):
            points = (int(profile["color_primaries"]), int(profile["transfer_characteristics"]))
    elif image.format == "AVIF":
        points = _container_nclx(path)
    if points == (_UNSPECIFIED, _UNSPECIFIED):
        return None
    return points


def _png_cicp(path: str) -> tuple[int, int] | None:
    """Return the (primaries, transfer) of a PNG's chunk cICP, or None. Raises: BrokenParts."""
    with open(path, "rb") as file:
        data = file.read()
    for part in png_parts(data):
        if part.name == "cICP" and len(part.body) == 4:
            return part.body[0], part.body[1]
        # By the standard, cICP comes before the pixels.
        if part.name == "IDAT":
            break
    return None


def _container_nclx(path: str) -> tuple[int, int] | None:
    """Return the (primaries, transfer) of an AVIF's container or AV1 stream, which Pillow lacks; None if unreadable."""
    import av
    from av.error import FFmpegError

    try:
        with open(path, "rb") as file:
            check_file_tables(file)
        with av.open(path, format="mov", options={"protocol_whitelist": "file"}) as container:
            codec = container.streams.video[0].codec_context
            return int(codec.color_primaries), int(codec.color_trc)
    except (FFmpegError, LookupError, ValueError):
        return None
