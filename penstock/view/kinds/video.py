"""Video: arrays [T, H, W, C], [T, C, H, W] and [C, T, H, W] with 1, 3 or 4 channels."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...units import length
from .array_values import MAX_EXAMINED, Array, array_lines, as_array
from .image import channels_last, image_marks, scale_lines, scale_of, size_of, small_image, whole_image
from .kind import EDGE_PX, Facts, Kind, Mark, Media, mark

MAX_FRAMES = 64
"""Most frames shown, evenly spaced."""
MAX_CLIP_PX = 2**25
"""Pixels of all shown frames."""
STILL_FRAMES = 4
"""Consecutive equal frames of a frozen clip. Animations show each drawing for up to 3."""
TOLERANCE_S, TOLERANCE_FRAMES = 0.25, 2
"""Accepted length difference of video and audio: encoders fill blocks, and cuts end on frames."""


def frames_of(array: Array) -> Array | None:
    """Return a view [T, H, W, C], or None. Tries channels-last first."""
    if array.ndim != 4 or not array.size:
        return None
    for clip in (array, array.transpose(1, 0, 2, 3)):
        frame = channels_last(clip[0])
        if frame is not None:
            return clip if frame.shape == clip.shape[1:] else clip.transpose(0, 2, 3, 1)
    return None


def _clip(value: object) -> Array | None:
    array = as_array(value)
    return None if array is None else frames_of(array)


def _frames(value: object) -> Array:
    clip = _clip(value)
    assert clip is not None  # guaranteed by `fits`
    return clip


def fits(value: Any, facts: Facts) -> bool:
    return _clip(value) is not None


def thumbnail(value: Any, facts: Facts, edge: int = EDGE_PX) -> Media:
    clip = _frames(value)
    return small_image(clip[len(clip) // 2], scale_of(clip), edge)


def detail(value: Any, facts: Facts) -> tuple[Media, ...]:
    clip = _frames(value)
    scale = scale_of(clip)
    return tuple(whole_image(clip[at], scale) for at in _chosen(clip))


def _chosen(clip: Array) -> list[int]:
    most = max(1, min(MAX_FRAMES, MAX_CLIP_PX // (clip.shape[1] * clip.shape[2])))
    chosen: list[int] = np.unique(np.linspace(0, len(clip) - 1, min(most, len(clip))).astype(int)).tolist()
    return chosen


def lines(value: Any, facts: Facts) -> tuple[str, ...]:
    array, clip = as_array(value), _frames(value)
    assert array is not None
    seconds = (
        f", {length(len(clip) / facts.rate)} at {facts.rate:g} a second"
        if facts.rate and facts.rate > 0
        else ""
    )
    shown = len(_chosen(clip))
    fewer = (f"{shown} of these frames are shown",) if shown < len(clip) else ()
    head = f"{len(clip):,} frames of {size_of(clip)}{seconds}"
    return head, *array_lines(value, array), *scale_lines(clip, scale_of(clip)), *fewer


def marks(value: Any, facts: Facts) -> tuple[Mark, ...]:
    clip = _frames(value)
    out = image_marks(clip[..., :3], scale_of(clip))
    start, n = _still(clip)
    if n == len(clip) > 1 or n >= max(STILL_FRAMES, len(clip) / 2):
        out = (
            *out,
            mark("frozen", f"{n:,} of {len(clip):,} frames in a row are equal, from frame {start:,} on"),
        )
    return out


def _still(clip: Array) -> tuple[int, int]:
    best, start = (0, 1), 0
    n_examined = max(2, MAX_EXAMINED // clip[0].size)
    for at in range(1, min(len(clip), n_examined)):
        if not np.array_equal(clip[at], clip[at - 1]):
            start = at
        elif at - start + 1 > best[1]:
            best = start, at - start + 1
    return best


VIDEO = Kind(name="video", fits=fits, lines=lines, marks=marks, thumbnail=thumbnail, detail=detail)


def length_marks(video_s: float, audio_s: Mapping[str, float], frame_s: float) -> tuple[Mark, ...]:
    """Return a mark if audio and video differ in length, in seconds. frame_s: a frame's duration."""
    apart = [
        f"{name} takes {length(seconds)}"
        for name, seconds in audio_s.items()
        if abs(seconds - video_s) > max(TOLERANCE_S, TOLERANCE_FRAMES * frame_s)
    ]
    if not apart:
        return ()
    return (mark("lengths_differ", f"the video takes {length(video_s)}, {', '.join(apart)}"),)
