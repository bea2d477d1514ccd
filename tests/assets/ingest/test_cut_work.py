"""The cut as a work: the same shards and tables whoever cuts, in blocks that write a part each."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import loader
from assets.arrivals.make_batches import discover
from assets.ingest import hash_work, units
from assets.ingest import media as validation
from assets.ingest import raw_objects as landing_stage
from assets.ingest.audit_work import clear_staging
from assets.spec import DatasetSpec
from loader.dataset.shards.part import part_rows
from loader.errors import Corrupt, StoreError
from loader.storage import open_store
from penstock.compute import cluster_compute, submit
from penstock.compute.cluster import Cluster
from penstock.compute.cluster_compute import ClusterCompute
from penstock.compute.job import JobFolder, job_ids
from penstock.compute.job_json import from_frame, to_frame
from penstock.compute.pool import Compute, InlineCompute, LocalCompute
from penstock.stages import StageRecord, current_record
from tests.mortal_store import Killed
from tests.refusals import refusal

SPEC = DatasetSpec(name="demo", splits={"train": 0.8, "validation": 0.2}, max_reject_rate=1.0)
LOCAL = Cluster(engine="local")


SAID: list[str] = []


def make_compute(cluster: Cluster) -> Compute:
    return ClusterCompute(cluster, LocalCompute(2), SAID.append)


WAYS: Mapping[str, Callable[[], Compute]] = {
    "inline": InlineCompute,
    "2 workers": lambda: LocalCompute(2),
    "inline engine": lambda: make_compute(Cluster(engine="inline")),
    "local engine, 1 worker": lambda: make_compute(replace(LOCAL, slot=replace(LOCAL.slot, cpus=1))),
    "local engine, 4 workers": lambda: make_compute(replace(LOCAL, slot=replace(LOCAL.slot, cpus=4))),
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
    tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch, at_scale: Callable[..., Iterable[str]]
) -> None:
    monkeypatch.setattr(submit, "MAX_UNITS", 2)
    (landing / "damaged.jpg").write_bytes(b"\xff\xd8\xff" * 9)
    found = {}
    for way in at_scale(["inline", "2 workers", "local engine, 4 workers"], WAYS):
        root = loader.Root(tmp_path / way)
        root.create()
        SAID.clear()
        record = cut(root, landing, WAYS[way]())
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


def test_object_that_no_node_could_read_is_read_again_by_the_next_run(
    tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_library_error(*_: object) -> hash_work.Hashed:
        raise RuntimeError("a library went mad")

    root, store = loader.Root(tmp_path / "root"), open_store(str(landing))
    root.create()
    (batch,) = discover(root.store, store, "demo")
    compute = make_compute(Cluster(engine="inline"))
    told = {"dataset": "demo", "partition": batch, "run_id": "run", "compute": compute}
    with monkeypatch.context() as patched:
        patched.setattr(hash_work, "read_content", raise_library_error)
        with refusal(StoreError, what="content", given="RuntimeError: a library went mad"):
            landing_stage.land(root.store, store, **told)
    _, rows = landing_stage.land(root.store, store, **told)
    assert all(row["sha256"] for row in rows)
    compute.close()


def cut_by_runs(
    root: loader.Root, place: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], StageRecord]:
    """Cut a batch in a run that is killed when its nodes have done their work; return what another run does."""
    store, cluster = open_store(str(place)), Cluster(engine="inline")
    (batch,) = discover(root.store, store, "demo")
    landing_stage.land(root.store, store, dataset="demo", partition=batch, run_id="first")
    validation.media_stage(root, store, InlineCompute(), SPEC, partition=batch, run_id="first")

    def run(run_id: str) -> StageRecord:
        return units.units_stage(root, store, make_compute(cluster), SPEC, partition=batch, run_id=run_id)[0]

    true = cluster_compute.follow

    def dies(*given: Any) -> Iterator[Any]:
        list(true(*given))
        raise Killed
        yield

    with monkeypatch.context() as patched:
        patched.setattr(cluster_compute, "follow", dies)
        with pytest.raises(Killed):
            run("first")
    return run


def test_run_goes_on_with_the_cut_of_a_run_that_was_killed(
    tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its own units would name another run."""
    SAID.clear()
    with loader.Root(tmp_path / "root") as root:
        root.create()
        run = cut_by_runs(root, landing, monkeypatch)
        (id_,) = job_ids(root.store)
        starts = JobFolder(root.store, id_).n_starts()
        monkeypatch.setattr(units, "discard", lambda *_: None)
        record = run("second")
        assert list(job_ids(root.store)) == [id_]
        assert JobFolder(root.store, id_).n_starts() == starts, "nothing was cut again"
        assert not any("left alone" in line for line in SAID)
        part = loader.Part.from_json(record.body["parts"][0]["part"])
        assert {row["run_id"] for row in part_rows(root.store, part)} == {"first"}


@pytest.mark.parametrize(
    ("where", "path"),
    [
        ("shard", "data/other/x.tar"),
        ("shard", "foreign/x/a.tar"),
        ("shard", "data/{txn}/../other.tar"),
        ("index", "log/000000000001.json"),
        ("samples", "data/other/x.parquet"),
        ("txn", "other"),
    ],
)
def test_forged_outcome_names_no_file_of_others(
    tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch, where: str, path: str
) -> None:
    with loader.Root(tmp_path / "root") as root:
        root.create()
        run = cut_by_runs(root, landing, monkeypatch)
        (id_,) = job_ids(root.store)
        key = JobFolder(root.store, id_).key("done/0.jsonl.zst")
        lines = [json.loads(line) for line in from_frame(root.store.get(key).data, key)]
        part = lines[0]["part"]["parts"][0][1]
        name = path.format(txn=part["txn"])
        if where == "txn":
            part["txn"] = name
        elif where == "samples":
            part["samples"]["path"] = name
        else:
            part["shards"][0]["path" if where == "shard" else "index_path"] = name
        root.store.put(key, to_frame(json.dumps(line).encode() for line in lines))
        with refusal(Corrupt, what="part" if where == "txn" else name):
            run("second")


def test_clips_that_waited_are_cleared_up_to_a_link(tmp_path):
    """Whoever may write to the root may lay a link beside the clips to files of somebody else."""
    store, other = open_store(str(tmp_path / "root")), tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("x")
    store.put("tables/demo/clips_ahead/b000001/clip", b"x")
    (tmp_path / "root/tables/demo/clips_ahead/b000001/link").symlink_to(other)
    clear_staging(store, "demo", "b000001")
    assert list(store.list("tables/demo/clips_ahead/b000001/clip")) == []
    assert (other / "thesis.tex").read_text() == "x"
