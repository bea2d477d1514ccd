"""The records that an import writes for a repeated run are collected once its version is published."""

import pytest

import loader
from benchmarks.collect import HOUR_US
from loader.errors import Conflict
from loader.storage import open_store
from penstock.formats.importer import ColumnarOptions
from penstock.formats.run_import import import_place
from penstock.upkeep.gc import Options, collect
from tests.refusals import refusal

LINES = '{"text": "a"}\n{"text": "b", "more": {}}\n'


def import_root(root, place):
    options = ColumnarOptions(fields={"text": "txt"})
    return import_place(root, "jsonl", open_store(place), "d", options=options, shard_bytes=1, workers=1)


def import_records(path):
    return sorted(one.relative_to(path).as_posix() for one in path.glob("data/*/imported/*.json"))


@pytest.fixture
def place(tmp_path):
    (tmp_path / "place").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"place/{name}.jsonl").write_text(LINES)
    return tmp_path / "place"


def test_records_of_a_published_import_are_collected(place, tmp_path):
    root = loader.Root(tmp_path / "root")
    import_root(root, place)
    records = [key for key in import_records(tmp_path / "root") if "manifest-" not in key]
    assert records
    report = collect(root, Options(name="c"), now_us=0)
    assert report.to_json()["foreign"]["objects"] == 0
    for hour in range(0, 400, 20):
        collect(root, Options(name="c"), apply=True, now_us=hour * HOUR_US)
    assert [key for key in import_records(tmp_path / "root") if "manifest-" not in key] == []
    assert len(root.open("d")) == 4
    assert import_root(root, place).same == 2


def test_records_of_an_unfinished_import_stay(place, tmp_path, monkeypatch):
    root = loader.Root(tmp_path / "root")

    def raise_conflict(*args, **kwargs):
        raise Conflict("killed", what="import")

    with monkeypatch.context() as patch:
        patch.setattr("penstock.formats.run_import.publish_registered", raise_conflict)
        with refusal(Conflict, what="import"):
            import_root(root, place)
    records = import_records(tmp_path / "root")
    assert records
    for hour in (1, 2):
        report = collect(root, Options(name="c"), apply=True, now_us=hour * HOUR_US)
    assert (report.to_json()["foreign"]["objects"], import_records(tmp_path / "root")) == (0, records)
    assert import_root(root, place).skipped
