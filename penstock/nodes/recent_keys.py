"""Recent keys of a record that no earlier reading had: keys that begin with a time, or whose number rises."""

import heapq
from collections import defaultdict
from collections.abc import Iterator

from loader.storage import ObjectInfo, Store
from loader.storage.store import list_from

from .suspects import RECENT_US

LATE_KEYS = 64
"""Keys before the last one that are listed again: an object may come late."""
MOST_BYTES = 8 * 2**20
"""Larger attempts and events are left out, with a warning."""
MOST_OBJECTS = 500
"""Lists of faults read at once, of a run; failed checks read at once."""


class TimedFolder:
    """Objects whose names begin with a time. Those of earlier releases do not, and are listed each time."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self._known: set[str] = set()

    def new(self, now_us: int) -> Iterator[ObjectInfo]:
        """Yield recent objects that were not yielded before: some of each node's, if there are very many.

        Objects that are too large are among them: their reader names them, and reads none.
        """
        since_us = now_us - 2 * RECENT_US
        infos = {
            info.key: info
            for info in list_from(self._store, self._prefix, f"{self._prefix}{since_us:016d}")
            if info.modified_us is None or info.modified_us >= since_us
        }
        self._known &= infos.keys()
        of_node, ranked = defaultdict[str, int](int), list[tuple[int, str]]()
        for key in [key for key in infos if key not in self._known]:
            node = key.removeprefix(self._prefix).partition("-")[2].rpartition("-")[0]
            ranked.append((of_node[node], key))
            of_node[node] += 1
        for _, key in sorted(ranked)[:MOST_OBJECTS]:
            yield infos[key]
            self._known.add(key)


class ListedKeys:
    """Keys of one kind of a run's objects that were listed before."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        """Recent keys, which need not be read again."""
        self.since = ""
        """Key to list from; "" for the first."""
        self._newest: list[str] = []

    def listed(self, keys: list[str], recent: set[str], lists_all: bool) -> None:
        """Add keys of a listing. recent: some of them. lists_all: True if it began with the first key."""
        self._newest = heapq.nlargest(LATE_KEYS, {*self._newest, *keys})
        self.since = self._newest[-1] if len(self._newest) == LATE_KEYS else ""
        self.known = recent if lists_all else self.known | recent
