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
        of_tables = ahead(self.tables, lambda table: _having(table["key"], hashes))
        return [key for keys_of_table in of_tables for key in keys_of_table if key not in self.left_out]

    def without(self, keys: Set[str]) -> "RunKeys":
        excluded = np.sort(hashes_of(keys))
        nth = np.arange(len(excluded)) - np.searchsorted(excluded, excluded)  # for keys that share a hash
        kept = np.delete(self.hashes, np.searchsorted(self.hashes, excluded) + nth)
        return RunKeys(hashes=kept, tables=self.tables, left_out=keys)


class RunSamples:
    """The samples of a run. tables: one per part. n_rows: total rows. earlier: column -> type in the dataset."""

    def __init__(self, tables: Sequence[pa.Table], n_rows: int, earlier: Mapping[str, str]) -> None:
        """Read all tables once. Raises: DuplicateKey; FieldMismatch."""
        self._tables, self._n_rows, self._earlier = tables, n_rows, earlier
        hashes, at = np.empty(n_rows, np.int64), 0
        schemas, empty = list[pa.Schema](), set(SOURCE_COLUMNS)
        for schema, has_source, keys_of in ahead(tables, _looked_at):
            hashes[at : at + len(keys_of)] = keys_of
            at += len(keys_of)
            if not schemas or schema != schemas[-1]:
                schemas.append(schema)
            empty -= has_source
        hashes.sort()
        self._schema = concat([schema.empty_table() for schema in schemas], "the samples table").schema
        self._empty = sorted(empty)
        self.keys = RunKeys(hashes=hashes, tables=tables)
        self._check_unique()

    def _check_unique(self) -> None:
        hashes = self.keys.hashes
        seen: set[str] = set()
        for key in self.keys.having(hashes[1:][hashes[1:] == hashes[:-1]]):
            if key in seen:
                raise duplicate(key)
            seen.add(key)

    def rows_of(self, reasons: Mapping[str, str]) -> tuple[dict[tuple[str, str], list[int]], set[str]]:
        """Return (part id, reason) -> rows, and the keys that no row has. reasons: key -> reason."""
        rows: dict[tuple[str, str], list[int]] = {}
        unmatched = dict(reasons)
        hashes = np.sort(hashes_of(reasons))
        for table in self._tables if unmatched else ():
            for row in table.filter(pa.array(among(hashes_of(table["key"]), hashes))).to_pylist():
                if row["key"] in unmatched:
                    rows.setdefault((row["part"], unmatched.pop(row["key"])), []).append(row["row"])
        return rows, set(unmatched)

    def put(self, store: Store, prefix: str) -> tuple[list[SamplesFile], TableFile]:
        """Write the tables of keys, metadata and statistics. Raises: FieldMismatch; StoreError."""
        kinds = {field.name: field.type for field in self._fitted(self._schema.empty_table()).schema}
        names = {
            "keys": [name for name in kinds if name in KEY_COLUMNS],
            "metadata": ["part", "row", *(name for name in kinds if name not in KEY_COLUMNS)],
        }
        if len(names["metadata"]) == 2:
            del names["metadata"]
        stats = RunStats(smallest(self.keys.hashes[:SMALLEST_AMONG]))

        def rows(group: str) -> Iterator[pa.Table]:
            for table in ahead(self._tables, self._fitted):
                if group == "keys":
                    stats.add(table.drop_columns(["part", "row"]))
                yield table.select(names[group])

        files = [
            SamplesFile(
                file=put_rows(
                    store,
                    f"{prefix}/samples-{group}-0.parquet",
                    rows(group),
                    pa.schema([(name, kinds[name]) for name in names[group]]),
                    f"samples-{group}",
                    self._n_rows,
                ),
                group=group,
                columns={name: str(kinds[name]) for name in names[group] if name not in ("part", "row")},
            )
            for group in names
        ]
        return files, put_table(store, f"{prefix}/stats.parquet", stats.table(), "stats")

    def _fitted(self, table: pa.Table) -> pa.Table:
        if table.schema != self._schema:
            table = concat([self._schema.empty_table(), table], "the samples table")
        return fit_types(table, self._earlier).drop_columns(self._empty)


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
        return put_table(store, path, whole, kind, row_group_rows)
    data = hashed_bytes(by_rows(tables, row_group_rows), schema, kind)
    return replace(put_bytes(store, path, data, n_rows), footer_sha256=footer_sha256_of(data))


def by_rows(tables: Iterable[pa.Table], n_rows: int) -> Iterator[pa.Table]:
    held, n_held = list[pa.Table](), 0
    for table in tables:
        held.append(table)
        n_held += table.num_rows
        if n_held < n_rows:
            continue
        joined, n_held = pa.concat_tables(held), n_held % n_rows
        whole = joined.num_rows - n_held
        for first in range(0, whole, n_rows):
            yield joined.slice(first, n_rows)
        held = [joined.slice(whole)]
    if n_held:
        yield pa.concat_tables(held)


def _looked_at(table: pa.Table) -> tuple[pa.Schema, set[str], Int64s]:
    source_columns = {name for name in SOURCE_COLUMNS if table[name].null_count < table.num_rows}
    return table.schema, source_columns, hashes_of(table["key"])


