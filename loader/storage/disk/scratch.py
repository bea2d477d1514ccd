"""Manage temporary files on a local disk, and report a full disk.

Each process holds an flock on folders in use, which the kernel releases; the user's next process on the machine removes
unlocked folders.
"""

import fcntl
import hashlib
import os
import shutil
import socket
import sqlite3
import stat
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ...errors import PenstockError, StoreError
from ..store import Store


def no_room(
    place: object, error: Exception, meanwhile: str, *, room_for: str, again: str, option: str = ""
) -> StoreError:
    """Return the error for full or read-only temporary space.

    option: name of the option that moves it, besides TMPDIR.
    """
    reason = getattr(error, "strerror", None) or error
    either = f" or {option}" if option else ""
    return StoreError(
        f"temporary space {place}: {reason}, {meanwhile}. Set TMPDIR{either} to a writable disk with room for "
        f"{room_for}, and {again}",
        what="temporary space",
        where=place,
        given=str(reason),
    )


def default_place() -> str:
    """Return the default folder. Never raises, even if all disks are full."""
    try:
        return tempfile.gettempdir()
    except OSError:
        return "(TMPDIR)"


@contextmanager
def on_scratch(
    place: str | None, meanwhile: str, *, room_for: str, again: str, option: str = ""
) -> Iterator[None]:
    """Report disk errors of the block as `no_room`. place: folder, None for TMPDIR.

    Raises: `no_room`; penstock's errors.
    """
    try:
        yield
    except PenstockError:  # some are OSErrors too
        raise
    except (OSError, sqlite3.OperationalError) as error:
        raise no_room(
            place or default_place(), error, meanwhile, room_for=room_for, again=again, option=option
        ) from error


class HeldFolder:
    """A temporary folder of this process, and of processes that inherit `descriptor`.

    what: part of the folder's name, such as "block". place: parent folder; None for TMPDIR. Raises: OSError.
    """

    def __init__(self, what: str, place: str | None = None) -> None:
        place = place or tempfile.gettempdir()
        if place not in _cleared:
            _cleared.add(place)
            remove_left_folders(place)
        while True:
            path = tempfile.mkdtemp(suffix=_suffix(), prefix=f"penstock-{what}-", dir=place)
            self.path = Path(path)
            try:
                self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except FileNotFoundError:  # removed by another process before it was locked
                continue
            with suppress(OSError):  # without file locks, no process can lock the folder, and none removes it
                fcntl.flock(self.descriptor, fcntl.LOCK_SH)
            if os.path.exists(path):
                break
            os.close(self.descriptor)
        self._end = weakref.finalize(self, _end, os.getpid(), path, self.descriptor)

    def close(self) -> None:
        self._end()


def _end(process: int, path: str, descriptor: int) -> None:
    if os.getpid() == process:  # a forked child does not own the folder
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


@contextmanager
def scratch_folder(what: str, place: str | None = None) -> Iterator[Path]:
    """Make a `HeldFolder`, yield its path, and remove it at the end. Raises: OSError."""
    folder = HeldFolder(what, place)
    try:
        yield folder.path
    finally:
        folder.close()


@contextmanager
def scratch_file(what: str, place: str | None = None, buffering: int = -1) -> Iterator[BinaryIO]:
    """Open a new file in a held folder for reading and writing; both are removed at the end. Raises: OSError."""
    with scratch_folder(what, place) as folder, open(str(folder / "file"), "x+b", buffering) as file:
        yield file


_cleared: set[str] = set()


def remove_left_folders(place: str | None = None) -> int:
    """Remove folders that this user's dead processes left on this machine; return their number.

    Never raises. place: None for TMPDIR.
    """
    n_removed = 0
    try:
        descriptor = os.open(place or tempfile.gettempdir(), os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return 0
    try:
        for name in os.listdir(descriptor):
            if name.startswith("penstock-") and name.endswith(_suffix()):
                with suppress(OSError):
                    n_removed += _remove(descriptor, name)
    except OSError:
        return n_removed
    finally:
        os.close(descriptor)
    return n_removed


def _remove(place: int, name: str) -> bool:
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            return False
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        there = os.stat(name, dir_fd=place, follow_symlinks=False)
        if not stat.S_ISDIR(there.st_mode) or not os.path.samestat(there, os.fstat(folder)):
            return False
        shutil.rmtree(name, dir_fd=place)
        return True
    finally:
        os.close(folder)


def _suffix() -> str:
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    return f".{host}.held"


class OnScratch:
    """A `store.NewObject` written to a temporary file and uploaded when finished."""

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key
        self._path = default_place()  # for the error, until the file has a path
        try:
            self._folder = HeldFolder("shard")
            self._path = str(self._folder.path / "file")
            self._file = open(self._path, "xb", buffering=0)  # noqa: SIM115 - until closed
        except OSError as error:
            raise self._no_room(error) from error

    def write(self, data: memoryview) -> None:
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            raise self._no_room(error) from error

    def finish(self) -> None:
        self._store.put_file(self._key, self._path)
        self.close()

    def close(self) -> None:
        self._file.close()
        self._folder.close()

    def _no_room(self, error: OSError) -> Exception:
        meanwhile = f"when {self._key} was written; nothing was published"
        return no_room(self._path, error, meanwhile, room_for="the whole import", again="write again")
