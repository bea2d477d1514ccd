"""`python -m benchmarks.fleet_week` with 60 nodes: what the product decides and counts, against the truth."""

import pytest

from benchmarks.fleet_week.comparison import NEVER, compare, seed_figures
from benchmarks.fleet_week.week import Week


@pytest.fixture(scope="module")
def week():
    week = Week(n_nodes=60, seed=2, days=3)
    week.run()
    return week


@pytest.fixture(scope="module")
def rows(week):
    return {row.what: row for row in compare(week, steps=5)}


def test_every_figure_is_the_truth_and_no_healthy_node_is_drained(rows):
    missed = [str(row) for what, row in rows.items() if row.is_reached is False and "crash" not in what]
    assert not missed
    assert len(rows) == 14
    assert sum(row.is_shown for row in rows.values() if "crash" not in row.what) == 5


def test_node_that_crashes_its_gangs_is_found(rows):
    (row,) = (row for what, row in rows.items() if "crash" in what)
    assert row.figure.startswith("1 after")


def test_seed_has_a_figure_per_bad_node(week):
    figures = seed_figures(week)
    assert [len(values) for values in figures.values()] == [1] * 5
    assert figures["crash their gangs, drained"][0] < NEVER
    assert figures["healthy nodes drained"] == [0]