def _having(keys: pa.ChunkedArray, hashes: Int64s) -> list[str]:
    keys_known: list[str] = keys.filter(pa.array(among(hashes_of(keys), hashes))).to_pylist()
    return keys_known


def ahead(tables: Sequence[pa.Table], work: Callable[[pa.Table], T]) -> Iterator[T]:
    """Yield `work(table)` for each table, in order; threads run `AT_ONCE` tables ahead."""
    waiting: deque[Future[T]] = deque()
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="penstock-samples") as pool:
        for number in range(len(tables)):
            waiting.append(pool.submit(lambda at: work(tables[at]), number))
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
        raise InvalidSample(
            f"these parts belong to {len(txns)} transactions ({', '.join(txns[:3])}); publish each with its own, or "
            "write them all with the txn of one root.begin()"
        )
    seen: set[str] = set()
    for part in parts:
        if not _is_written_by(part):  # parts that wait for a gate may have any name
            raise InvalidSample(f"part {part.id} was not written with transaction {part.txn}")
        if part.id in seen:
            raise Conflict(f"part {part.id} was given twice; publish one attempt of each part")
        seen.add(part.id)
    if not sum(part.n_rows for part in parts):
        raise EmptyVersion("there is nothing to publish: the parts have no samples")
    return txns[0]


def _is_written_by(part: Part) -> bool:
    paths = [shard.path for shard in part.shards if not shard.path.startswith(FOREIGN)]
    paths += [shard.index_path for shard in part.shards]
    paths += [part.samples.path] if part.samples else []
    return all(path.startswith(f"data/{part.txn}/") for path in paths) and all(
        shard.part == part.id for shard in part.shards
    )


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
    tables = part_tables(store, parts) if samples is None else samples
    added = sum(part.n_rows for part in parts)
    run = RunSamples(tables, added, earlier)
    reasons = {**{key: one.reason for key, one in standing.items()}, **exclude}
    own, unmatched = run.rows_of(reasons)
    if missing := sorted(unmatched & exclude.keys()):
        raise InvalidKey(
            f"exclude names {missing[0]!r}, which none of these parts has; pass keys of the parts"
        )
    excluded = {**own, **superseded.rows}
    n_rows = {**{part.id: part.n_rows for part in parts}, **superseded.n_rows}
    files, stats = run.put(store, prefix)
    exclusions = None
    if excluded:
        # A repeated import has the same prefix, and a person may have excluded more samples since.
        exclusions = put_exclusions(store, prefix, excluded, n_rows, by_content=bool(standing))
    shards = [shard for part in parts for shard in part.shards]
    change = Change(
        shards=put_table(
            store, f"{prefix}/shards.parquet", shards_table(shards), "shards", SHARDS_ROW_GROUP_ROWS
        ),
        samples=tuple(files),
        stats=stats,
        key_hashes=put_hashes(store, prefix, run.keys.hashes),
        groups=extents(parts),
        n_parts=len(parts),
        n_rows=added,
        exclusions=exclusions,
        n_excluded=sum(map(len, excluded.values())),
    )
    left_out = reasons.keys() - unmatched
    return change, run.keys.without(left_out) if left_out else run.keys


def write_group_run(store: Store, prefix: str, parts: Sequence[Part]) -> Change:
    shards = [shard for part in parts for shard in part.shards]
    return Change(
        shards=put_table(
            store, f"{prefix}/shards.parquet", shards_table(shards), "shards", SHARDS_ROW_GROUP_ROWS
        ),
        groups=extents(parts),
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
        if table.num_rows != part.n_rows or any(shard.n_rows != part.n_rows for shard in part.shards):
            raise FieldMismatch(
                f"part {part.id} has {part.n_rows} rows; its samples table has {table.num_rows}"
            )
        tables.append(table)
    return tables


def extents(parts: Sequence[Part]) -> dict[str, GroupExtent]:
    """Return group -> what these parts add. Raises: FieldMismatch if parts of a group differ."""
    out: dict[str, GroupExtent] = {}
    seen: set[tuple[str, str]] = set()
    for part in parts:
        for shard in part.shards:
            new = (shard.group, shard.path) not in seen  # several parts may share one registered object
            seen.add((shard.group, shard.path))
            old = out.get(shard.group)
            if old is not None and set(old.field_nbytes) != set(shard.field_nbytes):
                raise FieldMismatch(
                    f"group {shard.group!r} has fields {sorted(old.field_nbytes)} in the first part and "
                    f"{sorted(shard.field_nbytes)} in part {part.id}; all parts of a group have the same fields"
                )
            have = old.field_nbytes if old else {}
            out[shard.group] = GroupExtent(
                field_nbytes={f: n + have.get(f, 0) for f, n in shard.field_nbytes.items()},
                n_parts=(old.n_parts if old else 0) + 1,
                n_rows=(old.n_rows if old else 0) + shard.n_rows,
                nbytes=(old.nbytes if old else 0) + new * shard.nbytes,
            )
    return out


def shards_table(shards: list[ShardFile]) -> pa.Table:
    columns = [
        pa.array([getattr(s, name) for s in shards], SHARDS_SCHEMA.field(name).type)
        for name in SHARDS_SCHEMA.names
    ]
    return pa.table(columns, schema=SHARDS_SCHEMA)
