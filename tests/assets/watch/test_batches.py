"""Where batches stand, and the metrics of it, over real runs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import loader
from assets.arrivals.batches import IngestBatch, IngestBatches
from assets.spec import DatasetSpec, Filter
from dagster_project.metrics import PipelineCollector
from penstock.stages import append_record, current_record

Run = Callable[..., dg.ExecuteInProcessResult]
SPEC = DatasetSpec(name="demo", max_reject_rate=0.5)
STRICT = DatasetSpec(name="demo", max_reject_rate=0.0)


def look(root: loader.Root) -> list[IngestBatch]:
    return IngestBatches("demo").current(root)


def standings(root: loader.Root) -> list[str]:
    return [batch.standing for batch in look(root)]


def test_batch_from_discovery_to_its_version(
    root: loader.Root, landing: Path, arrive: Callable[[Path], str], run: Run
) -> None:
    assert look(root) == []
    batch = arrive(landing)
    (waiting,) = look(root)
    nbytes = sum(path.stat().st_size for path in landing.rglob("*") if path.is_file())
    assert (waiting.key, waiting.standing, waiting.objects, waiting.nbytes) == (batch, "waiting", 5, nbytes)
    run(["raw_objects"], SPEC, batch)
    assert standings(root) == ["in_progress"]
    run("ingest", SPEC, batch)
    (ready,) = look(root)
    assert (ready.standing, ready.objects, ready.used) == ("ready", 5, 5)
    assert not ready.refused
    assert 0 < ready.landed_at_us <= ready.samples_at_us
    run("release", SPEC)
    assert standings(root) == ["published"]


def test_verdict_that_nobody_knows_has_stopped_its_batch(
    root: loader.Root, landing: Path, arrive: Callable[[Path], str], run: Run
) -> None:
    batch = arrive(landing)
    run(["raw_objects"], SPEC, batch)
    record = current_record(root.store, "demo", "raw_objects", batch)
    assert record is not None
    odd: Any = "refused"
    append_record(root.store, replace(record, verdict=odd, reason="it is bad"))
    (stopped,) = look(root)
    assert (stopped.standing, stopped.stopped_by) == ("stopped", "raw_objects: it is bad")


def test_batch_that_was_stopped_says_by_what_and_goes_on_when_repaired(
    root: loader.Root, landing: Path, arrive: Callable[[Path], str], run: Run
) -> None:
    broken = landing / "photos/cats/a cat.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    batch = arrive(landing)
    run("ingest", STRICT, batch)
    (stopped,) = look(root)
    assert stopped.standing == "stopped"
    assert stopped.stopped_by.startswith("media: 1 of 5 objects are unreadable")
    assert stopped.refused == {("rejected", "undecodable"): 1}
    run("ingest", SPEC, batch)  # the owner allows it
    assert standings(root) == ["ready"]
    run(["media"], STRICT, batch)  # made again under the older rule: what was cut before is no longer read
    assert standings(root) == ["stopped"]


def test_batch_without_a_sample_delays_nothing(
    root: loader.Root, landing: Path, arrive: Callable[[Path], str], run: Run
) -> None:
    run("ingest", SPEC, arrive(landing))
    run("release", SPEC)
    (landing / "copy.jpg").write_bytes((landing / "photos/cats/a cat.jpg").read_bytes())
    run("ingest", SPEC, arrive(landing))
    assert standings(root) == ["published", "nothing_new"]


def test_code_that_two_stages_refuse_counts_both(
    root: loader.Root, landing: Path, arrive: Callable[[Path], str], run: Run
) -> None:
    batch = arrive(landing)
    run("ingest", SPEC, batch)
    record = current_record(root.store, "demo", "samples", batch)
    assert record is not None
    provenance = record.body["made_of"]
    provenance |= {"refused": [["rejected", "decode", "truncated", 2], ["rejected", "probe", "truncated", 3]]}
    append_record(root.store, replace(record, body=record.body | {"made_of": provenance}))
    (ready,) = look(root)
    assert ready.refused == {("rejected", "truncated"): 5}


def test_second_look_reads_only_what_is_new(
    root: loader.Root, landing: Path, arrive: Callable[[Path], str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, read = IngestBatches("demo"), list[str]()
    real = type(root.store).get

    def counting(store: object, key: str, *rest: object, **options: object) -> object:
        read.append(key)
        return real(store, key, *rest, **options)  # type: ignore[arg-type, call-overload]

    monkeypatch.setattr(type(root.store), "get", counting)
    run("ingest", SPEC, arrive(landing))
    read.clear()
    first = book.current(root)
    assert any(key.startswith("stages/") for key in read)
    read.clear()
    assert book.current(root) == first
    assert not [key for key in read if key.startswith(("stages/", "tables/"))]
    (landing / "later.txt").write_bytes(b"also not media\n")
    arrive(landing)
    read.clear()
    assert [batch.standing for batch in book.current(root)] == ["ready", "waiting"]
    assert [key for key in read if key.startswith("tables/")] == ["tables/demo/manifests/000002.json"]
    assert not [key for key in read if key.startswith("stages/")]


def scrape(root: loader.Root, failed: list[str]) -> dict[tuple[str, str], float]:
    """(metric, last label) -> value, through Prometheus' own parser."""
    registry = CollectorRegistry()
    registry.register(
        PipelineCollector(root, {"demo": ()}, lambda dataset, error: failed.append(f"{dataset}: {error}"))
    )
    families = text_string_to_metric_families(generate_latest(registry).decode())
    found = {}
    for family in families:
        for sample in family.samples:
            assert sample.labels.pop("dataset") == "demo"
            found[sample.name.removeprefix("penstock_pipeline_"), " ".join(sample.labels.values())] = (
                sample.value
            )
    return found


