"""Signs of the loaders that use a cache folder: how many run, what they read, and when their epochs began.

`loaders/<random>`: the limit in bytes (8 bytes, little-endian) and the ids of the object sets (16 bytes each). The
file's time of access is the loader's last sign, its time of change the start of the loader's epoch. So a running loader
writes nothing. It locks the file, and the kernel ends the lock with the process: others notice a killed loader at once.
"""

import fcntl
import os
import secrets
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from ..storage.disk.folder_files import write_all
from .pages import file_mode

FOLDER = "loaders"
BEAT_S = 10.0
DEAD_S = 60.0
"""Age in seconds at which a sign expires."""
LOCKED = ".locked"
"""Ending of a sign whose loader has its lock. Earlier releases took none."""
SIGN_BYTES_MAX = 2**16
READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_LIMIT = struct.Struct("<Q")
_ID_BYTES = 16


class RunningLoader(NamedTuple):
    limit_bytes: int
    """Its limit of the folder."""
    sets: tuple[str, ...]
    """Ids of the object sets that it reads."""
    epoch_ns: int
    """Begin of its epoch, in ns since 1970."""


class RunningLoaders:
    """One loader's sign, and access to the others'. Methods raise OSError."""

    def __init__(
        self,
        folder: str,
        *,
        shared: bool = False,
    ) -> None:
        self._folder = os.path.join(folder, FOLDER)
        self._writing = os.path.join(folder, "writing")
        self._mode = file_mode(shared)
        self._own = os.path.join(self._folder, secrets.token_hex(8) + LOCKED)
        self._descriptor = -1
        self.killed = 0
        """Loaders that ended without a word since this was set to 0."""
        self._body = b""
        self._epoch_ns = time.time_ns()
        self._bodies: dict[str, bytes] = {}  # name -> its bytes, which do not change

    def begin_epoch(self) -> None:
        self._epoch_ns = time.time_ns()
        self.beat()

    def write(self, limit_bytes: int, sets: Sequence[str]) -> None:
        """Write this loader's sign."""
        body = _LIMIT.pack(limit_bytes)
        for id in sets:
            body += bytes.fromhex(id)
        self._body = body
        self._publish()
        self.beat()

    def beat(self) -> None:
        """Show that this loader runs."""
        times = (time.time_ns(), self._epoch_ns)
        try:
            os.utime(self._own, ns=times)
        except FileNotFoundError:  # the others took this loader for dead
            self._publish()
            os.utime(self._own, ns=times)

    def withdraw(self) -> None:
        """Delete this loader's sign: it has ended."""
        with suppress(FileNotFoundError):
            os.unlink(self._own)
        self._unlock()

    def __del__(self) -> None:
        self._unlock()

    def _publish(self) -> None:
        """Write the sign and keep its lock."""
        temporary = os.path.join(self._writing, secrets.token_hex(8))
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, self._mode)
        try:
            # Before the others see it. A disk without locks leaves them the sign's age.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write_all(descriptor, memoryview(self._body))
            os.rename(temporary, self._own)
        except BaseException:
            os.close(descriptor)
            with suppress(OSError):
                os.unlink(temporary)
            raise
        self._unlock()
        self._descriptor = descriptor

    def _unlock(self) -> None:
        descriptor = self._descriptor
        self._descriptor = -1
        if descriptor >= 0:
            os.close(descriptor)

    def read(self) -> list[RunningLoader]:
        """Return the running loaders, this one among them."""
        running: list[RunningLoader] = []
        now_s = time.time()
        for name in os.listdir(self._folder):
            path = os.path.join(self._folder, name)
            with suppress(FileNotFoundError):
                status = os.lstat(path)
                # A file of the future was written before the clock was set back.
                age_s = abs(now_s - status.st_atime)
                if age_s > DEAD_S and path != self._own:
                    _remove(path)
                    continue
                if path != self._own and name.endswith(LOCKED) and _is_unlocked(path):
                    _remove(path)
                    self.killed += 1
                    continue
                loader = self._loader(path, status.st_mtime_ns)
                if loader is not None:
                    running.append(loader)
        return running

    def _loader(self, path: str, epoch_ns: int) -> RunningLoader | None:
        """Return the loader of a sign; None if the sign is damaged."""
        body = self._body
        if path != self._own:
            if path not in self._bodies:
                self._bodies[path] = _read(path)
            body = self._bodies[path]
        if len(body) < _LIMIT.size:
            return None
        ids_bytes = len(body) - _LIMIT.size
        if ids_bytes % _ID_BYTES:
            return None
        (limit_bytes,) = _LIMIT.unpack_from(body)
        sets = []
        for start in range(_LIMIT.size, len(body), _ID_BYTES):
            stop = start + _ID_BYTES
            id = body[start:stop]
            sets.append(id.hex())
        return RunningLoader(
            limit_bytes,
            tuple(sets),
            epoch_ns,
        )


def _remove(path: str) -> None:
    with suppress(PermissionError):
        os.unlink(path)


def _is_unlocked(path: str) -> bool:
    """Return whether no process has the lock of a sign."""
    descriptor = os.open(path, READ_FLAGS)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _read(path: str) -> bytes:
    """Return the bytes of a sign, at most SIGN_BYTES_MAX; empty for what is no file. Raises: OSError."""
    descriptor = os.open(path, READ_FLAGS)
    try:
        return os.read(descriptor, SIGN_BYTES_MAX)
    except (IsADirectoryError, BlockingIOError):
        return b""  # a folder or a pipe is not a sign
    finally:
        os.close(descriptor)
