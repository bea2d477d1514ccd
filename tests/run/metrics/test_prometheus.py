"""`metrics_text`: what Prometheus' own parser reads from it is what `metrics` says."""

from itertools import pairwise

import pytest

import loader
from loader.run.metrics import BOUNDS_S, COUNTERS, STAGES
from loader.run.metrics_text import CONTENT_TYPE, HELP

ODD = 'a "b"\\c\nd, e=f {g} ü'


@pytest.fixture
def read(versions, families):
    """(metrics, family name -> family) of a rank of a run whose sources have odd names."""
    views = {ODD: versions["photos"].select("cls"), "web": versions["web"].select("cls")}
    plan = loader.plan(views, seed=1, global_batch=10)
    with loader.Loader(plan, 1, 2, workers=2, steps=6, framework="numpy") as batches:
        for _ in range(5):
            next(batches)
    text = batches.metrics_text()  # of a closed loader nothing moves any more
    return batches.metrics(), families(text), text


def test_every_metric_is_there_with_its_type_and_help(read):
    _, found, text = read
    counters = {f"penstock_{name}": "counter" for name in COUNTERS}
    histograms = {f"penstock_{name}": "histogram" for name in STAGES.values()}
    assert {name: one.type for name, one in found.items()} == {
        **counters,
        **histograms,
        "penstock_step": "gauge",
    }
    assert all(one.documentation for one in found.values())
    assert HELP.keys() == STAGES.keys()
    assert text.endswith("\n")
    assert "version=0.0.4" in CONTENT_TYPE


def test_values_are_those_of_metrics(read):
    seen, found, _ = read
    for name in COUNTERS.keys() - {"samples"}:
        (sample,) = found[f"penstock_{name}"].samples
        assert sample.name == f"penstock_{name}_total"
        assert sample.labels == {"rank": "1"}
        assert sample.value == seen[f"{name}_total"]
    (step,) = found["penstock_step"].samples
    assert step.value == 5


def test_samples_are_told_by_source(read):
    seen, found, _ = read
    samples = found["penstock_samples"].samples
    assert {one.labels["source"] for one in samples} == {ODD, "web"}
    assert {one.labels["rank"] for one in samples} == {"1"}
    assert sum(one.value for one in samples) == seen["samples_total"]
    assert all(one.value > 0 for one in samples)


def test_histograms(read):
    seen, found, _ = read
    for name in STAGES.values():
        samples = found[f"penstock_{name}"].samples
        buckets = [one for one in samples if one.name.endswith("_bucket")]
        assert [float(one.labels["le"]) for one in buckets] == [*BOUNDS_S, float("inf")]
        assert all(a.value <= b.value for a, b in pairwise(buckets)), "cumulative"
        rest = {one.name: one.value for one in samples if one not in buckets}
        assert rest == {
            f"penstock_{name}_sum": seen[f"{name}_sum"],
            f"penstock_{name}_count": seen[f"{name}_count"],
        }
        assert buckets[-1].value == seen[f"{name}_count"]
        assert {one.labels["rank"] for one in samples} == {"1"}


def test_loader_that_has_done_nothing_tells_zeros(versions, families):
    plan = loader.plan({"p": versions["photos"].select("cls")}, seed=1, global_batch=10)
    with loader.Loader(plan, 0, 1) as batches:
        found = families(batches.metrics_text())
    assert {one.value for family in found.values() for one in family.samples} == {0}
