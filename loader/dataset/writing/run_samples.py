"""The samples of one run of parts: their keys, checked to be unique, and the tables of their rows.

Takes eight bytes per sample and the rows of a few parts. Tables are read twice, so callers pass a sequence that can
recreate them.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from ...storage import Store
from ...storage.threads import DaemonPool
from ..names import hashes_of
from ..shards.key_hashes import membership
from ..tables.columns import KEY_COLUMNS, SOURCE_COLUMNS, concat, with_dataset_types
from ..tables.manifest import SamplesFile
from ..tables.parquet import (
    HASHED_FROM_ROWS,
    ROW_GROUP_ROWS,
    TableFile,
    footer_sha256,
    hashed_bytes,
    put_bytes,
    put_table,
)
from ..tables.stats import RunStats, smallest
from .exclude import RowsByReason
from .spill import duplicate

Int64s = np.ndarray[Any, np.dtype[np.int64]]
T = TypeVar("T")
TABLES_AHEAD = 4
"""Number of tables that `map_ahead` works on at once, each in a thread."""
SMALLEST_AMONG = 2**20
"""Number of ascending hashes among which the smallest distinct ones are found: nearly all hashes differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKeys:
    hashes: Int64s
    """Hashes of the keys, ascending."""
    tables: Sequence[pa.Table]
    """Tables with the keys in the column `key`."""
    not_live: Container[str] = frozenset()
    """Keys in these tables that are not live."""

    @staticmethod
    def of(keys: Sequence[str]) -> "RunKeys":
        """Return these keys, all live."""
        key_column = pa.array(keys, pa.string())
        table = pa.table({"key": key_column})
        hashes = hashes_of(key_column)
        hashes.sort()
        return RunKeys(hashes=hashes, tables=[table])

    def find_keys(self, hashes: Int64s) -> list[str]:
        """Return the live keys that have one of these ascending hashes, in the order of the tables.

        Costs a pass over the tables.
        """
        if not len(hashes):
            return []

        def matching_keys(table: pa.Table) -> list[str]:
            key_column = table["key"]
            has_hash = membership(hashes_of(key_column), hashes)
            matching = key_column.filter(pa.array(has_hash))
            keys_with_hash: list[str] = matching.to_pylist()
            return keys_with_hash

        keys: list[str] = []
        for keys_of_table in map_ahead(self.tables, matching_keys):
            for key in keys_of_table:
                if key in self.not_live:
                    continue
                keys.append(key)
        return keys

    def without(self, keys: Set[str]) -> "RunKeys":
        """Return these keys, all live so far, with `keys` among them as not live."""
        # Keys may share a hash, and `self.hashes` has it once for each of them: each removed key takes away one.
        removed_hashes = np.sort(hashes_of(keys))
        first_with_hash = np.searchsorted(removed_hashes, removed_hashes)
        # int64 [removed keys]: 0 for the first key with a hash, 1 for the second one with the same hash
        nth_with_hash = np.arange(len(removed_hashes)) - first_with_hash
        # int64 [removed keys]: the position in `self.hashes` that each key takes away
        removed_positions = np.searchsorted(self.hashes, removed_hashes) + nth_with_hash
        hashes = np.delete(self.hashes, removed_positions)
        return RunKeys(hashes=hashes, tables=self.tables, not_live=keys)