def test_metrics_count_every_object_once(
    root: loader.Root, landing: Path, arrive: Callable[[Path], str], run: Run
) -> None:
    spec = DatasetSpec(
        name="demo", max_reject_rate=0.5, filters=(Filter(column="kind", allowed=frozenset({"image"})),)
    )
    broken = landing / "photos/cats/a cat.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    run("ingest", spec, arrive(landing))
    (landing / "later.txt").write_bytes(b"later\n")
    arrive(landing)
    failed: list[str] = []
    numbers = scrape(root, failed)
    outcomes = {label: value for (name, label), value in numbers.items() if name == "objects"}
    assert outcomes == {"used": 1, "rejected": 1, "dropped": 3, "undecided": 1}
    refused = {label: value for (name, label), value in numbers.items() if name == "refused_objects"}
    assert sum(refused.values()) == 4
    assert numbers["batches", "ready"] == 1
    assert numbers["batches", "waiting"] == 1
    assert numbers["backlog_objects", ""] == 6
    assert ("version", "") not in numbers
    run("release", spec)
    numbers = scrape(root, failed)
    assert (numbers["version", ""], numbers["version_samples", ""], numbers["up", ""]) == (1, 1, 1)
    assert numbers["backlog_objects", ""] == 1
    lags = [numbers["arrival_to_version_seconds", quantile] for quantile in ("0.5", "0.95", "1")]
    assert 0 < lags[0] <= lags[1] <= lags[2]
    assert not failed


def test_root_that_cannot_be_read_is_down_and_has_no_old_numbers(
    root: loader.Root, landing: Path, arrive: Callable[[Path], str], run: Run
) -> None:
    run(["raw_objects"], SPEC, arrive(landing))
    (record,) = (Path(root.url) / "stages/demo/raw_objects").rglob("*.json")
    record.write_bytes(b"edited by hand")
    failed: list[str] = []
    assert scrape(root, failed) == {("up", ""): 0}
    assert "is not a stage record" in failed[0]
