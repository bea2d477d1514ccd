"""The benchmarks' own machinery: protocol, turns, page. No speed is asserted."""

import io
import os
import random
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import av
import numpy as np
import pytest

from benchmarks import (
    alone,
    clips,
    data,
    meter,
    page,
    photos,
    sections,
    store,
    throughput,
    video_reads,
)
from benchmarks.__main__ import command_options, parser
from benchmarks.contest import LISTS, ROOT, PeerError, Runner
from benchmarks.contestant import Contestant, Task
from benchmarks.node import __main__ as node
from benchmarks.peers import penstock
from benchmarks.picture import picture
from benchmarks.rows import LIMIT, NODE, ORDER, OURS, PEERS, ROWS, Aim, Row, Store
from benchmarks.throughput import Bench
from tests.servers.patience import until


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
    assert names <= {*PEERS, "video", "transfer"}
    for name in names:
        lines = (LISTS / f"{name}.txt").read_text().split()
        assert lines
        assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*", line) for line in lines), name
        assert not any(line.startswith("torch==") for line in lines), "a torch of its own takes gigabytes"


def test_every_peer_has_a_module() -> None:
    assert set(PEERS) == {path.stem for path in LISTS.glob("*.py")} - {"__init__", "__main__"}


def test_picture_has_a_bar_per_contestant_as_long_as_it_is_fast() -> None:
    svg = ElementTree.fromstring(picture({"X < Y": TURNS}))
    space = "{http://www.w3.org/2000/svg}"
    names = [text.text for text in svg.iter(f"{space}text") if text.get("class") == "n"]
    assert names == ["penstock, 2 threads", "litdata, in process", *list(TURNS)[2:4]]
    bars = [int(bar.get("width", 0)) for bar in svg.iter(f"{space}rect") if bar.get("height") == "14"]
    assert bars == [460, 273, 153, 153]  # of 675, 400, 225 and 225 samples/s


def test_ratio_is_of_one_round() -> None:
    assert page.ratios(TURNS, "penstock, 2 threads", "limit, bare") == [0.9, 0.9]


def test_verdict_names_the_fastest_peer_of_its_kind() -> None:
    workers = page.verdict(TURNS, Aim(of="workers", at_least=4, ours="workers"))
    assert workers == "torch DataLoader, 2 workers | **3.00** | 4 |", "bold: missed"
    inside = page.verdict(TURNS, Aim(of="in process", at_least=0.5, ours="in process"))
    assert inside == "litdata, in process | 0.62 (0.50-0.75) | 0.5 |"
    limit = page.verdict(TURNS, Aim(of=LIMIT, at_least=0.95))
    assert limit == "limit | **0.90** | 0.95 |"
    assert page.verdict(TURNS, Aim(of="spdl", at_least=1)) is None


ROW = Row(name="x", title="X: y", kind="tokens", samples=1, limit="bare.")


def test_table_of_costs_has_the_limit_our_settings_and_the_fastest_peer() -> None:
    turns = {**TURNS, "penstock, in process": [turn(2000), turn(2000)]}
    _, row, limit, default, fastest, peer, _ = page.throughput(ROW, turns, 2**30).split("|")
    # turns of 2 s at these rates: thousands of GiB in one CPU second each
    assert [row, limit, default] == [" X ", " 750 (0.00, 3) ", " 2 threads: 675 (0.00, 3) "]
    assert [fastest, peer] == [" in process: 2,000 (0.00, 3) ", " litdata: 400 (0.00, 3) "]
    assert page.throughput(ROW, TURNS, 2**30).split("|")[4].isspace(), "the default is the fastest setting"


def test_poor_shuffles_are_those_of_peers_in_their_fastest_setting() -> None:
    turns = {**TURNS, "litdata, 2 workers": [turn(9), turn(9)]}
    spread = {"litdata, in process": 4.2, "litdata, 2 workers": 1.0, "torch DataLoader, 2 workers": 19.1}
    assert page.poor_shuffles(ROW, turns, spread) == {"litdata": 4.2}
    assert page.fastest_settings(turns) == ["litdata, in process", "torch DataLoader, 2 workers"]


