"""New files and directories of a disk, made durable."""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...errors import AlreadyExists, InvalidStore
from ..store import unfinished_name
from .errors import disk_error

DIRECT_BYTES = 2 * 2**20
"""Least bytes that bypass the page cache, whose copy costs as much as a fast disk."""
DIRECT_ALIGNMENT = 4096
"""Alignment in bytes of such writes, in memory and file."""
_DIRECT = getattr(os, "O_DIRECT", 0)  # of Linux


def make_directories(path: str) -> None:
    """Make directories as `os.makedirs`, each new entry made durable in its parent. Raises: OSError."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_directories(parent)
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path) from None
        # Another writer made it, and may not have come to the next line.
    fsync_directory(parent)


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all of `data`, also where the system takes less at once. Raises: OSError."""
    while data:
        data = data[os.write(descriptor, data) :]


def write_direct(descriptor: int, data: memoryview) -> None:
    """Write all of `data`, past the page cache if the file system can. Raises: OSError."""
    flags, begun = fcntl.fcntl(descriptor, fcntl.F_GETFL), os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _DIRECT)
        write_all(descriptor, data)
    except OSError as error:
        if error.errno != errno.EINVAL:  # not of this file system, or not at this place of the file
            raise
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    write_all(descriptor, data[os.lseek(descriptor, 0, os.SEEK_CUR) - begun :])


def fsync_directory(path: str) -> None:
    """Make the names in a directory survive a power cut. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):  # some network file systems do not offer it
            raise
    finally:
        os.close(descriptor)


class NewFile:
    """A file written beside its target and renamed in one step; `close` deletes an unfinished one."""

    def __init__(self, target: str) -> None:
        self._target, self._folder = target, os.path.dirname(target)
        self._temporary = f"{self._folder}/{unfinished_name()}"
        with self._words():
            make_directories(self._folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._descriptor: int | None = os.open(self._temporary, flags, 0o666)

    def write(self, data: memoryview) -> None:
        """Append bytes, past the page cache if many and aligned."""
        whole = len(data) - len(data) % DIRECT_ALIGNMENT if len(data) >= DIRECT_BYTES else 0
        if whole:
            self.fill(lambda out: write_direct(out, data[:whole]))
        self.fill(lambda out: write_all(out, data[whole:]))

    def fill(self, work: Callable[[int], None]) -> None:
        """Have `work` write to the descriptor."""
        with self._words():
            assert self._descriptor is not None
            work(self._descriptor)

    def finish(self, publish: Callable[[str, str], None] = os.replace) -> None:
        """Make the file durable, and have `publish(temporary, target)` give it its name."""
        with self._words():
            assert self._descriptor is not None
            os.fsync(self._descriptor)
            self._close()
            publish(self._temporary, self._target)
            _unlink_if_there(self._temporary)
            fsync_directory(self._folder)

    def close(self) -> None:
        """Delete what was not finished."""
        with self._words():
            self._close()
            _unlink_if_there(self._temporary)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    @contextmanager
    def _words(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, AlreadyExists | InvalidStore):
                raise
            raise disk_error("write", self._target, error) from error


def _unlink_if_there(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return  # os.replace moved it
