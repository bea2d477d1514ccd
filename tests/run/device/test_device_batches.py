"""Batches on a device: those of the host, in order, and out of memory that nobody uses before its copy has ended."""

import gc
import logging
import os
import threading
import time
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch

import loader
from loader.errors import InvalidRuntime
from loader.run.device.stage import DeviceStage
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S, until

PROCESSES = {"executor": "processes", "workers": 1}
BATCH = 8 * 2**16  # bytes of a batch of `worker_transforms.large`


@pytest.fixture(scope="module")
def version(tmp_path_factory, samples):
    root = loader.Root(str(tmp_path_factory.mktemp("device") / "root"))
    return samples.write(root, "photos", range(50), part_samples=11)


@pytest.fixture(scope="module")
def plan(version):
    return loader.plan({"photos": version}, seed=8, global_batch=8)


def pointers(value):
    """Addresses of all arrays of a value of the host's."""
    if isinstance(value, np.ndarray):
        return [value.ctypes.data]
    if torch.is_tensor(value):
        return [value.data_ptr()]
    if isinstance(value, dict):
        return [place for item in value.values() for place in pointers(item)]
    if hasattr(value, "parts"):
        return [value.parts()[0].ctypes.data]
    return [place for item in value for place in pointers(item)] if isinstance(value, list | tuple) else []


def equal(value, other):
    """Whether two columns, or items of them, have one type, dtype and shape, and the same values."""
    if type(value) is not type(other):
        return False
    if isinstance(value, list | tuple):
        return len(value) == len(other) and all(map(equal, value, other))
    if isinstance(value, dict):
        return value.keys() == other.keys() and all(equal(item, other[name]) for name, item in value.items())
    if torch.is_tensor(value):
        return value.dtype == other.dtype and torch.equal(value, other)
    return bool(np.all(value == other))


def check(got, wanted):
    """They are the same in everything that a training looks at."""
    got, wanted = list(got), list(wanted)
    assert len(got) == len(wanted)
    for one, same in zip(got, wanted, strict=True):
        assert (one.step, one.ids, one.digest, one.weight) == (same.step, same.ids, same.digest, same.weight)
        assert (one.micro, one.micros, one.substitutions) == (same.micro, same.micros, same.substitutions)
        assert one.sources.tolist() == same.sources.tolist()
        assert one.ordinals.tolist() == same.ordinals.tolist()
        assert list(one.keys()) == list(same.keys())
        for name, value in [("mask", one.mask), *one.items()]:
            other = same.mask if name == "mask" else same[name]
            assert equal(value, other), name


@pytest.mark.parametrize(
    ("how", "more"),
    [
        (PROCESSES, {"micro_batch": 3}),
        ({"executor": "threads", "workers": 2}, {"decode": False}),
        ({"workers": 0}, {}),
    ],
    ids=["processes-micro", "threads-undecoded", "caller-whole"],
)
def test_batches_on_a_device_are_those_of_the_host(plan, delayed_copies, how, more):
    with (
        loader.Loader(plan, 0, 1, steps=14, workers=0, **more) as wanted,
        loader.Loader(plan, 0, 1, steps=14, device=delayed_copies(), **how, **more) as got,
    ):
        check(got, wanted)


@pytest.mark.parametrize(
    "transform", ["large", "various", pytest.param("tensors", marks=pytest.mark.nightly)]
)
def test_memory_is_used_again_only_after_its_copy(plan, in_workers, delayed_copies, transform, at_scale):
    """Each batch is copied as late as it may be: an earlier return of its memory shows as another batch's values."""
    n = at_scale(16, 40)
    options = {"transform": getattr(in_workers, transform), "steps": n}
    device = delayed_copies()
    with (
        loader.Loader(plan, 0, 1, workers=0, **options) as wanted,
        loader.Loader(plan, 0, 1, device=device, prefetch=0, **PROCESSES, **options) as got,
    ):
        same = list(wanted)
        batches = []
        for number, batch in enumerate(got):
            batches.append(batch)
            # The copy thread and the worker go as far as they can before the next batch is asked for.
            until(lambda number=number: len(got._delivery._stage._ready) == min(2, n - 1 - number))
        check(batches, same)
    assert len(device.locked) == 0 < device.unlocked < n, "each segment is page-locked once"


