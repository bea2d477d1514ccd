"""What a loader holds: bounded while it runs, nothing afterwards."""

import contextlib
import gc
import os
import tempfile
import threading
import tracemalloc
import weakref
from concurrent.futures import Future

import numpy as np
import pytest

import loader
from loader.errors import InvalidRuntime, TransformFailed
from loader.run.making.prefetch import MAX_AHEAD, MAX_STEPS, PREFETCH_SHARE, Bound, MadeBatches, Prefetch
from loader.run.workers.batch_memory import Ring
from tests.servers.patience import PATIENCE_S
from tests.servers.processes import python


@pytest.fixture
def local(tmp_path, samples):
    """(plan of versions on a disk, root)."""
    root = loader.Root(str(tmp_path / "root"))
    version = samples.write(root, "photos", range(30), part_samples=7)
    return loader.plan({"p": version}, seed=1, global_batch=6)


@pytest.fixture
def loader_threads():
    """loader_threads() -> threads of loaders of this test; leases are renewed for whoever has a version open."""
    others = set(threading.enumerate())

    def threads():
        started = [thread for thread in threading.enumerate() if thread not in others]
        return [
            thread
            for thread in started
            if thread.name.startswith("penstock") and thread.name != "penstock-leases"
        ]

    return threads


def open_files():
    """Return (descriptor, what it is open to) of each: other tests' garbage may be closed meanwhile."""
    opened = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            opened.add((descriptor, os.readlink(f"/proc/self/fd/{descriptor}")))
    return opened


def join(threads):
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def raising(sample, rng):
    if sample["cls"] % 5 == 0:
        raise ValueError("no")
    return sample


