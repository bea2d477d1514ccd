"""Batches of worker processes in shared memory: never changed while somebody holds them, and bounded in bytes."""

import functools
import gc
import os

import numpy as np
import pytest

import loader
from loader.run.workers import batch_memory

PROCESSES = {"executor": "processes", "workers": 1, "framework": "numpy"}
BATCH = 8 * 2**16  # bytes of a batch of `worker_transforms.large`


@pytest.fixture(scope="module")
def plan(tmp_path_factory, samples):
    root = loader.Root(str(tmp_path_factory.mktemp("memory") / "root"))
    version = samples.write(root, "photos", range(50), part_samples=11, fields=("cls",))
    return loader.plan({"photos": version}, seed=8, global_batch=8)


def loader_ring(batches):
    return batches._execution.prefetch()._maker._ring


def check(x, ids):
    numbers = [int(key[-3:]) for _, key in ids]
    assert x.reshape(len(ids), -1).min(axis=1).tolist() == numbers
    assert x.reshape(len(ids), -1).max(axis=1).tolist() == numbers


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_batch_that_is_held_never_changes(plan, in_workers, framework):
    """However little of it is held; where all memory is held, more is made, and given back later."""
    options = {**PROCESSES, "framework": framework, "transform": in_workers.large, "prefetch": 3 * BATCH}
    with loader.Loader(plan, 0, 1, **options) as batches:
        whole, rows, ids = [], [], {}
        for batch in batches:
            ids[batch.step] = batch.ids
            if batch.step % 3 == 0:
                whole.append(batch)
            elif batch.step % 3 == 1:
                rows.append((batch.step, batch["x"][2:4][:, 5:]))
            if batch.step == 40:
                break
        del batch
        for one in whole:
            check(np.asarray(one["x"]), one.ids)
        for step, row in rows:
            check(np.asarray(row), ids[step][2:4])
        del whole, one
        for _ in range(10):
            next(batches)
        for step, row in rows:
            check(np.asarray(row), ids[step][2:4])
        del rows, row
        gc.collect()
        for _ in range(5):
            next(batches)
        assert loader_ring(batches).nbytes <= (3 + 2 + 2) * 2 * BATCH


def test_more_batches_than_segments_are_copied(plan, in_workers, monkeypatch):
    monkeypatch.setattr(batch_memory, "MAX_SEGMENTS", 4)
    with loader.Loader(plan, 0, 1, transform=in_workers.large, prefetch=0, **PROCESSES) as batches:
        held = [next(batches) for _ in range(20)]
        assert len(loader_ring(batches)) <= 4 + 3
        for batch in held:
            check(batch["x"], batch.ids)


def test_batches_that_outgrow_their_memory(plan, in_workers):
    """Segments are as large as the largest batch so far needed: soon all of them fit."""
    with loader.Loader(plan, 0, 1, transform=in_workers.growing, prefetch=0, **PROCESSES) as batches:
        for _ in range(30):
            batch = next(batches)
            for number, rows in zip(batch["cls"].tolist(), batch["x"], strict=True):
                assert rows.shape == (1 + number % 9, 9000)
                assert (rows == number).all()
        after = {one.number for one in loader_ring(batches)._segments.values()}
        for _ in range(10):
            next(batches)
        assert {one.number for one in loader_ring(batches)._segments.values()} == after


def test_memory_is_used_again(plan, in_workers):
    """A run over many batches keeps to a few segments, whose number does not grow with the steps."""
    with loader.Loader(plan, 0, 1, transform=in_workers.large, prefetch=2 * BATCH, **PROCESSES) as batches:
        for _ in range(12):
            next(batches)
        several = set(loader_ring(batches)._segments)
        for _ in range(60):
            check(next(batches)["x"], batches.batch_at(batches.step - 1).ids)
        assert set(loader_ring(batches)._segments) == several
        assert loader_ring(batches).nbytes <= len(several) * (BATCH + 2**16)
        assert len(several) <= 2 + 1 + 3


def count_files(folder):
    return len(os.listdir(folder))


@pytest.mark.parametrize(("bound", "ahead"), [(0, 2), (10**9, 64)])
def test_back_pressure_and_a_seek(tmp_path, samples, in_workers, bound, ahead, monkeypatch):
    """Workers begin no more than there is room for; a seek takes back what is not begun."""
    monkeypatch.setattr("loader.run.making.prefetch.MAX_STEPS", 1)
    root = loader.Root(str(tmp_path / "root"))
    version = samples.write(root, "photos", range(250), fields=("cls",))
    plan = loader.plan({"photos": version}, seed=8, global_batch=1)
    folder, pipes = tmp_path / "log", tmp_path / "pipes"
    folder.mkdir()
    pipes.mkdir()
    for name in ("begun", "gate"):
        os.mkfifo(pipes / name)
    number = int(plan.batch_ids(5)[0][1][-3:])
    transform = functools.partial(
        in_workers.log_and_wait, folder=str(folder), pipes=str(pipes), number=number
    )
    with loader.Loader(plan, 0, 1, transform=transform, prefetch=bound, **PROCESSES) as batches:
        assert next(batches).step == 0
        assert len(batches._execution.prefetch()._pending) == (ahead if bound else 2)
        while batches.step < 4:
            next(batches)
        with open(pipes / "begun") as pipe:  # the worker is in step 5
            assert pipe.readline()
        assert count_files(folder) == 6
        batches.seek(100)
        with open(pipes / "gate", "w") as pipe:
            batches._execution.prefetch().drop()
            pipe.write("x")
        assert next(batches).step == 100
        for _ in range(2):
            next(batches)
        names = {int(name) for name in os.listdir(folder)}
        steps = {step for step in range(170) if int(plan.batch_ids(step)[0][1][-3:]) in names}
        assert steps & set(range(6, 100)) == set(), "what was queued before the seek was made"
