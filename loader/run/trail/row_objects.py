"""Read a run log's objects into frames: several are fetched together, and two threads parse them."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from typing import TYPE_CHECKING

import pyarrow as pa

from ...dataset.tables.parquet import parse_table
from ...errors import Corrupt
from ...storage import Store, is_local, is_on_network
from ...storage.store import Blob
from ...storage.threads import DaemonPool
from .step_rows import SCHEMA, empty_columns, typed_rows

if TYPE_CHECKING:
    import polars as pl

AT_ONCE = 64
"""Objects of a batch: each parser holds one in memory."""
LOCAL_READERS = 2
"""Threads that read files of a local disk: 64 take four times the processor time of the reads."""
PARSERS = 2
"""Threads that parse batches: three quarters of the time is pyarrow's, without the interpreter's lock."""
ROWS = re.compile(r"([0-9]+)-of-([0-9]+)/([0-9]{19})-[0-9a-f]{16}\.parquet")


class RowObjects:
    """A run log's objects with rows."""

    def __init__(self, store: Store, folder: str) -> None:
        self._store = store
        self._folder = folder

    def frames(self, names: Sequence[str]) -> "Iterator[pl.DataFrame]":
        """Yield the objects' rows, batch by batch in order. Raises: Corrupt; FormatTooNew; StoreError."""
        import polars as pl

        if len(names) < 2:
            for name in names:
                data = self._store.get(self._folder + name).data
                yield self._frame(names, [data])  # starting a thread takes longer
            return
        reads_at_once = AT_ONCE
        if is_local(self._store) and not is_on_network(self._store):
            reads_at_once = LOCAL_READERS
        readers = DaemonPool(reads_at_once, "penstock-trail-read")
        parsers = DaemonPool(PARSERS, "penstock-trail")
        frames = list[Future[pl.DataFrame]]()
        try:
            for first in range(0, len(names), AT_ONCE):
                batch = names[first : first + AT_ONCE]
                frame = parsers.submit(copy_context().run, self._read_batch, readers, batch)
                frames.append(frame)
            for frame in frames:
                yield frame.result()
        finally:
            parsers.dismiss()
            readers.dismiss()

    def _read_batch(self, readers: DaemonPool, names: Sequence[str]) -> "pl.DataFrame":
        coming = list[Future[Blob]]()
        for name in names:
            key = self._folder + name
            blob = readers.submit(copy_context().run, self._store.get, key)
            coming.append(blob)
        objects = (blob.result().data for blob in coming)
        return self._frame(names, objects)

    def _frame(
        self,
        names: Sequence[str],
        objects: Iterable[bytes],
    ) -> "pl.DataFrame":
        import polars as pl

        by_place: dict[tuple[int, int], dict[str, pa.Table]] = {}
        known = SCHEMA
        for name, data in zip(names, objects, strict=True):
            where = f"{self._store.url}/{self._folder}{name}"
            table = parse_table(data, where)
            if not table.schema.equals(known):  # most objects of a run have the same columns
                table = typed_rows(table, where)
                known = table.schema
            match = ROWS.fullmatch(name)
            assert match is not None  # only such names are listed
            rank = int(match[1])
            world_size = int(match[2])
            own = by_place.setdefault((rank, world_size), {})
            own[where] = table
        frames = []
        for (rank, world_size), tables in by_place.items():
            # One frame for many tables: polars takes 0.3 ms for each, which is as long as parsing it.
            rows = pa.concat_tables(tables.values(), promote_options="default")
            if empty_columns(rows):
                _raise_for_empty(tables)
            frame = rows_of_rank(rows, rank, world_size)
            frames.append(frame)
        # Together, as small buffers take up to twice the memory of their values.
        return pl.concat(frames, how="diagonal", rechunk=True)


def _raise_for_empty(tables: Mapping[str, pa.Table]) -> None:
    """Raise Corrupt for the first table with a column that lacks values. tables: by the object's name."""
    for where, table in tables.items():
        empty = empty_columns(table)
        if empty:
            raise Corrupt(
                f"{where} is no table of a trail: {', '.join(empty)} lack values; restore or delete it"
            )


def rows_of_rank(table: pa.Table, rank: int, world_size: int) -> "pl.DataFrame":
    import polars as pl

    numbers = {
        "rank": pl.lit(rank, pl.Int64),
        "world_size": pl.lit(world_size, pl.Int64),
    }
    return pl.DataFrame(table).with_columns(**numbers)


def no_rows() -> "pl.DataFrame":
    table = pa.Table.from_batches([], SCHEMA)
    return rows_of_rank(table, 0, 0)
