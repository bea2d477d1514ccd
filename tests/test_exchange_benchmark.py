"""The machinery of `python -m benchmarks.exchange`. No speed is asserted."""

import re
import sys
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.data import Data, make
from benchmarks.exchange import formats, places, rows, tables, tars
from benchmarks.exchange.__main__ import page_of
from penstock.formats.registry import IMPORTED, REGISTERED


def test_archives_of_numpy_are_those_of_tarfile(tmp_path: Path) -> None:
    place = tars.make(tmp_path / "tars", 25, 10, {"jpg": 700, "cls": 2})
    assert [path.name for path in sorted(place.iterdir())] == ["00000.tar", "00001.tar", "00002.tar"]
    with tarfile.open(place / "00002.tar") as archive:
        found = [(member.name, member.size) for member in archive]
    assert found[:2] == [("000000020.jpg", 700), ("000000020.cls", 2)]
    assert len(found) == 10


def test_table_has_row_groups_of_1_mib(tmp_path: Path) -> None:
    make("latents", tmp_path / "data", 400)
    data = Data("latents", tmp_path / "data")
    place = tables.make(data, tmp_path / "table")
    metadata = [pq.read_metadata(path) for path in sorted(place.iterdir())]
    assert (len(metadata), sum(one.num_rows for one in metadata)) == (tables.FILES, 400)
    assert 0.9 * 2**20 < metadata[0].row_group(0).total_byte_size < 1.1 * 2**20


def test_registration_is_measured_end_to_end(tmp_path: Path) -> None:
    (tmp_path / "roots").mkdir()
    found = list(rows.registration(tmp_path, rows.Sizes(samples=1000, rounds=1)))
    assert found[0].goal == 0.03
    found += rows.megatron(tmp_path, rows.Sizes(documents=300, rounds=1))
    text = page_of(found, "python -m benchmarks.exchange", "a machine", "Busy.")
    assert "Made by `python -m benchmarks.exchange` on a machine. Busy." in text
    assert text.count("\n- register 1,000 samples x 3 members in 1 tars: ") == 1
    assert "\n- register 300 documents of Megatron: " in text


def test_every_format_that_can_be_imported_has_a_place() -> None:
    assert set(places.MAKERS) == {*REGISTERED, *IMPORTED}


def test_format_without_its_library_has_a_row_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = {name: places.MAKERS[name] for name in ("webdataset", "lance")}
    monkeypatch.setattr(places, "MAKERS", some)
    monkeypatch.setitem(sys.modules, "lance", None)
    found = list(formats.formats(tmp_path, rows.Sizes(photos=3, rounds=1)))
    assert [found[0].what, found[2].what] == ["webdataset", "webdataset at 20 ms"]
    assert str(found[1]) == "  - import lance: import of lance halted; None in sys.modules: not measured"
    assert [len(row.values) for row in found] == [1, 0, 1]
    text = page_of(found, "python -m benchmarks.exchange", "a machine", "")
    assert re.search(
        r"\nAn import takes, in minutes a TB: webdataset( at 20 ms)? \d+, webdataset( at 20 ms)? \d+\.\n",
        text,
    )
