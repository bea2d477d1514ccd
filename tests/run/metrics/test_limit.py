"""Who limits: loads that are slow at one place, each of which must be named."""

import threading

import numpy as np
import pytest

import loader
from loader.run.batch.batch import MAKING, StepMetrics
from loader.run.metrics import LIMITS, STAGES, WAITS, Metrics, find_bottleneck, stage_seconds

never = threading.Event()


@pytest.fixture
def slow_run(memory_root, watch_store):
    """slow_run(place, workers) -> (who limited, status line) of 12 steps; one place takes 20 ms per batch of 4."""
    with memory_root.write("d", part_samples=64) as writer:
        for i in range(64):
            writer.add(f"k{i}", {"cls": i})
    store = watch_store(memory_root)
    plan = loader.plan({"p": memory_root.open("d").select("cls")}, seed=1, global_batch=4)

    def run(place, workers):
        def stall(at, seconds):
            if at == place:
                never.wait(seconds)

        def answer(key, offset, data):
            stall("store", 0.005)  # once per sample's span
            return data

        def decode(data, _):
            stall("decoder", 0.005)
            return int(data)

        def transform(sample, _):
            stall("transform", 0.005)
            return sample

        store.change = answer
        options = {
            "decode": {"cls": decode},
            "transform": transform,
            "framework": "numpy",
            "workers": workers,
            "cache": 0,
            "prefetch": 0,  # no more is made than is taken: the consumer waits, however slow it is
        }
        with loader.Loader(plan, 0, 1, steps=12, **options) as batches:
            next(batches)  # the first waits for indexes and for threads to start
            before, _ = batches.metrics(), batches.status_line()
            for _ in batches:
                stall("consumer", 0.1)  # many times what a busy machine takes for a batch
            limit, line = find_bottleneck(batches.metrics(), before, ahead=workers > 0), batches.status_line()
        store.change = lambda key, offset, data: data
        return limit, line

    yield run
    memory_root.store = store.inner


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("place", ["store", "decoder", "transform", "consumer"])
def test_slow_place_is_named(slow_run, place, workers):
    limit, line = slow_run(place, workers)
    assert limit == place
    assert line.endswith(f"limited by: {place}")


def make_metrics(**seconds):
    """Metrics with these seconds per stage."""
    return {f"{name}_sum": seconds.get(stage, 0.0) for stage, name in STAGES.items()}


def test_every_stage_of_making_can_limit():
    assert LIMITS.keys() == MAKING.keys()
    for stage, limit in LIMITS.items():
        assert find_bottleneck(make_metrics(**{stage: 2.0}, consumer=5.0, busy=1.0, room=9.0)) == limit
    others = dict.fromkeys(MAKING, 1.0)
    assert find_bottleneck(make_metrics(**{**others, "decode": 1.1}, consumer=5.0)) == "decoder"


def test_reading_that_waits_for_no_store_is_copying():
    waiting = make_metrics(fetch=4.0, consumer=5.0)
    assert find_bottleneck(waiting | {"fetch_busy_us_total": 0.9e6}) == "store"
    assert find_bottleneck(waiting | {"fetch_busy_us_total": 1.1e6}) == "copying"
    before = make_metrics(fetch=2.0, consumer=2.0) | {"fetch_busy_us_total": 1.0e6}
    assert find_bottleneck(waiting | {"fetch_busy_us_total": 1.1e6}, before) == "store"
    assert find_bottleneck(waiting | {"fetch_busy_us_total": 2.0e6}, before) == "copying"


def test_reading_that_waits_for_other_nodes_is_peers():
    assert find_bottleneck(make_metrics(fetch=4.0, peers=1.9, consumer=5.0)) == "store"
    assert find_bottleneck(make_metrics(fetch=4.0, peers=2.1, consumer=5.0)) == "peers"
    before = make_metrics(fetch=2.0, peers=1.5, consumer=2.0)
    assert find_bottleneck(make_metrics(fetch=4.0, peers=2.1, consumer=5.0), before) == "store"


def test_fetch_is_divided_by_the_waits_since_the_last_step():
    metrics = Metrics()
    for peer_us, store_us, peers_s in [
        (0, 900, 0.0),
        (300, 0, 2.0),
        (200, 600, 0.5),
        (0, 5000, 0.0),
        (100, 100, 1.0),
    ]:
        before = metrics.snapshot()
        metrics.count("cache_peer_us", peer_us)
        metrics.count("cache_store_us", store_us)
        step = StepMetrics([0])
        step.add_seconds("fetch", 2.0)
        metrics.add(step)
        after = metrics.snapshot()
        assert after["peer_wait_seconds_sum"] - before["peer_wait_seconds_sum"] == peers_s
        assert after["fetch_wait_seconds_sum"] - before["fetch_wait_seconds_sum"] == 2.0


def test_consumer_limits_while_it_hardly_waits():
    just = WAITS * 100.0
    assert (
        find_bottleneck(make_metrics(fetch=500.0, consumer=just - 0.1, busy=100.0 - just + 0.1)) == "consumer"
    )
    assert find_bottleneck(make_metrics(fetch=500.0, consumer=just + 0.1, busy=100.0 - just - 0.1)) == "store"


def test_without_batches_ahead_the_largest_share_limits():
    half = {"fetch": 3.0, "decode": 4.0, "consumer": 8.0}
    assert find_bottleneck(make_metrics(**half, busy=3.9), ahead=False) == "decoder"
    assert find_bottleneck(make_metrics(**half, busy=4.1), ahead=False) == "consumer"


def test_nothing_is_judged_by_nothing():
    assert find_bottleneck(make_metrics()) is None
    assert find_bottleneck(make_metrics(consumer=1.0)) is None
    assert find_bottleneck(make_metrics(fetch=1.0)) is None
    seen = make_metrics(fetch=3.0, consumer=3.0)
    assert find_bottleneck(seen, before=seen) is None


def test_only_what_happened_since_counts():
    before = make_metrics(fetch=100.0, consumer=100.0)
    now = make_metrics(fetch=101.0, decode=5.0, consumer=106.0)
    assert find_bottleneck(now) == "store"
    assert find_bottleneck(now, before) == "decoder"
    since = stage_seconds(now, before)
    assert {stage: seconds for stage, seconds in since.items() if seconds} == {
        "fetch": 1.0,
        "decode": 5.0,
        "consumer": 6.0,
    }
    assert np.isclose(sum(stage_seconds(now).values()), 212.0)
