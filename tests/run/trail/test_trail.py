"""The trail of a run: a row for each time that a step was handed out, with its notes; it never ends a training."""

import hashlib
import json
import logging
import math
import os
import subprocess
import sys
import threading
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from loader.dataset.tables.parquet import table_bytes
from loader.errors import Corrupt, Forbidden, FormatTooNew, InvalidName, InvalidRuntime, RunNotFound
from loader.run.trail import recorder, step_rows
from loader.run.trail.step_range_reads import read_rank_trail
from tests.dataset.stores import Counting
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S, until


@pytest.fixture
def plan(memory_root, samples):
    version = samples.write(memory_root, "photos", range(40), part_samples=9)
    return loader.plan({"photos": version.select("cls", "x.npy")}, seed=5, global_batch=8)


def train(plan, trail, steps=6, rank=0, world_size=1, seek=0, **options):
    """Digests of the steps that were handed out."""
    options = {"framework": "numpy", "workers": 0, **options}
    with loader.Loader(plan, rank, world_size, steps=steps, trail=trail, **options) as batches:
        batches.seek(seek)
        found = []
        for batch in batches:
            batches.note(loss=batch.step / 2)
            found.append(batch.digest)
    return found


def table_rows(root, run="r"):
    """The rows of a run's trail as its tables hold them, which need no polars."""
    keys = sorted(info.key for info in root.store.list(f"trails/{run}/") if info.key.endswith(".parquet"))
    tables = [pq.read_table(pa.BufferReader(root.store.get(key).data), use_threads=False) for key in keys]
    return [row for table in tables for row in table.to_pylist()]


def test_every_step_is_read_back(memory_root, plan):
    trail = loader.Trail(memory_root, "big-7", recipe="train:recipe", tensors_every=4, code="a3f")
    digests = train(plan, trail)
    found = loader.read_trail(memory_root, "big-7")
    steps = found.steps
    assert steps["step"].to_list() == list(range(6))
    assert steps["digest"].to_list() == digests
    assert steps["note.loss"].to_list() == [0, 0.5, 1, 1.5, 2, 2.5]
    assert set(zip(steps["rank"], steps["world_size"], steps["substituted"], strict=True)) == {(0, 1, 0)}
    assert steps["at_us"].is_sorted()
    assert (steps["wait_us"] > 0).all()
    assert found.notes == ("loss",)
    assert set(found.fields) == {"cls", "x.npy"}
    assert steps["crc.x.npy"].is_null().to_list() == [False, True, True, True, False, True]
    (start,) = found.starts
    assert (start.plan, start.recipe, start.code, start.world_size) == (plan.hash, "train:recipe", "a3f", 1)
    assert start.libraries["numpy"] == np.__version__
    assert set(steps["start"]) == {start.id}
    assert found.start(start.id) is start
    assert loader.open_plan(memory_root, start.plan) == plan  # which nobody else had saved
    assert found.differing == ()


def test_look_back_gives_the_checksums_that_are_on_record(memory_root, plan):
    train(plan, loader.Trail(memory_root, "r", tensors_every=2))
    found = loader.read_trail(memory_root, "r").steps
    with loader.Loader(
        plan, 0, 1, framework="numpy", workers=0, trail=loader.Trail(memory_root, "again", tensors_every=1)
    ) as again:
        for step in (4, 0, 2):
            again.seek(step)
            next(again)
    seen = loader.read_trail(memory_root, "again").steps
    columns = ["step", "digest", "crc.cls", "crc.x.npy"]
    assert seen.select(columns).rows() == found.filter(found["step"].is_in([0, 2, 4])).select(columns).rows()
    assert found["crc.x.npy"].drop_nulls().n_unique() == 3


def test_resumed_run_has_its_repeated_steps_twice(memory_root, plan):
    trail = loader.Trail(memory_root, "r")
    train(plan, trail)
    train(plan, trail, steps=8, seek=4)
    found = loader.read_trail(memory_root, "r")
    assert found.steps["step"].to_list() == [0, 1, 2, 3, 4, 4, 5, 5, 6, 7]
    assert len(found.starts) == 1  # nothing of the code had changed
    assert found.differing == ()


