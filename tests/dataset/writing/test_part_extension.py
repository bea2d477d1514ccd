"""A part under construction: read back, extended by groups and columns, published with all of them."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import loader
from loader.dataset.shards.part import part_rows
from loader.dataset.writing.part_extension import add_part_columns, add_part_group, read_part
from loader.errors import Conflict, FieldMismatch, FieldNotFound, InvalidKey, InvalidSample
from tests.refusals import refusal


def write(root: loader.Root, n: int = 150) -> loader.Part:
    txn = root.begin("photos")
    samples = [(f"k{i:04d}", {"cls": i, "txt": f"text {i}"}, {"number": i}) for i in range(n)]
    return loader.write_part(root, txn, samples, name="00000")


def test_part_reads_back_in_its_order(tmp_path: Path) -> None:
    root = loader.Root(tmp_path / "root")
    part = write(root)
    rows = list(read_part(root.store, part, ["txt", "cls"]))
    assert [key for key, _ in rows] == [row["key"] for row in part_rows(root.store, part)]
    assert all(
        fields == {"txt": f"text {int(key[1:])}".encode(), "cls": str(int(key[1:])).encode()}
        for key, fields in rows
    )
    assert list(read_part(root.store, part, ["txt", "cls"], range(60, 131))) == rows[60:131]
    assert list(read_part(root.store, part, [], range(149, 150))) == [(rows[149][0], {})]
    with refusal(FieldNotFound, what="field", where=f"part {part.id}", given="jpg", accepted="cls, txt"):
        next(read_part(root.store, part, ["jpg"]))


def test_groups_and_columns_are_published_with_the_part(tmp_path: Path) -> None:
    root = loader.Root(tmp_path / "root")
    part = write(root)
    numbers = [int(fields["cls"]) for _, fields in read_part(root.store, part, ["cls"])]
    part = add_part_group(root.store, part, "emb", ({"emb.npy": np.full(2, n, np.int64)} for n in numbers))
    part = add_part_columns(root.store, part, ({"score": n / 2} for n in numbers))
    part = loader.Part.from_json(part.to_json())
    version = root.publish("photos", [part])
    assert version.fields == ("cls", "emb.npy", "txt")
    table = version.samples().collect()
    assert table["score"].to_list() == [n / 2 for n in table["number"].to_list()]
    plan = loader.plan({"photos": version.select("cls", "emb.npy")}, seed=1, global_batch=50)
    with loader.Loader(plan, 0, 1, framework="numpy") as batches:
        batch = next(batches)
    assert np.array_equal(batch["emb.npy"][:, 0], batch["cls"])


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    root = loader.Root(tmp_path / "root")
    part = write(root, 5)
    with refusal(
        FieldMismatch, what="rows", where=f"part {part.id}", given="only 4 rows were given", accepted=5
    ):
        add_part_group(root.store, part, "emb", [{"emb.npy": np.zeros(1)}] * 4)
    with refusal(
        FieldMismatch, what="rows", where=f"part {part.id}", given="more rows were given", accepted=5
    ):
        add_part_columns(root.store, part, [{"score": 1.0}] * 6)
    with refusal(Conflict, what="field", where=f"part {part.id}", given="txt"):
        add_part_group(root.store, part, "texts", [{"txt": "x"}] * 5)
    with refusal(Conflict, what="group", where=f"part {part.id}", given="media"):
        add_part_group(root.store, part, "media", [{"x.npy": np.zeros(1)}] * 5)
    with refusal(Conflict, what="column", where=f"part {part.id}", given="number"):
        add_part_columns(root.store, part, [{"number": 1}] * 5)


def test_error_of_the_callers_rows_passes_unchanged(tmp_path: Path) -> None:
    root = loader.Root(tmp_path / "root")
    part = write(root, 5)

    def rows(row):
        yield row
        raise ValueError("a fault of the caller")

    with pytest.raises(ValueError, match=r"^a fault of the caller$"):
        add_part_group(root.store, part, "emb", rows({"emb.npy": np.zeros(1)}))
    with pytest.raises(ValueError, match=r"^a fault of the caller$"):
        add_part_columns(root.store, part, rows({"score": 1.0}))


def test_samples_can_be_left_out_at_publishing(tmp_path: Path) -> None:
    root = loader.Root(tmp_path / "root")
    part = write(root, 20)
    version = root.publish("photos", [part], exclude={"k0003": "too dark", "k0011": "duplicate"})
    assert len(version) == 18
    assert {"k0003", "k0011"}.isdisjoint(version.samples().collect()["key"].to_list())
    assert {"k0003", "k0011"}.isdisjoint(version.keys(np.arange(18)))
    reasons = pl.read_parquet(tmp_path / "root" / version.manifest["exclusions"][0]["path"])
    assert sorted(reasons["reason"].to_list()) == ["duplicate", "too dark"]
    txn = root.begin("photos")
    again = loader.write_part(
        root, txn, [("k0003", {"cls": 3, "txt": "lighter"}, {"number": 3})], name="00000"
    )
    assert len(root.publish("photos", [again])) == 19, "an excluded key may come again"
    with refusal(InvalidKey, what="exclude", given="nobody"):
        root.publish("photos", [write(root, 2)], exclude={"nobody": "x"})
    for reason in ("", None, "\udcff"):
        with refusal(InvalidSample, what="reason", where="'k0003'", given=reason):
            root.publish("photos", [write(root, 4)], exclude={"k0003": reason})
