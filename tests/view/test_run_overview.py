"""What a run's page shows beside the run log: starts, goodput, checkpoints; nothing of a run that has a log only."""

import json
import math
import tempfile

import pytest

import loader
from penstock.cli import main
from penstock.train.goodput.stretches import NEW_STEPS
from penstock.train.launch.local_runs import LocalRuns
from penstock.train.run_folder import RunFolder
from penstock.train.run_spec import RunSpec
from penstock.view.board.home_record import Board
from penstock.view.inspect.run_overview import run_overview
from penstock.view.inspect.run_record import run_record
from penstock.view.replays.training import Training
from penstock.view.run_goodputs import RunGoodputs
from penstock.view.sections.characters.section_lines import page_lines
from penstock.view.sections.home import home_sections
from penstock.view.sections.run import run_sections
from penstock.view.terminal.addresses import parse_page
from tests.view.conftest import BATCH, train, write_photos
from tests.view.recipes import plain
from tests.view.test_costs import Counted


def make_overview(root, run):
    training = Training(root, run)
    try:
        return run_overview(training, root.store, RunGoodputs())
    finally:
        training.close()


def train_root(root):
    view = write_photos(root).select("jpg", "cls")
    train(root, loader.plan({"photos": view}, seed=3, global_batch=BATCH), "one", recipe=plain)
    return root


def test_run_with_a_log_only_has_no_goodput(root):
    overview = make_overview(train_root(root), "one")
    assert (overview.is_recorded, overview.n_starts, overview.starts, overview.problem) == (False, 0, (), "")
    assert math.isnan(overview.goodput)
    assert 0 <= overview.waiting <= 1


def put_record(root, run):
    """Store a start of six steps in 8 s."""
    folder = RunFolder(root.store, run)
    folder.begin_attempt({"at_us": 1_000_000, "ranks": 1})
    events = [("ranks_up", 2_000_000, 0), ("first_batch", 3_000_000, 0), ("ended", 9_000_000, 6)]
    for number, (name, at_us, step) in enumerate(events):
        folder.put_event(1, number, name, step, {}, at_us)
    return folder


def test_parts_of_a_recorded_run_sum_to_its_time(root):
    train_root(root)
    put_record(root, "one")
    overview = make_overview(root, "one")
    assert (overview.is_recorded, overview.n_starts) == (True, 1)
    assert math.isclose(sum(overview.parts.values()), 1.0)
    assert overview.goodput == overview.parts[NEW_STEPS] > 0.5
    (start,) = overview.starts
    assert (start.first_step, start.end_step, start.end) == (0, 6, "ended")


def test_lines_of_a_run_have_all_that_its_record_has(root):
    train_root(root)
    put_record(root, "one")
    overview = make_overview(root, "one")
    training = Training(root, "one")
    page = run_sections(run_record(training), overview)
    training.close()
    lines = [line.text for line in page_lines(page, 100)]
    text = "\n".join(lines)
    (goodput,) = [line for line in lines if line.startswith("goodput ")]
    assert goodput.endswith("1 start")
    for words in (
        "training waits",
        "newest checkpoint",
        "Starts",
        "1: step 0",
        "to 6, ended",
        "Where its time went",
    ):
        assert words in text
    (new_steps,) = [line for line in lines if line.startswith("new steps")]
    assert "█" in new_steps
    assert f"{100 * overview.goodput:.1f} %" in new_steps
    pages = [line.page for line in page_lines(page, 100)]
    assert "v/photos/1" in pages
    assert "r/one/0/5" in pages
    assert all(link is None or parse_page(link) is not None for link in pages)


@pytest.mark.parametrize("is_submitted", [False, True])
def test_goodput_is_one_number_on_home_run_page_and_command(
    root, tmp_path, monkeypatch, capsys, is_submitted
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    train_root(root)
    folder = put_record(root, "one")
    if is_submitted:
        folder.put_spec(RunSpec(run="one", command=("true",), record=root.url))
        # As the launcher of this machine notes it: twice as long as the record's first event to its last.
        launcher = LocalRuns(root.url)
        launcher._processes.check_folder()
        with launcher._processes.open(launcher._name("one"), "log.spans", "w") as file:
            file.write('{"begun_us": 1, "log": 0, "ranks": 1}\n{"ended_us": 16000001}\n')
    assert main(["train", "goodput", "one", "--root", root.url, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["goodput"]
    goodputs = RunGoodputs()
    home = Board(goodputs).record(root)
    (line,) = home.trainings
    text = "\n".join(line.text for line in page_lines(home_sections(home), 200))
    assert "failed checks only here: penstock node suspects also judges" in text
    assert printed == line.goodput == make_overview(root, "one").goodput
    assert printed == pytest.approx(6 / 16 if is_submitted else 6 / 8)


def test_events_are_read_once_for_home_and_run_page(root):
    train_root(root)
    folder = put_record(root, "one")
    store = Counted(root.store)
    read = []
    get = store.store.get

    def record_get(key, *arguments):
        read.append(key)
        return get(key, *arguments)

    store.get = record_get
    root._use(store)
    goodputs = RunGoodputs()
    board = Board(goodputs)
    training = Training(root, "one")
    (line,) = board.record(root).trainings
    assert sum("/events/000001-000001" in key for key in read) == 1
    read.clear()
    assert run_overview(training, store, goodputs).goodput == line.goodput
    board.record(root)
    # The newest event, by which a list of runs tells their states.
    assert {key for key in read if "trainings/one/" in key} <= {"trainings/one/events/000001-000002.json"}
    assert not [key for key in read if "trails/" in key]
    folder.put_event(2, 0, "ranks_up", 6, {}, 10_000_000)
    read.clear()
    board.record(root)
    assert sum("/events/000001-000001" in key for key in read) == 1, "a changed record is read again"
    training.close()
