"""Convert HDR and wide-gamut frames to SDR BT.709 by the ITU's formulas, in float32.

1. Compute the displayed light of PQ (ITU-R BT.2100-2, table 4) or HLG (table 5, for a display of 1000 cd/m²).
2. Compress highlights to 203 cd/m², HDR's diffuse white (BT.2408-7, table 1), by the EETF (BT.2390-11, 5.4.1) on the
   largest of R, G and B, which keeps the hue.
3. Convert primaries in linear light; colours outside BT.709 clip (BT.2407-0, section 2).
4. Encode SDR with a white of 203 cd/m² and a black of 0 by inverting BT.1886 (gamma 2.4).

All frames of a video use one curve.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]

LUMA: Mapping[int, tuple[float, float]] = {  # ITU-T H.273, table 4: Kr, Kb
    1: (0.2126, 0.0722),
    4: (0.30, 0.11),
    5: (0.299, 0.114),
    6: (0.299, 0.114),
    7: (0.212, 0.087),
    9: (0.2627, 0.0593),
}

SDR_WHITE_CD = 203.0
PQ_PEAK_CD = 10_000.0
HLG_PEAK_CD = 1_000.0
ASSUMED_PEAK_CD = 1_000.0
"""Mastering display's assumed peak in cd/m² if a PQ video states none."""

_M1, _M2 = 2610 / 16384, 2523 / 4096 * 128
_C1, _C2, _C3 = 3424 / 4096, 2413 / 4096 * 32, 2392 / 4096 * 32
_A = 0.17883277
_B, _C = 1 - 4 * _A, 0.5 - _A * np.log(4 * _A)
_HLG_GAMMA = 1.2
_SDR_GAMMA = 2.4

_CODES = 2**16  # entries per table: signals are looked up at 16 bits

_D65 = (0.3127, 0.3290)
_CHROMATICITIES: Mapping[int, tuple[tuple[float, float], ...]] = {  # ITU-T H.273, table 2: red, green, blue
    1: ((0.640, 0.330), (0.300, 0.600), (0.150, 0.060)),  # BT.709
    9: ((0.708, 0.292), (0.170, 0.797), (0.131, 0.046)),  # BT.2020
    12: ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060)),  # P3 with D65
}
WIDE_PRIMARIES = (9, 12)
PQ, HLG = 16, 18  # transfer characteristics of ITU-T H.273


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoSignal:
    """Encoding of a frame's samples, in ITU-T H.273 numbers."""

    matrix: int
    """Matrix coefficients."""
    primaries: int
    """Colour primaries."""
    transfer: int
    """Transfer characteristics: PQ or HLG; any other is SDR."""
    full_range: bool
    """True for full range, False for limited."""
    bits: int
    """Bits per sample before the shift to 16."""
    peak_cd: float = ASSUMED_PEAK_CD
    """Peak of a PQ video's mastering display in cd/m²."""


def pq_light(signal: Floats) -> Floats:
    """Return a PQ signal's light in cd/m² (the EOTF). signal: 0 to 1."""
    power = np.power(np.clip(signal, 0, 1), 1 / _M2)
    light: Floats = PQ_PEAK_CD * np.power(np.maximum(power - _C1, 0) / (_C2 - _C3 * power), 1 / _M1)
    return light


def pq_signal(light_cd: Floats | np.float64) -> Floats:
    """Return the PQ signal of light in cd/m², the inverse of `pq_light`."""
    power = np.power(np.clip(light_cd / PQ_PEAK_CD, 0, 1), _M1)
    signal: Floats = np.power((_C1 + _C2 * power) / (1 + _C3 * power), _M2)
    return signal


def hlg_scene(signal: Floats) -> Floats:
    """Return an HLG signal's scene light, 0 to 1 (the inverse OETF)."""
    signal = np.clip(signal, 0, 1)
    bright = (np.exp((np.maximum(signal, 0.5) - _C) / _A) + _B) / 12
    scene: Floats = np.where(signal <= 0.5, signal**2 / 3, bright)
    return scene


def hlg_light(scene: Floats) -> Floats:
    """Return scene light [..., 3] in BT.2020 primaries as cd/m² on a 1000 cd/m² display (the OOTF)."""
    luminance = scene @ np.array([0.2627, 0.6780, 0.0593], scene.dtype)
    light: Floats = HLG_PEAK_CD * np.power(luminance, _HLG_GAMMA - 1)[..., None] * scene
    return light


