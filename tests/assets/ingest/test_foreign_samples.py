"""Archives of other formats as raw objects: walked instead of cut, copied or left in place, through the same stages."""

import gzip
import io
import json
import re
import shutil
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.compute as pc
import pytest

import loader
from assets.arrivals.make_batches import discover
from assets.checks import Expectation
from assets.gate_settings import Gate
from assets.ingest.formats.read_work import ReadPlace
from assets.ingest.formats.walked_objects import WalkedPlace
from assets.ingest.media import media_stage
from assets.ingest.published import clash
from assets.ingest.raw_objects import land
from assets.ingest.units import units_stage
from assets.release.gate_run import audit_batch
from assets.sources import Source, read_formats
from assets.spec import DatasetSpec, Feature
from loader.dataset.log.denies import Target
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.errors import Corrupt, InvalidSample, InvalidSpec, StageNotPublished
from loader.storage import open_store
from penstock.compute.cluster import Cluster
from penstock.compute.cluster_compute import ClusterCompute
from penstock.compute.job import job_ids
from penstock.compute.pool import InlineCompute
from penstock.formats.importer import NO_OPTIONS
from penstock.formats.run_import import import_place
from penstock.stages import current_record
from penstock.upkeep.exclusion import exclude
from penstock.upkeep.takedown.takedown_run import run_takedown
from tests.assets.conftest import Run, jpeg
from tests.penstock.formats.builders import litdata_files, mds_files
from tests.penstock.formats.builders.places import compress
from tests.refusals import refusal

SUITE = Gate(thresholds=None)
KEEPS = pytest.mark.parametrize("keep", ["copy", "in place"])


def tar(path: Path, members: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as out:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))


