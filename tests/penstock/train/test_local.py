"""A run on this machine: submitted once, preempted, stopped by a person, resumed; one that always fails ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import loader
from loader.errors import (
    Conflict,
    Forbidden,
    FormatTooNew,
    InvalidCluster,
    InvalidSpec,
    InvalidStore,
    RunTaken,
    StoreError,
    Transient,
)
from loader.storage import open_store
from penstock.checkpoints import Checkpoints
from penstock.compute.cluster import Cluster
from penstock.train.launch import local_loop
from penstock.train.launch.failures import (
    MOST_TEXT,
    SILENT_ENDS,
    UNREADABLE,
    Failures,
    last_step,
    likeness,
    read_failure,
)
from penstock.train.launch.local_loop import run_until_ended
from penstock.train.launch.local_runs import LocalRuns
from penstock.train.launch.node_start import environment, run_node, torchrun
from penstock.train.launch.run_log import parse_starts
from penstock.train.record_objects.failed_starts import newest_failed_start
from penstock.train.run_folder import RunFolder
from penstock.train.run_spec import RunSpec
from penstock.train.submitting import cancel, record_launcher, resume, stop, submit, summary
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S, until
from tests.servers.processes import command_line

TRAINING = str(Path(__file__).with_name("training.py"))


@pytest.fixture
def launcher(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalRuns]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    launcher = LocalRuns(root)
    yield launcher
    launcher.cancel("big-7")
    for process in launcher._begun:
        process.wait()


def spec(root: str, *options: object, **more: object) -> RunSpec:
    command = (sys.executable, TRAINING, root, *map(str, options))
    return RunSpec(**{"run": "big-7", "command": command, "ranks_per_node": 2, "record": root, **more})  # type: ignore[arg-type]


@pytest.mark.server
def test_run_is_preempted_stopped_and_resumed(
    root: str, launcher: LocalRuns, at_scale: Callable[[int, int], int]
) -> None:
    n_ranks = at_scale(1, 2)
    run = spec(root, "--step-s", 0.1, "--steps", 60, ranks_per_node=n_ranks)
    folder = RunFolder(loader.Root(root).store, "big-7")
    place = submit(run, launcher)
    assert submit(run, launcher) == place, "it is found"
    with refusal(RunTaken, what="checkpoints", given=[f"{root}-elsewhere"]):
        submit(replace(run, checkpoints=f"{root}-elsewhere"), launcher)
    assert not os.path.exists(f"{root}-elsewhere"), "a refused file leaves no root"
    log = lambda: launcher.logs("big-7")  # noqa: E731
    until(lambda: log().count("took") > 6, log)
    ranks = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_rank(pid, root)]
    os.kill(ranks[0], signal.SIGUSR1)
    until(lambda: len(folder.attempts()) == 2, log)
    until(lambda: [event.name for event in folder.events() if event.attempt == 2][1:2] == ["restored"], log)
    ranks = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_rank(pid, root)]
    for pid in ranks:
        os.kill(pid, signal.SIGSTOP)  # otherwise they might end before the next lines
    stop(folder)
    with refusal(Conflict, what="state", where="big-7", given="stopping"):
        resume(run, launcher)
    for pid in ranks:
        os.kill(pid, signal.SIGCONT)
    until(lambda: launcher.status("big-7").state == "ended", log)
    assert "restarts" in log()
    with refusal(Conflict, what="state", where="big-7", given="stopped or cancelled"):
        submit(run, launcher)
    steps = summary(folder, launcher).step
    assert Checkpoints(root, "big-7").steps()[-1] == steps < 60
    other_ranks = 3 - n_ranks
    resume(replace(run, ranks_per_node=other_ranks), launcher)
    until(lambda: launcher.status("big-7").state == "ended", log)
    assert folder.events()[-1].name == "ended"
    # Each step once on each rank: rank 1 has the steps before the change, or those after it.
    of_rank_1 = 60 - steps if other_ranks == 2 else steps
    assert [log().count(f"took {n} ") for n in range(2)] == [60, of_rank_1]
    attempts = folder.attempts()
    assert [attempts[n]["ranks"] for n in sorted(attempts)] == [n_ranks, n_ranks, other_ranks]
    assert [*folder.ranks_per_node(attempts).values()] == [n_ranks, n_ranks, other_ranks]


def is_rank(pid: int, root: str) -> bool:
    return command_line(pid).split(b"\0")[1:3] == [TRAINING.encode(), root.encode()]


@pytest.mark.server
def test_run_that_fails_twice_alike_ends(
    root: str, launcher: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = (sys.executable, "-c", "raise ValueError('planted')")
    submit(RunSpec(run="big-7", command=command, ranks_per_node=2, record=root), launcher)
    until(lambda: launcher.status("big-7").state == "ended", lambda: launcher.logs("big-7"))
    log = launcher.logs("big-7")
    assert "restarts in 10 s" in log
    assert "failed twice alike without a step between" in log


def test_full_disk_ends_no_run(root: str, tmp_path: Path) -> None:
    """Neither its log nor the file of its starts takes a byte."""
    run = RunSpec(run="big-7", command=("true",), record=root)
    log = tmp_path / "log"
    log.touch()
    (tmp_path / "log.spans").mkdir()
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", local_loop.__name__, str(log)],
            input=json.dumps(run.to_json()).encode(),
            stdout=full,
            stderr=full,
            cwd=Path(__file__).parents[3],
            timeout=PATIENCE_S,
        )
    assert done.returncode == 0


def test_start_without_room_is_tried_again(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    room, tries = tmp_path / "room", list[float]()
    monkeypatch.setattr("tempfile.tempdir", str(room))

    def sleep(seconds: float) -> None:
        tries.append(seconds)
        if len(tries) == 3:  # two failures alike would end a run
            room.mkdir()

    monkeypatch.setattr("time.sleep", sleep)
    (tmp_path / "log").touch()
    command = ("sh", "-c", f"echo $PENSTOCK_ATTEMPT > {tmp_path}/attempt")
    assert run_until_ended(RunSpec(run="big-7", command=command, record=root), str(tmp_path / "log")) == 0
    begins = [
        times
        for times in parse_starts((tmp_path / "log.spans").read_text().splitlines())
        if "begun_us" in times
    ]
    assert int((tmp_path / "attempt").read_text()) == len(begins) - 1, "`logs --attempt` finds its line"
    assert tries == [10, 20, 40]
    assert capsys.readouterr().out.count("the run did not start: ") == 3


def test_start_that_is_always_refused_ends_the_run(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = list[float]()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    monkeypatch.setattr("time.sleep", waits.append)
    (tmp_path / "log").touch()
    run = RunSpec(run="big-7", command=("true",), record=root)
    assert run_until_ended(run, str(tmp_path / "log")) == local_loop.NOT_STARTED
    assert sum(waits) > 3000
    assert "it is over" in capsys.readouterr().out


FAILS = """\
import time, torch.distributed as ranks
ranks.init_process_group("gloo")
raise ValueError(f"at {time.time_ns()}")
"""


@pytest.mark.server
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_last_line_of_a_failure_is_of_the_rank_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """torch puts its own name of a rank before each line, and torchrun ends with a traceback that is always alike."""
    for name, value in {"GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "fails.py").write_text(FAILS)
    run = RunSpec(
        run="a", command=(sys.executable, str(tmp_path / "fails.py")), record="/r", ranks_per_node=ranks
    )
    status, failure = run_node(torchrun(run), environment(run, os.environ))
    (tmp_path / "log").write_text(capfd.readouterr().err)
    assert status == 1
    assert (failure.line or read_failure(str(tmp_path / "log")).line).startswith("ValueError: at ")
    assert bool(failure.line) is (ranks > 1), "pods read it"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("ValueError: x", "ValueError: x"),
        (" 3: [rank3]: ValueError: x", "ValueError: x"),
        ("[rank3]:[rank3]: ValueError: x", "ValueError: x"),
        ("[rank3]: ValueError: x", "ValueError: x"),
        ("[rank3]:ValueError: x", "ValueError: x"),
    ],
)
def test_last_line_has_no_name_of_a_rank(tmp_path: Path, line: str, text: str) -> None:
    (tmp_path / "log").write_text(f'[rank3]:  File "x", line 1, in Error\n{line}\n[rank3]:    raise Error\n')
    assert read_failure(str(tmp_path / "log")).line == text


def test_line_of_a_failure_is_of_the_first_rank_that_failed(tmp_path: Path) -> None:
    """The other ranks lose their connection to it, at a port that differs from start to start."""
    log = tmp_path / "log"
    log.write_text(
        "Traceback (most recent call last):\nValueError: of the start before\n"
        " 2: ConnectionError: tried again\n 1: Traceback (most recent call last):\n 1:   File\n"
        " 0: [rank0]: Traceback (most recent call last):\n 1: ValueError: planted\n"
        " 0: [rank0]: RuntimeError: Connection closed by peer [127.0.0.1]:41234\n"
        + " 3: Traceback (most recent call last):\n 3: RuntimeError: Connection closed\n" * 1000
        + "srun: error: m1: task 1: Exited with exit code 1\n"
    )
    failure = read_failure(str(log), 67)
    assert failure.line == "ValueError: planted"
    assert failure.text == "Traceback (most recent call last):\n  File\nValueError: planted"


def test_record_is_one_whatever_its_spelling(
    root: str, launcher: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`record = "data"` of a file, and the URL that `--root data` opens."""
    monkeypatch.chdir(Path(root).parent)
    assert LocalRuns(Path(root).name)._path("big-7", "lock") == launcher._path("big-7", "lock")


