"""Look up a version's parts: the part and row of an ordinal, and each group's shard.

A million shards take 25 MB of arrays and 100 MB of Parquet rows (300 MB decoded). Part names, 45 MB, are decoded on
request. Finding n ordinals costs O(n log parts).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise, starmap
from operator import ne
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import Corrupt, FieldNotFound, InvalidRuntime, PenstockError
from ...modalities.fields import is_of_the_machine
from ...storage.threads import lock
from ..tables.parquet import changes, check_schema_version, codes, integers, take_rows, text
from .bitmap import SelectTable, unpack

KEPT_ROWS = 2**17
"""Most cached decoded rows, about 300 bytes each."""


class ShardRows:
    """Consecutively numbered rows of several tables. Read-only; thread-safe.

    files: (name for messages, checked bytes).
    """

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
        table, local = self._place(at)
        return {name: table[name][local].as_py() for name in table.column_names}

    def value(self, name: str, at: int) -> Any:
        table, local = self._place(at)
        return table[name][local].as_py()

    def columns(self, *names: str) -> pa.Table:
        """Return these columns (none: all) for all rows; null where an earlier release lacks one."""
        return pa.concat_tables(list(self.tables(*names)), promote_options="default")

    def tables(self, *names: str) -> Iterator[pa.Table]:
        """Yield the result of `columns` by row group: a whole column takes three times the memory."""
        for number, group in self._groups:
            with self._lock:  # a Parquet reader is not thread-safe
                read = partial(self._read_group, number, group, list(names) or None)
                table = _read(self._names[number], read)
            yield table

    def _read_group(self, number: int, group: int, names: list[str] | None = None) -> pa.Table:
        # Decoding so few rows is faster than waking threads for them.
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
        # With an Arrow buffer, pages are decoded in place and not copied out of a Python file.
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True, pre_buffer=False)
        check_schema_version(file.schema_arrow, name)
        return file

    return _read(name, opened)


def _read(name: str, action: Callable[[], Any]) -> Any:
    try:
        return action()
    except PenstockError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        if is_of_the_machine(error):
            raise
        raise Corrupt(f"{name} is not a readable shards table: {error}; restore it from a mirror") from error


Int64s = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

MISSING = -1
FEW_SHARDS = 2**14
"""Shards up to which comparing names in Python is faster than importing Arrow's functions (40 ms)."""

EXCLUSIONS_SCHEMA = pa.schema(
    [("part", pa.string()), ("bitmap", pa.binary()), ("n_rows", pa.int64()), ("reason", pa.string())]
)


KEPT_NAMES = 4096


