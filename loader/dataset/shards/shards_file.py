"""One file of a version's `shards` tables. Versions that have the file in common share what was decoded of it.

A version has the files of its parent, and one more. Without sharing, a run that opens each step's version would read
and decode all earlier steps again.
"""

from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...storage.threads import lock
from ..tables.parquet import UNREADABLE, changes, check_schema_version, codes, corrupt_if_unreadable, integers
from .bitmap import Bools, Int64s

Int32s = np.ndarray[Any, np.dtype[np.int32]]


# Plain tuples: a named one generates code at each start of a training run.
ShardGroups: TypeAlias = tuple[list[str], Int32s, Int64s]
"""(groups of the file, in order of their first shard; int32 [rows]: index into them; int64 [rows]: row counts)."""
PartChanges: TypeAlias = tuple[Bools, str, str]
"""(bool [rows]: whether the row before has another part, or there is none; first part; last part)."""
PathHashes: TypeAlias = tuple[Int64s, Int64s]
"""(int64 [rows], ascending: Python's hashes of the paths; int64 [rows]: their rows, ascending among equal hashes)."""


class ShardsFile:
    """Rows of one shards table, decoded as they are needed. Read-only; thread-safe."""

    def __init__(self, name: str, data: bytes) -> None:
        """name: for messages. data: checked bytes. Raises: Corrupt."""
        self.name = name
        self.data = data
        self._file = _open(name, data)
        metadata = self._file.metadata
        self.row_counts: list[int] = []  # of each row group
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            self.row_counts.append(row_group.num_rows)
        self.n_rows: int = sum(self.row_counts)
        self._lock = lock()
        # 13 bytes a row. Two threads may compute them at once: the results are equal.
        self._groups: ShardGroups | None = None
        self._changes: PartChanges | None = None
        self._paths: PathHashes | None = None  # 16 bytes more

    def read_group(
        self,
        group: int,
        names: list[str] | None = None,
    ) -> pa.Table:
        """Return a row group, or these columns of it. Raises: Corrupt."""
        # A Parquet reader is not thread-safe.
        with self._lock, corrupt_if_bad_table(self.name):
            # Decoding so few rows is faster than waking threads for them.
            return self._file.read_row_group(
                group,
                columns=names,
                use_threads=False,
            )

    def groups(self, *, is_few: bool) -> ShardGroups:
        """Return the group and row count of each shard. is_few: do not import Arrow's functions."""
        if self._groups is None:
            self._groups = self._read_groups(is_few)
        return self._groups

    def part_changes(self, *, is_few: bool) -> PartChanges:
        """Return where the part changes. is_few: do not import Arrow's functions. There must be a row."""
        if self._changes is None:
            self._changes = self._read_changes(is_few)
        return self._changes

    def path_rows(self, path: str) -> list[int]:
        """Return rows, ascending, that may have this path: compare it. Usually one, or none."""
        if self._paths is None:
            self._paths = self._read_paths()
        hashes, row_by_hash = self._paths
        path_hash = hash(path)
        first = np.searchsorted(
            hashes,
            path_hash,
            side="left",
        )
        stop = np.searchsorted(
            hashes,
            path_hash,
            side="right",
        )
        rows = row_by_hash[first:stop]
        numbers: list[int] = rows.tolist()
        return numbers

    def _read_groups(self, is_few: bool) -> ShardGroups:
        numbers: dict[str, int] = {}  # group -> its number
        number = np.empty(self.n_rows, np.int32)
        n_rows = np.empty(self.n_rows, np.int64)
        start = 0
        # By row group: a whole column takes three times the memory.
        for row_group, n_group_rows in enumerate(self.row_counts):
            table = self.read_group(row_group, ["group", "n_rows"])
            end = start + n_group_rows
            names = table["group"]
            if is_few:
                number[start:end] = _number_groups(names, numbers)
            else:
                distinct_names, code = codes(names)
                number_by_code = _number_groups(distinct_names, numbers)
                number[start:end] = number_by_code[code]
            counts = table["n_rows"]
            n_rows[start:end] = integers(counts)
            start = end
        return list(numbers), number, n_rows

    def _read_changes(self, is_few: bool) -> PartChanges:
        is_first = np.empty(self.n_rows, bool)
        start = 0
        first = None
        last = None  # name in the last row of the row group before
        for row_group, n_group_rows in enumerate(self.row_counts):
            table = self.read_group(row_group, ["part"])
            column = table["part"]
            names = column.combine_chunks()
            end = start + n_group_rows
            if is_few:
                texts = names.to_pylist()
                is_first[start + 1 : end] = [name != before for before, name in pairwise(texts)]
            else:
                is_first[start:end] = changes(names)
            first_name = names[0]
            last_name = names[-1]
            own_first = first_name.as_py()
            is_first[start] = own_first != last
            if first is None:
                first = own_first
            last = last_name.as_py()
            start = end
        assert first is not None  # there is a row
        assert last is not None
        return is_first, first, last

    def _read_paths(self) -> PathHashes:
        hashes = np.empty(self.n_rows, np.int64)
        start = 0
        for row_group, n_group_rows in enumerate(self.row_counts):
            table = self.read_group(row_group, ["path"])
            end = start + n_group_rows
            column = table["path"]
            paths = column.to_pylist()
            hashes[start:end] = [hash(path) for path in paths]
            start = end
        row = np.argsort(hashes, kind="stable")
        return hashes[row], row


def _number_groups(
    names: pa.Array | pa.ChunkedArray,
    numbers: dict[str, int],
) -> Int32s:
    """Return int32 [names]; a group without a number gets the next one."""
    out: list[int] = []
    for name in names.to_pylist():
        next_number = len(numbers)
        number = numbers.setdefault(name, next_number)
        out.append(number)
    return np.array(out, np.int32)


def _open(name: str, data: bytes) -> pq.ParquetFile:
    with corrupt_if_bad_table(name):
        # With an Arrow buffer, pages are decoded in place and not copied out of a Python file.
        file = pq.ParquetFile(
            pa.BufferReader(data),
            page_checksum_verification=True,
            pre_buffer=False,
        )
        check_schema_version(file.schema_arrow, name)
    return file


def corrupt_if_bad_table(name: str) -> AbstractContextManager[None]:
    return corrupt_if_unreadable(
        f"{name} is not a readable shards table",
        errors=(*UNREADABLE, KeyError),
    )