def test_other_file_resumes_nothing(root: str, launcher: LocalRuns) -> None:
    folder = RunFolder(loader.Root(root).store, "big-7")
    folder.put_spec(spec(root))
    stop(folder)
    with refusal(RunTaken, what="gpus_per_node", given=[3], accepted=[0]):
        resume(spec(root, gpus_per_node=3), launcher)
    assert folder.is_to_stop()


def test_cancelled_run_goes_on_by_resume_only(root: str, launcher: LocalRuns) -> None:
    folder = RunFolder(loader.Root(root).store, "big-7")
    folder.put_spec(spec(root))
    cancel(folder, launcher)
    assert folder.is_to_stop()
    with refusal(Conflict, what="state", where="big-7", given="stopped or cancelled"):
        submit(spec(root), launcher)
    assert launcher.status("big-7").state == "unknown"


@pytest.mark.parametrize(
    "more", [{"nodes": "2-4"}, {"gpus_per_node": 1}, {"priority": "low"}, {"walltime_s": 60}]
)
def test_key_that_needs_a_scheduler_is_refused(
    root: str, launcher: LocalRuns, more: dict[str, object]
) -> None:
    ((name, value),) = more.items()
    for refuses in (launcher.describe, launcher.check, launcher.submit):
        with refusal(InvalidSpec, what=name, where="big-7", given=value):
            refuses(spec(root, **more))
    assert launcher.status("big-7").state == "unknown"