def eetf(light_cd: Floats, peak_cd: float, white_cd: float = SDR_WHITE_CD) -> Floats:
    """Map light from a display of `peak_cd` to one of `white_cd`, both with a black of 0 (the EETF)."""
    if peak_cd <= white_cd:
        return np.minimum(light_cd, white_cd)
    top = pq_signal(np.float64(peak_cd))
    source = np.clip(pq_signal(light_cd) / top, 0, 1)
    peak = float(pq_signal(np.float64(white_cd)) / top)
    knee = 1.5 * peak - 0.5
    t = np.clip((source - knee) / (1 - knee), 0, 1)
    spline = (
        (2 * t**3 - 3 * t**2 + 1) * knee + (t**3 - 2 * t**2 + t) * (1 - knee) + (-2 * t**3 + 3 * t**2) * peak
    )
    return pq_light(np.where(source < knee, source, spline) * top)


def converter(primaries: int) -> Floats:
    """Return float32 [3, 3] from linear RGB in these primaries to BT.709. Raises: KeyError for unknown primaries."""
    matrix: Floats = (np.linalg.inv(_to_xyz(1)) @ _to_xyz(primaries)).astype(np.float32)
    return matrix


def _to_xyz(primaries: int) -> Floats:
    """Return SMPTE RP 177's matrix, whose columns are primaries scaled so that white is D65."""
    columns = np.array([(x / y, 1, (1 - x - y) / y) for x, y in _CHROMATICITIES[primaries]]).T
    x, y = _D65
    white = np.array([x / y, 1, (1 - x - y) / y])
    scaled: Floats = columns * np.linalg.solve(columns, white)
    return scaled


def rgb_signal(samples: npt.NDArray[np.uint16], signal: VideoSignal) -> Floats:
    """Return R'G'B' from 0 to 1, float32 [H, W, 3], from Y'CbCr shifted to 16 bits.

    Inverts ITU-T H.273's equations 38 to 46.
    """
    kr, kb = LUMA[signal.matrix]
    if signal.full_range:
        top = (1 << 16) - (1 << 16 - signal.bits)
        luma = samples[..., 0].astype(np.float32) / top
        chroma = (samples[..., 1:].astype(np.float32) - (128 << 8)) / top
    else:
        luma = (samples[..., 0].astype(np.float32) - (16 << 8)) / (219 << 8)
        chroma = (samples[..., 1:].astype(np.float32) - (128 << 8)) / (224 << 8)
    rgb = np.empty_like(samples, np.float32)
    rgb[..., 0] = luma + 2 * (1 - kr) * chroma[..., 1]
    rgb[..., 2] = luma + 2 * (1 - kb) * chroma[..., 0]
    rgb[..., 1] = (luma - kr * rgb[..., 0] - kb * rgb[..., 2]) / (1 - kr - kb)
    return np.clip(rgb, 0, 1, out=rgb)


def to_sdr(samples: npt.NDArray[np.uint16], signal: VideoSignal) -> npt.NDArray[np.uint16]:
    """Convert Y'CbCr 4:4:4 shifted to 16 bits, uint16 [H, W, 3], to full-range 16-bit SDR BT.709 R'G'B'.

    Uses lookup tables: about 10 ms for 456 x 256 px on one core.
    """
    codes = np.rint(rgb_signal(samples, signal) * (_CODES - 1)).astype(np.uint16)
    if signal.transfer == PQ:
        light = _pq_table()[codes]
        gain = _gain_table(min(max(signal.peak_cd, SDR_WHITE_CD), PQ_PEAK_CD))[codes.max(axis=2)]
        linear = light * gain[..., None]
    elif signal.transfer == HLG:
        light = hlg_light(_hlg_table()[codes]) / SDR_WHITE_CD
        brightest = pq_signal(light.max(axis=2) * SDR_WHITE_CD)
        gain = _gain_table(HLG_PEAK_CD)[np.rint(brightest * (_CODES - 1)).astype(np.uint16)]
        linear = light * gain[..., None]
    else:
        linear = _sdr_table()[codes]
    linear = linear @ converter(signal.primaries).T
    encoded = np.power(np.clip(linear, 0, 1), np.float32(1 / _SDR_GAMMA))
    rgb: npt.NDArray[np.uint16] = np.rint(encoded * 65535).astype(np.uint16)
    return rgb


def _every_code() -> Floats:
    codes: Floats = np.arange(_CODES, dtype=np.float64) / (_CODES - 1)
    return codes


@cache
def _pq_table() -> Floats:
    table: Floats = (pq_light(_every_code()) / SDR_WHITE_CD).astype(np.float32)
    return table


@cache
def _hlg_table() -> Floats:
    table: Floats = hlg_scene(_every_code()).astype(np.float32)
    return table


@cache
def _sdr_table() -> Floats:
    table: Floats = (_every_code() ** _SDR_GAMMA).astype(np.float32)
    return table


@cache
def _gain_table(peak_cd: float) -> Floats:
    """Return PQ code of the largest component -> factor for the light."""
    light = pq_light(_every_code())
    table: Floats = np.ones(_CODES, np.float32)
    table[1:] = eetf(light[1:], peak_cd) / light[1:]
    return table
