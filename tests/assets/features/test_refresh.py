"""Other parameters of a featurizer: its stage and those behind it are made again, and nothing else."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import dagster as dg

import loader
from assets.spec import DatasetSpec, Feature
from penstock.stages import current_record

SPEC = DatasetSpec(
    name="demo",
    features=(Feature(name="picture"), Feature(name="phash"), Feature(name="loudness")),
)
REFRESHED = replace(
    SPEC,
    features=(
        Feature(name="picture"),
        Feature(name="phash", parameters={"video": None}),
        Feature(name="loudness"),
    ),
)
STAGES = (
    *("raw_objects", "media", "units", "feature_picture", "feature_phash", "feature_loudness"),
    *("samples", "version"),
)
Run = Callable[..., dg.ExecuteInProcessResult]
Told = Callable[[dg.ExecuteInProcessResult], str]
Arrive = Callable[[Path], str]


def attempts(root: loader.Root, batch: str) -> Mapping[str, int]:
    """stage -> how many records it has."""
    records = {stage: current_record(root.store, "demo", stage, batch) for stage in STAGES}
    return {stage: record.r if record else 0 for stage, record in records.items()}


def test_before_it_is_published(run: Run, arrive: Arrive, root: loader.Root, landing: Path) -> None:
    batch = arrive(landing)
    assert run("ingest", SPEC, batch).success
    once = dict.fromkeys(STAGES, 1) | {"version": 0}
    assert attempts(root, batch) == once
    shards = {info.key for info in root.store.list("data/")}

    assert run("ingest", REFRESHED, batch).success
    assert attempts(root, batch) == once | {"feature_phash": 2, "samples": 2}
    added = {info.key for info in root.store.list("data/")} - shards
    record = current_record(root.store, "demo", "feature_phash", batch)
    samples = current_record(root.store, "demo", "samples", batch)
    assert record is not None
    assert samples is not None
    mine = {shard[name] for shard in record.body["shards"] for name in ("path", "index_path")}
    tables = {body["samples"]["path"] for body in samples.body["parts"]}
    assert added == mine | (tables & added)

    before = {info.key for info in root.store.list()}
    assert run("ingest", REFRESHED, batch).success
    assert {info.key for info in root.store.list()} == before

    assert run("release", REFRESHED).success
    assert (
        len(root.open("demo@1").select("phash.npy", where_present=True)) == 2
    )  # of photos, no more of clips


def test_feature_alone_without_the_samples_behind_it(
    run: Run, arrive: Arrive, root: loader.Root, landing: Path
) -> None:
    """What was put together before stays as it was, and can be published."""
    batch = arrive(landing)
    assert run("ingest", SPEC, batch).success
    assert run(["feature_phash"], REFRESHED, batch).success
    assert run("release", SPEC).success
    assert len(root.open("demo@1")) == 5
    assert attempts(root, batch)["samples"] == 1


def test_after_it_was_published(
    run: Run, arrive: Arrive, root: loader.Root, landing: Path, failure_text: Told
) -> None:
    """A version never changes: the refreshed feature makes the next one."""
    batch = arrive(landing)
    assert run("ingest", SPEC, batch).success
    assert run("release", SPEC).success
    manifest = root.open("demo@1").manifest
    again = run("ingest", REFRESHED, batch)
    assert again.success, failure_text(again)
    assert run("release", REFRESHED).success
    assert [record.number for record in root.state.versions("demo")] == [1, 2]
    assert root.open("demo@1").manifest == manifest
    assert len(root.open("demo@2").select("phash.r2.npy", where_present=True)) == 2
    assert attempts(root, batch) == dict.fromkeys(STAGES, 1) | {"feature_phash": 2}
