"""Permanent records of the objects that collectors deleted from a root, created before the deletion.

swept/<n>-<16 hex>.parquet    key, nbytes, dataset, txn, why; n has 12 digits, from 1

The hex digits begin the SHA-256 of the keys.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from loader import Root
from loader.dataset.log.marker import check_primary
from loader.dataset.tables.parquet import parse_table, table_bytes
from loader.errors import AlreadyExists, Conflict
from loader.storage import Store

from .plan import CONDEMNED

FOLDER = "swept/"
_RECORD = re.compile(r"swept/([0-9]{12})(?:-([0-9a-f]{16}))?\.parquet")


class DeletedRecord:
    """Appends to a root's records of deleted objects. name: the collector's name."""

    def __init__(self, root: Root, name: str) -> None:
        self._root = root
        self._name = name
        self._there: dict[str, str] | None = None
        self._n = 0

    def append(self, condemned: pa.Table, at_us: int) -> str:
        """Record objects before their deletion, and return the record's key. at_us: time to record.

        The same objects have one record. Raises: Conflict if the root moved; StoreError.
        """
        store = self._root.store
        try:
            # Before each record: once the root has moved, only its new primary decides.
            check_primary(store, self._root.log.refresh())
        except Conflict as error:
            error.add_note("nothing more was deleted here; swept again, it is collected as a mirror")
            raise
        there = self._load()
        # By the keys: a repeated sweep after a kill finds its own record.
        digest = hashlib.sha256("\n".join(condemned["key"].to_pylist()).encode()).hexdigest()[:16]
        if digest not in there:
            key = f"{FOLDER}{self._n + 1:012d}-{digest}.parquet"
            facts = {"at_us": str(at_us), "collector": self._name}
            with suppress(AlreadyExists):  # another collector recorded the same objects
                store.put_if_absent(key, table_bytes(condemned.select(CONDEMNED.names), "swept", facts=facts))
            self._n += 1
            there[digest] = key
        return there[digest]

    def _load(self) -> dict[str, str]:
        if self._there is None:
            self._there = {}
            for n, digest, key in _records(self._root.store):
                self._n = max(self._n, n)
                self._there[digest] = key
        return self._there


def _records(store: Store) -> Iterator[tuple[int, str, str]]:
    for info in store.list(FOLDER):
        if match := _RECORD.fullmatch(info.key):
            yield int(match[1]), match[2] or "", info.key


def read_swept(store: Store) -> Iterator[pa.Table]:
    """Yield the deleted objects, one table per record."""
    for *_, key in _records(store):
        yield parse_table(store.get(key).data, f"{store.url}/{key}")


def primary_filter(store: Store) -> Callable[[pa.Table], pa.Table]:
    """Return a filter for objects that a primary recorded as deleted; migrations copy these records to the mirror.

    Reads all records. Memory: 0.1 KB per recorded object.
    """
    # The 32-bit offsets of `string` overflow at 2 GiB of keys.
    keys = [table["key"].cast(pa.large_string()).combine_chunks() for table in read_swept(store)]
    swept = pa.concat_arrays(keys) if keys else pa.array([], pa.large_string())

    def filter_deleted(condemned: pa.Table) -> pa.Table:
        return condemned.filter(pc.is_in(condemned["key"], value_set=swept))

    return filter_deleted


class PrimaryRecord:
    """The record used in a mirror, whose primary has recorded all objects that are deleted."""

    def append(self, condemned: pa.Table, at_us: int) -> str:
        """Return "", since nothing is added."""
        return ""
