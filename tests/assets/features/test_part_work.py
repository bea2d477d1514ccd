"""Features of parts on a cluster: the shards and tables of one process, and a poison sample costs itself."""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import loader
from assets.arrivals.make_batches import discover
from assets.features.feature_asset import feature_stage
from assets.features.part_work import plain_featurizer
from assets.features.refresh import refresh_stage
from assets.featurizers.mel import Mel
from assets.ingest import media as validation
from assets.ingest import raw_objects as landing_stage
from assets.ingest import units
from assets.samples.samples_asset import samples_stage
from assets.spec import DatasetSpec, Feature
from assets.stages import require_published
from loader.errors import InvalidRuntime
from loader.storage import open_store
from penstock.compute.cluster import Cluster
from penstock.compute.cluster_compute import ClusterCompute
from penstock.compute.job import job_ids
from penstock.compute.pool import Compute, InlineCompute, LocalCompute
from penstock.stages import StageRecord, partitions

SPEC = DatasetSpec(name="demo", max_reject_rate=1.0)
LOCAL = Cluster(engine="local")
SAID: list[str] = []


def on(cluster: Cluster) -> Compute:
    return ClusterCompute(cluster, LocalCompute(2), SAID.append)


WAYS: Mapping[str, Callable[[], Compute]] = {
    "here": lambda: LocalCompute(2),
    "inline engine": lambda: on(Cluster(engine="inline")),
    "local engine": lambda: on(replace(LOCAL, slot=replace(LOCAL.slot, cpus=2))),
}


@pytest.fixture
def cut(tmp_path: Path, landing: Path) -> Path:
    """A root with a batch that is cut."""
    root, store = loader.Root(tmp_path / "cut"), open_store(str(landing))
    root.create()
    (batch,) = discover(root.store, store, "demo")
    landing_stage.land(root.store, store, dataset="demo", partition=batch, run_id="r")
    validation.media_stage(root, store, InlineCompute(), SPEC, partition=batch, run_id="r")
    units.units_stage(root, store, InlineCompute(), SPEC, partition=batch, run_id="r")
    return tmp_path / "cut"


def batch_of(root: loader.Root) -> str:
    (batch,) = partitions(root.store, "demo", "units")
    return batch


def featurized(
    cut: Path, way: str, feature: Feature, compute: Compute
) -> tuple[StageRecord, list[dict[str, Any]]]:
    shutil.copytree(cut, cut.parent / way)
    root = loader.Root(cut.parent / way)
    told: Any = {"dataset": "demo", "partition": batch_of(root), "run_id": "r", "timeout_s": 60}
    try:
        return feature_stage(root, compute, feature.made(), **told)
    finally:
        compute.close()


@pytest.mark.parametrize("name", ["phash", "mel", "picture"])
def test_shards_and_tables_have_the_same_bytes_on_a_cluster(cut: Path, name: str) -> None:
    found = {}
    for way, compute in WAYS.items():
        SAID.clear()
        record, _ = featurized(cut, way, Feature(name=name), compute())
        found[way] = [
            record.counts,
            *(file.sha256 for file in record.files.values()),
            *((one["part"], one["group"], one["sha256"]) for one in record.body["shards"]),
        ]
        assert bool(SAID) == ("engine" in way), "parts went to the cluster"
        assert not list(job_ids(open_store(str(cut.parent / way))))
    assert found["here"] == found["inline engine"] == found["local engine"]


def test_a_refresh_has_the_same_bytes_on_a_cluster(
    cut: Path, publish_alone: Callable[[loader.Root, StageRecord], loader.Version]
) -> None:
    found = {}
    for way, compute in WAYS.items():
        shutil.copytree(cut, cut.parent / way)
        root, engine = loader.Root(cut.parent / way), compute()
        batch = batch_of(root)
        publish_alone(root, samples_stage(root, SPEC, partition=batch, run_id="r")[0])
        published = require_published(root.store, "demo", "units", batch)
        SAID.clear()
        record, _ = refresh_stage(root, engine, SPEC, Feature(name="phash").made(), published, run_id="r")
        engine.close()
        shards = [(one["part"], one["group"], one["sha256"]) for one in record.body["shards"]]
        found[way] = [record.body["taken"], record.files[record.stage].sha256, *shards]
        assert shards
        assert bool(SAID) == ("engine" in way)
    assert found["here"] == found["inline engine"] == found["local engine"]


@pytest.mark.parametrize("packages", [("tests_poison",), ()])
def test_a_poison_sample_costs_itself_on_a_cluster_too(
    cut: Path, monkeypatch: pytest.MonkeyPatch, packages: tuple[str, ...]
) -> None:
    poison = str(Path(__file__).parent.parent / "poison")
    monkeypatch.syspath_prepend(poison)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([poison, os.environ.get("PYTHONPATH", "")]))
    SAID.clear()
    compute = on(replace(LOCAL, packages=packages, slot=replace(LOCAL.slot, cpus=1)))
    _, rows = featurized(cut, "poison", Feature(name="tests_poison:Poison"), compute)
    assert sorted(row["code"] for row in rows) == ["", "crashed"]
    assert ("its process" if packages else "name its package in `packages`") in str(SAID)


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd(Mel):
    """A parameter that JSON does not hold."""

    words: object = lambda: None


def test_a_featurizer_travels_by_class_and_parameters_alone() -> None:
    made = Feature(name="mel", parameters={"n_mels": 40}).made()
    plain = plain_featurizer(made)
    assert plain is not None
    assert plain.made(["assets"]) == made
    with pytest.raises(InvalidRuntime, match="accepted are those of the packages mine"):
        plain.made(["mine"])
    assert plain_featurizer(Odd()) is None