def test_steps_that_differ_between_two_tries_are_named(memory_root, plan):
    trail = loader.Trail(memory_root, "r")
    train(plan, trail)
    other = plan.quarantined({"photos": [plan.batch_ids(4)[3][1]]}, 4)
    train(other, trail, seek=3)
    found = loader.read_trail(memory_root, "r")
    assert found.differing == (4,)
    assert {one.plan for one in found.starts} == {plan.hash, other.hash}
    of_plan = {one.id: one.plan for one in found.starts}
    assert [of_plan[id] for id in found.steps.filter(found.steps["step"] == 4)["start"]] == [
        plan.hash,
        other.hash,
    ]


def test_steps_repeated_with_other_metrics_are_named(memory_root, plan):
    for first, loss in ((0, 1.0), (2, 2.0)):
        trail = loader.Trail(memory_root, "r")
        with loader.Loader(plan, framework="numpy", workers=0, trail=trail, steps=6) as batches:
            batches.seek(first)
            for batch in batches:
                if batch.step != 4 or first == 0:
                    batches.note(loss=loss if batch.step == 3 else batch.step, nan=float("nan"))
    assert loader.read_trail(memory_root, "r").differing == ()
    assert loader.read_trail(memory_root, "r").differing_notes == (3,)


def test_ranks_that_are_recorded(memory_root, plan):
    for run, ranks in (("first", "first"), ("all", "all"), ("some", (1, 2))):
        for rank in range(3):
            train(plan, loader.Trail(memory_root, run, ranks=ranks), steps=2, rank=rank, world_size=3)
    rows = {run: loader.read_trail(memory_root, run).steps for run in ("first", "all", "some")}
    assert {run: sorted(set(found["rank"])) for run, found in rows.items()} == {
        "first": [0],
        "all": [0, 1, 2],
        "some": [1, 2],
    }
    assert len(loader.read_trail(memory_root, "all").starts) == 1
    whole = train(plan, loader.Trail(memory_root, "alone"), steps=2)
    sums = [
        sum(rows["all"].filter(rows["all"]["step"] == step)["digest"].to_list()) % 2**64 for step in range(2)
    ]
    assert sums == whole
    trail = loader.read_trail(memory_root, "all")
    assert trail.whole.select("step", "world_size", "digest").rows() == [(0, 3, whole[0]), (1, 3, whole[1])]
    assert len(loader.read_trail(memory_root, "some").whole) == 0
    train(plan, loader.Trail(memory_root, "all"), steps=1)
    assert loader.read_trail(memory_root, "all").differing == ()
    other = plan.quarantined({"photos": [plan.batch_ids(1)[0][1]]}, 1)
    train(other, loader.Trail(memory_root, "all"), steps=2, seek=1)
    assert loader.read_trail(memory_root, "all").differing == (1,)


@pytest.mark.parametrize(
    "options", [{"executor": "threads", "workers": 2}, {"executor": "processes", "workers": 1}]
)
def test_other_executors_leave_the_same_rows(tmp_path, samples, options):
    root = loader.Root(str(tmp_path))  # worker processes cannot read a memory root
    version = samples.write(root, "photos", range(40), part_samples=9)
    plan = loader.plan({"photos": version}, seed=5, global_batch=8)
    train(plan, loader.Trail(root, "caller", tensors_every=2))
    train(plan, loader.Trail(root, "other", tensors_every=2), **options)
    one, two = (loader.read_trail(root, run).steps for run in ("caller", "other"))
    assert len(one) == 6
    assert {name for name in one.columns if name.startswith("crc.")} == {
        f"crc.{name}" for name in samples.sample("photos", 0)
    }
    drop = ["at_us", "wait_us", "start"]
    assert one.drop(drop).rows() == two.drop(drop).rows()


def largest(memory_root, run="r"):
    return [
        [(one["note"], one["slot"], one["value"]) for one in step]
        for step in loader.read_trail(memory_root, run).steps["largest"].to_list()
    ]


