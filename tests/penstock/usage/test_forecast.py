"""A straight line over weekly totals, and its band."""

import random

import pytest

from loader.errors import Corrupt
from penstock.usage.forecast import forecast, student_t
from penstock.usage.sacct import count_gpus
from tests.refusals import refusal


def test_line_is_extended() -> None:
    line = forecast([100, 110, 120, 130, 140, 150])
    assert line is not None
    assert line.week(1) == pytest.approx((160, 160, 160))
    assert line.passes(200) == (6, 6), "210 is the first above 200"
    assert line.passes(100) == (1, 1)
    assert line.passes(1e6) == (None, None)


def test_band_is_that_of_the_handbook() -> None:
    """By hand: six weeks, Sxx = 17.5, the next week 3.5 behind their middle."""
    line = forecast([8, 9, 13, 13, 17, 18])
    assert line is not None
    assert (line.mean, line.slope) == (13, pytest.approx(37 / 17.5))
    residuals = sum((y - 13 - line.slope * (x - 2.5)) ** 2 for x, y in enumerate([8, 9, 13, 13, 17, 18]))
    half = 2.7764 * (residuals / 4) ** 0.5 * (1 + 1 / 6 + 3.5**2 / 17.5) ** 0.5
    assert line.week(1) == pytest.approx((20.4 - half, 20.4, 20.4 + half), rel=1e-3)


@pytest.mark.parametrize(("freedom", "quantile"), [(4, 2.7764), (6, 2.4469), (10, 2.2281), (50, 2.0086)])
def test_student_t_of_the_tables(freedom: int, quantile: float) -> None:
    assert student_t(0.95, freedom) == pytest.approx(quantile, rel=1e-3)


def test_band_holds_95_of_100_weeks() -> None:
    draw, inside = random.Random(7), 0
    for _ in range(2000):
        *history, following = [100 + 5 * week + draw.gauss(0, 20) for week in range(13)]
        line = forecast(history)
        assert line is not None
        band = line.week(1)
        inside += band.low <= following <= band.high
    assert 0.94 < inside / 2000 < 0.96


def test_short_history_is_none() -> None:
    assert forecast([1, 2, 3, 4, 5]) is None
    assert forecast([0, 0, 0, 1, 2, 3, 4, 5]) is None, "weeks before the first use"
    assert forecast([]) is None


def test_installed_gpus_count_each_node_once() -> None:
    lines = (
        "m1|gpu:a100:8(S:0-1)\nm1|gpu:a100:8(S:0-1)\nm2|gpu:4,craynetwork:3\nm3|gpu:a:2,gpu:b:1\nm4|(null)\n"
    )
    assert count_gpus(lambda command: lines) == 15
    with refusal(Corrupt, what="node", where="sinfo, line 2", given="oops"):
        count_gpus(lambda command: "m1|gpu:1\noops\n")
