"""Hashes of a version's keys in memory: a key costs a row group of its table, not a scan of all keys.

A page ranks by another key with each click. A scan of 1e6 keys takes 40 ms; their hashes take 4 MB, 0.15 s once, and a
lookup 5 ms.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...storage import Store
from ..names import hashes_of
from ..tables.parquet import TableFile, get_table, string_array
from ..tables.table_rows import get_rows

MOST_KEYS = 2_000_000
"""Most keys whose hashes stay in memory: 8 MB."""
_Hashes = np.ndarray[Any, np.dtype[np.uint32]]


class KeyHashes:
    """Hashes of all keys of a version, excluded ones too. Opening reads all keys."""

    def __init__(self, store: Store, files: Sequence[TableFile]) -> None:
        """files: the version's tables of keys."""
        self._store = store
        self._files: list[tuple[TableFile, _Hashes]] = []  # with uint32 [rows]: hash of each row's key
        for file in files:
            table = get_table(self._store, file, ["key"])
            self._files.append((file, _short_hashes(table["key"])))

    def rows(self, keys: Sequence[str]) -> Iterator[pa.Table]:
        """Yield part, row and key of the rows with these keys, and perhaps of others, a table per file.

        Raises: Corrupt; StoreError.
        """
        searched = _short_hashes(string_array(keys))
        for file, hashes in self._files:
            rows = np.flatnonzero(np.isin(hashes, searched))
            if len(rows):
                yield get_rows(
                    self._store,
                    file,
                    rows,
                    ["part", "row", "key"],
                )


def _short_hashes(keys: pa.Array | pa.ChunkedArray) -> _Hashes:
    """Return uint32 [n]: few keys share one, and the keys themselves are compared."""
    hashes: _Hashes = hashes_of(keys).astype(np.uint32)
    return hashes
