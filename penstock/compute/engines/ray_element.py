"""A runner as a task of Ray. The cluster's nodes import it; it needs nothing of Ray itself."""

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
"""Bytes that a runner wrote, the last ones, which its driver gets."""
END_S = 10.0
"""Seconds that a runner has after SIGTERM to store its outcomes, before SIGKILL."""
LINE = re.compile(r"element (\d+): (.*)")
"""A line of the driver that a runner wrote."""


def element(runner: Sequence[str], number: int, elements: int, environment: str) -> tuple[int, str]:
    """Run a runner to its end, and return its exit status and last words. It ends with this process too.

    environment: file of NAME=value lines for a shell, with the secrets of the node; "" without one.
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
    """End a live runner: SIGTERM, then SIGKILL for it and its workers."""
    with suppress(ProcessLookupError):
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
