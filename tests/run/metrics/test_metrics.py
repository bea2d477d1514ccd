"""What the loader says it has done: names, sums, single steps, slow samples."""

import threading
from pathlib import Path

import numpy as np
import pytest
import simplejpeg

import loader
from benchmarks.latency_server import CREDENTIALS, latency_store
from loader.errors import DecodeFailed
from loader.run.batch.batch import Batch, SlowSample, StepMetrics
from loader.run.metrics import BOUNDS_S, SLOWEST, Metrics

MAKING = {
    "plan_seconds",
    "address_seconds",
    "fetch_wait_seconds",
    "verify_seconds",
    "decode_seconds",
    "collate_seconds",
}
STAGES = MAKING | {
    "peer_wait_seconds",
    "transform_seconds",
    "handover_wait_seconds",
    "room_wait_seconds",
    "device_copy_seconds",
    "consumer_wait_seconds",
    "consumer_busy_seconds",
}
NAMES = {
    "batches_total",
    "samples_total",
    "consumed_batches_total",
    "consumed_samples_total",
    "fetched_bytes_total",
    "fetch_busy_us_total",
    "unverified_bytes_total",
    "decoded_bytes_total",
    "requests_total",
    "retries_total",
    "fallbacks_total",
    "refetched_total",
    "device_bytes_total",
    "ahead_bytes_total",
    "ahead_failed_total",
    *(f"cache_{name}_total" for name in ("hits", "misses", "written_bytes", "evicted", "corrupt", "failed")),
    *(f"cache_peer_{name}_total" for name in ("hits", "bytes", "misses", "down", "us")),
    "cache_store_us_total",
    "substituted_total",
    "samples_per_second",
    "fetched_bytes_per_second",
    "read_latency_seconds",
    *(f"{stage}_{what}" for stage in STAGES for what in ("sum", "count", "p50", "p99")),
}


@pytest.mark.parametrize("workers", [0, 2])
def test_names_and_counts(versions, workers):
    plan = loader.plan({"p": versions["photos"].select("x.npy")}, seed=1, global_batch=10)
    nbytes = 0
    with loader.Loader(plan, 0, 1, workers=workers, epochs=1) as batches:
        before = batches.metrics()
        assert before.keys() == NAMES
        assert set(before.values()) == {0}
        for batch in batches:
            nbytes += batch.nbytes
            after = batches.metrics()
            for name in NAMES:
                if not name.endswith(("p50", "p99", "per_second", "latency_seconds")):
                    assert after[name] >= before[name], name
            assert after["consumer_wait_seconds_count"] == before["consumer_wait_seconds_count"] + 1
            before = after
    assert (after["batches_total"], after["samples_total"]) == (5, 43)
    assert (after["consumed_batches_total"], after["consumed_samples_total"]) == (5, 43)
    assert after["decoded_bytes_total"] == nbytes
    assert after["fetched_bytes_total"] == sum(
        one.address.fields["x.npy"].nbytes for step in range(5) for one in loader.explain(plan, step)
    ) - sum(one.address.fields["x.npy"].nbytes for one in loader.explain(plan, 4) if one.position >= 43)
    assert {after[f"{stage}_count"] for stage in MAKING} == {5}
    assert after["transform_seconds_count"] == 0, "there is none"
    assert after["handover_wait_seconds_count"] == (5 if workers else 0)
    assert after["consumer_busy_seconds_count"] == 4
    assert after["samples_per_second"] > 0


COUNTS = ("batches_total", "samples_total", "fetched_bytes_total", "decode_seconds_count")


@pytest.mark.parametrize("workers", [0, 2])
def test_metrics_of_nested_loaders_do_not_mix(versions, workers):
    """A transform reads another loader: each of the two counts as it does without the other."""
    outer = loader.plan({"p": versions["photos"].select("x.npy")}, seed=1, global_batch=10)
    inner = loader.plan({"p": versions["photos"].select("x.npy")}, seed=2, global_batch=3)
    inline = {"workers": 0, "prefetch": 0, "framework": "numpy"}

    def loader_counts(transform):
        with loader.Loader(
            outer, 0, 1, workers=workers, epochs=1, framework="numpy", transform=transform
        ) as batches:
            for _ in batches:
                pass
            return {name: batches.metrics()[name] for name in COUNTS}

    counts = loader_counts(lambda sample, rng: sample)
    with loader.Loader(inner, 0, 1, **inline) as batches:
        for _ in range(43):
            next(batches)
        inner_counts = {name: batches.metrics()[name] for name in COUNTS}
    with loader.Loader(inner, 0, 1, **inline) as nested:

        def reads_another(sample, rng):
            next(nested)
            return sample

        assert loader_counts(reads_another) == counts
        assert {name: nested.metrics()[name] for name in COUNTS} == inner_counts
    assert inner_counts["samples_total"] == 3 * 43