def test_page_names_the_command_that_made_it() -> None:
    assert command_options(parser().parse_args([])) == ""
    given = parser().parse_args(["--rows", "raw", "--rounds", "2", "--folder", "x", "--note", "Busy."])
    assert command_options(given) == "--rows raw --rounds 2"
    text = page.whole(
        command="python -m benchmarks --rounds 2",
        machine="a machine",
        note="Busy.",
        versions={"streaming": "1.0"},
        verdicts=["| a | b | 2 | 1 |"],
        costs=["| c | d |"],
        shuffles={"litdata": 4.21},
        sections=["## X", ""],
        picture="p.svg",
    )
    assert "](p.svg)" in text
    assert "Made by `python -m benchmarks --rounds 2` (`make bench`) on a machine. **Busy.**" in text
    assert "mosaicml-streaming 1.0." in text
    assert "| a | b | 2 | 1 |\n\n" in text
    assert "| c | d |\n\n" in text
    assert "litdata 4.2. Chance gives 19.2 of a batch of\n64" in text


def test_verdict_on_a_store_is_about_its_figure_and_one_on_ourselves_about_two_ways() -> None:
    turns = {
        "penstock, 2 threads": [turn(100) | {"steady": 300.0}],
        "litdata, 2 workers": [turn(200) | {"steady": 100.0}],
        "webdataset, 2 workers": [turn(25) | {"steady": 150.0}],
    }
    steady = page.verdict(turns, Aim(of="any", at_least=1.5, figure="steady"))
    assert steady == "steady: webdataset, 2 workers | 2.00 | 1.5 |"
    start = page.verdict(turns, Aim(of="any", at_least=4, figure="with its start"))
    assert start == "with its start: litdata, 2 workers | **0.50** | 4 |"
    both = {"penstock, 1 source": [turn(100)], "penstock, 32 sources": [turn(90)]}
    (mixed,) = ROWS["mixture"].aims
    assert page.verdict(both, mixed) == "penstock, 1 source | **0.90** | 0.95 |"


def test_table_of_races_says_when_the_first_batch_came_and_what_was_served() -> None:
    race = turn(100) | {"steady": 300.0, "first_s": 0.5, "bytes": 3e6, "requests": 7}
    racing, resume = ROWS["store"], ROWS["resume"]
    assert isinstance(racing, Store)
    assert isinstance(resume, Store)
    failed = {"litdata, 2 workers": "no"}
    lines = page.store(racing, {"penstock, 2 threads": [race]}, failed, 2**30)
    assert "| penstock, 2 threads | 0.50 | 100 | 300 | 3 | 7 | 0.01 |" in lines
    assert "| litdata, 2 workers | failed: no | | | | | |" in lines
    sentence, _ = page.resumed(resume, {"penstock, 2 threads": [race]}, failed)
    assert sentence.endswith(": penstock, 2 threads 0.50 s, 3 MB; litdata, 2 workers failed: no.")


def test_what_chance_gives() -> None:
    assert round(page.uniform(64), 1) == 19.2
    rng = np.random.default_rng(0)
    drawn = [len(set(rng.integers(0, 20, 32).tolist())) for _ in range(2000)]
    assert abs(page.uniform(32) - np.mean(drawn)) < 0.1


@pytest.mark.parametrize("kind", ["images", "latents", "tokens"])
def test_samples_are_known_by_what_is_delivered(kind: str, tmp_path: Path) -> None:
    made = data.make(kind, tmp_path / "made", 24)
    again = data.make(kind, tmp_path / "again", 24)
    assert list(made) == list(again)
    stored = made.samples("stored")
    assert [stored[known_by] for known_by in data.checksums(list(made))] == list(range(24))
    if kind == "images":
        import simplejpeg

        decoded = np.stack([simplejpeg.decode_jpeg(made[i]) for i in range(24)])
        known = made.samples("decoded")
        assert [known[known_by] for known_by in data.checksums(decoded)] == list(range(24))
        return
    fields = tuple(map(np.stack, zip(*map(made.arrays, range(24)), strict=True)))
    assert [stored[known_by] for known_by in data.checksums(fields)] == list(range(24))
    swapped = tuple(field[::-1] if at else field for at, field in enumerate(fields))
    assert len(fields) == 1 or set(data.checksums(swapped)).isdisjoint(stored)


def test_crop_is_known_by_its_mark_and_its_pixels(tmp_path: Path) -> None:
    made = data.make("images", tmp_path / "made", 24)
    find = photos.Crops(made, "Pillow")
    crops = [photos.crop_by_pillow(made[i]) for i in range(24)]
    assert find(crops) == list(range(24))
    crops[3][100, 100] ^= 1  # another pixel
    crops[5].reshape(-1)[: photos.MARK.size] = crops[6].reshape(-1)[
        : photos.MARK.size
    ]  # another sample's mark
    crops[7] = np.zeros_like(crops[7])
    wrong = [i for i, sample in enumerate(find(crops)) if sample is None]
    assert wrong == [3, 5, 7]