class PartsTable:
    """Parts of one version, built from its `shards` and `exclusions` tables. Read-only; thread-safe."""

    def __init__(self, shards: ShardRows, exclusions: Sequence[pa.Table], name: str) -> None:
        self._shards, self._name = shards, name
        self._names: dict[int, str] = {}  # most recently requested
        self.groups, group, rows = _groups_and_rows(shards)
        part, self._shard_rows = _parts(shards, group, len(self.groups))
        self.n_rows = rows if part is None else rows[self._shard_rows]
        if part is not None and not np.array_equal(self.n_rows[part], rows):
            bad = self.id(int(part[np.flatnonzero(self.n_rows[part] != rows)[0]]))
            raise Corrupt(f"{name}: the shards of part {bad} do not have the same number of rows")
        self._shard_of = {
            name: self._positions(part, np.flatnonzero(group == code))
            for code, name in enumerate(self.groups)
        }
        self.live_rows = self._live_rows(exclusions)
        self.n_live = self.n_rows
        if self.live_rows:
            self.n_live = self.n_rows.copy()
            self.n_live[list(self.live_rows)] = [len(table) for table in self.live_rows.values()]
        self.first_ordinal = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.n_live, out=self.first_ordinal[1:])

    def __len__(self) -> int:
        return len(self.n_rows)

    @cached_property
    def ids(self) -> pa.Array:
        names = self._shards.columns("part")["part"].combine_chunks()
        return names if self._shard_rows is None else take_rows(names, self._shard_rows)

    def id(self, position: int) -> str:
        name = self._names.get(position)
        if name is None:
            at = position if self._shard_rows is None else int(self._shard_rows[position])
            name = self._shards.value("part", at)
            if len(self._names) >= KEPT_NAMES:
                self._names.clear()
            self._names[position] = name
        return name

    def _positions(self, part: Int64s | None, chosen: Int64s) -> Int64s:
        if part is None:
            return chosen
        positions = np.full(len(self), MISSING, np.int64)
        positions[part[chosen]] = chosen
        return positions

    def _live_rows(self, exclusions: Sequence[pa.Table]) -> dict[int, SelectTable]:
        excluded: dict[int, Bools] = {}
        for table in exclusions:
            for position, row in zip(self.positions(table["part"]).tolist(), table.to_pylist(), strict=True):
                excluded_rows = unpack(row["bitmap"], row["n_rows"])
                excluded[position] = excluded.get(position, np.zeros(row["n_rows"], bool)) | excluded_rows
        return {
            position: SelectTable(
                np.packbits(~excluded_rows, bitorder="little").tobytes(), len(excluded_rows)
            )
            for position, excluded_rows in excluded.items()
        }

    def positions(self, parts: pa.Array | pa.ChunkedArray | Sequence[str]) -> Int64s:
        """Return these parts' positions in the version's order. Raises: Corrupt for an unknown part."""
        if not isinstance(parts, pa.ChunkedArray):
            parts = pa.chunked_array([parts if isinstance(parts, pa.Array) else _texts(parts)])
        ids = parts
        import pyarrow.compute as pc  # 40 ms, saved at startup

        index = pc.index_in(ids, value_set=self.ids)
        if index.null_count:
            unknown = ids.filter(index.is_null())[0].as_py()
            raise Corrupt(f"{self._name}: a table names part {unknown!r}, which no shard of the version has")
        return integers(index)

    def position(self, part: str) -> int:
        return int(self.positions([part])[0])

    def locate(self, ordinals: Int64s) -> tuple[Int64s, Int64s]:
        """Return (part position, row in the part) for live ordinals, int64 [n] each. Raises: InvalidRuntime."""
        out_of_range = (ordinals < 0) | (ordinals >= self.first_ordinal[-1])
        if out_of_range.any():
            raise InvalidRuntime(
                f"{self._name} has no ordinal {int(ordinals[out_of_range][0])}; its samples are 0 to "
                f"{int(self.first_ordinal[-1]) - 1}"
            )
        return locate(self.first_ordinal, self.live_rows, ordinals)

    def live_members(self, position: int) -> Bools:
        """Return bool [n_rows] for one part: True for a live row."""
        if position not in self.live_rows:
            return np.ones(int(self.n_rows[position]), bool)
        return unpack(self.live_rows[position].packed(), int(self.n_rows[position]))

    @property
    def with_exclusions(self) -> list[int]:
        return sorted(self.live_rows)

    @property
    def has_exclusions(self) -> bool:
        return bool(self.live_rows)

    def has_group(self, group: str) -> Bools:
        if group not in self._shard_of:
            return np.zeros(len(self), bool)
        present: Bools = self._shard_of[group] != MISSING
        return present

    def shard(self, group: str, position: int) -> dict[str, Any]:
        at = int(self._shard_of[group][position]) if group in self._shard_of else MISSING
        if at == MISSING:
            raise FieldNotFound(
                f"{self._name}: part {self.id(position)} has no group {group!r}; select its fields with "
                "where_present=True to leave such parts out, or add the group with root.add_group"
            )
        return self._shards.row(at)

    def shard_content(self, path: str) -> tuple[str, int] | None:
        """Return (SHA-256 hex, bytes) of the shard at a path, or None. O(shards)."""
        row = self.shard_at(path)
        return None if row is None else (row["sha256"], row["nbytes"])

    def shard_at(self, path: str) -> dict[str, Any] | None:
        if len(self._shards) <= FEW_SHARDS:
            row = self._row_of.get(path)
            return None if row is None else self._shards.row(row)
        import pyarrow.compute as pc

        path_text, before = text(path), 0
        for table in self._shards.tables("path"):
            at = pc.index(table["path"], path_text).as_py()
            if at >= 0:
                return self._shards.row(before + at)
            before += table.num_rows
        return None

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {path: row for row, path in enumerate(self._shards.columns("path")["path"].to_pylist())}

    def shard_nbytes(self, group: str) -> list[int]:
        shards = self._shard_of.get(group, np.empty(0, np.int64))
        nbytes: list[int] = integers(self._shards.columns("nbytes")["nbytes"])[
            shards[shards != MISSING]
        ].tolist()
        return nbytes

    def shard_rows(self) -> pa.Table:
        """Return the whole `shards` table, in the manifest's order: 300 bytes per shard."""
        return self._shards.columns()


