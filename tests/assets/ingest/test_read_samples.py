"""Objects that an importer reads: features, splits, objects that grow, class names; test_formats.py has each format."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from assets.gate_settings import Gate
from assets.pipeline.stages import recut_requests
from assets.pipeline.tables import read_table
from assets.sources import Source
from assets.spec import DatasetSpec, Feature
from loader.dataset.log.denies import Target
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.errors import InvalidRuntime, InvalidSpec
from penstock.stages import StageRecord, current_record
from penstock.upkeep.exclusion import exclude
from penstock.upkeep.takedown.takedown_run import run_takedown
from tests.assets.conftest import Run, jpeg
from tests.penstock.formats.exchange.test_log_clocks import UPTIME, camera, commands, write_log
from tests.refusals import refusal

SUITE = Gate(thresholds=None)


def write_parquet(path: Path, texts: list[str]) -> None:
    pq.write_table(pa.table({"text": texts, "n": list(range(len(texts)))}), path)


def write_jsonl(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text, "n": n}) + "\n" for n, text in enumerate(texts)))


TABLES = "jsonl", "parquet"


def spec(format: str, **more: object) -> DatasetSpec:
    told: dict[str, object] = {"max_reject_rate": 0.5, "gate": SUITE, **more}
    fields = {"text": "txt"} if format in TABLES else {}
    source = Source(format=format, fields=fields)
    return DatasetSpec(name="demo", sources=(source,), **told)  # type: ignore[arg-type]


def field_bytes(version: loader.Version, field: str) -> dict[str, bytes]:
    """Object and source key -> bytes of a field."""
    rows = version.samples().select("key", "raw_key", "source_key").collect()
    names = {key: (of, source) for key, of, source in rows.iter_rows()}
    places = version.address(np.arange(len(version)), [field])
    found = read_fields(version.shard_store, places)
    return {names[at.key]: bytes(one[field]) for at, one in zip(places, found, strict=True)}


def test_rows_with_pictures_get_features_and_a_takedown_removes_them(
    tmp_path: Path, root: loader.Root, run: Run, arrive: Callable[[Path], str]
) -> None:
    place = tmp_path / "in"
    place.mkdir()
    for name, sizes in (("a", (64, 72)), ("b", (80,))):
        pictures = [{"bytes": jpeg(width, 64), "path": f"{width}.jpg"} for width in sizes]
        table = pa.table(
            {"id": [f"{name}{n}" for n in sizes], "image": pictures, "secret": ["x"] * len(sizes)}
        )
        pq.write_table(table, place / f"{name}.parquet")
    source = Source(format="parquet", key="id", fields={"image": "jpg"}, without=("secret",))
    demo = DatasetSpec(name="demo", sources=(source,), gate=SUITE, features=(Feature(name="phash"),))
    assert run("ingest", demo, arrive(place), place).success
    assert run("release", demo, place=place).success
    rows = root.open("demo@1").samples().collect()
    assert rows["phash"].null_count() == 0
    assert sorted(rows["source_key"]) == ["a64", "a72", "b80"]
    assert "secret" not in rows.columns
    (uri,) = set(rows.filter(pl.col("raw_key") == "a.parquet")["raw_uri"])
    n = root.log.deny([Target(kind="raw", value=uri)], "ticket 4", "ann").n
    run_takedown(root, n, apply=True)
    assert list(root.open("demo@latest").samples().collect()["source_key"]) == ["b80"]


@pytest.mark.parametrize("without", [(), ("split",)])
def test_split_that_a_format_names_is_the_samples(
    without: tuple[str, ...], tmp_path: Path, root: loader.Root, run: Run, arrive: Callable[[Path], str]
) -> None:
    place = tmp_path / "in"
    place.mkdir()
    for name in ("val-00000-of-00001", "test-00000-of-00001", "rest"):
        write_parquet(place / f"{name}.parquet", [name])
    source = Source(format="hf", fields={"text": "txt"}, without=without)
    demo = DatasetSpec(name="demo", sources=(source,), gate=SUITE, splits={"train": 1.0})
    assert run("ingest", demo, arrive(place), place).success
    assert run("release", demo, place=place).success
    rows = root.open("demo@1").samples().select("raw_key", "split").collect()
    found = {key.partition("-")[0]: split for key, split in rows.iter_rows()}
    named = {"val": "val", "test": "test", "rest.parquet": "train"}
    assert found == (dict.fromkeys(named, "train") if without else named)


def test_object_that_grows_brings_new_rows_and_changed_ones_take_their_place(
    tmp_path: Path, root: loader.Root, run: Run, arrive: Callable[[Path], str]
) -> None:
    place, demo = tmp_path / "in", spec("jsonl", splits={"a": 0.5, "b": 0.5})
    place.mkdir()

    def land(*texts: str) -> StageRecord:
        write_jsonl(place / "a.jsonl", [*texts])
        (place / "copy.jsonl").write_bytes((place / "a.jsonl").read_bytes())  # of equal ones one is taken
        batch = arrive(place)
        assert run("ingest", demo, batch, place).success
        assert run("release", demo, place=place).success
        record = current_record(root.store, "demo", "units", batch)
        assert record is not None
        return record

    def live() -> dict[str, str]:
        rows = root.open("demo@latest").samples().select("key", "split").collect()
        assert rows["split"].n_unique() == 1
        found = field_bytes(root.open("demo@latest"), "text.txt")
        return {data.decode(): key for (_, key), data in found.items()}

    land("one", "two")
    keys = set(root.open("demo@1").samples().collect()["key"])
    record = land("one", "TWO", "three")
    assert (record.counts["units"], record.counts["published_before"], record.counts["replacing"]) == (
        2,
        1,
        1,
    )
    assert sorted(live()) == ["TWO", "one", "three"]
    rows = root.open("demo@2").samples().collect()
    assert len(keys & set(rows["key"])) == 1
    (three,) = rows.filter(pl.col("source_key") == live()["three"])["key"]
    exclude(root, "demo@2", [three], reason="no", by="ann")
    land("one", "TWO", "three", "four")
    assert sorted(live()) == ["TWO", "four", "one"]
    record = land("one")
    assert (record.counts["units"], record.counts["published_before"]) == (0, 1)
    refused = read_table(root.store, record.files["refusals"])
    assert [(row["key"], row["outcome"], row["code"]) for row in refused] == [
        ("a.jsonl", "dropped", "nothing_new"),
        ("copy.jsonl", "dropped", "nothing_new"),  # the verdict of what it copies
    ]
    assert len(live()) == 3


def test_batch_that_waits_beside_another_of_the_same_object_is_cut_again(
    tmp_path: Path, root: loader.Root, run: Run, arrive: Callable[[Path], str]
) -> None:
    place, demo = tmp_path / "in", spec("jsonl")
    place.mkdir()
    batches = []
    for texts in (["one"], ["ONE", "two"]):
        write_jsonl(place / "a.jsonl", texts)
        batches.append(arrive(place))
        assert run("ingest", demo, batches[-1], place).success
    assert run("release", demo, place=place).success
    assert len(root.open("demo@latest")) == 1
    assert [batch for batch, _ in recut_requests(root.store, "demo")] == batches[1:]
    assert run("ingest", demo, batches[1], place).success
    assert run("release", demo, place=place).success
    found = field_bytes(root.open("demo@latest"), "text.txt")
    assert sorted(map(bytes.decode, found.values())) == ["ONE", "two"]


def _write_labels(path: Path, names: list[str]) -> None:
    features = {
        "label": {"names": names, "_type": "ClassLabel"},
        "text": {"dtype": "string", "_type": "Value"},
    }
    table = pa.table({"label": [0, 1], "text": ["a", path.stem]}).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    pq.write_table(table, path)


def test_class_names_of_the_first_object_are_the_datasets(
    tmp_path: Path, root: loader.Root, run: Run, arrive: Callable[[Path], str]
) -> None:
    place, demo = tmp_path / "in", spec("parquet")
    place.mkdir()
    _write_labels(place / "a.parquet", ["cat", "dog"])
    _write_labels(place / "b.parquet", ["dog", "cat"])
    _write_labels(place / "c.parquet", ["cat", "dog", "owl"])
    batch = arrive(place)
    assert run("ingest", demo, batch, place).success
    assert run("release", demo, place=place).success
    version = root.open("demo@1")
    assert version.manifest["producer"]["labels"] == ["cat", "dog", "owl"]
    assert set(version.samples().collect()["raw_key"]) == {"a.parquet", "c.parquet"}
    record = current_record(root.store, "demo", "units", batch)
    assert record is not None
    assert record.counts["rejected"] == 1


def test_choices_are_checked_where_a_source_is_made() -> None:
    for wrong, what, given in (
        ({"format": "parquet", "keep": "in place"}, "keep", "parquet"),
        ({"format": "csvs"}, "format", "csvs"),
        ({"key": "id"}, "format", ""),
        ({"format": "mcap", "key": "id"}, "--key", "mcap"),
    ):
        with refusal((InvalidSpec, InvalidRuntime), what=what, given=given):
            Source(**wrong)  # type: ignore[arg-type]
    with refusal(
        InvalidSpec,
        what="sources",
        given=[("csv", "copy", None, "{}", [], "{}"), ("csv", "copy", "id", "{}", [], "{}")],
    ):
        DatasetSpec(
            name="demo",
            sources=(Source(name="a", format="csv"), Source(name="b", format="csv", key="id")),
        )


def test_key_that_comes_twice_refuses_its_object(
    tmp_path: Path, root: loader.Root, run: Run, arrive: Callable[[Path], str]
) -> None:
    place = tmp_path / "in"
    place.mkdir()
    for name, keys in (("a", ["x", "y"]), ("b", ["x", "x"])):
        rows = [json.dumps({"id": key, "text": f"{n}"}) for n, key in enumerate(keys)]
        (place / f"{name}.jsonl").write_text("\n".join(rows))
    source = Source(format="jsonl", key="id", fields={"text": "txt"})
    demo = DatasetSpec(name="demo", sources=(source,), gate=SUITE, max_reject_rate=0.5)
    batch = arrive(place)
    assert run("ingest", demo, batch, place).success
    refused = current_record(root.store, "demo", "media", batch)
    assert refused is not None
    assert (refused.counts["admitted"], refused.counts["rejected"]) == (1, 1)


def test_folders_of_tables_are_columns_and_what_is_not_supported_is_no_damage(
    tmp_path: Path, root: loader.Root, run: Run, arrive: Callable[[Path], str]
) -> None:
    """Objects with another width, or another value than their folder says, are rejected; finer times not supported."""
    place = tmp_path / "in"

    def land(name: str, ids: pa.DataType = pa.int32(), **columns: object) -> None:  # noqa: B008
        path = place / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"ids": pa.array([[1]], pa.list_(ids)), "of": [name], **columns}), path)

    land("n=1/lang=d%65/a")
    land("n=02/lang=__HIVE_DEFAULT_PARTITION__/b")
    land("n=3/wide", pa.int64())
    land("n=4/other", n=[5])
    land("n=5/fine", at=pa.array([1], pa.timestamp("ns")))
    source = Source(format="parquet")
    demo = DatasetSpec(name="demo", sources=(source,), gate=SUITE, max_reject_rate=0.5)
    batch = arrive(place)
    assert run("ingest", demo, batch, place).success
    assert run("release", demo, place=place).success
    rows = root.open("demo@1").samples().select("of", "n", "lang").collect()
    assert set(rows.iter_rows()) == {
        ("n=1/lang=d%65/a", "1", "de"),
        ("n=02/lang=__HIVE_DEFAULT_PARTITION__/b", "02", None),
    }
    record = current_record(root.store, "demo", "samples", batch)
    assert record is not None
    outcomes = {name: record.counts[name] for name in ("used", "rejected", "not_supported", "dropped")}
    assert outcomes == {"used": 2, "rejected": 2, "not_supported": 1, "dropped": 0}
    land("n=6/later", pa.int64())
    land("n=7/fits")
    assert run("ingest", demo, arrive(place), place).success
    assert run("release", demo, place=place).success
    rows = root.open("demo@latest").samples().select("of", "n").collect()
    assert ("n=7/fits", "7") in set(rows.iter_rows())
    assert "n=6/later" not in set(rows["of"])


def test_source_chooses_the_clock_of_a_topic(
    tmp_path: Path, root: loader.Root, run: Run, arrive: Callable[[Path], str]
) -> None:
    place = tmp_path / "in"
    topics = {"/cam": camera(UPTIME), "/cmd": commands()}
    write_log(place / "a.mcap", topics)

    def ingest_record(**more: dict[str, str]) -> StageRecord:
        demo = DatasetSpec(name="demo", sources=(Source(format="mcap", **more),), gate=SUITE)  # type: ignore[arg-type]
        batch = arrive(place)
        run("ingest", demo, batch, place)
        record = current_record(root.store, "demo", "media", batch)
        assert record is not None
        return record

    refusals = read_table(root.store, ingest_record().files["refusals"])
    assert [row["key"] for row in refusals] == ["a.mcap"]
    assert "topic /cam, row 0: its header.stamp is off by" in refusals[0]["reason"]
    write_log(place / "a.mcap", {**topics, "/other": commands()})
    assert read_table(root.store, ingest_record(clocks={"/cam": "log_time"}).files["refusals"]) == []
    demo = DatasetSpec(name="demo", sources=(Source(format="mcap", clocks={"/cam": "log_time"}),), gate=SUITE)
    assert run("release", demo, place=place).success
    (facts,) = field_bytes(root.open("demo@1"), "episode.json").values()
    clocks = {name: one["clock"] for name, one in json.loads(facts)["topics"].items()}
    assert clocks == {"cam": "log_time", "cmd": "log_time", "other": "log_time"}


def test_source_refuses_a_clock_of_a_format_without_topics() -> None:
    with refusal(InvalidRuntime, what="--clock", given="jsonl"):
        Source(format="jsonl", clocks={"/cam": "log_time"})
    with refusal(InvalidSpec, what="format", where="source 'landing'", given=""):
        Source(clocks={"/cam": "log_time"})
