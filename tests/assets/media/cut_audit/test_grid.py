"""The means of cells against shares of single pixels, worked out one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.media.cut_audit.findings import CELLS, cell_means


def shares(length: int) -> np.ndarray:
    """[16, length]: how much of each pixel lies in each cell, over the cell's length."""
    found = np.zeros((CELLS, length))
    for cell in range(CELLS):
        for pixel in range(length):
            begin, end = cell * length / CELLS, (cell + 1) * length / CELLS
            found[cell, pixel] = max(0.0, min(end, pixel + 1) - max(begin, pixel)) / (end - begin)
    return found


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.integers(0, 99), st.integers(1, 70), st.integers(1, 70), st.sampled_from([np.uint8, np.uint16]))
def test_each_cell_is_the_mean_of_its_area(seed: int, height: int, width: int, dtype: type) -> None:
    plane = np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, (height, width), dtype=dtype)
    expected = np.einsum("ch,hw,dw->cd", shares(height), plane.astype(float), shares(width))
    assert cell_means(plane) == pytest.approx(expected, rel=1e-12)
