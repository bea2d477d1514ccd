"""The last step of a first rank that was killed: its launcher stores it, and the back-off has its time."""

import json
import struct
from pathlib import Path

import pytest

import loader
from penstock.train.goodput.run_usage import run_goodput
from penstock.train.launch.failures import note_kill
from penstock.train.launch.local_runs import LocalRuns, spans_of_loop
from penstock.train.launch.run_launcher import claim
from penstock.train.launch.run_log import RankStart
from penstock.train.run_folder import RunFolder
from penstock.train.run_spec import RunSpec
from penstock.train.step_file import LastStep, StepFile, read_last_step
from penstock.units import utc_us


def test_step_file_has_the_newest_step(tmp_path: Path) -> None:
    path = tmp_path / "step"
    assert read_last_step(path) is None
    file = StepFile(str(path))
    before_us = utc_us()
    for step in (0, 1, 2**40):
        file.write(step)
    file.close()
    file.write(7)
    last = read_last_step(path)
    assert last is not None
    assert last.step == 2**40
    assert before_us <= last.at_us <= utc_us()


@pytest.mark.parametrize(
    "data",
    [b"", b"1234567", struct.pack("<qq", -1, 1), struct.pack("<qq", 1, 0), struct.pack("<qq", 1, 2**62)],
)
def test_step_file_with_other_bytes_has_no_step(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "step"
    path.write_bytes(data)
    assert read_last_step(path) is None


def test_step_file_of_another_node_costs_nothing(tmp_path: Path) -> None:
    file = StepFile(str(tmp_path / "no-folder" / "step"))
    file.write(1)
    file.close()
    assert not (tmp_path / "no-folder").exists()


@pytest.mark.parametrize(
    ("events", "restarts", "is_stored"),
    [
        (("first_batch", "saved"), 1, True),
        ((), 1, True),
        (("first_batch", "failed"), 1, False),
        (("first_batch", "stopped"), 1, False),
        (("first_batch", "saved"), 2, False),
    ],
)
def test_kill_is_stored_unless_the_first_rank_stored_its_end(
    tmp_path: Path, events: tuple[str, ...], restarts: int, is_stored: bool
) -> None:
    """restarts: of the start that ended; a later one than the newest had no first rank."""
    folder = RunFolder(loader.Root(tmp_path / "root").store, "big-7")
    folder.begin_attempt({"id": "a", "restarts": 0})
    folder.put_event(1, 0, "first_batch", 0, {})
    assert folder.begin_attempt({"id": "b", "restarts": 1}) == 2
    for number, name in enumerate(events):
        folder.put_event(2, number, name, 10, {})
    note_kill(folder, LastStep(17, utc_us() - 3_000_000), restarts=restarts)
    own = folder.events(2)
    assert [event.name for event in own] == [*events, *(["killed"] if is_stored else [])]
    if is_stored:
        assert own[-1].step == 17
        assert 3_000_000 <= own[-1].facts["took_us"] < 60_000_000
    assert [event.name for event in folder.events(1)] == ["first_batch"]


def test_kill_without_a_record_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(loader.Root(tmp_path / "root").store, "big-7")
    note_kill(folder, LastStep(17, 1), restarts=0)
    note_kill(folder, None, restarts=0)
    assert folder.events() == []
    assert capsys.readouterr().err == ""


def test_start_of_this_machine_lasts_until_the_next_one_of_its_loop() -> None:
    lines = [
        '{"begun_us": 10, "log": 0, "ranks": 2, "loop_pid": 5}',
        '{"ended_us": 20}',
        '{"begun_us": 30, "log": 9, "ranks": 2, "loop_pid": 5}',
        '{"ended_us": 50}',
        '{"exit_us": 51, "status": 0}',
        '{"begun_us": 90, "log": 20, "ranks": 1, "loop_pid": 5}',
        '{"ended_us": 95}',
    ]
    first, second, third = spans_of_loop(lines, is_alive=False)
    assert (first.begun_us, first.ended_us, first.starts) == (10, 30, (RankStart(begun_us=10, ended_us=20),))
    assert (second.begun_us, second.ended_us) == (30, 50), "a person resumed the run later"
    assert (third.begun_us, third.ended_us) == (90, 95)
    (*_, waits) = spans_of_loop(lines, is_alive=True)
    assert waits.ended_us is None, "it waits for its next start"


def test_starts_by_an_earlier_release_have_no_delay() -> None:
    lines = ['{"begun_us": 10, "log": 0}', '{"ended_us": 20}', '{"begun_us": 30, "log": 9}']
    first, second = spans_of_loop(lines, is_alive=True)
    assert (first.ended_us, second.ended_us) == (20, None)


def test_starts_of_a_run_whose_record_was_deleted_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher of this machine keeps their times: the new run has the same name and place."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    record = str(tmp_path / "root")
    folder = RunFolder(loader.Root(record).store, "big-7")
    folder.put_spec(RunSpec(run="big-7", command=("true",), record=record))
    launcher = LocalRuns(record)
    claim(folder, launcher)
    now_us = utc_us()
    hour_us = 3_600_000_000
    times = [
        {"begun_us": now_us - 2 * hour_us, "loop_pid": 5},
        {"ended_us": now_us - hour_us},
        {"exit_us": now_us - hour_us, "status": 0},
        {"begun_us": now_us, "loop_pid": 6},
        {"ended_us": now_us + 7_000_000},
    ]
    log = launcher._path("big-7", "log")
    log.parent.mkdir(exist_ok=True)
    Path(f"{log}.spans").write_text("".join(json.dumps(line) + "\n" for line in times))
    assert len(launcher.spans("big-7")) == 2
    (start,) = run_goodput(folder, launcher)
    assert start.seconds == 7
