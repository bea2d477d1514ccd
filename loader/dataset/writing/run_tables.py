"""Write the shards, samples and stats tables of one run of parts, which a change adds.

Takes eight bytes per sample and the rows of a few parts. Tables are read twice, so callers pass a sequence that can
recreate them.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from ...errors import Conflict, EmptyVersion, FieldMismatch, InvalidKey, InvalidSample
from ...storage import Store
from ...storage.external_shards import FOREIGN
from ..names import hashes_of
from ..shards.key_hashes import among, put_hashes
from ..shards.part import SHARDS_ROW_GROUP_ROWS, SHARDS_SCHEMA, Part, ShardFile
from ..tables.columns import KEY_COLUMNS, SOURCE_COLUMNS, concat, fit_types
from ..tables.manifest import Change, GroupExtent, SamplesFile
from ..tables.parquet import (
    HASHED_FROM_ROWS,
    ROW_GROUP_ROWS,
    TableFile,
    footer_sha256_of,
    get_tables,
    hashed_bytes,
    put_bytes,
    put_table,
)
from ..tables.stats import RunStats, smallest
from .exclude import NOTHING_STANDS, NOTHING_SUPERSEDED, Standing, Superseded, put_exclusions
from .spill import duplicate

Int64s = np.ndarray[Any, np.dtype[np.int64]]
T = TypeVar("T")
AT_ONCE = 4
SMALLEST_AMONG = 2**20
"""Number of ascending hashes among which the smallest distinct ones are found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKeys:
    hashes: Int64s
    """Hashes of the keys, ascending."""
    tables: Sequence[pa.Table]
    """Tables with the keys in the column `key`."""
    left_out: Container[str] = frozenset()
    """Keys in these tables that are not live."""

    @staticmethod
    def of(keys: Sequence[str]) -> "RunKeys":
        table = pa.table({"key": pa.array(keys, pa.string())})
        return RunKeys(hashes=np.sort(hashes_of(table["key"])), tables=[table])

    def having(self, hashes: Int64s) -> list[str]:
        """Return the sorted keys that have one of these ascending hashes. Costs a pass over the tables."""
        if not len(hashes):
            return []
        keys: list[str] = []
        for table_keys in ahead(self.tables, lambda table: _keys_with_hashes(table["key"], hashes)):
            keys += [key for key in table_keys if key not in self.left_out]
        return keys

    def without(self, keys: Set[str]) -> "RunKeys":
        left_out_hashes = np.sort(hashes_of(keys))
        first_positions = np.searchsorted(left_out_hashes, left_out_hashes)
        # Keys may share a hash: the n-th of them removes the n-th of the equal hashes.
        nth = np.arange(len(left_out_hashes)) - first_positions
        positions = np.searchsorted(self.hashes, left_out_hashes) + nth
        hashes = np.delete(self.hashes, positions)
        return RunKeys(hashes=hashes, tables=self.tables, left_out=keys)


