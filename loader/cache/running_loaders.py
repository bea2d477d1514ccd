"""Signs of the loaders that use a cache folder: how many run, what they read, and when their epochs began.

`loaders/<random>`: the limit in bytes (8 bytes, little-endian) and the ids of the object sets (16 bytes each). The
file's time of access is the loader's last sign, its time of change the begin of the loader's epoch. So a running loader
writes nothing.
"""

import os
import secrets
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from .pages import file_mode, write_whole

FOLDER = "loaders"
BEAT_S = 10.0
DEAD_S = 60.0
"""Age in seconds at which a sign expires."""
SIGN_BYTES_MAX = 2**16
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
        self._own = os.path.join(self._folder, secrets.token_hex(8))
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
        write_whole(self._writing, self._own, self._mode, self._body)
        self.beat()

    def beat(self) -> None:
        """Show that this loader runs."""
        times = (time.time_ns(), self._epoch_ns)
        try:
            os.utime(self._own, ns=times)
        except FileNotFoundError:  # the others took this loader for dead
            write_whole(self._writing, self._own, self._mode, self._body)
            os.utime(self._own, ns=times)

    def withdraw(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._own)

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


def _read(path: str) -> bytes:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags)
    try:
        return os.read(descriptor, SIGN_BYTES_MAX)
    except OSError:
        return b""  # a folder or a pipe is no sign
    finally:
        os.close(descriptor)
