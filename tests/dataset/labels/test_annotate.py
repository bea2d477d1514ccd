"""annotate: labels of samples that are there, beside files that are not touched."""

import json
from datetime import UTC, datetime

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from loader.dataset.tables.annotations import cells
from loader.errors import (
    DuplicateKey,
    FieldMismatch,
    FieldNotFound,
    InvalidField,
    InvalidKey,
    InvalidName,
    InvalidSample,
    VersionNotFound,
)
from tests.dataset.labels.annotated import column, statistics, write
from tests.refusals import refusal


def test_nothing_that_is_there_is_touched(label_root):
    before = {info.key: info.etag for info in label_root.store.list("data/")}
    done = label_root.annotate(
        "d@1", "labels-v2", {"k1": {"label": "b", "score": 0.5}, "k3": {"score": 2}}, author="ann"
    )
    assert (done.version.name, done.join.n_rows, done.join.n_samples) == ("d@2", 2, 2)
    assert column(done.version, "label") == {f"k{i}": "b" if i == 1 else "a" for i in range(10)}
    assert column(done.version, "score") == {f"k{i}": {1: 0.5, 3: 2.0}.get(i) for i in range(10)}
    assert column(label_root.open("d@1"), "label") == {f"k{i}": "a" for i in range(10)}
    assert "score" not in label_root.open("d@1").manifest["columns"]
    after = {info.key: info.etag for info in label_root.store.list("data/")}
    assert before.items() <= after.items()
    new = {key.rpartition("/")[2] for key in after.keys() - before.keys() if "manifest" not in key}
    assert {name.partition("-")[0] for name in new} == {"samples", "stats"}
    assert "samples-labels-v2-0.parquet" in new


def test_who_and_when(label_root):
    before = datetime.now(UTC)
    rows = [
        {"key": "k1", "label": "b"},
        {"key": "k2", "label": "c", "annotated_by": "ben", "annotated_at_us": 1_700_000_000_000_000},
        {"key": "k3", "label": "d", "annotated_by": None},
    ]
    version = label_root.annotate("d", "labels", rows, author="ann").version
    (one,) = version.annotations
    assert (one.name, one.author, one.columns, one.n_samples) == ("labels", "ann", ("label",), 3)
    assert before.timestamp() <= one.at_us / 1e6 <= datetime.now(UTC).timestamp()
    edits = {row["key"]: row for row in version.edits("label").collect().to_dicts()}
    assert {key: (row["label"], row["annotated_by"], row["annotation"]) for key, row in edits.items()} == {
        "k1": ("b", "ann", "labels"),
        "k2": ("c", "ben", "labels"),
        "k3": ("d", "ann", "labels"),
    }
    assert edits["k2"]["annotated_at"] == datetime.fromtimestamp(1_700_000_000, UTC)
    assert int(edits["k1"]["annotated_at"].timestamp() * 1e6) == one.at_us
    at = pa.array([datetime(2026, 1, 2, tzinfo=UTC)], pa.timestamp("ms", "Europe/Berlin"))
    version = label_root.annotate(
        "d", "more", pa.table({"key": ["k1"], "w": [3], "annotated_at_us": at}), author="ann"
    ).version
    assert version.edits("w").collect()["annotated_at"].to_list() == [datetime(2026, 1, 2, tzinfo=UTC)]
    assert version.edits("raw_key").collect().height == 0
    with refusal(FieldNotFound, what="nope", where="d@3"):
        version.edits("nope")
    assert "annotated_by" not in version.samples().collect().columns


def test_null_says_nothing_unless_it_is_to_remove(label_root):
    rows = {"k1": {"label": None, "w": 100}, "k2": {"label": "b"}}
    kept = label_root.annotate("d", "labels", rows, author="ann").version
    assert [column(kept, "label")[key] for key in ("k1", "k2")] == ["a", "b"]
    gone = label_root.annotate(
        "d", "labels", {"k2": {"label": None}, "k3": {"w": 7}}, author="ann", nulls="remove"
    ).version
    assert [column(gone, "label")[key] for key in ("k1", "k2", "k3")] == ["a", None, "a"]
    assert [column(gone, "w")[key] for key in ("k1", "k2", "k3")] == [100, 2, 7]
    assert gone.edits("label").collect()["removed"].to_list() == [False, True]
    back = label_root.annotate("d", "labels", {"k2": {"label": "c"}}, author="ann").version
    assert column(back, "label")["k2"] == "c"
    table = pa.table({"key": ["k4", "k5"], "label": [None, "z"], "w": [9, None]})
    both = label_root.annotate("d", "labels", table, author="ann", nulls="remove").version
    assert [column(both, "label")[key] for key in ("k4", "k5")] == [None, "z"]
    assert [column(both, "w")[key] for key in ("k4", "k5")] == [9, None]


