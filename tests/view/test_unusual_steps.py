"""Unusual steps of a run: all are counted, those of one page are listed, and the others can be reached."""

import json
import re

import numpy as np
import pytest

import loader
from loader.dataset.tables.parquet import table_bytes
from loader.run.trail.step_rows import StepRow, rows_table
from penstock.cli import main
from penstock.view.inspect.run_record import MOST_STRUCK, run_record
from penstock.view.marks import note_marks
from penstock.view.replays.metrics_file import read_metrics
from penstock.view.replays.training import Training
from penstock.view.runs.log_facts import MOST_LARGEST, log_facts
from tests.view.conftest import BATCH, train
from tests.view.recipes import plain
from tests.view.test_web import Served

NAN = [step for step in range(6, 40) if step % 6 != 5][:28]


def add_rows(root, run, rows, start=None, rank=0, world_size=1):
    """Write rows of steps into the trail of a run."""
    start = start or loader.read_trail(root, run).starts[0]
    number = rows[0].step
    key = f"trails/{run}/{rank}-of-{world_size}/{number:019d}-{rank:08x}{len(rows):08x}.parquet"
    root.store.put(key, table_bytes(rows_table(rows, start.id), "trail"))


def row(start, step, order=0, **notes):
    return StepRow(
        step=step, at_us=start.at_us + 10**8 + order, digest=step, substituted=0, wait_us=5, notes=notes
    )


@pytest.fixture
def unusual_run(root, plan):
    """A run of 40 steps, 28 of which have a loss that is NaN, and one a norm that is far."""
    train(root, plan, "whole", recipe=plain, tensors_every=0)
    (start,) = loader.read_trail(root, "whole").starts
    nan = float("nan")
    rows = [
        row(
            start,
            step,
            loss=nan if step in NAN else 1 + step % 7 / 100,
            norm=90.0 if step == 5 + 6 else 1 + step % 3 / 10,
        )
        for step in range(6, 40)
    ]
    add_rows(root, "whole", rows)
    return root


def test_all_unusual_steps_are_counted_and_reached(unusual_run):
    training = Training(unusual_run, "whole")
    first, second = run_record(training), run_record(training, 20)
    whole = run_record(training, most=None)
    training.close()
    assert len(NAN) == 28
    assert first.n_spikes == second.n_spikes == len(whole.spikes) == 29
    assert (len(first.spikes), len(second.spikes)) == (20, 9)
    assert first.spikes + second.spikes == whole.spikes
    assert [one.step for one in whole.spikes] == [*NAN, 11]
    assert first.struck == tuple(sorted([*NAN, 11]))
    assert first.not_finite == tuple(sorted(NAN))


def test_samples_that_are_not_finite_come_before_the_largest(root, plan):
    """A sample that breaks every step does not hide the largest finite values."""
    nan = float("nan")
    with loader.Loader(
        plan, framework="numpy", workers=0, steps=9, trail=loader.Trail(root, "one")
    ) as batches:
        for batch in batches:
            losses = np.full(BATCH, 1.0 + batch.step)
            losses[2] = nan
            losses[3] = -np.inf if batch.step == 5 else 2.0
            batches.note(per_sample={"loss": losses})
    training = Training(root, "one")
    largest = run_record(training).largest
    training.close()
    assert [(one.step, one.slot) for one in largest[:4]] == [(0, 2), (1, 2), (2, 2), (3, 2)]
    finite = [one.value for one in largest[4:]]
    assert len(finite) == MOST_LARGEST
    assert finite == sorted(finite, reverse=True)
    assert finite[0] == 9.0


def brute(training):
    """Steps with marks, found one by one."""
    steps = training.charted.steps["step"].unique().to_list()
    return {step for step in steps if note_marks(step, training.notes(step), training.spreads)}


