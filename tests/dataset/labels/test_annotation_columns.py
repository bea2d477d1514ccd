"""Columns of annotations: which are taken, and any name that they may have."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from loader.errors import Conflict, FieldNotFound, InvalidField
from tests.dataset.labels.annotated import column, statistics, write
from tests.refusals import refusal


def test_columns_that_are_not_taken(label_root):
    table = pa.table({"key": ["k1"], "split": ["val"], "note": ["n"], "label": ["b"]})
    with refusal(InvalidField, what="column", given="split"):
        label_root.annotate("d", "x", table, author="ann")
    version = label_root.annotate("d", "x", table, author="ann", columns=["label"]).version
    assert column(version, "label")["k1"] == "b"
    assert set(version.manifest["columns"]) == {"key", "label", "raw_key", "w"}
    with refusal(FieldNotFound, what="nope", where="the rows given"):
        label_root.annotate("d", "x", table, author="ann", columns=["nope"])
    with refusal(FieldNotFound, what="nope", where="the rows given"):
        label_root.annotate(
            "d", "x", {"k1": {"label": "b"}, "k2": {"note": "n"}}, author="ann", columns=["nope"]
        )


@pytest.mark.parametrize("kind", ["mappings", "jsonl", "csv", "parquet", "arrow"])
def test_columns_that_are_not_taken_may_be_of_any_name_and_kind(label_root, kind, tmp_path):
    """Reserved, no name for a column, of kinds that are not stored, mixed, or of another type in the dataset."""
    rows = [
        {"key": "k1", "label": "b", "split": "val", "my col": 1, "w": "n/a", "boxes": {"x": 1}},
        {"key": "k2", "label": "c", "split": "val", "my col": 2, "w": "", "boxes": {"x": 2}},
    ]
    path = tmp_path / f"labels.{kind}"
    if kind == "mappings":
        given = [rows[0], {**rows[1], "my col": "mixed", "w": 5}]
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        given = path
    elif kind == "csv":
        path.write_text("key,label,split,my col,w,boxes\n" + "k1,b,val,1,n/a,[]\nk2,c,val,2,,x\n")
        given = path
    else:
        table = pa.Table.from_pylist(rows)
        given = table.append_column("my col", table["my col"])
        if kind == "parquet":
            pq.write_table(table, path)
            given = path
    done = label_root.annotate("d", "x", given, author="ann", columns=["label"])
    assert {key: column(done.version, "label")[key] for key in ("k1", "k2")} == {"k1": "b", "k2": "c"}
    assert done.join.n_samples == 2
    with refusal(FieldNotFound, what="nope", accepted=["boxes", "label", "my col", "split", "w"]):
        label_root.annotate("d", "x", given, author="ann", columns=["nope"])


NAMES = (
    "position",
    "annotation",
    "removed",
    "annotated_at",
    "edit_removed",
    "live",
    "given",
    "value",
    "column",
    "n",
)
"""Words that code and tables have for themselves, and that no page reserves."""


@pytest.mark.parametrize("part_samples", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_column_of_any_name_is_of_its_samples(root, name, part_samples):
    """Whatever its values are: numbers of parts, all of them alike, or beyond all parts."""
    write(root, range(6), part_samples=part_samples)
    for values in ([0, 1, 2, 0, 1, 2], [0] * 6, [9] * 6):
        rows = {f"k{i}": {name: values[i], "label": f"l{i}"} for i in range(6)}
        version = root.annotate("d", "x", rows, author="ann").version
        assert version.samples().collect().height == 6
        assert column(version, name) == {f"k{i}": values[i] for i in range(6)}
        assert column(version, "label") == {f"k{i}": f"l{i}" for i in range(6)}
        assert len(version.where(f"\"{name}\" = {values[1]} AND label = 'l1'")) == 1
    assert statistics(version)[name]["mean"] == 9


@pytest.mark.parametrize("name", ["removed", "annotation", "annotated_at"])
def test_edits_of_a_column_that_is_called_as_what_is_said_of_them(label_root, name):
    other = loader.Root(label_root.url)
    version = other.annotate("d@1", "theirs", {"k1": {name: "mine"}}, author="ben").version
    (edit,) = version.edits(name).collect().to_dicts()
    at = datetime.fromtimestamp(version.annotations[0].at_us / 1e6, UTC)
    facts = {"removed": False, "annotation": "theirs", "annotated_at": at}
    own = facts.pop(name)
    assert edit.pop("ordinal") == column(version, "ordinal")["k1"]
    assert edit == {"key": "k1", name: "mine", f"edit_{name}": own, "annotated_by": "ben", **facts}
    with refusal(Conflict, what=name, where="d@2"):
        label_root.annotate("d@1", "ours", {"k1": {name: "other"}, "k2": {name: "other"}}, author="ann")
    version = label_root.annotate("d@1", "ours", {"k3": {name: "other"}}, author="ann").version
    assert version.edits(name).collect()["key"].to_list() == ["k1", "k3"]


def test_samples_that_came_with_columns_of_an_edit(root):
    """What they say is metadata as any other: of who took a picture, or what was removed from it."""
    write(root, range(4), annotated_removed="a sticker", annotated_by="ben", annotated_at_us="noon")
    version = root.annotate("d", "x", {"k1": {"label": "b"}}, author="ann").version
    assert column(version, "label") == {f"k{i}": "b" if i == 1 else "a" for i in range(4)}
    assert statistics(version)["label"]["categories"] == {"a": 3, "b": 1}
    assert version.edits("label").collect()["annotated_by"].to_list() == ["ann"]
    assert column(version, "annotated_removed")["k1"] == "a sticker"