def test_random_box_lies_in_the_photo_and_covers_its_share() -> None:
    draw = random.Random(5).random
    for _ in range(2000):
        top, left, tall, wide = photos.random_box(200, 300, draw)
        assert 0 <= top <= 200 - tall
        assert 0 <= left <= 300 - wide
        assert 0.07 < tall * wide / 60_000 <= 1
        assert 0.7 < wide / tall < 1.4
    assert photos.random_box(1, 100, draw) == (0, 49, 1, 1)  # none of ten boxes fits


def test_window_is_known_by_consecutive_frames(tmp_path: Path) -> None:
    made = data.make("clips", tmp_path / "made", 2)
    find = clips.Windows(made)
    first, last = clips.window(io.BytesIO(made[0]), 0), clips.window(io.BytesIO(made[1]), 48)
    mixed = np.concatenate([first[:8], last[8:]])
    late = np.concatenate([first[1:], last[:1]])
    assert find(np.stack([first, last, mixed, late, first[::-1]])) == [0, 1, None, None, None]
    assert find([first[:15]]) == [None]


def test_peer_that_does_not_import_says_why(log: Path) -> None:
    with Runner("nobody", log) as runner:
        for _ in range(2):
            with pytest.raises(PeerError, match=r"ModuleNotFoundError: .*nobody"):
                runner.ask("hello")


def test_peer_whose_environment_is_not_there_says_so(monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    monkeypatch.setattr("benchmarks.contest.ENVIRONMENTS", log.parent)
    with pytest.raises(PeerError, match=r"python -m benchmarks\.peers"):
        Runner("litdata", log)
    (log.parent / "litdata").mkdir()
    (log.parent / "litdata" / "failed.txt").write_text("no wheel")
    with pytest.raises(PeerError, match="does not install: no wheel"):
        Runner("litdata", log)


def test_request_that_fails_and_a_process_that_dies_are_answers(log: Path) -> None:
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


def test_who_does_not_answer_in_time_is_ended(log: Path) -> None:
    with Runner("limit", log) as runner:
        runner.ask("hello")
        os.kill(runner.pid, signal.SIGSTOP)
        with pytest.raises(PeerError, match=r"no answer to 'hello' within 0\.1 s"):
            runner.ask("hello", within_s=0.1)
    assert not meter.family(runner.pid)


def test_whoever_has_no_turn_is_stopped(log: Path) -> None:
    with Runner("limit", log) as runner:
        with runner.running():
            runner.ask("hello")
        until(lambda: meter.family(runner.pid)[runner.pid][0] == "T")
        with runner.running():
            assert "rows" in runner.ask("hello")
    assert not meter.family(runner.pid)


def test_nobody_outlives_a_killed_benchmark(log: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from benchmarks.contest import Runner\n"
        "runner = Runner('limit', Path(sys.argv[1]))\n"
        "with runner.running(): runner.ask('hello')\n"
        "print(runner.pid, flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(log)], cwd=ROOT, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        try:
            pid = int(process.stdout.readline())
            assert pid in meter.family(pid)
        finally:
            process.kill()
    until(lambda: not meter.family(pid))


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
        until(lambda: meter.cpu_s(process.pid) >= 0.5)
        assert len(meter.family(process.pid)) == 2
        used = meter.memory_bytes(process.pid)
        process.stdin.close()
    assert 110 * 2**20 <= used < 150 * 2**20  # the 50 MiB that both see are counted once
    assert meter.cpu_s(process.pid) == 0


def test_row_is_measured_end_to_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [LIMIT, "nobody"], scale=0.01)
    turns, spread, failed = throughput.measure(bench, ROWS["tokens"], rounds=2, turn_s=0.05)
    assert not failed
    assert bench.failed["nobody"].startswith("ModuleNotFoundError")
    loops, gather = turns
    assert (loops, gather) == (
        "limit, 2 bare loops: gather from the mapped file",
        "limit, a bare gather, in process",
    )
    assert set(spread) == {gather}  # bare loops hand out nothing that could be compared
    assert all(len(found) == 2 and all(page.rate(one) > 0 for one in found) for found in turns.values())
    assert turns[gather][0]["first_s"] > 0
    bench.remove("tokens")
    assert {path.name for path in tmp_path.iterdir()} == {"scratch", "peers.log"}
    assert bench.task(ROWS["tokens"], LIMIT, "x")["data"] == str(tmp_path / "tokens")
    assert (tmp_path / "tokens" / "offsets.npy").exists()


@pytest.mark.parametrize("kind", ["latents", "tokens"])
def test_what_penstock_serves_is_what_was_written(kind: str, tmp_path: Path) -> None:
    contestant = Contestant(penstock)
    data.make(kind, tmp_path / "data", 640)
    contestant.prepare(kind, str(tmp_path / "data"), str(tmp_path / "own"))
    task = {"kind": kind, "data": str(tmp_path / "data"), "folder": str(tmp_path / "own")}
    for label in ("{} threads", "in process"):
        contestant.open(kind, label, task | {"scratch": str(tmp_path), "batch": 32})
        turn = contestant.turn(warm_s=0, seconds=0.05)
        assert turn["samples"] % 32 == 0
        assert turn["samples"] > 0
        found = contestant.check(n=20)
        assert not found["wrong"]
        assert 14 < found["groups"] < 18
        contestant.close()


def test_wrong_samples_are_counted(tmp_path: Path) -> None:
    contestant = Contestant(None)
    made = data.make("tokens", tmp_path / "data", 640)
    good, bad = np.stack([made.arrays(i)[0] for i in range(32)]), np.zeros((32, data.TOKENS), np.uint16)
    contestant.task = Task(data=made, folder=tmp_path, scratch=tmp_path, batch=32)
    contestant.batches = iter([good, bad])
    assert contestant.check(n=2) == {"groups": 0.5, "wrong": 32}  # 32 samples are one twentieth of 640


def test_races_from_a_store_end_to_end(tmp_path: Path) -> None:
    for name, peer in (("store", LIMIT), ("resume", OURS)):
        bench, row = Bench(tmp_path, [peer], scale=0.01), ROWS[name]
        assert isinstance(row, Store)
        turns, spread, failed = store.measure(bench, replace(row, latency_s=0.001), rounds=1)
        assert not failed
        assert set(turns) == {bench.title(peer, label) for peer, label in bench.ways(name)}
        for found in turns.values():
            assert 0 < found[0]["first_s"] <= found[0]["seconds"]
            assert found[0]["requests"] > 0
            assert found[0]["bytes"] > found[0]["samples"]
        assert all(groups > 17 for groups in spread.values())


def test_order_of_a_far_step_is_made_alone() -> None:
    line, _ = alone.first_step(1)
    assert re.search(r" step 10,000,000, of 1e9: \d+\.\d{3} s and \d+ MiB from nothing", line)


def test_every_row_of_the_page_is_known() -> None:
    assert set(ROWS) | {"first_step", "resumed"} == {*ORDER, *NODE}


def test_sections_of_commands_are_in_their_pages() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "benchmarks").rglob("*.py"))
    written = re.findall(r'(?:sections\.write\(|^COMMAND = )"(benchmarks[\w.]*)"', sources, flags=re.M)
    assert sorted(written) == sorted(sections.PAGES)
    for command, name in sections.PAGES.items():
        page = (sections.DOCS / name).read_text()
        assert "\nnew\n" in sections.replaced(page, command, "new")
    assert node.PAGE.is_file()


