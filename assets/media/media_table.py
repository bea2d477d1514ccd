"""The `media` table: a row of measurements per healthy object; null does not apply, or is not stated.

Times are ticks of `time_base_num / time_base_den` s, from which columns ending in `_s` derive.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

Row = dict[str, Any]

_OBJECT = [
    ("key", pa.string(), "name of the object at its source"),
    ("sha256", pa.string(), "SHA-256 of its bytes, in hex"),
    ("mime", pa.string(), "type, by content"),
    ("kind", pa.string(), "image, video, audio or text"),
    ("nbytes", pa.int64(), "size of the object in bytes"),
    ("container", pa.string(), "FFmpeg's or Pillow's name of the container"),
    ("codec", pa.string(), "codec of the video or image; of the audio where there is neither"),
    ("profile", pa.string(), "profile of the codec, as FFmpeg names it"),
    ("n_streams", pa.int64(), "streams in the container"),
    ("duration_s", pa.float64(), "from the first frame or sample to the end of the last, as decoded"),
    ("header_duration_s", pa.float64(), "duration as announced"),
    (
        "tail_missing_s",
        pa.float64(),
        "seconds by which the packets end before the announced duration, from 0",
    ),
]
_VIDEO = [
    ("time_base_num", pa.int64(), "numerator of the time base: seconds per tick"),
    ("time_base_den", pa.int64(), "denominator of the time base"),
    ("start_pts", pa.int64(), "time of the first frame, in ticks"),
    ("end_pts", pa.int64(), "end of the last frame, in ticks, exclusive"),
    ("n_packets", pa.int64(), "packets of the video"),
    ("n_discard_packets", pa.int64(), "packets that an edit list hides"),
    ("n_keyframes", pa.int64(), "keyframes of the video"),
    ("max_gop_frames", pa.int64(), "most frames from one keyframe to the next"),
    ("has_b_frames", pa.bool_(), "some packet is shown after one that follows it in the file"),
    ("is_vfr", pa.bool_(), "the gaps between frames differ by more than rounding to ticks explains"),
    ("min_pts_gap", pa.int64(), "smallest gap between frames, in ticks"),
    ("max_pts_gap", pa.int64(), "largest gap between frames, in ticks"),
    ("width_px", pa.int64(), "as stored"),
    ("height_px", pa.int64(), "as stored"),
    ("upright_width_px", pa.int64(), "as seen: turned, with square pixels"),
    ("upright_height_px", pa.int64(), "as seen"),
    ("sar_num", pa.int64(), "numerator of a pixel's width against its height"),
    ("sar_den", pa.int64(), "denominator of a pixel's width against its height"),
    ("rotation_deg", pa.int64(), "clockwise turn that makes the stored frames upright, after the flip"),
    ("is_flipped", pa.bool_(), "the stored frames are mirrored left to right"),
    ("pix_fmt", pa.string(), "pixel format, as FFmpeg names it"),
    ("bit_depth", pa.int64(), "bits per component"),
    ("colour_range", pa.string(), "range as tagged, null if untagged"),
    ("colour_primaries", pa.string(), "as tagged, null if untagged"),
    ("colour_trc", pa.string(), "transfer characteristic as tagged, null if untagged"),
    ("colour_space", pa.string(), "matrix as tagged, null if untagged"),
    ("colour_assumed", pa.bool_(), "no matrix is tagged: read as BT.601, as every common decoder does"),
    ("hdr", pa.bool_(), "the video has a high dynamic range"),
    ("n_frames_decoded", pa.int64(), "frames that were decoded"),
    ("n_corrupt", pa.int64(), "frames that the decoder marked as corrupt"),
    ("n_pts_backward", pa.int64(), "frames whose time lies before the previous frame's"),
    ("n_pts_dup", pa.int64(), "frames with the previous frame's time"),
    ("seek_ok", pa.bool_(), "random frames came back bit for bit after a seek; null without a seek"),
    ("luma_mean", pa.float64(), "mean luma, full range, 0 to 255"),
    ("black_ratio", pa.float64(), "share of black frames"),
    ("flat_ratio", pa.float64(), "share of frames that show one level; 0 or 1 for a photo"),
    ("frozen_ratio", pa.float64(), "share of frames equal to the previous one"),
    ("motion", pa.float64(), "mean absolute difference between neighbouring frames, in levels of 255"),
    ("level", pa.int64(), "the codec's own number: 31 is H.264's level 3.1"),
    ("extradata_nbytes", pa.int64(), "decoder setup in the header; 0 if it is in the packets"),
    ("extradata_sha256", pa.string(), "SHA-256 of extradata, in hex"),
    ("field_order", pa.string(), "progressive; or tt, bb, tb, bt: field stored first, field shown first"),
    ("interlaced_ratio", pa.float64(), "share of frames that are marked as two fields"),
    ("scene_cuts", pa.list_(pa.int64()), "pts of the first frame of every shot but the first"),
    ("sharpness", pa.float64(), "variance of the Laplacian at 512 x 288, mean of every twelfth frame"),
    ("keyframe_hashes", pa.list_(pa.string()), "64 bits in hex; at most 64 keyframes, evenly spread"),
    ("keyframe_pts", pa.list_(pa.int64()), "times of the hashed keyframes, in ticks"),
    ("letterbox_ratio", pa.float64(), "share of the height at top and bottom that is always black"),
    ("pillarbox_ratio", pa.float64(), "share of the width at left and right that is always black"),
    ("audio_error", pa.string(), "why a video's audio is not used; the other audio columns are then null"),
]
_AUDIO = [
    ("audio_codec", pa.string(), "codec of the audio"),
    ("sample_rate_hz", pa.int64(), "samples per second and channel"),
    ("channels", pa.int64(), "channels of the audio"),
    ("channel_layout", pa.string(), "layout of the channels, as FFmpeg names it"),
    ("n_samples", pa.int64(), "samples per channel, as decoded"),
    ("audio_duration_s", pa.float64(), "duration of the audio, as decoded"),
    ("audio_offset_s", pa.float64(), "seconds from the first frame to the first audio sample"),
    ("clipped_ratio", pa.float64(), "share of samples at full scale"),
    ("silence_ratio", pa.float64(), "share of 20 ms windows below -60 dBFS"),
    ("amplitude_range", pa.float64(), "largest minus smallest sample; full scale is 2"),
    ("n_gap_samples", pa.int64(), "silent samples inserted where the timestamps leave a gap"),
    ("n_overlap_samples", pa.int64(), "samples left out because others have the same time"),
    (
        "n_padding_samples",
        pa.int64(),
        "samples left out at the end, because the file states a shorter audio",
    ),
    (
        "loudness_lufs",
        pa.float64(),
        "integrated, EBU R128; null below its gate, and for layouts or rates that it cannot measure",
    ),
    ("loudness_range_lu", pa.float64(), "loudness range, EBU Tech 3342"),
    ("true_peak_dbtp", pa.float64(), "true peak; null for digital silence"),
    ("mono_sum_db", pa.float64(), "for two channels: power of their mean against the mean of their powers"),
    ("mono_cancels", pa.bool_(), "mono_sum_db is below -10: the channels added up go silent"),
]
_IMAGE = [
    ("image_mode", pa.string(), "mode of the image, as Pillow names it"),
    ("exif_orientation", pa.int64(), "1 to 8; null if missing or invalid"),
    ("has_icc", pa.bool_(), "the image has an ICC profile"),
    ("has_alpha", pa.bool_(), "the image has transparency"),
    ("is_animated", pa.bool_(), "the image has several frames"),
    ("has_gps", pa.bool_(), "the photo has coordinates"),
    ("xmp_orientation", pa.int64(), "orientation in XMP, 1 to 8; EXIF decides if both differ"),
    (
        "orientation_by",
        pa.string(),
        "exif, xmp or container: the one that decided; null without any",
    ),
    (
        "colour_by",
        pa.string(),
        "source of the colour space: icc, icc_unusable, code_points, gamma, exif, lab, ...",
    ),
    ("decode_warning", pa.string(), "warning of libjpeg, although all pixels may be right"),
]
_TEXT = [
    ("n_documents", pa.int64(), "documents in the text"),
    ("n_chars", pa.int64(), "characters of the text"),
]
_COLUMNS = _OBJECT + _VIDEO + _AUDIO + _IMAGE + _TEXT

MEDIA = pa.schema([(name, kind) for name, kind, _ in _COLUMNS])
MEDIA_TEXTS: Mapping[str, str] = {name: text for name, _, text in _COLUMNS}
"""Column -> description for Dagster's pages."""


def media_row(facts: Mapping[str, Any]) -> Row:
    """Return a row with every column of `MEDIA`, null if missing. Raises: KeyError for others."""
    unknown = set(facts) - set(MEDIA.names)
    if unknown:
        raise KeyError(f"not columns of the media table: {sorted(unknown)}")
    return {name: facts.get(name) for name in MEDIA.names}
