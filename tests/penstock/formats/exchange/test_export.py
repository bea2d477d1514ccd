"""Every format of the registry: its own reader finds what the version has, whatever stopped the export meanwhile."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import loader
from loader.errors import Conflict, Corrupt, LossyExport
from loader.storage import open_store
from penstock.formats.registration.register import register
from penstock.formats.registry import EXPORTED
from penstock.formats.run_export import export
from tests.mortal_store import PUTS, SIDES, Death, Killed, stop

OF_EPISODES = {"lerobot"}
"""Formats that hold episodes alone: test_lerobot.py."""
every_format = pytest.mark.parametrize("name", sorted(EXPORTED - OF_EPISODES))
TOKENS_ALONE = {"megatron"}
"""Formats that hold tokens, and nothing else."""


@pytest.fixture
def version(exported_root, request):
    name = request.node.callspec.params.get("name") if hasattr(request.node, "callspec") else None
    with loader.Root(exported_root) as root:
        yield root.open("tokens" if name in TOKENS_ALONE else "d")


def test_every_format_has_a_reader_here(readers):
    assert readers.keys() == EXPORTED - OF_EPISODES


@every_format
def test_formats_own_reader_finds_the_same(version, contents, objects, readers, tmp_path, name):
    done = export(version, name, open_store(tmp_path / "out"))
    found = objects(open_store(tmp_path / "out"))
    expected = contents(version)
    assert readers[name](found) == expected
    assert len(expected) == done.samples == len(version) == 11
    data = {key: held for key, held in found.items() if not key.startswith(".penstock/")}
    assert (done.objects, done.nbytes) == (len(data), sum(map(len, data.values())))
    assert done.failures == done.lost == []


@pytest.mark.parametrize("name", sorted(EXPORTED - OF_EPISODES - TOKENS_ALONE))
def test_some_samples_without_some_names(version, contents, objects, readers, tmp_path, name):
    export(version, name, open_store(tmp_path), where="w > 4", without=["jpg", "kind", "score"])
    expected = {
        key: (
            {field: data for field, data in fields.items() if field != "jpg"},
            {column: value for column, value in columns.items() if column not in ("kind", "score")},
        )
        for key, (fields, columns) in contents(version).items()
        if columns["w"] > 4
    }
    assert len(expected) == 7
    assert readers[name](objects(open_store(tmp_path))) == expected


@every_format
def test_bucket_has_the_same_objects(version, objects, s3, tmp_path, name):
    export(version, name, open_store(tmp_path))
    bucket = open_store(f"s3://bucket/export-{name}", s3)
    export(version, name, bucket)
    assert objects(bucket) == objects(open_store(tmp_path))


@every_format
def test_killed_at_every_write(version, objects, tmp_path, name):
    """A second run ends in the same objects, and writes no unit again that was noted."""
    place = f"memory://{tmp_path.name}"
    export(version, name, open_store(f"{place}/whole"))
    expected = objects(open_store(f"{place}/whole"))
    units = sum(key.startswith(".penstock/units/") for key in expected)
    for after in (False, True):
        for k in range(1, len(expected) + 1):
            store = open_store(f"{place}/{k}-{after}")
            with pytest.raises(Killed):
                export(version, name, Death(k, SIDES[after], PUTS, stop).of(store), workers=1)
            half = objects(store)
            assert half.items() <= expected.items()  # nothing half written under a final name
            noted = sum(key.startswith(".penstock/units/") for key in half)
            assert (".penstock/export.json" in half) == (after and k == len(expected))
            again = export(version, name, store, workers=1)
            assert (again.skipped > 0) == (noted > 0)
            assert noted < units or again.skipped >= units
            assert objects(store) == expected


SIGKILLED = """
import sys
import loader
from penstock.formats.registration.register import register
from loader.storage import open_store
from penstock.formats.run_export import export
sys.path.insert(0, {here!r})
from tests.mortal_store import PUTS, Death
export(loader.Root({root!r}).open("d"), {name!r}, Death({k}, verbs=PUTS).of(open_store({out!r})))
"""


@pytest.mark.parametrize("name", ["webdataset"])
def test_sigkill(exported_root, version, objects, tmp_path, name):
    """The same of a process, with several units at once."""
    export(version, name, open_store(tmp_path / "whole"))
    expected = objects(open_store(tmp_path / "whole"))
    for k in (2, 4):
        out = str(tmp_path / str(k))
        code = SIGKILLED.format(
            here=str(Path(__file__).parents[4]), root=exported_root, name=name, out=out, k=k
        )
        assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
        half = objects(open_store(out))
        assert half.items() < expected.items()
        export(version, name, open_store(out))
        assert objects(open_store(out)) == expected


def test_what_was_deleted_is_written_again(version, objects, tmp_path):
    store = open_store(tmp_path)
    export(version, "webdataset", store)
    expected = objects(store)
    store.delete_many(["000001.tar"])
    store.put("000002.tar", b"short")
    store.put(".penstock/units/000000.json", b"{")
    again = export(version, "webdataset", store)
    assert (again.objects, again.skipped) == (4, 1)
    assert objects(store) == expected


def test_place_of_others_is_left_alone(version, objects, tmp_path):
    store = open_store(tmp_path)
    store.put("photo.jpg", b"mine")
    with pytest.raises(Conflict, match=r"not empty: it has 'photo\.jpg'"):
        export(version, "files", store)
    assert objects(store) == {"photo.jpg": b"mine"}


def test_another_export_is_left_alone(version, objects, tmp_path):
    store = open_store(tmp_path)
    export(version, "webdataset", store)
    before = objects(store)
    with pytest.raises(Conflict, match=r"holds an export of where None \(now 'w > 4'\)"):
        export(version, "webdataset", store, where="w > 4")
    store.put(".penstock/begun.json", b"")
    with pytest.raises(Conflict, match="an export of something damaged"):
        export(version, "webdataset", store)
    assert {**objects(store), ".penstock/begun.json": before[".penstock/begun.json"]} == before


def test_loss_is_named_and_refused(tmp_path, cli, objects, readers):
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
    found = readers["webdataset"](objects(open_store(tmp_path / "out")))
    assert found == {"a": ({"jpg": b"1", "metadata.json": b"{}"}, {"b": 1})}
    text = cli(*run[:-1], "--lossy", root=tmp_path / "root").out
    assert "lost: field 'Jpg': webdataset reads extensions in lower case" in text
    held = cli("export", "d", "files", tmp_path / "files", "--json", root=tmp_path / "root").json
    assert held["lost"] == []


def test_mds_holds_flat_arrays_as_its_own_and_names_the_rest(tmp_path, monkeypatch, readers, objects):
    monkeypatch.setattr("penstock.formats.mds_export.SHARD_BYTES", 100)
    with loader.Root(tmp_path / "root") as root:
        with root.write("d") as writer:
            for i in range(5):
                writer.add(f"k{i}", {"tokens.u2": bytes(2 * i), "txt": "\u00e9" * i}, metadata={"w": i})
        done = export(root.open("d"), "mds", open_store(tmp_path / "out"))
        with root.write("e") as writer:
            writer.add("a", {"key": b"1", "metadata": b"2"}, metadata={"w": 1})
        with pytest.raises(LossyExport, match=r"keys: its column .* 'key'(?s:.*)metadata: "):
            export(root.open("e"), "mds", open_store(tmp_path / "e"))
        for field, data in (("txt", b"\xff"), ("tokens.u2", b"abc")):
            with root.write("f" + field[:2]) as writer:
                writer.add("a", {field: data})
            why = export(root.open("f" + field[:2]), "mds", open_store(tmp_path / field)).failures
            assert field in why[0]
    found = objects(open_store(tmp_path / "out"))
    shards = json.loads(found["index.json"])["shards"]
    assert len(shards) > 1
    assert done.objects == len(shards) + 1
    assert shards[0]["column_encodings"] == ["str", "json", "ndarray:uint16", "str"]
    heads = {f"k{i}": bytes([7, i, 0, 0, 0, 0, 0, 0, 0]) for i in range(5)}
    assert readers["mds"](found) == {
        f"k{i}": ({"tokens.u2": heads[f"k{i}"] + bytes(2 * i), "txt": ("\u00e9" * i).encode()}, {"w": i})
        for i in range(5)
    }
    with loader.Root(tmp_path / "back") as root:
        version = register(root, "mds", tmp_path / "out", "d").version
        assert version.fields == ("tokens.u2", "txt")
        assert {row["key"]: row["w"] for row in version.samples().collect().to_dicts()} == {
            f"k{i}": i for i in range(5)
        }


def test_litdata_has_one_kind_of_samples_and_names_the_rest(tmp_path, monkeypatch, readers, objects):
    monkeypatch.setattr("penstock.formats.litdata.CHUNK_BYTES", 100)
    with loader.Root(tmp_path / "root") as root:
        for first, more in ((0, {}), (5, {"json": b'{"a":1}'})):
            groups = {"tokens.u2": "media", "txt": "media", "json": "more"}
            with root.write(
                "d", groups={name: groups[name] for name in ("tokens.u2", "txt", *more)}
            ) as writer:
                for i in range(first, first + 5):
                    writer.add(
                        f"k{i}", {"tokens.u2": bytes(2 * i), "txt": "\u00e9" * i, **more}, metadata={"w": i}
                    )
        done = export(root.open("d"), "litdata", open_store(tmp_path / "out"))
        with root.write("e", groups={"key": "media", "absent": "media", "metadata": "media"}) as writer:
            writer.add("a", {"key": b"1", "metadata": b"2", "absent": b"3"}, metadata={"w": 1})
        with root.write(
            "e", groups={"key": "media", "absent": "media", "metadata": "media", "x": "x"}
        ) as writer:
            writer.add("b", {"key": b"1", "metadata": b"2", "absent": b"3", "x": b"4"})
        with pytest.raises(
            LossyExport, match=r"keys: its leaf .* 'key'(?s:.*)metadata: (?s:.*)absence: .*'absent'"
        ):
            export(root.open("e"), "litdata", open_store(tmp_path / "e"))
        for field, data in (("txt", b"\xff"), ("tokens.u2", b"abc")):
            with root.write("f" + field[:2]) as writer:
                writer.add("a", {field: data})
            why = export(root.open("f" + field[:2]), "litdata", open_store(tmp_path / field)).failures
            assert field in why[0]
    found = objects(open_store(tmp_path / "out"))
    told = json.loads(found["index.json"])
    assert len(told["chunks"]) > 2
    assert done.objects == len(told["chunks"]) + 1
    assert told["config"]["data_format"] == ["str", "json", "json", "json", "no_header_numpy:5", "str"]
    expected = {
        f"k{i}": ({"tokens.u2": bytes(2 * i), "txt": ("\u00e9" * i).encode()}, {"w": i}) for i in range(10)
    }
    for i in range(5, 10):
        expected[f"k{i}"][0]["json"] = b'{"a":1}'
    assert readers["litdata"](found) == expected


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
def test_mistakes_are_told_before_anything_is_written(cli, filled, tmp_path, arguments, said):
    run = cli("export", "d@4", arguments[0], tmp_path / "out", *arguments[1:], root=filled[0])
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
