"""Verbs of runs by their record: those that no `submit` started, output of one rank and start, nodes of a range."""

import fcntl
import json
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import loader
from loader.errors import Conflict, InvalidSpec
from penstock.cli import main
from penstock.compute.cluster import read_cluster
from penstock.train.intervals import ROW, interval_bytes
from penstock.train.launch.failures import failure_line
from penstock.train.launch.jobset import _end_us
from penstock.train.launch.local_runs import LocalRuns
from penstock.train.launch.run_log import rank_lines
from penstock.train.launch.slurm_job import SlurmJobs
from penstock.train.record_objects.failed_starts import FailedStart, put_failed_start
from penstock.train.run_folder import RunFolder
from penstock.train.run_spec import RunSpec, read_spec
from penstock.train.submitting import cancel, resume, stop, submit
from tests.refusals import refusal

Penstock = Callable[..., tuple[int, str, str]]
S = 1_000_000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """The record of a run with two starts, which plain torchrun began."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    with loader.Root(tmp_path / "root") as root:
        root.create()
    folder = RunFolder(loader.Root(tmp_path / "root").store, "big-7")
    for number, (begun_s, steps, end) in enumerate(((100, (0, 40), "stopped"), (300, (40, 90), "ended"))):
        facts = {"at_us": begun_s * S, "ranks": 2, "restarts": number, "node": "m1", "launcher": "local"}
        attempt = folder.begin_attempt(facts)
        folder.put_event(attempt, 0, "ranks_up", 0, {}, begun_s * S)
        folder.put_event(attempt, 1, "first_batch", steps[0], {"took_us": 2 * S}, (begun_s + 10) * S)
        folder.put_event(attempt, 2, end, steps[1], {}, (begun_s + 60) * S)
    return folder


@pytest.fixture
def penstock(folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Penstock:
    """penstock(words) -> (exit status, output, errors) of `penstock train` over the record."""

    def run(*words: str, root: bool = True) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(["train", *words, *(("--root", str(tmp_path / "root")) if root else ())])
        return status, *capsys.readouterr()

    return run


def test_run_without_a_file_is_shown_by_its_record(folder: RunFolder, penstock: Penstock) -> None:
    status, text, _ = penstock("show", "big-7")
    assert (status, text.splitlines()[0]) == (0, "big-7: unknown, ended, 90 steps done")
    assert "no penstock train submit started it" in text
    assert "attempt 2: local on m1, 2 ranks; ranks up (0), first batch (40), ended (90)" in text
    status, text, _ = penstock("goodput", "big-7")
    assert (status, "by the record only" in text) == (0, True)
    body = json.loads(penstock("goodput", "big-7", "--json")[1])
    assert body["parts"]["new steps"] == 2 * 50
    assert [(start["first_step"], start["end_step"]) for start in body["starts"]] == [(0, 40), (40, 90)]
    status, text, _ = penstock("stop", "big-7")
    assert (status, folder.is_to_stop()) == (0, True)
    for verb in ("why", "logs", "cancel"):
        status, _, errors = penstock(verb, "big-7")
        assert status != 0
        assert "no penstock train submit started big-7" in errors


@pytest.mark.parametrize("verb", ["show", "goodput", "stop"])
def test_run_without_a_record_is_not_found(folder: RunFolder, penstock: Penstock, verb: str) -> None:
    status, _, errors = penstock(verb, "big-8")
    assert status != 0
    assert "has no run 'big-8'" in errors
    assert not RunFolder(folder.store, "big-8").is_to_stop()


def test_file_of_a_record_names_no_other_root(folder: RunFolder, penstock: Penstock, tmp_path: Path) -> None:
    """It is data: who wrote it chooses no place that a reader's rights open."""
    other = tmp_path / "other"
    spec = RunSpec(run="big-7", command=("true",), record=str(other))
    folder.store.put(folder.key("spec.json"), json.dumps({"format": 1, **spec.to_json()}).encode())
    assert penstock("show", "big-7")[0] == 0
    assert penstock("goodput", "big-7")[0] == 0
    assert not other.exists()


LOG = """\
penstock: script
[rank0]:step 1
[rank1]:step 1 of 1
[rank10]:step 1
[rank1]:Value of rank 1
"""


