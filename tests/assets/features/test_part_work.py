"""Features of parts on a cluster: the shards and tables of one process, and a poison sample costs itself."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import loader
from assets.arrivals.make_batches import discover
from assets.features.feature_asset import feature_stage
from assets.features.plain_featurizer import plain_featurizer
from assets.features.refresh import refresh_stage
from assets.featurizers.mel import Mel
from assets.ingest import media as validation
from assets.ingest import raw_objects as landing_stage
from assets.ingest import units
from assets.pipeline.stages import require_published
from assets.samples.samples_asset import samples_stage
from assets.spec import DatasetSpec, Feature
from loader.errors import InvalidRuntime, ModelFailed
from loader.storage import open_store
from penstock.compute.cluster import Cluster
from penstock.compute.cluster_compute import ClusterCompute
from penstock.compute.job import job_ids
from penstock.compute.pool import Compute, InlineCompute, LocalCompute
from penstock.stages import StageRecord, partitions
from tests.refusals import refusal

SPEC = DatasetSpec(name="demo", max_reject_rate=1.0)
LOCAL = Cluster(engine="local")
SAID: list[str] = []


def cluster_compute(cluster: Cluster) -> Compute:
    return ClusterCompute(cluster, LocalCompute(2), SAID.append)


WAYS: Mapping[str, Callable[[], Compute]] = {
    "here": lambda: LocalCompute(2),
    "inline engine": lambda: cluster_compute(Cluster(engine="inline")),
    "local engine": lambda: cluster_compute(replace(LOCAL, slot=replace(LOCAL.slot, cpus=2))),
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


def only_batch(root: loader.Root) -> str:
    (batch,) = partitions(root.store, "demo", "units")
    return batch


def featurize(
    cut: Path, way: str, feature: Feature, compute: Compute
) -> tuple[StageRecord, list[dict[str, Any]]]:
    shutil.copytree(cut, cut.parent / way)
    root = loader.Root(cut.parent / way)
    told: Any = {"dataset": "demo", "partition": only_batch(root), "run_id": "r", "timeout_s": 60}
    try:
        return feature_stage(root, compute, feature.build(), **told)
    finally:
        compute.close()


def test_shards_and_tables_have_the_same_bytes_on_a_cluster(cut: Path) -> None:
    found = {}
    for way, compute in WAYS.items():
        SAID.clear()
        record, _ = featurize(cut, way, Feature(name="phash"), compute())
        found[way] = [
            record.counts,
            *(file.sha256 for file in record.files.values()),
            *((one["part"], one["group"], one["sha256"]) for one in record.body["shards"]),
        ]
        assert bool(SAID) == ("engine" in way), "parts went to the cluster"
        assert not list(job_ids(open_store(str(cut.parent / way))))
    assert found["here"] == found["inline engine"] == found["local engine"]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Feature:
    """A small model of pictures, sounds left out, that nodes can import."""
    networks = str(Path(__file__).parent.parent / "featurizers" / "networks")
    monkeypatch.syspath_prepend(networks)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([networks, os.environ.get("PYTHONPATH", "")]))
    from tests_networks import two_towers

    two_towers.save_small(tmp_path / "small.safetensors", seed=3)
    weights = str(tmp_path / "small.safetensors")
    return Feature(
        name="embedding", parameters={"network": "tests_networks.two_towers:load", "weights": weights}
    )


class Mixed(ClusterCompute):
    """A cluster whose nodes are of two kinds."""

    def blocks(self, *given: Any) -> Iterator[Any]:
        """The blocks of the cluster, as if another kind of node had computed their second part."""
        for block in super().blocks(*given):
            one, two = block.outcomes
            other = replace(two.value, ran_on={**two.value.ran_on, "processor": "ANOTHER"})
            yield replace(block, outcomes=[one, replace(two, value=other)])


def test_model_computes_on_nodes_and_gives_the_bytes_of_one_process(cut: Path, model: Feature) -> None:
    found = {}
    nodes = replace(LOCAL, packages=("tests_networks",))
    for n in (0, 1, 4):
        engine = cluster_compute(replace(nodes, slot=replace(LOCAL.slot, cpus=n))) if n else LocalCompute(2)
        SAID.clear()
        record, rows = featurize(cut, f"{n} workers", model, engine)
        assert bool(SAID) == bool(n)
        assert not any("computed here" in line for line in SAID)
        facts = [
            record.body[name] for name in ("device", "batch_size", "torch", "processor", "weights_sha256")
        ]
        shards = [(one["part"], one["group"], one["sha256"]) for one in record.body["shards"]]
        found[n] = [facts, shards, rows, record.files[record.stage].sha256]
        assert facts[:2] == ["cpu", 1]
        assert len(shards) == 2
    assert found[0] == found[1] == found[4]


def test_model_on_two_kinds_of_nodes_or_none_that_loads_it_stops_the_batch(cut: Path, model: Feature) -> None:
    nodes, said = replace(LOCAL, engine="inline", packages=("tests_networks",)), SAID.append
    with refusal(
        ModelFailed, what="embedding", given="batch_size 1, device cpu, processor ANOTHER, torch 2.13.0+cpu"
    ):
        featurize(cut, "mixed", model, Mixed(nodes, InlineCompute(), said))
    gone = replace(model, parameters={**model.parameters, "weights": "/gone.safetensors", "sha256": "0" * 64})
    fault = "no weights at /gone.safetensors: there is no such file"
    with refusal(ModelFailed, what="embedding", given=fault, within="-image_00000"):
        featurize(cut, "gone", gone, ClusterCompute(nodes, InlineCompute(), said))
    for way in ("mixed", "gone"):  # the next run begins anew
        assert not list(job_ids(open_store(str(cut.parent / way))))


def test_refresh_has_the_same_bytes_on_a_cluster(
    cut: Path, publish_alone: Callable[[loader.Root, StageRecord], loader.Version]
) -> None:
    found = {}
    for way, compute in WAYS.items():
        shutil.copytree(cut, cut.parent / way)
        root, engine = loader.Root(cut.parent / way), compute()
        batch = only_batch(root)
        publish_alone(root, samples_stage(root, SPEC, partition=batch, run_id="r")[0])
        published = require_published(root.store, "demo", "units", batch)
        SAID.clear()
        record, _ = refresh_stage(root, engine, SPEC, Feature(name="phash").build(), published, run_id="r")
        engine.close()
        shards = [(one["part"], one["group"], one["sha256"]) for one in record.body["shards"]]
        found[way] = [record.body["taken"], record.files[record.stage].sha256, *shards]
        assert shards
        assert bool(SAID) == ("engine" in way)
    assert found["here"] == found["inline engine"] == found["local engine"]


@pytest.mark.parametrize("packages", [("tests_poison",), ()])
def test_poison_sample_costs_itself_on_a_cluster_too(
    cut: Path, monkeypatch: pytest.MonkeyPatch, packages: tuple[str, ...]
) -> None:
    poison = str(Path(__file__).parent.parent / "poison")
    monkeypatch.syspath_prepend(poison)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([poison, os.environ.get("PYTHONPATH", "")]))
    SAID.clear()
    compute = cluster_compute(replace(LOCAL, packages=packages, slot=replace(LOCAL.slot, cpus=1)))
    _, rows = featurize(cut, "poison", Feature(name="tests_poison:Poison"), compute)
    assert sorted(row["code"] for row in rows) == ["", "crashed"]
    assert ("its process" if packages else "add its package to `packages`") in str(SAID)


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd(Mel):
    """A parameter that JSON does not hold."""

    words: object = lambda: None


def test_featurizer_travels_by_class_and_parameters_alone() -> None:
    made = Feature(name="mel", parameters={"n_mels": 40}).build()
    plain = plain_featurizer(made)
    assert plain is not None
    assert plain.build(["assets"]) == made
    with refusal(InvalidRuntime, what="featurizer", given="assets.featurizers.mel:Mel"):
        plain.build(["mine"])
    assert plain_featurizer(Odd()) is None


def test_network_is_code_of_the_packages_too(model: Feature) -> None:
    plain = plain_featurizer(model.build())
    assert plain is not None
    assert plain.build(["assets", "tests_networks"]) == model.build()
    with refusal(InvalidRuntime, what="network", given="tests_networks.two_towers:load"):
        plain.build(["assets"])
