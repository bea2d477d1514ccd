"""The script of a Slurm job, run by sh with commands of Slurm that do nothing, on a folder of logs that is full."""

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import loader
from penstock.compute.process_groups import end_group
from penstock.train.launch import script_calls, slurm_job_script
from penstock.train.launch.run_log import (
    SPANS,
    RankStart,
    parse_starts,
    rank_starts,
    start_part,
    without_ranks,
)
from penstock.train.launch.slurm_job_script import NodeSettings, batch_script
from penstock.train.record_objects.failed_starts import newest_failed_start
from penstock.train.run import AGAIN
from penstock.train.run_folder import RunFolder
from penstock.train.run_spec import RunSpec
from tests.servers.patience import PATIENCE_S, until


def answer(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def attempt(folder: Path, log: Path, *, full: bool = False, restarts: int = 0) -> str:
    """Run a job whose ranks end well; return the number of its start."""
    commands = {"srun": 'echo "attempt $PENSTOCK_ATTEMPT"', "scontrol": "echo m1", "squeue": ""}
    for name, line in commands.items():
        file = folder / name
        file.write_text(f"#!/bin/sh\n{line}\n")
        file.chmod(0o755)
    spec = RunSpec(run="big-7", command=("true",), record="file:///r")
    settings = NodeSettings(environment="", python="/usr/bin/python3", cpus=1, log=str(log))
    script = batch_script(spec, settings, "pk-big-7")

    def limit() -> None:
        if full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    environ = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_ID": "7"}
    environ["SLURM_RESTART_COUNT"] = str(restarts)
    with subprocess.Popen(
        ["sh", "-c", script],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=limit,
        restore_signals=False,  # as Python has them: a write beyond the limit fails, and kills nobody
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()  # not to its end: a sleep holds it for some seconds
        assert process.wait(PATIENCE_S) == 0
        return line.strip()


@pytest.mark.parametrize("name", ["log.txt", 'it\'s a "log" $HOME.txt'])
def test_starts_are_numbered_over_jobs_and_after_a_torn_line(tmp_path: Path, name: str) -> None:
    log = tmp_path / name
    log.write_text("text")
    assert attempt(tmp_path, log) == "attempt 0"
    with Path(f"{log}{SPANS}").open("a") as spans:
        spans.write('{"begun_us": 12')  # the disk was full
    log.write_text("text of another start")
    assert attempt(tmp_path, log) == "attempt 1"
    assert start_part(answer, str(log), 1) == (21, None)


def test_start_has_a_number_on_a_full_disk(tmp_path: Path) -> None:
    """A negative one would make the record of the run unreadable."""
    log = tmp_path / "log.txt"
    log.write_text("")
    assert attempt(tmp_path, log, full=True) == "attempt 0"
    assert attempt(tmp_path, log, full=True, restarts=2) == "attempt 2"


REFUSES_TWICE = """\
if [ ! -e "$FOLDER/tried-2" ]; then
    if [ -e "$FOLDER/tried-1" ]; then : > "$FOLDER/tried-2"; else : > "$FOLDER/tried-1"; fi
    echo "srun: error: Unable to create step for job 7: Zero Bytes were transmitted or received"
    exit 1
fi
export SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_LOCALID=0 # of the rank
while [ "$1" != sh ]; do shift; done
exec "$@"
"""


RUNS_RANKS = """\
export SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_LOCALID=0 # of the rank
while [ "$1" != sh ]; do shift; done
exec "$@"
"""


WAITS_FOR_EVER = """\
export SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_LOCALID=0 # of the rank
while [ "$1" != sh ]; do shift; done
signals=0
trap 'signals=$((signals + 1))' TERM
"$@" &
while [ "$signals" -lt 2 ]; do sleep 0.1; done
exit 143
"""


def shell(command: Sequence[str]) -> str:
    """Run a command here, as the login node would."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """script(srun, command of the rank) -> command of a job with a srun of the test's, whose log is log.txt."""
    variables = {
        "FOLDER": str(tmp_path),
        "SLURMD_NODENAME": "m1",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_ID": "7",
    }
    for name, value in {**variables, "PATH": f"{tmp_path}:{os.environ['PATH']}"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(slurm_job_script, "REFUSED_S", 0)
    monkeypatch.setattr(slurm_job_script, "CHECK_S", 1)
    monkeypatch.setattr(slurm_job_script, "LOST_S", 2)

    def script(srun: str, command: str, python: str = "/usr/bin/python3") -> list[str]:
        for name, line in {"srun": srun, "scontrol": "echo m1", "squeue": "echo RUNNING:None"}.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
            (tmp_path / name).chmod(0o755)
        spec = RunSpec(run="big-7", command=("sh", "-c", command), record="file:///r")
        settings = NodeSettings(environment="", python=python, cpus=1, log=str(tmp_path / "log.txt"))
        return ["sh", "-c", batch_script(spec, settings, "pk-big-7")]

    return script


def test_starts_that_no_rank_reached_are_no_failures(
    tmp_path: Path, script: Callable[[str, str], list[str]]
) -> None:
    log = tmp_path / "log.txt"
    with log.open("wb") as output:
        subprocess.run(
            script(REFUSES_TWICE, "sleep 1.5; echo done"), stdout=output, check=True, timeout=PATIENCE_S
        )
    text = log.read_text()
    assert text.endswith("done\n"), text
    assert "began no rank, 2 times in a row" in text
    starts = [*parse_starts(Path(f"{log}{SPANS}").read_text().splitlines())]
    refused = ["begun_us", "srun_ended_us", "no_rank_us"]
    assert [next(iter(times)) for times in starts] == [
        *refused,
        *refused,
        "begun_us",
        "ranks_us",
        "srun_ended_us",
        "exit_us",
    ]
    assert starts[-1]["status"] == 0
    assert without_ranks(starts[:4]) == (starts[0]["begun_us"], 1)
    assert without_ranks(starts[:7]) == (starts[0]["begun_us"], 2), "the newest start is not late"
    noted = rank_starts(shell, str(log))
    assert [start.begun_us for start in noted] == [starts[n]["begun_us"] for n in (0, 3, 6)]
    assert all(start.ended_us is not None and not start.is_preempted for start in noted)
    assert without_ranks(starts) == (0, 0)
    assert without_ranks([]) == (0, 0)


@pytest.mark.parametrize("is_preempted", [True, False])
def test_stop_by_a_preemption_is_noted(
    tmp_path: Path, script: Callable[[str, str], list[str]], is_preempted: bool
) -> None:
    """The accounting has REQUEUED for it, as for each other stop."""
    stops = 'touch "$PENSTOCK_FOLDER/stopped"'
    command = script(stops, "true")
    at = "2026-11-28T16:00:00" if is_preempted else "None"
    (tmp_path / "scontrol").write_text(
        f"#!/bin/sh\necho JobId=7 JobState=RUNNING PreemptTime={at} Restarts=0\n"
    )
    ended = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_S)
    assert ended.returncode == AGAIN, ended
    (start,) = rank_starts(shell, str(tmp_path / "log.txt"))
    assert (start.is_preempted, start.ended_us is not None) == (is_preempted, True)


def test_notes_that_a_user_forged_are_ignored(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    lines = ["no JSON", '{"begun_us": "1"}', '{"srun_ended_us": 5}', '{"begun_us": 1e30}', "[]", "x" * 2**21]
    Path(f"{log}{SPANS}").write_text("\n".join([*lines, '{"begun_us": 7}', '{"srun_ended_us": 9}']))
    assert rank_starts(shell, str(log)) == [RankStart(begun_us=7, ended_us=9)]
    assert rank_starts(shell, str(tmp_path / "none")) == []


def test_signal_to_all_processes_leaves_the_watch_of_srun(
    tmp_path: Path, script: Callable[[str, str], list[str]]
) -> None:
    """As `scancel --signal=TERM --full`; later the ranks of the node fail, and srun waits for others for ever."""
    log = tmp_path / "log.txt"
    rank = f"trap '' TERM; echo began; while [ ! -e {tmp_path}/fail ]; do sleep 0.1; done; exit 1"
    command = script(WAITS_FOR_EVER, rank)
    with log.open("wb") as output:
        job = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        until(lambda: "began" in log.read_text())
        os.killpg(job.pid, signal.SIGTERM)
        (tmp_path / "fail").touch()
        assert job.wait(PATIENCE_S) == AGAIN
    finally:
        end_group(job)
    assert "failed 2 s ago, and srun still waits for others" in log.read_text()


def test_srun_that_begins_no_rank_is_named_and_ended(
    tmp_path: Path, script: Callable[[str, str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a step of an earlier start that keeps the job's processors."""
    monkeypatch.setattr(slurm_job_script, "QUIET_S", 1)
    monkeypatch.setattr(slurm_job_script, "HOPELESS_S", 2)
    ended = subprocess.run(
        script("exec sleep 60", "true"), stdout=subprocess.PIPE, text=True, check=False, timeout=PATIENCE_S
    )
    assert ended.returncode == AGAIN
    assert "srun has started no rank for 1 s\n" in ended.stdout
    assert "no rank for 2 s; the job goes back to the queue" in ended.stdout
    starts = [*parse_starts((tmp_path / f"log.txt{SPANS}").read_text().splitlines())]
    assert without_ranks(starts) == (starts[0]["begun_us"], 1)


def test_two_ends_alike_end_a_run_whatever_ended_its_ranks(tmp_path: Path) -> None:
    """As `next_start` is called by the script."""
    log, failures = tmp_path / "log", tmp_path / "failures"
    loader.Root(tmp_path / "root").create()
    arguments = [str(failures), str(tmp_path / "root"), "big-7", str(log), "0", "137", "4"]
    log.write_text("0: step 5\nsrun: error: m3: task 0: Killed\n")
    assert script_calls.next_start(*arguments) == 0
    log.write_text("0: step 5\nsrun: error: m4: task 1: Killed\n")
    assert script_calls.next_start(*arguments) == script_calls.OVER
    folder = RunFolder(loader.Root(tmp_path / "root").store, "big-7")
    failed = newest_failed_start(folder.store, folder.key(""))
    assert failed is not None
    assert (failed.restarts, failed.status, failed.ends, failed.is_over) == (4, 137, 2, True)


def test_wrong_venv_ends_a_run(tmp_path: Path, script: Callable[..., list[str]]) -> None:
    """Neither the ranks nor the call that counts failures find their Python."""
    log = tmp_path / "log.txt"
    (tmp_path / "sleep").write_text("#!/bin/sh\n")
    (tmp_path / "sleep").chmod(0o755)
    with log.open("wb") as output:
        job = subprocess.run(
            script(RUNS_RANKS, "exit 127", python=str(tmp_path / "no-venv/bin/python")),
            stdout=output,
            stderr=output,
            check=False,
            timeout=PATIENCE_S,
        )
    assert job.returncode == 127
    assert log.read_text().count("it restarts in 60 s") == 1
    assert "the ranks ended with 127 twice, and Python did not start: see venv; it is over" in log.read_text()
