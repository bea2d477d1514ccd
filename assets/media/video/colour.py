"""Read videos' colour tags, choose the colours of their clips, and convert HDR to SDR.

8-bit SDR keeps its primaries and transfer; matrix and range become limited BT.601. Untagged video is read as limited
BT.601 with BT.709 primaries and transfer, as decoders do. Contradictory tags are refused.

HDR becomes SDR BT.709 in float32, with one curve per video. PQ or HLG (BT.2100-2, tables 4 and 5; HLG for 1000 cd/m²)
gives displayed light. The EETF (BT.2390-11, 5.4.1) on the largest of R, G and B compresses it to 203 cd/m² (BT.2408-7,
table 1). Primaries convert in linear light and clip (BT.2407-0, section 2). SDR inverts BT.1886 (gamma 2.4).
"""

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from loader.errors import DecodeFailed
from loader.modalities.video.display_matrix import frame_matrix, frame_side_data

from ..policy import VideoPolicy
from ..unit import dropped, rejected

if TYPE_CHECKING:
    from av.buffer import Buffer
    from av.video.frame import VideoFrame


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
"""Assumed peak in cd/m² if a PQ video states none."""

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
    """Peak of the mastering display in cd/m²."""


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
    luminance = weighted_rgb(scene, np.array([0.2627, 0.6780, 0.0593], scene.dtype))
    light: Floats = HLG_PEAK_CD * np.power(luminance, _HLG_GAMMA - 1)[..., None] * scene
    return light


def weighted_rgb(rgb: Floats, weights: Floats) -> Floats:
    """Return float [...]: the weighted sum of R, G and B, [..., 3].

    The order of additions is fixed: a batch has the same bytes on each node.
    """
    # BLAS is avoided because its sums depend on the processor.
    total: Floats = rgb[..., 0] * weights[0]
    total += rgb[..., 1] * weights[1]
    total += rgb[..., 2] * weights[2]
    return total


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
    """Return float32 [3, 3] from linear RGB in these primaries to BT.709. Raises: KeyError for others."""
    matrix: Floats = (np.linalg.inv(_to_xyz(1)) @ _to_xyz(primaries)).astype(np.float32)
    return matrix


def _to_xyz(primaries: int) -> Floats:
    """Return SMPTE RP 177's matrix: primaries scaled so that white is D65."""
    columns = np.array([(x / y, 1, (1 - x - y) / y) for x, y in _CHROMATICITIES[primaries]]).T
    x, y = _D65
    white = np.array([x / y, 1, (1 - x - y) / y])
    scaled: Floats = columns * np.linalg.solve(columns, white)
    return scaled


