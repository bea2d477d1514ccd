"""Parquet files that are read in parts, each part held against a SHA-256: that of the footer is kept elsewhere, and the
footer has those of the row groups, and of what stands before these.

    PAR1, bytes that are no table (the front), row groups, footer

A Parquet reader goes by the offsets in the footer, and never looks at the front. The footer's metadata has, in hex,
`penstock.row_groups_sha256` (a space between) and `penstock.front_sha256`, and `penstock.front_nbytes`.
"""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .parquet import with_facts

MAGIC_BYTES = 4
_GROUPS, _FRONT, _FRONT_NBYTES = (
    "penstock.row_groups_sha256",
    "penstock.front_sha256",
    "penstock.front_nbytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartHashes:
    """What a footer says: SHA-256, in hex, of each row group and of the front, and the front's length."""

    row_groups: tuple[str, ...]
    front: str
    front_nbytes: int


def hashed_table_bytes(
    table: pa.Table,
    kind: str,
    *,
    row_group_rows: int,
    front: bytes = b"",
    facts: Mapping[str, str] | None = None,
    **options: Any,
) -> bytes:
    """The table as `table_bytes` makes it, but for the front and the hashes."""
    table, out = with_facts(table, kind, facts), io.BytesIO()
    sink = pa.PythonFile(out, mode="w")  # it counts what is written, also in front
    with pq.ParquetWriter(
        sink, table.schema, compression="zstd", write_page_checksum=True, store_schema=True, **options
    ) as writer:
        sink.write(front)
        hashes = []
        for first in range(0, table.num_rows, row_group_rows):
            start = out.tell()
            writer.write_table(table.slice(first, row_group_rows), row_group_size=row_group_rows)
            hashes.append(hashlib.sha256(out.getbuffer()[start:]).hexdigest())
        writer.add_key_value_metadata(
            {
                _GROUPS: " ".join(hashes),
                _FRONT: hashlib.sha256(front).hexdigest(),
                _FRONT_NBYTES: str(len(front)),
            }
        )
    return out.getvalue()


def part_hashes(metadata: pq.FileMetaData) -> PartHashes:
    """What a footer of such a file says. Raises: KeyError where it says nothing; ValueError for no number."""
    said = metadata.metadata or {}
    found = PartHashes(
        row_groups=tuple(said[_GROUPS.encode()].decode().split()),
        front=said[_FRONT.encode()].decode(),
        front_nbytes=int(said[_FRONT_NBYTES.encode()]),
    )
    if len(found.row_groups) != metadata.num_row_groups:
        raise ValueError(f"{len(found.row_groups)} hashes of {metadata.num_row_groups} row groups")
    return found


def footer_nbytes(tail: bytes) -> int:
    """Length of a Parquet file's footer with what stands after it (its length, the magic), from the last bytes."""
    return int.from_bytes(tail[-8:-4], "little") + 8


def row_group_extent(metadata: pq.FileMetaData, group: int) -> tuple[int, int]:
    """(first byte, byte behind the last) of a row group."""
    columns = [metadata.row_group(group).column(c) for c in range(metadata.num_columns)]
    first = min(chunk_start(column) for column in columns)
    return first, max(chunk_start(column) + column.total_compressed_size for column in columns)


def chunk_start(column: pq.ColumnChunkMetaData) -> int:
    """Where a column of a row group begins."""
    start = column.data_page_offset
    if column.dictionary_page_offset is not None:
        start = min(start, column.dictionary_page_offset)
    return int(start)
