"""Temporary files on a disk of this machine, and the error where there is no room for them."""

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import PenstockError, StoreError
from ..store import Store


def no_room(
    place: object, error: Exception, meanwhile: str, *, room_for: str, again: str, option: str = ""
) -> StoreError:
    """Return the error for temporary space that is full or cannot be written. option: its name, beside TMPDIR."""
    reason = getattr(error, "strerror", None) or error
    either = f" or {option}" if option else ""
    return StoreError(
        f"temporary space {place}: {reason}, {meanwhile}. Set TMPDIR{either} to a writable disk with room for "
        f"{room_for}, and {again}"
    )


def default_place() -> str:
    """Return the default place of such files. Never raises: disks may be so full that there is no place."""
    try:
        return tempfile.gettempdir()
    except OSError:
        return "(TMPDIR)"


@contextmanager
def on_scratch(
    place: str | None, meanwhile: str, *, room_for: str, again: str, option: str = ""
) -> Iterator[None]:
    """Work on such files. place: None for TMPDIR. Raises: `no_room`; errors of ours pass through."""
    try:
        yield
    except PenstockError:  # some are OSErrors too
        raise
    except (OSError, sqlite3.OperationalError) as error:
        raise no_room(
            place or default_place(), error, meanwhile, room_for=room_for, again=again, option=option
        ) from error


class OnScratch:
    """A `store.NewObject` that lies in a temporary file, and is uploaded at its end."""

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key, self._path = store, key, default_place()
        try:
            descriptor, self._path = tempfile.mkstemp(prefix="penstock-shard-", suffix=".tar")
        except OSError as error:
            raise self._no_room(error) from error
        self._file = os.fdopen(descriptor, "wb", buffering=0)

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
        if os.path.exists(self._path):
            os.unlink(self._path)

    def _no_room(self, error: OSError) -> Exception:
        meanwhile = f"when {self._key} was written; nothing was published"
        return no_room(self._path, error, meanwhile, room_for="the whole import", again="write again")
