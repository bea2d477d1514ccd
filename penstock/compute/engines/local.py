"""One runner on this machine, with a worker process per core. It ends with the process that began it."""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from .contract import Look

END_S = 10.0
"""Seconds for a runner to keep its outcomes once it was told to end."""
LOG_BYTES = 64 * 2**10


@dataclass(slots=True, eq=False)
class _Started:
    process: subprocess.Popen[bytes]
    log: IO[bytes]


class LocalEngine:
    """Attempts as a process each."""

    look_s = 0.1

    def __init__(self) -> None:
        self._started: dict[str, _Started] = {}

    def submit(self, name: str, runner: Sequence[str], n_blocks: int, final: Sequence[int] = (0,)) -> None:
        """Begin a runner. Where it fails, `look` says "ended", and the next attempt begins another one."""
        log = tempfile.TemporaryFile(prefix="penstock-runner-")  # noqa: SIM115 - closed by `close`
        process = subprocess.Popen(
            [*runner, "--element", "0", "--elements", "1", "--with-parent"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self._started[name] = _Started(process, log)

    def find(self, name: str) -> bool:
        """See `Engine.find`."""
        return name in self._started

    def look(self, name: str) -> Look:
        """Return "ended" too for an attempt of a process that is gone: its runner ended with it."""
        one = self._started.get(name)
        if one is None or one.process.poll() is not None:
            return Look(state="ended")
        return Look(state="running", running=1)

    def cancel(self, name: str) -> None:
        """See `Engine.cancel`."""
        one = self._started.get(name)
        if one is None:
            return
        one.process.terminate()
        try:
            one.process.wait(END_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()

    def logs(self, name: str, element: int) -> str:
        """See `Engine.logs`."""
        one = self._started.get(name)
        if one is None:
            return ""
        size = os.fstat(one.log.fileno()).st_size
        return os.pread(one.log.fileno(), LOG_BYTES, max(0, size - LOG_BYTES)).decode(errors="replace")

    def close(self) -> None:
        """End all runners."""
        for name, one in self._started.items():
            self.cancel(name)
            if one.process.stdin is not None:
                one.process.stdin.close()
            one.log.close()
        self._started.clear()
