"""A run of this machine has one gang, and penstock kills no process but its own."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loader.errors import Conflict, EngineUnreachable
from penstock.compute.engines import local_engine
from penstock.compute.engines.local_engine import LocalEngine
from penstock.compute.locked_processes import LockedProcesses, holders
from penstock.train.launch import local_runs
from penstock.train.launch.local_runs import RANKS_KIND, LocalRuns
from penstock.train.launch.node_start import run_node
from penstock.train.launch.run_log import SPANS
from penstock.train.run_spec import RunSpec
from penstock.train.submitting import resume, submit
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S, until
from tests.servers.processes import command_name, end

REPOSITORY = Path(__file__).parents[3]
SLEEP = ("sleep", "1000")


@pytest.fixture
def launcher(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalRuns]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    launcher = LocalRuns(root)
    yield launcher
    launcher.cancel("big-7")
    for process in launcher._begun:
        process.wait()


def spec(root: str, command: tuple[str, ...] = SLEEP) -> RunSpec:
    return RunSpec(run="big-7", command=command, record=root)


def launcher_pid(launcher: LocalRuns) -> int:
    pid = launcher._process("big-7")
    assert pid is not None
    return pid


def ranks(launcher: LocalRuns, command: str) -> list[int]:
    return [pid for pid in holders(launcher._path("big-7", RANKS_KIND)) if command_name(pid) == command]


@pytest.mark.server
def test_ranks_die_with_their_launcher(root: str, launcher: LocalRuns) -> None:
    submit(spec(root), launcher)
    log = lambda: launcher.logs("big-7")  # noqa: E731
    until(lambda: len(ranks(launcher, "sleep")) == 1, log)
    os.kill(launcher_pid(launcher), signal.SIGKILL)
    until(lambda: launcher.status("big-7").state == "ended", log)
    assert ranks(launcher, "sleep") == []


@pytest.mark.server
def test_run_has_no_second_gang_while_a_rank_lives(
    root: str, launcher: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel kills the shell, and not what the shell has started."""
    monkeypatch.setattr(local_runs, "LOOKS", 2)
    shell = spec(root, ("sh", "-c", "sleep 1000; true"))
    submit(shell, launcher)
    log = lambda: launcher.logs("big-7")  # noqa: E731
    until(lambda: len(ranks(launcher, "sleep")) == 1, log)
    (rank,) = ranks(launcher, "sleep")
    os.kill(launcher_pid(launcher), signal.SIGKILL)
    # Its lock outlives the number of its main thread, until its other threads have ended.
    until(lambda: ranks(launcher, "sh") == [] and launcher.status("big-7").reason != "", log)
    status = launcher.status("big-7")
    assert (status.state, f"processes {rank} of this machine" in status.place) == ("running", True)
    assert "its launcher was killed" in status.reason
    with refusal(Conflict, what="processes", where="big-7", given=f"processes {rank}"):
        submit(shell, launcher)
    with refusal(Conflict, what="processes", where="big-7", given=f"processes {rank}"):
        resume(shell, launcher)
    launcher.cancel("big-7")
    assert launcher.status("big-7").state == "ended"
    until(lambda: command_name(rank) != "sleep", log)


LEAVES = """\
import subprocess
subprocess.Popen(["sleep", "1000"], start_new_session=True, close_fds=False)
"""


