"""Store hashes of all keys that a dataset ever had, in sorted tables that a publish checks before keys.

A table has one ascending int64 column of 63-bit hashes; its footer has each row group's smallest value. A missing key
costs one row group.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import Corrupt, PenstockError
from ...modalities.fields import is_of_the_machine
from ...storage import ByteRange, Store
from ..tables.parquet import (
    READ_AHEAD,
    TAIL_BYTES,
    TableFile,
    Window,
    check_schema_version,
    chunk_start,
    footer_nbytes,
    footer_sha256_of,
    get_table,
    hashed_table_bytes,
    integers,
    part_hashes,
    put_named,
)
from ..tables.table_rows import check_sha256
from .shard import crc32c

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

KIND = "key-hashes"
ROW_GROUP_ROWS = 4096
WHOLE_BELOW_BYTES = 256 * 2**10
"""Size in bytes below which a table is read whole; larger ones are read by footer and row groups."""
MAX_GAP_BYTES = 128 * 2**10
"""Largest gap, in bytes, between row groups read together: a round trip costs more than these bytes."""


def put_hashes(store: Store, prefix: str, hashes: Int64s) -> dict[str, Any]:
    """Write a table of these hashes (in any order) under `prefix`, and return its manifest entry."""
    data = hashed_table_bytes(
        pa.table({"hash": pa.array(hashes if _ascend(hashes) else np.sort(hashes))}),
        KIND,
        row_group_rows=ROW_GROUP_ROWS,
        use_dictionary=False,
        column_encoding={"hash": "DELTA_BINARY_PACKED"},
    )
    footer = data[len(data) - footer_nbytes(data) :]
    body = put_named(store, prefix, KIND, data, len(hashes)).to_json()
    sha256 = footer_sha256_of(data)
    return {**body, "footer_nbytes": len(footer), "footer_crc32c": crc32c(footer), "footer_sha256": sha256}


def _ascend(hashes: Int64s) -> bool:
    return bool((hashes[1:] >= hashes[:-1]).all())


def covered(manifest: Mapping[str, Any]) -> bool:
    """Return whether the manifest's hash tables cover all keys. Older releases wrote none."""
    return sum(int(file["n_rows"]) for file in manifest.get("key_hashes", ())) == int(manifest["n_rows"])


def known(store: Store, files: Sequence[Mapping[str, Any]], hashes: Int64s) -> list[Bools]:
    """Return one bool [n] per table: whether it has each of these ascending hashes.

    A small table costs one request; a large one costs its footer and one request per stretch of row groups.
    `READ_AHEAD` tables are read at a time.
    """
    with ThreadPoolExecutor(
        max(1, min(len(files), READ_AHEAD)), thread_name_prefix="penstock-hashes"
    ) as pool:
        return list(pool.map(lambda file: _known(store, file, hashes), files))


def _known(store: Store, file: Mapping[str, Any], hashes: Int64s) -> Bools:
    if file["nbytes"] <= WHOLE_BELOW_BYTES:
        return among(hashes, integers(get_table(store, TableFile.from_json(dict(file)))["hash"]))
    name, path = f"{store.url}/{file['path']}", file["path"]
    start = file["nbytes"] - max(file["footer_nbytes"], TAIL_BYTES)
    blob = store.get_range(path, start, file["nbytes"] - start)
    _check_footer(blob.data[-file["footer_nbytes"] :], file, name)
    known_hashes = np.zeros(len(hashes), bool)
    try:
        reader = pq.ParquetFile(Window(file["nbytes"], start, blob.data), pre_buffer=False)
        check_schema_version(reader.schema_arrow, name)
        hashes_of_groups = part_hashes(reader.metadata).row_groups if "footer_sha256" in file else None
        columns = [reader.metadata.row_group(g).column(0) for g in range(reader.metadata.num_row_groups)]
        groups = _groups(np.array([column.statistics.min for column in columns], np.int64), hashes)
        spans = [ByteRange(chunk_start(columns[g]), columns[g].total_compressed_size) for g in groups]
        blobs = store.get_ranges(path, spans, etag=blob.etag, max_gap=MAX_GAP_BYTES) if spans else []
        for group, span, piece in zip(groups, spans, blobs, strict=True):
            if hashes_of_groups:
                check_sha256(f"row group {group}", piece.data, hashes_of_groups[group], "its footer", name)
            window = Window(file["nbytes"], span.offset, piece.data)
            parquet = pq.ParquetFile(
                window, metadata=reader.metadata, page_checksum_verification=True, pre_buffer=False
            )
            known_hashes |= among(hashes, integers(parquet.read_row_group(group, use_threads=False)["hash"]))
    except PenstockError:
        raise
    except (pa.ArrowException, OSError, KeyError, TypeError, AttributeError) as error:
        if is_of_the_machine(error):
            raise
        raise Corrupt(
            f"{name} is not a readable table of hashes: {error}; restore it from a mirror"
        ) from error
    return known_hashes


def _check_footer(footer: bytes, file: Mapping[str, Any], name: str) -> None:
    if "footer_sha256" in file:
        check_sha256("its footer", footer, file["footer_sha256"], "the manifest", name)
    elif (checksum := crc32c(footer)) != file["footer_crc32c"]:
        raise Corrupt(
            f"{name}: the footer's CRC-32C is {checksum:08x}, in the manifest {file['footer_crc32c']:08x}; restore it "
            "from a mirror"
        )


def _groups(smallest: Int64s, hashes: Int64s) -> list[int]:
    at = np.searchsorted(smallest, hashes, side="right") - 1
    groups: list[int] = np.unique(at[at >= 0]).tolist()
    return groups


def among(hashes: Int64s, table: Int64s) -> Bools:
    """Return bool [n]: whether each hash is in the ascending table."""
    if not len(table):
        return np.zeros(len(hashes), bool)
    at = np.minimum(np.searchsorted(table, hashes), len(table) - 1)
    same: Bools = table[at] == hashes
    return same