def test_nothing_is_left_after_close(local, loader_threads, tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with loader.Loader(local, 0, 1, workers=2) as batches:  # imports and caches of the process
        next(batches)
    gc.collect()
    before = open_files()
    for transform in (None, raising):
        with loader.Loader(local, 0, 1, workers=3, transform=transform) as batches:
            try:
                for _ in range(3):
                    next(batches)
            except TransformFailed:
                pass
            names = [thread.name for thread in loader_threads()]
            n_probes = names.count("penstock-lock-probe")
            assert n_probes == (transform is None), "the lock's probe begins with the first batch"
            # A thread starts with a batch for which no other one is idle.
            assert 1 <= len(names) - n_probes <= 3
        assert loader_threads() == []
        assert open_files() - before == set()
        assert list(temporary.iterdir()) == []


def test_nothing_is_left_after_close_of_a_loader_with_range_threads(versions, loader_threads):
    plan = loader.plan({"p": versions["photos"]}, seed=1, global_batch=6)
    with loader.Loader(plan, 0, 1, workers=2) as batches:
        next(batches)
        assert len(loader_threads()) > 2
    assert loader_threads() == []


@pytest.mark.parametrize(("where", "transform"), [("disk", raising), ("memory", None)])
def test_nothing_is_left_of_a_loader_that_is_dropped(local, versions, loader_threads, transform, where):
    plan = local if where == "disk" else loader.plan({"p": versions["photos"]}, seed=1, global_batch=6)
    batches = loader.Loader(plan, 0, 1, workers=2, transform=transform)
    try:
        for _ in range(3):
            next(batches)
    except TransformFailed:
        pass
    threads, assembler = loader_threads(), weakref.ref(batches._assembler)
    assert threads
    del batches
    gc.collect()
    join(threads)
    gc.collect()
    assert assembler() is None


def test_error_that_was_handled_is_gone_without_a_garbage_collection(local):
    """A cycle through its traceback would keep a dropped loader's threads until somebody collects."""
    with loader.Loader(local, 0, 1, workers=2, transform=raising) as batches:
        gc.disable()
        try:
            try:
                while True:
                    next(batches)
            except TransformFailed as error:
                held = weakref.ref(error)
            batches.close()  # a thread may be about to let go of it
            assert held() is None
        finally:
            gc.enable()


def test_dropped_loader_does_not_finish_its_queue(local, loader_threads):
    """One batch is being made when the loader goes; the others that were queued are not made."""
    entered, release, begun = threading.Semaphore(0), threading.Event(), []

    def transform(sample, rng):
        begun.append(1)
        entered.release()
        assert release.wait(PATIENCE_S)
        return sample

    batches = loader.Loader(local, 0, 1, workers=1, transform=transform)
    batches._execution.prefetch()._fill(0, None)  # as `next` does, without waiting for the batch
    assert len(batches._execution.prefetch()._pending) == 2
    assert entered.acquire(timeout=PATIENCE_S)
    threads = loader_threads()
    del batches
    gc.collect()
    release.set()
    join(threads)
    assert len(begun) == 6


EXIT = """
import atexit, sys, threading, time

begun = []
atexit.register(lambda: print("samples begun:", len(begun)))  # called after what loader registers
from concurrent.futures import Future

import loader
import loader.run.making.prefetch

loader.run.making.prefetch.MAX_STEPS = 1
waits = threading.Event()
def transform(sample, rng):
    begun.append(1)
    if len(begun) > 3 * 6:
        waits.set()
        while not maker._stopped:  # the batch that is being made when the process ends
            time.sleep(0.01)
    return sample

plan = loader.open_plan(loader.Root(sys.argv[1]), sys.argv[2])
batches = loader.Loader(plan, 0, 1, workers=1, framework="numpy", transform=transform)
maker = batches._execution.prefetch()._maker
for _ in range(3):
    next(batches)
assert waits.wait(300)
assert len(batches._execution.prefetch()._pending) > 1
"""


def test_process_that_ends_without_close_does_not_finish_the_queue(local, tmp_path):
    """The end waits for the batch that is being made; of those queued none is begun."""
    local.save(loader.Root(str(tmp_path / "root")))
    done = python("-c", EXIT, tmp_path / "root", local.hash, check=True)
    assert done.stdout == "samples begun: 24\n"
    assert done.stderr == ""


def test_closing_while_another_thread_waits_for_a_batch(local):
    entered, release, raised = threading.Event(), threading.Event(), []

    def transform(sample, rng):
        entered.set()
        assert release.wait(PATIENCE_S)
        return sample

    def consume():
        try:
            for _ in batches:
                pass
        except InvalidRuntime as error:
            raised.append(str(error))

    batches = loader.Loader(local, 0, 1, workers=1, transform=transform)
    consumer = threading.Thread(target=consume)
    consumer.start()
    assert entered.wait(PATIENCE_S)
    closer = threading.Thread(target=batches.close)
    closer.start()
    release.set()
    for thread in (consumer, closer):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert len(raised) == 1
    assert "closed" in raised[0]


@pytest.mark.parametrize(
    ("workers", "bound", "ahead"), [(1, 0, 2), (3, 0, 4), (1, 5 * 240, 5), (2, 10**9, 64)]
)
def test_prefetch_bound(local, workers, bound, ahead, monkeypatch):
    """Batches of 6 float64 [5], 240 bytes, made one by one: how many beyond the one that was handed out."""
    monkeypatch.setattr("loader.run.making.prefetch.MAX_STEPS", 1)
    done, batch = threading.Semaphore(0), 6

    def transform(sample, rng):
        done.release()
        return {"x": np.zeros(5)}

    with loader.Loader(local, 0, 1, workers=workers, prefetch=bound, transform=transform) as batches:
        for taken in range(1, 4):
            next(batches)
            for _ in range(batch * (taken + ahead if taken == 1 else 1)):
                assert done.acquire(timeout=PATIENCE_S)
        assert len(batches._execution.prefetch()._pending) == ahead
    assert not done.acquire(blocking=False)


class Held:
    """A maker of batches of 1 MiB, each ready at once."""

    def __init__(self, size):
        self.size = size

    def submit(self, steps):
        done = Future()
        done.set_result(MadeBatches([Empty(steps.start)], None, 0.0, 1.0, 2**20))
        return done

    def cancel(self, futures):
        pass

    retire = dismiss = join = abandon = lambda self: None


class Empty:
    def __init__(self, step):
        self.step, self.stats = step, {}


@pytest.mark.parametrize(
    ("workers", "memory", "ahead"),
    [(1, 10**9, 4), (2, 10**9, 6), (4, 10**9, 12), (4, 10 * 240, 10), (4, 0, 5)],
)
def test_prefetch_by_need_is_batches_per_worker(local, workers, memory, ahead, monkeypatch):
    """Batches of 240 bytes, one by one: two ready for each worker, at least 4 of them, and at most the memory."""
    monkeypatch.setattr("loader.run.making.prefetch.MAX_STEPS", 1)
    monkeypatch.setattr("loader.run.making.prefetch.PREFETCH_BYTES", 4 * 240)
    monkeypatch.setattr("loader.run.making.prefetch.rank_memory_bytes", lambda: memory * PREFETCH_SHARE)
    with loader.Loader(
        local, 0, 1, workers=workers, executor="threads", transform=lambda sample, rng: {"x": np.zeros(5)}
    ) as batches:
        assert "up to 0.00 MiB are made ahead" in batches.describe()
        for _ in range(3):
            next(batches)
        prefetch = batches._execution.prefetch()
        assert len(prefetch._pending) == ahead
        assert prefetch.max_bytes == max(4, min(3 * workers, memory // 240)) * 240
        assert f"1/{PREFETCH_SHARE} of this rank's memory" in batches.describe()
    with loader.Loader(local, 0, 1, workers=workers, executor="threads", prefetch=2**20) as batches:
        next(batches)
        assert "up to 1.00 MiB are made ahead" in batches.describe()
        assert "set by prefetch=" in batches.describe()


def test_prefetch_by_need_fits_more_workers_than_segments(local, monkeypatch):
    """64 workers have three batches each, in segments of their own."""
    monkeypatch.setattr("loader.run.making.prefetch.MAX_STEPS", 1)
    held = Held(64)
    ahead = Prefetch(held, Bound(0, 2**40))
    ahead.take(0, None)
    assert len(ahead._pending) == 3 * 64
    assert Ring(0, 64)._most >= 3 * 64 + 2
    ahead.close()


@pytest.mark.parametrize(("workers", "bound"), [(1, 0), (2, 20 * 240), (2, 10**9)])
def test_bound_holds_for_steps_made_together(local, workers, bound):
    most = max(MAX_AHEAD, (workers + 2) * MAX_STEPS) if bound else workers + 1
    counted, together = 0, 0
    with loader.Loader(
        local, 0, 1, workers=workers, prefetch=bound, transform=lambda sample, rng: {"x": np.zeros(5)}
    ) as batches:
        for step in range(300):
            assert next(batches).step == step
            prefetch = batches._execution.prefetch()
            ahead = len(prefetch._ready) + sum(len(steps) for steps, _ in prefetch._pending)
            counted, together = max(counted, ahead), max(together, *(len(s) for s, _ in prefetch._pending))
    assert counted <= max(workers + 1, min(most, bound // 240))
    assert (together > 1) == (bound > 0)


def test_before_a_batch_is_known_only_one_per_thread_and_one_is_begun(local):
    """Stored bytes say nothing of decoded ones: a bound of a gigabyte must hold for samples of 100 MB too."""
    gate, entered, steps = threading.Event(), threading.Semaphore(0), []

    def transform(sample, rng):
        entered.release()
        assert gate.wait(PATIENCE_S)
        return sample

    batches = loader.Loader(local, 0, 1, workers=2, prefetch=10**9, transform=transform)
    consumer = threading.Thread(target=lambda: steps.append(next(batches).step))
    consumer.start()
    for _ in range(2):
        assert entered.acquire(timeout=PATIENCE_S)
    ahead = len(batches._execution.prefetch()._pending)  # without the one that is waited for
    gate.set()
    consumer.join(PATIENCE_S)
    batches.close()
    assert (steps, ahead) == ([0], 2)


def test_memory_stays_within_the_bound(memory_root):
    """Batches of 4 MiB, ten times the bound of 8 MiB in all: held are the bound, and one batch per thread."""
    mib = 2**20
    with memory_root.write("large") as writer:
        for i in range(16):
            writer.add(f"k{i}", {"cls": i})
    plan = loader.plan({"p": memory_root.open("large@1")}, seed=1, global_batch=4)

    def transform(sample, rng):
        return {"x": np.ones(mib, np.uint8)}

    with loader.Loader(
        plan, 0, 1, workers=2, prefetch=8 * mib, transform=transform, framework="numpy", steps=20
    ) as batches:
        next(batches)
        tracemalloc.start()
        try:
            for _ in batches:
                pass
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    # 3 pending batches (one per thread and one), one at the consumer, and two being made hold samples too.
    assert peak < (3 + 1 + 2) * 4 * mib + 2 * mib
