"""Write and read seals: the checksums of registered bytes.

seals/<sha256>.parquet      <field>_crc32c, int64: CRC-32C of each field, one row per index row; -1: unknown
"""

import contextlib
import hashlib
from collections.abc import Mapping
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...errors import AlreadyExists, Corrupt, ObjectNotFound
from ...storage import Store
from ...storage.external_shards import FOREIGN
from ...storage.requests import retry_corrupt
from ...storage.store import ObjectReader
from ..tables.parquet import integers, parse_stored, table_bytes, table_facts

Crcs = Mapping[str, NDArray[np.int64]]
"""Field -> int64 [rows of the index], CRC-32Cs."""
SEALS = "seals/"
_CRC = "_crc32c"
_REMEDY = "Restore it from a mirror, or delete it and run penstock seal again"


def seal_path(shard_path: str, index_footer_sha256: str | None) -> str:
    """Return the path of an index's seal; "" for the root's own shards."""
    if not shard_path.startswith(FOREIGN) or not index_footer_sha256:
        return ""
    identity = f"{index_footer_sha256} {shard_path}"
    sha256 = hashlib.sha256(identity.encode()).hexdigest()
    return f"{SEALS}{sha256}.parquet"


def seal_bytes(path: str, crcs: Crcs) -> bytes:
    """Return a seal as `put_seal` stores it. path: its path, which the table repeats as a fact."""
    columns: dict[str, pa.Array] = {}
    for field in sorted(crcs):
        columns[f"{field}{_CRC}"] = pa.array(crcs[field])
    facts = {
        "path": path,
        "content_sha256": _content_sha256(crcs),
    }
    return table_bytes(pa.table(columns), "seal", facts=facts)


def put_seal(
    store: Store,
    path: str,
    data: bytes,
) -> None:
    """Store a seal, unless the path has one already: a run that was killed and repeated writes the same seal."""
    with contextlib.suppress(AlreadyExists):
        store.put_if_absent(path, data)


def read_seal(
    store: ObjectReader,
    path: str,
    fields: list[str],
    n_rows: int,
) -> Crcs | None:
    """Return the seal's checksums; None if the index has no seal. Costs one request.

    fields, n_rows: sorted fields and rows of the index, which the seal must match. Raises: Corrupt.
    """
    url = f"{store.url}/{path}"
    try:
        crcs = retry_corrupt(partial(_read, store, path))
    except ObjectNotFound:
        return None
    seal_fields = sorted(crcs)
    row_counts = {len(column) for column in crcs.values()}
    if seal_fields != fields or row_counts - {n_rows}:
        raise Corrupt(
            f"{url} has the fields {seal_fields} in {sorted(row_counts)} rows, its index {fields} in {n_rows} rows: "
            f"it belongs to another index. {_REMEDY}"
        )
    return crcs


def _read(store: ObjectReader, path: str) -> Crcs:
    data = store.get(path).data
    return parse_seal(data, path, f"{store.url}/{path}")


def parse_seal(
    data: bytes,
    path: str,
    url: str,
) -> Crcs:
    """Return the checksums in a stored seal. url: of the object, for errors. Raises: Corrupt."""
    table = parse_stored(data, path, url)
    crcs: dict[str, NDArray[np.int64]] = {}
    try:
        for column in table.column_names:
            field = column.removesuffix(_CRC)
            crcs[field] = integers(table[column])
    except TypeError as error:
        message = f"{url} is not a seal: {error}. {_REMEDY}"
        raise Corrupt(message, what="seal", where=url, given=str(error)) from error
    content_sha256 = _content_sha256(crcs)
    if content_sha256 != table_facts(table).get("content_sha256"):
        raise Corrupt(
            f"{url}: the SHA-256 of its checksums is {content_sha256}, unlike the stored one: it was damaged. "
            f"{_REMEDY}",
            what="SHA-256 of the checksums",
            where=url,
            given=content_sha256,
        )
    return crcs


def _content_sha256(crcs: Crcs) -> str:
    digest = hashlib.sha256()
    for field in sorted(crcs):
        values = np.asarray(crcs[field], "<i8")  # little-endian on every machine
        # The length separates the fields: otherwise values could move from one to the next unnoticed.
        head = f"{field} {len(values)} "
        digest.update(head.encode())
        digest.update(values.tobytes())
    return digest.hexdigest()