def test_logs_of_a_rank_and_of_a_start(folder: RunFolder, penstock: Penstock) -> None:
    folder.put_spec(RunSpec(run="big-7", command=("true",), record=folder.store.url, ranks_per_node=2))
    log = LocalRuns(folder.store.url)._path("big-7", "log")
    log.parent.mkdir(exist_ok=True)
    log.write_text(LOG + "[rank1]:second\n")
    spans = [{"begun_us": 1, "log": 0}, {"ended_us": 2}, {"begun_us": 3, "log": len(LOG)}]
    Path(f"{log}.spans").write_text("".join(json.dumps(one) + "\n" for one in spans) + '{"begun_u')
    assert penstock("logs", "big-7")[1] == LOG + "[rank1]:second\n\n"
    assert penstock("logs", "big-7", "--rank", "1")[1] == "step 1 of 1\nValue of rank 1\nsecond\n"
    assert penstock("logs", "big-7", "--rank", "10")[1] == "step 1\n"
    assert "nothing was written" in penstock("logs", "big-7", "--rank", "7")[1]
    assert penstock("logs", "big-7", "--attempt", "1", "--rank", "1")[1] == "step 1 of 1\nValue of rank 1\n"
    assert penstock("logs", "big-7", "--attempt", "2")[1] == "[rank1]:second\n\n"
    status, _, errors = penstock("logs", "big-7", "--attempt", "3")
    assert (status != 0, "accepted: 1, 2" in errors) == (True, True)
    folder.begin_attempt({"restarts": 1})
    status, _, errors = penstock("logs", "big-7", "--attempt", "2")
    assert (status != 0, "attempt 3 has 1 restarts before it, too" in errors) == (True, True)


def test_long_log_is_searched_whole_for_a_rank(folder: RunFolder, penstock: Penstock) -> None:
    folder.put_spec(RunSpec(run="big-7", command=("true",), record=folder.store.url))
    log = LocalRuns(folder.store.url)._path("big-7", "log")
    log.parent.mkdir(exist_ok=True)
    log.write_text("3: here\n" + "0: other\n" * 20_000)
    assert penstock("logs", "big-7", "--rank", "3")[1] == "here\n"


def test_lines_of_a_single_rank_have_no_name(folder: RunFolder, penstock: Penstock) -> None:
    folder.put_spec(RunSpec(run="big-7", command=("true",), record=folder.store.url))
    log = LocalRuns(folder.store.url)._path("big-7", "log")
    log.parent.mkdir(exist_ok=True)
    log.write_text("100: loss 7\n[rank0]: Traceback of torch\n")
    assert penstock("logs", "big-7", "--rank", "0")[1] == log.read_text() + "\n"
    assert "nothing was written" in penstock("logs", "big-7", "--rank", "1")[1]


FAILED = """\
0: step 1
1: step 1
1: Traceback (most recent call last):
0: Traceback (most recent call last):
1:   File "train.py", line 1
1: KeyError: 'cell'
0:   File "train.py", line 9
1: \n1: During handling of the above exception, another exception occurred:
1: \n1: Traceback (most recent call last):
1: ValueError: no such cell
0: RuntimeError: Connection closed by peer
srun: error: n1: task 1: Exited with exit code 1
"""


@pytest.fixture
def log(folder: RunFolder) -> Path:
    """The log of a submitted run with two ranks, in which two starts are noted."""
    folder.put_spec(RunSpec(run="big-7", command=("true",), record=folder.store.url, ranks_per_node=2))
    path = LocalRuns(folder.store.url)._path("big-7", "log")
    path.parent.mkdir(exist_ok=True)
    first = "0: step 0\n0: OSError: an earlier failure\n"
    path.write_text(first + FAILED)
    spans = [{"begun_us": 1, "log": 0}, {"begun_us": 3, "log": len(first)}]
    Path(f"{path}.spans").write_text("".join(json.dumps(one) + "\n" for one in spans))
    return path


