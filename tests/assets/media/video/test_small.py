"""Whole-number measures of small frames against numpy's own in floating point."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.media.video.frame_levels import measure_levels


@settings(derandomize=True, max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 7), st.integers(1, 256), st.booleans())
def test_levels_are_those_of_the_pixels(seed: int, n: int, contrast: int, follows: bool) -> None:
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, contrast, (n + 1, 36, 64), dtype=np.uint8)
    before, wide = frames[0], frames.astype(float)
    found = measure_levels(frames[1:], before if follows else None)
    assert found.total.tolist() == wide[1:].sum(axis=(1, 2)).tolist()
    assert found.std == pytest.approx(wide[1:].std(axis=(1, 2)), abs=1e-9)
    change = np.abs(np.diff(wide, axis=0)).sum(axis=(1, 2))
    assert found.change.tolist() == [change[0] if follows else 0, *change[1:].tolist()]


def test_brightest_frames_do_not_overflow() -> None:
    frames = np.stack([np.zeros((36, 64), np.uint8), np.full((36, 64), 255, np.uint8)])
    found = measure_levels(frames, None)
    assert found.total.tolist() == [0, 255 * 36 * 64]
    assert found.change.tolist() == [0, 255 * 36 * 64]
    assert found.std.tolist() == [0, 0]
