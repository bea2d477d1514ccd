"""Read videos' colour tags, and choose the colours of their canonical clips.

8-bit SDR keeps its primaries and transfer; only matrix and range change to limited BT.601, which encodes the same
colours. Untagged video is read as limited BT.601 with BT.709 primaries and transfer, as in common decoders. HDR, deep
colour and wide primaries are accepted only if the policy allows. Contradictory tags are refused.
"""

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from loader.errors import DecodeFailed
from loader.modalities.video.display_matrix import matrix_of, side_data_of

from ..policy import VideoPolicy
from ..unit import dropped, rejected
from .tone_map import ASSUMED_PEAK_CD, HLG, PQ, WIDE_PRIMARIES, VideoSignal

if TYPE_CHECKING:
    from av.buffer import Buffer
    from av.video.frame import VideoFrame


def side_data(frame: "VideoFrame") -> "Mapping[str, Buffer]":
    """Return FFmpeg name -> side data. Raises: Unusable for unknown data."""
    with _refused():
        return side_data_of(frame)


def display_matrix(frame: "VideoFrame") -> tuple[int, ...] | None:
    """Return the display matrix (a b u c d v x y w), or None. Raises: Unusable."""
    with _refused():
        return matrix_of(frame)


@contextmanager
def _refused() -> Iterator[None]:
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
    """"" (unchanged), "reduced" (rounded to 8 bits), "gamut" (wide primaries to BT.709), "pq" or "hlg" (tone-mapped).
    """
    signal: VideoSignal | None
    """Input of `tone_map`; None if it is not used."""
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


def rendering_of(frame: "VideoFrame", policy: VideoPolicy) -> Rendering:
    """Return the rendering of a frame.

    Raises: Unusable (dropped) if the policy excludes its colours or tags are unclear.
    """
    matrix, primaries, transfer = int(frame.colorspace), int(frame.color_primaries), int(frame.color_trc)
    bits = bit_depth(frame)
    if is_hdr(frame):
        _check_hdr(frame, policy)
        return Rendering(
            treatment="pq" if transfer == PQ else "hlg",
            signal=_signal(frame),
            primaries=_BT709,
            transfer=_BT709,
            assumed=False,
        )
    if bits > 8 and policy.deep == "drop":
        raise dropped("probe", "bit_depth", f"{bits} bits per component; at most 8 are taken")
    if bits > 8 and transfer == UNTAGGED and _BT2020 in (matrix, primaries):
        reason = f"{bits} bits in BT.2020 without a transfer: it may be HDR or not"
        raise dropped("probe", "hdr_untagged", reason)
    _check_sdr(matrix, primaries, transfer)
    assumed = UNTAGGED in (matrix, primaries, transfer)
    if primaries in WIDE_PRIMARIES:
        return Rendering(
            treatment="gamut", signal=_signal(frame), primaries=_BT709, transfer=_BT709, assumed=assumed
        )
    return Rendering(
        treatment="reduced" if bits > 8 else "",
        signal=None,
        primaries=_BT709 if primaries == UNTAGGED else primaries,
        transfer=_BT709 if transfer == UNTAGGED else transfer,
        assumed=assumed,
    )


def _check_hdr(frame: "VideoFrame", policy: VideoPolicy) -> None:
    matrix, primaries, transfer = int(frame.colorspace), int(frame.color_primaries), int(frame.color_trc)
    bits = bit_depth(frame)
    curve = TRANSFERS.get(transfer, "untagged")
    if policy.hdr == "drop":
        raise dropped("probe", "hdr", f"HDR video (transfer {curve}); only SDR is taken")
    accepted = WIDE_PRIMARIES if transfer == PQ else (_BT2020,)
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
    is_rgb = matrix == 0  # the filter first converts RGB to BT.2020's matrix
    return VideoSignal(
        matrix=_BT2020 if is_rgb else _BT601 if matrix == UNTAGGED else matrix,
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
    numerator, denominator, has_light = values[18], values[19], values[21]
    return numerator / denominator if has_light and numerator > 0 and denominator > 0 else ASSUMED_PEAK_CD
