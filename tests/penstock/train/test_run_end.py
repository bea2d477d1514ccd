"""The end of a run: its exit status for scripts, its output until then, and an alert."""

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import loader
from loader.errors import EngineUnreachable, InvalidRuntime
from penstock.cli import main
from penstock.train.launch import run_end
from penstock.train.launch.launcher import RunStatus
from penstock.train.launch.local_runs import LocalRuns
from penstock.train.launch.run_end import send_end, wait_until_ended
from penstock.train.launch.run_log import exit_status, without_ranks
from penstock.train.run_folder import RunFolder
from penstock.train.run_spec import RunSpec
from penstock.train.submitting import submit
from tests.servers.patience import until


class Hook(ThreadingHTTPServer):
    """Keeps the alerts that it gets."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.alerts: list[dict[str, str]] = []


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Hook)
        self.server.alerts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    with Hook() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("PENSTOCK_ALERTS", f"webhook+http://127.0.0.1:{server.server_port}/T0KEN")
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def record(tmp_path: Path) -> str:
    with loader.Root(tmp_path / "root") as root:
        root.create()
    return str(tmp_path / "root")


@pytest.fixture
def launcher(record: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalRuns]:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(run_end, "ASK_S", 0.1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    launcher = LocalRuns(record)
    yield launcher
    launcher.cancel("big-7")
    for process in launcher._begun:
        process.wait()


@pytest.mark.server
def test_wait_exits_with_the_runs_status_after_its_alert(
    record: str, launcher: LocalRuns, hook: Hook, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(loader.Root(record).store, "big-7")
    assert main(["train", "wait", "big-7", "--root", record]) != 0, "a run that nobody submitted"
    script = "import sys, time; print('one', flush=True); time.sleep(1); print('two', end='', flush=True)"
    submit(RunSpec(run="big-7", command=(sys.executable, "-c", script), record=record), launcher)
    capsys.readouterr()
    assert main(["train", "logs", "big-7", "--root", record, "--follow"]) == 0
    text = capsys.readouterr().out
    assert text.index("one\n") < text.index("two")
    assert text.endswith("penstock: big-7 has ended\n")
    assert main(["train", "wait", "big-7", "--root", record, "--timeout", "1h"]) == 0
    assert "big-7 ended with status 0" in capsys.readouterr().out
    until(lambda: len(hook.alerts) == 1, lambda: launcher.logs("big-7"))
    (alert,) = hook.alerts
    assert (alert["name"], alert["severity"]) == ("training-over", "resolved")
    assert alert["what"].startswith("big-7 ended after 0 steps")
    assert folder.events() == []


class Statuses:
    """A launcher that answers with one status after the other, and with the last one for ever."""

    def __init__(self, *statuses: RunStatus | EngineUnreachable) -> None:
        self.statuses = [*statuses]

    def status(self, run: str) -> RunStatus:
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if isinstance(status, EngineUnreachable):
            raise status
        return status


RUNS = RunStatus(state="running")


@pytest.mark.parametrize(
    ("statuses", "event", "expected"),
    [
        ((RUNS, RunStatus(state="ended", exit_status=7)), "ended", 7),
        ((EngineUnreachable("no answer"), RunStatus(state="ended", exit_status=0)), "failed", 0),
        ((RunStatus(state="ended"),), "ended", 0),
        ((RunStatus(state="unknown"),), "stopped", 0),
        ((RunStatus(state="ended"),), "saved", 1),
        ((RunStatus(state="ended"),), "failed", 1),
        ((RUNS,), "saved", None),
    ],
)
def test_status_is_the_launchers_or_the_records(
    record: str,
    monkeypatch: pytest.MonkeyPatch,
    statuses: tuple[RunStatus | EngineUnreachable, ...],
    event: str,
    expected: int | None,
) -> None:
    monkeypatch.setattr(run_end, "ASK_S", 0.01)
    folder = RunFolder(loader.Root(record).store, "big-7")
    folder.put_event(folder.begin_attempt({}), 0, event, 5, {})
    assert wait_until_ended(folder, Statuses(*statuses), 0.1) == expected  # type: ignore[arg-type]


def test_unknown_run_without_an_event_is_an_error(record: str) -> None:
    folder = RunFolder(loader.Root(record).store, "big-7")
    with pytest.raises(InvalidRuntime, match="pass --cluster"):
        wait_until_ended(folder, Statuses(RunStatus(state="unknown")))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], None),
        (['{"begun_us": 1}', '{"ended_us": 2}', '{"exit_us": 3, "status": 3}'], 3),
        (['{"begun_us": 1}', '{"exit_us": 3, "status": 3}', '{"begun_us": 4}'], None),
        (['{"begun_us": 1}', '{"exit_us": 3, "status": -9}'], None),
        (['{"begun_us": 1}', '{"exit_us": 3, "sta'], None),
    ],
)
def test_exit_status_is_the_one_after_the_last_start(lines: list[str], expected: int | None) -> None:
    assert exit_status(lines) == expected


def test_line_of_the_end_hides_no_start_without_ranks() -> None:
    starts = [{"begun_us": 5}, {"no_rank_us": 6}, {"exit_us": 7, "status": 1}]
    assert without_ranks(starts) == (5, 1)


@pytest.mark.parametrize(
    ("event", "status", "severity", "words"),
    [
        ("failed", 3, "error", "failed with status 3 after 40 steps"),
        ("stopped", 0, "resolved", "was stopped after 40 steps; penstock train resume"),
        ("ended", 0, "resolved", "ended after 40 steps"),
    ],
)
def test_alert_says_how_a_run_ended(
    record: str, hook: Hook, event: str, status: int, severity: str, words: str
) -> None:
    folder = RunFolder(loader.Root(record).store, "big-7")
    folder.put_event(folder.begin_attempt({}), 0, event, 40, {})
    send_end(folder, status)
    assert [(one["severity"], words in one["what"]) for one in hook.alerts] == [(severity, True)]


def test_alert_that_fails_changes_nothing(
    record: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(loader.Root(record).store, "big-7")
    monkeypatch.setattr("penstock.alerts._PAUSE_S", 0.0)
    monkeypatch.setenv("PENSTOCK_ALERTS", "webhook+http://127.0.0.1:1/T0KEN")
    send_end(folder, 0)
    monkeypatch.setenv("PENSTOCK_ALERTS", "T0KEN")
    send_end(folder, 0)
    errors = capsys.readouterr().err
    assert "did not take the alert" in errors
    assert "is not a channel" in errors
    assert "T0KEN" not in errors
