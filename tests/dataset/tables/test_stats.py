"""Statistics add up: those of runs, merged, are those of all rows."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.dataset.tables import columns, stats
from loader.dataset.tables.stats import BOTTOM_K, bottom_k, column_stats, finite_count, log_bins, merge

CI = settings(max_examples=60, deadline=None, derandomize=True)
SCHEMA = pa.schema(
    [("key", pa.string()), ("i", pa.int64()), ("f", pa.float64()), ("s", pa.string()), ("b", pa.bool_())]
)
number = st.one_of(
    st.floats(-1e150, 1e150), st.sampled_from([math.nan, 0.0, -0.0, 5e-324, math.inf, -math.inf])
)


@st.composite
def runs(draw):
    """Tables of rows whose keys differ, as runs of one dataset."""
    tables, count = [], 0
    for _ in range(draw(st.integers(1, 4))):
        n = draw(st.integers(1, 8))

        def column(values, n=n):
            return draw(st.lists(st.one_of(st.none(), values), min_size=n, max_size=n))

        columns = {
            "key": [f"k{count + i}" for i in range(n)],
            "i": column(st.integers(-(2**40), 2**40)),
            "f": column(number),
            "s": column(st.sampled_from(["a", "b", "é"])),
            "b": column(st.booleans()),
        }
        count += n
        arrays = [
            # A column of nulls alone has no type of its own in the run that wrote it.
            pa.nulls(n)
            if all(v is None for v in columns[field.name])
            else pa.array(columns[field.name], field.type)
            for field in SCHEMA
        ]
        tables.append(pa.table(arrays, names=SCHEMA.names))
    return tables


@CI
@given(runs())
def test_merged_runs_are_all_rows(properties, tables):
    """Merged statistics of runs equal the statistics of all their rows."""
    whole = stats.merge(stats.column_stats(columns.concat(tables, "all")).to_pylist())
    merged = stats.merge([row for table in tables for row in stats.column_stats(table).to_pylist()])
    assert merged.keys() == whole.keys()
    for name, expected in whole.items():
        found = merged[name]
        for what in ("sum", "sum_squares", "mean"):
            a, b = found.pop(what), expected.pop(what)
            assert (a is None) == (b is None), (name, what)
            assert a is None or np.isclose(a, b, rtol=1e-12, atol=1e-12), (name, what)
        found["categories"] = found["categories"] or None
        expected["categories"] = expected["categories"] or None
        # A column that a run had only nulls of is a number there or nothing: 0 and None both say so.
        for what in ("nans", "zeros"):
            found[what], expected[what] = found[what] or 0, expected[what] or 0
        assert found == expected, name


@CI
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=50))
def test_log_bins_are_monotone(values):
    ordered = np.sort(np.array(values, np.float64))
    bins = log_bins(ordered)
    assert (np.diff(bins) >= 0).all()
    assert ((bins == 0) == (ordered == 0)).all()
    assert (np.abs(bins) <= 4000).all()
    assert (np.sign(bins) == np.sign(ordered)).all()


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0), (1, 1000), (9.99, 1007), (10, 1008), (-1, -1000), (1e-3, 976), (1e300, 3400)],
)
def test_log_bins_as_the_format_says(value, expected):
    assert log_bins(np.array([value], np.float64)).tolist() == [expected]


def test_numbers_of_one_column():
    table = pa.table({"x": pa.array([1, None, 0, 3, -2], pa.int64())})
    (row,) = column_stats(table).to_pylist()
    expected = {"n": 5, "nulls": 1, "nans": 0, "zeros": 1, "min": -2, "max": 3, "sum": 2, "sum_squares": 14}
    assert {name: row[name] for name in expected} == expected
    assert merge([row])["x"]["mean"] == 0.5


@pytest.mark.parametrize(
    "runs",
    [
        [[1.0, math.inf, None, 6.0, math.nan, -math.inf]],
        [[1.0, math.inf], [math.nan, -math.inf], [None, 6.0]],
    ],
)
def test_mean_covers_finite_numbers(runs):
    rows = []
    for values in runs:
        table = pa.table({"x": pa.array(values, pa.float64())})
        rows += column_stats(table).to_pylist()
    merged = merge(rows)["x"]
    assert finite_count(merged) == 2
    assert merged["mean"] == 3.5


def test_column_of_infinities_has_no_mean():
    table = pa.table({"x": [math.inf, -math.inf]})
    assert merge(column_stats(table).to_pylist())["x"]["mean"] is None


def test_too_many_categories_are_dropped():
    few = pa.table({"s": [f"v{i}" for i in range(1000)]})
    many = pa.table({"s": [f"v{i}" for i in range(1001)]})
    (a,), (b,) = column_stats(few).to_pylist(), column_stats(many).to_pylist()
    assert (len(a["categories"]), a["categories_complete"]) == (1000, True)
    assert (len(b["categories"]), b["categories_complete"]) == (0, False)
    assert merge([a, b])["s"]["categories"] is None


def test_bottom_k_estimates_the_overlap_of_two_versions():
    a, b = [f"k{i}" for i in range(4000)], [f"k{i}" for i in range(2000, 6000)]
    x, y = bottom_k(a), bottom_k(b)
    union = sorted({*x, *y})[:BOTTOM_K]
    shared = len({*x} & {*y} & {*union}) / BOTTOM_K
    assert abs(shared - 2000 / 6000) < 0.1
    assert sorted({*x, *y})[:BOTTOM_K] == bottom_k([*a, *b])
