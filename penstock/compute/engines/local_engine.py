"""Run a runner on this machine; it ends with the process that started it, and locks a file named after its attempt."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from loader.errors import EngineUnreachable

from ..locked_processes import LockedProcesses, pass_lock
from ..pool import InlineCompute
from ..pool.import_path import import_path
from ..runner_process import open_runner, parser
from .engine import AttemptStatus

END_S = 10.0
"""Seconds between SIGTERM and SIGKILL, for a runner to store its outcomes."""
KEPT_S = 86_400.0
"""Files of a runner whose parent was killed are kept this long, in s."""


class LocalEngine:
    """Runs each attempt as a process."""

    poll_s = 0.1

    def __init__(self) -> None:
        self._processes = LockedProcesses("runners")
        self._begun: dict[str, subprocess.Popen[bytes]] = {}

    def submit(self, name: str, runner: Sequence[str], n_blocks: int, final: Sequence[int] = (0,)) -> None:
        """Start a runner. If it fails, `status` is "ended", and the next attempt starts another."""
        self._processes.check_folder()
        self._remove_left()
        with (
            self._processes.open(name, "lock", "w") as lock,
            self._processes.open(name, "log", "wb") as log,
        ):
            fcntl.flock(lock, fcntl.LOCK_EX)
            process = subprocess.Popen(
                [*runner, "--element", "0", "--elements", "1", "--with-parent"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=_environment(runner),
                pass_fds=[lock.fileno()],  # from here on, the runner holds the lock
                start_new_session=True,
            )
            pass_lock(lock, process.pid)
        self._begun[name] = process

    def find(self, name: str) -> bool:
        return self._processes.exists(name)

    def status(self, name: str) -> AttemptStatus:
        """See `Engine.status`. Attempts on other machines appear as ended."""
        if name in self._begun:
            self._begun[name].poll()
        if self._processes.is_locked(name):
            return AttemptStatus(state="running", running=1)
        return AttemptStatus(state="ended")

    def cancel(self, name: str) -> None:
        """See `Engine.cancel`. Sends SIGTERM; after `END_S` SIGKILL, also to the runner's workers."""
        until_s = time.monotonic() + END_S
        while self._processes.is_locked(name):
            is_late = time.monotonic() > until_s
            number = signal.SIGKILL if is_late else signal.SIGTERM
            self._processes.send(name, number, whole_group=is_late)
            if time.monotonic() > until_s + END_S:
                raise EngineUnreachable(
                    f"the runner {name} of this machine does not end; cancel again", what=name
                )
            time.sleep(0.05)
        if name in self._begun:
            self._begun[name].wait()

    def withdraw(self, name: str) -> None:
        """See `Engine.withdraw`."""

    def logs(self, name: str, element: int) -> str:
        return self._processes.tail(name)

    def close(self) -> None:
        """End the runners that this engine started."""
        for name, process in self._begun.items():
            self.cancel(name)
            if process.stdin is not None:
                process.stdin.close()
            self._processes.remove(name)
        self._begun.clear()

    def _remove_left(self) -> None:
        for lock in self._processes.folder.glob("*.lock"):
            with suppress(FileNotFoundError):
                age_s = abs(time.time() - lock.stat().st_mtime)  # the clock may have been set back
                if age_s > KEPT_S and not self._processes.is_locked(lock.stem):
                    self._processes.remove(lock.stem)


def _environment(runner: Sequence[str]) -> dict[str, str]:
    safe = {**os.environ, "PYTHONSAFEPATH": "1"}
    if runner[0] == sys.executable:
        safe["PYTHONPATH"] = os.pathsep.join(import_path())
    return safe


class InlineEngine:
    """An engine whose `submit` runs the whole attempt; the runner's errors propagate."""

    poll_s = 0.0

    def __init__(self) -> None:
        self._names: set[str] = set()

    def submit(self, name: str, runner: Sequence[str], n_blocks: int, final: Sequence[int] = (0,)) -> None:
        self._names.add(name)
        arguments = [*runner[runner.index("-m") + 2 :], "--element", "0", "--elements", "1"]
        open_runner(parser().parse_args(arguments), lambda _: InlineCompute()).run()

    def find(self, name: str) -> bool:
        return name in self._names

    def status(self, name: str) -> AttemptStatus:
        return AttemptStatus(state="ended")

    def cancel(self, name: str) -> None:
        """See `Engine.cancel`."""

    def withdraw(self, name: str) -> None:
        """See `Engine.withdraw`."""

    def logs(self, name: str, element: int) -> str:
        return ""

    def close(self) -> None:
        """See `Engine.close`."""
