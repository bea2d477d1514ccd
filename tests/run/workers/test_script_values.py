"""Worker processes see what the script's transform saw in its own process, or `auto` stays with threads."""

import functools
import re
import sqlite3
import struct
import threading
import zlib
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest

import loader
from loader.run.workers import script_values
from loader.run.workers.script_values import ScriptValues
from tests.servers.processes import python

LEVEL = 1
TABLE = np.arange(4)
GATE = threading.Lock()
OPTIONS = {"level": 1}
LATER = None


def scaled(number):
    return number * LEVEL


def by_level(sample, rng):
    return {"x": scaled(sample["cls"])}


def by_table(sample, rng):
    with GATE:
        return {"x": [TABLE[0] for _ in range(2)]}


def by_options(sample, rng):
    return {"x": (lambda: OPTIONS["level"])()}


def with_a_cache(sample, rng):
    global LATER
    LATER = LATER or object()
    return sample


def by_another_name(sample, rng):
    return {"x": sample.LEVEL, "y": sample.TABLE}


class Scale:
    strength = 1

    def __init__(self, by):
        self.by = by
        self.done = []

    def __call__(self, sample, rng):
        return {"x": self.by * self.strength}


def counting_transform():
    calls = 0

    def transform(sample, rng):
        nonlocal calls
        calls += 1
        return sample

    return transform


def make_values(transform):
    return ScriptValues(SimpleNamespace(transform=transform, decode=True))


@pytest.mark.parametrize(
    ("transform", "name", "value", "text"),
    [
        (by_level, "LEVEL", 2, "the global LEVEL of"),
        (by_table, "TABLE", np.arange(5), "the global TABLE of"),
        (by_options, "OPTIONS", {"level": 2}, "the global OPTIONS of"),
        (functools.partial(by_level), "LEVEL", "2", "the global LEVEL of"),
        (functools.lru_cache(by_level), "LEVEL", None, "the global LEVEL of"),
        (loader.by_bucket({"a": by_options, "b": by_level}), "LEVEL", 1.0, "the global LEVEL of"),
        (SimpleNamespace(steps=[by_table, by_level]), "LEVEL", 2, "the global LEVEL of"),
        (by_level, "scaled", lambda number: number, "the global scaled of"),
        (by_level, "LEVEL", 1, None),
        (by_level, "TABLE", None, None),
        (with_a_cache, "LATER", 7, None),
        (by_another_name, "LEVEL", 2, None),
    ],
)
def test_changed_global_is_named_if_the_transform_reads_it(monkeypatch, transform, name, value, text):
    values = make_values(transform)
    assert (values.obstacle(), values.change()) == (None, None)
    monkeypatch.setitem(globals(), name, value)
    change = values.change()
    assert change is None if text is None else change.startswith(text)


def test_changed_attributes_and_variables_are_named(monkeypatch):
    scale = Scale(2)
    values = make_values(scale)
    scale.by = 3
    assert (
        values.change()
        == "the state of transform, which the transform or a decoder reads, changed since the first batch"
    )
    scale.by = 2
    assert values.change() is None
    scale.done.append(1)
    assert values.change().startswith("the state of transform")
    scale.done.clear()
    monkeypatch.setattr(Scale, "strength", 5)
    assert values.change().startswith("the class attribute Scale.strength")
    values = make_values(loader.by_bucket({"a": by_level, "b": scale}))
    scale.by = 4
    assert values.change().startswith("the state of transform of bucket 'b'")
    transform = counting_transform()
    values = make_values(transform)
    transform({}, None)
    assert values.change().startswith("the variable calls of counting_transform")


def test_array_that_changes_in_place_is_named(monkeypatch):
    monkeypatch.setitem(globals(), "TABLE", TABLE.copy())
    values = make_values(by_table)
    TABLE[2] = 9
    assert values.change().startswith("the global TABLE of")


@pytest.mark.parametrize("value", [open, (number for number in ()), np.zeros(2**20)])
def test_value_that_cannot_be_compared_is_an_obstacle(monkeypatch, value):
    monkeypatch.setattr(script_values, "CAPTURE_BYTES", 2**20)
    monkeypatch.setitem(globals(), "LEVEL", value)
    obstacle = make_values(by_level).obstacle()
    if value is open:
        assert obstacle is None, "functions are compared by identity"
    else:
        assert obstacle.startswith("the global LEVEL of")
        assert "cannot be compared with a later one" in obstacle


@pytest.mark.parametrize(
    ("value", "another"),
    [
        (struct.Struct("<I"), struct.Struct("<I")),
        (sqlite3.connect(":memory:"), sqlite3.connect(":memory:")),
        ([zlib.decompressobj()], [zlib.decompressobj()]),
        (MappingProxyType({"level": 1}), MappingProxyType({"level": 2})),
        (re.compile("a"), re.compile("b")),
    ],
)
def test_value_without_a_pickle_is_the_same_object(monkeypatch, value, another):
    monkeypatch.setitem(globals(), "LEVEL", value)
    values = make_values(by_level)
    assert (values.obstacle(), values.change()) == (None, None)
    monkeypatch.setitem(globals(), "LEVEL", another)
    assert values.change().startswith("the global LEVEL of")


