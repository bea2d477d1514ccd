"""The cut as a work: the same shards and tables whoever cuts, in blocks that write a part each."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import loader
from assets.arrivals.make_batches import discover
from assets.ingest import hash_work, units
from assets.ingest import media as validation
from assets.ingest import raw_objects as landing_stage
from assets.spec import DatasetSpec
from loader.errors import StoreError
from loader.storage import open_store
from penstock.compute import blocks
from penstock.compute.cluster import Cluster
from penstock.compute.cluster_compute import ClusterCompute
from penstock.compute.job import job_ids
from penstock.compute.pool import Compute, InlineCompute, LocalCompute
from penstock.stages import StageRecord, current_record

SPEC = DatasetSpec(name="demo", splits={"train": 0.8, "validation": 0.2}, max_reject_rate=1.0)
LOCAL = Cluster(engine="local")


SAID: list[str] = []


def on(cluster: Cluster) -> Compute:
    return ClusterCompute(cluster, LocalCompute(2), SAID.append)


WAYS: Mapping[str, Callable[[], Compute]] = {
    "inline": InlineCompute,
    "2 workers": lambda: LocalCompute(2),
    "inline engine": lambda: on(Cluster(engine="inline")),
    "local engine, 1 worker": lambda: on(replace(LOCAL, slot=replace(LOCAL.slot, cpus=1))),
    "local engine, 4 workers": lambda: on(replace(LOCAL, slot=replace(LOCAL.slot, cpus=4))),
}


def cut(root: loader.Root, place: Path, compute: Compute) -> StageRecord:
    store = open_store(str(place))
    (batch,) = discover(root.store, store, "demo")
    try:
        landing_stage.land(root.store, store, dataset="demo", partition=batch, run_id="run", compute=compute)
        validation.media_stage(root, store, compute, SPEC, partition=batch, run_id="run")
        return units.units_stage(root, store, compute, SPEC, partition=batch, run_id="run")[0]
    finally:
        compute.close()


def test_shards_and_tables_have_the_same_bytes_whoever_cuts(
    tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "MAX_UNITS", 2)
    (landing / "damaged.jpg").write_bytes(b"\xff\xd8\xff" * 9)
    found = {}
    for way, compute in WAYS.items():
        root = loader.Root(tmp_path / way)
        root.create()
        SAID.clear()
        record = cut(root, landing, compute())
        parts = [loader.Part.from_json(entry["part"]) for entry in record.body["parts"]]
        landed = current_record(root.store, "demo", "raw_objects", record.partition)
        assert landed is not None
        found[way] = [
            *(file.sha256 for file in landed.files.values()),
            record.body["txn"],
            *(file.sha256 for file in record.files.values()),
            *((part.id, part.samples.sha256) for part in parts if part.samples),
            *((shard.path.rpartition("/")[2], shard.sha256) for part in parts for shard in part.shards),
        ]
        assert sum(bool(re.search(r" (\d+) of \1 blocks", line)) for line in SAID) == 3 * ("engine" in way), (
            SAID
        )
        assert not list(job_ids(root.store)), "what is on record needs no job"
        assert len(parts) > 2, "several blocks"
    assert all(one == found["inline"] for one in found.values()), found


def test_an_object_that_no_node_could_read_is_read_again_by_the_next_run(
    tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> hash_work.Hashed:
        raise RuntimeError("a library went mad")

    root, store = loader.Root(tmp_path / "root"), open_store(str(landing))
    root.create()
    (batch,) = discover(root.store, store, "demo")
    compute = on(Cluster(engine="inline"))
    told = {"dataset": "demo", "partition": batch, "run_id": "run", "compute": compute}
    with monkeypatch.context() as patched:
        patched.setattr(hash_work, "hashed", broken)
        with pytest.raises(
            StoreError, match="could not be read to its end: RuntimeError: a library went mad"
        ):
            landing_stage.land(root.store, store, **told)
    _, rows = landing_stage.land(root.store, store, **told)
    assert all(row["sha256"] for row in rows)
    compute.close()
