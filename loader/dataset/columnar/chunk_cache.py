"""Decoded chunks, the ones used last, bounded in bytes: one cache for a process, since a chunk has many samples."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from ...storage.shared.threads import Turns, begins_anew, lock

CAPACITY_BYTES = 4 * 2**30
"""Decoded bytes that a process keeps; twice what the order reads side by side (`lanes.LIVE_CHUNK_BYTES`)."""


class ChunkCache:
    """The values used last, bounded in bytes. Thread-safe; the last one stays, however large."""

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self.capacity_bytes = capacity_bytes
        self.turns = Turns()
        self._lock = lock()
        self.begin_anew()
        begins_anew(self)

    def begin_anew(self) -> None:
        """Hold nothing, as in a forked child, which would hold it twice."""
        self._held: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self.held_bytes = 0

    def get(self, key: Hashable) -> Any:
        """Return a value; None where it is not here."""
        with self._lock:
            found = self._held.get(key)
            if found is None:
                return None
            self._held.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: Any, nbytes: int) -> None:
        """Keep a value of so many bytes."""
        with self._lock:
            self._drop(key)
            self._held[key] = value, nbytes
            self.held_bytes += nbytes
            while self.held_bytes > self.capacity_bytes and len(self._held) > 1:
                self.held_bytes -= self._held.popitem(last=False)[1][1]

    def discard(self, key: Hashable) -> None:
        """Throw a value away."""
        with self._lock:
            self._drop(key)

    def _drop(self, key: Hashable) -> None:
        found = self._held.pop(key, None)
        self.held_bytes -= found[1] if found else 0


CHUNKS = ChunkCache()
"""The process's cache."""