@pytest.mark.parametrize("workers", [0, 2])
def test_steps_add_up_to_the_whole(versions, workers):
    views = {"p": versions["photos"].select("x.npy", "cls"), "w": versions["web"].select("cls")}
    plan = loader.plan(views, seed=1, global_batch=10)
    with loader.Loader(
        plan,
        0,
        1,
        workers=workers,
        steps=6,
        transform=lambda sample, _: sample,
        framework="numpy",
        cache=0,
        prefetch=0,  # each step is made by itself
    ) as batches:
        taken = list(batches)
        whole = batches.metrics()
    assert (0 < whole["room_wait_seconds_count"] <= 6) if workers else whole["room_wait_seconds_count"] == 0
    for stage in MAKING | {"transform_seconds", "consumer_wait_seconds"}:
        each = [batch.stats[stage] for batch in taken]
        assert min(each) >= 0
        assert sum(each) == pytest.approx(whole[f"{stage}_sum"])
    for name in ("batches", "samples", "fetched_bytes", "decoded_bytes", "requests", "retries"):
        assert sum(batch.stats[name] for batch in taken) == whole[f"{name}_total"]
    assert [batch.stats["consumer_wait_seconds"] for batch in taken] == [batch.wait_s for batch in taken]
    for batch in taken[1:]:  # the first also reads indexes
        spent = sum(batch.stats[stage] for stage in MAKING)
        assert workers or spent <= batch.wait_s, "stages of one thread follow each other"


def test_step_counts_its_own_requests(tmp_path):
    """Of one part, read whole, later steps are one read, which steps made together share; what another loader does at
    the same time is not in it."""
    root = loader.Root(tmp_path / "root")
    with root.write("d") as writer:
        for i in range(64):
            writer.add(f"k{i}", {"cls": i})
    plan = loader.plan({"d": writer.version}, seed=1, global_batch=64)
    stop = threading.Event()

    def elsewhere():
        with loader.Loader(plan, 0, 1, workers=0, framework="numpy") as other:
            while not stop.is_set():
                next(other)

    noise = threading.Thread(target=elsewhere)
    noise.start()
    try:
        with loader.Loader(plan, 0, 1, workers=2, framework="numpy", steps=20) as batches:
            requests = [batch.stats["requests"] for batch in batches]
    finally:
        stop.set()
        noise.join()
    assert 1 in requests[4:]
    assert set(requests[4:]) <= {0, 1}


def test_what_a_failed_step_did_is_counted(versions):
    def raise_error(data, _):
        raise ValueError("broken")

    plan = loader.plan({"p": versions["photos"].select("cls")}, seed=1, global_batch=10)
    with loader.Loader(plan, 0, 1, workers=0, decode={"cls": raise_error}) as batches:
        with pytest.raises(DecodeFailed):
            next(batches)
        seen = batches.metrics()
    assert seen["batches_total"] == seen["consumed_batches_total"] == 0
    assert seen["requests_total"] > 0
    assert seen["fetch_wait_seconds_count"] == 1


def test_fetch_is_the_wait_less_the_checksums():
    seen = StepMetrics(0)
    with seen.time_stage("plan"), seen.time_fetch():
        threading.Event().wait(0.02)
        seen.add_seconds("verify", 0.015)
    assert 0 < seen.seconds["fetch"] <= seen.seconds["plan"] - 0.015
    with seen.time_fetch():
        seen.add_seconds("verify", 3600.0)  # of many threads together
    assert seen.seconds["fetch"] <= seen.seconds["plan"] - 0.015


def test_quantiles_are_bounds_of_buckets():
    metrics = Metrics()
    for seconds in [0.002] * 98 + [0.5, 100.0]:
        metrics.observe("decode", seconds)
    seen = metrics.snapshot()
    assert seen["decode_seconds_p50"] == 0.003
    assert seen["decode_seconds_p99"] == 1.0
    metrics.observe("decode", 100.0)
    assert metrics.snapshot()["decode_seconds_p99"] == float("inf")
    assert seen["decode_seconds_sum"] == pytest.approx(98 * 0.002 + 100.5)
    assert sorted(BOUNDS_S) == list(BOUNDS_S)


