"""Datasets of Lance: the rows of the newest version are in ours, without the deleted ones, and with added columns."""

import lance
import numpy as np
import pyarrow as pa
import pytest

import loader
from loader.errors import Changed, InvalidStore
from loader.storage import open_store
from penstock.formats.importer import ColumnarOptions
from penstock.formats.run_import import import_place
from tests.penstock.formats.versions import contents, importing
from tests.refusals import refusal

ROWS = 10
SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("weight", pa.int64()),
        ("jpg", pa.binary()),
        ("emb", pa.list_(pa.float32(), 4)),
        pa.field("film", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
    ]
)


def rows(numbers=range(ROWS)):
    made = [
        {
            "name": f"n{i}",
            "weight": i,
            "jpg": b"\xff\xd8\xff%d" % i,
            "emb": [float(i)] * 4,
            "film": b"f" * i,
        }
        for i in numbers
    ]
    return pa.Table.from_pylist(made, SCHEMA)


@pytest.fixture
def dataset(tmp_path):
    """Three fragments, of which the first has a deleted row."""
    made = lance.write_dataset(rows(), str(tmp_path / "in"), max_rows_per_file=4)
    made.delete("weight = 2")
    return made


def import_lance(tmp_path, **options):
    return importing("lance", tmp_path / "in", tmp_path / "root", **options)[0]


def test_rows_that_are_left_are_samples_under_their_numbers(dataset, tmp_path):
    done = import_lance(tmp_path)
    assert (done.failures, done.samples, done.new) == ([], ROWS - 1, 3)
    found = contents(loader.Root(tmp_path / "root").open("d"))
    files = [f"data/{one.data_files()[0].path[:-6]}" for one in dataset.get_fragments()]
    kept = [i for i in range(ROWS) if i != 2]
    assert list(found) == [f"{files[i // 4]}/{i % 4:09}" for i in kept]
    for i, (fields, columns) in zip(kept, found.values(), strict=True):
        assert fields["jpg"] == b"\xff\xd8\xff%d" % i
        assert fields["film"] == b"f" * i
        assert fields["emb.f4"] == np.full(4, i, "<f4").tobytes()
        assert (columns["name"], columns["weight"]) == (f"n{i}", i)


def test_fragments_that_changed_take_the_place_of_their_rows(dataset, tmp_path):
    assert import_lance(tmp_path, key="name").samples == ROWS - 1
    dataset.delete("weight = 9")
    dataset.insert(rows([20]))
    done = import_lance(tmp_path, key="name")
    assert (done.failures, done.samples, done.new, done.replaced, done.same) == ([], ROWS - 1, 1, 1, 2)
    version = loader.Root(tmp_path / "root").open("d")
    assert sorted(contents(version)) == sorted([*(f"n{i}" for i in range(9) if i != 2), "n20"])
    dataset.add_columns({"twice": "weight * 2"})
    done = import_lance(tmp_path, key="name")
    assert (done.failures, done.replaced) == ([], 4)
    found = contents(loader.Root(tmp_path / "root").open("d"))
    assert {key: columns["twice"] for key, (_, columns) in found.items()} == {
        key: 2 * int(key[1:]) for key in found
    }


def test_file_that_was_replaced_or_damaged_is_named(dataset, tmp_path, monkeypatch):
    data = sorted((tmp_path / "in/data").iterdir())
    data[1].write_bytes(data[1].read_bytes()[:-200] + bytes(200))
    done = import_lance(tmp_path)
    assert [data[1].name in why and "Lance cannot read it" in why for why in done.failures] == [True]
    data[0].unlink()
    with refusal(InvalidStore, what=f"data/{data[0].name}", where=tmp_path / "in"):
        import_lance(tmp_path)


def test_dataset_that_changes_while_it_is_read_is_told(dataset, tmp_path):
    from penstock.formats.tables.lance_import import find_readable

    store = open_store(tmp_path / "in")
    readable = find_readable(store, list(store.list()), ColumnarOptions())
    (run,) = readable.runs(readable.infos[1])
    store.put(run.info.key, store.get(run.info.key).data + b"x")
    with refusal(Changed, what="object", where=f"{tmp_path}/in/{run.info.key}"):
        list(readable.samples(run))


def test_stores_that_lance_does_not_open_are_refused(dataset, tmp_path):
    store = open_store("memory://lance")
    store.put("_versions/1.manifest", b"x")
    with (
        loader.Root(tmp_path / "root") as root,
        refusal(InvalidStore, where="memory://lance", accepted="folders, s3://, gs:// and az://"),
    ):
        import_place(root, "lance", store, "d")
