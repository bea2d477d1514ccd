"""Find hard cuts: frames that differ far more from the previous frame than nearby frames do.

The scene is not merely moved, relit or dimmed (best correlation over small shifts), and does not return within 1/3 s
(a flash).
"""

from collections.abc import Iterator

import numpy as np

from .fades import FLAT_STD, SAME_SCENE
from .frame_levels import Floats, Frames, Whole, levels_apart
from .shifted_correlation import best_correlation, best_correlations

_NEAR = 6  # frames on each side to compare a change with
_FLASH = 8  # a change undone within so many frames is a flash: 1/3 s at 25 frames/s
_CUT_LEVELS = 5.0  # least mean difference of a cut's pixels
_CUT_RATIO = 2.2  # least ratio of a cut's difference to the mean on its busier side
_CUT_HISTOGRAM = 0.15  # least share of pixels whose level changed
_CUT_HARD_LEVELS = 30.0  # difference that suffices even if the histogram is unchanged
_LEVELS_PER_BIN = 8  # of the histograms
_UNDONE = 0.85  # lowest correlation of an undone change


def hard_cuts(
    frames: Frames,
    std: Floats,
    change: Whole,
    begin: int,
    end: int,
) -> Iterator[int]:
    """Yield the positions in [begin, end) at which a hard cut starts a shot.

    frames: uint8 [n, height, width], with the context of the positions. std, change: as in `Levels`, for each frame.
    """
    mean_change = change / frames[0].size  # float64 [n]: mean difference of a pixel, in levels
    is_candidate = mean_change[begin:end] >= _CUT_LEVELS  # bool [end - begin]
    candidates = np.flatnonzero(is_candidate) + begin
    for position in candidates.tolist():
        if _is_cut(frames, std, mean_change, position):
            yield position


def _is_cut(
    frames: Frames,
    std: Floats,
    mean_change: Floats,
    position: int,
) -> bool:
    """Return whether a shot begins at a frame. std, mean_change: float [frames]."""
    # The cheap tests come first: of a video's frames, few need the correlations.
    lower_std = min(std[position - 1], std[position])
    if lower_std < FLAT_STD:
        return False  # to or from a flat colour: handled as a fade
    usual = _busier_side(mean_change, position)
    if mean_change[position] < _CUT_RATIO * usual:
        return False

    last = frames[position - 1]  # of the shot that may end
    first = frames[position]  # of the shot that may begin
    if not _is_new_scene(last, first):
        return False

    begin_before = max(0, position - _FLASH)
    frames_before = frames[begin_before : position - 1]
    frames_after = frames[position + 1 : position + _FLASH]
    # In a flash, the old scene returns, or the new one was there shortly before.
    is_flash = _matches_any(last, frames_after) or _matches_any(first, frames_before)
    return not is_flash


def _busier_side(mean_change: Floats, position: int) -> float:
    """Return the larger of the mean changes shortly before and shortly after a position; 0 without neighbours."""
    # From 1: frame 0 has no previous frame, so its change of 0 would dilute the mean.
    begin = max(1, position - _NEAR)
    before = mean_change[begin:position]
    next_position = position + 1
    end = next_position + _NEAR
    after = mean_change[next_position:end]

    busier = 0.0
    for side in (before, after):
        if len(side):
            mean = float(side.mean())
            busier = max(busier, mean)
    return busier


def _is_new_scene(last: Frames, first: Frames) -> bool:
    """Return whether two frames show different scenes, also if the camera moved between them."""
    # A correlation over 35 shifts costs more than the histograms and the difference.
    difference = _histogram(last) - _histogram(first)
    n_differences = int(np.abs(difference).sum())
    n_changed = n_differences / 2  # a changed pixel counts in two bins
    share = n_changed / last.size
    if share < _CUT_HISTOGRAM and levels_apart(last, first) < _CUT_HARD_LEVELS:
        return False
    return best_correlation(last, first) < SAME_SCENE


def _histogram(frame: Frames) -> Whole:
    bins = frame // _LEVELS_PER_BIN
    n_bins = 256 // _LEVELS_PER_BIN
    return np.bincount(bins.ravel(), minlength=n_bins)


def _matches_any(frame: Frames, others: Frames) -> bool:
    """Return whether one of `others` shows the same scene as the frame."""
    if not len(others):
        return False
    correlations = best_correlations(frame, others)
    return float(correlations.max()) >= _UNDONE