def test_logs_begin_at_the_first_failure_of_the_newest_start(log: Path, penstock: Penstock) -> None:
    status, text, _ = penstock("logs", "big-7")
    note, _, rest = text.partition("\n")
    assert status == 0
    assert note == (
        "penstock: the output of the newest start from its first failure on, without 2 lines before it; --all prints "
        "them"
    )
    assert rest == FAILED.partition("1: step 1\n")[2] + "\n"
    assert json.loads(penstock("logs", "big-7", "--json")[1]) == {
        "run": "big-7",
        "note": note,
        "text": rest[:-1],
    }

    assert penstock("logs", "big-7", "--all")[1].rstrip("\n") == log.read_text().rstrip("\n")
    assert penstock("logs", "big-7", "--all", "--follow")[1].startswith("0: step 0\n")
    text = penstock("logs", "big-7", "--attempt", "1")[1]
    assert "of this start from its first failure on, without 1 line before it; --all" in text
    assert text.endswith("0: OSError: an earlier failure\n\n")
    assert penstock("logs", "big-7", "--all", "--attempt", "1")[1].count("\n") == 3

    text = penstock("logs", "big-7", "--rank", "0")[1]
    assert text.splitlines()[1:3] == ["Traceback (most recent call last):", '  File "train.py", line 9']
    assert "cell" not in text
    assert penstock("logs", "big-7", "--all", "--rank", "1")[1].startswith("step 1\nTraceback")
    assert penstock("logs", "big-7", "--all", "--json")[0] != 0


def test_output_that_begins_with_the_failure_has_no_note(log: Path, penstock: Penstock) -> None:
    text = "0: OSError: no file\n0: the last line\n"
    log.write_text(text)
    Path(f"{log}.spans").write_text("")
    assert penstock("logs", "big-7")[1] == f"{text}\n"


def test_long_output_after_a_failure_has_its_begin_and_its_end(log: Path, penstock: Penstock) -> None:
    with log.open("a") as file:
        file.write("0: step\n" * 30_000)
        file.write("0: the last line\n")
    text = penstock("logs", "big-7")[1]
    assert len(text) < 70_000
    assert re.search("without 2 lines before it and [0-9,]+ characters in its middle; --all", text)
    assert "1: KeyError: 'cell'" in text
    assert text.endswith("0: the last line\n\n")


def test_start_without_a_failure_prints_the_last_lines(log: Path, penstock: Penstock) -> None:
    size = log.stat().st_size
    with log.open("a") as file:
        file.write("0: validation Error 0.3\n0: step 2\n")
    with Path(f"{log}.spans").open("a") as file:
        file.write(json.dumps({"begun_us": 5, "log": size}) + "\n")
    assert penstock("logs", "big-7")[1] == log.read_text() + "\n"


def test_memory_and_ends_of_ranks_are_failures() -> None:
    killed = "0: step 1\nsrun: error: n1: task 1: Killed\n0: step 2\n"
    assert failure_line(killed) == 1
    assert failure_line(f"slurmstepd: error: Detected 1 oom_kill event\n{FAILED}") == 0
    assert failure_line("step 1\ntorch.OutOfMemoryError: CUDA\nOSError: 2\n") == 1
    assert failure_line("step 1\n") is None


def test_missing_output_names_its_place(folder: RunFolder, penstock: Penstock, tmp_path: Path) -> None:
    folder.put_spec(RunSpec(run="big-7", command=("true",), record=folder.store.url))
    status, _, errors = penstock("logs", "big-7")
    assert (status != 0, "does not know it: it was never started there" in errors) == (True, True)
    (tmp_path / "login.py").write_text(QUEUE_AND_SHELL)
    prefix = json.dumps([sys.executable, str(tmp_path / "login.py")])
    cluster = tmp_path / "slurm.toml"
    logs = tmp_path / "lgs"
    cluster.write_text(f'engine = "slurm"\nsubmit = {prefix}\nlogs = "{logs}"\n')
    words = ("logs", "big-7", "--cluster", str(cluster))
    for more in ((), ("--all",), ("--follow",)):
        status, output, errors = penstock(*words, *more)
        assert (status != 0, output) == (True, "")
        assert f"{logs} (logs in the cluster's file) is not a folder on {os.uname().nodename}" in errors
    logs.mkdir()
    status, output, _ = penstock(*words)
    assert (status, "it waits (Priority" in output) == (0, True)
    (tmp_path / "login.py").write_text(QUEUE_AND_SHELL.replace("PENDING", "RUNNING"))
    status, _, errors = penstock(*words)
    name = SlurmJobs(folder.store.url, read_cluster(cluster))._name("big-7")
    assert (status != 0, f"{logs}/{name}.txt is not there on" in errors) == (True, True)
    (tmp_path / "login.py").write_text(QUEUE_AND_SHELL.replace("PENDING", "CANCELLED"))
    status, output, _ = penstock(*words)
    assert (status, f"nothing was written: {logs}/{name}.txt is not there on" in output) == (0, True)
    (logs / f"{name}.txt").touch()
    assert penstock(*words)[:2] == (0, "nothing was written\n")


