"""The Parquet manifest of a migrated plain prefix: one row per copied object."""

import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.json import ParseOptions, ReadOptions, read_json

from .items import KINDS, as_columns, from_columns

Row = tuple[str, int, str, str]
"""Key, size in bytes, digest, and the source object's ETag."""

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("nbytes", pa.int64()),
        *((kind, pa.string()) for kind in KINDS),
        ("etag", pa.string()),
    ],
    metadata={"penstock.table": "migration", "penstock.schema": "1"},
)


def to_parquet(rows: list[Row]) -> bytes:
    """Return the rows as a Parquet file.

    Built from JSON: for Python lists, pyarrow would import pandas, which takes half a second.
    """
    lines = "".join(
        json.dumps(dict(zip(SCHEMA.names, as_columns(*row), strict=True))) + "\n" for row in rows
    ).encode()
    table = read_json(
        pa.BufferReader(lines),
        # One block, so that no row is longer than a block, which the reader refuses.
        read_options=ReadOptions(use_threads=False, block_size=len(lines) + 1),
        parse_options=ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="error"),
    )
    out = pa.BufferOutputStream()
    pq.write_table(
        table.replace_schema_metadata(SCHEMA.metadata), out, compression="zstd", write_page_checksum=True
    )
    return bytes(out.getvalue())


def from_parquet(data: bytes | memoryview) -> Iterator[Row]:
    """Yield the rows; earlier releases wrote no CRC-32C.

    Raises: ValueError, KeyError or OSError if the bytes are not such a table.
    """
    # Without Arrow's own threads, which aborted processes that ended during a read.
    for batch in pq.ParquetFile(pa.BufferReader(data), pre_buffer=False).iter_batches(use_threads=False):
        columns = {
            name: batch.column(name).to_pylist() for name in SCHEMA.names if name in batch.schema.names
        }
        # A manifest of an earlier release lacks the column of the second kind of digest.
        nothing = [""] * len(batch)
        digests = map(from_columns, *(columns.get(kind, nothing) for kind in KINDS))
        yield from zip(columns["key"], columns["nbytes"], digests, columns["etag"], strict=True)