def test_ranks_that_are_left_behind_end_before_the_next_start(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert run_node([sys.executable, "-c", LEAVES], os.environ, lock)[0] == 0
    until(lambda: holders(lock) == [], lambda: str(holders(lock)))


SUBMIT = """\
import sys
from penstock.train.launch.local_runs import LocalRuns
from penstock.train.run_spec import read_spec
from penstock.train.submitting import submit
spec = read_spec(sys.argv[1])
launcher = LocalRuns(spec.record)
sys.stdin.read()  # until all of them are here
print(submit(spec, launcher))
"""


def test_submits_at_one_moment_start_one_gang(root: str, launcher: LocalRuns, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f'run = "big-7"\ncommand = ["sleep", "1000"]\nrecord = "{root}"\n')
    pipe_end, pipe_begin = os.pipe()
    command = [sys.executable, "-c", SUBMIT, str(file)]
    submits = [
        subprocess.Popen(command, stdin=pipe_end, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
        for _ in range(3)
    ]
    os.close(pipe_end)
    os.close(pipe_begin)
    answers = [process.communicate(timeout=PATIENCE_S)[0] for process in submits]
    assert [process.returncode for process in submits] == [0, 0, 0]
    assert {answer.partition(",")[0] for answer in answers} == {
        f"process {launcher_pid(launcher)} of this machine"
    }
    starts = Path(f"{launcher._path('big-7', 'log')}{SPANS}")
    until(lambda: starts.exists() and starts.read_text().endswith("\n"), lambda: launcher.logs("big-7"))
    (line,) = starts.read_text().splitlines()
    assert list(json.loads(line)) == ["begun_us", "log", "ranks", "loop_pid"]


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that has nothing to do with penstock."""
    with subprocess.Popen(SLEEP) as process:
        yield process.pid
        assert process.poll() is None, "it lives"
        end(process.pid)


def test_number_in_a_lock_that_is_not_its_holders_gets_no_signal(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stranger: int
) -> None:
    """Such as one that the system gave to another process."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(local_runs, "END_S", 0.1)
    monkeypatch.setattr(local_engine, "END_S", 0.1)
    launcher, engine = LocalRuns(root), LocalEngine()
    own_name = launcher._name("big-7")
    for processes, name, what in (
        (launcher._processes, own_name, "processes"),
        (engine._processes, "pk-1", "pk-1"),
    ):
        processes.check_folder()
        path = processes.path(name, "lock")
        path.write_text(str(stranger))
        with path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert processes.pid(name) is None
            with refusal(EngineUnreachable, what=what):
                launcher.cancel("big-7") if name != "pk-1" else engine.cancel(name)
    assert launcher.status("big-7").state == "ended"


def in_link(folder: Path, name: str, pid: int) -> None:
    other = folder.with_name("other")
    other.mkdir()
    folder.symlink_to(other)


def in_open_folder(folder: Path, name: str, pid: int) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    (folder / f"{name}.lock").write_text(str(pid))


def in_pipe(folder: Path, name: str, pid: int) -> None:
    folder.mkdir(mode=0o700)
    for kind in ("lock", "log", f"log{SPANS}"):
        os.mkfifo(folder / f"{name}.{kind}")


def in_linked_files(folder: Path, name: str, pid: int) -> None:
    folder.mkdir(mode=0o700)
    other = folder.with_name("file")
    other.write_text(str(pid))
    for kind in ("lock", "log", f"log{SPANS}"):
        (folder / f"{name}.{kind}").symlink_to(other)


OWNER = {"owner"}
LINK = {"lock", "log", f"log{SPANS}"}


@pytest.mark.parametrize(
    ("plant", "faults"),
    [(in_link, OWNER), (in_open_folder, OWNER), (in_pipe, OWNER), (in_linked_files, LINK)],
)
def test_state_that_another_user_may_have_planted_is_not_read(
    root: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stranger: int,
    plant: object,
    faults: set[str],
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    launcher, engine = LocalRuns(root), LocalEngine()
    assert callable(plant)
    plant(launcher._processes.folder, launcher._name("big-7"), stranger)
    calls = [launcher.status, launcher.cancel, launcher.spans, launcher.logs]
    calls.append(lambda _: launcher.submit(spec(root)))
    for call in calls:
        with pytest.raises(EngineUnreachable) as refused:
            call("big-7")
        assert refused.value.what in faults
    for path in (tmp_path / "other", tmp_path / "file"):
        if path.is_dir():
            path.rmdir()  # nothing was written there
        path.unlink(missing_ok=True)
    plant(engine._processes.folder, "pk-1", stranger)
    for engine_call in (engine.find, engine.status, engine.cancel):
        with pytest.raises(EngineUnreachable) as refused:
            engine_call("pk-1")
        assert refused.value.what in faults


def test_folder_of_another_user_is_not_read(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    owner = os.getuid()
    monkeypatch.setattr("os.getuid", lambda: owner + 1)
    processes = LockedProcesses("trainings")
    processes.folder.mkdir(mode=0o700)
    with refusal(EngineUnreachable, what="owner", where=processes.folder):
        LocalRuns(root).status("big-7")


def test_folder_that_others_may_read_becomes_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    processes = LockedProcesses("trainings")
    processes.folder.mkdir()
    processes.folder.chmod(0o755)
    processes.check_folder()
    assert processes.folder.stat().st_mode & 0o777 == 0o700
