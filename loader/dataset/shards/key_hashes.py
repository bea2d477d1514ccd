"""Store hashes of all keys that a dataset ever had, in sorted tables that a publish checks before keys.

A table has one ascending int64 column of 63-bit hashes; its footer has each row group's smallest value. A missing key
costs one row group.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import Corrupt
from ...storage import ByteRange, Store
from ...storage.threads import DaemonPool
from ..tables.parquet import (
    READ_AHEAD,
    TableFile,
    check_schema_version,
    corrupt_if_unreadable,
    footer_sha256,
    get_table,
    hashed_table_bytes,
    integers,
    part_hashes,
    put_named,
)
from ..tables.parquet_ranges import TAIL_BYTES, RangeFile, chunk_start, footer_nbytes
from ..tables.table_rows import check_sha256
from .bitmap import Bools, Int64s
from .shard import crc32c

_UNREADABLE = (pa.ArrowException, OSError, KeyError, TypeError, AttributeError)
"""Errors of a damaged file; a row group without statistics raises AttributeError."""

KIND = "key-hashes"
ROW_GROUP_ROWS = 4096
WHOLE_BELOW_BYTES = 256 * 2**10
"""Size in bytes below which a table is read whole; larger ones are read by footer and row groups."""
MAX_GAP_BYTES = 128 * 2**10
"""Largest gap, in bytes, between row groups read together: a round trip costs more than these bytes."""


def put_hashes(
    store: Store,
    prefix: str,
    hashes: Int64s,
) -> dict[str, Any]:
    """Write a table of these hashes (in any order) under `prefix`, and return its manifest entry."""
    is_ascending = (hashes[1:] >= hashes[:-1]).all()
    if not is_ascending:
        hashes = np.sort(hashes)
    data = hashed_table_bytes(
        pa.table({"hash": pa.array(hashes)}),
        KIND,
        row_group_rows=ROW_GROUP_ROWS,
        use_dictionary=False,
        column_encoding={"hash": "DELTA_BINARY_PACKED"},
    )
    file = put_named(store, prefix, KIND, data, len(hashes))
    nbytes = footer_nbytes(data)
    footer = data[len(data) - nbytes :]
    return {
        **file.to_json(),
        "footer_nbytes": nbytes,
        "footer_crc32c": crc32c(footer),
        "footer_sha256": footer_sha256(data),
    }


def has_all_hashes(manifest: Mapping[str, Any]) -> bool:
    """Return whether the manifest's tables have a hash of each key. Older releases wrote none."""
    n_hashes = 0
    for file in manifest.get("key_hashes", ()):
        n_hashes += int(file["n_rows"])
    n_keys = int(manifest["n_rows"])
    return n_hashes == n_keys


def find_known(
    store: Store,
    files: Sequence[Mapping[str, Any]],
    hashes: Int64s,
) -> list[Bools]:
    """Return one bool [n] per table: whether it has each of these ascending hashes.

    A small table costs one request; a large one costs its footer and one request per stretch of row groups.
    `READ_AHEAD` tables are read at a time.
    """
    n_threads = max(1, min(len(files), READ_AHEAD))  # a pool needs one, even without files
    with DaemonPool(n_threads, "penstock-hashes") as pool:
        return list(pool.map(partial(_contains, store, hashes), files))


def _contains(
    store: Store,
    hashes: Int64s,
    file: Mapping[str, Any],
) -> Bools:
    """Return bool [n]: whether one table has each of these ascending hashes."""
    if file["nbytes"] > WHOLE_BELOW_BYTES:
        return _look_up_by_row_groups(store, hashes, file)
    table_file = TableFile.from_json(dict(file))
    table = get_table(store, table_file)
    table_hashes = integers(table["hash"])
    return membership(hashes, table_hashes)