def test_only_the_files_of_the_columns_named_are_opened(label_root, stores):
    label_root.annotate("d", "scores", {f"k{i}": {"score": i / 2} for i in range(10)}, author="m1")
    label_root.annotate("d", "labels", {"k1": {"label": "b"}}, author="ann")
    version = loader.Root(label_root.url).open("d")
    len(version.parts)
    for predicate, files, n in (
        ("w > 7", 2, 2),
        ("score > 4", 2, 1),
        ("label = 'b'", 3, 1),
        ("key = 'k1'", 1, 1),
    ):
        version.store = stores.Counting(label_root.store)
        assert len(version.where(predicate)) == n
        assert version.store.calls["get", "data"] == files, predicate


def test_new_parts_and_annotations_go_together(label_root):
    label_root.annotate("d", "labels", {"k1": {"label": "b", "score": 1.5}}, author="ann")
    version = write(label_root, [10, 11], score=2)
    assert column(version, "label") == {f"k{i}": "b" if i == 1 else "a" for i in range(12)}
    assert column(version, "score") == {f"k{i}": {1: 1.5, 10: 2.0, 11: 2.0}.get(i) for i in range(12)}
    version = label_root.annotate(
        "d", "labels", {"k10": {"score": 9.0}, "k0": {"score": 8}}, author="ann"
    ).version
    assert column(version, "score") == {f"k{i}": {0: 8.0, 1: 1.5, 10: 9.0, 11: 2.0}.get(i) for i in range(12)}
    assert statistics(version)["score"] == {
        "type": "double",
        "n": 4,
        "nulls": 0,
        "nans": 0,
        "zeros": 0,
        "min": 1.5,
        "max": 9.0,
        "mean": 20.5 / 4,
    }


def test_statistics_are_of_what_the_column_says_now(label_root):
    assert statistics(label_root.open("d"))["w"]["max"] == 9.0
    version = label_root.annotate(
        "d", "fix", {"k9": {"w": 3, "label": "b"}, "k0": {"w": None}}, author="ann", nulls="remove"
    ).version
    found = statistics(version)
    assert found["w"] == {
        "type": "int64",
        "n": 10,
        "nulls": 1,
        "nans": 0,
        "zeros": 0,
        "min": 1.0,
        "max": 8.0,
        "mean": 39 / 9,
    }
    assert found["label"] == {"type": "string", "n": 10, "nulls": 0, "categories": {"a": 9, "b": 1}}
    assert statistics(label_root.open("d@1"))["w"]["max"] == 9.0


def test_changed_type_is_refused(label_root):
    for value in (1.5, "x", True, [1]):
        where = "row 2 of the rows given"
        with refusal(FieldMismatch, what="w", where=where, given=value, accepted="int64"):
            label_root.annotate("d", "x", {"k0": {"n": 1}, "k1": {"w": value}}, author="ann")
    big = {"k0": {"score": 1}, "k1": {"score": 2**53 + 1}}
    label_root.annotate("d", "x", {"k1": {"score": 1.5}}, author="ann")
    version = label_root.annotate("d", "x", {"k1": {"score": 2}}, author="ann").version
    assert column(version, "score")["k1"] == 2.0
    assert version.manifest["columns"]["score"]["type"] == "double"
    with refusal(FieldMismatch, what="score", where="row 2 of the rows given", given=2**53 + 1):
        label_root.annotate("d", "x", big, author="ann")
    with refusal(FieldMismatch, what="v", given=[("int", "k1"), ("str", "k2")]):
        label_root.annotate("d", "x", {"k1": {"v": 1}, "k2": {"v": "a"}}, author="ann")
    assert len(label_root.versions("d")) == 3
    for floats_first in (True, False):
        rows = [{"key": "k0", "id": 2**53 + 1}, {"key": "k1", "id": 1.5}]
        with refusal(FieldMismatch, what="id", where="sample 'k0'", given=2**53 + 1):
            label_root.annotate("d", "x", rows[::-1] if floats_first else rows, author="ann")
    assert len(label_root.versions("d")) == 3