class RunSamples:
    """The samples of a run. tables: one per part. n_rows: of all parts. column_types: column -> type in the dataset."""

    def __init__(
        self,
        tables: Sequence[pa.Table],
        n_rows: int,
        column_types: Mapping[str, str],
    ) -> None:
        """Read all tables once. Raises: DuplicateKey; FieldMismatch."""
        self._tables = tables
        self._n_rows = n_rows
        self._column_types = column_types

        hashes = np.empty(n_rows, np.int64)  # in place: a list of each table's would need the memory twice
        n_hashes = 0
        schemas: list[pa.Schema] = []
        empty_columns = set(SOURCE_COLUMNS)
        for schema, columns_with_values, table_hashes in map_ahead(tables, _schema_and_hashes):
            stop = n_hashes + len(table_hashes)
            hashes[n_hashes:stop] = table_hashes
            n_hashes = stop
            if not schemas or schema != schemas[-1]:
                schemas.append(schema)
            empty_columns -= columns_with_values
        hashes.sort()

        # The columns without any value in the run are not stored.
        self._empty_columns = sorted(empty_columns)
        empty_tables = [schema.empty_table() for schema in schemas]
        # Types that differ between tables become one that holds both. Empty tables suffice to find it.
        joined = concat(empty_tables, "the samples table")
        self._schema = joined.schema
        self.keys = RunKeys(hashes=hashes, tables=tables)
        self._check_unique()

    def _check_unique(self) -> None:
        hashes = self.keys.hashes
        later = hashes[1:]
        earlier = hashes[:-1]
        is_repeated = later == earlier
        # Two keys may share a hash, so the keys decide. Usually no hash repeats, and nothing is read.
        earlier_keys: set[str] = set()
        repeated_hashes = later[is_repeated]
        for key in self.keys.find_keys(repeated_hashes):
            if key in earlier_keys:
                raise duplicate(key)
            earlier_keys.add(key)

    def find_rows(self, reasons: Mapping[str, str]) -> tuple[RowsByReason, set[str]]:
        """Return the rows that have these keys, and the keys that no row has. reasons: key -> reason."""
        rows: RowsByReason = {}
        if not reasons:
            return rows, set()
        unmatched = dict(reasons)
        hashes = np.sort(hashes_of(reasons))
        for table in self._tables:
            has_hash = membership(hashes_of(table["key"]), hashes)
            candidates = table.filter(pa.array(has_hash))
            # Another key may share a hash, so the keys decide.
            for row in candidates.to_pylist():
                reason = unmatched.pop(row["key"], None)
                if reason is None:
                    continue
                rows_of_reason = rows.setdefault((row["part"], reason), [])
                rows_of_reason.append(row["row"])
        return rows, set(unmatched)

    def put(self, store: Store, prefix: str) -> tuple[list[SamplesFile], TableFile]:
        """Write the tables of keys, metadata and statistics. Raises: FieldMismatch; StoreError."""
        schema = self._fit(self._schema.empty_table()).schema
        smallest_hashes = smallest(self.keys.hashes[:SMALLEST_AMONG])
        stats = RunStats(smallest_hashes)
        files = []
        for group, names in _names_by_group(schema).items():
            # Each group reads the tables again. Only the first one, which every run has, adds them to the statistics.
            stats_of_pass = None
            if group == "keys":
                stats_of_pass = stats
            # Names and types only: the fields of `schema` may have metadata of their first table.
            column_types = [(name, schema.field(name).type) for name in names]
            group_schema = pa.schema(column_types)
            file = put_rows(
                store,
                f"{prefix}/samples-{group}-0.parquet",
                self._select(names, stats_of_pass),
                group_schema,
                f"samples-{group}",
                self._n_rows,
            )
            columns = {}
            for field in group_schema:
                if field.name not in ("part", "row"):
                    columns[field.name] = str(field.type)
            files.append(SamplesFile(file=file, group=group, columns=columns))
        stats_file = put_table(
            store,
            f"{prefix}/stats.parquet",
            stats.table(),
            "stats",
        )
        return files, stats_file

    def _select(self, names: Sequence[str], stats: RunStats | None) -> Iterator[pa.Table]:
        """Yield these columns of each table. Adds all columns to `stats` on the way, unless it is None."""
        for table in map_ahead(self._tables, self._fit):
            if stats is not None:
                without_location = table.drop_columns(["part", "row"])
                stats.add(without_location)
            yield table.select(names)

    def _fit(self, table: pa.Table) -> pa.Table:
        """Return a table with the columns that the run stores, and their types."""
        if table.schema != self._schema:
            empty_table = self._schema.empty_table()
            table = concat([empty_table, table], "the samples table")
        fitted = with_dataset_types(table, self._column_types)
        return fitted.drop_columns(self._empty_columns)


def _names_by_group(schema: pa.Schema) -> dict[str, list[str]]:
    """Return column group -> its columns; each group has part and row. Without metadata there is only "keys"."""
    key_names = []
    metadata_names = []
    for name in schema.names:
        if name in KEY_COLUMNS:
            key_names.append(name)
        else:
            metadata_names.append(name)
    names_by_group = {"keys": key_names}
    if metadata_names:
        names_by_group["metadata"] = ["part", "row", *metadata_names]
    return names_by_group


def put_rows(
    store: Store,
    path: str,
    tables: Iterable[pa.Table],
    schema: pa.Schema,
    kind: str,
    n_rows: int,
    row_group_rows: int = ROW_GROUP_ROWS,
) -> TableFile:
    """Write tables as one with this schema. n_rows: all their rows."""
    if n_rows < HASHED_FROM_ROWS:
        whole = pa.concat_tables([schema.empty_table(), *tables])
        return put_table(
            store,
            path,
            whole,
            kind,
            row_group_rows,
        )
    # One row group at a time: `tables` need not be in memory together.
    data = hashed_bytes(by_rows(tables, row_group_rows), schema, kind)
    file = put_bytes(
        store,
        path,
        data,
        n_rows,
    )
    return replace(file, footer_sha256=footer_sha256(data))


def by_rows(tables: Iterable[pa.Table], n_rows: int) -> Iterator[pa.Table]:
    """Yield the rows of all tables in tables of `n_rows`, the last with what remains."""
    waiting: list[pa.Table] = []
    n_waiting = 0
    for table in tables:
        waiting.append(table)
        n_waiting += table.num_rows
        if n_waiting < n_rows:
            continue
        joined = pa.concat_tables(waiting)
        n_waiting %= n_rows
        n_whole = joined.num_rows - n_waiting
        for first in range(0, n_whole, n_rows):
            yield joined.slice(first, n_rows)
        waiting = [joined.slice(n_whole)]  # no copy: it holds `joined` in memory until the next join
    if n_waiting:
        yield pa.concat_tables(waiting)


def _schema_and_hashes(table: pa.Table) -> tuple[pa.Schema, set[str], Int64s]:
    """Return (schema, source columns that have a value, hash of each key)."""
    columns_with_values = set()
    for name in SOURCE_COLUMNS:
        column = table[name]
        if column.null_count < table.num_rows:
            columns_with_values.add(name)
    hashes = hashes_of(table["key"])
    return table.schema, columns_with_values, hashes


def map_ahead(tables: Sequence[pa.Table], work: Callable[[pa.Table], T]) -> Iterator[T]:
    """Yield `work(table)` for each table, in order; threads run `TABLES_AHEAD` tables ahead."""
    waiting: deque[Future[T]] = deque()

    def work_table(number: int) -> T:
        return work(tables[number])  # the table is built in the thread too

    with DaemonPool(TABLES_AHEAD, "penstock-samples") as pool:
        for number in range(len(tables)):
            future = pool.submit(work_table, number)
            waiting.append(future)
            # No further table until the caller has the oldest: this bounds the tables in memory.
            if len(waiting) == TABLES_AHEAD:
                oldest = waiting.popleft()
                yield oldest.result()
        for future in waiting:
            yield future.result()
