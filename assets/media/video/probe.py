"""Columns of the media table that a container and its first frame tell about a video."""

import hashlib
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ..container import PacketIndex
from ..video_colour.colour import PRIMARIES, RANGES, SPACES, TRANSFERS, bit_depth, is_hdr
from ..video_colour.side_data import display_matrix

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream


def packet_facts(index: PacketIndex) -> dict[str, Any]:
    """Return the columns from one full demux."""
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
    """Return the columns from the first decoded frame, by its bitstream, else by the container."""
    turn, flipped = orientation(display_matrix(frame))
    aspect = stream.sample_aspect_ratio or Fraction(1)
    width_px, height_px = round(frame.width * aspect), frame.height
    space = SPACES.get(int(frame.colorspace))
    return {
        "codec": stream.codec_context.name,
        "profile": stream.profile,
        **_decoder_facts(stream),
        "width_px": frame.width,
        "height_px": frame.height,
        "upright_width_px": height_px if turn in (90, 270) else width_px,
        "upright_height_px": width_px if turn in (90, 270) else height_px,
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
    level = int(codec.level)
    return {
        "level": None if level == _UNKNOWN_LEVEL else level,
        "extradata_nbytes": len(extradata),
        "extradata_sha256": hashlib.sha256(extradata).hexdigest() if extradata else None,
        "field_order": _FIELD_ORDERS.get(int(codec.field_order)),
    }


def orientation(matrix: tuple[int, ...] | None) -> tuple[int, bool]:
    """Return (clockwise degrees, mirrored) that make an image with this display matrix upright.

    Degrees are 0, 90, 180 or 270; the left-right mirror comes first. matrix: as in `frame_filter.turns_of`.
    """
    if matrix is None:
        return 0, False
    a, b, c, d = (value / 65536 for value in (matrix[0], matrix[1], matrix[3], matrix[4]))
    flipped = a * d - b * c < 0
    if flipped:
        a, b = -a, -b  # undo the mirror of x
    return round(math.degrees(math.atan2(b, a)) / 90) * 90 % 360, flipped
