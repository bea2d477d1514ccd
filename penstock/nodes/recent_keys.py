"""Recent keys of a record that no earlier reading had: keys that begin with a time, or whose number rises."""

import heapq
from collections.abc import Iterator

from loader.storage import ObjectInfo, Store
from loader.storage.store import list_from

from .suspects import RECENT_US

LISTED_US = 2 * RECENT_US
"""Age of the oldest objects that are listed."""
LATE_KEYS = 64
"""Keys before the last one that are listed again: an object may come late."""
MOST_BYTES = 8 * 2**20
"""Larger attempts and events are left out, with a warning."""
MOST_OBJECTS = 500
"""Most lists of faults of a run, and most failed checks, that are read at once."""


class TimedFolder:
    """Objects whose names begin with a time. Those of earlier releases do not, and are listed each time."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._known: set[str] = set()

    def new(self, now_us: int) -> Iterator[ObjectInfo]:
        """Yield recent objects that were not yielded before: some of each node's, if there are very many.

        Objects that are too large are among them: the reader logs their names and skips them.
        """
        since_us = now_us - LISTED_US
        infos = self._recent_infos(since_us)
        self._known &= infos.keys()  # keys that are no longer recent need no memory
        objects_of_node: dict[str, int] = {}
        ranked: list[tuple[int, str]] = []
        for key in infos:
            if key in self._known:
                continue
            node = self._node(key)
            # By rank, so that a node with thousands of objects does not displace the others.
            rank = objects_of_node.get(node, 0)
            objects_of_node[node] = rank + 1
            ranked.append((rank, key))
        ranked.sort()
        del ranked[MOST_OBJECTS:]
        for _, key in ranked:
            info = infos[key]
            yield info
            self._known.add(key)

    def _recent_infos(self, since_us: int) -> dict[str, ObjectInfo]:
        """Return key -> object, of keys with a later time."""
        # The time in a key has 16 digits, so keys sort by it.
        oldest_time = f"{since_us:016d}"
        first = self._prefix + oldest_time
        listing = list_from(self._store, self._prefix, first)
        infos = {}
        for info in listing:
            # A key without a time may sort after this one: the age of its object decides.
            modified_us = info.modified_us
            if modified_us is None:
                modified_us = since_us
            if modified_us < since_us:
                continue
            key = info.key
            infos[key] = info
        return infos

    def _node(self, key: str) -> str:
        """Return the node in a key: `<time>-<node>-<number>`."""
        name = key.removeprefix(self._prefix)
        _, _, node_and_number = name.partition("-")
        node, _, _ = node_and_number.rpartition("-")
        return node


class ListedKeys:
    """Keys of one kind of a run's objects that were listed before."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        """Recent keys, which need not be read again."""
        self.since = ""
        """Key to list from; "" for the first."""
        self._newest: list[str] = []
        """The `LATE_KEYS` largest keys of all listings, the largest first."""

    def add_listing(
        self,
        keys: list[str],
        recent: set[str],
        lists_all: bool,
    ) -> None:
        """Add keys of a listing, which were read. lists_all: True if it began with the first key.

        recent: those young enough to count. Only these need be known: a reading leaves out older ones by their age.
        """
        different_keys = set(self._newest)
        different_keys.update(keys)
        newest = heapq.nlargest(LATE_KEYS, different_keys)
        self._newest = newest
        self.since = ""
        if len(newest) == LATE_KEYS:
            self.since = newest[-1]  # the smallest of the newest
        # A listing from a later key lacks older ones: they stay known.
        if not lists_all:
            recent = self.known | recent
        self.known = recent
