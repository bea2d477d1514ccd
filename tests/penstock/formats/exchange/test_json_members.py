"""Columns of members `json` in versions with bytes of their own: the same as a registration gives."""

import shutil

import pytest

import loader
from loader.storage import open_store
from penstock.cli import main
from penstock.formats.registration.register import register
from penstock.formats.run_export import export
from tests.penstock.formats.builders import img2dataset, tars
from tests.penstock.formats.builders.places import documents as mixed
from tests.penstock.formats.versions import import_version as whole
from tests.penstock.formats.versions import importing
from tests.penstock.formats.versions import sample_columns as rows


def import_photos(place, url):
    done, root = importing("webdataset", place, url, dataset="photos", shard_bytes=700)
    assert done.failures == []
    return root.open("photos"), done


def test_import_of_more_archives_keeps_the_types_of_the_dataset(tmp_path):
    place = mixed(tmp_path / "tars", [1, 2])
    assert import_photos(place, tmp_path / "root")[1].notes == []
    version, done = import_photos(mixed(place, [1, 2, 3.0, 0.5, "x", "4"]), tmp_path / "root")
    assert [row["v"] for row in rows(version)] == [1, 2, 3, None, None, 4]
    assert any(
        note.startswith("json: 2 values of v are not int64, which the dataset has") for note in done.notes
    )


def test_import_says_what_became_no_column(tmp_path, capsys):
    tars.fill(tmp_path / "tars", {"0.tar": img2dataset.members(0, b"damaged")})
    url = str(tmp_path / "root")
    assert main(["import", "webdataset", str(tmp_path / "tars"), "photos", "--root", url]) == 0
    assert "json: 1 documents are not JSON objects, such as " in capsys.readouterr().out


@pytest.mark.parametrize("format", ["webdataset", "energon"])
def test_export_with_documents_and_columns_comes_back_as_it_was(format, tmp_path):
    """Its own columns come from the member that the export wrote, not from the documents."""
    version, _ = import_photos(mixed(tmp_path / "tars"), tmp_path / "root")
    store = open_store(tmp_path / "out")
    assert export(version, format, store).lost == []
    for how in ("register", "import"):
        if how == "register":
            back = register(loader.Root(tmp_path / how), format, tmp_path / "out", "photos").version
        else:
            back = whole(format, store)
        assert back.fields == version.fields
        told = [{name: one.get(name) for name in ("key", "v", "w")} for one in rows(back)]
        assert told == [{name: one[name] for name in ("key", "v", "w")} for one in rows(version)]
        apart = {"raw_etag"}
        assert {*back.manifest["columns"]} - apart == {*version.manifest["columns"]} - apart


def test_energon_place_has_the_columns_of_its_documents(tmp_path):
    version, _ = import_photos(mixed(tmp_path / "tars"), tmp_path / "root")
    export(version, "energon", open_store(tmp_path / "out"))
    shutil.rmtree(tmp_path / "out/.penstock")  # as of somebody else
    found = []
    for name in ("index", "headers"):
        found.append(register(loader.Root(tmp_path / name), "energon", tmp_path / "out", "photos").version)
        (tmp_path / "out/.nv-meta/index.sqlite").unlink(missing_ok=True)
    assert rows(found[0]) == rows(found[1])
    assert [row["v"] for row in rows(found[0])] == [row["v"] for row in rows(version)]
