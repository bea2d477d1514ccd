"""A process group gets its last signal while its number cannot be another one's."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from penstock.compute.engines.ray_element import element
from penstock.compute.process_groups import end_group, has_ended
from penstock.nodes.node_check import run_limited
from penstock.train.launch.node_start import run_node
from tests.servers.patience import until


def child(*command: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command, start_new_session=True)


def test_child_that_has_ended_keeps_its_number() -> None:
    process = child("true")
    until(lambda: has_ended(process), lambda: "it does not end")
    assert Path(f"/proc/{process.pid}").exists()
    assert end_group(process) == 0
    assert has_ended(process)


def test_child_that_does_not_obey_is_killed() -> None:
    script = "trap '' TERM; echo; sleep 1000 & wait; sleep 1000"
    process = subprocess.Popen(["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == b"\n"  # it ignores the signal from here on
        assert not has_ended(process)
        assert end_group(process, 0.1) == -signal.SIGKILL


def test_child_that_was_waited_for_gets_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    process = child("false")
    process.wait()
    sent = list[int]()
    monkeypatch.setattr("os.killpg", lambda group, number: sent.append(group))
    assert end_group(process) == 1
    assert not sent


@pytest.fixture
def signal_log(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each group that got a signal still had its number."""
    there = list[bool]()
    kill = os.killpg

    def record_signal(group: int, number: int) -> None:
        there.append(Path(f"/proc/{group}").exists())
        kill(group, number)

    monkeypatch.setattr("os.killpg", record_signal)
    return there


def test_no_group_is_signalled_after_its_leader_was_reaped(signal_log: list[bool], tmp_path: Path) -> None:
    assert run_limited(["echo", "ok"], 60) == (b"ok\n", 0)
    assert element(["true"], 0, 1, "")[0] == 0
    assert run_node(["true"], os.environ, tmp_path / "lock")[0] == 0
    assert signal_log == [True, True, True]
