"""Formats that are read, not registered: rows become samples by rules, whatever stopped the import meanwhile."""

import gzip
import json
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

import loader
from loader.errors import Conflict, Corrupt, InvalidRuntime, InvalidStore
from loader.storage import open_store
from penstock.class_names import find_class_names
from penstock.formats.importer import ColumnarOptions
from penstock.formats.registry import IMPORTED
from penstock.formats.run_export import export
from penstock.formats.run_import import import_place
from tests.penstock.formats.builders.places import arrow, packer, put, table
from tests.penstock.formats.versions import contents, importing
from tests.refusals import refusal

JPG, PNG = b"\xff\xd8\xff-a picture-", b"\x89PNG\r\n\x1a\n-another-"


def import_table(place, url=None, *, key="id", fields=(("text", "txt"),), **how):
    return importing(*place, url, key=key, fields=fields, shard_bytes=700, **how)


LINES = b'{"id": "a", "text": "t", "w": 1, "notes": {"of": [1]}}\n{"id": "b", "text": "", "w": 2}\n'


@pytest.mark.parametrize(
    ("ending", "pack"), [("jsonl", bytes), ("jsonl.gz", gzip.compress), ("ndjson.zst", packer("zstd"))]
)
def test_lines_are_samples(tmp_path, ending, pack):
    put(tmp_path / f"place/0.{ending}", pack(LINES))
    done, root = import_table(("jsonl", tmp_path / "place"))
    version = root.open("d")
    assert (done.failures, done.samples) == ([], 2)
    held = {key: (fields, row["w"], row["raw_key"]) for key, (fields, row) in contents(version).items()}
    assert held == {
        "a": ({"text.txt": b"t", "notes.json": b'{"of":[1]}'}, 1, f"0.{ending}"),
        "b": ({"text.txt": b""}, 2, f"0.{ending}"),
    }
    assert version.group_of("text.txt") == "media" != version.group_of("notes.json")


@pytest.mark.parametrize("shuffle", [False, True])
def test_keys_that_repeat(tmp_path, cli, shuffle):
    """Of two objects: the object's name stands in front. Of one: an error that names it."""
    for name in ("0.jsonl", "b/0.jsonl"):
        put(tmp_path / "place" / name, LINES)
    done, root = import_table(("jsonl", tmp_path / "place"), tmp_path / "root", shuffle=shuffle)
    assert (done.failures, done.samples) == ([], 4)
    found = {key: (row["source_key"], row["raw_key"]) for key, (_, row) in contents(root.open("d")).items()}
    assert found == {f"{name}/{key}": (key, name) for name in ("0.jsonl", "b/0.jsonl") for key in "ab"}
    written = [*(tmp_path / "root").rglob("imported/*.tar")]
    assert len(written) == root.open("d").parts.shard_rows().num_rows
    put(tmp_path / "twice/a.jsonl", b'{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}\n')
    order = "--shuffle" if shuffle else "--keep-order"
    run = cli(
        "import", "jsonl", tmp_path / "twice", "t", "--key", "id", "--field", "text", order, root=root.url
    )
    assert (run.code, "a.jsonl has the key 'a.jsonl/1' twice" in run.err) == (2, True)


