"""Row groups of Parquet that is read from its first row to its last."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import Corrupt
from ...storage import ObjectInfo

BATCH_BYTES = 8 * 2**20
BOMB_BYTES, BOMB_TIMES = 2**30, 1000
"""Limits of a row group: decoded bytes, or times its stored bytes."""


def check_row_group(metadata: pq.FileMetaData, at: int, info: ObjectInfo) -> pq.RowGroupMetaData:
    """Return a row group. Raises: Corrupt if it declares far more bytes than it stores."""
    group = metadata.row_group(at)
    stored = sum(group.column(k).total_compressed_size for k in range(group.num_columns))
    if not 0 <= group.total_byte_size <= max(BOMB_BYTES, BOMB_TIMES * min(stored, info.nbytes)):
        raise Corrupt(
            f"{info.key}, row group {at} declares {group.total_byte_size:,} bytes for {stored:,} stored ones, "
            "taken for a mistake or an attack"
        )
    return group


def row_group_reader(source: Any, metadata: pq.FileMetaData, schema: pa.Schema, name: str) -> pq.ParquetFile:
    """Return a reader of row groups that makes equal texts and bytes once. source: anything that Arrow reads.

    Raises: Corrupt if the footer has two forms of a column's name; ArrowException.
    """
    shared = [one.name for one in schema if pa.types.is_binary(one.type) or pa.types.is_string(one.type)]
    try:
        return pq.ParquetFile(
            source,
            metadata=metadata,
            read_dictionary=shared,
            page_checksum_verification=True,
            pre_buffer=False,
        )
    except KeyError as error:  # bytes, of the other form
        raise Corrupt(f"{name}: its footer has no column {error}, which its schema names") from error


def rows_at_once(group: pq.RowGroupMetaData) -> int:
    """Return the rows of a group that are decoded at once."""
    n_rows, nbytes = int(group.num_rows), int(group.total_byte_size)
    return max(1, min(1024, BATCH_BYTES * n_rows // max(1, nbytes)))
