"""Temporary files on a local disk, and the error if it is full.

A killed process leaves its folders. Processes hold an flock on folders that they use, which the kernel releases; the
next process of the user and machine removes unlocked ones. The machine's name is part of a folder's: some network file
systems lock within one machine only.
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
    """Return the error for full or read-only temporary space. option: its name, beside TMPDIR."""
    reason = getattr(error, "strerror", None) or error
    either = f" or {option}" if option else ""
    return StoreError(
        f"temporary space {place}: {reason}, {meanwhile}. Set TMPDIR{either} to a writable disk with room for "
        f"{room_for}, and {again}"
    )


def default_place() -> str:
    """Return the default folder. Never raises: disks may be too full to have one."""
    try:
        return tempfile.gettempdir()
    except OSError:
        return "(TMPDIR)"


@contextmanager
def on_scratch(
    place: str | None, meanwhile: str, *, room_for: str, again: str, option: str = ""
) -> Iterator[None]:
    """Work on temporary files. place: None for TMPDIR. Raises: `no_room`; our errors pass through."""
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

    A later process of the user removes it if they are killed (`remove_left_folders`). what: word of its name, such as
    "block". place: parent folder; None for TMPDIR. Raises: OSError.
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
            with suppress(
                OSError
            ):  # a file system without locks: no process can lock it, and none removes it
                fcntl.flock(self.descriptor, fcntl.LOCK_SH)
            if os.path.exists(path):
                break
            os.close(self.descriptor)
        self._end = weakref.finalize(self, _end, os.getpid(), path, self.descriptor)

    def close(self) -> None:
        """Remove it, and all that is in it."""
        self._end()


def _end(process: int, path: str, descriptor: int) -> None:
    if os.getpid() == process:  # a forked child's copy is not its own
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


@contextmanager
def held_folder(what: str, place: str | None = None) -> Iterator[Path]:
    """Make a folder, as `HeldFolder`, and remove it at the end. Raises: OSError."""
    folder = HeldFolder(what, place)
    try:
        yield folder.path
    finally:
        folder.close()


@contextmanager
def held_file(what: str, place: str | None = None, buffering: int = -1) -> Iterator[BinaryIO]:
    """Open a new file in a held folder, to write and read; both are removed at the end. Raises: OSError."""
    with held_folder(what, place) as folder, open(str(folder / "file"), "x+b", buffering) as file:
        yield file


_cleared: set[str] = set()


def remove_left_folders(place: str | None = None) -> int:
    """Remove held folders of this user and machine without a living process; return their number.

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
                    n_removed += _removed(descriptor, name)
    except OSError:
        return n_removed
    finally:
        os.close(descriptor)
    return n_removed


def _removed(place: int, name: str) -> bool:
    """Remove this user's unlocked folder; return whether it was removed. Raises: OSError."""
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
    """A `store.NewObject` that lies in a temporary file, and is uploaded at its end."""

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key, self._path = store, key, default_place()
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
