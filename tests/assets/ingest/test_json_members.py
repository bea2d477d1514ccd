"""Members `json` of archives in the pipeline: their values are columns of every batch, and a field too."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import loader
from assets.arrivals.make_batches import discover
from assets.gate_settings import Gate
from assets.ingest.media import media_stage
from assets.ingest.published import clash
from assets.ingest.raw_objects import land
from assets.ingest.units import units_stage
from assets.release.gate_run import audit_batch
from assets.sources import Source
from assets.spec import DatasetSpec
from loader.dataset.columnar.json_members import JsonMembers
from loader.storage import open_store
from penstock.compute.cluster import Cluster
from penstock.compute.cluster_compute import ClusterCompute
from penstock.compute.pool import InlineCompute
from penstock.stages import StageRecord, current_record
from tests.assets.conftest import Run, jpeg
from tests.penstock.formats.builders import img2dataset, tars

KEEPS = pytest.mark.parametrize("keep", ["copy", "in place", "read"])


def spec(keep: str, *without: str) -> DatasetSpec:
    """keep: "read" takes compressed archives, which are read forward."""
    format = "webdataset-compressed" if keep == "read" else "webdataset"
    source = Source(format=format, keep=keep.replace("read", "copy"), without=without)  # type: ignore[arg-type]
    return DatasetSpec(name="demo", sources=(source,), gate=Gate(thresholds=None))


def fill(place: Path, keep: str, name: str, *documents: Any, first: int = 0) -> None:
    some = [
        member
        for i, facts in enumerate(documents, first)
        for member in img2dataset.members(i, facts, jpeg(64 + i, 64))
    ]
    put(place, keep, {name: some})


def put(place: Path, keep: str, archives: dict[str, Any]) -> None:
    """Write archives, compressed where they are read."""
    tars.fill(place, archives)
    for name in archives if keep == "read" else ():
        (place / f"{name}.gz").write_bytes(gzip.compress((place / name).read_bytes(), mtime=0))
        (place / name).unlink()


def values(version: loader.Version, name: str) -> dict[str, Any]:
    """Source key -> value of a column."""
    rows = version.samples().collect()
    return dict(zip(rows["source_key"], rows[name], strict=True))


@pytest.mark.parametrize("keep", ["in place", "read"])
def test_columns_of_a_batch_agree_with_one_another_and_with_the_dataset(
    keep: str, tmp_path: Path, root: loader.Root, run: Run, arrive: Callable[[Path], str]
) -> None:
    place = tmp_path / "in"
    fill(place, keep, "0.tar", {"n": 1, "mixed": 1, "label": "cat", "kind": 7, "licence": "cc0"})
    fill(place, keep, "1.tar", {"n": 2, "mixed": "x", "mime": True}, first=1)
    assert run("ingest", spec(keep), arrive(place), place).success
    assert run("release", spec(keep), place=place).success
    fill(place, keep, "2.tar", {"n": 3.0, "mixed": 2}, {"n": 0.5, "late": True}, b"damaged", first=2)
    assert run("ingest", spec(keep), arrive(place), place).success
    assert run("release", spec(keep), place=place).success
    version = root.open("demo@2")
    names = [f"{i:09}" for i in range(5)]
    assert [values(version, "n")[name] for name in names] == [1, 2, 3, None, None]
    assert [values(version, "mixed")[name] for name in names] == ["1", "x", "2", None, None]
    assert [values(version, "late")[name] for name in names] == [None, None, None, True, None]
    assert [values(version, "json_label")[name] for name in names[:2]] == ["cat", None]
    assert [values(version, "json_kind")[name] for name in names[:2]] == [7, None]
    assert values(version, "json_licence")[names[0]] == "cc0"
    assert values(version, "json_mime")[names[1]] is True
    assert set(values(version, "kind").values()) == {"image"}


def cut(
    root: loader.Root, place: Path, compute: Any, one: DatasetSpec, said: list[str]
) -> tuple[str, StageRecord]:
    """Land and cut what has arrived; return the batch and the record."""
    store = open_store(str(place))
    (batch,) = discover(root.store, store, "demo")
    land(root.store, store, dataset="demo", partition=batch, run_id="r")
    given = {"partition": batch, "run_id": "r"}
    media_stage(root, store, compute, one, **given)
    record, _, _ = units_stage(root, store, compute, one, **given, tell=said.append)
    return batch, record


@KEEPS
def test_batch_is_cut_again_whose_columns_others_had_published_with_other_types(
    keep: str, tmp_path: Path, root: loader.Root, run: Run
) -> None:
    place, said = tmp_path / "in", list[str]()
    records = []
    for number, value in enumerate([1, "x"]):
        fill(place, keep, f"{number}.tar", {"n": value}, first=number)
        records.append(cut(root, place, InlineCompute(), spec(keep), said)[1])
    parts = [loader.Part.from_json(entry["part"]) for entry in records[1].body["parts"]]
    assert clash(root, records[1], parts) == ""
    assert run(["samples"], spec(keep), records[0].partition, place).success
    first = current_record(root.store, "demo", "samples", records[0].partition)
    assert first is not None
    verdict = audit_batch(root, first, Gate(thresholds=None), "r").record
    own = [loader.Part.from_json(part) for part in first.body["parts"]]
    root.publish("demo", own, verdict=verdict.path, foreign=first.body.get("foreign"))
    assert clash(root, records[1], parts) == "the column 'n' is int64 in the newest version, and string here"
    store, given = open_store(str(place)), {"partition": records[1].partition, "run_id": "r"}
    again, _, _ = units_stage(root, store, InlineCompute(), spec(keep), **given, tell=said.append)
    assert again.body["columns"] == {"n": "int64"}
    why = "json: 1 values of n are not int64, which the dataset has, and are null, such as 'x'"
    assert said[-1].endswith(why)


def test_nodes_of_a_cluster_copy_the_columns_of_the_batch(tmp_path: Path) -> None:
    place, found, said = tmp_path / "in", [], list[str]()
    fill(place, "copy", "0.tar", {"n": 1}, {"n": 2})
    fill(place, "copy", "1.tar", {"n": 0.5}, b"damaged", first=2)
    for way in ("here", "there"):
        compute: Any = InlineCompute()
        if way == "there":
            compute = ClusterCompute(Cluster(engine="inline"), InlineCompute(), said.append)
        with loader.Root(tmp_path / way) as root:
            root.create()
            notes = list[str]()
            _, record = cut(root, place, compute, spec("copy"), notes)
            parts = [loader.Part.from_json(entry["part"]) for entry in record.body["parts"]]
            found.append([record.body["columns"], [part.samples and part.samples.sha256 for part in parts]])
            assert any("1 documents are not JSON objects" in note for note in notes)
    assert found[0][0] == found[1][0] == {"n": "double"}


@pytest.mark.parametrize("keep", ["copy", "read"])
def test_samples_that_an_earlier_release_has_published_without_columns_stay_as_they_are(
    keep: str,
    tmp_path: Path,
    root: loader.Root,
    run: Run,
    arrive: Callable[[Path], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The document is their content; a column is not, which depends on the release and on the batch."""
    place = tmp_path / "in"
    with monkeypatch.context() as before:
        before.setattr(JsonMembers, "columns", lambda self: None)
        fill(place, keep, "0.tar", {"n": 1}, {"n": 2})
        assert run("ingest", spec(keep), arrive(place), place).success
        assert run("release", spec(keep), place=place).success
    fill(place, keep, "0.tar", {"n": 1}, {"n": 2}, {"n": 3})
    batch = arrive(place)
    assert run("ingest", spec(keep), batch, place).success
    record = current_record(root.store, "demo", "units", batch)
    assert record is not None
    counts = [record.counts[name] for name in ("units", "published_before", "replacing")]
    assert counts == [1, 2, 0]
    assert run("release", spec(keep), place=place).success
    assert values(root.open("demo@2"), "n") == {f"{0:09}": None, f"{1:09}": None, f"{2:09}": 3}


def test_without_json_leaves_out_the_field_and_its_columns(
    tmp_path: Path, root: loader.Root, run: Run, arrive: Callable[[Path], str]
) -> None:
    place = tmp_path / "in"
    fill(place, "copy", "0.tar", {"n": 1})
    assert run("ingest", spec("copy", "json"), arrive(place), place).success
    assert run("release", spec("copy", "json"), place=place).success
    version = root.open("demo@1")
    assert set(version.fields) == {"jpg", "txt"}
    assert "n" not in version.manifest["columns"]
