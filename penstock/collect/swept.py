"""What collectors deleted from a root, for ever on record: mirrors delete no more than that, and proofs read it.

    swept/<n>.parquet    key, nbytes, dataset, txn, why; n has 12 digits, from 1

Created once, before the objects are deleted: what a collector that was killed did not delete any more is condemned
still, and stands in a later record again.
"""

import re
from collections.abc import Iterator

import pyarrow as pa

from loader.dataset.parquet import parse_table, table_bytes
from loader.errors import AlreadyExists
from loader.storage import Store

from .plan import CONDEMNED

FOLDER = "swept/"
_RECORD = re.compile(r"swept/([0-9]{12})\.parquet")


class Record:
    """Appends to a root's record of what was swept. name: the collector's."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self._n: int | None = None

    def append(self, condemned: pa.Table, at_us: int) -> str:
        """Put on record what is about to be deleted; its key. at_us: for people. Raises: StoreError."""
        if self._n is None:
            self._n = max((n for n, _ in records(self._store)), default=0)
        facts = {"at_us": str(at_us), "collector": self._name}
        data = table_bytes(condemned.select(CONDEMNED.names), "swept", facts=facts)
        while True:
            self._n += 1
            key = f"{FOLDER}{self._n:012d}.parquet"
            try:
                self._store.put_if_absent(key, data)
            except AlreadyExists:  # another collector's
                continue
            return key


def records(store: Store, after: int = 0) -> Iterator[tuple[int, str]]:
    """(n, key) of the records behind number `after`, ascending. A listing."""
    start = f"{FOLDER}{after:012d}.parquet" if after else None
    for info in store.list(FOLDER, start):
        found = _RECORD.fullmatch(info.key)
        if found:
            yield int(found[1]), info.key


def read_swept(store: Store, after: int = 0) -> Iterator[pa.Table]:
    """What was deleted, record by record: key, nbytes, dataset, txn, why. Raises: Corrupt; FormatTooNew."""
    for _, key in records(store, after):
        yield parse_table(store.get(key).data, f"{store.url}/{key}")
