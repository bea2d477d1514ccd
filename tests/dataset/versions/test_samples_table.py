"""Tables of columns side by side: rows belong together by part and row, in whatever order they lie."""

import polars as pl
import pytest

from loader.dataset.versions.samples_table import _beside

KEYS = pl.DataFrame({"part": ["a", "a", "b", "b"], "row": [0, 1, 0, 1], "key": list("wxyz")})
SCORES = pl.DataFrame({"part": ["a", "a", "b", "b"], "row": [0, 1, 0, 1], "score": [1.0, 2.0, 3.0, 4.0]})


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 3, 0, 1], [1, 0, 3, 2]])
def test_columns_follow_their_rows(order):
    found = _beside(KEYS, SCORES[order])
    assert found.columns == ["part", "row", "key", "score"]
    assert found["key"].to_list() == list("wxyz")
    assert found["score"].to_list() == [1.0, 2.0, 3.0, 4.0]


def test_rows_without_a_value_are_null():
    assert _beside(KEYS, SCORES[[3, 1]])["score"].to_list() == [None, 2.0, None, 4.0]
    other = SCORES.with_columns(part=pl.Series(["a", "a", "c", "c"]))
    assert _beside(KEYS, other)["score"].to_list() == [1.0, 2.0, None, None]
