"""Costs of a run's page: bytes do not grow with its steps, and a live answer reads new objects only."""

import sys
import threading
from collections import Counter

import pytest

import loader
from loader.run.trail import row_objects
from loader.run.trail.read_trail import read_starts
from loader.run.trail.row_objects import ROWS
from loader.run.trail.step_rows import StepRow, rows_bytes
from loader.run.trail.trail import trail_folder
from penstock.view import open_items
from penstock.view.inspect.run_record import run_record
from penstock.view.open_data import OpenData
from penstock.view.replays.training import Training
from penstock.view.runs import log_facts
from tests.view.conftest import train, write_photos
from tests.view.recipes import plain
from tests.view.test_costs import Counted
from tests.view.test_web import Served

SIZES = {"short": 3_000, "long": 24_000}
OBJECT_ROWS = 1_000
PAGE_BYTES = 300_000


def put_rows(root, run, first, n):
    """Store an object of a run log, as its recorder does once a minute."""
    (start,) = read_starts(root.store, run)
    rows = [
        StepRow(
            step=step,
            at_us=start.at_us + 60_000 * step,
            digest=step * 7_919,
            substituted=0,
            wait_us=step * 31 % 1_000,
            notes={"loss": 1 + step * 7_919 % 1_000 / 1e4, "grad_norm": float(step * 104_729 % 77)},
        )
        for step in range(first, first + n)
    ]
    name = f"{trail_folder(run)}0-of-1/{first:019d}-{first:016x}.parquet"
    root.store.put_if_absent(name, rows_bytes(rows, start.id))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folder of a root with a run of each of SIZES, one rank each."""
    folder = tmp_path_factory.mktemp("runs") / "root"
    with loader.Root(folder) as root:
        view = write_photos(root).select("jpg", "cls")
        plan = loader.plan({"photos": view}, seed=3, global_batch=6)
        for run, n in SIZES.items():
            train(root, plan, run, recipe=plain, steps=1)
            for first in range(1, n, OBJECT_ROWS):
                put_rows(root, run, first, min(OBJECT_ROWS, n - first))
    return folder


def test_bytes_of_a_runs_page_do_not_grow_with_its_steps(runs):
    nbytes = {}
    served = Served(runs, recipe=None)
    for run, n in SIZES.items():
        page = served.get(f"/r/{run}")
        record = served.get(f"/r/{run}.json")
        assert record.json()["n_steps"] >= n
        nbytes[run] = len(page.content) + len(record.content)
    served.close()
    assert nbytes["long"] < 1.5 * nbytes["short"]  # larger steps have more digits
    assert nbytes["long"] < PAGE_BYTES


def test_run_log_is_read_once_and_a_live_answer_reads_new_objects(runs, monkeypatch):
    for run, n in SIZES.items():
        with loader.Root(runs) as root:
            store = Counted(root.store)
            root._use(store)
            opened = OpenData(root)
            monkeypatch.setattr(open_items, "FRESH_S", 3600.0)
            opened.training(run)
            names = root.store.store.list(trail_folder(run))
            n_objects = sum(ROWS.search(info.key) is not None for info in names)
            assert (store.requests["list"], store.requests["get"]) == (1, n_objects + 1)
            monkeypatch.setattr(open_items, "FRESH_S", 0.0)
            store.requests.clear()
            opened.training(run)
            assert dict(store.requests) == {"list": 1}
            put_rows(root, run, n, 60)
            store.requests.clear()
            assert opened.training(run).last_step == n + 59
            # The new object, and the start that its rows name.
            assert dict(store.requests) == {"list": 1, "get": 2}
            opened.close()


def test_page_json_and_live_answer_share_one_parse_and_one_count(runs, monkeypatch):
    n_parsed = []
    n_counted = []
    parse = row_objects.parse_table
    count = log_facts.run_chart

    def parse_table(data, name, columns=None):
        n_parsed.append(name)
        return parse(data, name, columns)

    def run_chart(trail, metrics):
        n_counted.append(trail.run)
        return count(trail, metrics)

    monkeypatch.setattr(row_objects, "parse_table", parse_table)
    monkeypatch.setattr(log_facts, "run_chart", run_chart)
    served = Served(runs, recipe=None)
    for path in ("/r/long", "/r/long.json", "/r/long.json?since=100", "/r/long?unusual=20", "/r/long"):
        assert served.get(path).status_code == 200
    served.close()
    assert len(n_parsed) == len(set(n_parsed)) >= SIZES["long"] // OBJECT_ROWS
    assert n_counted == ["long"]


def count_calls(function, *arguments):
    """Return how many functions, of Python and of C, a call calls."""
    calls = Counter()
    sys.setprofile(lambda frame, event, _: calls.update([event]))
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return calls["call"] + calls["c_call"]


def test_calls_of_a_runs_record_do_not_grow_with_its_steps(runs):
    """Steps are counted in numpy and polars: Python does nothing for each of them."""
    n_calls = {}
    for run in SIZES:
        with loader.Root(runs) as root:
            opened = Training(root, run)
            run_record(opened)  # imports, and plans that are read once
            for name in ("_counted", "spreads"):
                opened.__dict__.pop(name)
            n_calls[run] = count_calls(run_record, opened)
            opened.close()
    assert n_calls["long"] < 1.3 * n_calls["short"]
    assert n_calls["long"] < 30_000


def test_live_answer_reads_one_new_object_without_a_thread(runs, monkeypatch):
    with loader.Root(runs) as root:
        opened = Training(root, "short")
        put_rows(root, "short", 2 * SIZES["long"], 5)
        begun = []
        start = threading.Thread.start
        monkeypatch.setattr(threading.Thread, "start", lambda self: begun.append(self.name) or start(self))
        newer = opened.refreshed()
        opened.close()
    assert newer.last_step == 2 * SIZES["long"] + 4
    assert not [name for name in begun if name.startswith("penstock-trail")]
