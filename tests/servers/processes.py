"""Other processes of this machine, any of which may have ended, and Python in one of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.servers.patience import PATIENCE_S


def end(pid: int) -> None:
    """SIGKILL to one process, unless it has ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def parent_pid(pid: int) -> int:
    """Return the parent's number, 0 for a process that has ended."""
    try:
        return int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def command_name(pid: int) -> str:
    """Return the command's name, empty for a process that has ended."""
    try:
        return Path("/proc", str(pid), "comm").read_text().strip()
    except OSError:
        return ""


def command_line(pid: int) -> bytes:
    """Return the command line, words ended by zeros; empty for a process that has ended."""
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return b""


def environment_bytes(pid: int) -> bytes:
    """Return the variables, each ended by a zero; empty for a process that has ended."""
    try:
        return Path("/proc", str(pid), "environ").read_bytes()
    except OSError:
        return b""


def python(*words: object, check: bool = False, **how: Any) -> "subprocess.CompletedProcess[str]":
    """Run Python with these words, and return its exit status and what it wrote.

    Raises: CalledProcessError if it failed and `check` is set.
    """
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, check=check, **{"timeout": PATIENCE_S, **how}
    )