def test_end_without_a_record_is_named_by_the_log(
    folder: RunFolder, penstock: Penstock, tmp_path: Path
) -> None:
    words = "the ranks ended with 1 twice, and Python did not start: see venv; it is over"
    run = "big-8"
    spec = RunSpec(run=run, command=("true",), record=folder.store.url)
    RunFolder(folder.store, run).put_spec(spec)
    (tmp_path / "login.py").write_text(QUEUE_AND_SHELL.replace("PENDING", "FAILED"))
    prefix = json.dumps([sys.executable, str(tmp_path / "login.py")])
    cluster = tmp_path / "slurm.toml"
    cluster.write_text(f'engine = "slurm"\nsubmit = {prefix}\nlogs = "{tmp_path}"\n')
    log = tmp_path / f"{SlurmJobs(folder.store.url, read_cluster(cluster))._name(run)}.txt"
    before = "penstock: failed with status 1; it restarts in 60 s\n"
    log.write_text(f"{before}penstock: {words}\nslurmstepd: done\n")
    spans = Path(f"{log}.spans")
    spans.write_text(f'{{"begun_us": 1, "log": {len(before)}}}\n{{"exit_us": 3, "status": 1}}\n')
    for verb in (("ls",), ("why", run), ("show", run)):
        status, text, _ = penstock(*verb, "--cluster", str(cluster))
        assert (status, f"last failure: {words}" in text) == (0, True), text
    with spans.open("a") as file:
        file.write(f'{{"begun_us": 4, "log": {log.stat().st_size}}}\n')
    assert "last failure" not in penstock("why", run, "--cluster", str(cluster))[1], "of an earlier start"
    log.write_text(f"penstock: {words}\n")
    spans.write_text('{"begun_us": 1, "log": 0}\n{"exit_us": 3, "status": 0}\n')
    assert "last failure" not in penstock("why", run, "--cluster", str(cluster))[1], "it ended well"


QUEUE_AND_SHELL = """\
import os, re, shlex, sys
words = shlex.split(sys.argv[1])
if "squeue" in words:
    mark = re.findall(r"[|][0-9a-f]{16}[|]", sys.argv[1])[0]
    name = next(word for word in words if word.startswith("--name=")).removeprefix("--name=")
    values = ["12", "PENDING", "vision", "ann", "7", "low", "batch", "1", "cpu=1", *["N/A"] * 5, "Priority"]
    values += [name.rpartition(",")[2], ""]
    print(mark.join(values) + mark)
elif words[0] == "scontrol":
    print("ClusterName = c1")
else:
    os.execvp(words[0], words)
"""
"""A login node with one job, and a shell."""


def test_lines_of_a_rank_are_without_its_name() -> None:
    assert rank_lines("a\nb", 1) == ""
    assert rank_lines(" 3: a\n13: b\n0: c", 3) == "a"


LOGIN = """\
import re, shlex, sys
words = shlex.split(sys.argv[1])
mark = (re.findall(r"[|][0-9a-f]{{16}}[|]", sys.argv[1]) or ["|"])[0]
command = next(word for word in words if word in ("sbatch", "squeue", "scontrol", "sacctmgr"))
sys.stdin.read() if command == "sbatch" else None
if command in {fails!r} and not (command == "squeue" and not open({log!r}).read()):
    sys.exit(command + " has no answer")
open({log!r}, "a").write(command + "\\n")
if command == "sbatch":
    print(12)
elif command == "squeue" and "sbatch" in open({log!r}).read():
    values = ["12", "RUNNING", "vision", "ann", "7", "low", "batch", "1", "cpu=1"] + ["N/A"] * 8
    print(mark.join(values) + mark)
elif command == "scontrol":
    print("PreemptType = preempt/qos\\nKillWait = 30 sec\\nPreemptMode = REQUEUE")
elif command == "sacctmgr":
    print("low|00:00:40|requeue|\\nhigh|00:00:00|cluster|low")
"""