def test_nothing_of_a_batch_lies_in_page_locked_memory(version, in_workers, delayed_copies):
    plan = loader.plan(
        {"photos": version}, seed=8, global_batch=2**12, allow_repeats=True
    )  # sources of 16 KiB
    device = delayed_copies()
    with loader.Loader(
        plan, 0, 1, device=device, steps=1, transform=in_workers.nest_arrays, **PROCESSES
    ) as batches:
        first = next(batches)
        assert len(device.locked) == 1
        ((start, nbytes),) = device.locked.items()
        held = [
            first.mask,
            first.sources,
            first.ordinals,
            first.__dict__["ids"].source,
            *first.fields.values(),
        ]
        places = [place for value in held for place in pointers(value)]
        assert len(places) > 100
        assert not [place for place in places if start <= place < start + nbytes]


def test_undecoded_bytes_leave_page_locked_memory_without_other_batches(tmp_path, delayed_copies):
    root = loader.Root(str(tmp_path / "root"))
    with root.write("raw") as writer:
        for i in range(64):
            writer.add(f"{i:02d}", {"bin": bytes([i]) * (2**12 + i), "x.npy": np.full(2**12, i)})
    plan = loader.plan({"raw": root.open("raw@1")}, seed=2, global_batch=4)
    device = delayed_copies()
    with loader.Loader(plan, 0, 1, device=device, decode={}, steps=64, **PROCESSES) as batches:
        for batch in batches:
            assert [bytes([int(key)]) * (2**12 + int(key)) for _, key in batch.ids] == batch["bin"]
            assert len(batch["bin"].parts()[0]) == batch["bin"].nbytes
    assert device.unlocked


def test_page_locked_memory_stays_within_its_bound(plan, in_workers, delayed_copies):
    device = delayed_copies(bound_bytes=3 * BATCH)
    with loader.Loader(
        plan, 0, 1, device=device, steps=30, transform=in_workers.large, executor="processes", workers=3
    ) as batches:
        for batch in batches:
            numbers = [int(key[-3:]) for _, key in batch.ids]
            assert batch["x"].amin(1).tolist() == batch["x"].amax(1).tolist() == numbers
    assert BATCH <= device.most_locked <= 3 * BATCH
    assert device.buffers, "the others are copied through the buffer"
    assert device.locked == {}


def test_segments_that_are_dropped_are_unlocked(plan, in_workers, delayed_copies):
    device = delayed_copies()
    with loader.Loader(
        plan, 0, 1, device=device, transform=in_workers.growing, prefetch=0, **PROCESSES
    ) as batches:
        for batch in islice(batches, 30):
            for number, rows in zip(batch["cls"].tolist(), batch["x"], strict=True):
                assert rows.shape == (1 + number % 9, 9000)
                assert (rows == number).all()
        assert device.unlocked, "a larger segment took the place of one"
        assert len(device.locked) <= len(batches._execution.prefetch()._maker._ring)
    assert device.locked == {}


@pytest.mark.parametrize("locks", [True, False], ids=["buffer", "pageable"])
def test_refused_page_locking_is_said_once(plan, in_workers, delayed_copies, caplog, locks):
    device = delayed_copies(registers=False, locks=locks)
    with (
        loader.Loader(plan, 0, 1, workers=0, steps=20, transform=in_workers.tensors) as wanted,
        loader.Loader(plan, 0, 1, device=device, steps=20, transform=in_workers.tensors, **PROCESSES) as got,
        caplog.at_level(logging.WARNING),
    ):
        check(got, wanted)
    said = [record.getMessage() for record in caplog.records]
    assert [text for text in said if "(operation not permitted (800))" in text] == said[:1]
    assert len(said) == (1 if locks else 2)
    assert (device.pageable == 0) == locks
    assert len(device.buffers) <= 3 * locks, "one buffer serves all batches that it is large enough for"


