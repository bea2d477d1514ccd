"""Checksums of the pieces of long documents, so that a piece can be read, and verified, alone.

    packs/<hash>.checks.parquet      document, offset, nbytes, crc32c, field_crc32c; a row per piece of a split document

The index has the checksum of a whole field only. These are made of bytes that were held against it, once. They name
their field: `field_crc32c` is the index's.
"""

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...errors import AlreadyExists, Corrupt, DecodeFailed, ObjectNotFound, StoreError
from ...modalities.array import layout_in
from ...order.sources.packed_view import PackedView
from ..reading.read_fields import FieldPart, read_fields
from ..shards.address import UNKNOWN_CRC, FieldAddress
from ..shards.shard import crc32c
from ..tables.parquet import parse_stored, table_bytes

if TYPE_CHECKING:
    from .view import View

logger = logging.getLogger(__name__)

Int64s = np.ndarray[Any, np.dtype[np.int64]]
_COLUMNS = ("document", "offset", "nbytes", "crc32c", "field_crc32c")
_AT_ONCE = 16  # documents in memory while their pieces are summed


class PieceChecks:
    """Places of the pieces of split documents in their field, and their CRC-32C. 40 bytes per piece; read-only."""

    def __init__(self, rows: Int64s) -> None:
        """rows: int64 [pieces, 5], as stored; by document, then piece."""
        self._rows = rows
        self._documents, self._first = np.unique(rows[:, 0], return_index=True)

    def part(self, document: int, number: int, field: FieldAddress) -> FieldPart | None:
        """Return piece `number` of a document, from 0; None where nothing is known of it, or only of other bytes."""
        at = int(np.searchsorted(self._documents, document))
        if at == len(self._documents) or int(self._documents[at]) != document:
            return None
        _, offset, nbytes, crc, field_crc = self._rows[int(self._first[at]) + number].tolist()
        return FieldPart(offset, nbytes, crc) if field_crc == field.crc32c else None


def load_checks(view: "View", path: str) -> PieceChecks | None:
    """Return the checksums that `keep_checks` left in the root; None without any. Raises: Corrupt."""
    store, path = view.version.store, checks_path(path)
    try:
        table = parse_stored(store.get(path).data, path, f"{store.url}/{path}")
    except ObjectNotFound:
        return None
    try:
        return PieceChecks(np.column_stack([table[name].to_numpy() for name in _COLUMNS]).astype(np.int64))
    except KeyError as error:
        raise Corrupt(
            f"{store.url}/{path} is no table of checksums: {error}; delete it, documents are then read whole"
        ) from error


def keep_checks(view: "View", packed: PackedView, path: str) -> None:
    """Read every split document once, whole, and store its pieces' checksums beside the table at `path`.

    Documents that are corrupt, or not as planned, are left out: their readers find out.
    """
    documents, tokens = packed.table.longer_than(packed.packing.length)
    found: list[Int64s] = [np.zeros((0, len(_COLUMNS)), np.int64)]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="penstock-pack") as pool:
        for first in range(0, len(documents), _AT_ONCE):
            some = slice(first, first + _AT_ONCE)
            found += _of_documents(view, packed, documents[some], tokens[some], pool)
    rows = np.concatenate(found)
    table = pa.table({name: rows[:, i] for i, name in enumerate(_COLUMNS)})
    data = table_bytes(table, "piece checks", facts={"path": checks_path(path)})
    try:
        view.version.store.put_if_absent(checks_path(path), data)
    except AlreadyExists:
        pass  # another process read the same bytes
    except StoreError as error:
        logger.warning("%s was not saved (%s); split documents are read whole", checks_path(path), error)


def checks_path(path: str) -> str:
    """Return the path of the checksums of the table at `path`."""
    return path.removesuffix(".parquet") + ".checks.parquet"


def _of_documents(
    view: "View", packed: PackedView, documents: Int64s, tokens: Int64s, pool: ThreadPoolExecutor
) -> list[Int64s]:
    field, packing = packed.packing.field, packed.packing
    addresses = view.version.address(documents, [field], pool.map)
    read = read_fields(
        view.version.shard_store, addresses, run=pool.map, on_corrupt=lambda number, error: None
    )
    out: list[Int64s] = []
    for address, fields, n in zip(addresses, read, tokens.tolist(), strict=True):
        try:
            stored = layout_in(field, fields[field])
        except (KeyError, DecodeFailed):
            continue
        known = address.fields[field].crc32c != UNKNOWN_CRC
        if known and stored.shape == (n,) and stored.dtype.str == packing.dtype:
            nbytes = packing.length * stored.dtype.itemsize
            rows = _pieces(fields[field], len(stored.head), nbytes)
            own = (address.ordinal, address.fields[field].crc32c)
            out.append(np.array([(own[0], *row, own[1]) for row in rows], np.int64))
    return out


def _pieces(data: bytes, start: int, nbytes: int) -> list[tuple[int, int, int]]:
    """Return (offset, bytes, CRC-32C) of the runs of `nbytes` from `start` on; the last may be shorter."""
    cuts = range(start, len(data), nbytes)
    return [(at, min(nbytes, len(data) - at), crc32c(data[at : at + nbytes])) for at in cuts]
