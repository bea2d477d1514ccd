"""Video: arrays [T, H, W, C], [T, C, H, W] and [C, T, H, W] with 1, 3 or 4 channels."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...units import length
from .array_values import MAX_EXAMINED, Array, array_lines, as_array
from .image import channels_last, image_marks, scale_lines, size_text, small_image, value_scale, whole_image
from .kind import EDGE_PX, Facts, Kind, Mark, Media, mark

MAX_FRAMES = 64
"""Most frames shown, evenly spaced."""
MAX_CLIP_PX = 2**25
"""Pixels of all shown frames."""
STILL_FRAMES = 4
"""Consecutive equal frames of a frozen clip. Animations show each drawing for up to 3."""
TOLERANCE_S = 0.25
"""Accepted length difference of video and audio, because encoders fill blocks."""
TOLERANCE_FRAMES = 2
"""The same in frames, because cuts end on frames; the longer one counts."""


def as_frames(array: Array) -> Array | None:
    """Return a view [T, H, W, C], or None. Tries channels-last first."""
    if array.ndim != 4 or not array.size:
        return None
    # [C, T, H, W] becomes [T, C, H, W]; both may have the channels in front of the rows.
    for clip in (array, array.transpose(1, 0, 2, 3)):
        frame = channels_last(clip[0])
        if frame is None:
            continue
        if frame.shape == clip.shape[1:]:
            return clip
        return clip.transpose(0, 2, 3, 1)
    return None


def _clip(value: object) -> Array | None:
    array = as_array(value)
    if array is None:
        return None
    return as_frames(array)


def _frames(value: object) -> Array:
    clip = _clip(value)
    assert clip is not None  # guaranteed by `fits`
    return clip


def fits(value: Any, facts: Facts) -> bool:
    return _clip(value) is not None


def thumbnail(value: Any, facts: Facts, edge: int = EDGE_PX) -> Media:
    clip = _frames(value)
    # The middle frame: many clips begin black. The scale is the clip's, as in the detail.
    return small_image(clip[len(clip) // 2], value_scale(clip), edge)


def detail(value: Any, facts: Facts) -> tuple[Media, ...]:
    clip = _frames(value)
    scale = value_scale(clip)
    return tuple(whole_image(clip[number], scale) for number in _frame_numbers(clip))


def _frame_numbers(clip: Array) -> list[int]:
    """Return the frames that are shown, ascending."""
    frame_px = clip.shape[1] * clip.shape[2]
    n = max(1, min(MAX_FRAMES, len(clip), MAX_CLIP_PX // frame_px))
    evenly_spaced = np.linspace(0, len(clip) - 1, n).astype(int)
    numbers: list[int] = np.unique(evenly_spaced).tolist()
    return numbers


def lines(value: Any, facts: Facts) -> tuple[str, ...]:
    array = as_array(value)
    clip = _frames(value)
    assert array is not None
    summary = f"{len(clip):,} frames of {size_text(clip)}"
    if facts.rate and facts.rate > 0:
        summary += f", {length(len(clip) / facts.rate)} at {facts.rate:g} a second"
    out = [summary, *array_lines(value, array), *scale_lines(clip, value_scale(clip))]
    n_shown = len(_frame_numbers(clip))
    if n_shown < len(clip):
        out.append(f"{n_shown} of these frames are shown")
    return tuple(out)


def marks(value: Any, facts: Facts) -> tuple[Mark, ...]:
    clip = _frames(value)
    out = image_marks(clip[..., :3], value_scale(clip))
    start, n = _longest_still(clip)
    is_still = len(clip) > 1 and n == len(clip)
    if is_still or n >= max(STILL_FRAMES, len(clip) / 2):
        text = f"{n:,} of {len(clip):,} frames in a row are equal, from frame {start:,} on"
        out = (*out, mark("frozen", text))
    return out


def _longest_still(clip: Array) -> tuple[int, int]:
    """Return (first frame, number of frames) of the longest run of equal frames."""
    longest_start = start = 0
    longest = 1
    # Bounded like the other marks: a clip of gigabytes is examined at its start.
    n_examined = max(2, MAX_EXAMINED // clip[0].size)
    for number in range(1, min(len(clip), n_examined)):
        if not np.array_equal(clip[number], clip[number - 1]):
            start = number
            continue
        n = number - start + 1
        if n > longest:
            longest_start = start
            longest = n
    return longest_start, longest


VIDEO = Kind(name="video", fits=fits, lines=lines, marks=marks, thumbnail=thumbnail, detail=detail)


def length_marks(video_s: float, audio_s: Mapping[str, float], frame_s: float) -> tuple[Mark, ...]:
    """Return a mark if audio and video differ in length, in seconds. frame_s: a frame's duration."""
    tolerance_s = max(TOLERANCE_S, TOLERANCE_FRAMES * frame_s)
    differing = []
    for name, seconds in audio_s.items():
        if abs(seconds - video_s) > tolerance_s:
            differing.append(f"{name} takes {length(seconds)}")
    if not differing:
        return ()
    return (mark("lengths_differ", f"the video takes {length(video_s)}, {', '.join(differing)}"),)
