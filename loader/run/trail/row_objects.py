"""Read a run log's objects into frames: several are fetched together, and the caller's thread parses them."""

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ...dataset.tables.parquet import parse_table
from ...errors import Corrupt
from ...storage import Store, is_local, is_on_network
from ...storage.store import Blob
from ...storage.threads import DaemonPool
from .step_rows import SCHEMA, cast_rows, empty_columns

if TYPE_CHECKING:
    import polars as pl

AT_ONCE = 64
"""Objects of a batch."""
BATCHES_AHEAD = 2
"""Batches that are requested before an earlier one is parsed."""
ROWS = re.compile(r"([0-9]+)-of-([0-9]+)/([0-9]{19})-[0-9a-f]{16}\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRows:
    """A read object of a run log."""

    name: str
    """Name in the run's folder."""
    where: str
    """Its full name, for messages."""
    rank: int
    world_size: int
    data: bytes


class RowObjects:
    """A run log's objects with rows."""

    def __init__(self, store: Store, folder: str) -> None:
        self._store = store
        self._folder = folder

    def frames(self, names: Sequence[str]) -> "Iterator[pl.DataFrame]":
        """Yield the rows of each group of objects, in order. Raises: Corrupt; FormatTooNew; StoreError."""
        for objects in self.object_groups(names):
            yield rows_frame(objects)

    def object_groups(self, names: Sequence[str]) -> Iterator[list[StoredRows]]:
        """Yield the objects in order, in groups of `AT_ONCE`. Requests groups ahead from a store on a network.

        Raises: StoreError.
        """
        firsts = range(0, len(names), AT_ONCE)
        batches = [names[first : first + AT_ONCE] for first in firsts]
        is_on_disk = is_local(self._store) and not is_on_network(self._store)
        if is_on_disk or len(names) < 2:
            # A read of a local file takes 25 us. A thread costs more, and takes the lock from the parser.
            for batch in batches:
                yield [self._read(name) for name in batch]
            return
        yield from self._read_ahead(batches)

    def _read_ahead(self, batches: Sequence[Sequence[str]]) -> Iterator[list[StoredRows]]:
        readers = DaemonPool(AT_ONCE, "penstock-trail-read")

        def request(batch: Sequence[str]) -> list[Future[StoredRows]]:
            return [readers.submit(copy_context().run, self._read, name) for name in batch]

        coming = deque[list[Future[StoredRows]]]()
        try:
            for batch in batches:
                coming.append(request(batch))
                if len(coming) > BATCHES_AHEAD:
                    yield [future.result() for future in coming.popleft()]
            while coming:
                yield [future.result() for future in coming.popleft()]
        finally:
            readers.dismiss()

    def _read(self, name: str) -> StoredRows:
        blob = self._store.get(self._folder + name)
        return parse_object_name(self._store, self._folder, name, blob)


def parse_object_name(
    store: Store,
    folder: str,
    name: str,
    blob: Blob,
) -> StoredRows:
    match = ROWS.fullmatch(name)
    assert match is not None  # only such names are listed
    return StoredRows(
        name=name,
        where=f"{store.url}/{folder}{name}",
        rank=int(match[1]),
        world_size=int(match[2]),
        data=blob.data,
    )


def rows_frame(objects: Sequence[StoredRows]) -> "pl.DataFrame":
    """Return all rows of some objects. Raises: Corrupt; FormatTooNew."""
    import polars as pl

    by_place: dict[tuple[int, int], dict[str, pa.Table]] = {}
    known = SCHEMA
    for stored in objects:
        table = parse_table(stored.data, stored.where)
        if not table.schema.equals(known):  # most objects of a run have the same columns
            table = cast_rows(table, stored.where)
            known = table.schema
        own = by_place.setdefault((stored.rank, stored.world_size), {})
        own[stored.where] = table
    frames = []
    for (rank, world_size), tables in by_place.items():
        rows = join_tables(tables)
        frame = rows_of_rank(rows, rank, world_size)
        frames.append(frame)
    return pl.concat(frames, how="diagonal")


def join_tables(tables: dict[str, pa.Table]) -> pa.Table:
    """Return the rows of some tables, each column in one buffer, and empty `tables`.

    polars takes 0.3 ms for each table, and many small buffers take up to twice the memory of their values.
    tables: by the object's name, for messages. Raises: Corrupt if a row lacks one of its columns.
    """
    n_rows = {where: table.num_rows for where, table in tables.items()}
    rows = pa.concat_tables(tables.values(), promote_options="default")
    tables.clear()
    schema = rows.schema
    columns = list[pa.ChunkedArray]()
    while rows.num_columns:  # by column, as a second copy of all would double the memory
        columns.append(rows.column(0).combine_chunks())
        rows = rows.remove_column(0)
    joined = pa.Table.from_arrays(columns, schema=schema)
    if empty_columns(joined):
        _raise_for_empty(joined, n_rows)
    return joined


def _raise_for_empty(rows: pa.Table, n_rows: Mapping[str, int]) -> None:
    """Raise Corrupt for the first object with a column that lacks values. n_rows: by the object's name, in order."""
    first = 0
    for where, n in n_rows.items():
        empty = empty_columns(rows.slice(first, n))
        first += n
        if empty:
            raise Corrupt(
                f"{where} is not a table of a trail: {', '.join(empty)} lack values; restore or delete it",
                what="columns",
                where=where,
                given=empty,
                accepted="a value for each row",
            )


def rows_of_rank(
    table: pa.Table,
    rank: int,
    world_size: int,
    start: str = "",
) -> "pl.DataFrame":
    """Return rows with the columns that all of them share. start: "" if the table has the column."""
    import polars as pl

    shared = {
        "rank": pl.lit(rank, pl.Int64),
        "world_size": pl.lit(world_size, pl.Int64),
    }
    if start:
        shared["start"] = pl.lit(start, pl.String)
    return pl.DataFrame(table).with_columns(**shared)


def no_rows() -> "pl.DataFrame":
    table = pa.Table.from_batches([], SCHEMA)
    return rows_of_rank(table, 0, 0)
