"""Exports: what they leave alone, what they name, and what a command says of them."""

import json

import pytest

import loader
from loader.errors import Conflict, Corrupt, LossyExport
from loader.storage import open_store
from penstock.formats.registration.register import register
from penstock.formats.run_export import export
from tests.penstock.formats.readers import READERS
from tests.penstock.formats.versions import objects, sample_contents
from tests.refusals import refusal


@pytest.fixture
def version(export_root):
    with loader.Root(export_root) as root:
        yield root.open("d")


def test_what_was_deleted_is_written_again(version, tmp_path):
    store = open_store(tmp_path)
    export(version, "webdataset", store)
    expected = objects(store)
    store.delete_many(["000001.tar"])
    store.put("000002.tar", b"short")
    store.put(".penstock/units/000000.json", b"{")
    again = export(version, "webdataset", store)
    assert (again.objects, again.skipped) == (4, 1)
    assert objects(store) == expected


def test_place_of_others_is_left_alone(version, tmp_path):
    store = open_store(tmp_path)
    store.put("photo.jpg", b"mine")
    with refusal(Conflict, what="photo.jpg", where=tmp_path, accepted="an empty folder or prefix"):
        export(version, "files", store)
    assert objects(store) == {"photo.jpg": b"mine"}


def test_another_export_is_left_alone(version, tmp_path):
    store = open_store(tmp_path)
    export(version, "webdataset", store)
    before = objects(store)
    with refusal(Conflict, what="export", where=tmp_path, given=["where"]):
        export(version, "webdataset", store, where="w > 4")
    store.put(".penstock/begun.json", b"")
    with refusal(Conflict, what="export", where=tmp_path, given=[]):
        export(version, "webdataset", store)
    assert {**objects(store), ".penstock/begun.json": before[".penstock/begun.json"]} == before


def test_loss_is_named_and_refused(tmp_path, cli):
    with loader.Root(tmp_path / "root") as root, root.write("d") as writer:
        writer.add("a", {"Jpg": b"1", "json": {"b": 1}, "metadata.json": {}}, metadata={"w": 1})
    run = ("export", "d", "webdataset", tmp_path / "out", "--json")
    refused = cli(*run, root=tmp_path / "root")
    assert refused.code == 2
    assert not (tmp_path / "out").exists()
    assert json.loads(refused.out)["error"] == LossyExport.__name__
    for word in ("webdataset cannot hold all of d@1", "field 'Jpg'", "'jpg'", "metadata: ", "--lossy"):
        assert word in refused.err
    done = cli(*run, "--lossy", root=tmp_path / "root").json
    assert [one["name"] for one in done["lost"]] == ["field 'Jpg'", "metadata"]
    found = READERS["webdataset"](objects(open_store(tmp_path / "out")))
    assert found == {"a": ({"jpg": b"1", "metadata.json": b"{}"}, {"b": 1})}
    text = cli(*run[:-1], "--lossy", root=tmp_path / "root").out
    assert "lost: field 'Jpg': webdataset reads extensions in lower case" in text
    held = cli("export", "d", "files", tmp_path / "files", "--json", root=tmp_path / "root").json
    assert held["lost"] == []


