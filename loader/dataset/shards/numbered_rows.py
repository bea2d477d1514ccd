"""Decode rows of a version's `shards` tables as they are needed."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...storage.threads import lock
from ..tables.parquet import UNREADABLE, check_schema_version, corrupt_if_unreadable

CACHE_ROWS = 2**17
"""Most cached decoded rows, about 300 bytes each."""


class ShardRows:
    """Consecutively numbered rows of several tables. Read-only; thread-safe.

    files: (name for messages, checked bytes).
    """

    def __init__(
        self,
        files: Sequence[tuple[str, bytes]],
    ) -> None:
        self._names: list[str] = []
        self._files: list[pq.ParquetFile] = []
        self._groups: list[tuple[int, int]] = []  # (number of the file, row group in it)
        first_rows = [0]  # of each row group, then the number of rows
        end = 0
        for number, (name, data) in enumerate(files):
            file = _open(name, data)
            metadata = file.metadata
            for group in range(metadata.num_row_groups):
                row_group = metadata.row_group(group)
                end += row_group.num_rows
                first_rows.append(end)
                self._groups.append((number, group))
            self._names.append(name)
            self._files.append(file)

        self._first_rows = np.array(first_rows, np.int64)
        self._cache: OrderedDict[int, pa.Table] = OrderedDict()
        self._lock = lock()

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    def row(self, number: int) -> dict[str, Any]:
        """Return column -> value."""
        table, local = self._locate(number)
        row: dict[str, Any] = {}
        for name in table.column_names:
            cell = table[name][local]
            row[name] = cell.as_py()
        return row

    def value(
        self,
        name: str,
        number: int,
    ) -> Any:
        table, local = self._locate(number)
        cell = table[name][local]
        return cell.as_py()

    def columns(self, *names: str) -> pa.Table:
        """Return these columns (none: all) for all rows; null where an earlier release lacks one."""
        tables = self.tables(*names)
        return pa.concat_tables(list(tables), promote_options="default")

    def tables(self, *names: str) -> Iterator[pa.Table]:
        """Yield the result of `columns` by row group: a whole column takes three times the memory."""
        columns = None
        if names:
            columns = list(names)
        for number, group in self._groups:
            name = self._names[number]
            # A Parquet reader is not thread-safe.
            with self._lock, _corrupt_if_unreadable(name):
                table = self._read_group(number, group, columns)
            yield table

    def _read_group(
        self,
        number: int,
        group: int,
        names: list[str] | None = None,
    ) -> pa.Table:
        # Decoding so few rows is faster than waking threads for them.
        return self._files[number].read_row_group(
            group,
            columns=names,
            use_threads=False,
        )

    def _locate(self, number: int) -> tuple[pa.Table, int]:
        """Return (the row's decoded row group, the row in it)."""
        next_group = np.searchsorted(
            self._first_rows,
            number,
            side="right",
        )
        group = int(next_group) - 1
        first_row = int(self._first_rows[group])
        table = self._decoded(group)
        return table, number - first_row

    def _decoded(self, group: int) -> pa.Table:
        with self._lock:
            table = self._cache.get(group)
            if table is not None:
                self._cache.move_to_end(group)
                return table

            number, group_in_file = self._groups[group]
            name = self._names[number]
            with _corrupt_if_unreadable(name):
                table = self._read_group(number, group_in_file)
            self._cache[group] = table
            self._evict()
            return table

    def _evict(self) -> None:
        """Remove the least recently used row groups, but not the last one."""
        n_rows = 0
        for table in self._cache.values():
            n_rows += table.num_rows
        while n_rows > CACHE_ROWS and len(self._cache) > 1:
            _, oldest = self._cache.popitem(last=False)
            n_rows -= oldest.num_rows


def _open(name: str, data: bytes) -> pq.ParquetFile:
    with _corrupt_if_unreadable(name):
        # With an Arrow buffer, pages are decoded in place and not copied out of a Python file.
        file = pq.ParquetFile(
            pa.BufferReader(data),
            page_checksum_verification=True,
            pre_buffer=False,
        )
        check_schema_version(file.schema_arrow, name)
    return file


def _corrupt_if_unreadable(name: str) -> AbstractContextManager[None]:
    return corrupt_if_unreadable(
        f"{name} is not a readable shards table",
        errors=(*UNREADABLE, KeyError),
    )
