"""Costs of a run's page: bytes do not grow with its steps, and a live answer reads new objects only."""

import gc
import itertools
import sys
import threading
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uvicorn

import loader
from loader.dataset.tables.parquet import table_bytes
from loader.errors import Corrupt
from loader.run.trail import lean_rows
from loader.run.trail.lean_trail import read_lean_trail
from loader.run.trail.read_trail import read_starts
from loader.run.trail.row_objects import ROWS
from loader.run.trail.step_rows import PerSample, StepRow, rows_bytes, rows_table
from loader.run.trail.trail import trail_folder
from loader.storage.disk.store import LocalStore
from penstock.view import open_items
from penstock.view.inspect.run_record import run_record
from penstock.view.open_data import OpenData
from penstock.view.replays.training import Training
from penstock.view.runs import log_facts
from penstock.view.runs.log_facts import MOST_LARGEST
from penstock.view.web.serve import serve
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S
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
    with Served(runs, recipe=None) as served:
        for run, n in SIZES.items():
            page = served.get(f"/r/{run}")
            record = served.get(f"/r/{run}.json")
            assert record.json()["n_steps"] >= n
            nbytes[run] = len(page.content) + len(record.content)
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
            assert dict(store.requests) == {"list": 1, "get": 1}
            opened.close()


def test_page_json_and_live_answer_share_one_parse_and_one_count(runs, monkeypatch):
    n_parsed = []
    n_counted = []
    parse = lean_rows.parse_table
    count = log_facts.run_chart

    def parse_table(data, name, columns=None):
        n_parsed.append(name)
        return parse(data, name, columns)

    def run_chart(trail, metrics):
        n_counted.append(trail.run)
        return count(trail, metrics)

    monkeypatch.setattr(lean_rows, "parse_table", parse_table)
    monkeypatch.setattr(log_facts, "run_chart", run_chart)
    with Served(runs, recipe=None) as served:
        for path in ("/r/long", "/r/long.json", "/r/long.json?since=100", "/r/long?unusual=20", "/r/long"):
            assert served.get(path).status_code == 200
    assert len(n_parsed) == len(set(n_parsed)) >= SIZES["long"] // OBJECT_ROWS
    assert n_counted == ["long"]


def put_samples(root, run, first, n, values):
    """Store an object whose steps have a largest sample each, and a checksum of a field."""
    (start,) = read_starts(root.store, run)
    rows = [
        StepRow(
            step=first + number,
            at_us=start.at_us + 60_000 * (first + number),
            digest=1,
            substituted=0,
            wait_us=1,
            crcs={"jpg": number},
            per_sample={("loss", 0): PerSample(values=values[number], first_slot=0, real=np.ones(16, bool))},
        )
        for number in range(n)
    ]
    name = f"{trail_folder(run)}0-of-1/{first:019d}-{first:016x}.parquet"
    root.store.put_if_absent(name, rows_bytes(rows, start.id))


def test_run_log_is_read_without_checksums_and_with_few_samples(runs, monkeypatch, tmp_path):
    """Decoded columns and samples in memory do not grow with the steps; a step's are read from its object."""
    n_kept = {}
    values = {n: 10 + np.random.default_rng(n).random((n, 16)) for n in (200, 1_600)}
    with loader.Root(tmp_path / "root") as root:
        view = write_photos(root).select("jpg", "cls")
        plan = loader.plan({"photos": view}, seed=3, global_batch=6)
        for n, of_steps in values.items():
            run = f"samples-{n}"
            train(root, plan, run, recipe=plain, steps=1)
            for first in range(0, n, 100):
                put_samples(root, run, 1 + first, 100, of_steps[first:])
            training = Training(root, run)
            assert "crc.jpg" not in training.trail.steps.columns
            assert "largest" not in training.trail.steps.columns
            n_kept[n] = len(training.trail.largest)
            worst = [one.value for one in run_record(training).largest]  # the first step's are below 10
            assert worst == sorted(of_steps.ravel(), reverse=True)[:MOST_LARGEST]
            store = Counted(root.store)
            root._use(store)
            (row,) = training.stored_rows(n)
            assert row["crc.jpg"] == 99
            assert training.largest(n) == {slot: {"loss": of_steps[-1, slot]} for slot in range(16)}
            assert dict(store.requests) == {"get": 1}
            training.close()
    assert n_kept[200] == n_kept[1_600] == lean_rows.MOST_CANDIDATES


def test_columns_that_a_footer_explains_are_not_decoded(runs, monkeypatch):
    decoded = set()
    parse = lean_rows.parse_table

    def parse_table(data, name, columns=None):
        table = parse(data, name, columns)
        if f"/{0:019d}-" not in name:  # the trained step has samples
            decoded.update(table.column_names)
        return table

    monkeypatch.setattr(lean_rows, "parse_table", parse_table)
    for run in SIZES:
        with loader.Root(runs) as root:
            trail = read_lean_trail(root, run)
            whole = loader.read_trail(root, run).steps
        assert trail.steps.equals(whole.select(trail.steps.columns))
    numbers = {"step", "at_us", "digest", "substituted", "wait_us", "note.loss", "note.grad_norm"}
    assert decoded == numbers


