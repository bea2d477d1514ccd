"""Colour spaces of photos: read ICC profiles, and build them from primaries and a curve."""

import struct
from dataclasses import dataclass

import numpy as np

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
    """White point."""
    gamma: float | None = None
    """Gamma of the transfer curve; None for sRGB's curve."""


SRGB = RgbSpace(red=(0.64, 0.33), green=(0.30, 0.60), blue=(0.15, 0.06))
ADOBE_RGB = RgbSpace(red=(0.64, 0.33), green=(0.21, 0.71), blue=(0.15, 0.06), gamma=563 / 256)
"""Adobe RGB (1998), 4.3, which is DCF's optional colour space."""

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
    """Return the space of two ITU-T H.273 code points; None if they mean sRGB, are unspecified or unknown."""
    known = _PRIMARIES.get(primaries)
    gamma = _GAMMAS.get(transfer)
    if known is None and gamma is None:
        return None
    space = RgbSpace(**(known or _PRIMARIES[1]), gamma=gamma)
    return None if space == SRGB else space


def is_plausible(space: RgbSpace) -> bool:
    """Return whether a space has a plausible white point and primaries that mix to it."""
    points = (space.red, space.green, space.blue, space.white)
    if not all(0 <= x <= 1 and 0 < y <= 1 and x + y <= 1 for x, y in points):
        return False
    if not all(low <= part <= high for part, (low, high) in zip(space.white, _WHITES, strict=True)):
        return False
    columns = np.array([_xyz_of(point) for point in points[:3]]).T
    try:
        shares = np.linalg.solve(columns, _xyz_of(space.white))
    except np.linalg.LinAlgError:
        return False
    return bool((shares > 0.005).all())


def profile_of(space: RgbSpace) -> bytes:
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
    table, data = b"", b""
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
    return profile[16:20].decode("ascii", "replace").strip() if len(profile) >= 128 else ""


def transfer_of(profile: bytes) -> int | None:
    """Return the transfer in a profile's `cicp` tag (ICC.1:2022, 9.2.17); None if it has none."""
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
    columns = np.array([_xyz_of(point) for point in (space.red, space.green, space.blue)]).T
    white = _xyz_of(space.white)
    columns = columns * np.linalg.solve(columns, white)
    gain = np.diag((_BRADFORD @ _D50_XYZ) / (_BRADFORD @ white))
    adapted: np.ndarray[tuple[int, int], np.dtype[np.float64]]
    adapted = np.linalg.inv(_BRADFORD) @ gain @ _BRADFORD @ columns
    return adapted


def _xyz_of(point: Point) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
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