class RunSamples:
    """The samples of a run. tables: one per part. n_rows: total rows. earlier: column -> type in the dataset."""

    def __init__(
        self,
        tables: Sequence[pa.Table],
        n_rows: int,
        earlier: Mapping[str, str],
    ) -> None:
        """Read all tables once. Raises: DuplicateKey; FieldMismatch."""
        self._tables = tables
        self._n_rows = n_rows
        self._earlier = earlier

        hashes = np.empty(n_rows, np.int64)  # in place: a list of each table's would need the memory twice
        n_hashes = 0
        schemas: list[pa.Schema] = []
        empty_columns = set(SOURCE_COLUMNS)
        for schema, source_columns, table_hashes in ahead(tables, _schema_and_hashes):
            hashes[n_hashes : n_hashes + len(table_hashes)] = table_hashes
            n_hashes += len(table_hashes)
            if not schemas or schema != schemas[-1]:
                schemas.append(schema)
            empty_columns -= source_columns
        hashes.sort()

        empty_tables = [schema.empty_table() for schema in schemas]
        self._schema = concat(empty_tables, "the samples table").schema
        self._empty_columns = sorted(empty_columns)
        self.keys = RunKeys(hashes=hashes, tables=tables)
        self._check_unique()

    def _check_unique(self) -> None:
        hashes = self.keys.hashes
        is_repeated = hashes[1:] == hashes[:-1]
        # Two keys may share a hash, so the keys decide. Usually no hash repeats, and nothing is read.
        earlier_keys: set[str] = set()
        for key in self.keys.having(hashes[1:][is_repeated]):
            if key in earlier_keys:
                raise duplicate(key)
            earlier_keys.add(key)

    def rows_of(self, reasons: Mapping[str, str]) -> tuple[dict[tuple[str, str], list[int]], set[str]]:
        """Return (part id, reason) -> rows, and the keys that no row has. reasons: key -> reason."""
        rows: dict[tuple[str, str], list[int]] = {}
        if not reasons:
            return rows, set()
        unmatched = dict(reasons)
        hashes = np.sort(hashes_of(reasons))
        for table in self._tables:
            has_hash = among(hashes_of(table["key"]), hashes)
            for row in table.filter(pa.array(has_hash)).to_pylist():
                reason = unmatched.pop(row["key"], None)
                if reason is not None:
                    rows.setdefault((row["part"], reason), []).append(row["row"])
        return rows, set(unmatched)

    def put(self, store: Store, prefix: str) -> tuple[list[SamplesFile], TableFile]:
        """Write the tables of keys, metadata and statistics. Raises: FieldMismatch; StoreError."""
        schema = self._fit(self._schema.empty_table()).schema
        names_by_group = {
            "keys": [name for name in schema.names if name in KEY_COLUMNS],
            "metadata": ["part", "row", *(name for name in schema.names if name not in KEY_COLUMNS)],
        }
        if names_by_group["metadata"] == ["part", "row"]:
            del names_by_group["metadata"]

        stats = RunStats(smallest(self.keys.hashes[:SMALLEST_AMONG]))
        files = []
        for group, names in names_by_group.items():
            own_stats = None
            if group == "keys":
                own_stats = stats  # each group reads the tables again, and they count once
            group_schema = pa.schema([(name, schema.field(name).type) for name in names])
            file = put_rows(
                store,
                f"{prefix}/samples-{group}-0.parquet",
                self._select(names, own_stats),
                group_schema,
                f"samples-{group}",
                self._n_rows,
            )
            columns = {name: str(schema.field(name).type) for name in names if name not in ("part", "row")}
            files.append(SamplesFile(file=file, group=group, columns=columns))
        return files, put_table(
            store,
            f"{prefix}/stats.parquet",
            stats.table(),
            "stats",
        )

    def _select(self, names: Sequence[str], stats: RunStats | None = None) -> Iterator[pa.Table]:
        """Yield these columns of each table; add all columns to the statistics on the way."""
        for table in ahead(self._tables, self._fit):
            if stats is not None:
                stats.add(table.drop_columns(["part", "row"]))
            yield table.select(names)

    def _fit(self, table: pa.Table) -> pa.Table:
        if table.schema != self._schema:
            table = concat([self._schema.empty_table(), table], "the samples table")
        return fit_types(table, self._earlier).drop_columns(self._empty_columns)


def put_rows(
    store: Store,
    path: str,
    tables: Iterable[pa.Table],
    schema: pa.Schema,
    kind: str,
    n_rows: int,
    row_group_rows: int = ROW_GROUP_ROWS,
) -> TableFile:
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
    return replace(file, footer_sha256=footer_sha256_of(data))


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
        waiting = [joined.slice(n_whole)]
    if n_waiting:
        yield pa.concat_tables(waiting)


def _schema_and_hashes(table: pa.Table) -> tuple[pa.Schema, set[str], Int64s]:
    """Return (schema, source columns that have a value, hash of each key)."""
    source_columns = {name for name in SOURCE_COLUMNS if table[name].null_count < table.num_rows}
    return table.schema, source_columns, hashes_of(table["key"])


