"""What the loader says it has done: names, sums and that they only grow."""

import pytest

import loader
from loader.run.metrics import BOUNDS_S, Metrics

NAMES = {
    "batches_total",
    "samples_total",
    "fetched_bytes_total",
    "decoded_bytes_total",
    "refetched_total",
    *(f"cache_{name}_total" for name in ("hits", "misses", "written_bytes", "evicted", "corrupt", "failed")),
    "substituted_total",
    *(
        f"{stage}_{what}"
        for stage in (
            "plan_seconds",
            "fetch_wait_seconds",
            "decode_seconds",
            "collate_seconds",
            "consumer_wait_seconds",
        )
        for what in ("sum", "count", "p50", "p99")
    ),
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
                if not name.endswith(("p50", "p99")):
                    assert after[name] >= before[name], name
            assert after["consumer_wait_seconds_count"] == before["consumer_wait_seconds_count"] + 1
            before = after
    assert (after["batches_total"], after["samples_total"]) == (5, 43)
    assert after["decoded_bytes_total"] == nbytes
    assert after["fetched_bytes_total"] == sum(
        one.address.fields["x.npy"].nbytes for step in range(5) for one in loader.explain(plan, step)
    ) - sum(one.address.fields["x.npy"].nbytes for one in loader.explain(plan, 4) if one.position >= 43)
    assert {after[f"{stage}_seconds_count"] for stage in ("plan", "fetch_wait", "decode", "collate")} == {5}


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