def test_keys_without_a_sample_are_told(label_root):
    rows = {f"z{i}": {"label": "b"} for i in range(12)} | {"k1": {"label": "b"}}
    join = label_root.annotate("d", "labels", rows, author="ann").join
    assert (join.n_rows, join.n_samples, join.n_unmatched) == (13, 1, 12)
    assert join.unmatched == tuple((f"z{i}", f"row {i + 1} of the rows given") for i in range(10))
    with refusal(InvalidKey, what="keys", where="d@2", given=12):
        label_root.annotate("d", "labels", rows, author="ann", strict=True)
    first = "row 1 of the rows given"
    live = "'key' of a live sample of d@{}"
    with refusal(InvalidKey, what="key", where=first, given="z", accepted=live.format(2)):
        label_root.annotate("d", "labels", {"z": {"label": "b"}}, author="ann")
    label_root.exclude("d", ["k1"], reason="x")
    with refusal(InvalidKey, what="key", where=first, given="k1", accepted=live.format(3)):
        label_root.annotate("d", "labels", {"k1": {"label": "b"}}, author="ann")
    assert len(label_root.versions("d")) == 3


def test_key_twice(label_root):
    rows = [{"key": "k1", "label": "b", "w": 1}, {"key": "k2", "label": "c"}, {"key": "k1", "label": "d"}]
    with refusal(DuplicateKey, what="key", where="row 3 of the rows given", given="k1"):
        label_root.annotate("d", "labels", rows, author="ann")
    done = label_root.annotate("d", "labels", rows, author="ann", last_wins=True)
    assert (done.join.n_samples, done.join.n_overruled) == (2, 1)
    assert [column(done.version, "label")[key] for key in ("k1", "k2")] == ["d", "c"]


