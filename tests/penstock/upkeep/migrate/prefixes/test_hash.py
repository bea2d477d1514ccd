"""Which hash a migration of a plain prefix notes, what it is compared with, and what it proves."""

import hashlib
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from google_crc32c import value

import loader
from loader.storage import open_store
from penstock.cli import main
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.migrate.prefix_copy import FOLDER, migrate_prefix
from penstock.upkeep.migrate.prefix_verify import verify_prefix

RIGHT = {
    "sha256": lambda data: hashlib.sha256(data).hexdigest(),
    "crc32c": lambda data: f"{value(data):08x}",
}


@pytest.fixture
def places(tmp_path):
    return open_store(str(tmp_path / "from")), open_store(str(tmp_path / "to"))


def fill(store, count=5):
    """Keys and bytes of what there is to copy."""
    made = {f"{i:03d}.bin": bytes([i % 251]) * i for i in range(count)}
    for key, data in made.items():
        store.put(key, data)
    return made


def manifest(store, hash="sha256"):
    """key -> that hash, of all pieces of the manifest."""
    keys = [info.key for info in store.list(FOLDER) if info.key.endswith(".parquet")]
    tables = [pq.read_table(Path(store.url) / key) for key in keys]
    return {row["key"]: row[hash] for table in tables for row in table.to_pylist()}


def right_hashes(made, hash="sha256"):
    return {key: RIGHT[hash](data) for key, data in made.items()}


def test_hash_may_be_crc32c(places, monkeypatch, capsys):
    """Noted as such, kept by later runs, and what the target is held against; whatever way the bytes went."""
    monkeypatch.setattr("penstock.upkeep.copying.copy_one.PIECE_BYTES", 100)
    monkeypatch.setattr("penstock.upkeep.copying.copy_one.HELD_BYTES", 200)
    source, target = places
    made = fill(source, 260)
    run = ["migrate", "run", target.url, "--from", source.url]
    assert main([*run, "--hash", "crc32c"]) == 0
    assert manifest(target, "crc32c") == right_hashes(made, "crc32c")
    assert set(manifest(target).values()) == {""}
    source.put("new", b"new")
    assert main(run) == 0
    assert manifest(target, "crc32c") == {**right_hashes(made, "crc32c"), "new": ""}
    assert manifest(target)["new"] == RIGHT["sha256"](b"new")
    assert "were accepted by size" not in capsys.readouterr().out
    verdict = verify_prefix(source, target, full=True)
    assert (verdict.problems, verdict.read) == ({}, len(made) + 1)
    target.put("004.bin", b"abcd")  # as long
    (problem,) = verify_prefix(source, target, full=True).problems.values()
    now, then = (f"crc32c {RIGHT['crc32c'](data)}" for data in (b"abcd", made["004.bin"]))
    assert problem == f"{now} at the target, {then} when it was copied"


@pytest.mark.parametrize("then", ["sha256", "crc32c"])
def test_what_was_copied_with_sha256_is_compared_by_that(places, then):
    source, target = places
    made = fill(source)
    migrate_prefix(source, target, Pace())
    source.put("003.bin", b"ano")
    source.put("004.bin", made["004.bin"])  # written again, the same
    report = migrate_prefix(source, target, Pace(), hash=then)
    assert list(report.failures) == ["003.bin"]
    report = migrate_prefix(source, target, Pace(), hash=then, replace=True)
    assert (report.failures, report.copied) == ({}, 1)
    assert manifest(target) == right_hashes({**made, "003.bin": b"ano"})


@pytest.mark.parametrize("then", ["sha256", "crc32c"])
def test_equal_crc32c_proves_nothing(places, then):
    """Files that end with their own CRC-32C all have one and the same."""
    source, target = places
    old, new = (data + value(data).to_bytes(4, "little") for data in (b"old data", b"the data of today"))
    assert value(old) == value(new)
    source.put("chunk", old)
    migrate_prefix(source, target, Pace(), hash="crc32c")
    source.put("chunk", new)
    report = migrate_prefix(source, target, Pace(), hash=then)
    assert f"or written again: crc32c {value(old):08x} then, {then} " in report.failures["chunk"]
    assert target.get("chunk").data == old
    report = migrate_prefix(source, target, Pace(), hash=then, replace=True)
    assert (report.failures, report.copied) == ({}, 1)
    assert target.get("chunk").data == new
    assert manifest(target, then) == {"chunk": RIGHT[then](new)}


def test_what_former_releases_noted_is_read(places):
    """A manifest and lines without a column of CRC-32C."""
    source, target = places
    made = fill(source)
    migrate_prefix(source, target, Pace())
    (piece,) = [info.key for info in target.list(FOLDER) if info.key.endswith(".parquet")]
    path = Path(target.url) / piece
    pq.write_table(pq.read_table(path).drop_columns(["crc32c"]), path)
    source.put("new", b"new")
    target.put("new", b"new")
    (info,) = source.list("new")
    line = {"path": "new", "nbytes": 3, "sha256": RIGHT["sha256"](b"new"), "etag": info.etag}
    target.put(f"{FOLDER}0-000000.jsonl", json.dumps(line).encode())
    assert verify_prefix(source, target, full=True).problems == {}
    report = migrate_prefix(source, target, Pace())
    assert (report.copied, report.skipped, report.unhashed) == (0, len(made) + 1, 0)
    assert manifest(target) == right_hashes({**made, "new": b"new"})


@pytest.mark.parametrize("option", [["--update"], ["--hash", "crc32c"]])
def test_options_of_plain_prefixes_are_refused_for_a_root(tmp_path, capsys, option):
    root = loader.Root(str(tmp_path / "root"))
    root.create()
    assert main(["migrate", "run", str(tmp_path / "mirror"), "--root", root.url, *option]) == 2
    assert f"{option[0]} is for plain prefixes" in capsys.readouterr().err
    assert not (tmp_path / "mirror").exists()
