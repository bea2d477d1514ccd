"""Names and values that other libraries write: read, or refused by name with a way out that works."""

import json

import pyarrow as pa
import pytest

from loader.errors import Corrupt, InvalidSample, NotSupported
from penstock.formats import litdata
from penstock.formats.archives import energon_index
from penstock.formats.registration.register import register
from tests.penstock.formats.builders import litdata_files, mds_files, tars
from tests.penstock.formats.builders.places import compress, table
from tests.penstock.formats.versions import contents, importing, outcome
from tests.refusals import refusal

PHOTOS = 150


def archive(folder, members, name="a.tar"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(tars.tar_bytes(members))
    return folder


def of_a_mac():
    """Photos in a folder as a Mac's tar stores them: resources beside each, Finder's settings, a zip's folder."""
    members = [("photos/.DS_Store", b"settings")]
    for number in range(PHOTOS):
        members += [(f"photos/._{number:03d}.jpg", b"resources"), (f"photos/{number:03d}.jpg", b"photo")]
    return [*members, ("__MACOSX/photos/._000.jpg", b"resources")]


def test_files_of_macos_are_no_fields(tmp_path):
    place = archive(tmp_path / "place", of_a_mac())
    report = register(importing("webdataset", place, tmp_path / "root")[1], "webdataset", place, "r")
    note = (
        "152 files of macOS (._*, .DS_Store, __MACOSX/) are ignored, such as '__MACOSX/photos/._000.jpg' of"
    )
    assert (report.version.fields, len(report.version)) == (("jpg",), PHOTOS)
    assert [line.startswith(note) for line in report.notes] == [True]
    done, root = importing("webdataset", place)
    assert (root.open("d").fields, done.samples) == (("jpg",), PHOTOS)
    assert [line.startswith(note) for line in done.notes] == [True]
    compress("webdataset", "tar.gz", place, tmp_path / "packed")
    done, root = importing("webdataset-compressed", tmp_path / "packed")
    assert (root.open("d").fields, done.samples) == (("jpg",), PHOTOS)


@pytest.mark.parametrize("format", ["webdataset", "webdataset-compressed"])
def test_titles_with_dots_make_too_many_fields(format, tmp_path):
    members = [(f"photo v1.{number:03d} of Rome.jpg", b"x") for number in range(PHOTOS)]
    place = archive(tmp_path / "place", members)
    if format != "webdataset":
        compress("webdataset", "tar.gz", place, tmp_path / "packed")
        place = tmp_path / "packed"
    why = outcome(format, place)
    assert "file names make more than 100 fields, such as" in why
    assert "('photo v1.100 of" in why
    if format == "webdataset":
        with refusal(
            InvalidSample,
            what="fields",
            given=["098 of rome.jpg", "099 of rome.jpg", "100 of rome.jpg"],
            accepted=100,
        ):
            register(importing("files", place, tmp_path / "root")[1], format, place, "r")


def test_files_with_many_extensions_are_refused(tmp_path):
    for number in range(PHOTOS):
        (tmp_path / f"v1.{number:03d}").write_bytes(b"x")
    with refusal(InvalidSample, what="fields", given=["098", "099", "100"], accepted=100):
        importing("files", tmp_path)


def big_numbers(folder, text):
    columns = {"big": "str_int", "a": "bytes"}
    mds_files.fill(folder, columns, [{"big": text, "a": b"x"}])
    return folder


@pytest.mark.parametrize("text", [str(2**64), str(-(2**63) - 1), "9" * 5000], ids=["above", "below", "far"])
def test_whole_numbers_beyond_64_bits_are_not_supported(text, tmp_path):
    place = big_numbers(tmp_path / "place", text.encode())
    root = importing("mds", place, tmp_path / "root", without=["big"])[1]
    assert [(fields, "big" in row) for fields, row in contents(root.open("d")).values()] == [
        ({"a": b"x"}, False)
    ]
    with refusal(
        NotSupported,
        what="column 'big'",
        where=f"{tmp_path}/place/shard.00000.mds, byte 23",
        accepted="a number of 64 bits",
    ):
        register(root, "mds", place, "r")
    assert len(register(root, "mds", place, "r", without=["big"]).version) == 1
    compress("mds", "gz", place, tmp_path / "packed")
    assert "Leave the column out: --without big" in outcome("mds-compressed", tmp_path / "packed")
    done, _ = importing("mds-compressed", tmp_path / "packed", without=["big"])
    assert done.failures == []


def test_text_that_is_no_number_is_damage(tmp_path):
    place = big_numbers(tmp_path / "place", b"twelve")
    with refusal(
        Corrupt,
        what="column 'big'",
        where=f"{tmp_path}/place/shard.00000.mds, byte 23",
        given="b'twelve'",
        accepted="a number",
    ):
        register(importing("mds", place, tmp_path / "root", without=["big"])[1], "mds", place, "r")


def test_long_cells_are_read(tmp_path):
    text = "x" * 231_072  # the module's own limit is 131,072
    (tmp_path / "a.csv").write_text(f't,n\n{text},1\n"a\nb",2\n')
    _, root = importing("csv", tmp_path, fields={"t": "txt"})
    assert sorted(fields["t.txt"] for fields, _ in contents(root.open("d")).values()) == [
        b"a\nb",
        text.encode(),
    ]


def test_rows_of_many_lines_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.formats.tables.text_tables.MAX_LINE_BYTES", 1000)
    (tmp_path / "a.csv").write_text('t,n\n"' + "x\n" * 600 + '",1\n')
    assert "a row: 1,0" in outcome("csv", tmp_path, fields={"t": "txt"})


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_numbers_beyond_int64_name_an_alternative(format, tmp_path):
    if format == "jsonl":
        (tmp_path / "a.jsonl").write_text(json.dumps({"t": "x", "n": 2**64 - 1}))
    else:
        table(tmp_path / "a.parquet", {"t": ["x"], "n": pa.array([2**64 - 1], pa.uint64())})
    why = outcome(format, tmp_path, fields={"t": "txt"})
    assert "make it a field (--field n=txt), or leave it out (--without n)" in why
    for how in ({"fields": {"t": "txt"}, "without": ["n"]}, {"fields": {"t": "txt", "n": "txt"}}):
        assert importing(format, tmp_path, **how)[0].failures == []


def test_table_chunk_is_bounded_before_it_is_decompressed(tmp_path, monkeypatch):
    rows = [{"n": 0, "text": "t" * 2**20} for _ in range(400)]
    chunk = litdata_files.table_chunk(rows, compression="zstd")
    assert len(chunk) < 10**6
    litdata_files.fill(tmp_path, {"n": "int", "text": "str"}, (len(rows), chunk), ipc_compression="zstd")

    monkeypatch.setattr(litdata, "MOST_CHUNK_BYTES", 2**20)
    pa_before = pa.total_allocated_bytes()
    why = outcome("litdata-compressed", tmp_path)
    assert "decompressed" in why or "at most" in why
    assert pa.total_allocated_bytes() - pa_before < 2**24


def test_splits_share_one_bound_of_names(monkeypatch):
    monkeypatch.setattr(energon_index, "MOST_NAMES", 1000)
    budget = energon_index.NameBudget("split.yaml")
    assert len(list(budget.names(["{1..400}.tar"]))) == 400
    assert len(list(budget.names(["{1..600}.tar"]))) == 600
    with refusal(Corrupt, what="a.tar", where="split.yaml", given=1001, accepted=1000):
        list(budget.names(["a.tar"]))
