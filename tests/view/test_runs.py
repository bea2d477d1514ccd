"""Pages of long runs: rows are found by their step, and the middle of a note is taken once."""

import numpy as np
import pytest

import loader
from loader.dataset.tables.parquet import table_bytes
from loader.run.trail.step_rows import StepRow, rows_table
from penstock.view.inspect.run_record import MOST_NEWS, run_news, run_record
from penstock.view.marks import MIN_STEPS, note_marks
from penstock.view.replays.metrics_file import Spread, value_spread
from penstock.view.replays.training import Training
from penstock.view.runs.run_chart import MOST_POINTS
from tests.view.conftest import train

LAST = 40_000


@pytest.fixture
def training(root, plan):
    """A run of 40,000 steps: 0 to 5 were trained, of the others there are rows alone; 100 and 101 were done twice."""
    train(root, plan, "long")
    (start,) = loader.read_trail(root, "long").starts
    steps = [*range(6, 102), *range(100, LAST)]
    rows = [
        StepRow(
            step=step,
            at_us=start.at_us + 10**8 + i,
            digest=step + (i == 96),
            substituted=int(step == 77),
            wait_us=5,
            notes={"loss": 99.0 if step == 30_000 else 1 + step % 7 / 100},
        )
        for i, step in enumerate(steps)
    ]
    for first in range(0, len(rows), 10_000):
        data = table_bytes(rows_table(rows[first : first + 10_000], start.id), "trail")
        root.store.put(f"trails/long/0-of-1/{first:019d}-{first:016x}.parquet", data)
    made = Training(root, "long")
    yield made
    made.close()


def test_step_is_found_among_many(training):
    assert training.last_step == LAST - 1
    for step in (0, 5, 6, 99, 30_000, LAST - 1):
        (row,) = training.rows(step)
        assert row["step"] == step
    assert [row["digest"] for row in training.rows(100)] == [100, 101]
    assert training.rows(LAST) == training.rows(-1) == []
    assert training.notes(30_000) == {"loss": 99.0}
    assert training.start(LAST + 5).plan == training.trail.starts[0].plan


def test_page_of_a_long_run_has_its_unusual_steps_and_a_thin_chart(training):
    record = run_record(training)
    assert (record.n_steps, record.first_step, record.last_step) == (LAST, 0, LAST - 1)
    assert (record.differing, record.substituted) == ((100,), (77,))
    assert record.spikes[0].step == 30_000
    assert "sigma from the run's median 1.03" in record.spikes[0].marks[0].text
    assert MOST_POINTS / 2 < len(record.chart["step"]) <= 2 * MOST_POINTS + 2
    assert {len(column) for column in record.chart.values()} == {len(record.chart["step"])}
    assert max(record.chart["loss"]) == 99.0
    assert sorted(set(record.chart["step"])) == list(record.chart["step"])


def test_spread_of_a_note_is_of_its_finite_values():
    values = np.random.default_rng(0).normal(5, 2, 20_000)
    found = value_spread(np.concatenate([values, [np.nan, np.inf, 1e9]]))
    assert found.n == 20_001
    assert abs(found.median - 5) < 0.05
    assert abs(found.sigma - 2) < 0.05
    assert value_spread(np.array([np.nan])).n == 0


def test_note_is_held_against_the_spread_of_its_run():
    spread = {"loss": Spread(MIN_STEPS, 1.0, 0.1)}
    assert note_marks(3, {"loss": 1.39, "lr": 7.0}, spread) == []
    (far,) = note_marks(3, {"loss": 1.42}, spread)
    assert (far.name, far.text) == ("note_far", "loss = 1.42, 4 sigma from the run's median 1")
    assert note_marks(3, {"loss": 1.42}, {"loss": Spread(MIN_STEPS - 1, 1.0, 0.1)}) == []
    assert note_marks(3, {"loss": 1.42}, {"loss": Spread(MIN_STEPS, 1.0, 0.0)}) == []
    (bad,) = note_marks(3, {"lr": float("nan")}, {})
    assert bad.name == "note_not_finite"


def test_news_of_a_run_are_its_later_steps(training):
    whole = run_record(training)
    newest = whole.last_step
    news = run_news(training, newest - 3)
    assert (news.chart["step"], news.last_step) == ((newest - 2, newest - 1, newest), newest)
    assert set(news.chart) == set(whole.chart)
    assert run_news(training, newest).chart["step"] == ()
    assert len(run_news(training, -1).chart["step"]) == MOST_NEWS


def test_causes_count_every_unusual_step_once_per_metric(training):
    record = run_record(training, most=None)
    unusual = {spike.step for spike in record.spikes}
    assert record.causes
    for cause in record.causes:
        assert {*cause.steps, cause.worst} <= unusual
    assert (
        max(cause.n_steps for cause in record.causes)
        <= len(unusual)
        <= sum(one.n_steps for one in record.causes)
    )
