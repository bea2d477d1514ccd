"""The `media` table: properties of every sound object, one row each, as probed and as decoded to its end.

Integers are signed. Times are integer ticks of the stream's time base `time_base_num / time_base_den` s; columns whose
names end in `_s` are derived from them. A column that does not apply to a kind, or that the file does not tell, is
null.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

Row = dict[str, Any]

_OBJECT = [
    ("key", pa.string()),
    ("sha256", pa.string()),
    ("mime", pa.string()),
    ("kind", pa.string()),  # image, video, audio, text
    ("nbytes", pa.int64()),
    ("container", pa.string()),  # FFmpeg's or Pillow's name
    ("codec", pa.string()),  # of the picture, or of the sound where there is no picture
    ("profile", pa.string()),
    ("n_streams", pa.int64()),
    ("duration_s", pa.float64()),  # from the first frame or sample to the end of the last, as decoded
    ("header_duration_s", pa.float64()),  # as announced
    ("tail_missing_s", pa.float64()),  # how much earlier than announced the packets end; never negative
]
_VIDEO = [
    ("time_base_num", pa.int64()),
    ("time_base_den", pa.int64()),
    ("start_pts", pa.int64()),
    ("end_pts", pa.int64()),  # exclusive
    ("n_packets", pa.int64()),
    ("n_discard_packets", pa.int64()),  # an edit list hides these
    ("n_keyframes", pa.int64()),
    ("max_gop_frames", pa.int64()),
    ("has_b_frames", pa.bool_()),  # some packet is shown after one that follows it in the file
    ("is_vfr", pa.bool_()),  # the gaps between frames differ by more than rounding to ticks explains
    ("min_pts_gap", pa.int64()),
    ("max_pts_gap", pa.int64()),
    ("width_px", pa.int64()),  # as stored
    ("height_px", pa.int64()),
    ("upright_width_px", pa.int64()),  # as seen: turned, with square pixels
    ("upright_height_px", pa.int64()),
    ("sar_num", pa.int64()),
    ("sar_den", pa.int64()),
    ("rotation_deg", pa.int64()),  # clockwise turn that makes the stored picture upright, after the flip
    ("is_flipped", pa.bool_()),  # the stored picture is mirrored left to right
    ("pix_fmt", pa.string()),
    ("bit_depth", pa.int64()),
    ("colour_range", pa.string()),  # the four as tagged, null where the file does not say
    ("colour_primaries", pa.string()),
    ("colour_trc", pa.string()),
    ("colour_space", pa.string()),
    ("colour_assumed", pa.bool_()),  # no matrix is tagged: read as BT.601, as every common decoder does
    ("hdr", pa.bool_()),
    ("n_frames_decoded", pa.int64()),
    ("n_corrupt", pa.int64()),
    ("n_pts_backward", pa.int64()),
    ("n_pts_dup", pa.int64()),
    # random frames came back bit for bit after a seek; null where nothing was sought
    ("seek_ok", pa.bool_()),
    ("luma_mean", pa.float64()),  # full range, 0 to 255
    ("black_ratio", pa.float64()),  # share of frames
    ("frozen_ratio", pa.float64()),  # share of frames equal to the one before
    ("motion", pa.float64()),  # mean absolute difference between neighbouring frames, in levels of 255
    ("level", pa.int64()),  # the codec's own number: 31 is H.264's 3.1
    ("extradata_nbytes", pa.int64()),  # what a decoder needs to begin; 0 where it lies in the packets
    ("extradata_sha256", pa.string()),
    ("field_order", pa.string()),  # progressive; or tt, bb, tb, bt: field stored first, field shown first
    ("interlaced_ratio", pa.float64()),  # share of frames that are marked as two fields
    ("scene_cuts", pa.list_(pa.int64())),  # pts of the first frame of every shot but the first
    ("sharpness", pa.float64()),  # variance of the Laplacian at 512 x 288, mean of every twelfth frame
    ("keyframe_hashes", pa.list_(pa.string())),  # 64 bits in hex; at most 64 keyframes, evenly spread
    ("keyframe_pts", pa.list_(pa.int64())),  # theirs
    ("letterbox_ratio", pa.float64()),  # share of the height at top and bottom that is always black
    ("pillarbox_ratio", pa.float64()),  # of the width, left and right
    ("audio_error", pa.string()),  # why a video's sound is not used; its columns are null then
]
_AUDIO = [
    ("audio_codec", pa.string()),
    ("sample_rate_hz", pa.int64()),
    ("channels", pa.int64()),
    ("channel_layout", pa.string()),
    ("n_samples", pa.int64()),  # per channel, as decoded
    ("audio_duration_s", pa.float64()),
    ("audio_offset_s", pa.float64()),  # how much later than the picture the sound begins
    ("clipped_ratio", pa.float64()),  # share of samples at full scale
    ("silence_ratio", pa.float64()),  # share of 20 ms windows below -60 dBFS
    ("n_gap_samples", pa.int64()),  # silent ones, put where the timestamps leave a gap
    ("n_overlap_samples", pa.int64()),  # left out where another is heard at that time
    ("n_padding_samples", pa.int64()),  # left out at the end, where the file says that its sound is shorter
    # integrated, EBU R128; null below its gate, and for sound it does not measure
    ("loudness_lufs", pa.float64()),
    ("loudness_range_lu", pa.float64()),  # EBU Tech 3342
    ("true_peak_dbtp", pa.float64()),  # null for digital silence
    ("mono_sum_db", pa.float64()),  # of two channels: power of their mean against the mean of their powers
    ("mono_cancels", pa.bool_()),  # that is below -10 dB: added up they go silent
]
_IMAGE = [
    ("image_mode", pa.string()),
    ("exif_orientation", pa.int64()),  # 1 to 8; null without, or with a number that means nothing
    ("has_icc", pa.bool_()),
    ("has_alpha", pa.bool_()),
    ("is_animated", pa.bool_()),
    ("has_gps", pa.bool_()),
    ("xmp_orientation", pa.int64()),  # as in EXIF; where the two contradict, EXIF decides
    # exif, xmp or container: which of them decided; null where none says anything
    ("orientation_by", pa.string()),
    # what names the colour space: icc, icc_unusable, code_points, gamma, exif, lab, ...
    ("colour_by", pa.string()),
    ("decode_warning", pa.string()),  # of libjpeg, where the pixels may all be right
]
_TEXT = [("n_documents", pa.int64()), ("n_chars", pa.int64())]

MEDIA = pa.schema(_OBJECT + _VIDEO + _AUDIO + _IMAGE + _TEXT)


def media_row(facts: Mapping[str, Any]) -> Row:
    """Return one row with every column of `MEDIA`, null where `facts` has nothing.

    Raises: KeyError (no such column).
    """
    unknown = set(facts) - set(MEDIA.names)
    if unknown:
        raise KeyError(f"not columns of the media table: {sorted(unknown)}")
    return {name: facts.get(name) for name in MEDIA.names}
