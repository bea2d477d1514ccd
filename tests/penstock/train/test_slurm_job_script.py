"""The script of a Slurm job, run by sh with commands of Slurm that do nothing, on a folder of logs that is full."""

import os
import resource
import subprocess
from pathlib import Path

import pytest

from penstock.train.launch.run_log import SPANS, part_of
from penstock.train.launch.slurm_job_script import NodeSettings, batch_script
from penstock.train.run_spec import RunSpec


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
    script = batch_script(spec, NodeSettings(environment="", python="/usr/bin/python3", cpus=1, log=str(log)))

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
        assert process.wait(20) == 0
        return line.strip()


@pytest.mark.parametrize("name", ["log.txt", 'it\'s a "log" $HOME.txt'])
def test_starts_are_numbered_over_jobs_and_after_a_line_that_was_cut_off(tmp_path: Path, name: str) -> None:
    log = tmp_path / name
    log.write_text("text")
    assert attempt(tmp_path, log) == "attempt 0"
    with Path(f"{log}{SPANS}").open("a") as spans:
        spans.write('{"begun_us": 12')  # the disk was full
    log.write_text("text of another start")
    assert attempt(tmp_path, log) == "attempt 1"
    assert part_of(answer, str(log), 1) == (21, None)


def test_start_has_a_number_on_a_full_disk(tmp_path: Path) -> None:
    """A negative one would make the record of the run unreadable."""
    log = tmp_path / "log.txt"
    log.write_text("")
    assert attempt(tmp_path, log, full=True) == "attempt 0"
    assert attempt(tmp_path, log, full=True, restarts=2) == "attempt 2"