def test_engine_without_a_launcher_is_named(root: str) -> None:
    with refusal(InvalidCluster, what="engine", given="ray", accepted=["kubernetes", "local", "slurm"]):
        record_launcher(root, Cluster(engine="ray"))


def test_file_of_a_run_is_created_for_its_user_only(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a mode that is set later leaves the file open for a moment")

    monkeypatch.setattr(Path, "chmod", refuse)
    path = tmp_path / "spec"
    before = os.umask(0)
    try:
        assert not local_loop.put_file(path, spec(root))
        assert local_loop.put_file(path, spec(root, grace_s=31))
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.glob("spec*")) == [path]


def test_failure_between_two_checkpoints_is_at_the_step_of_its_interval() -> None:
    folder = RunFolder(open_store("memory://failure-steps"), "big-7")
    assert last_step(folder) == -1
    folder.put_event(1, 0, "saved", 40, {})
    folder.put_interval(1, 52, b"")
    folder.put_event(2, 0, "restored", 40, {})
    assert last_step(folder) == 40
    folder.put_interval(2, 47, b"")
    assert last_step(folder) == 47


def test_failures_wait_longer_until_a_step_is_made() -> None:
    failures = Failures()
    assert [failures.next_start_s(5, f"{n}") for n in range(8)] == [10, 20, 40, 80, 160, 320, 600, 600]
    assert failures.next_start_s(6, "x") == 10
    assert failures.next_start_s(6, "y") == 20
    assert failures.next_start_s(None, "y") == 40
    assert failures.ends == 3
    assert failures.next_start_s(6, "y") is None


