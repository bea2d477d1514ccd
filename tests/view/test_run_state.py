"""State of a training: by its record, or honest silence. The first page and the run's page agree."""

import math
import time

import pytest

import loader
from loader.run.trail.row_objects import ROWS
from loader.run.trail.step_rows import StepRow, rows_bytes
from penstock.checkpoints import marker
from penstock.metrics.conditions import STALLED_LEAST_S, STALLED_STEPS
from penstock.train.run_folder import RunFolder
from penstock.view.board.home_record import Board
from penstock.view.inspect.run_overview import run_overview
from penstock.view.replays.training import Training
from penstock.view.run_goodputs import RunGoodputs
from penstock.view.runs.run_state import StateFacts, state_from_facts
from tests.view.conftest import BATCH, train, write_photos
from tests.view.recipes import plain
from tests.view.test_web import Served

LAST_US = 1_700_000_000_000_000
SINCE = "no news since 2023-11-14 22:13"
NOW_S = LAST_US / 1e6


def facts(recorded=None, checkpoint=-1, median_s=1.0):
    return StateFacts(
        recorded=recorded,
        last_step=7,
        last_us=LAST_US,
        median_step_us=median_s * 1e6,
        checkpoint=checkpoint,
    )


@pytest.mark.parametrize(
    ("known", "later_s", "state", "text"),
    [
        (facts(), STALLED_LEAST_S - 1, "running", ""),
        (facts(), STALLED_LEAST_S + 1, "silent", SINCE),
        (facts(median_s=math.nan), STALLED_LEAST_S + 1, "silent", SINCE),
        (facts(median_s=STALLED_LEAST_S), STALLED_LEAST_S + 1, "running", ""),
        (facts(median_s=STALLED_LEAST_S), STALLED_STEPS * STALLED_LEAST_S + 1, "silent", SINCE),
        (facts(checkpoint=7), STALLED_LEAST_S + 1, "silent", SINCE),
        (facts(checkpoint=8), STALLED_LEAST_S + 1, "silent", f"{SINCE}, saved after its last step"),
        (facts("running"), STALLED_LEAST_S + 1, "stalled", SINCE),
        (facts("finished"), STALLED_LEAST_S + 1, "finished", ""),
        (facts("stopped"), 0, "stopped", ""),
        (facts("failed", checkpoint=8), STALLED_LEAST_S + 1, "failed", ""),
    ],
)
def test_state_follows_from_record_log_and_checkpoint(known, later_s, state, text):
    now = state_from_facts(known, NOW_S + later_s)
    assert (now.state, now.text) == (state, text)


@pytest.fixture
def old(root, tmp_path):
    """A root with a run whose eight steps were made long ago."""
    view = write_photos(root).select("jpg", "cls")
    train(root, loader.plan({"photos": view}, seed=3, global_batch=BATCH), "old", recipe=plain, steps=1)
    (start,) = loader.read_trail(root, "old").starts
    for info in list(root.store.list("trails/old/")):
        if ROWS.search(info.key):
            (tmp_path / "root" / info.key).unlink()
    rows = [
        StepRow(
            step=step, at_us=LAST_US + 10**6 * (step - 7), digest=step, substituted=0, wait_us=5, notes={}
        )
        for step in range(8)
    ]
    root.store.put(f"trails/old/0-of-1/{0:019d}-{0:016x}.parquet", rows_bytes(rows, start.id))
    return root


def states(root):
    """Return (state, news) of the run on the first page, and on its own."""
    (line,) = Board(RunGoodputs()).record(root).trainings
    training = Training(root, "old")
    overview = run_overview(training, root.store, RunGoodputs())
    training.close()
    return (line.state, line.news), (overview.state, overview.news)


def test_first_page_and_run_page_agree(old, tmp_path):
    home, page = states(old)
    assert home == page == ("silent", SINCE)
    old.store.put(marker.marker_key("old", 8), b"{}")
    home, page = states(old)
    assert home == page == ("silent", f"{SINCE}, saved after its last step")
    with Served(tmp_path / "root", recipe=None) as served:
        assert SINCE in served.get("/").text
        assert SINCE in served.get("/r/old").text
    folder = RunFolder(old.store, "old")
    folder.begin_attempt({"at_us": LAST_US, "ranks": 1})
    folder.put_event(1, 0, "first_batch", 0, {}, LAST_US)
    home, page = states(old)
    assert home == page
    assert home[0] == "stalled"
    folder.put_event(1, 1, "ended", 8, {}, round(time.time() * 1e6))
    home, page = states(old)
    assert home == page == ("finished", "")