def test_columns_of_parquet_become_fields_and_metadata(tmp_path):
    media = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    at = datetime(2024, 2, 3, 4, 5, 6, 7, UTC)
    features = {"label": {"_type": "ClassLabel", "names": ["cat", "dog"]}, "image": {"_type": "Image"}}
    columns = {
        "image": pa.array([{"bytes": JPG, "path": "a.jpg"}, {"bytes": PNG, "path": None}], media),
        "label": pa.array([1, 0], pa.int64()),
        "raw": pa.array([b"abc", JPG], pa.binary()),
        "ids": pa.array([[1, 2], []], pa.list_(pa.uint16())),
        "emb": pa.array([[1.5], [2.5]], pa.list_(pa.float32(), 1)),
        "words": pa.array([["a", "b"], None], pa.list_(pa.string())),
        "box": pa.array([{"x": 1}, None], pa.struct([("x", pa.int64())])),
        "at": pa.array([at, None], pa.timestamp("ns", "UTC")),
        "split": pa.array(["train", "test"]).dictionary_encode(),
        "big": pa.array(["t" * 20000, "u"]),
        "nothing": pa.nulls(2),
        "my score": pa.array([0.5, float("nan")]),
    }
    schema = pa.schema([(name, column.type) for name, column in columns.items()])
    told = {"huggingface": json.dumps({"info": {"features": features}})}
    table(tmp_path / "place/a.parquet", columns, schema.with_metadata(told))
    place = "parquet", tmp_path / "place"
    done, root = import_table(
        place, tmp_path / "root", key=None, fields=[("big", ""), ("ids", "u4"), ("emb", "npy")]
    )
    assert done.failures == []
    held = contents(root.open("d"))
    fields, metadata = held["a/000000000"]
    assert fields.pop("emb.npy").endswith(np.float32(1.5).tobytes())
    assert fields == {
        "image.jpg": JPG,
        "cls": b"1",
        "raw": b"abc",
        "ids.u4": np.array([1, 2], "<u4").tobytes(),
        "box.json": b'{"x":1}',
        "big.txt": b"t" * 20000,
    }
    del metadata["raw_etag"]
    assert metadata == {
        "image_path": "a.jpg",
        "label": "dog",
        "words": ["a", "b"],
        "at": at,
        "table_split": "train",
        "my_score": 0.5,
        "raw_key": "a.parquet",
    }
    assert held["a/000000001"][0].keys() == {"image.png", "cls", "raw.jpg", "ids.u4", "emb.npy", "big.txt"}
    assert find_class_names(root.open("d")) == ["cat", "dog"]


LONG = b'{"text": "' + b"a" * 40 + b'"}\n'


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"id": 1, "text": "a"}\n{"text"', "bad.jsonl, row 1 is not JSON"),
        (b"[1]\n", "bad.jsonl, row 0 is a list"),
        (b'{"text": "a", "text": "b"}\n', "bad.jsonl, row 0 is not JSON: an object has one name twice"),
        (b'{"text": "a", "id": null}\n', "bad.jsonl, row 0: the key, column 'id', is None"),
        (b'{"text": "a", "id": NaN}\n', "bad.jsonl, row 0: the key, column 'id', is nan"),
        (b'{"id": 1}\n', "bad.jsonl, sample '1' has no field"),
        (b'{"id": 1, "text": "\\ud800"}\n', "bad.jsonl, row 0: column 'text' is not UTF-8 text"),
        (b'{"id": 1, "text": "a", "w": 1e400}\n' + b"[" * 100_000, "bad.jsonl, row 1 is not JSON"),
        (b'{"id": 1, "text": "a", "n": 99999999999999999999}', "bad.jsonl, row 0: column 'n' has the number"),
        (
            b'{"id": 1, "text": "a", "n": "' + b"b" * 20000 + b'"}',
            "row 0: the text in column 'n' has more than",
        ),
    ],
)
def test_bad_row_is_named_and_the_other_objects_continue(tmp_path, data, said):
    put(tmp_path / "place/a.jsonl", b'{"id": 2, "text": "a"}\n')
    put(tmp_path / "place/bad.jsonl", data)
    put(tmp_path / "place/cut.jsonl.gz", gzip.compress(LONG * 100)[:-20])
    for shuffle in (False, True):
        done, root = import_table(("jsonl", tmp_path / "place"), tmp_path / "root", shuffle=shuffle)
        assert sum(said in why for why in done.failures) == 1, done.failures
        assert sum("cut.jsonl.gz is damaged or cut" in why for why in done.failures) == 1
        assert (done.id, root.datasets()) == ("", [])
        assert len(done.failures) == 2