def test_largest_values_are_kept_with_their_slots(memory_root, plan):
    with loader.Loader(
        plan, 1, 2, framework="numpy", workers=0, trail=loader.Trail(memory_root, "r", ranks="all")
    ) as batches:
        next(batches)
        batches.note(per_sample={"loss": [1.0, math.nan, math.inf, 2.0]})
        next(batches)
        given = np.array([4, 3, 2, 1])
        batches.note(loss=np.float32(7), per_sample={"loss": given, "norm": [0, 0, 0, 9]})
        given[:] = 0
    first, second = largest(memory_root)
    assert [slot for _, slot, _ in first] == [5, 6, 7, 4]
    assert math.isnan(first[0][2])
    assert second[:4] == [("loss", 4, 4), ("loss", 5, 3), ("loss", 6, 2), ("loss", 7, 1)]
    assert second[4] == ("norm", 7, 9)
    assert loader.read_trail(memory_root, "r").steps["note.loss"].to_list() == [None, 7]


def test_sixteen_of_many(memory_root, samples):
    version = samples.write(memory_root, "photos", range(40))
    plan = loader.plan({"photos": version.select("cls")}, seed=5, global_batch=40)
    with loader.Loader(
        plan, 0, 1, framework="numpy", workers=0, trail=loader.Trail(memory_root, "r")
    ) as batches:
        next(batches)
        batches.note(per_sample={"loss": np.arange(40) % 37})
    (found,) = largest(memory_root)
    assert [slot for _, slot, _ in found] == list(range(36, 20, -1))


def test_micro_batches_are_noted_one_by_one(memory_root, plan):
    digests = train(plan, loader.Trail(memory_root, "whole"), steps=2)
    with loader.Loader(
        plan, 0, 1, framework="numpy", workers=0, micro_batch=3, steps=2, trail=loader.Trail(memory_root, "r")
    ) as batches:
        for batch in batches:
            batches.note(loss=batch.micro, per_sample={"loss": batch["cls"]})
            with refusal(InvalidRuntime, what="note 'loss'", given="shape (8,)"):
                batches.note(per_sample={"loss": range(8)})
    found = loader.read_trail(memory_root, "r").steps
    assert found["digest"].to_list() == digests
    assert found["note.loss"].to_list() == [2, 2]
    for step, rows in enumerate(largest(memory_root)):
        numbers = [int(key[-3:]) for _, key in plan.batch_ids(step)]
        assert {slot: value for _, slot, value in rows} == dict(enumerate(numbers))


def test_padding_is_no_sample(memory_root, samples):
    version = samples.write(memory_root, "photos", range(5))
    plan = loader.plan({"photos": version.select("cls")}, seed=5, global_batch=4)
    trail = loader.Trail(memory_root, "r")
    with loader.Loader(plan, 0, 1, framework="numpy", workers=0, epochs=1, trail=trail) as batches:
        for _ in batches:
            batches.note(per_sample={"loss": [math.nan] * 4})
    assert list(map(len, largest(memory_root))) == [4, 1]
    assert loader.read_trail(memory_root, "r").starts[0].epochs == 1


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_torch_values_are_those_of_the_moment(memory_root, plan, device):
    import torch

    with loader.Loader(
        plan, 0, 1, workers=0, trail=loader.Trail(memory_root, "r", tensors_every=1)
    ) as batches:
        next(batches)
        loss = torch.full((), 2.5, requires_grad=True, device=device) * 1
        losses = torch.arange(8, dtype=torch.bfloat16, device=device)
        batches.note(loss=loss, per_sample={"loss": losses})
        with torch.no_grad():
            loss.zero_()
            losses.zero_()
    (row,) = table_rows(memory_root)
    assert row["note.loss"] == 2.5
    assert row["largest"][0] == {"note": "loss", "slot": 7, "value": 7.0}
    assert row["crc.x.npy"] is not None


@pytest.mark.gpu
def test_notes_of_any_stream_are_waited_for_by_the_writer_alone(memory_root, plan):
    """The stream is half a second behind its notes when the writer takes them."""
    import torch

    stream, moved = torch.cuda.Stream(), []
    with torch.cuda.stream(stream):  # what is done for the first time would wait
        (torch.zeros(8, dtype=torch.int64, device="cuda") * 1.0 + 99).sum().item()
    with loader.Loader(plan, 0, 1, workers=0, steps=3, trail=loader.Trail(memory_root, "r")) as batches:
        for batch in batches:
            moved.append(batch.to("cuda"))
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(300_000_000)
                losses = moved[-1]["cls"] * 1.0 + batch.step
                batches.note(loss=losses.sum(), per_sample={"loss": losses})
            assert not stream.query(), "the training waited"
    rows = table_rows(memory_root)
    assert len(rows) == 3
    for row in rows:
        numbers = [int(key[-3:]) + row["step"] for _, key in plan.batch_ids(row["step"])]
        assert row["note.loss"] == sum(numbers)
        assert {one["slot"]: one["value"] for one in row["largest"]} == dict(enumerate(numbers))