@pytest.mark.parametrize(
    ("format", "encodings", "fault"),
    [
        (
            "mds",
            ["str", "json", "ndarray:uint16", "str"],
            {"what": ["keys", "metadata"], "where": "e@1", "given": "mds"},
        ),
        (
            "litdata",
            ["str", "json", "json", "json", "no_header_numpy:5", "str"],
            {"what": ["keys", "metadata", "absence"], "where": "e@2", "given": "litdata"},
        ),
    ],
)
def test_flat_arrays_are_the_formats_own_and_the_rest_is_named(
    format, encodings, fault, tmp_path, monkeypatch
):
    """MDS has all fields in all samples, LitData one kind of samples with what some lack."""
    monkeypatch.setattr("penstock.formats.mds_export.SHARD_BYTES", 100)
    monkeypatch.setattr("penstock.formats.litdata.CHUNK_BYTES", 100)
    root, expected = loader.Root(tmp_path / "root"), {}
    groups = {"tokens.u2": "media", "txt": "media", "json": "more"}
    for first, more in ((0, {}), (5, {"json": b'{"a":1}'})) if format == "litdata" else ((0, {}),):
        with root.write("d", groups={name: groups[name] for name in ("tokens.u2", "txt", *more)}) as writer:
            for i in range(first, first + 5):
                fields = {"tokens.u2": bytes(2 * i), "txt": ("\u00e9" * i).encode(), **more}
                writer.add(f"k{i}", fields, metadata={"w": i})
                expected[f"k{i}"] = fields, {"w": i}
    done = export(root.open("d"), format, open_store(tmp_path / "out"))
    index = json.loads((tmp_path / "out/index.json").read_text())
    held = index.get("shards") or index["chunks"]
    assert done.objects == len(held) + 1 > 2
    assert index.get("config", {}).get("data_format", held[0].get("column_encodings")) == encodings
    back = register(loader.Root(tmp_path / "back"), format, tmp_path / "out", "d").version
    assert sample_contents(back) == expected
    reserved = {"key": b"1", "metadata": b"2"} | ({"absent": b"3"} if format == "litdata" else {})
    with root.write("e", groups=dict.fromkeys(reserved, "media")) as writer:
        writer.add("a", reserved, metadata={"w": 1})
    with root.write("e", groups=dict.fromkeys(reserved, "media") | {"x": "x"}) as writer:
        writer.add("b", {**reserved, "x": b"4"})
    with refusal(LossyExport, **fault):
        export(root.open("e" if format == "litdata" else "e@1"), format, open_store(tmp_path / "e"))
    for field, data in (("txt", b"\xff"), ("tokens.u2", b"abc")):
        with root.write("f" + field[:2]) as writer:
            writer.add("a", {field: data})
        why = export(root.open("f" + field[:2]), format, open_store(tmp_path / field)).failures
        assert field in why[0]


def test_damaged_sample_is_named_and_the_rest_is_exported(version, tmp_path, cli, own):
    with loader.Root(own) as root:
        (address,) = root.open("d").address([0], ["x.npy"])
        place = address.fields["x.npy"]
        path = f"{own}/{place.path}"
    with open(path, "r+b") as shard:
        shard.seek(place.offset)
        shard.write(b"\xff")
    run = cli("export", "d", "webdataset", tmp_path / "out", "--json", root=own)
    assert (run.code, run.err) == (1, "")
    (why,) = run.json["failures"]
    assert address.key in why
    assert sorted(path.name for path in (tmp_path / "out").glob("*.tar")) == [
        "000001.tar",
        "000002.tar",
        "000003.tar",
    ]
    assert not (tmp_path / "out/.penstock/export.json").exists()
    text = cli("export", "d", "webdataset", tmp_path / "out", root=own).out
    assert "the export is not complete: run the same command again" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["tars"],
            "format 'tars' is not known; accepted: energon, files, lerobot, litdata, mds, megatron, parquet, "
            "webdataset",
        ),
        (
            ["files", "--without", "mood"],
            "--without mood: d@4 has no such field or column; it has the fields cls",
        ),
        (["files", "--where", "w > 99"], "nothing of d@4 is to be exported: no sample of it is w > 99"),
        (["files", "--workers", "0"], "--workers 0: a number of threads above 0 is needed"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(cli, sample_root, tmp_path, arguments, said):
    run = cli("export", "d@4", arguments[0], tmp_path / "out", *arguments[1:], root=sample_root[0])
    assert (run.code, run.out) == (2, "")
    assert said in run.err
    assert not (tmp_path / "out").exists()


def test_file_that_would_be_the_table_is_refused(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        with root.write("d") as writer:
            writer.add("metadata", {"parquet": b"1"}, metadata={"w": 1})
        done = export(root.open("d"), "files", open_store(tmp_path / "out"))
    assert "written as metadata.parquet, which is the export's own" in done.failures[0]
    assert Corrupt.__name__ not in done.failures[0]
