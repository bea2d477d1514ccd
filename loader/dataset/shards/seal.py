"""Seals: checksums of registered bytes, whose indexes have none.

    seals/<sha256>.parquet      <field>_crc32c, int64: CRC-32C of each field, a row per row of one index

The name is a hash of the index's footer and of the shard's path, in which the place stands for all sizes and change
tokens: an archive that is written again with the same keys and lengths has the same index, and other bytes. A seal is
created once. -1 is a row that no version had any more, and whose object was gone.
"""

import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import AlreadyExists, Corrupt, ObjectNotFound
from ...storage import Store
from ...storage.external_shards import FOREIGN
from ...storage.shared.requests import retry_corrupt
from ..tables.parquet import integers, parse_stored, table_bytes, table_facts

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Crcs = Mapping[str, Int64s]
"""Field -> int64 [rows of the index], CRC-32C."""
SEALS = "seals/"
_CRC = "_crc32c"


def seal_path(shard_path: str, index_footer_sha256: str | None) -> str:
    """Return the path of the seal of a shard's index, relative to the root; "" of a shard of the root's own."""
    if not shard_path.startswith(FOREIGN) or not index_footer_sha256:
        return ""
    return f"{SEALS}{hashlib.sha256(f'{index_footer_sha256} {shard_path}'.encode()).hexdigest()}.parquet"


def seal_bytes(path: str, crcs: Crcs) -> bytes:
    """Return the file of a seal. path: as `seal_path`."""
    table = pa.table({f"{field}{_CRC}": pa.array(crcs[field]) for field in sorted(crcs)})
    return table_bytes(table, "seal", facts={"path": path, "content_sha256": _content(crcs)})


def put_seal(store: Store, path: str, data: bytes) -> None:
    """Create a seal of `seal_bytes`; one that is there stays: it is of the same bytes. path: as `seal_path`."""
    try:
        store.put_if_absent(path, data)
    except AlreadyExists:
        return


def read_seal(store: Store, path: str, fields: list[str], n_rows: int) -> Crcs | None:
    """Return the checksums of an index with these fields, sorted, and rows; None where it is not sealed.

    One request, and 8 bytes per field and row. Raises: Corrupt, after reading it twice.
    """
    name = f"{store.url}/{path}"
    try:
        crcs = retry_corrupt(partial(_read, store, path))
    except ObjectNotFound:
        return None
    if sorted(crcs) != fields or any(len(column) != n_rows for column in crcs.values()):
        raise Corrupt(
            f"{name} has the fields {sorted(crcs)}, its index {fields} in {n_rows} rows: it is another's. {_AGAIN}"
        )
    return crcs


def parse_seal(data: bytes, path: str, name: str) -> Crcs:
    """Return the checksums in the bytes of a seal. Raises: Corrupt."""
    table = parse_stored(data, path, name)
    try:
        crcs = {column.removesuffix(_CRC): integers(table[column]) for column in table.column_names}
    except TypeError as error:
        raise Corrupt(f"{name} is no seal: {error}. {_AGAIN}") from error
    if (found := _content(crcs)) != table_facts(table).get("content_sha256"):
        raise Corrupt(
            f"{name}: its checksums have the SHA-256 {found}, it says another: it was damaged. {_AGAIN}"
        )
    return crcs


_AGAIN = "Restore it from a mirror, or delete it and run penstock seal again"


def _read(store: Store, path: str) -> Crcs:
    return parse_seal(store.get(path).data, path, f"{store.url}/{path}")


def _content(crcs: Crcs) -> str:
    digest = hashlib.sha256()
    for field in sorted(crcs):
        digest.update(f"{field} {len(crcs[field])} ".encode() + np.asarray(crcs[field], "<i8").tobytes())
    return digest.hexdigest()
