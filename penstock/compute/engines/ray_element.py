"""Run a runner as a Ray task. Nodes import this module, which does not need Ray."""

import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress

LOG_BYTES = 64 * 2**10
"""Bytes of a runner's latest output that its driver receives."""
END_S = 10.0
"""Seconds between SIGTERM and SIGKILL, for a runner to store its outcomes."""
LINE = re.compile(r"element (\d+): (.*)")
"""Driver's log line with a runner's output."""


def element(runner: Sequence[str], number: int, elements: int, environment: str) -> tuple[int, str]:
    """Run a runner to its end; return exit status and latest output. The runner ends with this process.

    environment: shell file of NAME=value lines with the node's secrets, or "".
    """
    command = [*runner, "--element", str(number), "--elements", str(elements), "--with-parent"]
    if environment:
        words = shlex.join(command)
        command = ["sh", "-c", f"set -a; . {shlex.quote(environment)}; set +a; exec {words}"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
        )
        try:
            while process.poll() is None:  # not wait(): Ray cancels a task between two sleeps
                time.sleep(0.1)
        finally:
            _end(process)
        log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES))
        return process.returncode, log.read().decode(errors="replace")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a live runner: SIGTERM, then SIGKILL for its group."""
    with suppress(ProcessLookupError):
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