def test_keys_of_other_columns(label_root):
    """A raw object has several samples."""
    table = pa.table({"file": ["r1", "r4", "r9"], "licence": ["by", "cc0", "x"]})
    done = label_root.annotate("d", "licences", table, author="ann", key="file", on="raw_key")
    assert (done.join.n_samples, done.join.unmatched) == (4, (("r9", "row 3 of the rows given"),))
    assert column(done.version, "licence") == {f"k{i}": {1: "by", 4: "cc0"}.get(i // 2) for i in range(10)}
    for on in ("unit_id", "licence", "nope"):  # absent, an annotation's, unknown
        with refusal(FieldNotFound, what="on", where="d@2", given=on):
            label_root.annotate("d", "x", table, author="ann", key="file", on=on)


def test_annotate_finds_samples_by_a_column_of_texts(label_root):
    """Such as the path of an imported file, which samples() shows."""
    labels = {key: value for key, value in column(label_root.open("d"), "label").items() if value is not None}
    some = sorted(set(labels.values()))[0]
    table = pa.table({"class": [some], "colour": ["red"]})
    done = label_root.annotate("d", "colours", table, author="ann", key="class", on="label")
    expected = {f"k{i}": "red" if labels.get(f"k{i}") == some else None for i in range(10)}
    assert column(done.version, "colour") == expected


def test_what_is_refused(label_root):
    row = {"k1": {"label": "b"}}
    for name in ("keys", "metadata", "", "Labels", "a/b", "-a", 3):
        with refusal(InvalidName, what="name", given=name):
            label_root.annotate("d", name, row, author="ann")
    for author in ("", " ", None, "\ud800"):
        with refusal(InvalidSample, what="author", given=author):
            label_root.annotate("d", "x", row, author=author)
    with refusal(InvalidSample, what="nulls", given="drop"):
        label_root.annotate("d", "x", row, author="ann", nulls="drop")
    for values in ({"label": None}, {}):
        with refusal(InvalidSample, what="values", where="the rows given"):
            label_root.annotate("d", "x", {"k1": values}, author="ann")
    with refusal(InvalidKey, what="rows", given=0):
        label_root.annotate("d", "x", {}, author="ann")
    for by in (1, ["a"]):
        with refusal(InvalidField, what="annotated_by", where="the rows given"):
            label_root.annotate("d", "x", {"k1": {"label": "b", "annotated_by": by}}, author="ann")
    with pytest.raises(VersionNotFound):
        label_root.annotate("d@9", "x", row, author="ann")
    assert len(label_root.versions("d")) == 1
    assert {txn.status for txn in label_root.state.txns.values()} == {"committed", "aborted"}


def test_views_and_plans_see_the_labels(label_root):
    version = label_root.annotate(
        "d", "labels", {"k1": {"label": "b"}, "k4": {"label": "b"}}, author="ann"
    ).version
    view = version.select("cls").where("label = 'b'")
    assert set(view.keys(view.version_ordinals(np.arange(len(view))))) == {"k1", "k4"}
    assert len(label_root.open("d@1").where("label = 'b'")) == 0
    old, new = label_root.open("d@1").where("label = 'a'"), version.where("label = 'a'")
    with refusal(loader.errors.InvalidPlan, what="view", where="d@2", given="d@1"):
        new.since(old)
    assert new.since(old, compare=False).view is None


def test_many_rows_are_many_files_in_the_order_of_samples(label_root, monkeypatch):
    monkeypatch.setattr("loader.dataset.labels.annotate.FILE_ROWS", 3)
    monkeypatch.setattr("loader.dataset.labels.rows.BATCH_ROWS", 2)
    monkeypatch.setattr("loader.dataset.labels.join.MATCH_ROWS", 1)
    rows = {f"k{i}": {"label": f"l{i}"} for i in reversed(range(10))}
    version = label_root.annotate("d", "labels", rows, author="ann").version
    files = [entry for entry in version.manifest["samples"] if "author" in entry]
    assert [entry["n_rows"] for entry in files] == [4, 4, 2]
    assert [one.n_samples for one in version.annotations] == [10]
    assert column(version, "label") == {f"k{i}": f"l{i}" for i in range(10)}
    order = {part: i for i, part in enumerate(version.parts.ids.to_pylist())}
    for entry in files:
        places = [
            (order[row["part"]], row["row"]) for row in cells(label_root.store, [entry], "label").to_dicts()
        ]
        assert places == sorted(places)


def test_lists_and_times(label_root):
    at = datetime(2026, 1, 2, tzinfo=UTC)
    first = {"k1": {"tags": ["x"], "seen": at}, "k2": {"tags": [], "seen": None}}
    label_root.annotate("d", "tags", first, author="ann")
    version = label_root.annotate("d", "tags", {"k1": {"tags": ["y", "z"]}}, author="ann").version
    assert [column(version, "tags")[f"k{i}"] for i in (1, 2, 3)] == [["y", "z"], [], None]
    assert [column(version, "seen")[f"k{i}"] for i in (1, 2)] == [at, None]


def test_polars_frame(label_root):
    frame = pl.DataFrame({"key": ["k1", "k2"], "label": ["b", None], "n": pl.Series([1, 2], dtype=pl.UInt8)})
    version = label_root.annotate("d", "x", frame, author="ann").version
    assert [column(version, "label")[f"k{i}"] for i in (1, 2)] == ["b", "a"]
    assert version.manifest["columns"]["n"]["type"] == "int64"


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl", "url"])
def test_whoever_calls_watches_the_work(label_root, tmp_path, kind):
    """All rows that are read, all samples that are compared, all rows that are written: as many as were announced."""
    table = pa.table({"key": [f"k{i}" for i in range(5)], "label": list("abcde")})
    path = tmp_path / f"labels.{'parquet' if kind == 'url' else kind}"
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif kind == "csv":
        path.write_text(
            "key,label\n" + "".join(f"{row['key']},{row['label']}\n" for row in table.to_pylist())
        )
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    told = []

    def watch(items, what, size, total):
        done = 0
        for item in items:
            yield item
            done += size(item)
        told.append((what, done, total()))

    label_root.annotate("d", "x", path.as_uri() if kind == "url" else path, author="ann", watch=watch)
    lines = 6 if kind == "csv" else 5  # its first line is of names
    assert told == [(f"read {path.name}", 5, lines), ("compare with d@1", 10, 10), ("write x", 5, 5)]
