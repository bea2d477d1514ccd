"""The benchmarks' own machinery: protocol, turns, page. No speed is asserted."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import data, meter, page
from benchmarks.__main__ import command_options, parser
from benchmarks.contest import LISTS, PeerError, Runner
from benchmarks.rows import LIMIT, OURS, PEERS, ROWS, TITLES, Aim, Row
from benchmarks.throughput import Bench, measure


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def turn(rate: float, cpu_s: float = 1.0) -> dict[str, Any]:
    return {"samples": rate * 2, "seconds": 2.0, "cpu_s": cpu_s, "memory_bytes": 3 * 2**20}


TURNS = {
    "limit, bare": [turn(1000), turn(500)],
    "penstock, 2 threads": [turn(900), turn(450)],
    "penstock, in process": [turn(300), turn(150)],
    "torch DataLoader, 2 workers": [turn(300), turn(150)],
    "litdata, in process": [turn(600), turn(200)],
}


def test_every_list_of_packages_is_pinned_and_of_a_known_peer() -> None:
    names = {path.stem for path in LISTS.glob("*.txt")}
    assert names <= set(PEERS)
    for name in names:
        lines = (LISTS / f"{name}.txt").read_text().split()
        assert lines
        assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*", line) for line in lines), name
        assert not any(line.startswith("torch==") for line in lines), "a torch of its own takes gigabytes"


def test_every_peer_has_a_module() -> None:
    assert set(PEERS) == {path.stem for path in LISTS.glob("*.py")} - {"__init__", "__main__"}


def test_a_ratio_is_of_one_round() -> None:
    assert page.ratios(TURNS, "penstock, 2 threads", "limit, bare") == [0.9, 0.9]


def test_a_verdict_names_the_fastest_peer_of_its_kind() -> None:
    workers = page.verdict(TURNS, Aim(of="workers", at_least=4, ours="workers"))
    assert workers is not None
    assert "torch DataLoader, 2 workers" in workers
    assert workers.endswith("| 4 | 3.00 | no |")
    inside = page.verdict(TURNS, Aim(of="in process", at_least=0.5, ours="in process"))
    assert inside is not None
    assert "litdata" in inside
    assert inside.endswith("| 0.5 | 0.62 (0.50-0.75) | yes |")
    limit = page.verdict(TURNS, Aim(of=LIMIT, at_least=0.95))
    assert limit is not None
    assert limit.endswith("| 0.95 | 0.90 | no |")
    assert page.verdict(TURNS, Aim(of="spdl", at_least=1)) is None


def test_a_table_says_what_was_measured_and_who_failed() -> None:
    row = Row(name="x", title="X", kind="tokens", samples=1, limit="bare.", bound="the bus.")
    lines = page.throughput(row, TURNS, {"litdata, in process": 4.2}, {"grain": "ImportError: no"}, 2**30)
    (litdata,) = (line for line in lines if line.startswith("| litdata"))
    # 1200 and 400 GiB in one CPU second each
    cells = ["litdata, in process", "400 (200-600)", "0.500", "0.62 (0.50-0.75) x", "4.2", "0.00", "3"]
    assert litdata == f"| {' | '.join(cells)} |"
    assert "| grain | failed: ImportError: no | | | | | |" in lines
    (ours,) = (line for line in lines if line.startswith("| penstock, 2 threads"))
    assert " x |" not in ours


def test_the_page_names_the_command_that_made_it() -> None:
    assert command_options(parser().parse_args([])) == ""
    given = parser().parse_args(["--rows", "raw", "--rounds", "2", "--folder", "x", "--note", "Busy."])
    assert command_options(given) == "--rows raw --rounds 2"
    text = page.whole(
        command="python -m benchmarks --rounds 2",
        machine="a machine",
        note="Busy.",
        versions={"streaming": "1.0"},
        verdicts=["| a | b | 1 | 2 | yes |"],
        sections=["## X", ""],
    )
    assert "Made by `python -m benchmarks --rounds 2` (`make bench`) on a machine. **Busy.**" in text
    assert "mosaicml-streaming 1.0." in text
    assert "| a | b | 1 | 2 | yes |\n\n" in text
    assert "19.2 of a batch of 64" in text


def test_what_chance_gives() -> None:
    assert round(page.uniform(64), 1) == 19.2
    rng = np.random.default_rng(0)
    drawn = [len(set(rng.integers(0, 20, 32).tolist())) for _ in range(2000)]
    assert abs(page.uniform(32) - np.mean(drawn)) < 0.1


@pytest.mark.parametrize("kind", data.MAKERS)
def test_samples_are_known_by_what_is_delivered(kind: str, tmp_path: Path) -> None:
    made = data.make(kind, tmp_path / "made", 24)
    again = data.make(kind, tmp_path / "again", 24)
    assert list(made) == list(again)
    stored = made.samples("stored")
    assert [stored[crc] for crc in data.crcs(list(made))] == list(range(24))
    if kind == "images":
        import simplejpeg

        decoded = np.stack([simplejpeg.decode_jpeg(made[i]) for i in range(24)])
        known = made.samples("decoded")
        assert [known[crc] for crc in data.crcs(decoded)] == list(range(24))
        return
    fields = tuple(map(np.stack, zip(*map(made.arrays, range(24)), strict=True)))
    assert [stored[crc] for crc in data.crcs(fields)] == list(range(24))
    swapped = tuple(field[::-1] if at else field for at, field in enumerate(fields))
    assert len(fields) == 1 or set(data.crcs(swapped)).isdisjoint(stored)


def test_a_peer_that_does_not_import_says_why(log: Path) -> None:
    with Runner("nobody", log) as runner:
        for _ in range(2):
            with pytest.raises(PeerError, match=r"ModuleNotFoundError: .*nobody"):
                runner.ask("hello")


def test_a_peer_whose_environment_is_not_there_says_so(monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    monkeypatch.setattr("benchmarks.contest.ENVIRONMENTS", log.parent)
    with pytest.raises(PeerError, match=r"python -m benchmarks\.peers"):
        Runner("litdata", log)
    (log.parent / "litdata").mkdir()
    (log.parent / "litdata" / "failed.txt").write_text("no wheel")
    with pytest.raises(PeerError, match="does not install: no wheel"):
        Runner("litdata", log)


def test_a_request_that_fails_and_a_process_that_dies_are_answers(log: Path) -> None:
    with Runner("limit", log) as runner:
        assert "tokens" in runner.ask("hello")["rows"]
        with pytest.raises(PeerError, match="AttributeError"):
            runner.ask("dance")
        with pytest.raises(PeerError, match="KeyError: 'x'"):
            runner.ask(
                "open",
                row="tokens",
                label="x",
                task={"kind": "tokens", "batch": 1} | dict.fromkeys(("data", "folder", "scratch"), "no"),
            )
        assert "tokens" in runner.ask("hello")["rows"]
        os.kill(runner.pid, signal.SIGKILL)
        with pytest.raises(PeerError, match="ended with -9"):
            runner.ask("hello")


def test_whoever_has_no_turn_is_stopped(log: Path) -> None:
    with Runner("limit", log) as runner:
        with runner.running():
            runner.ask("hello")
        deadline = time.monotonic() + 30
        while (state := meter.family(runner.pid)[runner.pid][0]) != "T":
            assert time.monotonic() < deadline, state
        with runner.running():
            assert "rows" in runner.ask("hello")
    assert not meter.family(runner.pid)


def test_processor_time_and_memory_are_those_of_all_processes() -> None:
    code = (
        "import os, sys, time\n"
        "held = bytearray(os.urandom(1)) * (50 * 2**20)\n"
        "pid = os.fork()\n"
        "own = bytearray(b'x') * (30 * 2**20)\n"
        "while time.process_time() < 0.3: pass\n"
        "pid and print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        deadline = time.monotonic() + 30
        while meter.cpu_s(process.pid) < 0.5:
            assert time.monotonic() < deadline
        assert len(meter.family(process.pid)) == 2
        used = meter.memory_bytes(process.pid)
        process.stdin.close()
    assert 110 * 2**20 <= used < 150 * 2**20  # the 50 MiB that both see are counted once
    assert meter.cpu_s(process.pid) == 0


def test_a_row_is_measured_end_to_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [LIMIT, OURS, "nobody"], scale=0.01)
    row = ROWS["tokens"]
    turns, spread, failed = measure(bench, row, rounds=2, turn_s=0.05)
    assert not failed
    assert set(bench.failed) == {"nobody"}
    names = {f"{TITLES.get(peer, peer)}, {label}" for peer, label in bench.ways("tokens")}
    assert set(turns) == names
    assert all(len(found) == 2 and page.rate(found[0]) > 0 for found in turns.values())
    assert all(12 < groups <= 20 for groups in spread.values())
    assert len(spread) == len(names) - 1
    text = "\n".join(page.throughput(row, turns, spread, bench.failed, bench.mean_bytes(row)))
    assert "| nobody | failed: ModuleNotFoundError" in text
