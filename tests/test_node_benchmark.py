"""The benchmark of a node: its tables, its time, its place on the pages. No speed is asserted."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import contest, sections, throughput
from benchmarks.contest import ROOT
from benchmarks.data import Data
from benchmarks.node import __main__ as command
from benchmarks.node import around, measure, page
from benchmarks.node.training import Trainer
from benchmarks.peers import penstock
from benchmarks.rows import AS_IT_COMES, OURS, ROWS
from benchmarks.sections import END
from benchmarks.throughput import Bench

DEFAULT = f"{OURS}, {AS_IT_COMES}"


def turn(rate: float, **more: Any) -> dict[str, Any]:
    return {"samples": rate, "seconds": 1.0, "cpu_s": 0.5, "kernel_s": 0.1, "memory_bytes": 2**20} | more


TABLE = measure.Table(
    row=ROWS["crops"],
    workers=4,
    turns={
        "limit, 4 bare loops": [turn(1000), turn(2000)],
        "grain, 4 workers": [turn(400, first_s=1.0), turn(400, first_s=1.0)],
        "penstock, 4 threads": [turn(600, first_s=0.3, choice="threads, 4")] * 2,
        DEFAULT: [
            turn(900, first_s=0.5, choice="processes, 4"),
            turn(900, first_s=0.5, choice="processes, 4"),
        ],
    },
    failed={"litdata, 4 workers": "no time was left"},
)
TRAINING = measure.Training(
    model="ViT-Ti",
    device="cuda",
    batch=256,
    workers=4,
    turns={DEFAULT: [{"lost": 0.05, "step_s": 0.03, "base_s": 0.0285, "wait_s": 0.001, "move_s": 0.0007}]},
    failed={"spdl": "ImportError: no"},
)


def test_table_of_defaults_compares_with_the_limit_the_best_choice_and_the_fastest_peer() -> None:
    lines = page.defaults([TABLE], [TRAINING], {"around_us": 41.2, "copy_us": 8.7})
    photos = next(line for line in lines if line.startswith("| Photos"))
    cells = [cell.strip() for cell in photos.strip("|").split("|")]
    assert cells == ["Photos", "900", "0.68", "1.50 (4 threads)", "2.25 (grain, 4 workers)", "0.50"]
    assert "takes 41 us of the processor" in "".join(lines)
    trained = next(line for line in lines if line.startswith(f"| {DEFAULT}"))
    assert trained == f"| {DEFAULT} | 5.0 % | 30.0 | 28.5 | 1.0 | 0.7 |  |"
    assert "| spdl | left out: ImportError: no | | | | | |" in lines


def test_full_table_lists_defaults_first_and_the_limit_last() -> None:
    names = [
        line.split(" | ")[0]
        for line in page.full(TABLE)
        if line.startswith(("| penstock", "| grain", "| li"))
    ]
    assert names == [
        f"| {DEFAULT}",
        "| penstock, 4 threads",
        "| grain, 4 workers",
        "| limit, 4 bare loops",
        "| litdata, 4 workers",
    ]


def test_section_of_a_machine_is_replaced_and_others_stay() -> None:
    begin, two = page.mark(4), f"{page.mark(2)}\nkept\n{END}"
    text = f"a\n{two}\n{begin}\nold\n{END}\nz\n{END}"
    put = page.put(text, 4, "new")
    assert put == text.replace("old", "new")
    assert [section.splitlines()[1] for section in page.sections_of(put)] == ["kept", "new"]
    behind = sections.mark("benchmarks")
    added = page.put(f"# T\n\n{behind}\n", 8, "new")
    assert added == f"# T\n\n{page.mark(8)}\nnew\n{END}\n\n{behind}\n"


def test_readme_and_page_hold_the_same_speed() -> None:
    text, benchmarks = (ROOT / "README.md").read_text(), (ROOT / "docs" / "benchmarks.md").read_text()
    (summary,) = (one for one in page.sections_of(benchmarks) if one.startswith(page.mark(page.README_CORES)))
    assert page.readme(text, summary) == text
    faster = re.sub(r"(?m)^\| Photos \| [\d,]+", "| Photos | 99,999", summary)
    assert "99,999 samples/s on two cores" in page.readme(text, faster)
    with pytest.raises(ValueError):
        page.readme(text, "nothing")


def test_time_is_shared_out_by_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.0, 0.0, 50.0, 120.0])
    monkeypatch.setattr(measure.time, "monotonic", lambda: next(seconds))
    clock = measure.Clock(100, [4, 1, 1])
    assert clock.share_s() == pytest.approx(400 / 6)
    assert clock.share_s() == 25  # half of what is left
    assert clock.share_s() == 0


def test_smaller_tables_have_only_those_with_workers() -> None:
    known = {"penstock": {"version": "", "rows": {"crops": [AS_IT_COMES, "{} threads", "in process"]}}}
    assert measure.with_workers(known)["penstock"]["rows"]["crops"] == ["{} threads"]


def test_packages_of_peers_come_from_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "webdataset.py").write_text('raise ImportError("from the folder")\n')
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(contest, "SITE", [])
    assert contest.failure_of("nobody") == ""
    contest.use_site(tmp_path)
    bench = Bench(tmp_path, ["webdataset"])
    assert bench.failed == {"webdataset": "ImportError: from the folder"}


def test_earlier_checkout_is_one_more_contestant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(contest, "CHECKOUTS", {})
    with pytest.raises(contest.PeerError, match="run `make setup` there first"):
        contest.compare_with(tmp_path)
    peers = tmp_path / "benchmarks" / "peers"
    peers.mkdir(parents=True)
    (tmp_path / "loader" / "native").mkdir(parents=True)
    (tmp_path / "loader" / "native" / "_native.abi3.so").touch()
    (peers / "__init__.py").touch()
    (peers / "penstock.py").write_text('raise ImportError("the earlier one")\n')
    for module in ("__init__", "contestant", "clips", "meter", "photos", "data", "rows"):
        copy = tmp_path / "benchmarks" / f"{module}.py"
        copy.write_bytes((ROOT / "benchmarks" / f"{module}.py").read_bytes())
    contest.compare_with(tmp_path)
    bench = Bench(tmp_path, [contest.BEFORE])
    assert bench.failed == {contest.BEFORE: "ImportError: the earlier one"}


def test_speeds_are_compared_with_those_of_an_earlier_checkout() -> None:
    turns = {
        DEFAULT: [turn(900, first_s=0.5), turn(1100, first_s=0.5)],
        f"{contest.BEFORE}, {AS_IT_COMES}": [turn(1000, first_s=0.5), turn(1000, first_s=0.5)],
    }
    table = measure.Table(row=ROWS["crops"], workers=4, turns=turns, failed={})
    assert "| penstock, as it comes | 1.000 (0.900-1.100) | 1.010 (0.909-1.111) |" in page.full(table)
    assert page.changes(TABLE) == []


def test_trainer_counts_what_its_device_loses(tmp_path: Path) -> None:
    contestant = Trainer(penstock)
    bench = Bench(tmp_path, [], scale=0.004)
    row = ROWS["crops"]
    contestant.prepare("images", str(bench.data(row)), str(tmp_path / "images-penstock"))
    contestant.open("training", AS_IT_COMES, bench.task(row, OURS, AS_IT_COMES) | {"batch": 4})
    found = contestant.train("small", 0.01)
    assert found["lost"] == 1 - found["base_s"] / found["step_s"]
    assert 0 < found["wait_s"] + found["move_s"] < found["step_s"]
    assert contestant.check(2)["wrong"] == 0
    contestant.close()


def test_work_around_a_decoder_holds_its_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(around, "SAMPLES", 128)
    bench = Bench(tmp_path, [], scale=0.001)
    penstock.prepare(Data("images", bench.data(ROWS["crops"])), tmp_path / "root")
    found = around.measured(str(tmp_path / "root"))
    assert 0 < found["copy_us"] < found["around_us"]


def test_node_is_measured_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "SETTLE_S", 0.1)
    monkeypatch.setattr(measure, "TURN_S", 0.1)
    options = ["--rows", "tokens", "--peers", f"{OURS},nobody", "--workers", "1", "--rounds", "1"]
    lines = tmp_path / "lines"
    given = command.parser().parse_args(
        [*options, "--seconds", "1", "--scale", "0.01", "--lines", str(lines)]
    )
    summary, whole = command.run(given, Bench(tmp_path, given.peers.split(","), given.scale))
    assert "| Tokens | " in summary
    assert "nobody is left out: ModuleNotFoundError" in whole
    assert "left out: no time was left" in whole
    turns = [json.loads(line) for line in lines.read_text().splitlines()]
    assert turns[0]["contestant"] == DEFAULT
    assert turns[0]["samples"] > 0