@pytest.mark.parametrize(
    ("fails", "place"),
    [
        (
            (),
            "Slurm job 12 in partition batch; a preemption leaves 70 s (GraceTime 40 of QOS low, KillWait 30)",
        ),
        (("sacctmgr",), "Slurm job 12 in partition batch; sacctmgr ended with 1: sacctmgr has no answer"),
        (("squeue",), "Slurm job 12; squeue ended with 1: squeue has no answer"),
    ],
)
def test_job_that_slurm_accepted_is_submitted(tmp_path: Path, fails: tuple[str, ...], place: str) -> None:
    (tmp_path / "log").touch()
    (tmp_path / "login.py").write_text(LOGIN.format(fails=fails, log=str(tmp_path / "log")))
    prefix = json.dumps([sys.executable, str(tmp_path / "login.py")])
    (tmp_path / "slurm.toml").write_text(f'engine = "slurm"\nsubmit = {prefix}\nlogs = "{tmp_path}"\n')
    launcher = SlurmJobs(str(tmp_path / "root"), read_cluster(tmp_path / "slurm.toml"))
    run = RunSpec(run="big-7", command=("true",), record=str(tmp_path / "root"))
    assert launcher.submit(run) == place
    assert (tmp_path / "log").read_text().count("sbatch") == 1


HELD = """\
import re, shlex, sys
words = shlex.split(sys.argv[1])
mark = (re.findall(r"[|][0-9a-f]{{16}}[|]", sys.argv[1]) or ["|"])[0]
command = next(word for word in words if word in ("sbatch", "squeue", "scancel", "scontrol", "sacctmgr"))
done = open({log!r}).read()
open({log!r}, "a").write(" ".join(words) + "\\n")
if command == "sbatch":
    sys.stdin.read()
    print(13)
elif "release" in words:
    sys.exit("Access/permission denied for job 12")
elif command == "squeue" and ("sbatch" in done or "scancel" not in done):
    job, state, reason = ("13", "RUNNING", "None") if "sbatch" in done else ("12", "PENDING", "JobHoldMaxRequeue")
    values = [job, state, "vision", "ann", "7", "low", "batch", "1", "cpu=1", *["N/A"] * 5, reason, "pk", ""]
    print(mark.join(values) + mark)
"""


