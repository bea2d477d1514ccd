"""Imports and registrations of every format name the files that they do not read."""

import shutil

import pytest

import loader
from fuzz.places import PLACE_FORMATS
from loader.storage import open_store
from penstock.formats.importer import NO_OPTIONS, ColumnarOptions
from penstock.formats.registration.register import register
from penstock.formats.registry import REGISTERED, TABLES
from penstock.formats.run_import import import_place

NOTE = "files that are not read, because "


def unread_notes(notes):
    return [note for note in notes if note.startswith(NOTE)]


@pytest.mark.parametrize("format", [name for name in PLACE_FORMATS if name != "files"])
def test_unread_files_are_named_and_only_these(format_places, tmp_path, format):
    """Every object of a whole place is read or known; two others and a README beside them are not."""
    place = tmp_path / "place"
    shutil.copytree(format_places / format, place)
    options = ColumnarOptions(fields={"name": "txt"}) if format == "csv" else NO_OPTIONS
    with loader.Root(tmp_path / "root") as root:
        done = import_place(root, format, open_store(place), "d", options=options)
        assert (done.failures, unread_notes(done.notes)) == ([], [])
        (place / "README.md").write_text("x")
        (place / "calibration.dat").write_text("x")
        (place / "meta").mkdir(exist_ok=True)
        (place / "meta/subset.dat").write_text("x")
        expected = [f"{NOTE}{format} does not know them: calibration.dat, meta/subset.dat"]
        done = import_place(root, format, open_store(place), "d", options=options)
        assert (done.failures, unread_notes(done.notes)) == ([], expected)
        if format in REGISTERED | TABLES:
            assert unread_notes(register(root, format, str(place), "registered").notes) == expected


@pytest.mark.parametrize(
    ("format", "name"),
    [
        ("rlds", "dataset_statistics_1a2b.json"),
        ("energon", ".nv-meta/sample_loader.py"),
        ("hf", "labels.json"),
        ("mds", "stats.json"),
        ("rosbag", "two/calibration.yaml"),
        ("webdataset", "wids.json"),
        ("megatron", "vocabulary.json"),
    ],
)
def test_side_file_of_a_format_is_named(format_places, tmp_path, format, name):
    """Side files that libraries of these formats write, and that no import reads."""
    place = tmp_path / "place"
    shutil.copytree(format_places / format, place)
    (place / name).write_text("{}")
    with loader.Root(tmp_path / "root") as root:
        done = import_place(root, format, open_store(place), "d")
    assert unread_notes(done.notes) == [f"{NOTE}{format} does not know them: {name}"]
