"""Samples that an importer reads are read by workers, in units that follow from the objects alone."""

import errno
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import loader
from assets.arrivals.make_batches import discover
from assets.ingest.formats import read_batch
from assets.ingest.formats.walked_objects import refuse_unreadable
from assets.ingest.media import media_stage
from assets.ingest.raw_objects import land
from assets.ingest.units import units_stage
from assets.sources import Source
from assets.spec import DatasetSpec
from loader.errors import FieldMismatch, StoreError
from loader.storage import open_store
from loader.storage.disk.scratch import on_scratch
from penstock.compute.cluster import Cluster
from penstock.compute.cluster_compute import ClusterCompute
from penstock.compute.job import job_ids
from penstock.compute.pool import Compute, InlineCompute, LocalCompute
from penstock.stages import StageRecord, partitions
from tests.mortal_store import Killed
from tests.penstock.formats.builders import tars
from tests.refusals import refusal

DEADLY = """
import os, sys
sys.path.remove({folder!r})
del sys.modules["h5py"]
import h5py
from h5py import File

def deadly(stream, mode):
    if stream.path.endswith("kills.hdf5"):
        os.abort()
    return File(stream, mode)

h5py.File = deadly
"""
"""The library as workers import it."""


def read_units(
    root: loader.Root, place: Path, format: str, compute: Compute
) -> tuple[StageRecord, list[str]]:
    """The record of a batch that `compute` has read, and the keys of refused objects, each with the code."""
    root.create()
    store = open_store(str(place))
    (batch,) = discover(root.store, store, "demo")
    land(root.store, store, dataset="demo", partition=batch, run_id="r")
    media_stage(root, store, InlineCompute(), make_spec(format), partition=batch, run_id="r")
    return units_again(root, place, format, compute)


def units_again(
    root: loader.Root, place: Path, format: str, compute: Compute
) -> tuple[StageRecord, list[str]]:
    """The same, of a batch that was audited."""
    (batch,) = partitions(root.store, "demo", "raw_objects")
    given = (root, open_store(str(place)), compute, make_spec(format))
    record, _, refused = units_stage(*given, partition=batch, run_id="r")
    return record, [f"{row['key']} {row['code']}" for row in refused]


def make_spec(format: str) -> DatasetSpec:
    return DatasetSpec(name="demo", sources=(Source(format=format),), max_reject_rate=0.5)


def part_contents(record: StageRecord) -> list[object]:
    """Everything of a batch's parts but the folders that they lie in."""
    parts = [loader.Part.from_json(entry["part"]) for entry in record.body["parts"]]
    tables = [(part.id, part.n_rows, part.samples and part.samples.sha256) for part in parts]
    shards = [(one.group, one.sha256, one.field_nbytes) for part in parts for one in part.shards]
    return [record.files["units"].sha256, tables, shards]


