"""Processes of this machine that every process of this user finds by name: each locks a file with its number."""

import fcntl
import os
import stat
import tempfile
from pathlib import Path
from typing import IO

from loader.errors import EngineUnreachable

LOG_BYTES = 64 * 2**10


class LockedProcesses:
    """The processes of one kind, in a private folder below TMPDIR. kind: part of its name."""

    def __init__(self, kind: str) -> None:
        self.folder = Path(tempfile.gettempdir()) / f"penstock-{kind}-{os.getuid()}"

    def check_folder(self) -> None:
        """Create the folder. Raises: EngineUnreachable if it is not a private folder of this user."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        there = self.folder.lstat()  # a link could lead anywhere
        if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.getuid() or there.st_mode & 0o022:
            raise EngineUnreachable(
                f"{self.folder} is not a private folder of this user; remove it, or set TMPDIR to a folder of your own"
            )

    def path(self, name: str, kind: str) -> Path:
        """Return the path of a process's "lock", "log" or other file."""
        return self.folder / f"{name}.{kind}"

    def pid(self, name: str) -> int | None:
        """Return the number of a live process or None."""
        try:
            with self.path(name, "lock").open() as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(lock.read() or 0) or None
                return None
        except FileNotFoundError:
            return None

    def tail(self, name: str) -> str:
        """Return the last 64 KiB of a log or ""."""
        try:
            return self.path(name, "log").read_bytes()[-LOG_BYTES:].decode(errors="replace")
        except FileNotFoundError:
            return ""


def hand_over(lock: IO[str], pid: int) -> None:
    """Write the number of the process that inherited this locked file."""
    lock.truncate(0)
    lock.write(str(pid))
    lock.flush()