def test_steps_are_those_that_have_marks(root, plan, tmp_path):
    rng = np.random.default_rng(5)
    train(root, plan, "mixed", recipe=plain, world_size=2, tensors_every=0)
    other = loader.plan({"photos": plan.sources["photos"].view}, seed=9, global_batch=6)
    train(root, other, "mixed", recipe=plain, steps=3, tensors_every=0)
    trail = loader.read_trail(root, "mixed")
    starts = [next(one for one in trail.starts if one.plan == some.hash) for some in (plan, other)]

    def value():
        return float(rng.choice([1.0, 1.1, 1.2, 50.0, np.nan, np.inf], p=[0.3, 0.3, 0.3, 0.04, 0.03, 0.03]))

    order = 0
    for start, steps, rank in (
        (starts[0], range(6, 60), 0),
        (starts[0], range(6, 60), 1),
        (starts[0], range(20, 30), 0),  # done again
        (starts[1], range(40, 50), 0),  # under another plan
        (starts[0], range(45, 47), 1),
    ):
        rows = []
        for step in steps:
            order += 1
            notes = {name: value() for name in ("loss", "lr") if rng.random() < 0.8}
            rows.append(row(start, step, order, **notes))
        add_rows(root, "mixed", rows, start, rank, 2)
    path = tmp_path / "metrics.csv"
    path.write_text(
        "step,extra\n" + "".join(f"{step},{'nan' if step % 9 == 0 else 1}\n" for step in range(0, 80, 3))
    )
    for metrics in (None, read_metrics(path)):
        training = Training(root, "mixed", metrics=metrics)
        found = log_facts(training).unusual.steps.tolist()
        assert len(found) == len(set(found))
        assert set(found) == brute(training)
        assert len(found) > 5
        training.close()


def test_chart_strikes_steps_that_stand_for_all(root, plan):
    train(root, plan, "nan", recipe=plain, tensors_every=0)
    (start,) = loader.read_trail(root, "nan").starts
    add_rows(root, "nan", [row(start, step, loss=float("nan")) for step in range(6, 10_000)])
    training = Training(root, "nan")
    record = run_record(training)
    training.close()
    assert record.n_spikes == 9_994
    assert MOST_STRUCK / 2 < len(record.struck) <= MOST_STRUCK
    assert record.struck[0] == 6
    assert max(np.diff(record.struck)) < 20
    assert record.struck[-1] > 9_980


def test_pages_and_text_tell_how_many_there_are(unusual_run, tmp_path, capsys):
    served = Served(tmp_path / "root", recipe=None)
    try:
        first = served.get("/r/whole").text
        assert "Unusual steps: 29, the worst first" in first
        assert "1 to 20 of 29" in first
        assert 'href="../r/whole?unusual=20#unusual"' in first
        second = served.get("/r/whole?unusual=20").text
        assert "21 to 29 of 29" in second
        assert 'href="../r/whole?unusual=0#unusual"' in second
        for step in NAN:
            assert f'<a href="../r/whole/{step}">step {step}</a>' in first + second
        assert served.get("/r/whole?unusual=999").status_code == 200
        assert len(served.get("/r/whole.json?unusual=20").json()["spikes"]) == 9
    finally:
        served.close()
    show = ["trail", "show", "whole", "--root", str(tmp_path / "root")]
    assert main(show) == 0
    told = capsys.readouterr().out
    assert "and 9 more unusual steps: penstock trail show whole --all" in told
    assert main([*show, "--all"]) == 0
    told = capsys.readouterr().out
    assert all(re.search(rf"step {step} +loss = nan", told) for step in NAN)
    assert "more unusual" not in told
    assert main([*show, "--all", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["spikes"]) == 29


def test_chart_has_a_metric_that_the_first_of_two_ranks_has_at_some_steps(root, plan):
    for rank in range(2):
        trail = loader.Trail(root, "two", ranks="all")
        with loader.Loader(plan, rank, 2, workers=0, framework="numpy", steps=5, trail=trail) as batches:
            for batch in batches:
                batches.note(loss=batch.step + rank)
                if rank == 0 and batch.step % 2:
                    batches.note(accuracy=batch.step / 10)
    chart = run_record(Training(root, "two")).chart
    assert chart["step"] == (0, 1, 2, 3, 4)
    assert chart["accuracy"] == (None, 0.1, None, 0.3, None)
    assert chart["loss"] == (0, 1, 2, 3, 4)
