"""The wait of pods whose ranks failed: one decision for all pods of a start, longer without a step, and a signal."""

import os
import signal
import threading
from pathlib import Path

import pytest

import loader
from penstock.train.launch import failures, jobset_pod
from penstock.train.launch.failures import RankFailure
from penstock.train.launch.jobset_pod import AGAIN, OVER, PodStart, failure_spans, failure_status
from penstock.train.record_objects.failed_starts import newest_failed_start
from penstock.train.run_folder import RunFolder
from tests.servers.patience import until


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setattr(failures, "FIRST_S", 0.0)
    folder = RunFolder(loader.Root(tmp_path / "root").store, "big-7")
    folder.begin_attempt({})
    folder.put_event(1, 0, "saved", 40, {})
    return folder


class NoWait(threading.Event):
    """An event that nobody waits for."""

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether it is set."""
        return super().wait(0)


def pod_start(submission: str, restarts: int) -> PodStart:
    return PodStart(submission=submission, restarts=restarts, begun_us=1000 * (restarts + 1), nodes=2)


def waits(text: str) -> list[int]:
    return [int(line.rpartition(" in ")[2].split()[0]) for line in text.splitlines() if " in " in line]


def test_pods_of_one_start_decide_alike(folder: RunFolder) -> None:
    assert failure_status(folder, pod_start("a1", 0), RankFailure("ValueError: x"), 1) == 1
    assert failure_status(folder, pod_start("a1", 0), RankFailure("ConnectionError: peer"), 1) == 1, (
        "another pod, by the first's failure"
    )
    assert failure_status(folder, pod_start("a1", 3), RankFailure("ValueError: x"), 1) == OVER, (
        "restarts for a drained node between"
    )
    assert failure_status(folder, pod_start("a1", 3), RankFailure("ConnectionError: peer"), 1) == OVER


def test_failures_of_another_submit_do_not_count(folder: RunFolder) -> None:
    assert failure_status(folder, pod_start("a1", 0), RankFailure("x"), 1) == 1
    assert failure_status(folder, pod_start("b2", 0), RankFailure("x"), 1) == 1
    assert failure_status(folder, pod_start("b2", 1), RankFailure("x"), 1) == OVER


def test_failures_at_other_steps_or_of_other_lines_end_no_run(folder: RunFolder) -> None:
    assert failure_status(folder, pod_start("a1", 0), RankFailure("x"), 1) == 1
    folder.put_event(1, 1, "saved", 41, {})
    assert failure_status(folder, pod_start("a1", 1), RankFailure("x"), 1) == 1
    assert failure_status(folder, pod_start("a1", 2), RankFailure("y"), 1) == 1
    assert failure_status(folder, pod_start("a1", 3), RankFailure("y"), 1) == OVER


def test_secrets_in_the_last_line_stay_out_of_the_record(folder: RunFolder) -> None:
    line = "HTTPError: 403 for https://ann:hunter2@lab/a?X-Amz-Date={0}&X-Amz-Signature=s3cr3t{0}"
    assert failure_status(folder, pod_start("a1", 0), RankFailure(line.format(1)), 1) == 1
    stored = folder.store.get(folder.key("failures/a1-000000.json")).data
    assert b"HTTPError: 403 for https://***@lab/a" in stored
    assert b"hunter2" not in stored
    assert b"s3cr3t" not in stored


def test_killed_ranks_end_a_run_if_they_make_no_step(folder: RunFolder) -> None:
    assert failure_status(folder, pod_start("a1", 0), RankFailure(), 1) == 1
    folder.put_event(1, 1, "saved", 41, {})
    assert failure_status(folder, pod_start("a1", 1), RankFailure(), 1) == 1
    assert failure_status(folder, pod_start("a1", 2), RankFailure(), 1) == OVER


def test_reason_of_a_failed_start_is_stored_by_its_first_pod(folder: RunFolder) -> None:
    for line in ("ValueError: x", "ConnectionError: peer"):
        assert failure_status(folder, pod_start("a1", 3), RankFailure(line, f"Traceback\n{line}"), 1) == 1
    failed = newest_failed_start(folder.store, folder.key(""))
    assert failed is not None
    assert (failed.restarts, failed.line, failed.text) == (3, "ValueError: x", "Traceback\nValueError: x")
    assert len(list(folder.store.list(folder.key("ends/")))) == 1


def test_failure_of_an_earlier_release_counts(folder: RunFolder) -> None:
    body = b'{"step":40,"line":"x","wait_s":20,"waits_s":10,"over":false}'
    folder.store.put(folder.key("failures/a1-000000.json"), body)
    assert failure_status(folder, pod_start("a1", 1), RankFailure("x"), 1) == OVER


def test_wait_doubles_while_no_step_is_made(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(failures, "FIRST_S", 10.0)
    monkeypatch.setattr(jobset_pod, "Event", NoWait)
    for restarts in range(4):
        assert failure_status(folder, pod_start("a1", restarts), RankFailure(f"{restarts}"), 1) == 1
    assert waits(capsys.readouterr().out) == [10, 20, 40, 80]


def test_signal_ends_the_wait_and_the_run_begins_again(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "FIRST_S", 600.0)
    before = signal.getsignal(signal.SIGTERM)

    def stop_once_it_waits() -> None:
        until(lambda: signal.getsignal(signal.SIGTERM) is not before, "a handler of SIGTERM")
        os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=stop_once_it_waits)
    sender.start()
    assert failure_status(folder, pod_start("a1", 0), RankFailure("x"), 1) == AGAIN
    sender.join()


@pytest.mark.parametrize("data", [b"{", b'{"step":1}', b'{"step":0,"line":"x","wait_s":1e300,"waits_s":0}'])
def test_record_that_cannot_be_read_ends_no_run(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jobset_pod, "Event", NoWait)
    folder.store.put(folder.key("failures/a1-000000.json"), data)
    assert failure_status(folder, pod_start("a1", 1), RankFailure("x"), 1) == 1
    assert waits(capsys.readouterr().out) == [60]


def test_time_of_failed_pods_is_in_the_record(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "FIRST_S", 10.0)
    monkeypatch.setattr(jobset_pod, "Event", NoWait)
    folder.store.put(
        folder.key("failures/a1-000001.json"), b'{"step":1,"line":"","wait_s":1,"waits_s":1,"over":false}'
    )
    with monkeypatch.context() as patched:
        patched.setattr("time.time_ns", lambda: 9_000_000)
        assert failure_status(folder, pod_start("a1", 0), RankFailure("x"), 1) == 1
    (span,) = failure_spans(folder)
    assert (span.begun_us, span.ended_us, span.nodes, span.state) == (1000, 10_009_000, 2, "failed")
