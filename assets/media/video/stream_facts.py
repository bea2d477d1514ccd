"""Media columns that a video's index and first frame give."""

import hashlib
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ..container import PacketIndex
from .colour import PRIMARIES, RANGES, SPACES, TRANSFERS, bit_depth, display_matrix, is_hdr

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream


def packet_facts(index: PacketIndex) -> dict[str, Any]:
    """Return the media columns from a packet index."""
    return {
        "time_base_num": index.time_base[0],
        "time_base_den": index.time_base[1],
        "n_packets": index.n_packets,
        "n_discard_packets": index.n_discard,
        "n_keyframes": index.n_keyframes,
        "max_gop_frames": index.max_gop_frames,
        "has_b_frames": index.has_b_frames,
        "tail_missing_s": index.tail_missing_s,
    }


def frame_facts(stream: "VideoStream", frame: "VideoFrame") -> dict[str, Any]:
    """Return the media columns from the first decoded frame."""
    turn, flipped = orientation(display_matrix(frame))
    aspect = stream.sample_aspect_ratio or Fraction(1)
    width_px = round(frame.width * aspect)
    height_px = frame.height
    if turn in (90, 270):
        width_px, height_px = height_px, width_px
    space = SPACES.get(int(frame.colorspace))
    return {
        "codec": stream.codec_context.name,
        "profile": stream.profile,
        **_decoder_facts(stream),
        "width_px": frame.width,
        "height_px": frame.height,
        "upright_width_px": width_px,
        "upright_height_px": height_px,
        "sar_num": aspect.numerator,
        "sar_den": aspect.denominator,
        "rotation_deg": turn,
        "is_flipped": flipped,
        "pix_fmt": frame.format.name,
        "bit_depth": bit_depth(frame),
        "colour_range": RANGES.get(int(frame.color_range)),
        "colour_primaries": PRIMARIES.get(int(frame.color_primaries)),
        "colour_trc": TRANSFERS.get(int(frame.color_trc)),
        "colour_space": space,
        "colour_assumed": space is None,
        "hdr": is_hdr(frame),
    }


_FIELD_ORDERS = {1: "progressive", 2: "tt", 3: "bb", 4: "tb", 5: "bt"}  # AVFieldOrder
_UNKNOWN_LEVEL = -99  # AV_LEVEL_UNKNOWN


def _decoder_facts(stream: "VideoStream") -> dict[str, Any]:
    codec = stream.codec_context
    extradata = codec.extradata or b""
    level: int | None = int(codec.level)
    if level == _UNKNOWN_LEVEL:
        level = None
    digest = None
    if extradata:
        digest = hashlib.sha256(extradata).hexdigest()
    return {
        "level": level,
        "extradata_nbytes": len(extradata),
        "extradata_sha256": digest,
        "field_order": _FIELD_ORDERS.get(int(codec.field_order)),
    }


def orientation(matrix: tuple[int, ...] | None) -> tuple[int, bool]:
    """Return (clockwise degrees 0, 90, 180 or 270, whether to mirror before) that make an image upright."""
    if matrix is None:
        return 0, False
    a, b, c, d = matrix[0], matrix[1], matrix[3], matrix[4]
    flipped = a * d - b * c < 0
    if flipped:
        # undo mirrored x
        a = -a
        b = -b
    degrees = math.degrees(math.atan2(b, a))
    quarters = round(degrees / 90)
    return quarters * 90 % 360, flipped
