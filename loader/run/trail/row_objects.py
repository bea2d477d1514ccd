"""Read a run log's objects into frames: several are fetched together, and two threads parse them."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from ...dataset.tables.parquet import parse_table
from ...errors import Corrupt
from ...storage import Store, is_local, is_on_network
from ...storage.store import Blob
from ...storage.threads import DaemonPool
from .step_rows import SCHEMA, empty_columns, typed_rows

if TYPE_CHECKING:
    import polars as pl

T = TypeVar("T")

AT_ONCE = 64
"""Objects of a batch: each parser holds one in memory."""
LOCAL_READERS = 2
"""Threads that read files of a local disk: 64 take four times the processor time of the reads."""
PARSERS = 2
"""Threads that parse batches: three quarters of the time is pyarrow's, without the interpreter's lock."""
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
        """Yield the objects' rows, batch by batch in order. Raises: Corrupt; FormatTooNew; StoreError."""
        yield from self.parsed(names, rows_frame)

    def parsed(
        self,
        names: Sequence[str],
        parse: Callable[[Sequence[StoredRows]], T],
    ) -> Iterator[T]:
        """Yield the result of `parse` for each batch of objects, in order. Raises: StoreError; as `parse`."""
        if len(names) < 2:
            for name in names:
                blob = self._store.get(self._folder + name)
                yield parse([stored_object(self._store, self._folder, name, blob)])
            return  # starting a thread takes longer
        reads_at_once = AT_ONCE
        if is_local(self._store) and not is_on_network(self._store):
            reads_at_once = LOCAL_READERS
        readers = DaemonPool(reads_at_once, "penstock-trail-read")
        parsers = DaemonPool(PARSERS, "penstock-trail")
        results = list[Future[T]]()
        try:
            for first in range(0, len(names), AT_ONCE):
                batch = names[first : first + AT_ONCE]
                result = parsers.submit(copy_context().run, self._read_batch, readers, batch, parse)
                results.append(result)
            for result in results:
                yield result.result()
        finally:
            parsers.dismiss()
            readers.dismiss()

    def _read_batch(
        self,
        readers: DaemonPool,
        names: Sequence[str],
        parse: Callable[[Sequence[StoredRows]], T],
    ) -> T:
        coming = list[Future[Blob]]()
        for name in names:
            key = self._folder + name
            blob = readers.submit(copy_context().run, self._store.get, key)
            coming.append(blob)
        objects = [
            stored_object(self._store, self._folder, name, blob.result())
            for name, blob in zip(names, coming, strict=True)
        ]
        return parse(objects)


def stored_object(
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
            table = typed_rows(table, stored.where)
            known = table.schema
        own = by_place.setdefault((stored.rank, stored.world_size), {})
        own[stored.where] = table
    frames = []
    for (rank, world_size), tables in by_place.items():
        rows = joined_tables(tables)
        frame = rows_of_rank(rows, rank, world_size)
        frames.append(frame)
    return pl.concat(frames, how="diagonal")


def joined_tables(tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return the rows of some tables, each column in one buffer. tables: by the object's name, for messages.

    polars takes 0.3 ms for each table, and many small buffers take up to twice the memory of their values.
    Raises: Corrupt if a row lacks one of its columns.
    """
    rows = pa.concat_tables(tables.values(), promote_options="default")
    if empty_columns(rows):
        _raise_for_empty(tables)
    return rows.combine_chunks()


def _raise_for_empty(tables: Mapping[str, pa.Table]) -> None:
    """Raise Corrupt for the first table with a column that lacks values. tables: by the object's name."""
    for where, table in tables.items():
        empty = empty_columns(table)
        if empty:
            raise Corrupt(
                f"{where} is no table of a trail: {', '.join(empty)} lack values; restore or delete it"
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