def test_notes_that_cannot_be_are_refused(memory_root, plan):
    with loader.Loader(
        plan, 0, 1, framework="numpy", workers=0, trail=loader.Trail(memory_root, "r")
    ) as batches:
        with refusal(InvalidRuntime, what="note", where="first batch"):
            batches.note(loss=1)
        next(batches)
        for value in ("high", None, [1.0], np.ones(3)):
            with refusal(InvalidRuntime, what="note 'loss'", given=value):
                batches.note(loss=value)
        wrong = (
            (np.ones(7), "shape (7,)"),
            (np.ones((8, 1)), "shape (8, 1)"),
            (3.0, "float"),
            ("abcdefgh", "str"),
        )
        for values, kind in wrong:
            with refusal(InvalidRuntime, what="note 'loss'", given=kind, accepted="8 numbers"):
                batches.note(loss=1.0, per_sample={"loss": values})
        with refusal(InvalidRuntime, what="note", where="step 0", given=201):
            batches.note(**{f"n{i}": i for i in range(201)})
    assert loader.read_trail(memory_root, "r").notes == ()
    with loader.Loader(plan, 0, 1, framework="numpy", workers=0) as batches:
        next(batches)
        with refusal(InvalidRuntime, what="note", accepted="Loader(trail=)"):
            batches.note(loss=1.0)


class Refusing:
    """A store that refuses trails, as long as it is told to."""

    def __init__(self, store):
        self.inner, self.refuses = store, True

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def put_if_absent(self, key, data):
        if self.refuses and key.startswith("trails/"):
            raise Forbidden(f"{key}: not yours")
        self.inner.put_if_absent(key, data)


def test_root_that_refuses_ends_nothing(memory_root, plan, caplog):
    memory_root.store = Refusing(memory_root.store)
    assert len(train(plan, loader.Trail(memory_root, "r"))) == 6
    told = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert told
    assert "'r' lacks steps 0 to 5" in told[-1].getMessage()
    assert "trails/r/" in told[-1].getMessage()
    with pytest.raises(RunNotFound):
        loader.read_trail(memory_root, "r")


class Hanging(Refusing):
    """A store that does not answer when a trail is written."""

    def __init__(self, store):
        super().__init__(store)
        self.refuses, self.over = False, threading.Event()

    def put_if_absent(self, key, data):
        if key.startswith("trails/"):
            self.over.wait()
        super().put_if_absent(key, data)


def test_ctrl_c_does_not_wait_for_a_store_that_does_not_answer(memory_root, plan):
    memory_root.store = store = Hanging(memory_root.store)

    def interrupt_training():
        with (
            suppress(KeyboardInterrupt),
            loader.Loader(
                plan, 0, 1, framework="numpy", workers=0, trail=loader.Trail(memory_root, "r")
            ) as one,
        ):
            next(one)
            raise KeyboardInterrupt

    training = threading.Thread(target=interrupt_training)
    training.start()
    training.join(PATIENCE_S)
    ended = not training.is_alive()
    store.over.set()
    assert ended


def test_rows_that_could_not_be_written_come_with_the_next(memory_root, plan, monkeypatch, caplog):
    monkeypatch.setattr(recorder, "SECONDS", 0.005)
    monkeypatch.setattr(recorder, "GAP_S", 0.005)
    memory_root.store = store = Refusing(memory_root.store)
    with loader.Loader(
        plan, 0, 1, framework="numpy", workers=0, steps=4, trail=loader.Trail(memory_root, "r")
    ) as batches:
        for batch in batches:
            if batch.step == 2:
                until(lambda: any("steps 0" in record.getMessage() for record in caplog.records))
                store.refuses = False
    assert loader.read_trail(memory_root, "r").steps["step"].to_list() == [0, 1, 2, 3]


