"""Decode rows of a version's `shards` tables as they are needed."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...storage.threads import SizedLru
from .bitmap import Bools
from .shards_file import ShardsFile

CACHE_ROWS = 2**17
"""Most cached decoded rows, about 300 bytes each."""


class ShardRows:
    """Consecutively numbered rows of several tables. Read-only; thread-safe."""

    def __init__(self, files: Sequence[ShardsFile]) -> None:
        self.files = files
        self._groups: list[tuple[int, int]] = []  # (number of the file, row group in it)
        first_rows = [0]  # of each row group, then the number of rows
        end = 0
        for number, file in enumerate(files):
            for group, n_rows in enumerate(file.row_counts):
                end += n_rows
                first_rows.append(end)
                place = (number, group)
                self._groups.append(place)

        self._first_rows = np.array(first_rows, np.int64)
        self.cache = SizedLru(CACHE_ROWS)
        """Number of a row group -> its decoded table, by rows."""

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    def row(self, number: int) -> dict[str, Any]:
        """Return column -> value."""
        table, local = self._locate(number)
        row: dict[str, Any] = {}
        for name in table.column_names:
            column = table[name]
            cell = column[local]
            row[name] = cell.as_py()
        return row

    def part_changes(self, is_few: bool) -> Bools:
        """Return bool [shards]: whether the part of each shard differs from the part of the shard before.

        is_few: compare in Python, without importing Arrow's functions (`parts_table.FEW_SHARDS`).
        """
        changes = np.empty(len(self), bool)
        start = 0
        last = None  # name in the last row of the file before
        for file in self.files:
            if not file.n_rows:
                continue
            end = start + file.n_rows
            is_first, own_first, own_last = file.part_changes(is_few=is_few)
            changes[start:end] = is_first
            # The first row is compared with the last row of the file before.
            changes[start] = own_first != last
            last = own_last
            start = end
        return changes

    def value(
        self,
        name: str,
        number: int,
    ) -> Any:
        table, local = self._locate(number)
        column = table[name]
        cell = column[local]
        return cell.as_py()

    def columns(self, *names: str) -> pa.Table:
        """Return these columns (none: all) for all rows; null where an earlier release lacks one."""
        tables = list(self.tables(*names))
        return pa.concat_tables(
            tables,
            promote_options="default",
        )

    def tables(self, *names: str) -> Iterator[pa.Table]:
        """Yield the result of `columns` by row group: a whole column takes three times the memory."""
        columns = None
        if names:
            columns = list(names)
        for number, group in self._groups:
            file = self.files[number]
            yield file.read_group(group, columns)

    def _locate(self, number: int) -> tuple[pa.Table, int]:
        """Return (the row's decoded row group, the row in it)."""
        next_group = np.searchsorted(
            self._first_rows,
            number,
            side="right",
        )
        group = int(next_group) - 1
        first_row = self._first_rows[group]
        table = self._decode_group(group)
        return table, number - int(first_row)

    def _decode_group(self, group: int) -> pa.Table:
        table: pa.Table | None = self.cache.get(group)
        if table is not None:
            return table
        with self.cache.turns.of(group):
            table = self.cache.get(group)  # another thread may have decoded it meanwhile
            if table is None:
                number, group_in_file = self._groups[group]
                file = self.files[number]
                table = file.read_group(group_in_file)
                self.cache.put(group, table, table.num_rows)
        return table