def _keys_with_hashes(keys: pa.ChunkedArray, hashes: Int64s) -> list[str]:
    has_hash = among(hashes_of(keys), hashes)
    matching: list[str] = keys.filter(pa.array(has_hash)).to_pylist()
    return matching


def ahead(tables: Sequence[pa.Table], work: Callable[[pa.Table], T]) -> Iterator[T]:
    """Yield `work(table)` for each table, in order; threads run `AT_ONCE` tables ahead."""
    waiting: deque[Future[T]] = deque()

    def work_on(number: int) -> T:
        return work(tables[number])  # the table is built in the thread too

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="penstock-samples") as pool:
        for number in range(len(tables)):
            waiting.append(pool.submit(work_on, number))
            if len(waiting) == AT_ONCE:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def check_parts(parts: Sequence[Part]) -> str:
    """Return the transaction of all parts.

    Raises: EmptyVersion; Conflict if two parts share an id; InvalidSample if parts belong to several transactions, or
    have another one's files.
    """
    if not parts:
        raise EmptyVersion("there is nothing to publish: no parts were given")
    txns = sorted({part.txn for part in parts})
    if len(txns) > 1:
        first_txns = ", ".join(txns[:3])
        raise InvalidSample(
            f"these parts belong to {len(txns)} transactions ({first_txns}); publish each with its own, or "
            "write them all with the txn of one root.begin()"
        )
    part_ids: set[str] = set()
    for part in parts:
        if not _is_written_by(part):  # parts that wait for a gate may have any name
            raise InvalidSample(f"part {part.id} was not written with transaction {part.txn}")
        if part.id in part_ids:
            raise Conflict(f"part {part.id} was given twice; publish one attempt of each part")
        part_ids.add(part.id)
    if not any(part.n_rows for part in parts):
        raise EmptyVersion("there is nothing to publish: the parts have no samples")
    return txns[0]


def _is_written_by(part: Part) -> bool:
    """Return whether the part's transaction wrote all its files; registered objects belong to none."""
    paths = []
    for shard in part.shards:
        if shard.part != part.id:
            return False
        if not shard.path.startswith(FOREIGN):
            paths.append(shard.path)
        paths.append(shard.index_path)
    if part.samples is not None:
        paths.append(part.samples.path)
    folder = f"data/{part.txn}/"
    return all(path.startswith(folder) for path in paths)


def write_run(
    store: Store,
    prefix: str,
    parts: Sequence[Part],
    earlier: Mapping[str, str],
    exclude: Mapping[str, str],
    superseded: Superseded = NOTHING_SUPERSEDED,
    samples: Sequence[pa.Table] | None = None,
    standing: Standing = NOTHING_STANDS,
) -> tuple[Change, RunKeys]:
    """Upload the run's tables under `prefix`; return (change, live keys that it adds).

    Costs one request per new part plus six, whatever the dataset's size.

        earlier: column -> type in the dataset.
        exclude: key -> reason.
        superseded: samples of earlier parts to leave out.
        samples: samples table of each part, built on request; None reads the tables.
        standing: exclusions of keys, which these parts may lack.

    Raises: DuplicateKey; FieldMismatch; InvalidKey for a missing key to exclude; Corrupt.
    """
    tables = samples
    if tables is None:
        tables = part_tables(store, parts)
    n_rows = sum(part.n_rows for part in parts)
    run = RunSamples(tables, n_rows, earlier)

    # A reason in the call counts before the reason of a standing exclusion.
    reasons = {key: exclusion.reason for key, exclusion in standing.items()}
    reasons.update(exclude)
    own_excluded, unmatched = run.rows_of(reasons)
    missing = sorted(unmatched & exclude.keys())
    if missing:
        raise InvalidKey(
            f"exclude names {missing[0]!r}, which none of these parts has; pass keys of the parts"
        )
    excluded = {**own_excluded, **superseded.rows}

    files, stats = run.put(store, prefix)
    exclusions = None
    if excluded:
        part_sizes = {part.id: part.n_rows for part in parts}
        part_sizes.update(superseded.n_rows)
        # A repeated import has the same prefix, and a person may have excluded more samples since.
        exclusions = put_exclusions(
            store,
            prefix,
            excluded,
            part_sizes,
            by_content=bool(standing),
        )
    change = Change(
        shards=_put_shards(store, prefix, parts),
        samples=tuple(files),
        stats=stats,
        key_hashes=put_hashes(store, prefix, run.keys.hashes),
        groups=extents(parts),
        n_parts=len(parts),
        n_rows=n_rows,
        exclusions=exclusions,
        n_excluded=sum(len(rows) for rows in excluded.values()),
    )
    left_out = reasons.keys() - unmatched
    if not left_out:
        return change, run.keys
    return change, run.keys.without(left_out)