def test_notes_that_come_late_are_written_too(memory_root, plan, monkeypatch):
    monkeypatch.setattr(recorder, "GAP_S", 0.005)
    with loader.Loader(
        plan, 0, 1, framework="numpy", workers=0, trail=loader.Trail(memory_root, "r")
    ) as batches:
        next(batches)
        batches.note(norm=1)
        batches.state_dict()
        until(lambda: any("-of-1/" in info.key for info in memory_root.store.list("trails/")))
        batches.note(loss=3, per_sample={"loss": range(8)})
        next(batches)
    found = loader.read_trail(memory_root, "r").steps
    assert found["step"].to_list() == [0, 1]
    assert found["note.loss"].to_list() == [3, None]
    assert found["note.norm"].to_list() == [1, None]
    assert found["largest"].list.len().to_list() == [8, 0]


def test_trail_read_again_reads_the_new_objects_alone(memory_root, plan, monkeypatch):
    monkeypatch.setattr(recorder, "GAP_S", 0.005)
    for rank in range(2):
        train(plan, loader.Trail(memory_root, "r", ranks="all"), steps=3, rank=rank, world_size=2)
    known = loader.read_trail(memory_root, "r")
    store = Counting(memory_root.store)
    memory_root._use(store)
    assert loader.read_trail(memory_root, "r", known) is known
    assert store.calls == {("list", "trails"): 1}

    trail = loader.Trail(memory_root, "r")
    with loader.Loader(plan, 0, 1, framework="numpy", workers=0, trail=trail) as batches:
        batches.seek(2)
        next(batches)
        batches.state_dict()
        until(lambda: any("0-of-1/" in info.key for info in memory_root.store.list("trails/")))
        middle = loader.read_trail(memory_root, "r", known)
        batches.note(loss=8, per_sample={"loss": range(8)})  # which writes the row anew
        next(batches)
    store.calls.clear()
    found = loader.read_trail(memory_root, "r", middle)
    new = found.objects - middle.objects
    assert sum(n for (verb, _), n in store.calls.items() if verb.startswith("get")) == len(new)
    assert found.steps.equals(loader.read_trail(memory_root, "r").steps)
    assert found.steps.filter(found.steps["world_size"] == 1)["note.loss"].to_list() == [8, None]
    assert found.steps.select("step", "rank").rows() == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        *[(2, 0)] * 2,
        (2, 1),
        (3, 0),
    ]


