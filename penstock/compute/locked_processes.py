"""Processes of this machine that every process of this user finds by name: each locks a file with its number.

The files lie below TMPDIR, where other users may write. So nothing is read, locked or believed unless the folder is
private and the file is this user's; no process gets a signal unless it has the locked file open.
"""

import fcntl
import os
import signal
import stat
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from loader.errors import EngineUnreachable

LOG_BYTES = 64 * 2**10
PID_BYTES = 32
"""Most bytes of a lock file that are read."""
HELD_LOOKS = 3
HELD_LOOK_S = 0.02
"""Looks at a shared lock, and seconds between them: another process that looks holds it for a moment."""
_PROC = Path("/proc")


class LockedProcesses:
    """The processes of one kind, in a private folder below TMPDIR. kind: part of its name.

    Every method raises EngineUnreachable if the folder or a file in it may be another user's.
    """

    def __init__(self, kind: str) -> None:
        self.folder = Path(tempfile.gettempdir()) / f"penstock-{kind}-{os.getuid()}"

    def check_folder(self) -> None:
        """Create the folder, unless it exists."""
        with suppress(FileExistsError):
            self.folder.mkdir(mode=0o700)
        os.close(self._open_folder())

    def path(self, name: str, kind: str) -> Path:
        """Return the path of a process's "lock", "log" or other file. Use `open` to read it."""
        return self.folder / f"{name}.{kind}"

    def open(self, name: str, kind: str, mode: str = "r") -> IO[Any]:
        """Open a process's file in a mode of Python's `open`. Raises: FileNotFoundError; OSError."""

        def open_file(path: str, flags: int) -> int:
            folder = self._open_folder()
            try:
                # A pipe would hold its reader for ever, and a link could lead anywhere.
                flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                descriptor = os.open(path, flags, 0o600, dir_fd=folder)
            finally:
                os.close(folder)
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid():
                os.close(descriptor)
                raise self._foreign(self.folder / path)
            return descriptor

        try:
            return open(f"{name}.{kind}", mode, opener=open_file)
        except FileNotFoundError:
            raise
        except OSError as error:  # a link, or a pipe without a reader
            path = self.path(name, kind)
            fields: dict[str, object] = {"what": kind, "where": path}
            if isinstance(error, EngineUnreachable):
                fields = error.fields  # another owner's folder or file
            raise EngineUnreachable(f"could not open {path}: {error}", **fields) from error

    def exists(self, name: str, kind: str = "lock") -> bool:
        """Return whether a process has a file of a kind."""
        try:
            self.open(name, kind).close()
        except FileNotFoundError:
            return False
        return True

    def remove(self, name: str, kinds: Iterable[str] = ("lock", "log")) -> None:
        """Delete files of a process that has ended."""
        os.close(self._open_folder())
        for kind in kinds:
            self.path(name, kind).unlink(missing_ok=True)

    def is_locked(self, name: str, kind: str = "lock") -> bool:
        """Return whether a live process has locked a file for itself."""
        try:
            with self.open(name, kind) as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def is_held(self, name: str, kind: str) -> bool:
        """Return whether a live process has locked a file, also if it shares the lock."""
        for _ in range(HELD_LOOKS):
            try:
                with self.open(name, kind) as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return False
            except FileNotFoundError:
                return False
            except BlockingIOError:
                time.sleep(HELD_LOOK_S)
        return True

    def pid(self, name: str) -> int | None:
        """Return the number of the live process; None without one, or before it is stored."""
        if not self.is_locked(name):
            return None
        try:
            with self.open(name, "lock") as lock:
                text = lock.read(PID_BYTES)
                number = 0
                if text.isascii() and text.isdigit():
                    number = int(text)
                if number and has_open(number, os.fstat(lock.fileno())):
                    return number
                return None
        except FileNotFoundError:
            return None

    def send(self, name: str, number: signal.Signals, *, whole_group: bool = False) -> None:
        """Send a signal to the live process, or to its process group, if there is one."""
        pid = self.pid(name)
        if pid is None:
            return
        with suppress(ProcessLookupError):
            if whole_group:
                os.killpg(pid, number)
            else:
                os.kill(pid, number)

    def tail(self, name: str) -> str:
        """Return the last 64 KiB of a log or ""."""
        try:
            with self.open(name, "log", "rb") as log:
                size = os.fstat(log.fileno()).st_size
                log.seek(max(0, size - LOG_BYTES))
                data: bytes = log.read(LOG_BYTES)
        except FileNotFoundError:
            return ""
        return data.decode(errors="replace")

    def _open_folder(self) -> int:
        """Return a descriptor of the folder. Raises: FileNotFoundError."""
        try:
            descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:  # a file, a link, or another user's
            raise self._foreign(self.folder) from error
        facts = os.fstat(descriptor)
        if facts.st_uid != os.getuid() or facts.st_mode & 0o022:
            os.close(descriptor)
            raise self._foreign(self.folder)
        if facts.st_mode & 0o055:  # logs are private
            os.fchmod(descriptor, 0o700)
        return descriptor

    def _foreign(self, path: Path) -> EngineUnreachable:
        return EngineUnreachable(
            f"{path} is not a private folder of this user, or not a regular file of this user in it; it was not read, "
            "and no process was ended. Remove it, or set TMPDIR to a folder of your own",
            what="owner",
            where=path,
        )


def pass_lock(lock: IO[str], pid: int) -> None:
    """Write the number of the process that inherited this locked file."""
    lock.truncate(0)
    lock.write(str(pid))
    lock.flush()


def has_open(pid: int, file: os.stat_result) -> bool:
    """Return whether a process of this user has a file open. True without /proc: then only the lock counts."""
    if not (_PROC / "self/fd").is_dir():
        return True
    try:
        descriptors = list(os.scandir(_PROC / str(pid) / "fd"))
    except OSError:  # it has ended, or is another user's
        return False
    for descriptor in descriptors:
        with suppress(OSError):
            facts = descriptor.stat()
            if (facts.st_dev, facts.st_ino) == (file.st_dev, file.st_ino):
                return True
    return False


def holders(path: str | os.PathLike[str]) -> list[int]:
    """Return the numbers of all processes of this user, but this one, that have a file open; none without /proc."""
    try:
        file = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return []
    if not (_PROC / "self/fd").is_dir():
        return []
    numbers = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    return [pid for pid in numbers if pid != os.getpid() and has_open(pid, file)]


def kill_all(pids: Iterable[int]) -> None:
    """Kill processes, unless they have ended meanwhile."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
