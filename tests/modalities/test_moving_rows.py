"""`loader.moving_rows` beside its definition: a row is idle inside an interval within a share of the range."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import loader
from loader.errors import DecodeFailed, InvalidRuntime
from tests.refusals import refusal

MS = 10**6


def by_definition(values: np.ndarray, last: list[int], still: float) -> np.ndarray:
    """last: for each row, the last row of the shortest idle time that begins there."""
    spread = still * (values.max(axis=0) - values.min(axis=0)).max()
    moving = np.ones(len(values), bool)
    for start, stop in enumerate(last):
        if stop < len(values):
            block = values[start : stop + 1]
            if (block.max(axis=0) - block.min(axis=0) <= spread).all():
                moving[start + 1 : stop + 1] = False
    return moving


@given(
    values=arrays(np.float64, st.tuples(st.integers(1, 40), st.integers(1, 3)), elements=st.integers(0, 5)),
    idle_rows=st.integers(1, 9),
    still=st.sampled_from([0.0, 0.2, 0.5]),
)
def test_rows_without_a_clock(values: np.ndarray, idle_rows: int, still: float) -> None:
    moving = loader.moving_rows(values, still=still, idle_rows=idle_rows)
    last = [row + idle_rows for row in range(len(values))]
    assert moving.tolist() == by_definition(values, last, still).tolist()


@given(
    values=arrays(np.float32, st.integers(2, 30), elements=st.integers(0, 3)),
    steps=st.lists(st.integers(1, 300), min_size=30, max_size=30),
)
def test_rows_with_a_clock(values: np.ndarray, steps: list[int]) -> None:
    clock = np.cumsum(steps)[: len(values)].astype(np.int64) * MS
    moving = loader.moving_rows(values, clock, idle_ms=200)
    last = [int(np.searchsorted(clock, time + 200 * MS)) for time in clock]
    assert moving.tolist() == by_definition(values[:, None], last, 0.02).tolist()


def test_bad_arguments_are_named() -> None:
    values = np.zeros((3, 2))
    defaults = {"still": 0.02, "idle_ms": 500, "idle_rows": 15}
    for wrong_setting in ({"still": 1.0}, {"idle_ms": 0}, {"idle_rows": 0}):
        settings = defaults | wrong_setting
        with refusal(InvalidRuntime, what="still, idle_ms, idle_rows", given=list(settings.values())):
            loader.moving_rows(values, **wrong_setting)
    for wrong in (np.zeros((0, 2)), np.array(["a"]), np.float64(3)):
        values = np.asarray(wrong)
        with refusal(DecodeFailed, what="values", given=f"{values.dtype} {list(values.shape)}"):
            loader.moving_rows(values)
    for clock in (np.arange(2), np.array([1, 1, 2]), np.arange(3.0)):
        with refusal(DecodeFailed, what="clock", accepted="int64 [3], ascending strictly"):
            loader.moving_rows(np.zeros((3, 2)), clock)