def test_object_that_kills_its_reader_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit, in this process, has found it sound."""
    place, path = tmp_path / "in", tmp_path / "path"
    place.mkdir()
    path.mkdir()
    (path / "h5py.py").write_text(DEADLY.format(folder=str(path)))
    monkeypatch.syspath_prepend(str(path))
    for name in ("a", "kills", "z"):
        with h5py.File(place / f"{name}.hdf5", "w") as file:
            file[f"data/{name}/actions"] = np.arange(9)
    sizes = {one.name: one.stat().st_size for one in place.iterdir()}
    monkeypatch.setattr(read_batch, "_LEAST_BYTES", 1)
    monkeypatch.setattr(read_batch, "DEFAULT_SHARD_BYTES", sizes["a.hdf5"] + sizes["kills.hdf5"])
    compute = LocalCompute(2)
    try:
        record, refused = read_units(loader.Root(tmp_path / "root"), place, "robomimic", compute)
    finally:
        compute.close()
    assert refused == ["kills.hdf5 crashed"]
    assert record.counts["units"] == 2


def write_tar(place: Path, name: str, *fields: str) -> None:
    place.mkdir(exist_ok=True)
    data = tars.tar_bytes(tars.sample(name, **{field: f"{field} of {name}".encode() for field in fields}))
    (place / f"{name}.tar.gz").write_bytes(gzip.compress(data))


def test_parts_have_the_same_bytes_whoever_reads_and_the_groups_of_the_whole_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each object is a unit, of which one alone has a field that the others have not."""
    place = tmp_path / "in"
    for name, fields in (("a", ["txt"]), ("b", ["txt", "json"]), ("c", ["txt"])):
        write_tar(place, name, *fields)
    found, whole = dict[str, list[object]](), read_batch.DEFAULT_SHARD_BYTES
    ways = {"one unit": (whole, InlineCompute()), "here": (1, InlineCompute()), "there": (1, LocalCompute(3))}
    for way, (nbytes, compute) in ways.items():
        monkeypatch.setattr(read_batch, "DEFAULT_SHARD_BYTES", nbytes)
        record, refused = read_units(loader.Root(tmp_path / way), place, "webdataset-compressed", compute)
        compute.close()
        parts = [loader.Part.from_json(entry["part"]) for entry in record.body["parts"]]
        groups = {(shard.group, *shard.field_nbytes) for part in parts for shard in part.shards}
        assert (refused, len(parts)) == ([], 2 if way == "one unit" else 3)
        assert groups == {("media", "txt"), ("json", "json")}
        found[way] = part_contents(record)
    assert found["here"] == found["there"] != found["one unit"]


def test_batch_that_was_killed_is_finished_by_whoever_does_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the second reading of a unit, whose fields lie in other groups than it knew."""
    place, unit_outcomes = tmp_path / "in", read_batch.unit_outcomes
    for name, fields in (("a", ["txt"]), ("b", ["txt", "json"])):
        write_tar(place, name, *fields)
    monkeypatch.setattr(read_batch, "DEFAULT_SHARD_BYTES", 1)
    nodes = ClusterCompute(Cluster(engine="inline"), InlineCompute(), lambda line: None)
    seen = []

    def dies(*given: Any) -> Iterator[Any]:
        for one in unit_outcomes(*given):
            seen.append(one)
            if len(seen) == 3:
                raise Killed
            yield one

    root = loader.Root(tmp_path / "root")
    monkeypatch.setattr(read_batch, "unit_outcomes", dies)
    with pytest.raises(Killed):
        read_units(root, place, "webdataset-compressed", nodes)
    assert len(list(job_ids(root.store))) == 2
    found = [part_contents(units_again(root, place, "webdataset-compressed", nodes)[0])]
    assert not list(job_ids(root.store))
    other = loader.Root(tmp_path / "other")
    found.append(part_contents(read_units(other, place, "webdataset-compressed", InlineCompute())[0]))
    assert found[0] == found[1]


def test_samples_without_a_field_that_all_of_the_dataset_have_are_an_error(tmp_path: Path) -> None:
    root, place = loader.Root(tmp_path / "root"), tmp_path / "in"
    root.create()
    with root.write("demo") as writer:
        source = {"raw_key": "earlier", "raw_uri": "s3://earlier", "raw_sha256": "0" * 64}
        writer.add("earlier", {"txt": b"", "json": b"{}"}, source=source)
    write_tar(place, "b", "txt")
    with refusal(FieldMismatch, what="json", within="b.tar.gz, sample '"):
        read_units(root, place, "webdataset-compressed", InlineCompute())


def test_scratch_without_room_is_no_objects_fault() -> None:
    """A bag of ROS 2 lies on scratch while it is read."""
    scratch = on_scratch(None, "when a.db3 was read", room_for="it", again="read again")
    with (
        refusal(StoreError, what="temporary space", given="no space left"),
        refuse_unreadable("cut"),
        scratch,
    ):
        raise OSError(errno.ENOSPC, "no space left")