def test_training_waits_for_its_stream_in_its_own_thread_and_copies_nothing(plan, delayed_copies):
    device = delayed_copies()
    with loader.Loader(plan, 0, 1, device=device, steps=5, **PROCESSES) as batches:
        assert [batch.step for batch in batches] == [0, 1, 2, 3, 4]
    assert device.handed_by == [threading.current_thread()] * 5
    assert [thread.name for thread in device.copied_by] == ["penstock-device"]


def test_two_batches_lie_ready_and_no_more_are_made(plan, delayed_copies):
    made = []

    def record_sample(sample, rng):
        made.append(sample["cls"])
        return sample

    with loader.Loader(
        plan, 0, 1, device=delayed_copies(), workers=0, prefetch=0, transform=record_sample
    ) as batches:
        next(batches)
        until(lambda: len(made) == 3 * 8)
        stage = batches._delivery._stage
        until(lambda: len(stage._ready) == 2)
        next(batches)
        until(lambda: len(made) == 4 * 8)
        until(lambda: len(stage._ready) == 2)
        assert len(made) == 4 * 8
        assert batches.state_dict() == plan.state(2), "what lies ready is not handed out"


@pytest.mark.parametrize("how", [PROCESSES, {"workers": 0}], ids=["processes", "caller"])
def test_seek_drops_what_lies_ready(plan, delayed_copies, how):
    with (
        loader.Loader(plan, 0, 1, workers=0) as wanted,
        loader.Loader(plan, 0, 1, device=delayed_copies(), **how) as got,
    ):
        for step in (0, 1, 7, 8, 3, 9, 9, 2, 3, 4):
            got.seek(step)
            check([next(got)], [wanted.batch_at(step)])
            check([got.batch_at(step + 5)], [wanted.batch_at(step + 5)])
        got.load_state_dict(plan.state(6))
        check(islice(got, 3), [wanted.batch_at(step) for step in (6, 7, 8)])


def test_seek_drops_the_batch_that_is_being_made(plan, delayed_copies):
    begun, gate = threading.Event(), threading.Event()
    with loader.Loader(plan, 0, 1, workers=0) as batches:

        def host_batch(step, end):
            if step == 1:
                begun.set()
                gate.wait()
            return batches.batch_at(step)

        stage = DeviceStage(delayed_copies(), host_batch)
        assert stage.take(0, None).batch.step == 0
        assert begun.wait(PATIENCE_S)
        taken = []
        asking = threading.Thread(target=lambda: taken.append(stage.take(5, None).batch.step))
        asking.start()
        until(lambda: stage._position.step == 5)
        gate.set()
        asking.join(PATIENCE_S)
        assert taken == [5]
        stage.dismiss()
        stage.join()


def test_copy_thread_waits_for_the_second_take(plan, delayed_copies):
    """Over a remote store nothing is made ahead before: the copy thread asks for no second batch by itself."""
    made = []
    with loader.Loader(plan, 0, 1, workers=0) as batches:

        def host_batch(step, end):
            made.append(step)
            return batches.batch_at(step)

        stage = DeviceStage(delayed_copies(), host_batch, starts_at_second_request=True)
        assert stage.take(3, None).batch.step == 3
        time.sleep(0.3)
        assert made == [3]
        assert stage.take(4, None).batch.step == 4
        until(lambda: made == [3, 4, 5, 6])
        stage.dismiss()
        stage.join()


def test_device_may_be_chosen_on_the_way(plan, delayed_copies):
    first, second = delayed_copies(), delayed_copies()
    with (
        loader.Loader(plan, 0, 1, workers=0, steps=12) as wanted,
        loader.Loader(plan, 0, 1, steps=12, **PROCESSES) as got,
    ):
        check(islice(got, 3), islice(wanted, 3))
        check(islice(got.on(first), 3), islice(wanted, 3))
        check(islice(got.on(second), 3), islice(wanted, 3))
        assert first.closed.is_set()
        assert not second.closed.is_set()
        check(got.on(None), wanted)
        assert second.closed.is_set()
    assert len(first.handed_by) == len(second.handed_by) == 3


