"""The rows of a version's shards tables, kept as the Parquet bytes they came in: a million shards are 100 MB there, and
300 MB of them decoded. What is asked of one row decodes its row group; the groups asked for last are kept."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import Corrupt, PenstockError
from ...storage.shared.fork import lock
from ..tables.parquet import check_schema_version

KEPT_ROWS = 2**17
"""Decoded rows that are kept, some 300 bytes each."""


class ShardRows:
    """Rows of several tables, numbered through. Read-only; thread-safe. files: (name for messages, checked bytes)."""

    def __init__(self, files: Sequence[tuple[str, bytes]]) -> None:
        self._names = [name for name, _ in files]
        self._files = [_open(name, data) for name, data in files]
        self._groups = [
            (number, group)
            for number, file in enumerate(self._files)
            for group in range(file.metadata.num_row_groups)
        ]
        rows = [self._files[number].metadata.row_group(group).num_rows for number, group in self._groups]
        self._first = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows, dtype=np.int64)])
        self._kept: OrderedDict[int, pa.Table] = OrderedDict()
        self._lock = lock()

    def __len__(self) -> int:
        return int(self._first[-1])

    def row(self, at: int) -> dict[str, Any]:
        """All columns of one row. Raises: Corrupt."""
        table, local = self._place(at)
        return {name: table[name][local].as_py() for name in table.column_names}

    def value(self, name: str, at: int) -> Any:
        """One column of one row. Raises: Corrupt."""
        table, local = self._place(at)
        return table[name][local].as_py()

    def columns(self, *names: str) -> pa.Table:
        """These columns of all rows, or every column, null where a table of an earlier release does not have it.
        Raises: Corrupt."""
        return pa.concat_tables(list(self.tables(*names)), promote_options="default")

    def tables(self, *names: str) -> Iterator[pa.Table]:
        """As `columns`, a row group at a time: Parquet takes three times the memory for a whole column."""
        for number, group in self._groups:
            with self._lock:  # a Parquet reader is not for two threads at once
                read = partial(self._read_group, number, group, list(names) or None)
                table = _read(self._names[number], read)
            yield table

    def _read_group(self, number: int, group: int, names: list[str] | None = None) -> pa.Table:
        # So few rows are decoded sooner than threads are woken for them.
        return self._files[number].read_row_group(group, columns=names, use_threads=False)

    def _place(self, at: int) -> tuple[pa.Table, int]:
        group = int(np.searchsorted(self._first, at, side="right")) - 1
        return self._group(group), at - int(self._first[group])

    def _group(self, group: int) -> pa.Table:
        with self._lock:
            table = self._kept.get(group)
            if table is None:
                number, own = self._groups[group]
                table = _read(self._names[number], partial(self._read_group, number, own))
                self._kept[group] = table
                while sum(one.num_rows for one in self._kept.values()) > KEPT_ROWS and len(self._kept) > 1:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(group)
            return table


def _open(name: str, data: bytes) -> pq.ParquetFile:
    def opened() -> pq.ParquetFile:
        # A buffer of Arrow's: pages are decoded where they are, and not copied out of a Python file.
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        check_schema_version(file.schema_arrow, name)
        return file

    return _read(name, opened)


def _read(name: str, action: Callable[[], Any]) -> Any:
    """Raises: Corrupt where Parquet cannot read it; FormatTooNew."""
    try:
        return action()
    except PenstockError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise Corrupt(f"{name} is not a readable shards table: {error}; restore it from a mirror") from error
