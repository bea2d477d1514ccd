"""Run a runner as a Ray task. Nodes import this module, which does not need Ray."""

import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Sequence

from ..process_groups import end_group, has_ended

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
            while not has_ended(process):  # not wait(): Ray cancels a task between two sleeps
                time.sleep(0.1)
        finally:
            end_group(process, END_S)
            if process.stdin is not None:
                process.stdin.close()
        log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES))
        return process.returncode, log.read().decode(errors="replace")
