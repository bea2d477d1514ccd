"""Usage of runs: jobs of Slurm found by their record, local starts by their spans."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import loader
from penstock.cli import main
from penstock.train.goodput.run_usage import launcher_usage, slurm_usage
from penstock.train.launch.launcher import Span
from penstock.train.launch.local_runs import LocalRuns
from penstock.train.launch.run_log import RankStart
from penstock.train.run_folder import RunFolder
from penstock.train.run_spec import RunSpec
from penstock.usage import sacct
from penstock.usage.sacct import AccountedJob, parse_jobs
from penstock.usage.totals import usage_row

S, H = 1_000_000, 3600 * 1_000_000
VERSIONS = [
    {"source": "photos", "id": "5f", "name": "photos@3"},
    {"source": "text", "id": "6a", "name": "text@1"},
]
LOGIN = """\
import shlex, sys
words = shlex.split(sys.argv[1])
if words[0] == "sinfo":
    print("m1|gpu:a100:8\\nm2|gpu:a100:8")
    sys.exit()
assert words[3] == "sacct"
delimiter = next(word for word in words if word.startswith("--delimiter=")).partition("=")[2]
sys.stdout.write(open({lines!r}).read().replace("|", delimiter))
"""
"""A login node whose sacct is a file."""


def line(job_id: int, state: str, begun_s: int, ended_s: int | str, user: str = "ann") -> str:
    times = f"{begun_s - 600}|{begun_s}|4|m[1-4]"
    return f"{job_id}|x|{user}|vision|normal|batch|{state}|{times}|gres/gpu=8|gres/gpu=8|60|None|{ended_s}"


class Clock:
    """The record's clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._set = lambda at_s: monkeypatch.setattr("time.time_ns", lambda: int(at_s * 1e9))

    def start(self, folder: RunFolder, launcher: str, at_s: int, steps: tuple[int, int], end: str) -> None:
        """Record a start: 100 s until its first batch, one step in 10 s."""
        self._set(at_s + 50)
        attempt = folder.begin_attempt({"launcher": launcher, "user": "ann"})
        self._set(at_s + 100)
        folder.put_event(attempt, 0, "first_batch", steps[0], {"versions": VERSIONS})
        self._set(at_s + 100 + 10 * (steps[1] - steps[0]))
        folder.put_event(attempt, 1, end, steps[1], {})


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    with loader.Root(tmp_path / "root") as root:
        root.create()
    return RunFolder(loader.Root(tmp_path / "root").store, "big-7")


@pytest.fixture
def two_starts(folder: RunFolder) -> Iterator[RunFolder]:
    """Two starts of job 12: 90 steps, of which 30 are done again; and a job 12 of another cluster."""
    with pytest.MonkeyPatch.context() as patched:
        clock = Clock(patched)
        clock.start(folder, "slurm 12", 10_000, (0, 90), "failed")
        clock.start(folder, "slurm 12", 20_000, (60, 150), "ended")
        other = RunFolder(folder.store, "elsewhere")
        clock.start(other, "slurm 13", 900_000, (0, 90), "ended")
    return folder


JOBS = [
    line(12, "REQUEUED", 10_000, 11_000),
    line(12, "COMPLETED", 20_000, 21_000),
    line(13, "FAILED", 30_000, 31_000, "bob"),
]


def test_jobs_of_a_run_have_its_goodput(two_starts: RunFolder) -> None:
    usage = slurm_usage(two_starts.store, parse_jobs("\n".join(JOBS)), 10**15)
    first, second, other = usage.starts
    assert (first.run, first.versions, first.failures_us) == (
        "big-7",
        ("photos@3", "text@1"),
        (11_000 * S,),
    )
    assert (first.parts["new steps"], first.parts["starting"]) == pytest.approx((0.9, 0.1))
    assert (second.parts["new steps"], second.parts["repeated steps"]) == pytest.approx((0.6, 0.3))
    assert (first.asked_gpu_s, second.asked_gpu_s) == (8 * 3600, 0)
    assert (other.run, other.parts, other.user) == ("", {}, "bob"), "another cluster's 13"
    assert (first.failures_us, second.failures_us, other.failures_us) == ((11_000 * S,), (), (31_000 * S,))
    assert not usage.problems