def _groups_and_rows(shards: ShardRows) -> tuple[list[str], Int64s, Int64s]:
    """Return (groups in order of their first shard, group number per shard, row count per shard)."""
    number: dict[str, int] = {}
    group, rows, at = np.empty(len(shards), np.int64), np.empty(len(shards), np.int64), 0
    for table in shards.tables("group", "n_rows"):
        here = slice(at, at := at + table.num_rows)
        names, own = codes(table["group"]) if len(shards) > FEW_SHARDS else (table["group"], slice(None))
        to = np.array([number.setdefault(name, len(number)) for name in names.to_pylist()], np.int64)
        group[here], rows[here] = to[own], integers(table["n_rows"])
    return list(number), group, rows


def _parts(shards: ShardRows, group: Int64s, n_groups: int) -> tuple[Int64s | None, Int64s | None]:
    """Return (int64 [shards]: part position, int64 [parts]: first shard); (None, None) if each part has one shard."""
    # A part's shards are adjacent, unless a group was added later. If every shard has the same group, no part occurs
    # twice, and no names are kept.
    if n_groups <= 1:
        return None, None
    begins, at, last = np.empty(len(shards), bool), 0, None
    for table in shards.tables("part"):
        names = table["part"].combine_chunks()
        here = slice(at, at := at + len(names))
        if len(shards) > FEW_SHARDS:
            begins[here] = changes(names)
        else:
            begins[here] = [True, *starmap(ne, pairwise(names.to_pylist()))]
        begins[here.start] = names[0].as_py() != last
        last = names[-1].as_py()
    number, first = np.cumsum(begins) - 1, np.flatnonzero(begins)
    runs = np.arange(len(first))
    if any(np.array_equal(number[group == one], runs) for one in range(n_groups)):
        return number, first
    names, number = codes(shards.columns("part")["part"])
    first = np.full(len(names), len(number), np.int64)
    np.minimum.at(first, number, np.arange(len(number)))
    return number, first


def _texts(values: Sequence[str]) -> pa.Array:
    """Return strings as an array; `pa.array` would import pandas (0.4 s)."""
    data = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, data)]).astype(np.int32)
    return pa.StringArray.from_buffers(len(data), pa.py_buffer(ends), pa.py_buffer(b"".join(data)))


def locate(first: Int64s, live_rows: Mapping[int, SelectTable], ordinals: Int64s) -> tuple[Int64s, Int64s]:
    """Return (part position, row in the part) for ordinals, int64 [n] each. O(n log parts + n).

    first: int64 [parts + 1], ascending: first ordinal of each part, then the number of ordinals. live_rows: part ->
    live rows, for parts with exclusions.
    """
    part = np.searchsorted(first, ordinals, side="right") - 1
    row = ordinals - first[part]
    for position in sorted(set(part.tolist())) if live_rows else ():
        if position in live_rows:
            of_part = np.flatnonzero(part == position)
            row[of_part] = live_rows[position].select(row[of_part])
    return part, row