KILLED = """
import sys, time
import loader
from loader.run.trail import recorder, step_rows
from loader.storage import threads

recorder.SECONDS = recorder.GAP_S = 0.05
threads.LEAVE_S = 60.0  # a second may not suffice on a busy machine
root = loader.Root(sys.argv[1])
plan = loader.open_plan(root, sys.argv[2])
batches = loader.Loader(plan, 0, 1, framework="numpy", workers=0, trail=loader.Trail(root, "r"))
for _ in range(5):
    next(batches)
    batches.note(loss=1.0)
if sys.argv[3] == "killed":
    while not any("-of-1/" in info.key for info in root.store.list("trails/")):
        time.sleep(0.01)
    print("written", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("end", ["killed", "forgotten"])
def test_process_that_does_not_close_its_loader(tmp_path, samples, end):
    root = loader.Root(str(tmp_path / "root"))
    plan = loader.plan({"photos": samples.write(root, "photos", range(40))}, seed=9, global_batch=8)
    plan.save(root)
    command = [sys.executable, "-c", KILLED, root.url, plan.hash, end]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        if end == "killed":
            assert process.stdout.readline() == "written\n"
            process.kill()
    steps = loader.read_trail(root, "r").steps["step"].to_list()
    assert steps == list(range(len(steps)))
    assert len(steps) >= (5 if end == "forgotten" else 1)


def test_code_is_known_by_its_file(memory_root, plan, tmp_path, monkeypatch):
    (tmp_path / "my_transforms.py").write_text(
        "def twice(sample, rng):\n    return {'x': sample['x.npy'] * 2}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import my_transforms

    decode = {"cls": Secretive("s3://me:hunter2@store/labels")}
    train(
        plan,
        loader.Trail(memory_root, "r", code="https://me:hunter2@git/x 3af"),
        transform=my_transforms.twice,
        decode=decode,
    )
    (start,) = loader.read_trail(memory_root, "r").starts
    file = (tmp_path / "my_transforms.py").read_bytes()
    assert start.transforms[""].name == "my_transforms:twice"
    assert start.transforms[""].sha256 == hashlib.sha256(file).hexdigest()
    assert start.decoders["cls"][""].name == f"{__name__}:Secretive"
    assert start.decoders["x.npy"][""].name == "loader.modalities.array:decode"
    (key,) = [info.key for info in memory_root.store.list("trails/r/start-")]
    assert b"hunter2" not in memory_root.store.get(key).data
    assert b"git/x 3af" in memory_root.store.get(key).data


class Secretive:
    def __init__(self, url):
        self.url = url

    def __repr__(self):
        return f"Secretive({self.url})"

    def __call__(self, data, rng):
        return int(data)


def test_what_a_trail_is_made_of_is_checked(memory_root, plan):
    for run in ("", "..", "a/b", "a b", "x" * 101, 7, "../r"):
        with refusal(InvalidName, what="run", given=run):
            loader.Trail(memory_root, run)
    for wrong in (
        {"ranks": "last"},
        {"ranks": ()},
        {"ranks": (-1,)},
        {"ranks": [0]},
        {"tensors_every": -1},
        {"tensors_every": True},
        {"recipe": "rm -rf /"},
        {"code": "x" * 2001},
    ):
        ((name, value),) = wrong.items()
        name = "Trail: tensors_every" if name == "tensors_every" else name
        with refusal(InvalidRuntime, what=name, given=value):
            loader.Trail(memory_root, "r", **wrong)
    with refusal(InvalidRuntime, what="root", where="Trail", given="data"):
        loader.Trail("data", "r")
    with refusal(InvalidRuntime, what="trail", given=memory_root):
        loader.Loader(plan, 0, 1, trail=memory_root)


def test_run_that_is_not_there_and_one_that_is_damaged(memory_root, plan):
    train(plan, loader.Trail(memory_root, "one"), steps=2)
    with refusal(RunNotFound, what="run", where=memory_root.url, given="two", accepted=["one"]):
        loader.read_trail(memory_root, "two")
    store = memory_root.store
    (key,) = [info.key for info in store.list("trails/one/start-")]
    body = json.loads(store.get(key).data)
    store.put_if_absent("trails/new/" + key.rpartition("/")[2], json.dumps({**body, "format": 99}).encode())
    with refusal(FormatTooNew, what="trail format", accepted=1):
        loader.read_trail(memory_root, "new")
    store.put_if_absent("trails/bad/" + key.rpartition("/")[2], b"{}")
    with refusal(Corrupt, what="start of a trail", given="KeyError"):
        loader.read_trail(memory_root, "bad")
    store.put_if_absent(f"trails/worse/0-of-1/{0:019d}-{0:016x}.parquet", b"PAR1")
    with pytest.raises(Corrupt, match="not a readable Parquet"):
        loader.read_trail(memory_root, "worse")


def test_dataset_of_torch_takes_no_trail(memory_root, plan):
    with refusal(InvalidRuntime, what="trail", where="torch_dataset"):
        loader.torch_dataset(plan, 0, 1, trail=loader.Trail(memory_root, "r"))


def test_recorders_thread_collects_its_loader_as_a_wait_begins(memory_root, plan, monkeypatch):
    """In the middle of a wait of `threading`, which holds a lock there."""
    real, batches, waits = threading.Condition.wait, None, threading.Event()

    def wait(condition, timeout=None):
        if threading.current_thread().name == "penstock-trail" and batches is not None:
            waits.set()
            batches._recorder.dismiss()
        return real(condition, timeout)

    monkeypatch.setattr(threading.Condition, "wait", wait)
    batches = loader.Loader(
        plan, 0, 1, steps=2, workers=0, framework="numpy", trail=loader.Trail(memory_root, "r")
    )
    next(batches)
    waits.wait(1)
    batches._recorder.dismiss()
    batches._recorder.join(PATIENCE_S)
    assert not batches._recorder._thread.is_alive()
    batches.close()
    assert [row["step"] for row in table_rows(memory_root)] == [0]


@pytest.mark.parametrize("n_starts", [2, 20])
def test_part_of_a_trail_costs_its_steps_and_a_read_per_start(memory_root, plan, n_starts):
    rows_of = dict[int, list[int]]()
    for start in range(n_starts):
        trail = loader.Trail(memory_root, "r", code=str(start))
        with loader.Loader(
            plan, 0, 1, steps=10 * start + 12, trail=trail, framework="numpy", workers=0
        ) as batches:
            batches.seek(10 * start)  # two steps of the start before are done again
            for batch in batches:
                batches.note(loss=batch.step / 2, start=start)
                rows_of.setdefault(batch.step, []).append(start)
    counted = Counting(memory_root.store)
    root = loader.Root(memory_root.url)
    root._use(counted)
    for steps in (range(13, 17), range(19, 22), range(10 * n_starts, 10 * n_starts + 5)):
        before = counted.of("get")
        part = read_rank_trail(root, "r", steps).steps
        expected = [(step, start) for step in steps for start in rows_of.get(step, ())]
        assert list(zip(part["step"], part["note.start"], strict=True)) == expected
        assert counted.of("get") - before <= 2 * n_starts + 1
    whole = loader.read_trail(memory_root, "r").steps
    assert read_rank_trail(memory_root, "r", range(10**6)).steps["digest"].equals(whole["digest"])


def test_part_of_a_long_trail_reads_few_objects(tmp_path, samples):
    disk_root = loader.Root(tmp_path)  # a store that knows when an object was written
    version = samples.write(disk_root, "photos", range(40))
    plan = loader.plan({"photos": version.select("cls")}, seed=5, global_batch=8)
    train(plan, loader.Trail(disk_root, "r"), steps=2)
    store, folder = disk_root.store, "trails/r/0-of-1/"
    (info,) = store.list(folder)
    table = pq.read_table(pa.BufferReader(store.get(info.key).data))
    for first in range(2, 400, 2):
        column = pa.array([first, first + 1], pa.int64())
        moved = table.set_column(table.schema.get_field_index("step"), "step", column)
        store.put(f"{folder}{first:019d}-{first:016x}.parquet", table_bytes(moved, step_rows.TABLE))
    counted = Counting(store)
    root = loader.Root(tmp_path)
    root._use(counted)
    part = read_rank_trail(root, "r", range(201, 207))
    assert part.steps["step"].to_list() == list(range(201, 207))
    assert counted.of("get") <= 7, "five tables of 200, and the start"


def test_part_of_a_trail_has_the_last_try_of_each_step(tmp_path, samples):
    """Starts overlap, and objects are read by the time of their writes; of two ranks the first one counts."""
    disk_root = loader.Root(tmp_path)
    version = samples.write(disk_root, "photos", range(40))
    plan = loader.plan({"photos": version.select("cls")}, seed=5, global_batch=8)
    train(plan, loader.Trail(disk_root, "r"), steps=2)
    store = disk_root.store
    (info,) = store.list("trails/r/0-of-1/")
    table = pq.read_table(pa.BufferReader(store.get(info.key).data)).slice(0, 1)
    store.delete_many([info.key])
    starts = [[range(10), range(10, 20)], [range(5, 10)], [range(8, 12)]]
    for at, steps in enumerate(steps for start in starts for steps in start):
        rows = pa.concat_tables([table] * len(steps)).to_pydict()
        rows |= {"step": list(steps), "at_us": [1000 * at + step for step in steps]}
        for rank in (0, 1):
            key = f"trails/r/{rank}-of-2/{steps[0]:019d}-{at:016x}.parquet"
            store.put(key, table_bytes(pa.table(rows, table.schema), step_rows.TABLE))
            os.utime(tmp_path / key, (1000 + at, 1000 + at))
    tries = loader.read_trail(disk_root, "r").steps.sort("at_us").unique(["step", "rank"], keep="last")
    last = {row["step"]: row["at_us"] for row in tries.filter(tries["rank"] == 0).to_dicts()}
    for steps in (range(9, 10), range(11, 14), range(12, 20), range(16, 19), range(20)):
        part = read_rank_trail(disk_root, "r", steps).steps
        assert set(part["rank"]) == {0}
        assert {row["step"]: row["at_us"] for row in part.to_dicts()} == {step: last[step] for step in steps}


def test_part_of_a_trail_has_steps_after_a_seek_back(memory_root, plan):
    trail = loader.Trail(memory_root, "r")
    with loader.Loader(plan, 0, 1, framework="numpy", workers=0, trail=trail) as batches:
        for first in (3, 0):
            batches.seek(first)
            next(batches), next(batches)
    for step in (0, 1, 3, 4):
        assert read_rank_trail(memory_root, "r", range(step, step + 1)).steps["step"].to_list() == [step]


def plans_of_steps(root, samples, stops):
    """Plans that follow one another, each up to a step of `stops`."""
    version = samples.write(root, "photos", range(40), part_samples=9)
    plans = []
    first = 0
    for stop in stops:
        view = loader.listed(version.select("cls", "x.npy"), range(8 * first, 8 * stop))
        plan = loader.plan({"photos": view}, seed=5, global_batch=8, boundary="mask", first_step=first)
        plan.save(root)
        plans.append(plan)
        first = stop
    return plans


def train_in_turn(plans, stops, trail, **options):
    digests = []
    for plan, stop in zip(plans, stops, strict=True):
        with loader.Loader(plan, 0, 1, steps=stop, trail=trail, workers=0, **options) as batches:
            for batch in batches:
                batches.note(loss=batch.step / 2, per_sample={"r": np.arange(len(batch))})
                digests.append(batch.digest)
    return digests


def test_run_recorder_serves_loaders_that_follow_one_another(memory_root, samples):
    """Four plans of five steps: one thread, one start without a plan, and one object of rows."""
    stops = [1, 3, 4, 5]
    plans = plans_of_steps(memory_root, samples, stops)
    shared = recorder.RunRecorder(loader.Trail(memory_root, "r"))
    others = set(threading.enumerate())
    digests = train_in_turn(plans, stops, shared, framework="numpy")
    assert len(set(threading.enumerate()) - others) == 1
    shared.close(wait=True)
    assert set(threading.enumerate()) <= others

    trail = loader.read_trail(memory_root, "r")
    assert trail.steps["step"].to_list() == list(range(5))
    assert trail.steps["digest"].to_list() == digests
    assert trail.steps["note.loss"].to_list() == [0, 0.5, 1, 1.5, 2]
    assert [len(largest) for largest in trail.steps["largest"]] == [8] * 5
    assert [start.plan for start in trail.starts] == [""]
    objects = [info.key for info in memory_root.store.list("trails/r/")]
    assert len(objects) <= 3, objects  # the start, and rows once the thread began and at the end


def test_run_recorder_begins_again_after_it_was_closed(memory_root, samples):
    stops = [1, 3]
    plans = plans_of_steps(memory_root, samples, stops)
    shared = recorder.RunRecorder(loader.Trail(memory_root, "r"))
    for plan, stop in zip(plans, stops, strict=True):
        train_in_turn([plan], [stop], shared, framework="numpy")
        shared.close(wait=True)
    trail = loader.read_trail(memory_root, "r")
    assert trail.steps["step"].to_list() == [0, 1, 2]
    assert len(trail.starts) == 1


def test_run_recorder_writes_rows_of_a_failed_close_later(memory_root, samples):
    stops = [2, 4]
    plans = plans_of_steps(memory_root, samples, stops)
    shared = recorder.RunRecorder(loader.Trail(memory_root, "r"))
    memory_root.store = store = Refusing(memory_root.store)
    train_in_turn(plans[:1], stops[:1], shared, framework="numpy")
    shared.close(wait=True)
    store.refuses = False
    with loader.Loader(plans[1], 0, 1, trail=shared, workers=0, framework="numpy") as batches:
        batches.seek(2)
        with refusal(InvalidRuntime, what="note", where="first batch"):
            batches.note(loss=1.0)
        assert next(batches).step == 2
        batches.note(loss=1.0)
    shared.close(wait=True)
    trail = loader.read_trail(memory_root, "r")
    assert trail.steps["step"].to_list() == [0, 1, 2]
    assert trail.steps["note.loss"].to_list() == [0, 0.5, 1]


def test_run_recorder_obeys_the_ranks_of_its_trail(memory_root, samples):
    (plan,) = plans_of_steps(memory_root, samples, [2])
    shared = recorder.RunRecorder(loader.Trail(memory_root, "r", ranks=(1,)))
    with loader.Loader(plan, 0, 2, steps=2, trail=shared, workers=0, framework="numpy") as batches:
        batches.note(loss=1.0)
        assert len(list(batches)) == 2
    shared.close(wait=True)
    assert list(memory_root.store.list("trails/")) == []