@pytest.mark.parametrize("is_noted", [False, True])
def test_every_failure_inside_an_allocation_counts(folder: RunFolder, is_noted: bool) -> None:
    """Four starts of one job fail, two of them by a kill that leaves no event; the fifth one ends well.

    The script also notes two starts that no rank reached.
    """
    with pytest.MonkeyPatch.context() as patched:
        clock = Clock(patched)
        for number, end in enumerate(("failed", "saved", "failed", "saved", "ended")):
            clock.start(folder, "slurm 12", 10_000 + 1_000 * number, (0, 30), end)
    (job,) = parse_jobs(line(12, "COMPLETED", 10_000, 16_000))
    noted = [
        RankStart(begun_us=(10_000 + 1_000 * number) * S, ended_us=(10_500 + 1_000 * number) * S)
        for number in range(5)
    ]
    noted += [RankStart(begun_us=10_600 * S, ended_us=10_610 * S), RankStart(begun_us=10_700 * S)]
    noted.sort(key=lambda start: start.begun_us)
    usage = slurm_usage(folder.store, [job], 10**15, (lambda run: noted) if is_noted else None)
    (start,) = usage.starts
    assert len(start.failures_us) == (6 if is_noted else 4)
    row = usage_row("big-7", [start], 0, 10**15)
    assert (row.starts, row.failures) == (1, len(start.failures_us))
    assert sum(start.parts.values()) == pytest.approx(1)
    if is_noted:
        assert start.parts["unknown"] == pytest.approx((2 * 100) / 6_000), "from the last event to the kill"
        assert start.parts["back-off"] == pytest.approx((100 + 90 + 500 * 3) / 6_000)
    assert usage_row("big-7", [start], 0, 12_000 * S).failures < row.failures, "those inside the period count"


def test_damaged_record_is_named_and_its_time_unknown(two_starts: RunFolder) -> None:
    two_starts.store.put(two_starts.key("attempts/000002.json"), b"{")
    usage = slurm_usage(two_starts.store, parse_jobs("\n".join(JOBS)), 10**15)
    assert [start.run for start in usage.starts] == ["", "", ""]
    (problem,) = usage.problems
    assert "the time of big-7 counts as unknown" in problem
    assert "attempts/000002.json is not a valid start" in problem


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """A cluster's file; its login node answers from `lines`."""
    (tmp_path / "login.py").write_text(LOGIN.format(lines=str(tmp_path / "lines")))
    prefix = json.dumps([sys.executable, str(tmp_path / "login.py")])
    (tmp_path / "slurm.toml").write_text(f'engine = "slurm"\nsubmit = {prefix}\n')
    return tmp_path / "slurm.toml"


@pytest.mark.parametrize("by", ["user", "owner"])
def test_csv_has_no_problems_and_standard_error_names_them(
    two_starts: RunFolder,
    cluster: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    by: str,
) -> None:
    two_starts.store.put(two_starts.key("attempts/000002.json"), b"{")
    (tmp_path / "lines").write_text("\n".join(JOBS))
    monkeypatch.setattr("time.time_ns", lambda: 40_000 * 10**9)
    options = ["--root", str(tmp_path / "root"), "--cluster", str(cluster), "--since", "1d"]
    assert main(["usage", *options, "--by", by, "--csv"]) == 1
    printed = capsys.readouterr()
    assert "000002.json" not in printed.out
    assert "attempts/000002.json is not a valid start" in printed.err


def test_verb_reads_a_cluster(
    two_starts: RunFolder,
    cluster: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "lines").write_text("\n".join(JOBS))
    monkeypatch.setattr("time.time_ns", lambda: 40_000 * 10**9)
    options = ["--root", str(tmp_path / "root"), "--cluster", str(cluster), "--since", "1d"]
    assert main(["usage", *options, "--by", "user", "--price", "2.10", "--csv"]) == 0
    header, ann, bob, total = (row.split(",") for row in capsys.readouterr().out.splitlines())
    rows = [dict(zip(header, row, strict=True)) for row in (ann, bob, total)]
    assert [row["name"] for row in rows] == ["ann", "bob", "total"]
    assert [float(row["allocated"]) for row in rows] == pytest.approx(
        [16_000 / 3600, 8000 / 3600, 24_000 / 3600], abs=0.001
    )
    assert float(rows[0]["new_steps"]) == pytest.approx((900 + 600) * 8 / 3600, abs=0.001)
    assert float(rows[0]["lost"]) == pytest.approx(300 * 8 / 3600, abs=0.001)
    assert [row["price"] for row in rows] == ["9.33", "4.67", "14.0"]
    assert [row["queue_hours"] for row in rows] == ["0.333", "0.167", "0.5"]
    assert main(["usage", *options, "--by", "dataset"]) == 0
    text = capsys.readouterr().out
    assert "photos@3" in text
    assert "text@1" in text


