"""Errors of the operating system in the words of `loader.errors`, and files and directories made durable."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...errors import AlreadyExists, Forbidden, InvalidStore, ObjectNotFound, StoreError, Transient
from ..store import unfinished_name

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_AGAIN = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR}


def disk_error(verb: str, path: str, error: OSError) -> StoreError:
    """Return the leaf of `StoreError` for `error`, met while `verb`ing `path`."""
    why = f"cannot {verb} {path}: {error.strerror or error}"
    number = error.errno
    if isinstance(error, NotADirectoryError) and verb == "write":
        return InvalidStore(
            f"{why}; part of that path is a file, and a disk cannot hold 'a' and 'a/b': choose another key"
        )
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        if verb == "write" and error.filename not in (None, path):
            return ObjectNotFound(f"cannot write {path}: there is no file {error.filename}")
        return ObjectNotFound(f"{path}: there is no such object")
    if isinstance(error, IsADirectoryError) or number == errno.ENOTEMPTY:
        return InvalidStore(f"{why}; other objects lie below that key: choose another key")
    if isinstance(error, PermissionError) or number == errno.EROFS:
        return Forbidden(
            f"{why}; this process runs as user id {os.geteuid()}: check owner and mode of the directory, "
            "and whether the file system is mounted read-only"
        )
    if number in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            f"{why}; nothing was stored: free space or raise the quota there (`df {os.path.dirname(path)}`), "
            "then run the same command again"
        )
    if number in (errno.EMFILE, errno.ENFILE):
        return StoreError(f"{why}; raise the limit of open files (`ulimit -n`) or read with fewer threads")
    if number == errno.ENAMETOOLONG:
        return InvalidStore(f"{why}; a segment of a key on a disk is at most 255 bytes")
    if number in _AGAIN:
        return Transient(f"{why}; the disk or its server did not answer: check it, then try again")
    return StoreError(f"{why} (errno {number})")


def upload_size(path: str, target: str) -> int:
    """Return the size of the local file that is to become `target`. Raises: ObjectNotFound; InvalidStore; Forbidden."""
    try:
        with open(path, "rb") as source:
            return os.fstat(source.fileno()).st_size
    except FileNotFoundError:
        raise ObjectNotFound(f"cannot write {target}: there is no file {path}") from None
    except IsADirectoryError:
        raise InvalidStore(f"cannot write {target}: {path} is a directory; upload its files") from None
    except OSError as error:
        raise disk_error("read", path, error) from error


def no_links(path: str, error: OSError) -> OSError | StoreError:
    """Return the error of a link that failed: `error` itself, or that this file system cannot create atomically."""
    if error.errno not in _NO_LINKS:
        return error
    return InvalidStore(
        f"cannot create {path}: its file system has no hard links ({error.strerror}), so a create-only write "
        "cannot be safe there; keep the root on a POSIX file system or in a bucket"
    )


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
    """A file that is written beside its target, and gets the target's name in one step.

    `close` deletes it unless it was finished. Errors of the disk are StoreError.
    """

    def __init__(self, target: str) -> None:
        self._target, self._folder = target, os.path.dirname(target)
        self._temporary = f"{self._folder}/{unfinished_name()}"
        with self._words():
            make_directories(self._folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._descriptor: int | None = os.open(self._temporary, flags, 0o666)

    def write(self, data: memoryview) -> None:
        """Append bytes."""
        self.fill(lambda out: write_all(out, data))

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