@pytest.mark.parametrize("error", [Forbidden, Transient, InvalidStore])
def test_store_that_refuses_the_record_is_no_step(
    error: type[StoreError], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store("memory://failure-refused")
    folder = RunFolder(store, "big-7")
    folder.put_event(1, 0, "saved", 40, {})
    failures = Failures()
    assert failures.next_start_s(last_step(folder), "CUDA error") == 10

    def refuse(*_: object, **__: object) -> None:
        raise error("ExpiredToken")

    with monkeypatch.context() as patched:
        patched.setattr(type(store), "list", refuse)
        assert last_step(folder) is None
        assert failures.next_start_s(last_step(folder), "CUDA error") == 20
    assert failures.next_start_s(last_step(folder), "CUDA error") is None


def test_damage_after_a_step_is_no_step() -> None:
    failures = Failures()
    assert failures.next_start_s(5, "x") == 10
    assert failures.next_start_s(UNREADABLE, "x") == 20
    assert failures.next_start_s(5, "y") == 40
    assert failures.next_start_s(UNREADABLE, "y") == 80
    assert failures.next_start_s(5, "x") is None


@pytest.mark.parametrize("step", [5, -1, UNREADABLE])
def test_two_failures_alike_end_a_run_whatever_lies_between(step: int) -> None:
    failures = Failures()
    for line in ("ValueError: planted", "srun: error: Node failure on m3", "other"):
        assert failures.next_start_s(step, line) is not None
    assert failures.next_start_s(step, "ValueError: planted") is None
    assert failures.ends == 4


def test_store_that_is_away_ends_a_run_after_an_hour() -> None:
    failures = Failures()
    waits = [failures.next_start_s(None, "Transient: away") for _ in range(SILENT_ENDS)]
    assert waits.count(None) == 1
    assert waits[-1] is None
    assert sum(wait for wait in waits if wait is not None) > 3000
    failures = Failures()
    assert [failures.next_start_s(None, f"{n}") for n in range(20)].count(None) == 0


@pytest.mark.parametrize(
    ("first", "second", "is_alike"),
    [
        ("srun: error: m3: task 0: Killed", "srun: error: m4: tasks 1-2: Killed", True),
        ("srun: error: m3: task 0: Killed", "srun: error: m3: task 0: Out Of Memory", False),
        ("srun: error: Node failure on m3", "srun: error: Node failure on m12", True),
        (
            "slurmstepd-m1: error: StepId=4.0 exceeded memory",
            "slurmstepd-m2: error: StepId=4.1 exceeded memory",
            True,
        ),
        ("Connection closed by peer [127.0.0.1]:41234", "Connection closed by peer [127.0.0.1]:5123", True),
        ("error at 0x7f12ab34", "error at 0x7f12ab35", True),
        ("ValueError: 5 of 7", "ValueError: 6 of 7", False),
    ],
)
def test_ends_are_alike_without_addresses_and_nodes(first: str, second: str, is_alike: bool) -> None:
    assert (likeness(first) == likeness(second)) is is_alike


def test_damaged_event_does_not_hide_the_steps_of_intervals() -> None:
    folder = RunFolder(open_store("memory://damaged-event"), "big-7")
    folder.store.put(folder.key("events/000001-000000.json"), b"{")
    assert last_step(folder) == UNREADABLE
    folder.put_interval(1, 52, b"")
    assert last_step(folder) == 52


def test_store_that_does_not_answer_is_no_damaged_record(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(open_store("memory://no-answer"), "big-7")

    def refuse(error: Exception) -> None:
        def listed(prefix: str) -> None:
            raise error

        monkeypatch.setattr(folder.store, "list", listed)

    for error in (Transient("away"), Forbidden("403")):
        refuse(error)
        assert last_step(folder) is None
    refuse(FormatTooNew("format 9"))
    assert last_step(folder) == UNREADABLE


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (["srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller"], 0),
        (["step 5", "srun: error: Node failure on m3"], 1),
        (["srun: error: m3: tasks 2-3: Killed", "srun: Terminating StepId=2.1"], 0),
        (
            [
                "srun: error: m2: task 0: Exited with exit code 137",
                "srun: launch/slurm: _step_signal: Terminating StepId=2.1",
                " 0: slurmstepd-m2: error: *** STEP 2.1 ON m2 CANCELLED AT 2026-11-27T16:57:34 ***",
            ],
            0,
        ),
        (
            [
                "1: Traceback (most recent call last):",
                "1: RuntimeError: Connection closed by peer [127.0.0.1]:41234",
                "srun: error: m2: task 0: Out Of Memory",
            ],
            2,
        ),
        (["srun: error: Unable to contact slurm controller", "0: ValueError: planted"], 1),
        (["step 5", "bad configuration"], 1),
    ],
)
def test_line_of_slurm_stands_for_ranks_that_it_ended(tmp_path: Path, lines: list[str], line: int) -> None:
    (tmp_path / "log").write_text("\n".join(lines))
    assert read_failure(str(tmp_path / "log")).line == lines[line].removeprefix("0: ")