def test_verb_counts_starts_of_this_machine(
    folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.put_spec(RunSpec(run="big-7", command=("true",), record=folder.store.url))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    log = LocalRuns(folder.store.url)._path("big-7", "log")
    log.parent.mkdir(exist_ok=True)
    times = [{"begun_us": 10_000 * S}, {"ended_us": 11_000 * S}, {"begun_us": 20_000 * S}]
    Path(f"{log}.spans").write_text("".join(json.dumps(time) + "\n" for time in times))
    with pytest.MonkeyPatch.context() as patched:
        Clock(patched).start(folder, "local", 10_000, (0, 90), "stopped")
    monkeypatch.setattr("time.time_ns", lambda: 23_000 * 10**9)
    assert main(["usage", "--root", str(tmp_path / "root"), "--by", "run", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    (row,) = body["rows"]
    assert (row["name"], row["starts"], row["node_hours"], row["failures"]) == ("big-7", 2, 1.111, 0)


def test_verb_forecasts_the_week_that_fills_the_cluster(
    folder: RunFolder,
    cluster: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """12 weeks, each with a job of 8 GPUs that lasts 8 hours longer: 64 GPU-hours more a week."""
    week = 7 * 86_400
    jobs = [line(n, "COMPLETED", 10_000 + n * week, 10_000 + n * week + n * 8 * 3600) for n in range(1, 13)]
    (tmp_path / "lines").write_text("\n".join(jobs))
    monkeypatch.setattr("time.time_ns", lambda: 13 * week * 10**9)
    options = ["--root", str(tmp_path / "root"), "--cluster", str(cluster), "--forecast"]
    assert main(["usage", *options]) == 0
    text = capsys.readouterr().out
    assert "GPU-hours: 12 weeks, +64.0 h a week; next week 832.0 (832.0 to 832.0)" in text
    assert "passes 2,284.8 h in the week of 1970-09-10" in text, (
        "16 GPUs x 168 h x 85 %: the 36th week has 2,304 h"
    )
    assert main(["usage", *options, "--installed", "8", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["installed"], body["limit"]) == (8, pytest.approx(8 * 168 * 0.85))
    assert main(["usage", *options, "--since", "30d"]) == 0
    assert "too little history" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("end", "state", "failed"),
    [
        ("stopped", "Failed", False),
        ("ended", "", False),
        ("saved", "", True),
        ("saved", "Failed, Succeeded", True),
        ("saved", "PREEMPTED", False),
        ("failed", "PREEMPTED", True),
    ],
)
def test_stop_in_time_is_no_failure(folder: RunFolder, end: str, state: str, failed: bool) -> None:
    """Pods that stop by exit status 75 are Failed."""
    folder.put_spec(RunSpec(run="big-7", command=("true",), record=folder.store.url, gpus_per_node=8))
    with pytest.MonkeyPatch.context() as patched:
        Clock(patched).start(folder, "kubernetes big-7-0", 10_000, (0, 90), end)
    span = Span(begun_us=10_000 * S, ended_us=11_000 * S, nodes=2, state=state)

    class Pods:
        def spans(self, run: str) -> list[Span]:
            return [span] if run == "big-7" else []

    (start,) = launcher_usage(folder.store, Pods(), 10**15).starts  # type: ignore[arg-type]
    assert (len(start.failures_us), start.gpus, start.nodes, start.user) == (int(failed), 16, 2, "ann")


def test_starts_without_a_rank_count_their_gpu_hours(folder: RunFolder) -> None:
    folder.put_spec(RunSpec(run="big-7", command=("true",), record=folder.store.url, gpus_per_node=8))
    spans = [Span(begun_us=n * H, ended_us=n * H + H, nodes=2) for n in (1, 2)]

    class Pods:
        def spans(self, run: str) -> list[Span]:
            return spans

    usage = launcher_usage(folder.store, Pods(), 10**15)  # type: ignore[arg-type]
    row = usage_row("all", usage.starts, 0, 10 * H)
    assert (row.starts, row.allocated, row.unknown, row.failures) == (2, 32, 32, 2)
    assert [start.run for start in usage.starts] == ["big-7", "big-7"]


@pytest.mark.parametrize("option", [("--price", "nan"), ("--price", "-1"), ("--price-gb", "s3=inf")])
def test_price_is_a_number(option: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["usage", *option])
    assert "a price of 0 or more is needed" in capsys.readouterr().err


def test_period_before_1970_asks_once(
    two_starts: RunFolder, cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not for each of 14,000 weeks."""
    begins, listed = list[int](), sacct._list_jobs

    def count_query(answer: Any, since_us: int, until_us: int | None, name: str) -> list[AccountedJob]:
        begins.append(since_us)
        assert len(begins) < 10
        return listed(answer, since_us, until_us, name)

    monkeypatch.setattr(sacct, "_list_jobs", count_query)
    (tmp_path / "lines").write_text("\n".join(JOBS))
    options = ["--root", str(tmp_path / "root"), "--cluster", str(cluster)]
    assert main(["usage", *options, "--since", "99999d"]) == 0
    assert begins == [0]
