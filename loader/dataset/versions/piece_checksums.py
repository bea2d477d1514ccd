"""Checksums for the pieces of split documents, so that a batch reads a piece without the rest of its document.

packs/<hash>.checks.parquet    document, offset, nbytes, crc32c, field_crc32c; one row per split document's piece
"""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...errors import AlreadyExists, Corrupt, DecodeFailed, ObjectNotFound, StoreError
from ...modalities.array import field_layout
from ...order.sources.packing import PackedView
from ...storage.threads import DaemonPool
from ..reading.verified_bucket_reads import FieldPart, read_fields
from ..shards.address import UNKNOWN_CRC, FieldAddress
from ..shards.shard import crc32c
from ..tables.parquet import parse_stored, table_bytes

if TYPE_CHECKING:
    from .view_samples import ViewSamples

logger = logging.getLogger(__name__)

Int64s = np.ndarray[Any, np.dtype[np.int64]]
_COLUMNS = ("document", "offset", "nbytes", "crc32c", "field_crc32c")
_AT_ONCE = 16  # documents in memory while their checksums are computed


class PieceChecks:
    """Offsets and CRC-32Cs for the pieces of split documents. 40 bytes per piece; read-only."""

    def __init__(self, rows: Int64s) -> None:
        """rows: int64 [pieces, 5], as stored, sorted by document, then piece."""
        self._rows = rows
        self._documents, self._first = np.unique(rows[:, 0], return_index=True)

    def part(self, document: int, number: int, field: FieldAddress) -> FieldPart | None:
        """Return piece `number` (from 0) of a document; None if unknown, or computed from other bytes."""
        position = int(np.searchsorted(self._documents, document))
        is_absent = position == len(self._documents)
        if is_absent or int(self._documents[position]) != document:
            return None
        first = int(self._first[position])
        row = self._rows[first + number]
        _, offset, nbytes, crc, field_crc = row.tolist()
        if field_crc != field.crc32c:
            return None
        return FieldPart(offset, nbytes, crc)


def load_checks(view: "ViewSamples", path: str) -> PieceChecks | None:
    """Return the checksums next to the table at `path`; None if the root has none. Raises: Corrupt."""
    store = view.version.store
    path = checks_path(path)
    name = f"{store.url}/{path}"
    try:
        data = store.get(path).data
    except ObjectNotFound:
        return None
    table = parse_stored(data, path, name)
    try:
        columns = [table[name].to_numpy() for name in _COLUMNS]
    except KeyError as error:
        raise Corrupt(
            f"{name} is not a table of checksums: {error}; delete it, documents are then read whole",
            what="columns",
            where=name,
            given=table.column_names,
            accepted=_COLUMNS,
        ) from error
    rows = np.column_stack(columns).astype(np.int64)  # [pieces, 5]
    return PieceChecks(rows)


def keep_checks(view: "ViewSamples", packed: PackedView, path: str) -> None:
    """Read every split document once, and store its pieces' checksums next to the table at `path`.

    Skips corrupt or unexpected documents, which their readers report.
    """
    documents, tokens = packed.table.longer_than(packed.packing.length)
    no_rows = np.zeros((0, len(_COLUMNS)), np.int64)
    checks: list[Int64s] = [no_rows]
    with DaemonPool(_AT_ONCE, "penstock-pack") as pool:
        for first in range(0, len(documents), _AT_ONCE):
            block = slice(first, first + _AT_ONCE)
            block_checks = _document_checks(
                view,
                packed,
                documents[block],
                tokens[block],
                pool,
            )
            checks.extend(block_checks)
    rows = np.concatenate(checks)  # [pieces, 5]
    columns = {}
    for number, name in enumerate(_COLUMNS):
        columns[name] = rows[:, number]
    path = checks_path(path)
    table = pa.table(columns)
    data = table_bytes(table, "piece checks", facts={"path": path})
    try:
        view.version.store.put_if_absent(path, data)
    except AlreadyExists:
        pass  # another process read the same bytes
    except StoreError as error:
        logger.warning("%s was not saved (%s); split documents are read whole", path, error)


def checks_path(path: str) -> str:
    return path.removesuffix(".parquet") + ".checks.parquet"


def _document_checks(
    view: "ViewSamples",
    packed: PackedView,
    documents: Int64s,
    tokens: Int64s,
    pool: DaemonPool,
) -> list[Int64s]:
    """Return int64 [pieces, 5] for each document whose bytes are as the packing expects them."""
    packing = packed.packing
    field = packing.field
    addresses = view.version.address(documents, [field], pool.map)
    read = read_fields(
        view.version.shard_store,
        addresses,
        parallel_map=pool.map,
        on_corrupt=lambda number, error: None,
    )
    checks: list[Int64s] = []
    for address, fields, n_tokens in zip(addresses, read, tokens.tolist(), strict=True):
        field_crc = address.fields[field].crc32c
        try:
            data = fields[field]
            layout = field_layout(field, data)
        except (KeyError, DecodeFailed):
            continue
        # Without a checksum of the field, these bytes were compared with nothing: they may be damaged.
        if field_crc == UNKNOWN_CRC:
            continue
        if layout.shape != (n_tokens,) or layout.dtype.str != packing.dtype:
            continue
        piece_nbytes = packing.length * layout.dtype.itemsize
        rows = []
        for piece in _pieces(data, len(layout.head), piece_nbytes):
            row = (address.ordinal, *piece, field_crc)
            rows.append(row)
        checks.append(np.array(rows, np.int64))
    return checks


def _pieces(data: bytes, start: int, nbytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield (offset, bytes, CRC-32C) for consecutive pieces of `nbytes` from `start` on; the last may be shorter."""
    for offset in range(start, len(data), nbytes):
        piece = data[offset : offset + nbytes]
        yield offset, len(piece), crc32c(piece)