def rgb_signal(samples: npt.NDArray[np.uint16], signal: VideoSignal) -> Floats:
    """Return R'G'B' from 0 to 1, float32 [H, W, 3], from Y'CbCr shifted to 16 bits (ITU-T H.273, 38 to 46)."""
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

    By tables: about 10 ms for 456 x 256 px on one core.
    """
    codes = np.rint(rgb_signal(samples, signal) * (_CODES - 1)).astype(np.uint16)
    if signal.transfer == PQ:
        light = _pq_table()[codes]
        peak_cd = min(max(signal.peak_cd, SDR_WHITE_CD), PQ_PEAK_CD)
        # A larger code is more light, so the brightest component has the largest code.
        gain = _gain_table(peak_cd)[codes.max(axis=2)]
        linear = light * gain[..., None]
    elif signal.transfer == HLG:
        light = hlg_light(_hlg_table()[codes]) / SDR_WHITE_CD
        # The gains are by PQ code, so the light of the brightest component gets one.
        brightest = pq_signal(light.max(axis=2) * SDR_WHITE_CD)
        pq_codes = np.rint(brightest * (_CODES - 1)).astype(np.uint16)
        gain = _gain_table(HLG_PEAK_CD)[pq_codes]
        linear = light * gain[..., None]
    else:
        linear = _sdr_table()[codes]
    rows = converter(signal.primaries)
    bt709 = np.stack([weighted_rgb(linear, row) for row in rows], axis=-1)
    encoded = np.power(np.clip(bt709, 0, 1), np.float32(1 / _SDR_GAMMA))
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


def side_data(frame: "VideoFrame") -> "Mapping[str, Buffer]":
    """Return FFmpeg name -> side data. Raises: Unusable for unknown data."""
    with _refuse_errors():
        return frame_side_data(frame)


def display_matrix(frame: "VideoFrame") -> tuple[int, ...] | None:
    """Return the display matrix (a b u c d v x y w), or None. Raises: Unusable."""
    with _refuse_errors():
        return frame_matrix(frame)


@contextmanager
def _refuse_errors() -> Iterator[None]:
    try:
        yield
    except DecodeFailed as error:
        raise rejected("decode", "unknown_side_data", error) from error


# ITU-T H.273 numbers, as in FFmpeg; 2, "unspecified", is left out.
RANGES: Mapping[int, str] = {1: "tv", 2: "pc"}  # AVCOL_RANGE_*: FFmpeg's own numbers
PRIMARIES: Mapping[int, str] = {
    1: "bt709", 4: "bt470m", 5: "bt470bg", 6: "smpte170m", 7: "smpte240m", 8: "film", 9: "bt2020",
    10: "smpte428", 11: "smpte431", 12: "smpte432", 22: "ebu3213",
}  # fmt: skip
TRANSFERS: Mapping[int, str] = {
    1: "bt709", 4: "gamma22", 5: "gamma28", 6: "smpte170m", 7: "smpte240m", 8: "linear", 9: "log100",
    10: "log316", 11: "iec61966-2-4", 12: "bt1361e", 13: "iec61966-2-1", 14: "bt2020-10", 15: "bt2020-12",
    16: "smpte2084", 17: "smpte428", 18: "arib-std-b67",
}  # fmt: skip
SPACES: Mapping[int, str] = {
    0: "gbr", 1: "bt709", 4: "fcc", 5: "bt470bg", 6: "smpte170m", 7: "smpte240m", 8: "ycgco", 9: "bt2020nc",
    10: "bt2020c", 11: "smpte2085", 14: "ictcp",
}  # fmt: skip

UNTAGGED = 2
_BT709, _BT601, _BT2020 = 1, 6, 9
_MATRICES = (0, 1, 2, 4, 5, 6, 7, 9)  # matrices that FFmpeg's scaler converts; it reads any other as BT.601
_NARROW_PRIMARIES = (1, 2, 4, 5, 6, 7, 8, 22)
# SDR transfers close to a display's curve, unlike linear and logarithmic ones.
_CAMERA_CURVES = (1, 2, 4, 5, 6, 7, 11, 12, 13, 14, 15)

_HDR_TRANSFERS = (PQ, HLG)
_HDR_SIDE_DATA = ("DOVI_RPU_BUFFER", "DOVI_METADATA", "DYNAMIC_HDR_PLUS", "MASTERING_DISPLAY_METADATA")

Treatment = Literal["", "reduced", "gamut", "pq", "hlg"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """Conversion of frames to 8-bit SDR, and the clip's tags as ITU-T H.273 numbers."""

    treatment: Treatment
    """"" (unchanged), "reduced" (to 8 bits), "gamut" (wide primaries to BT.709), "pq" or "hlg" (tone-mapped)."""
    signal: VideoSignal | None
    """Input of `to_sdr`; None if it is not used."""
    primaries: int
    """Colour primaries of the clip."""
    transfer: int
    """Transfer characteristics of the clip."""
    assumed: bool
    """True if matrix, primaries or transfer are untagged."""

    @property
    def tags(self) -> tuple[str, int, int]:
        """Return the properties that must not change within a clip."""
        return self.treatment, self.primaries, self.transfer


def bit_depth(frame: "VideoFrame") -> int:
    """Return a frame's bits per component."""
    return max(component.bits for component in frame.format.components)


def is_hdr(frame: "VideoFrame") -> bool:
    """Return whether a frame's bitstream is HDR; some containers have wrong tags."""
    if int(frame.color_trc) in _HDR_TRANSFERS:
        return True
    return _has_hdr_metadata(frame) and bit_depth(frame) > 8


