"""Colour as a video is tagged, and the refusal of what 8-bit SDR samples would show wrong."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .unit import dropped

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

# Numbers of ITU-T H.273, which FFmpeg uses; 2 is "unspecified" there and told as None here.
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

_HDR_TRANSFERS = (16, 18)  # PQ and HLG
_HDR_SIDE_DATA = ("DOVI_RPU_BUFFER", "DOVI_METADATA", "DYNAMIC_HDR_PLUS", "MASTERING_DISPLAY_METADATA")


def bit_depth(frame: "VideoFrame") -> int:
    """Bits per component of a decoded frame."""
    return max(component.bits for component in frame.format.components)


def is_hdr(frame: "VideoFrame") -> bool:
    """Whether the frame's bitstream says HDR: PQ, HLG, or HDR10 or Dolby Vision metadata beside 10 bits.

    The decoded frame is asked, not the container, whose tags are wrong in some files.
    """
    if int(frame.color_trc) in _HDR_TRANSFERS:
        return True
    marked = any(name in frame.side_data for name in _HDR_SIDE_DATA)
    return marked and bit_depth(frame) > 8


def refuse_deep(frame: "VideoFrame") -> None:
    """Raises: Unusable for HDR, and for more than 8 bits: neither may be squeezed into 8-bit SDR unasked."""
    if is_hdr(frame):
        curve = TRANSFERS.get(int(frame.color_trc), "untagged")
        raise dropped("probe", "hdr", f"HDR video (transfer {curve}); only SDR is taken")
    if bit_depth(frame) > 8:
        raise dropped("probe", "bit_depth", f"{bit_depth(frame)} bits per component; at most 8 are taken")