def test_value_that_moves_as_it_is_read_is_an_obstacle(tmp_path):
    with (tmp_path / "rows").open("w") as file:
        for value in (file, struct.iter_unpack("<I", b""), {"level": 1}.items()):
            assert script_values.fingerprint(value).obstacle.startswith("TypeError: cannot pickle")


MOVES = """
import logging, os, sys, time
from itertools import repeat
import loader
import beside
from loader.run import executor
from loader.run.maker_choice import Stages
from loader.run.contention import Contention, Measurement

logging.basicConfig(level="WARNING", format="%(message)s", stream=sys.stdout)
STAGES = Stages(wait_share=0.5, compute_share=0.02, decode_share=0.93, fetch_share=0.02, load=2.5, cores=2.6)
answers = iter((None, *repeat(Measurement(0.0, STAGES), 100_000)))
Contention.add_step = lambda *_: True
Contention.measure = lambda *_: next(answers)
executor.rank_cores = lambda: 3
executor.rank_processes = lambda: 3

LEVEL = 0
url, plan_hash, change, options = sys.argv[1], sys.argv[2], sys.argv[3], eval(sys.argv[4])
plan = loader.open_plan(loader.Root(url), plan_hash)

def transform(sample, rng):
    if os.getpid() != MAIN and "fails" in options:
        raise KeyError("planted")
    return {"cls": sample["cls"], "level": LEVEL, "strength": beside.strength(), "argv": " ".join(sys.argv),
            "pid": os.getpid() != MAIN}

MAIN = os.getpid()
if change == "module":
    beside.STRENGTH = 7
with loader.Loader(plan, 0, 1, transform=transform, workers=1, prefetch=0, framework="numpy",
                   executor=options.get("executor", "auto")) as batches:
    n_moved = 0  # batches of worker processes
    for batch in batches:
        n_moved += all(batch["pid"])
        assert set(batch["strength"].tolist()) == {beside.STRENGTH}
        assert set(batch["argv"]) == {" ".join(sys.argv)}
        if change == "early":
            LEVEL = batch.step + 1
        if change == "late" and n_moved == 3:
            LEVEL = 5
        if batches.executor == "threads" and "but" in batches.executor_reason:
            break
        if n_moved == (1000 if change == "late" else 6):
            break
        time.sleep(0.002)
    if change == "late" and batches.executor == "threads":
        assert set(next(batches)["level"].tolist()) == {5}
    print(batches.executor, "|", batches.executor_reason)
"""
MODULE = """
import sys

STRENGTH, SCRIPT = 1, sys.argv[0]

def strength():
    return STRENGTH
"""


@pytest.fixture
def run_moves(tmp_path, samples):
    """run_moves(change, **options) -> result of MOVES."""
    root = loader.Root(str(tmp_path / "root"))
    version = samples.write(root, "photos", range(40), fields=("cls",))
    plan = loader.plan({"photos": version}, seed=3, global_batch=4)
    plan.save(root)
    script = tmp_path / "train.py"
    script.write_text(MOVES)
    Path(tmp_path, "beside.py").write_text(MODULE)

    def do(change, **options):
        return python(script, root.url, plan.hash, change, repr(options))

    return do


def test_workers_have_the_scripts_arguments_and_values(run_moves):
    done = run_moves("none")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("processes |"), done.stdout


def test_auto_stays_with_threads_if_the_script_changed_a_global(run_moves):
    done = run_moves("early")
    assert done.returncode == 0, done.stderr
    end = done.stdout.splitlines()[-1]
    assert end.startswith("threads |")
    assert (
        "the global LEVEL of the script, which the transform or a decoder reads, changed since the first batch"
        in end
    )
    assert "threads make the batches, though worker processes would be faster" in done.stdout


def test_auto_goes_back_to_threads_if_the_script_changes_a_global(run_moves):
    done = run_moves("late")
    assert done.returncode == 0, done.stderr
    end = done.stdout.splitlines()[-1]
    assert end.startswith("threads | worker processes were faster, but the global LEVEL of the script")
    assert "threads make the batches from now on" in done.stdout


def test_auto_stays_with_threads_if_a_module_has_another_value_in_a_worker(run_moves):
    done = run_moves("module")
    assert done.returncode == 0, done.stderr
    end = done.stdout.splitlines()[-1]
    assert end.startswith("threads |")
    assert "the global STRENGTH of beside is 7 in the training, and 1 in a worker process" in end


def test_processes_that_were_asked_for_warn_once(run_moves):
    done = run_moves("late", executor="processes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("processes |")
    assert (
        len(
            re.findall(
                "the global LEVEL of the script, which the transform or a decoder reads, changed", done.stdout
            )
        )
        == 1
    )


def test_error_of_a_worker_that_auto_chose_names_the_move(run_moves):
    done = run_moves("none", fails=True)
    assert done.returncode == 1
    assert "KeyError: 'planted'" in done.stderr
    assert re.search(r"run in worker processes since step \d+, because decoders and transforms", done.stderr)