@pytest.mark.parametrize("how", [PROCESSES, {"executor": "threads", "workers": 2}, {"workers": 0}])
def test_error_comes_at_the_turn_of_its_step(plan, in_workers, delayed_copies, how):
    """And again when the step is asked for again; the batches before and after it are there."""
    failing = partial(in_workers.failing, number=17)
    with loader.Loader(plan, 0, 1, workers=0) as wanted:
        bad = next(batch.step for batch in wanted if ("photos", "photos/017") in batch.ids)
    assert bad > 0
    with loader.Loader(plan, 0, 1, device=delayed_copies(), transform=failing, **how) as batches:
        assert [next(batches).step for _ in range(bad)] == list(range(bad))
        for _ in range(2):
            with refusal(loader.errors.TransformFailed, given="KeyError", within="photos/017"):
                next(batches)
        batches.seek(bad - 1)
        assert next(batches).step == bad - 1


def test_error_of_the_device_reaches_the_training(plan, delayed_copies):
    class Full(delayed_copies):
        def started(self, tensors):
            if len(self.handed_by) >= 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().started(tensors)

    device = Full()
    with loader.Loader(plan, 0, 1, device=device, workers=0) as batches:
        next(batches), next(batches)
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            list(islice(batches, 4))


def test_copy_that_fails_half_way_is_awaited(plan, in_workers, delayed_copies):
    class Full(delayed_copies):
        full = True

        def start(self, tensor):
            if self.full and self._reads:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().start(tensor)

    device = Full()
    with loader.Loader(plan, 0, 1, device=device, transform=in_workers.large, **PROCESSES) as batches:
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            next(batches)
        assert device._reads == [], "nothing is on its way out of memory that may be used again"
        device.full = False
        batch = next(batches)
        assert batch.step == 0
        assert batch["x"].amin(1).tolist() == batch["cls"].tolist()


@pytest.mark.parametrize("how", [PROCESSES, {"executor": "threads", "workers": 2}])
def test_no_batch_is_waited_for_that_nobody_will_make(plan, how):
    """As where the copy thread asks for one just after the loader was closed."""
    with loader.Loader(plan, 0, 1, **how) as batches:
        batches._execution.prefetch().dismiss()
        with refusal(InvalidRuntime, what="Loader", given="closed"):
            next(batches)


def test_device_that_cannot_be_entered_is_an_error_of_the_first_batch(plan, delayed_copies):
    class Lost(delayed_copies):
        def entered(self):
            raise RuntimeError("no CUDA-capable device is detected")

    with loader.Loader(plan, 0, 1, device=Lost(), workers=0) as batches:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no CUDA-capable device"):
                next(batches)


@pytest.mark.parametrize("how", [PROCESSES, {"executor": "threads", "workers": 2}, {"workers": 0}])
def test_close_ends_the_copy_thread_and_unlocks_all(plan, in_workers, delayed_copies, how):
    device = delayed_copies()
    batches = loader.Loader(plan, 0, 1, device=device, transform=in_workers.large, **how)
    next(batches)
    thread = batches._delivery._stage._thread
    batches.close()
    assert not thread.is_alive()
    assert device.closed.is_set()
    assert device.locked == {}
    with refusal(InvalidRuntime, what="Loader", given="closed"):
        next(batches)