def test_bombs(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.formats.importing.read_units.BOMB_BYTES", 10_000)
    monkeypatch.setattr("penstock.formats.importing.read_units.BOMB_TIMES", 10)
    monkeypatch.setattr("penstock.formats.tables.text_tables.MAX_LINE_BYTES", 5_000_000)
    put(tmp_path / "place/line.jsonl.gz", gzip.compress(b'{"id": 1, "text": "' + b"a" * 9_000_000))
    put(tmp_path / "place/many.jsonl.gz", gzip.compress(b'{"id": 1, "text": "a"}\n' * 9000))
    done, _ = import_table(("jsonl", tmp_path / "place"), tmp_path / "root")
    line, many = sorted(done.failures, key=lambda why: "many.jsonl.gz" in why)
    assert "line.jsonl.gz, row 0 has more than 5,000,000 bytes" in line
    assert "many.jsonl.gz, sample" in many
    assert "probably a mistake or an attack" in many
    table(tmp_path / "rows/same.parquet", {"b": pa.array([b"x" * 5000] * 500), "id": range(500)})
    done, _ = import_table(("parquet", tmp_path / "rows"), tmp_path / "root2", fields=())
    assert "probably a mistake or an attack" in done.failures[0]


def test_damaged_parquet_is_named(tmp_path):
    for name, cut in (("a", slice(None, -9)), ("b", slice(40, None)), ("c", slice(0, 3)), ("d", slice(None))):
        table(
            tmp_path / f"place/{name}.parquet",
            {"b": [bytes([i]) * 300 for i in range(9)], "id": range(9)},
            compression="NONE",
            write_page_checksum=True,
        )
        path = tmp_path / f"place/{name}.parquet"
        data = bytearray(path.read_bytes()[cut])
        if name == "d":
            data[600] ^= 1
        put(path, bytes(data))
    table(tmp_path / "place/0.parquet", {"b": [b"1"], "id": [77]})
    done, root = import_table(("parquet", tmp_path / "place"), tmp_path / "root", fields=())
    assert [f"{name}.parquet" in why for name, why in zip("abcd", done.failures, strict=True)] == [True] * 4
    assert root.datasets() == []


def test_mistakes_are_told(tmp_path, cli):
    put(tmp_path / "place/a.jpg", b"1")
    root = loader.Root(tmp_path / "root")
    with refusal(InvalidRuntime, what="--key", given="files"):
        import_place(root, "files", open_store(tmp_path / "place"), "d", options=ColumnarOptions("id"))
    table(tmp_path / "tables/a.parquet", {"b": [b"1"], "id": [7]})
    place = "parquet", tmp_path / "tables"
    assert (
        "has no column 'no', which --key names; it has b, id"
        in import_table(place, root.url, key="no", fields=())[0].failures[0]
    )
    assert (
        "has no column 'no', which --field names"
        in import_table(place, root.url, fields=[("no", "")])[0].failures[0]
    )
    run = cli("import", "excel", tmp_path / "place", "d", root=root.url)
    assert (run.code, "accepted: arrow, " in run.err) == (2, True)
    assert all(name in run.err for name in IMPORTED)


def test_other_classes_under_the_same_numbers_are_refused(tmp_path):
    def write(name, names):
        features = {"label": {"_type": "ClassLabel", "names": names}}
        schema = pa.schema([("label", pa.int64()), ("b", pa.binary())])
        told = {"huggingface": json.dumps({"info": {"features": features}})}
        table(tmp_path / f"place/{name}.parquet", {"label": [0], "b": [b"1"]}, schema.with_metadata(told))

    place = "parquet", tmp_path / "place"
    write("a", ["cat", "dog"])
    root = import_table(place, tmp_path / "root", key=None, fields=())[1]
    write("b", ["dog", "cat"])
    assert "b.parquet has the classes" in import_table(place, root.url, key=None, fields=())[0].failures[0]
    (tmp_path / "place/b.parquet").unlink()
    write("a", ["dog", "horse"])
    with refusal(
        Conflict,
        what="class names",
        where=f"{tmp_path}/place",
        given=["dog", "horse"],
        accepted=["cat", "dog"],
    ):
        import_table(place, root.url, key=None, fields=())


def test_arrow_files_and_streams_and_their_damages(tmp_path):
    columns = {"b": [bytes([i]) * 40 for i in range(7)], "id": range(7)}
    arrow(tmp_path / "place/a.arrow", columns)
    arrow(tmp_path / "place/b.arrow", columns, stream=False)
    place = "arrow", tmp_path / "place"
    done, root = import_table(place, tmp_path / "root", key=None, fields=())
    assert done.failures == []
    held = contents(root.open("d"))
    assert {key: (fields["b"], columns["id"]) for key, (fields, columns) in held.items()} == {
        f"{name}/{i:09d}": (bytes([i]) * 40, i) for name in "ab" for i in range(7)
    }
    for name in ("a", "b"):
        path = tmp_path / f"place/{name}.arrow"
        put(tmp_path / f"place/{name}-cut.arrow", path.read_bytes()[: path.stat().st_size * 2 // 3])
    done, _ = import_table(place, tmp_path / "other", key=None, fields=())
    assert sorted("a-cut" in why for why in done.failures) == [False, True]
    assert all("is damaged or cut" in why for why in done.failures)


def test_csv_is_text(tmp_path):
    put(tmp_path / "place/a.csv", '\ufeffid,text,w\r\n1,"two\nlines, one ""word""",\r\n2,b,0.50\r\n'.encode())
    put(tmp_path / "place/b.csv.gz", gzip.compress(b"id,text\n3,c\n"))
    place = "csv", tmp_path / "place"
    done, root = import_table(place, tmp_path / "root")
    assert done.failures == []
    held = {key: (fields, columns.get("w")) for key, (fields, columns) in contents(root.open("d")).items()}
    assert held == {
        "1": ({"text.txt": b'two\nlines, one "word"'}, None),
        "2": ({"text.txt": b"b"}, "0.50"),
        "3": ({"text.txt": b"c"}, None),
    }
    for name, data, said in (
        ("cut", b'id,text\n1,"a', "row 0 is not CSV"),
        ("wide", b"id,text\n1,a\n2,b,c\n", "row 1 has 3 values, and 2 columns"),
        ("twice", b"id,text,id\n1,a,2\n", "two columns of one name"),
        ("latin", b"id,text\n1,\xff\n", "row 0 is not CSV in UTF-8"),
    ):
        put(tmp_path / name / f"{name}.csv", data)
        (why,) = import_table(("csv", tmp_path / name), tmp_path / "other")[0].failures
        assert f"{name}.csv" in why
        assert said in why


def test_hugging_face_layouts_tell_splits(tmp_path):
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
    columns = {"b": [b"1"], "split": ["mine"]}
    put(tmp_path / "saved/dataset_dict.json", b'{"splits": ["train", "test"]}')
    for split in ("train", "test"):
        put(tmp_path / f"saved/{split}/state.json", json.dumps(state).encode())
        arrow(tmp_path / f"saved/{split}/data-00000-of-00001.arrow", columns)
        arrow(tmp_path / f"saved/{split}/cache-1.arrow", columns)
        table(tmp_path / f"hub/data/{split}-00000-of-00001.parquet", columns)
    for name in ("saved", "hub"):
        done, root = import_table(("hf", tmp_path / name), tmp_path / f"root-{name}", key=None, fields=())
        assert (done.failures, done.samples) == ([], 2)
        held = [columns for _, columns in contents(root.open("d")).values()]
        assert sorted(columns["split"] for columns in held) == ["test", "train"]
        assert [columns["table_split"] for columns in held] == ["mine", "mine"]
    (tmp_path / "saved/test/data-00000-of-00001.arrow").unlink()
    done, _ = import_table(("hf", tmp_path / "saved"), tmp_path / "r")
    assert "which its state.json lists" in done.failures[0]
    table(tmp_path / "saved/x.parquet", columns)
    arrow(tmp_path / "saved/test/data-00000-of-00001.arrow", columns)
    with refusal(
        InvalidStore,
        what="datasets",
        where=f"{tmp_path}/saved",
        given=["test/data-00000-of-00001.arrow", "x.parquet"],
        accepted="one of them",
    ):
        import_table(("hf", tmp_path / "saved"), tmp_path / "r")
    put(tmp_path / "saved/test/state.json", b'{"_data_files": [{"filename": "../x"}]}')
    with refusal(Corrupt, where=f"{tmp_path}/saved/test/state.json", accepted="the state of a dataset"):
        import_table(("hf", tmp_path / "saved"), tmp_path / "r")


def test_parquet_that_cannot_hold_a_field_is_told(tmp_path):
    for field, data in (("txt", b"\xff"), ("a.u2", b"abc"), ("cls", b"03")):
        with loader.Root(tmp_path / "root") as root, root.write(field[:1]) as writer:
            writer.add("k", {field: data})
        (why,) = export(root.open(field[:1]), "parquet", open_store(tmp_path / field)).failures
        assert f"sample 'k': {field}" in why
