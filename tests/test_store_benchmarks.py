"""The machinery of `python -m benchmarks.stores`. No speed is asserted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from google_crc32c import value

from benchmarks.contest import ROOT, Runner
from benchmarks.stores import carry, migration, reads, transfers
from benchmarks.stores.__main__ import fitting, head, parser
from benchmarks.stores.clients import CLIENTS, Client
from benchmarks.stores.servers import APART, BUCKET, SHARED, cores
from loader.storage import open_store
from tests.servers.processes import python

DATA = bytes(range(256)) * 1024


@pytest.fixture(scope="module")
def endpoint(s3):
    """A server with one object, "object", in a bucket of the benchmarks' name."""
    assert BUCKET == "bucket"
    open_store(f"s3://{BUCKET}", s3).put("object", DATA)
    return s3["endpoint_url"]


@pytest.mark.parametrize("name", ["penstock", "obstore", "boto3"])
def test_client_reads_what_is_there(endpoint, name):
    client = Client(name)
    assert client.open(endpoint, "object", len(DATA), DATA[-16:].hex()) == {}
    assert client.read(1000, 24) == DATA[1000:1024]
    turn = client.turn(2, 64, 0.01)
    assert turn["samples"] >= 2
    assert turn["seconds"] > 0


def test_client_that_reads_another_object_is_told(endpoint):
    answer = Client("penstock").open(endpoint, "object", len(DATA), "00" * 16)
    assert "where 0000" in answer["error"]


def test_every_client_answers_as_a_process(endpoint, tmp_path: Path):
    with Runner("s3fs", tmp_path / "log", module="benchmarks.stores.clients") as runner:
        expected = DATA[-16:].hex()
        assert runner.ask("open", endpoint=endpoint, key="object", nbytes=len(DATA), expected=expected) == {}
        assert runner.ask("turn", concurrency=1, size=64, seconds=0.01)["samples"] >= 1
    assert set(CLIENTS) == {"penstock", "obstore", "boto3", "s3fs"}


def test_files_go_and_come_back_with_the_same_digests(s3, tmp_path: Path):
    here, back = tmp_path / "here", tmp_path / "back"
    here.mkdir()
    back.mkdir()
    for number in range(3):
        (here / f"{number}.bin").write_bytes(DATA[number:])
    store = open_store(f"s3://{BUCKET}/carried", s3)
    sent = carry.up(store, here, 2)
    assert carry.down(store, back, 2) == sent
    assert carry.up(store, here, 2, "crc32c")["0.bin"] == f"{value(DATA):08x}"
    assert {path.name: path.read_bytes() for path in back.iterdir()} == {
        f"{n}.bin": DATA[n:] for n in range(3)
    }
    store.close()


def turn(rate: float) -> dict[str, float]:
    return {"samples": rate * 2, "seconds": 2.0, "cpu_s": 1.0}


def test_page_says_what_was_reached():
    of = {
        "penstock": [turn(400), turn(800)],
        "s3fs": [turn(100), turn(150)],
        "obstore": [turn(800), turn(800)],
    }
    assert list(reads.rows("nginx", {reads.SMALL: of})) == [
        "| 64 KiB | 600; 15.4 s | **0.75 (0.50-1.00)**; 10.2 s | 4.67 (4.00-5.33); 68.3 s |  |"
    ], "bold: missed"
    (row,) = reads.rows("nginx-tls", {reads.PAGE: of})
    assert row.startswith("| 1024 KiB over TLS | 600; 1.0 s |")
    assert "obstore takes 1.5 times the processor time" in reads.HEAD
    rates = {"penstock": 4, "penstock-crc32c": 6, "s5cmd": 5, "rclone": 5}
    carried = {f"{name} {way}": [turn(rate)] for name, rate in rates.items() for way in transfers.WAYS}
    rows = list(transfers.section(carried, 3))
    assert "| down | 268; 2.00 s | 403; 1.33 s | **0.80**; 1.60 s | 0.80; 1.60 s |" in rows, "one has an aim"


def test_cores_that_are_taken_apart_are_given_back():
    before = os.sched_getaffinity(0)
    with cores(SHARED) as prefix:
        assert prefix == []
    with cores(APART) as prefix:
        found = subprocess.run(
            [*prefix, sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"],
            capture_output=True,
            text=True,
            check=True,
        )
    assert found.stdout.split() == [str(max(before))]
    assert os.sched_getaffinity(0) == before


def test_page_names_its_command():
    given = parser().parse_args(["--rounds", "2", "--files", "7", "--note", "It was busy."])
    text = "\n".join(head(given))
    assert "`python -m benchmarks.stores --rounds 2 --files 7`" in text
    assert "It was busy." in text


def test_no_more_files_than_fit(tmp_path: Path):
    assert fitting(1, tmp_path) == 1
    assert 1 <= fitting(10**9, tmp_path) < 10**9


def test_unknown_part_is_a_mistake():
    done = python("-m", "benchmarks.stores", "--parts", "nothing", cwd=ROOT)
    assert done.returncode == 2
    assert "nothing" in done.stderr


def test_program_is_timed_with_its_own_peak():
    held = [sys.executable, "-c", "held = bytearray(b'x' * 64 * 2**20); print(1)"]
    small = [sys.executable, "-c", "print(1)"]
    peaks = [migration._timed(command, 1, {})["peak_bytes"] for command in (held, small)]
    assert peaks[0] - peaks[1] > 48 * 2**20
    with pytest.raises(migration.PeerError, match="ended with 3"):
        migration._timed([sys.executable, "-c", "raise SystemExit(3)"], 1, {})


def test_page_says_what_a_migration_reached():
    of = {
        f"{program} {size}, {had}": [turn(rate) | {"peak_bytes": 250 * 2**20}]
        for program, rate in (("penstock", 4), ("penstock-crc32c", 6), ("rclone", 5), (migration.HASHED, 2))
        for size in migration.SIZES
        for had in (SHARED, APART)
    }
    of |= {
        f"import, {had}": [turn(1) | {"seconds": 0.5, "peak_bytes": 100 * 2**20}] for had in (SHARED, APART)
    }
    aims, _, _, *rows = migration.verdicts(of)
    assert aims.startswith("Aims: 1.0 of rclone's speed, and at most 300 MiB above the import")
    assert len(rows) == 8
    assert rows[0] == f"| {SHARED} | 64 MiB | sha256 | **0.80** | 1.07 | 150 |", (
        "two seconds, of which half a one"
    )
    assert rows[1].startswith(f"| {SHARED} | 64 MiB | crc32c | 1.20 |")
    page = "\n".join(migration.section(of, 3))
    assert f"| {SHARED} | 64 MiB | penstock | 268 |" in page
    assert "\n| | | penstock-crc32c | 403 |" in page
    assert f"\n| | | {migration.HASHED} | 134 |" in page
    assert page.count("| 250 | 2.00 |") == 2, "to the two passes that give hashes"
