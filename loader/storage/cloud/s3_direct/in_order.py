"""One of many objects, read by one connection as it comes: what is hashed next is still in the processor's cache.

Ranges on their way ahead of a reader hide how far away a store is. Where many objects are read at once the others do
that, and what was fetched ahead is out of the cache when its turn comes (0.4 s of processor per GiB).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast
from weakref import WeakSet

from ...store import Store
from .response_body import Following

if TYPE_CHECKING:
    from ..reads import ReadStore

MANY = 4  # more objects than that at once, in this process
BODY_BYTES = 64 * 2**20  # one answer; between two of them nothing comes
LOOK_BYTES = 2**19  # what is read of it at once: it stays in the cache of one processor


class InOrder:
    """One reader of one object, which counts as one of many until it is closed, or gone. Not thread-safe."""

    def __init__(self, store: Store, key: str, nbytes: int, *, whole: bool = False) -> None:
        """nbytes: of the object; whole: by one answer, and no other way."""
        self._store, self._key, self._nbytes, self._whole = store, key, nbytes, whole
        self._following = Following(0)
        _readers.add(self)

    def next_bytes(self, at: int) -> int:
        """How many bytes from `at` on `fill` shall read; 0 where another way is better, or the store has none such."""
        if not self._following.is_under_way and not getattr(self._store, "follows", False):
            return 0
        if at >= self._following.stop:
            if not self._whole and len(_readers) <= MANY:
                return 0
            most = self._nbytes if self._whole else at + BODY_BYTES
            self._following = Following(min(most, self._nbytes))
        return min(LOOK_BYTES, self._following.stop - at)

    @property
    def is_under_way(self) -> bool:
        """Whether the next read asks for nothing."""
        return self._following.is_under_way

    def fill(self, at: int, view: memoryview, etag: str | None) -> str:
        """Read so many bytes into `view`; the object's etag. Raises: as `ReadStore.fill`."""
        return cast("ReadStore", self._store).fill(self._key, at, view, etag, self._following)

    def close(self) -> None:
        """Leave what is on its way."""
        _readers.discard(self)
        self._following = Following(0)


_readers: WeakSet[InOrder] = WeakSet()