@pytest.mark.parametrize("how", [PROCESSES, {"executor": "threads", "workers": 2}])
def test_close_by_another_thread_ends_a_wait(plan, in_workers, delayed_copies, tmp_path, how):
    os.mkfifo(tmp_path / "begun")
    os.mkfifo(tmp_path / "gate")
    gated = partial(in_workers.wait_gate, folder=str(tmp_path))
    before = {*threading.enumerate()}
    batches = loader.Loader(plan, 0, 1, device=delayed_copies(), transform=gated, **how)
    errors = []

    def wait():
        try:
            next(batches)
        except InvalidRuntime as error:
            errors.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    (tmp_path / "begun").read_text()  # a sample is being made
    batches._closed = True
    batches._delivery.close(wait=False)
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    assert "closed while a batch was waited for" in errors[0]
    for name in ("begun", "gate"):  # the threads that still make the batch end
        pipe = os.open(tmp_path / name, os.O_RDWR)
        (tmp_path / name).unlink()
        (tmp_path / name).write_text("go")
        os.write(pipe, b"go")
        os.close(pipe)
    batches._execution.close()
    until(lambda: {*threading.enumerate()} <= before)


def test_loader_that_is_dropped_ends_its_copy_thread(plan, in_workers, delayed_copies):
    device = delayed_copies()
    batches = loader.Loader(plan, 0, 1, device=device, transform=in_workers.large, **PROCESSES)
    batch = next(batches)
    thread = batches._delivery._stage._thread
    gc.disable()  # nothing waits for the collector of cycles
    try:
        del batches
        thread.join(PATIENCE_S)
    finally:
        gc.enable()
    assert not thread.is_alive()
    assert device.locked == {}
    assert batch["x"].amin(1).tolist() == batch["cls"].tolist()


def test_trail_has_the_checksums_of_the_host(plan, tmp_path, in_workers, delayed_copies):
    root = loader.Root(str(tmp_path / "trails"))
    found = {}
    for run, more in {"host": {}, "device": {"device": delayed_copies()}}.items():
        trail = loader.Trail(root, run=run, tensors_every=2)
        with loader.Loader(
            plan, 0, 1, steps=8, trail=trail, transform=in_workers.various, **PROCESSES, **more
        ) as batches:
            for batch in batches:
                batches.note(loss=float(batch.step))
        found[run] = loader.read_trail(root, run).steps.drop("at_us", "wait_us", "start")
    assert found["host"].equals(found["device"])
    assert found["host"]["crc.equal"].null_count() == 4


def test_metrics_of_the_copies(plan, delayed_copies):
    with loader.Loader(plan, 0, 1, device=delayed_copies(), steps=6, workers=0) as batches:
        nbytes = sum(
            value.nbytes
            for batch in batches
            for value in [batch.mask, *batch.fields.values()]
            if torch.is_tensor(value)
        )
        batches._delivery._stage.dismiss()
        batches._delivery._stage.join()
        seen = batches.metrics()
    ragged = seen["device_bytes_total"] - nbytes  # the tensors of a list
    assert 0 < ragged < nbytes
    assert seen["device_copy_seconds_count"] == seen["consumed_batches_total"] == 6
    assert seen["consumer_wait_seconds_count"] == seen["handover_wait_seconds_count"] == 6


@pytest.mark.parametrize(
    ("device", "framework", "fault"),
    [
        ("cuda", "numpy", {"what": "device", "where": "framework = 'numpy'", "given": "cuda"}),
        ("gpu0", "torch", {"what": "device", "given": "gpu0"}),
        ("xpu", "torch", {"what": "device", "where": "this process", "given": "xpu"}),
    ],
)
def test_device_that_is_not_there_is_refused(plan, device, framework, fault: dict[str, object]):
    with refusal(InvalidRuntime, **fault):
        loader.Loader(plan, 0, 1, device=device, framework=framework)


def test_describe_names_the_copy_thread(plan, delayed_copies):
    with loader.Loader(plan, 0, 1, device=delayed_copies(), workers=0) as batches:
        said = batches.describe()
    assert said.startswith("batches are made by the copy thread: ")
    assert said.endswith("up to 2 of them ready on the device")


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), None])
def test_host_needs_no_copy(plan, device):
    with loader.Loader(plan, 0, 1, device=device, steps=3, workers=0) as batches:
        assert batches._delivery is None
        assert [batch["x.npy"].device.type for batch in batches] == ["cpu"] * 3