def write_group_run(
    store: Store,
    prefix: str,
    parts: Sequence[Part],
) -> Change:
    return Change(shards=_put_shards(store, prefix, parts), groups=extents(parts))


def _put_shards(
    store: Store,
    prefix: str,
    parts: Sequence[Part],
) -> TableFile:
    shards: list[ShardFile] = []
    for part in parts:
        shards.extend(part.shards)
    return put_table(
        store,
        f"{prefix}/shards.parquet",
        shards_table(shards),
        "shards",
        SHARDS_ROW_GROUP_ROWS,
    )


def part_tables(store: Store, parts: Sequence[Part]) -> list[pa.Table]:
    """Return each part's samples table. Raises: InvalidSample if a part has none; FieldMismatch; Corrupt."""
    files = []
    for part in parts:
        if part.samples is None:
            raise InvalidSample(
                f"part {part.id} has no samples table; root.publish takes parts made by write_part"
            )
        files.append(part.samples)

    tables = []
    for part, table in zip(parts, get_tables(store, files), strict=True):
        row_counts = {table.num_rows, *(shard.n_rows for shard in part.shards)}
        if row_counts != {part.n_rows}:
            raise FieldMismatch(
                f"part {part.id} has {part.n_rows} rows; its samples table has {table.num_rows}"
            )
        tables.append(table)
    return tables


def extents(parts: Sequence[Part]) -> dict[str, GroupExtent]:
    """Return group -> what these parts add. Raises: FieldMismatch if parts of a group differ."""
    totals: dict[str, GroupExtent] = {}
    counted_paths: set[tuple[str, str]] = set()
    for part in parts:
        for shard in part.shards:
            group = shard.group
            total = totals.get(group)
            if total is None:
                no_bytes = dict.fromkeys(shard.field_nbytes, 0)
                total = GroupExtent(
                    field_nbytes=no_bytes,
                    n_parts=0,
                    n_rows=0,
                    nbytes=0,
                )
            if set(total.field_nbytes) != set(shard.field_nbytes):
                raise FieldMismatch(
                    f"group {group!r} has fields {sorted(total.field_nbytes)} in the first part and "
                    f"{sorted(shard.field_nbytes)} in part {part.id}; all parts of a group have the same fields"
                )

            # Several parts may share one registered object, whose bytes count once.
            nbytes = total.nbytes
            if (group, shard.path) not in counted_paths:
                nbytes += shard.nbytes
            counted_paths.add((group, shard.path))
            field_nbytes = {}
            for field, shard_nbytes in shard.field_nbytes.items():
                field_nbytes[field] = shard_nbytes + total.field_nbytes[field]
            totals[group] = GroupExtent(
                field_nbytes=field_nbytes,
                n_parts=total.n_parts + 1,
                n_rows=total.n_rows + shard.n_rows,
                nbytes=nbytes,
            )
    return totals


def shards_table(shards: Sequence[ShardFile]) -> pa.Table:
    columns = []
    for field in SHARDS_SCHEMA:
        values = [getattr(shard, field.name) for shard in shards]
        columns.append(pa.array(values, field.type))
    return pa.table(columns, schema=SHARDS_SCHEMA)
