"""What reading a folder of this machine can do that no other store can: fill buffers, and be mapped into memory."""

import os
from collections.abc import Sequence
from typing import BinaryIO, Protocol, cast

from .disk_runs import Piece
from .store import RangeReader


class Disk(RangeReader, Protocol):
    """A folder, or several stores of which the nearest is one. Errors as those of every store."""

    @property
    def disk(self) -> "Disk | None":
        """Itself, or None where the nearest store is no folder of this machine."""

    def read_each(
        self, key: str, spans: Sequence[tuple[int, int]], *, etag: str | None = None
    ) -> tuple[list[bytes], str]:
        """The bytes of (offset, nbytes) spans in the order given, and the object's etag."""

    def read_into(self, key: str, pieces: Sequence[Piece], *, etag: str | None = None) -> str:
        """Fill the buffers of pieces from one object, and give its etag; sorted by offset is best."""

    def state(self, key: str, etag: str | None = None) -> tuple[str, os.stat_result] | None:
        """The etag and the status of a file; None where the object has to be read elsewhere."""

    def open_same(self, key: str, etag: str) -> BinaryIO | None:
        """The file that had this etag; None where it was replaced."""


def disk_of(store: RangeReader) -> Disk | None:
    """The store, if it can do what a folder of this machine can."""
    return cast(Disk, store).disk if hasattr(type(store), "disk") else None
