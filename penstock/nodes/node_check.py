"""Run checks of this node: commands with Nagios' exit codes, each with a time limit.

A timeout, a missing command and any other exit code are unknown, and an unknown check drains no node.
"""

import logging
import os
import secrets
import selectors
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

from loader.dataset.log.entries import canonical
from loader.dataset.log.marker import create_root_if_empty
from loader.errors import PenstockError
from loader.storage import Store

from ..compute.cluster import NodeCheck
from ..compute.process_groups import end_group, has_ended
from ..text import terminal_text
from ..train.launched import Launched
from ..units import utc_us

_log = logging.getLogger(__name__)
OUTPUT_BYTES = 16 * 2**10
"""Most bytes of a check's output."""
TERM_S = 2.0
"""Seconds from SIGTERM to SIGKILL at the limit."""
TEXT = 200
"""Most characters of its first line."""
CHECKS = "nodes/checks/"
FORMAT = 1


class CheckStatus(IntEnum):
    """Nagios' exit codes."""

    OK = 0
    WARNING = 1
    FAILED = 2
    UNKNOWN = 3


# Unknown is below failed: only a proved fault decides.
_WORST = (CheckStatus.OK, CheckStatus.WARNING, CheckStatus.UNKNOWN, CheckStatus.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheckResult:
    """Outcome of one check."""

    check: str
    """Name."""
    status: CheckStatus
    """Exit code, or unknown."""
    text: str
    """First line of its output, or why it is unknown."""
    output: str = ""
    """All of its output, up to `OUTPUT_BYTES`."""
    took_ms: int = 0
    """Milliseconds."""

    def to_json(self) -> dict[str, Any]:
        """Return the facts for `--json`."""
        return {**asdict(self), "status": self.status.name.lower()}


def run_check(name: str, check: NodeCheck) -> NodeCheckResult:
    """Run a check to its end or its limit."""
    begun = time.monotonic()
    try:
        data, code = run_limited(check.command, check.limit_s)
    except (OSError, ValueError) as error:
        return NodeCheckResult(check=name, status=CheckStatus.UNKNOWN, text=f"does not start: {error}"[:TEXT])
    output = terminal_text(data.decode(errors="replace"))
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    first_line = lines[0] if lines else ""
    status, text = _judge(code, first_line, check.limit_s)
    took_ms = round((time.monotonic() - begun) * 1e3)
    return NodeCheckResult(check=name, status=status, text=text[:TEXT], output=output, took_ms=took_ms)


def _judge(code: int | None, line: str, limit_s: float) -> tuple[CheckStatus, str]:
    """Return a check's status and text. code: exit code, None if it was killed. line: first line of its output."""
    if code is None:
        return CheckStatus.UNKNOWN, f"killed after {limit_s:.0f} s"
    if code in (0, 1, 2, 3):
        return CheckStatus(code), line or f"exit code {code}"
    text = f"exit code {code}, and 0 to 3 are accepted"
    if line:
        text += f": {line}"
    return CheckStatus.UNKNOWN, text


def run_limited(
    command: Sequence[str], limit_s: float, text: str = "", most: int = OUTPUT_BYTES
) -> tuple[bytes, int | None]:
    """Run a command until its end or a limit; return its first bytes of output and its exit code, None at the limit.

    The processes of its group end with it. text: Standard input. most: Bytes of output to return.
    Raises: OSError, ValueError.
    """
    until_s = time.monotonic() + limit_s
    with tempfile.TemporaryFile() as file:  # a pipe blocks if the command does not read it
        file.write(text.encode())
        file.seek(0)
        process = subprocess.Popen(
            command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        data, is_late = _output(process, until_s, most)
    finally:
        # srun ends its job at SIGTERM, and leaves it behind at SIGKILL.
        code = end_group(process, TERM_S, whole_group=True)
    return data, None if is_late else code


def _output(process: "subprocess.Popen[bytes]", until_s: float, most: int) -> tuple[bytes, bool]:
    """Return a command's first bytes of output, and whether it did not end in time."""
    assert process.stdout is not None
    data = bytearray()
    with process.stdout as pipe, selectors.DefaultSelector() as selector:
        os.set_blocking(pipe.fileno(), False)
        selector.register(pipe, selectors.EVENT_READ)
        # A daemon that the command left behind may keep the pipe open, so its end is not the command's.
        while not (ended := has_ended(process)) and time.monotonic() < until_s:
            if not selector.get_map():  # it closed its output
                time.sleep(0.01)
            elif selector.select(0.05) and not _read(pipe.fileno(), data, most):
                selector.unregister(pipe)
        if selector.get_map():
            # Text that the command wrote just before it ended.
            while len(data) < most and selector.select(0) and _read(pipe.fileno(), data, most):
                pass
    return bytes(data), not ended


def _read(file: int, data: bytearray, most: int) -> bool:
    """Append what there is, up to the limit; False at the end."""
    part = os.read(file, 2**16)
    # Read on beyond the limit: a full pipe would block the command.
    data += part[: max(0, most - len(data))]
    return bool(part)


def run_checks(checks: Mapping[str, NodeCheck]) -> list[NodeCheckResult]:
    """Run checks, one after the other: each has the node for itself."""
    return [run_check(name, check) for name, check in checks.items()]


def worst(results: Iterable[NodeCheckResult]) -> CheckStatus:
    """Return the worst status: failed, unknown, warning, OK; unknown without any check."""
    return max((one.status for one in results), key=_WORST.index, default=CheckStatus.UNKNOWN)


def this_node() -> str:
    """Return the name of this node, as runs have it."""
    return Launched.from_env().node


def put_failures(store: Store, node: str, results: Iterable[NodeCheckResult]) -> None:
    """Store the failed checks of a node under `nodes/checks/`, by time. A store that fails is logged."""
    at_us = utc_us()
    for result in results:
        if result.status is CheckStatus.FAILED:
            body = {
                "format": FORMAT,
                "node": node,
                "at_us": at_us,
                "check": result.check,
                "text": result.text,
            }
            try:
                create_root_if_empty(store)
                key = f"{CHECKS}{at_us:016d}-{node}-{secrets.token_hex(4)}.json"
                store.put_if_absent(key, canonical(body))
            except PenstockError as error:  # the exit status of the check counts, also without a record
                _log.error("could not store the failed check %s: %s", result.check, error)