@pytest.mark.parametrize("stage", ["decode", "transform"])
@pytest.mark.parametrize("workers", [0, 2])
def test_slow_step_names_its_slowest_sample(tmp_path, stage, workers):
    """One sample of a hundred takes 200 ms in a decoder or a transform: it is found, with the place of its bytes."""
    root = loader.Root(tmp_path / "root")
    with root.write("d", part_samples=30) as writer:
        for i in range(100):
            writer.add(f"k{i}", {"cls": i, "txt": "some words"})
    version = root.open("d")
    plan = loader.plan({"words": version.select("cls", "txt")}, seed=1, global_batch=10)
    done = threading.Event()

    def slow(number):
        if number == 37:
            done.wait(0.2)

    def decode(data, _):
        number = int(data)
        if stage == "decode":
            slow(number)
        return number

    def transform(sample, _):
        if stage == "transform":
            slow(sample["cls"])
        return sample

    options = {"decode": {"cls": decode}, "transform": transform, "framework": "numpy", "epochs": 1}
    options["prefetch"] = 0  # each step is made, and waited for, by itself
    with loader.Loader(plan, 0, 1, workers=workers, **options) as batches:
        steps = {batch.step: batch for batch in batches}
        worst = max(batches.slowest(), key=lambda slow: slow.seconds)
        assert len(batches.slowest()) == 10
    assert (worst.source, worst.key, worst.stage, worst.version) == ("words", "k37", stage, "d@1")
    assert ("words", "k37") in steps[worst.step].ids
    assert steps[worst.step].slowest.key == "k37"
    assert worst.seconds <= steps[worst.step].stats[f"{stage}_seconds"]
    data = (Path(root.url) / worst.path).read_bytes()
    assert data[worst.offset : worst.offset + worst.nbytes] == b"some words", "of its largest field"


@pytest.mark.parametrize("prefetch", [0, None], ids=["one by one", "together"])
def test_largest_picture_of_a_step_is_its_slowest_sample(tmp_path, prefetch):
    """Of pictures that are decoded in a row: one of 30,000 times the pixels, which takes thousands of times as long."""
    root = loader.Root(tmp_path / "root")
    with root.write("d", part_samples=9) as writer:
        for i in range(24):
            side = 3000 if i == 17 else 16
            writer.add(f"k{i}", {"jpg": simplejpeg.encode_jpeg(np.full((side, side, 3), 80, np.uint8))})
    plan = loader.plan({"pictures": root.open("d")}, seed=1, global_batch=6)
    options = {"framework": "numpy", "epochs": 1, "workers": 0, "prefetch": prefetch}
    with loader.Loader(plan, 0, 1, **options) as batches:
        found = [batch for batch in batches if ("pictures", "k17") in batch.ids]
    (batch,) = found
    assert (batch.slowest.key, batch.slowest.stage, batch.slowest.step) == ("k17", "decode", batch.step)


def test_slow_read_names_the_shard_and_its_bytes(memory_root, watch_store):
    with memory_root.write("d", part_samples=8) as writer:
        for i in range(32):
            writer.add(f"k{i}", {"cls": i})
    store = watch_store(memory_root)
    version = memory_root.open("d")
    media = [one["path"] for one in (version.parts.shard("media", number) for number in range(4))]
    waiting = threading.Event()

    def stall(key, offset, data):
        if key == media[2]:
            waiting.wait(0.15)
        return data

    store.change = stall
    plan = loader.plan({"p": version.select("cls")}, seed=3, global_batch=16)
    with loader.Loader(plan, 0, 1, workers=0, framework="numpy", steps=2) as batches:
        for batch in batches:
            slow = batch.slowest
            assert (slow.stage, slow.path, slow.step) == ("fetch", media[2], batch.step)
            found = (one.address for one in loader.explain(plan, batch.step))
            inside = [address for address in found if address.fields["cls"].path == media[2]]
            places = [address.fields["cls"] for address in inside]
            assert slow.key in {address.key for address in inside}
            assert slow.offset == min(place.offset for place in places)
            assert slow.offset + slow.nbytes == max(place.offset + place.nbytes for place in places)
    memory_root.store = store.inner


def test_list_of_slow_steps_is_bounded_and_keeps_the_longest_waits():
    metrics = Metrics()
    for step in range(200):
        slow = SlowSample(
            step=step,
            stage="fetch",
            seconds=0.5,
            source="s",
            key="k",
            version="d@1",
            path="p",
            offset=0,
            nbytes=1,
        )
        batch = Batch(step=step, ids=[], mask=None, weight=1.0, digest=0, fields={}, slowest=slow)
        batch.wait_s = (step * 37 % 200) / 2000
        metrics.consumed(batch, None)
    kept = metrics.slowest()
    assert [slow.wait_s for slow in kept] == [wait / 2000 for wait in range(199, 199 - SLOWEST, -1)]
    assert all(slow.wait_s == (slow.step * 37 % 200) / 2000 for slow in kept)


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_read_latency_is_of_requests_not_of_cached_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with loader.Root(tmp_path / "root") as root, root.write("points", part_samples=100) as writer:
        for number in range(400):
            writer.add(f"{number:03d}", {"x.npy": np.zeros(8000, np.uint8)})
    with latency_store(tmp_path / "root", 0.03) as server:
        stored = loader.Root("s3://bucket", options={"endpoint_url": server.options["endpoint_url"]})
        plan = loader.plan({"points": stored.open("points@1")}, seed=7, global_batch=8)
        with loader.Loader(plan, 0, 1, workers=1, executor=executor, steps=20) as batches:
            assert batches.metrics()["read_latency_seconds"] == 0
            for _ in batches:
                pass
            assert batches.metrics()["read_latency_seconds"] >= 0.03