def test_text_of_a_failure_is_bounded(tmp_path: Path) -> None:
    frames = "".join(f'  File "x", line {n}, in f\n' for n in range(10_000))
    (tmp_path / "log").write_text(f"Traceback (most recent call last):\n{frames}ValueError: planted\n")
    failure = read_failure(str(tmp_path / "log"))
    assert len(failure.text) <= MOST_TEXT
    assert failure.text.startswith("Traceback")
    assert failure.text.endswith("ValueError: planted")


def test_reason_of_a_failed_start_is_in_the_record_without_secrets(
    tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_API_TOKEN", "PLANTEDsecret")
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    (tmp_path / "fails.py").write_text(
        "import os\nraise ValueError('https://ann:pw@lab/' + os.environ['LAB_API_TOKEN'])"
    )
    log = tmp_path / "log"
    script = f"exec {sys.executable} {tmp_path}/fails.py 2>> {log}"
    run = RunSpec(run="big-7", command=("sh", "-c", script), record=root)
    log.touch()
    assert run_until_ended(run, str(log)) == 1
    folder = RunFolder(loader.Root(root).store, "big-7")
    failed = newest_failed_start(folder.store, folder.key(""))
    assert failed is not None
    assert (failed.restarts, failed.status, failed.ends, failed.is_over) == (1, 1, 2, True)
    assert failed.line == "ValueError: https://***@lab/***"
    assert "fails.py" in failed.text
    assert failed.summary().endswith("(the run is over: it failed twice alike without a step between)")
    assert len(list(folder.store.list(folder.key("ends/")))) == 2
    for info in folder.store.list(folder.key("ends/")):
        assert b"PLANTED" not in folder.store.get(info.key).data