def test_sample_of_a_step_that_was_made_again_is_the_last_one(runs, tmp_path):
    with loader.Root(tmp_path / "root") as root:
        view = write_photos(root).select("jpg", "cls")
        plan = loader.plan({"photos": view}, seed=3, global_batch=6)
        train(root, plan, "again", recipe=plain, steps=1)
        values = np.full((60, 16), 10.0)
        values[4, 2] = 90.0
        put_samples(root, "again", 1, 60, values)
        (start,) = read_starts(root.store, "again")
        # The last try has no sample in slot 2: the value of the first one there does not count either.
        last = StepRow(
            step=5,
            at_us=start.at_us + 10**10,
            digest=1,
            substituted=0,
            wait_us=1,
            per_sample={
                ("loss", 0): PerSample(values=np.full(16, 20.0), first_slot=0, real=np.arange(16) != 2)
            },
        )
        name = f"{trail_folder('again')}0-of-1/{5:019d}-{999:016x}.parquet"
        root.store.put_if_absent(name, rows_bytes([last], start.id))
        training = Training(root, "again")
        largest = run_record(training).largest
        training.close()
    assert {(one.step, one.value) for one in largest} == {(5, 20.0)}


def test_log_with_a_start_in_each_row_is_read(tmp_path):
    """A footer's shortest and longest text decide nothing for an object of two starts."""
    with loader.Root(tmp_path / "root") as root:
        view = write_photos(root).select("jpg", "cls")
        for seed in range(2):
            plan = loader.plan({"photos": view}, seed=seed, global_batch=6)
            train(root, plan, "two", recipe=plain, steps=1)
        first, second = (start.id for start in read_starts(root.store, "two"))
        row = StepRow(step=7, at_us=1, digest=1, substituted=0, wait_us=1)
        table = pa.concat_tables([rows_table([row], first), rows_table([replace(row, step=8)], second)])
        root.store.put(f"{trail_folder('two')}0-of-1/{7:019d}-{7:016x}.parquet", table_bytes(table, "trail"))
        steps = read_lean_trail(root, "two").steps
    assert steps.filter(steps["step"] >= 7)["start"].to_list() == [first, second]


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
            for name in ("_result_cache", "spreads"):
                opened.__dict__.pop(name)
            n_calls[run] = count_calls(run_record, opened)
            opened.close()
    assert n_calls["long"] < 1.3 * n_calls["short"]
    assert n_calls["long"] < 30_000


def garbage(root, run):
    """Return the number of objects that only the collector frees after a read."""
    gc.collect()
    gc.disable()
    try:
        read_lean_trail(root, run)
        return gc.collect()
    finally:
        gc.enable()


def test_reading_a_run_log_leaves_no_work_for_the_garbage_collector(runs):
    """A footer and its schema refer to each other: once for a log, not once for each object."""
    n_garbage = {}
    with loader.Root(runs) as root:
        read_lean_trail(root, "short")  # imports
        for run in SIZES:
            # The least of a few: threads of earlier tests leave garbage too.
            n_garbage[run] = min(garbage(root, run) for _ in range(4))
    assert n_garbage["long"] == n_garbage["short"]


def test_server_spares_the_garbage_collector_its_modules(runs, monkeypatch):
    n_frozen = []

    def run(server, sockets):
        n_frozen.append(gc.get_freeze_count())
        sockets[0].close()

    monkeypatch.setattr(uvicorn.Server, "run", run)
    before = gc.get_freeze_count()
    with loader.Root(runs) as root:
        serve(root, port=0, announce=str)
    assert n_frozen[0] > before


def test_run_log_on_disk_is_read_without_a_thread(runs, monkeypatch):
    begun = []
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda self: begun.append(self.name) or start(self))
    with loader.Root(runs) as root:
        read_lean_trail(root, "long")
    assert not [name for name in begun if name.startswith("penstock-trail")]


class Waiting(Counted):
    """A store whose first 8 reads wait for each other."""

    is_local = False

    def __init__(self, store):
        super().__init__(store)
        self.together = threading.Barrier(8, timeout=PATIENCE_S)
        self.reads = itertools.count()

    def get(self, key):
        if key.endswith(".parquet") and next(self.reads) < self.together.parties:
            self.together.wait()
        return self.store.get(key)


def test_run_log_of_a_store_that_lets_readers_wait_is_read_ahead(runs):
    with loader.Root(runs) as root:
        steps = read_lean_trail(root, "long").steps
        root._use(Waiting(root.store))
        waited = read_lean_trail(root, "long").steps
    assert waited.equals(steps)


def test_object_whose_rows_lack_a_value_is_named(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        view = write_photos(root).select("jpg", "cls")
        train(root, loader.plan({"photos": view}, seed=3, global_batch=6), "run", recipe=plain, steps=1)
        for first in (1, 11, 21):
            put_rows(root, "run", first, 10)
        (name,) = (info.key for info in root.store.list(trail_folder("run")) if f"/{11:019d}" in info.key)
        table = pq.read_table(pa.BufferReader(root.store.get(name).data))
        waits = pa.array([None, *range(9)], pa.int64())
        number = table.column_names.index("wait_us")
        root.store.put(name, table_bytes(table.set_column(number, "wait_us", waits), "trail"))
        with refusal(Corrupt, what="columns", within=name, given=["wait_us"]):
            read_lean_trail(root, "run")


def test_live_answer_looks_at_no_file_that_it_knows(runs, monkeypatch):
    with loader.Root(runs) as root:
        opened = Training(root, "long")
        monkeypatch.setattr(LocalStore, "list", None)  # it looks at each file
        assert opened.refresh() is opened
        opened.close()


def test_live_answer_reads_one_new_object_without_a_thread(runs, monkeypatch):
    with loader.Root(runs) as root:
        opened = Training(root, "short")
        put_rows(root, "short", 2 * SIZES["long"], 5)
        begun = []
        start = threading.Thread.start
        monkeypatch.setattr(threading.Thread, "start", lambda self: begun.append(self.name) or start(self))
        newer = opened.refresh()
        opened.close()
    assert newer.last_step == 2 * SIZES["long"] + 4
    assert not [name for name in begun if name.startswith("penstock-trail")]
