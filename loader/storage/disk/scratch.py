"""Temporary files on a disk of this machine, and the error where there is no room for them."""

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import PenstockError, StoreError


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
