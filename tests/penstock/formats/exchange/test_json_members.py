"""Columns of members `json` in versions with bytes of their own: the same as a registration gives."""

import gzip
import shutil

import numpy as np
import pytest

import loader
from loader.dataset.columnar.json_members import MIXED
from loader.storage import open_store
from penstock.cli import main
from penstock.formats import run_import
from penstock.formats.importer import ColumnarOptions
from penstock.formats.registration.register import register
from penstock.formats.run_export import export
from penstock.formats.run_import import import_place
from tests.penstock.formats.registered import img2dataset, tars

VALUES = [1, 2, 2**53 + 1, 0.5, "x", True, None, 7]


def rows(version):
    """Samples without what says where they lie."""
    apart = ["ordinal", "part", "row", "raw_key", "raw_etag"]
    return version.samples().collect().drop(apart, strict=False).sort("key").to_dicts()


def imported(place, url, **how):
    root = loader.Root(url)
    done = import_place(root, "webdataset", open_store(place), "photos", shard_bytes=700, **how)
    assert done.failures == []
    return root.open("photos"), done


def mixed(folder, values=VALUES, each=2):
    """Write archives whose documents have values of several kinds."""
    for at in range(0, len(values), each):
        some = [
            one
            for i in range(at, min(at + each, len(values)))
            for one in img2dataset.members(i, {"v": values[i], "w": i, "nested": {}})
        ]
        tars.fill(folder, {f"{at}.tar": some})
    return folder


def test_import_of_img2dataset_selects_samples_and_json_stays_a_field(tmp_path):
    tars.fill(tmp_path / "tars", img2dataset.archives(50))
    version, done = imported(tmp_path / "tars", tmp_path / "root")
    assert (done.samples, done.notes, version.fields) == (50, [], ("jpg", "json", "txt"))
    view = version.select("jpg").where("nsfw = false AND width >= 256")
    assert set(view.keys(view.version_ordinals(np.arange(len(view))))) == img2dataset.chosen(50)


@pytest.mark.parametrize("shuffle", [False, True])
def test_import_has_the_columns_of_a_registration(shuffle, tmp_path):
    """Parts are written before the last archives are read, whose values decide the type."""
    place = mixed(tmp_path / "tars")
    registered = register(loader.Root(tmp_path / "other"), "webdataset", place, "photos")
    version, done = imported(place, tmp_path / "root", shuffle=shuffle)
    assert rows(version) == rows(registered.version)
    assert [row["v"] for row in rows(version)] == [
        "1", "2", str(2**53 + 1), "0.5", "x", "true", None, "7",
    ]  # fmt: skip
    assert version.manifest["columns"]["v"]["type"] == "string"
    assert done.notes == list(registered.notes)
    assert done.notes


def test_import_that_goes_on_has_the_columns_of_one_that_was_not_stopped(tmp_path, monkeypatch):
    place = mixed(tmp_path / "tars")
    whole, _ = imported(place, tmp_path / "root")
    write, n = run_import.write_parts, iter(range(99))

    def stop_at_third(*args):
        if next(n) == 2:
            raise KeyboardInterrupt
        return write(*args)

    with monkeypatch.context() as stopped:
        stopped.setattr(run_import, "write_parts", stop_at_third)
        with pytest.raises(KeyboardInterrupt):
            imported(place, tmp_path / "other", workers=1)
    version, done = imported(place, tmp_path / "other")
    assert done.skipped > 0
    assert (version.id, rows(version)) == (whole.id, rows(whole))


def test_import_of_more_archives_keeps_the_types_of_the_dataset(tmp_path):
    place = mixed(tmp_path / "tars", [1, 2])
    assert imported(place, tmp_path / "root")[1].notes == []
    version, done = imported(mixed(place, [1, 2, 3.0, 0.5, "x", "4"]), tmp_path / "root")
    assert [row["v"] for row in rows(version)] == [1, 2, 3, None, None, 4]
    assert any(
        note.startswith("json: 2 values of v are no int64, which the dataset has") for note in done.notes
    )


@pytest.mark.parametrize("shuffle", [False, True])
def test_compressed_archives_have_the_columns_of_plain_ones(shuffle, tmp_path):
    """They are read forward, in parts of several archives each."""
    plain = register(
        loader.Root(tmp_path / "other"), "webdataset", mixed(tmp_path / "tars"), "photos"
    ).version
    compressed(tmp_path / "tars", tmp_path / "packed")
    root = loader.Root(tmp_path / "root")
    how = {"shuffle": shuffle, "shard_bytes": 700}
    done = import_place(root, "webdataset-compressed", open_store(tmp_path / "packed"), "photos", **how)
    assert done.failures == []
    assert rows(root.open("photos")) == rows(plain)
    assert [note.partition(", such as")[0] for note in done.notes] == [f"json: 1 {MIXED}"]
    some = loader.Root(tmp_path / "some")
    options = ColumnarOptions(without=frozenset({"json"}))
    import_place(some, "webdataset-compressed", open_store(tmp_path / "packed"), "photos", options=options)
    assert "v" not in some.open("photos").manifest["columns"]


def compressed(place, folder):
    folder.mkdir()
    for path in place.iterdir():
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))


def test_import_says_what_became_no_column(tmp_path, capsys):
    tars.fill(tmp_path / "tars", {"0.tar": img2dataset.members(0, b"damaged")})
    url = str(tmp_path / "root")
    assert main(["import", "webdataset", str(tmp_path / "tars"), "photos", "--root", url]) == 0
    assert "json: 1 documents are no JSON objects, such as " in capsys.readouterr().out


@pytest.mark.parametrize("format", ["webdataset", "energon"])
def test_export_with_documents_and_columns_comes_back_as_it_was(format, tmp_path):
    """Its own columns come from the member that the export wrote, not from the documents."""
    version, _ = imported(mixed(tmp_path / "tars"), tmp_path / "root")
    store = open_store(tmp_path / "out")
    assert export(version, format, store).lost == []
    for how in ("register", "import"):
        root = loader.Root(tmp_path / how)
        if how == "register":
            back = register(root, format, tmp_path / "out", "photos").version
        else:
            assert import_place(root, format, store, "photos").failures == []
            back = root.open("photos")
        assert back.fields == version.fields
        told = [{name: one.get(name) for name in ("key", "v", "w")} for one in rows(back)]
        assert told == [{name: one[name] for name in ("key", "v", "w")} for one in rows(version)]
        apart = {"raw_etag"}
        assert {*back.manifest["columns"]} - apart == {*version.manifest["columns"]} - apart


def test_energon_place_has_the_columns_of_its_documents_with_an_index_and_without(tmp_path):
    version, _ = imported(mixed(tmp_path / "tars"), tmp_path / "root")
    export(version, "energon", open_store(tmp_path / "out"))
    shutil.rmtree(tmp_path / "out/.penstock")  # as of somebody else
    found = []
    for name in ("index", "headers"):
        found.append(register(loader.Root(tmp_path / name), "energon", tmp_path / "out", "photos").version)
        (tmp_path / "out/.nv-meta/index.sqlite").unlink(missing_ok=True)
    assert rows(found[0]) == rows(found[1])
    assert [row["v"] for row in rows(found[0])] == [row["v"] for row in rows(version)]
