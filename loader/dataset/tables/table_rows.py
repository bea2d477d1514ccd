"""Read single rows of a stored table by row group, at a cost independent of the table's size."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import Corrupt
from ...storage import ByteRange, Store
from ...storage.requests import retry_corrupt
from .parquet import (
    Int64s,
    TableFile,
    changes,
    check_schema_version,
    codes,
    corrupt_if_unreadable,
    get_table,
    get_table_bytes,
    get_tables,
    part_hashes,
    string_array,
    take_rows,
)
from .parquet_ranges import TAIL_BYTES, WHOLE_BELOW_BYTES, RangeFile, footer_nbytes, row_group_extent

GROUPS_AT_ONCE = 8
"""Row groups that are fetched together: each has up to 65,536 rows."""
_KEY_ROWS = pa.schema([("part", pa.string()), ("row", pa.int64()), ("key", pa.string())])
BYTES_AT_ONCE = 48 * 2**20
"""Bytes of row groups that are fetched together, unless one has more."""


def get_rows(
    store: Store,
    file: TableFile,
    rows: Int64s,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Return these rows of a table, in order. rows: int64 [n], each below `file.n_rows`.

    Costs the footer and the rows' row groups, checked by SHA-256; a small or old table is read whole.

    Raises: Corrupt, after reading twice; FormatTooNew; ObjectNotFound.
    """
    names = None
    if columns is not None:
        names = list(columns)
    if not file.footer_sha256 or file.nbytes <= WHOLE_BELOW_BYTES:
        table = get_table(store, file, names)
        return take_rows(table, rows)
    return retry_corrupt(partial(_by_row_groups, store, file, rows, names))


def _by_row_groups(
    store: Store,
    file: TableFile,
    rows: Int64s,
    columns: list[str] | None,
) -> pa.Table:
    """Return the result of `get_rows`, from the row groups that have the rows."""
    name = f"{store.url}/{file.path}"
    metadata, etag = _footer(store, file, name)
    first_rows = _first_rows(metadata)
    group_of = np.searchsorted(first_rows, rows, side="right") - 1  # [n]: the row group of each row
    groups = distinct(group_of).tolist()
    row_groups = _row_groups(
        store,
        file,
        metadata,
        etag,
        groups,
    )

    tables = []
    for group, data, start in row_groups:
        range_file = RangeFile(file.nbytes, start, data)
        with corrupt_if_unreadable(f"{name}, row group {group}"):
            reader = pq.ParquetFile(
                range_file,
                metadata=metadata,
                page_checksum_verification=True,
                pre_buffer=False,
            )
            table = reader.read_row_group(
                group,
                columns=columns,
                use_threads=False,
            )
        is_of_group = group_of == group
        rows_in_group = rows[is_of_group] - first_rows[group]
        if len(rows_in_group) < table.num_rows or np.any(np.diff(rows_in_group) != 1):
            table = take_rows(table, rows_in_group)
        tables.append(table)

    # The tables have the rows group by group: `position[i]` is where the i-th of `rows` is.
    order = np.argsort(group_of, kind="stable")
    position = np.empty(len(rows), np.int64)
    position[order] = np.arange(len(rows))
    grouped = pa.concat_tables(tables)
    if np.all(np.diff(position) == 1):
        return grouped
    return take_rows(grouped, position)


def get_row_groups(
    store: Store,
    file: TableFile,
    choose: Callable[[pq.FileMetaData], list[int]],
) -> Iterator[pa.Table]:
    """Yield the row groups of a hashed table that `choose` names by the footer, each checked by SHA-256.

    Raises: Corrupt; FormatTooNew; ObjectNotFound.
    """
    name = f"{store.url}/{file.path}"
    metadata, etag = _footer(store, file, name)
    groups = choose(metadata)
    if not groups:
        return
    for group, data, start in _row_groups(
        store,
        file,
        metadata,
        etag,
        groups,
    ):
        with corrupt_if_unreadable(f"{name}, row group {group}"):
            reader = pq.ParquetFile(
                RangeFile(file.nbytes, start, data),
                metadata=metadata,
                page_checksum_verification=True,
                pre_buffer=False,
            )
            table = reader.read_row_group(group, use_threads=False)
        yield table


def _first_rows(metadata: pq.FileMetaData) -> Int64s:
    """Return int64 [row groups + 1]: the first row of each row group, then the number of all rows."""
    n_groups = metadata.num_row_groups
    first_rows = np.zeros(n_groups + 1, np.int64)
    for group in range(n_groups):
        n_rows = metadata.row_group(group).num_rows
        first_rows[group + 1] = first_rows[group] + n_rows
    return first_rows