def photos(first: int, n: int = 3) -> dict[str, bytes]:
    return {
        f"{i:03d}.{field}": data
        for i in range(first, first + n)
        for field, data in (("jpg", jpeg(64 + 8 * i, 64)), ("txt", f"photo {i}".encode()))
    }


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two archives, and one that is cut."""
    folder = tmp_path / "tars"
    tar(folder / "0.tar", photos(0))
    tar(folder / "1.tar", photos(3))
    (folder / "cut.tar").write_bytes((folder / "1.tar").read_bytes()[:2000])
    return folder


def spec(keep: str, format: str = "webdataset", **more: object) -> DatasetSpec:
    told: dict[str, object] = {"max_reject_rate": 0.5, "gate": SUITE, **more}
    return DatasetSpec(name="demo", sources=(Source(format=format, keep=keep),), **told)  # type: ignore[arg-type]


def stored(version: loader.Version, field: str) -> dict[str, bytes]:
    """Source key -> bytes of a field."""
    rows = version.samples().select("key", "source_key").collect()
    names = dict(rows.iter_rows())
    places = version.address(np.arange(len(version)), [field])
    found = read_fields(version.shard_store, places)
    return {names[at.key]: bytes(one[field]) for at, one in zip(places, found, strict=True)}


@KEEPS
def test_archives_become_a_version_with_features(
    keep: str, place: Path, root: loader.Root, run: Run, arrive: Callable[[Path], str]
) -> None:
    demo = spec(keep, features=(Feature(name="phash"),))
    batch = arrive(place)
    assert run("ingest", demo, batch, place).success
    assert run("release", demo, place=place).success
    version = root.open("demo@latest")
    assert stored(version, "jpg") == {name[:3]: data for name, data in photos(0, 6).items() if "jpg" in name}
    rows = version.samples().collect()
    assert rows["phash"].null_count() == 0
    assert set(rows["kind"]) == {"image"}
    assert set(rows["raw_key"]) == {"0.tar", "1.tar"}
    media = version.parts.shard_rows().filter(pc.equal(version.parts.shard_rows()["group"], "media"))
    assert {path.startswith("foreign/") for path in media["path"].to_pylist()} == {keep == "in place"}
    record = current_record(root.store, "demo", "samples", batch)
    assert record is not None
    assert (record.counts["used"], record.counts["rejected"]) == (2, 1)


@pytest.mark.parametrize("format", ["webdataset", "webdataset-compressed"])
def test_archives_are_audited_and_copied_by_the_nodes_of_a_cluster(
    format: str, place: Path, tmp_path: Path
) -> None:
    """Of one format samples are walked, of the other they are read."""
    for path in sorted(place.iterdir()) if format != "webdataset" else ():
        path.with_suffix(".tar.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    found, said, store = {}, list[str](), open_store(str(place))
    nodes = ClusterCompute(Cluster(engine="inline"), InlineCompute(), said.append)
    for way, compute in (("here", InlineCompute()), ("there", nodes)):
        root = loader.Root(tmp_path / way)
        root.create()
        (batch,) = discover(root.store, store, "demo")
        land(root.store, store, dataset="demo", partition=batch, run_id="r")
        given = {"partition": batch, "run_id": "r"}
        audit, *rows = media_stage(root, store, compute, spec("copy", format), **given)
        cut, units, _ = units_stage(root, store, compute, spec("copy", format), **given)
        parts = [loader.Part.from_json(entry["part"]) for entry in cut.body["parts"]]
        tables = [file.sha256 for record in (audit, cut) for file in record.files.values()]
        found[way] = [rows, tables, [shard.sha256 for part in parts for shard in part.shards]]
        assert (len(units), bool(parts)) == (6, True)
        assert not list(job_ids(root.store))
    assert found["here"] == found["there"]
    admitted, refused = found["here"][0]
    assert (len(admitted), [row["key"].partition(".")[0] for row in refused]) == (2, ["cut"])
    assert any("demo/media/" in line and "3 of 3 units" in line for line in said)
    units_told = "2 of 2 units" if format == "webdataset" else "1 of 1 units"
    assert any("demo/units/" in line and units_told in line for line in said)


def entry_of(index: dict[str, Any], number: int) -> dict[str, Any]:
    found: dict[str, Any] = (index.get("shards") or index["chunks"])[number]
    return found


@pytest.mark.parametrize("format", ["litdata", "litdata-compressed", "mds", "mds-compressed"])
def test_index_that_is_wrong_of_one_object_refuses_it_alone(
    format: str, tmp_path: Path, root: loader.Root
) -> None:
    plain, _, packed = format.partition("-")
    place = tmp_path / ("plain" if packed else "in")
    texts = [[b"a" * n] for n in (1, 2, 3)]
    if plain == "mds":
        mds_files.fill(place, {"text": "str"}, *([{"text": text}] for (text,) in texts))
    else:
        litdata_files.samples(place, {"text": "str"}, *([row] for row in texts))
    if packed:
        place = compress(plain, "gz" if plain == "mds" else "sample", place, tmp_path / "in")
    index = json.loads((place / "index.json").read_text())
    sized = entry_of(index, 1)
    sized = sized if "filename" in sized else sized["zip_data"] or sized["raw_data"]
    name = "chunk_bytes" if "filename" in sized else "bytes"
    sized[name] += 7
    (place / "index.json").write_text(json.dumps(index))
    store = open_store(str(place))
    gone, wrong, sound = sorted(info.key for info in store.list() if info.key != "index.json")
    store.delete_many([gone])
    look_at = ReadPlace if format in read_formats() else WalkedPlace
    found = look_at(store, format, NO_OPTIONS)
    assert found.has_samples(store.head(sound))
    said = rf"{wrong} has {sized[name] - 7} bytes, and its index gives {sized[name]}"
    with refusal(Corrupt, what="size", where=place / wrong, given=sized[name] - 7, accepted=sized[name]):
        found.has_samples(store.head(wrong))
    told = import_place(root, format, store, "d").failures
    assert [
        re.search(rf"lists {gone} of \d+ bytes, and it is not there|{said}", why) is None for why in told
    ] == [
        False,
        False,
    ]


@KEEPS
def test_check_that_fails_stops_archives_as_any_batch(
    keep: str, place: Path, root: loader.Root, run: Run, arrive: Callable[[Path], str]
) -> None:
    wrong = Expectation(kind="in_set", column="kind", values=("audio",))
    demo = spec(keep, gate=Gate(suite=(wrong,), thresholds=None))
    batch = arrive(place)
    assert run("ingest", demo, batch, place).success
    assert not run("release", demo, place=place).success
    record = current_record(root.store, "demo", "samples", batch)
    assert record is not None
    assert root.state.txns[record.body["txn"]].status == "aborted"
    assert not root.state.versions("demo")


def test_parts_in_place_are_published_with_the_table_that_the_gate_saw(
    place: Path, root: loader.Root, run: Run, arrive: Callable[[Path], str]
) -> None:
    demo = spec("in place")
    batch = arrive(place)
    assert run("ingest", demo, batch, place).success
    record = current_record(root.store, "demo", "samples", batch)
    assert record is not None
    parts = [loader.Part.from_json(part) for part in record.body["parts"]]
    transaction = f"transaction {record.body['txn']}"
    with refusal(StageNotPublished, what="verdict", where=transaction, given=""):
        root.publish("demo", parts, foreign=record.body["foreign"])
    with refusal(InvalidSample, what="foreign"):
        root.publish("demo", parts)
    verdict = audit_batch(root, record, SUITE, "r").record
    other = {**record.body["foreign"], "sha256": "0" * 64}
    with refusal(StageNotPublished, what="parts", where=verdict.path):
        root.publish("demo", parts, verdict=verdict.path, foreign=other)
    assert len(root.publish("demo", parts, verdict=verdict.path, foreign=record.body["foreign"])) == 6


def test_takedown_of_an_archive_leaves_its_samples_out(
    place: Path, root: loader.Root, run: Run, arrive: Callable[[Path], str]
) -> None:
    demo = spec("in place")
    assert run("ingest", demo, arrive(place), place).success
    assert run("release", demo, place=place).success
    (uri,) = set(root.open("demo@1").samples().filter(pl.col("raw_key") == "0.tar").collect()["raw_uri"])
    n = root.log.deny([Target(kind="raw", value=uri)], "ticket 4", "ann").n
    run_takedown(root, n, apply=True)
    assert set(root.open("demo@latest").samples().collect()["raw_key"]) == {"1.tar"}


def test_archive_that_lands_again_is_new_samples(
    place: Path, root: loader.Root, run: Run, arrive: Callable[[Path], str]
) -> None:
    """Its keys repeat those of its earlier samples; the same bytes under another name are a duplicate."""
    demo = spec("in place")
    assert run("ingest", demo, arrive(place), place).success
    assert run("release", demo, place=place).success
    shutil.copy(place / "1.tar", place / "2.tar")
    tar(place / "3.tar", {name: data for name, data in photos(0).items() if "000" in name})
    batch = arrive(place)
    assert run("ingest", demo, batch, place).success
    assert run("release", demo, place=place).success
    record = current_record(root.store, "demo", "units", batch)
    assert record is not None
    assert (record.counts["units"], record.counts["dropped"]) == (1, 1)
    assert len(root.open("demo@latest")) == 7


@KEEPS
def test_archive_that_grows_brings_new_samples_and_changed_ones_take_their_place(
    keep: str, tmp_path: Path, root: loader.Root, run: Run, arrive: Callable[[Path], str]
) -> None:
    """Nobody reads the bytes of samples in place: the new index stands for all of the object but what was left out."""
    place, demo = tmp_path / "in", spec(keep, splits={"a": 0.5, "b": 0.5})

    def land(**texts: str) -> tuple[int, ...]:
        tar(place / "0.tar", {f"{name}.txt": text.encode() for name, text in texts.items()})
        batch = arrive(place)
        assert run("ingest", demo, batch, place).success
        assert run("release", demo, place=place).success
        record = current_record(root.store, "demo", "units", batch)
        assert record is not None
        return tuple(record.counts[name] for name in ("units", "published_before", "replacing"))

    assert land(one="1", two="2") == (2, 0, 0)
    assert land(one="1", two="TWO", three="3") == ((2, 1, 1) if keep == "copy" else (3, 0, 2))
    version = root.open("demo@latest")
    assert stored(version, "txt") == {"one": b"1", "two": b"TWO", "three": b"3"}
    rows = version.samples().collect()
    assert len(rows) == 3
    assert rows["split"].n_unique() == 1
    (three,) = rows.filter(pl.col("source_key") == "three")["key"]
    exclude(root, "demo@latest", [three], reason="no", by="ann")
    assert land(two="TWO", three="3", four="4") == ((1, 2, 0) if keep == "copy" else (2, 1, 1))
    left = set(stored(root.open("demo@latest"), "txt"))
    assert left - {"one"} == {"two", "four"}
    assert ("one" in left) == (keep == "copy"), "the bytes of one in place are gone"

    tar(place / "0.tar", {"five.txt": b"5"})
    batch = arrive(place)
    assert run("ingest", demo, batch, place).success
    rows = root.open("demo@latest").samples().collect()
    (two,) = rows.filter(pl.col("source_key") == "two")["key"]
    exclude(root, "demo@latest", [two], reason="no", by="ann")
    record = current_record(root.store, "demo", "units", batch)
    assert record is not None
    parts = [loader.Part.from_json(entry["part"]) for entry in record.body["parts"]]
    went = (
        f"{root.open('demo@latest').name} no longer has {two!r}, which it replaces: sample 'five' of '0.tar'"
    )
    assert clash(root, record, parts) == ("" if keep == "copy" else went)


def test_sources_of_several_formats_are_refused() -> None:
    with refusal(
        InvalidSpec,
        what="sources",
        given=[("", "copy", None, "{}", [], "{}"), ("mds", "copy", None, "{}", [], "{}")],
    ):
        DatasetSpec(name="demo", sources=(Source(name="a"), Source(name="b", format="mds")))
    with refusal(InvalidSpec, what="format", where="source 'landing'", given=""):
        Source(keep="in place")