def _look_up_by_row_groups(
    store: Store,
    hashes: Int64s,
    file: Mapping[str, Any],
) -> Bools:
    """Return the result of `_contains`, from the row groups that may have one of the hashes."""
    path = file["path"]
    name = f"{store.url}/{path}"
    metadata, etag = _read_footer(store, file, name)
    is_known = np.zeros(len(hashes), bool)
    with _corrupt_if_unreadable(name):
        # 1. Choose the row groups by the smallest hash of each, which the footer has.
        columns = [metadata.row_group(group).column(0) for group in range(metadata.num_row_groups)]
        smallest = np.array([column.statistics.min for column in columns], np.int64)
        groups = _candidate_groups(hashes, smallest)
        if not groups:
            return is_known

        # 2. Read these row groups, and look up the hashes in each. Earlier releases stored no SHA-256 of row groups:
        #    there, Parquet checks the CRC of each page.
        group_sha256s: Sequence[str] = ()
        if "footer_sha256" in file:
            group_sha256s = part_hashes(metadata).row_groups
        spans = [_span(columns[group]) for group in groups]
        blobs = store.get_ranges(
            path,
            spans,
            etag=etag,
            max_gap=MAX_GAP_BYTES,
        )
        for group, span, blob in zip(groups, spans, blobs, strict=True):
            if group_sha256s:
                check_sha256(
                    f"row group {group}",
                    blob.data,
                    group_sha256s[group],
                    "its footer",
                    name,
                )
            reader = pq.ParquetFile(
                RangeFile(file["nbytes"], span.offset, blob.data),
                metadata=metadata,
                page_checksum_verification=True,
                pre_buffer=False,
            )
            table = reader.read_row_group(group, use_threads=False)
            group_hashes = integers(table["hash"])
            is_known |= membership(hashes, group_hashes)
    return is_known


def _read_footer(
    store: Store,
    file: Mapping[str, Any],
    name: str,
) -> tuple[pq.FileMetaData, str]:
    """Return (footer, ETag of the file). The footer is checked before parsing: a damaged one can crash the process."""
    nbytes = file["nbytes"]
    footer_bytes = file["footer_nbytes"]
    tail_bytes = max(footer_bytes, TAIL_BYTES)
    start = nbytes - tail_bytes
    tail = store.get_range(file["path"], start, tail_bytes)
    _check_footer(tail.data[-footer_bytes:], file, name)
    with _corrupt_if_unreadable(name):
        reader = pq.ParquetFile(RangeFile(nbytes, start, tail.data), pre_buffer=False)
        check_schema_version(reader.schema_arrow, name)
        return reader.metadata, tail.etag


def _corrupt_if_unreadable(name: str) -> AbstractContextManager[None]:
    return corrupt_if_unreadable(f"{name} is not a readable table of hashes", _UNREADABLE)


def _candidate_groups(hashes: Int64s, smallest: Int64s) -> list[int]:
    """Return the row groups that may have one of these hashes. smallest: int64 [row groups], ascending."""
    group = np.searchsorted(smallest, hashes, side="right") - 1  # -1: below every hash of the table
    is_inside = group >= 0
    groups: list[int] = np.unique(group[is_inside]).tolist()
    return groups


def _span(column: pq.ColumnChunkMetaData) -> ByteRange:
    return ByteRange(chunk_start(column), column.total_compressed_size)


def _check_footer(
    footer: bytes,
    file: Mapping[str, Any],
    name: str,
) -> None:
    """Compare a footer with its SHA-256 in the manifest, or with its CRC-32C in manifests of earlier releases."""
    if "footer_sha256" in file:
        check_sha256(
            "its footer",
            footer,
            file["footer_sha256"],
            "the manifest",
            name,
        )
        return
    checksum = crc32c(footer)
    expected = file["footer_crc32c"]
    if checksum != expected:
        raise Corrupt(
            f"{name}: the footer's CRC-32C is {checksum:08x}, in the manifest {expected:08x}; "
            "restore it from a mirror",
            what="footer's CRC-32C",
            where=name,
            given=f"{checksum:08x}",
            accepted=f"{expected:08x}",
        )


def membership(hashes: Int64s, table: Int64s) -> Bools:
    """Return bool [n]: whether each hash is in the ascending table."""
    if not len(table):
        return np.zeros(len(hashes), bool)
    position = np.searchsorted(table, hashes)
    # Behind the last row no hash is equal, so the last row may stand for it.
    position = np.minimum(position, len(table) - 1)
    is_equal: Bools = table[position] == hashes
    return is_equal