def test_job_that_only_an_operator_may_release_is_replaced(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    (tmp_path / "login.py").write_text(HELD.format(log=str(log)))
    prefix = json.dumps([sys.executable, str(tmp_path / "login.py")])
    (tmp_path / "slurm.toml").write_text(f'engine = "slurm"\nsubmit = {prefix}\nlogs = "{tmp_path}"\n')
    launcher = SlurmJobs(str(tmp_path / "root"), read_cluster(tmp_path / "slurm.toml"))
    place = launcher.submit(RunSpec(run="big-7", command=("true",), record=str(tmp_path / "root")))
    assert place == "Slurm job 13 in partition batch"
    commands = [line.partition(" --")[0] for line in log.read_text().splitlines()]
    done = [line for line in commands if line.startswith(("scontrol release", "scancel", "sbatch"))]
    assert done == ["scontrol release 12", "scancel", "sbatch"]


ENDING = """\
import re, shlex, sys
words = shlex.split(sys.argv[1])
mark = (re.findall(r"[|][0-9a-f]{{16}}[|]", sys.argv[1]) or ["|"])[0]
command = next(word for word in words if word in ("sbatch", "squeue", "sacct", "scontrol", "sh"))
done = open({log!r}).read()
open({log!r}, "a").write(command + "\\n")
if command == "sbatch":
    sys.stdin.read()
    print(13)
elif command == "squeue" and done.count("squeue") < 2:
    values = ["12", "COMPLETING", "vision", "ann", "7", "low", "batch", "1", "cpu=1", *["N/A"] * 5]
    values += ["None", {name!r}, ""]
    print(mark.join(values) + mark)
"""


def test_run_is_resumed_only_when_its_cancelled_start_has_ended(tmp_path: Path) -> None:
    """The script of a job that `scancel` ends stores the request to stop seconds later."""
    log, root = tmp_path / "log", str(tmp_path / "root")
    log.touch()
    prefix = json.dumps([sys.executable, str(tmp_path / "login.py")])
    (tmp_path / "slurm.toml").write_text(f'engine = "slurm"\nsubmit = {prefix}\nlogs = "{tmp_path}"\n')
    launcher = SlurmJobs(root, read_cluster(tmp_path / "slurm.toml"))
    (tmp_path / "login.py").write_text(ENDING.format(log=str(log), name=launcher._name("big-7")))
    run, folder = (
        RunSpec(run="big-7", command=("true",), record=root),
        RunFolder(loader.Root(root).store, "big-7"),
    )
    with refusal(Conflict, what="state", where="big-7", given="stopping"):
        resume(run, launcher)
    folder.ask_to_stop("scancel")  # as the script does
    with refusal(Conflict, what="state", where="big-7", given="stopping"):
        resume(run, launcher)
    assert folder.is_to_stop()
    assert resume(run, launcher) == "Slurm job 13"
    assert not folder.is_to_stop()


@pytest.mark.parametrize(("nodes", "said"), [("6", ""), ("9", "--nodes 9; accepted for big-7: 6-8")])
def test_nodes_of_a_start_are_of_the_files_range(
    folder: RunFolder, penstock: Penstock, tmp_path: Path, nodes: str, said: str
) -> None:
    (tmp_path / "run.toml").write_text(
        f'run = "big-7"\ncommand = ["true"]\nnodes = "6-8"\nrecord = "{tmp_path / "root"}"\n'
    )
    (tmp_path / "slurm.toml").write_text(f'engine = "slurm"\nlogs = "{tmp_path}"\n')
    words = ("submit", str(tmp_path / "run.toml"), "--cluster", str(tmp_path / "slurm.toml"), "--dry-run")
    status, text, errors = penstock(*words, "--nodes", nodes, root=False)
    assert (status == 0, said in errors) == (not said, True)
    if not said:
        assert "--nodes=6" in shlex.split(text.partition("<<")[0])
        assert "--nodes=6-8" in shlex.split(penstock(*words, root=False)[1].partition("<<")[0])


def test_kueue_admits_all_nodes_or_none(folder: RunFolder, penstock: Penstock, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        f'run = "big-7"\ncommand = ["true"]\nnodes = "6-8"\nrecord = "{tmp_path / "root"}"\n'
    )
    (tmp_path / "cluster.toml").write_text(
        f'engine = "kubernetes"\nimage = "registry.example/penstock@sha256:{"0" * 64}"\nqueue = "team-a"\n'
    )
    words = ("submit", str(tmp_path / "run.toml"), "--cluster", str(tmp_path / "cluster.toml"), "--dry-run")
    _, text, errors = penstock(*words, root=False)
    assert json.loads(text)["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] == 8
    assert "Kueue admits all pods of a JobSet or none" in errors
    _, text, errors = penstock(*words, "--nodes", "6", root=False)
    assert json.loads(text)["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] == 6
    assert "Kueue" not in errors


class Refusing:
    """A launcher that refuses a run on eight nodes."""

    def name(self) -> str:
        return "refusing"

    def submit(self, spec: RunSpec) -> str:
        if spec.nodes == "8":
            raise InvalidSpec("no such nodes")
        return "here"


def test_refused_file_may_be_mended_under_its_name(tmp_path: Path) -> None:
    with loader.Root(tmp_path / "root") as root:
        root.create()
    folder = RunFolder(root.store, "big-7")
    wrong = RunSpec(run="big-7", command=("true",), nodes="8", record=str(tmp_path / "root"))
    with pytest.raises(InvalidSpec):
        submit(wrong, Refusing())  # type: ignore[arg-type]
    assert folder.read_spec() is None
    right = replace(wrong, nodes="4")
    assert submit(right, Refusing()) == "here"  # type: ignore[arg-type]
    with pytest.raises(InvalidSpec):
        submit(wrong, Refusing())  # type: ignore[arg-type]
    assert folder.spec() == right, "a change that no launcher takes is none"
    with pytest.raises(InvalidSpec):
        submit(replace(right, nodes="4"), Refusing(), nodes=5)  # type: ignore[arg-type]
    assert folder.spec() == right, "a run that was there keeps its file"


def test_command_that_looks_at_a_run_hides_no_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shares the lock for a moment."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    launcher = LocalRuns(str(tmp_path / "root"))
    launcher._processes.check_folder()
    path = launcher._path("big-7", "lock")
    path.touch()
    with path.open() as look, path.open("a+") as lock:
        fcntl.flock(look, fcntl.LOCK_SH)
        threading.Timer(0.2, fcntl.flock, (look, fcntl.LOCK_UN)).start()
        assert launcher._locked(lock, "big-7")


@pytest.mark.parametrize(
    "key", ['command = ["a\\u0000b"]', 'env = {A = "x\\u0000"}', 'checkpoints = "a\\u0000"']
)
def test_text_that_no_command_can_hold_is_refused(tmp_path: Path, key: str) -> None:
    rest = "" if key.startswith("command") else 'command = ["true"]\n'
    (tmp_path / "run.toml").write_text(f'run = "big-7"\nrecord = "r"\n{rest}{key}\n')
    with refusal(InvalidSpec, what=key.partition(" ")[0], where=f"{tmp_path}/run.toml"):
        read_spec(tmp_path / "run.toml")


def test_pod_of_a_lost_node_has_an_end() -> None:
    """Else its GPU-hours would grow for ever."""
    status: dict[str, object] = {"phase": "Failed", "startTime": "1970-01-01T00:00:10Z"}
    assert _end_us({"status": status}) == 10 * S
    status["conditions"] = [
        {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": "1970-01-01T00:01:00Z"}
    ]
    assert _end_us({"status": status}) == 60 * S
    assert _end_us({"status": status | {"phase": "Running"}}) is None


FORGED = "m1\nbig-9   ended\u2028x\x1b[2J"


def test_text_of_a_record_forges_no_line(folder: RunFolder, penstock: Penstock) -> None:
    """Whoever writes `trainings/` chooses names of nodes, launchers, events and people."""
    facts = {"at_us": 500 * S, "ranks": 2, "restarts": 2, "node": FORGED, "launcher": FORGED}
    attempt = folder.begin_attempt(facts)
    folder.put_event(attempt, 0, FORGED, 90, {}, 500 * S)
    folder.put_spec(RunSpec(run="big-7", command=("true",), record=folder.store.url))
    folder.put_spec(RunSpec(run="big-7", command=("true", FORGED), record=folder.store.url), by=FORGED)
    rows = np.zeros(2, ROW)
    rows["end_step"], rows["wait_s"], rows["step_s"], rows["fetch_s"] = 99, [1, 60], 60, [1, 60]
    rows["rank"], rows["node"] = [0, 1], ["m1", FORGED.encode()]
    rows["slow_wait_s"], rows["slow_s"] = 1, 1
    rows["slow_sample"] = "\0".join([FORGED] * 5).encode()
    folder.put_interval(attempt, *interval_bytes(rows.tobytes()))
    for verb in ("ls", "show", "goodput", "starved"):
        status, text, _ = penstock(verb, *(() if verb == "ls" else ("big-7",)))
        assert status == 0
        assert "\\nbig-9" in text, verb
        assert not [line for line in text.splitlines() if line.startswith("big-9")], verb
        assert "\x1b" not in text


def test_reason_of_the_last_failure_is_shown(folder: RunFolder, penstock: Penstock) -> None:
    folder.put_spec(RunSpec(run="big-7", command=("true",), record=folder.store.url))
    traceback = "Traceback (most recent call last):\nValueError: planted\x1b[2J"
    failed = FailedStart(
        at_us=500 * S,
        restarts=1,
        status=1,
        ends=3,
        is_over=False,
        line="ValueError: planted\x1b[2J",
        text=traceback,
    )
    put_failed_start(folder.store, folder.key(""), replace(failed, at_us=400 * S, line="earlier"))
    put_failed_start(folder.store, folder.key(""), failed)
    reason = "last failure: ValueError: planted[2J (3 failures without a step)"
    assert reason in penstock("ls")[1]
    assert f"big-7: does not wait, unknown; {reason}" in penstock("why", "big-7")[1]
    text = penstock("show", "big-7")[1]
    assert reason in text.splitlines()[0]
    assert "    ValueError: planted" in text
    assert "\x1b" not in text
    assert json.loads(penstock("show", "big-7", "--json")[1])["failure"]["ends"] == 3
    folder.put_event(2, 3, "saved", 95, {}, 600 * S)
    assert "last failure" not in penstock("ls")[1]
    assert "last failure" not in penstock("why", "big-7")[1]


QUEUED = """\
import re, shlex, sys
words = shlex.split(sys.argv[1])
mark = (re.findall(r"[|][0-9a-f]{{16}}[|]", sys.argv[1]) or ["|"])[0]
done = open({log!r}).read()
open({log!r}, "a").write(" ".join(words) + "\\n")
if "squeue" in words and "scancel" not in done:
    facts = ["12", "PENDING", "vision", "ann", "7", "low", "batch", "1", "cpu=1", *["N/A"] * 5]
    values = [*facts, "Resources", {name!r}, ""]
    print(mark.join(values) + mark)
"""


def test_run_that_waits_leaves_the_queue_when_it_is_stopped(tmp_path: Path) -> None:
    log, root = tmp_path / "log", str(tmp_path / "root")
    log.touch()
    prefix = json.dumps([sys.executable, str(tmp_path / "login.py")])
    (tmp_path / "slurm.toml").write_text(f'engine = "slurm"\nsubmit = {prefix}\nlogs = "{tmp_path}"\n')
    launcher = SlurmJobs(root, read_cluster(tmp_path / "slurm.toml"))
    (tmp_path / "login.py").write_text(QUEUED.format(log=str(log), name=launcher._name("big-7")))
    folder = RunFolder(loader.Root(root).store, "big-7")
    folder.put_spec(RunSpec(run="big-7", command=("true",), record=root), "ann")
    assert stop(folder, launcher) == "waited, and left the queue"
    assert folder.is_to_stop()
    cancels = [line for line in log.read_text().splitlines() if line.startswith("scancel")]
    assert cancels == [f"scancel --state=PENDING --name={launcher._name('big-7')}"]
    assert stop(folder, launcher) == "saves and ends after its step", "nothing waits any more"


LISTS = [
    ("train ls", "runs", "no runs"),
    ("checkpoints ls", "checkpoints", "has no checkpoints"),
    ("trail ls", "trails", "has no trails"),
    ("jobs ls", "jobs", "no jobs"),
    ("usage", "runs", "total"),
    ("usage --forecast", "runs", "too little history"),
    ("node suspects", "runs", "no suspects"),
]


@pytest.mark.parametrize(("verb", "names", "nothing"), LISTS, ids=[verb for verb, _, _ in LISTS])
def test_place_that_is_no_root_is_no_empty_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, names: str, nothing: str
) -> None:
    def answer(name: str) -> tuple[int, str, str]:
        status = main([*verb.split(), "--root", str(tmp_path / name)])
        return status, *capsys.readouterr()

    status, output, errors = answer("typo")
    assert (status != 0, output) == (True, "")
    assert f"typo is not a root, and has no {names}: check --root" in errors
    assert not (tmp_path / "typo").exists()
    loader.Root(tmp_path / "empty").create()
    status, output, _ = answer("empty")
    assert (status, nothing in output) == (0, True)
    record = tmp_path / "earlier" / "follows" / "big-7.json"  # a release before roots of trainings wrote it
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    status, output, _ = answer("earlier")
    assert (status, nothing in output) == (0, True)


def test_starved_refuses_a_run_that_is_not_there(folder: RunFolder, penstock: Penstock) -> None:
    status, output, errors = penstock("starved", "big-8")
    assert (status != 0, output) == (True, "")
    assert "has no run 'big-8'" in errors
    assert penstock("starved", "big-7")[:2] == (0, "big-7 has no interval yet: it stores one a minute\n")


def test_cancelled_run_says_where_it_goes_on(folder: RunFolder) -> None:
    folder.put_event(2, 3, "saved", 80, {})
    assert (
        cancel(folder, LocalRuns(folder.store.url)) == "goes on after step 80, its newest recorded checkpoint"
    )
