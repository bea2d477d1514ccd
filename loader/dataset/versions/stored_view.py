"""Stored bitmaps of views: which live ordinals of a version a view selects.

views/<hash>.parquet      first_ordinal, bits, crc32c; one row per `CHUNK_BITS` ordinals
"""

import logging
from typing import TYPE_CHECKING

import pyarrow as pa

from ...errors import AlreadyExists, Corrupt, Forbidden, ObjectNotFound, StoreError
from ..shards.bitmap import SelectTable
from ..shards.shard import crc32c
from ..tables.parquet import parse_stored, table_bytes

if TYPE_CHECKING:
    from ..reading.sample_places import VersionData

logger = logging.getLogger(__name__)

CHUNK_BITS = 2**20
"""Ordinals per row of a stored view: 128 KiB of bitmap."""


def read_view(version: "VersionData", path: str) -> SelectTable | None:
    """Return a stored view of a version; None if the root has none. Raises: Corrupt."""
    try:
        data = version.store.get(path).data
    except ObjectNotFound:
        return None
    name = f"{version.store.url}/{path}"
    table = parse_stored(data, path, name)
    try:
        first = table["first_ordinal"].to_pylist()
        rows = table["bits"].to_pylist()
        sums = _checksums(table, rows)
        bits = b"".join(rows)
    except (KeyError, TypeError) as error:
        raise Corrupt(f"{name} is not a view: {error}; delete it to rebuild it") from error
    expected_first = [number * CHUNK_BITS for number in range(len(first))]
    n_bytes = -(-len(version) // 8)
    if first != expected_first or len(bits) != n_bytes:
        raise Corrupt(
            f"{name} has {len(bits)} bytes of bits in rows from {first[:3]}; {version.name} with "
            f"{len(version)} samples needs {n_bytes}. Delete it to rebuild it"
        )
    for first_ordinal, row, stated in zip(
        first,
        rows,
        sums,
        strict=True,
    ):
        if crc32c(row) != stated:
            raise Corrupt(
                f"{name}: the bits from ordinal {first_ordinal} on are damaged. Delete it to rebuild it"
            )
    return SelectTable(bits, len(version))


def _checksums(table: pa.Table, rows: list[bytes]) -> list[int]:
    """Return the stated CRC-32C of each row's bits; of an earlier release's view, the computed ones."""
    if "crc32c" not in table.column_names:
        return [crc32c(row) for row in rows]
    sums: list[int] = table["crc32c"].to_pylist()
    return sums


def save_view(
    version: "VersionData",
    path: str,
    packed: bytes,
    id: str,
) -> None:
    """Store a view's bitmap, if the root can be written. id: of the view, for messages.

    Raises: AlreadyExists.
    """
    step = CHUNK_BITS // 8
    starts = range(0, len(packed), step)
    chunks = [packed[start : start + step] for start in starts]
    sums = [crc32c(chunk) for chunk in chunks]
    table = pa.table(
        {
            "first_ordinal": [start * 8 for start in starts],
            "bits": pa.array(chunks, pa.binary()),
            "crc32c": pa.array(sums, pa.int64()),
        }
    )
    data = table_bytes(
        table,
        "view",
        facts={"path": path},
    )
    try:
        version.store.put_if_absent(path, data)
    except AlreadyExists:
        raise
    except Forbidden:
        logger.warning(
            "the root is read-only here: view %s was not saved, each process scans the samples", id
        )
    except StoreError as error:
        logger.warning("view %s was not saved (%s); each process scans the samples", id, error)
