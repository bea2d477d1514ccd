"""Read single rows of a stored table by row group, at a cost independent of the table's size."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import Corrupt
from ...modalities.fields import is_of_the_machine
from ...storage import ByteRange, Store
from ...storage.requests import retry_corrupt
from .parquet import (
    TAIL_BYTES,
    UNREADABLE,
    WHOLE_BELOW_BYTES,
    Int64s,
    TableFile,
    Window,
    check_schema_version,
    footer_nbytes,
    get_table,
    part_hashes,
    row_group_extent,
    take_rows,
)

GROUPS_AT_ONCE = 8


def get_rows(store: Store, file: TableFile, rows: Int64s, columns: Sequence[str] | None = None) -> pa.Table:
    """Return these rows of a table, in order. rows: int64 [n], each below `file.n_rows`.

    Costs the footer and the rows' row groups, checked by SHA-256; a small or old table is read whole.

    Raises: Corrupt, after reading twice; FormatTooNew; ObjectNotFound.
    """
    if not file.footer_sha256 or file.nbytes <= WHOLE_BELOW_BYTES:
        names = None if columns is None else list(columns)
        return take_rows(get_table(store, file, names), rows)
    return retry_corrupt(partial(_by_row_groups, store, file, rows, columns))


def _by_row_groups(store: Store, file: TableFile, rows: Int64s, columns: Sequence[str] | None) -> pa.Table:
    name = f"{store.url}/{file.path}"
    metadata, etag = _footer(store, file, name)
    sizes = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
    first_row = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
    group_of = np.searchsorted(first_row, rows, side="right") - 1
    tables = []
    for group, data, start in _row_groups(store, file, metadata, etag, np.unique(group_of).tolist()):
        try:
            reader = pq.ParquetFile(
                Window(file.nbytes, start, data),
                metadata=metadata,
                page_checksum_verification=True,
                pre_buffer=False,
            )
            names = None if columns is None else list(columns)
            table = reader.read_row_group(group, columns=names, use_threads=False)
        except UNREADABLE as error:
            if is_of_the_machine(error):
                raise
            raise Corrupt(f"{name}, row group {group}: {error}; restore it from a mirror") from error
        tables.append(take_rows(table, rows[group_of == group] - first_row[group]))
    back = np.empty(len(rows), np.int64)
    back[np.argsort(group_of, kind="stable")] = np.arange(len(rows))
    return take_rows(pa.concat_tables(tables), back)


def _footer(store: Store, file: TableFile, name: str) -> tuple[pq.FileMetaData, str]:
    """Return (footer, ETag). The footer is checked before parsing: a damaged one can crash the process."""
    start = max(0, file.nbytes - TAIL_BYTES)
    blob = store.get_range(file.path, start, file.nbytes - start)
    held, nbytes = blob.data, footer_nbytes(blob.data)
    if len(held) < nbytes <= file.nbytes:
        start = file.nbytes - nbytes
        held = store.get_range(file.path, start, nbytes - len(held), etag=blob.etag).data + held
    check_sha256("its footer", held[-nbytes:], file.footer_sha256, "the manifest", name)
    reader = pq.ParquetFile(Window(file.nbytes, start, held), pre_buffer=False)
    check_schema_version(reader.schema_arrow, name)
    return reader.metadata, blob.etag


def _row_groups(
    store: Store, file: TableFile, metadata: pq.FileMetaData, etag: str, groups: list[int]
) -> Iterator[tuple[int, bytes, int]]:
    hashes = part_hashes(metadata).row_groups
    for at in range(0, len(groups), GROUPS_AT_ONCE):
        batch = groups[at : at + GROUPS_AT_ONCE]
        extents = [row_group_extent(metadata, group) for group in batch]
        spans = [ByteRange(first, end - first) for first, end in extents]
        for group, span, blob in zip(
            batch, spans, store.get_ranges(file.path, spans, etag=etag), strict=True
        ):
            name = f"{store.url}/{file.path}"
            check_sha256(f"row group {group}", blob.data, hashes[group], "its footer", name)
            yield group, blob.data, span.offset


def check_sha256(what: str, data: bytes, expected: str, said_by: str, name: str) -> None:
    """Raise Corrupt if a part of a table has another SHA-256. what: the part. said_by: name of what has the hash."""
    sha256 = hashlib.sha256(data).hexdigest()
    if sha256 != expected:
        raise Corrupt(
            f"{name}: {what} has SHA-256 {sha256}, in {said_by} {expected}; restore it from a mirror"
        )