def _footer(
    store: Store,
    file: TableFile,
    name: str,
) -> tuple[pq.FileMetaData, str]:
    """Return (footer, ETag). The footer is checked before parsing: a damaged one can crash the process."""
    start = max(0, file.nbytes - TAIL_BYTES)
    blob = store.get_range(file.path, start, file.nbytes - start)
    data = blob.data
    nbytes = footer_nbytes(data)
    # A size beyond the file is damage, which the hash shows.
    if len(data) < nbytes <= file.nbytes:
        start = file.nbytes - nbytes
        n_missing = nbytes - len(data)
        # Pinned to the first read's ETag: a file replaced between the two reads would give half of each.
        front = store.get_range(
            file.path,
            start,
            n_missing,
            etag=blob.etag,
        )
        data = front.data + data
    footer = data[-nbytes:]
    check_sha256(
        "its footer",
        footer,
        file.footer_sha256,
        "the manifest",
        name,
    )
    range_file = RangeFile(file.nbytes, start, data)
    reader = pq.ParquetFile(range_file, pre_buffer=False)
    check_schema_version(reader.schema_arrow, name)
    return reader.metadata, blob.etag


def _row_groups(
    store: Store,
    file: TableFile,
    metadata: pq.FileMetaData,
    etag: str,
    groups: list[int],
) -> Iterator[tuple[int, bytes, int]]:
    """Yield (row group, its bytes, its first byte) of these row groups."""
    name = f"{store.url}/{file.path}"
    hashes = part_hashes(metadata).row_groups
    extents = [row_group_extent(metadata, group) for group in groups]
    largest = max(end - start for start, end in extents)
    # A few at a time: all row groups of a large table do not fit in memory.
    n_at_once = min(GROUPS_AT_ONCE, max(1, BYTES_AT_ONCE // largest))
    for first in range(0, len(groups), n_at_once):
        stop = first + n_at_once
        batch = groups[first:stop]
        spans = [ByteRange(start, end - start) for start, end in extents[first:stop]]
        blobs = store.get_ranges(file.path, spans, etag=etag)
        for group, span, blob in zip(batch, spans, blobs, strict=True):
            check_sha256(f"row group {group}", blob.data, hashes[group], "its footer", name)
            yield group, blob.data, span.offset


def check_sha256(
    what: str,
    data: bytes,
    expected: str,
    source: str,
    name: str,
) -> None:
    """Raise Corrupt if a part of a table has another SHA-256. what: the part. source: name of what has the hash."""
    sha256 = hashlib.sha256(data).hexdigest()
    if sha256 != expected:
        raise Corrupt(
            f"{name}: {what} has SHA-256 {sha256}, in {source} {expected}; restore it from a mirror",
            what=what,
            where=name,
            given=sha256,
            accepted=expected,
        )


def rows_of_keys(
    store: Store,
    files: Sequence[TableFile],
    keys: Sequence[str],
) -> Iterator[pa.Table]:
    """Yield part, row and key of the rows with these keys, a table per file.

    Decodes all keys, a row group at a time, and parts and rows where a row group has one of the keys. Whole tables take
    twice the time. Raises: Corrupt; StoreError.
    """
    read = partial(_read_rows, keys=keys)
    yield from get_tables(store, files, read=read)


def _read_rows(
    store: Store,
    file: TableFile,
    keys: Sequence[str],
) -> pa.Table:
    """Return the rows of a file with these keys."""
    import pyarrow.compute as pc  # 40 ms, saved at startup

    searched = string_array(keys)
    data = get_table_bytes(store, file)
    name = f"{store.url}/{file.path}"
    with corrupt_if_unreadable(f"{name} is not a readable Parquet file"):
        reader = pq.ParquetFile(
            pa.BufferReader(data),
            page_checksum_verification=True,
            pre_buffer=False,
        )
        check_schema_version(reader.schema_arrow, name)
        tables = [pa.Table.from_batches([], _KEY_ROWS)]
        for group in range(reader.num_row_groups):
            keys_of_group = reader.read_row_group(
                group,
                columns=["key"],
                use_threads=False,
            )
            is_match = pc.is_in(keys_of_group["key"], value_set=searched)
            if not pc.any(is_match).as_py():
                continue
            rows = reader.read_row_group(
                group,
                columns=["part", "row"],
                use_threads=False,
            )
            rows = rows.append_column("key", keys_of_group["key"])
            tables.append(rows.filter(is_match).cast(_KEY_ROWS))
        return pa.concat_tables(tables)


def run_codes(column: pa.ChunkedArray) -> tuple[pa.Array, Int64s]:
    """Return (value of each run of equal neighbours; int64 [n], number of each row's run). Raises: TypeError.

    A column with many runs is encoded by its distinct values instead, as by `codes`, which takes 0.1 s for 1e6 texts.
    """
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # too large for one array
        return codes(column)
    is_first = changes(array)  # [n]
    firsts = np.flatnonzero(is_first)  # [runs]
    if len(firsts) > len(array) // 8:
        return codes(column)
    values = take_rows(array, firsts)
    return values, np.cumsum(is_first) - 1


def distinct(values: Int64s) -> Int64s:
    """Return the distinct values of int64 [n], ascending.

    `np.unique` hashes them, which takes 0.2 s for 1e6; ascending ones take 2 ms here.
    """
    is_ascending = values[1:] >= values[:-1]
    if not is_ascending.all():
        values = np.sort(values)
    is_first = np.ones(len(values), bool)
    is_first[1:] = values[1:] != values[:-1]
    return values[is_first]