def test_section_is_replaced_one_level_lower_and_others_stay() -> None:
    begin, end = sections.mark("benchmarks.view"), sections.END
    page = f"# T\n\n{begin}\nold\n{end}\n\n## Other\n\n{sections.mark('benchmarks')}\n{end}\n"
    found = sections.replaced(page, "benchmarks.view", "# A\n\n## B\n")
    assert found == page.replace("old", "## A\n\n### B")
    assert "\n## B\n" in sections.replaced(page, "benchmarks.view", "## B\n")
    for wrong in (page.replace(begin, ""), page.replace(end, "", 1), page + page):
        with pytest.raises(ValueError):
            sections.replaced(wrong, "benchmarks.view", "# A\n")


def test_run_steps_are_measured_end_to_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.run_steps", "--ranks", "2", "--rounds", "1", "--steps", "4"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "page")], cwd=ROOT, capture_output=True, check=True
    )
    text = (tmp_path / "page").read_text()
    assert re.search(r"\n\| 2( \| \d+\.\d\d){3} \| (\*\*)?-?\d+\.\d\d % \(", text), done.stderr


def test_video_reads_have_a_row_of_the_file_that_peers_read(tmp_path):
    """A clip is cut from its original: only one file in two rows compares readers."""
    original = tmp_path / "original.mp4"
    with av.open(str(original), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"preset": "ultrafast", "g": "30"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for level in range(40):
            pixels = np.full((48, 64, 3), 5 * level, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    lines = video_reads.speed(tmp_path, original, rounds=1, n_reads=1)
    rows = [line.split(" | ")[0] for line in lines]
    assert f"| {video_reads.SAME_ORIGINAL}" in rows
    assert f"| {video_reads.SAME_CLIP}" in rows
    assert "| PyAV" in rows
