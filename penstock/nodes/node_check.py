"""Run checks of this node: commands with Nagios' exit codes, each with a time limit.

A timeout, a missing command and any other exit code are unknown, and an unknown check drains no node.
"""

import os
import secrets
import selectors
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

from loader.dataset.log.entries import canonical
from loader.storage import Store

from ..compute.cluster import NodeCheck
from ..text import terminal_text

OUTPUT_BYTES = 16 * 2**10
"""Most bytes of a check's output."""
TEXT = 200
"""Most characters of its first line."""
CHECKS = "nodes/checks/"
FORMAT = 1


class Status(IntEnum):
    """Nagios' exit codes."""

    OK = 0
    WARNING = 1
    FAILED = 2
    UNKNOWN = 3


_WORST = (Status.OK, Status.WARNING, Status.UNKNOWN, Status.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Outcome of one check."""

    check: str
    """Name."""
    status: Status
    """Exit code, or unknown."""
    text: str
    """First line of its output, or why it is unknown."""
    output: str = ""
    """All of its output, up to `OUTPUT_BYTES`."""
    took_s: float = 0.0
    """Seconds."""

    def to_json(self) -> dict[str, Any]:
        """Return the facts for `--json`."""
        return {**asdict(self), "status": self.status.name.lower()}


def run_check(name: str, check: NodeCheck) -> CheckResult:
    """Run a check to its end or its limit; no process of its group survives."""
    begun = time.monotonic()
    try:
        process = subprocess.Popen(
            check.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return CheckResult(check=name, status=Status.UNKNOWN, text=f"does not start: {error}"[:TEXT])
    try:
        data, ended = _output(process, begun + check.limit_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    output = terminal_text(data.decode(errors="replace"))
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    status, text = _judged(process.returncode, lines[0] if lines else "", check.limit_s, ended=ended)
    took_s = round(time.monotonic() - begun, 3)
    return CheckResult(check=name, status=status, text=text[:TEXT], output=output, took_s=took_s)


def _judged(code: int, line: str, limit_s: float, *, ended: bool) -> tuple[Status, str]:
    if not ended:
        return Status.UNKNOWN, f"killed after {limit_s:.0f} s"
    if code in (0, 1, 2, 3):
        return Status(code), line or f"exit code {code}"
    return Status.UNKNOWN, f"exit code {code}, and 0 to 3 are accepted" + (f": {line}" if line else "")


def _output(process: "subprocess.Popen[bytes]", until_s: float) -> tuple[bytes, bool]:
    """Return the first bytes of the output, and whether the process ended by itself."""
    assert process.stdout is not None
    data = bytearray()
    with process.stdout as pipe, selectors.DefaultSelector() as selector:
        os.set_blocking(pipe.fileno(), False)
        selector.register(pipe, selectors.EVENT_READ)
        while not (ended := process.poll() is not None) and time.monotonic() < until_s:
            if not selector.get_map():  # it closed its output
                time.sleep(0.01)
            elif selector.select(0.05) and not _read(pipe.fileno(), data):
                selector.unregister(pipe)
        if selector.get_map():
            while selector.select(0) and _read(pipe.fileno(), data) and len(data) < OUTPUT_BYTES:
                pass
    return bytes(data[:OUTPUT_BYTES]), ended


def _read(file: int, data: bytearray) -> bool:
    """Append what there is, up to the limit; False at the end."""
    part = os.read(file, 2**16)
    data += part[: max(0, OUTPUT_BYTES - len(data))]
    return bool(part)


def run_checks(checks: Mapping[str, NodeCheck]) -> list[CheckResult]:
    """Run checks, one after the other: each has the node for itself."""
    return [run_check(name, check) for name, check in checks.items()]


def worst(results: Iterable[CheckResult]) -> Status:
    """Return the worst status: failed, unknown, warning, OK; unknown without any check."""
    return max((one.status for one in results), key=_WORST.index, default=Status.UNKNOWN)


def put_failures(store: Store, node: str, results: Iterable[CheckResult]) -> None:
    """Store the failed checks of a node under `nodes/checks/`, for the watcher."""
    at_us = time.time_ns() // 1000
    for result in results:
        if result.status is Status.FAILED:
            body = {
                "format": FORMAT,
                "node": node,
                "at_us": at_us,
                "check": result.check,
                "text": result.text,
            }
            store.put_if_absent(f"{CHECKS}{node}-{secrets.token_hex(8)}.json", canonical(body))