def frame_rendering(frame: "VideoFrame", policy: VideoPolicy) -> Rendering:
    """Return the rendering of a frame.

    Raises: Unusable (dropped) for unclear tags or colours that the policy excludes.
    """
    matrix = int(frame.colorspace)
    primaries = int(frame.color_primaries)
    transfer = int(frame.color_trc)
    bits = bit_depth(frame)
    if is_hdr(frame):
        _check_hdr(frame, policy)
        curve: Treatment = "pq" if transfer == PQ else "hlg"
        return Rendering(
            treatment=curve,
            signal=_signal(frame),
            primaries=_BT709,
            transfer=_BT709,
            assumed=False,
        )
    if bits > 8 and policy.deep == "drop":
        raise dropped(
            "probe", "bit_depth", f"{bits} bits per component; at most 8 are taken", given=bits, accepted=8
        )
    if bits > 8 and transfer == UNTAGGED and _BT2020 in (matrix, primaries):
        reason = f"{bits} bits in BT.2020 without a transfer: it may be HDR or not"
        raise dropped("probe", "hdr_untagged", reason)
    _check_sdr(matrix, primaries, transfer)
    assumed = UNTAGGED in (matrix, primaries, transfer)
    if primaries in WIDE_PRIMARIES:
        return Rendering(
            treatment="gamut",
            signal=_signal(frame),
            primaries=_BT709,
            transfer=_BT709,
            assumed=assumed,
        )
    treatment: Treatment = "reduced" if bits > 8 else ""
    if primaries == UNTAGGED:
        primaries = _BT709
    if transfer == UNTAGGED:
        transfer = _BT709
    return Rendering(
        treatment=treatment,
        signal=None,
        primaries=primaries,
        transfer=transfer,
        assumed=assumed,
    )


def _check_hdr(frame: "VideoFrame", policy: VideoPolicy) -> None:
    """Raise Unusable for an HDR frame that the policy drops, or whose tags are no known kind of HDR."""
    matrix = int(frame.colorspace)
    primaries = int(frame.color_primaries)
    transfer = int(frame.color_trc)
    bits = bit_depth(frame)
    curve = TRANSFERS.get(transfer, "untagged")
    if policy.hdr == "drop":
        raise dropped("probe", "hdr", f"HDR video (transfer {curve}); only SDR is taken")
    accepted: tuple[int, ...] = (_BT2020,)
    if transfer == PQ:
        accepted = WIDE_PRIMARIES
    if transfer in _HDR_TRANSFERS and bits > 8 and matrix == _BT2020 and primaries in accepted:
        return
    tags = (
        f"transfer {curve}, matrix {SPACES.get(matrix, 'untagged')}, primaries "
        f"{PRIMARIES.get(primaries, 'untagged')}, {bits} bits"
    )
    raise dropped(
        "probe", "hdr_unclear", f"HDR whose tags do not fit together ({tags}): its colours are not known"
    )


def _check_sdr(matrix: int, primaries: int, transfer: int) -> None:
    """Raise Unusable for tags of an SDR frame that cannot be converted."""
    if matrix not in _MATRICES:
        raise dropped(
            "probe", "matrix", f"the colour matrix {SPACES.get(matrix, matrix)} cannot be converted"
        )
    if primaries not in (*_NARROW_PRIMARIES, *WIDE_PRIMARIES):
        name = PRIMARIES.get(primaries, primaries)
        raise dropped("probe", "primaries", f"the colour primaries {name} cannot be converted")
    if transfer not in _CAMERA_CURVES:
        name = TRANSFERS.get(transfer, transfer)
        raise dropped("probe", "transfer", f"the transfer {name} cannot be shown as it is")


def _signal(frame: "VideoFrame") -> VideoSignal:
    matrix = int(frame.colorspace)
    is_rgb = matrix == 0
    if is_rgb:
        matrix = _BT2020  # the filter first converts RGB to this matrix
    elif matrix == UNTAGGED:
        matrix = _BT601
    return VideoSignal(
        matrix=matrix,
        primaries=int(frame.color_primaries),
        transfer=int(frame.color_trc),
        full_range=not is_rgb and is_full_range(frame),
        bits=bit_depth(frame),
        peak_cd=_peak_cd(frame),
    )


def is_full_range(frame: "VideoFrame") -> bool:
    """Return whether a frame's tag or pixel format means full range; untagged is limited."""
    return RANGES.get(int(frame.color_range)) == "pc" or frame.format.name.startswith("yuvj")


def _has_hdr_metadata(frame: "VideoFrame") -> bool:
    present = side_data(frame)
    return any(name in present for name in _HDR_SIDE_DATA)


def _peak_cd(frame: "VideoFrame") -> float:
    metadata = side_data(frame).get("MASTERING_DISPLAY_METADATA")
    if metadata is None:
        return ASSUMED_PEAK_CD
    # AVMasteringDisplayMetadata: ten rationals (the tenth is the peak) and two flags (the second: peak is set).
    values = struct.unpack("=22i", bytes(metadata)[:88])
    numerator = values[18]
    denominator = values[19]
    has_light = values[21]
    if has_light and numerator > 0 and denominator > 0:
        return float(numerator / denominator)
    return ASSUMED_PEAK_CD
