"""Pieces of documents in packed slots, and the arrays built from them."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...dataset.shards.address import SampleAddress
from ...dataset.shards.shard import crc32c
from ...order.plan import Plan
from ...order.random.keyed_permutation import I64
from ...order.slots import Slots
from ...order.sources.pack_table import DocumentPieces
from ...order.sources.packing import (
    LOSS_MASK,
    POSITION_IDS,
    SEGMENT_IDS,
    PackedView,
    Packing,
    sequence_key,
)
from .recipe import stored_view


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotPieces:
    """Pieces of documents in slots."""

    slot: I64
    """int64 [pieces], ascending within each source: the piece's slot."""
    positions: DocumentPieces
    """Positions of the pieces in sequences and documents."""
    documents: Slots
    """One slot per piece, with the piece's document."""
    is_masked: NDArray[np.bool_]
    """bool [pieces]: True if the document is quarantined, or masked by a recorded run, and not read."""


def find_pieces(
    plan: Plan,
    step: int,
    slots: Slots,
    rows: I64,
) -> SlotPieces:
    """Return the pieces of the packed sequences in a step's slots, source by source. rows: int64, indexes of slots."""
    slot_parts: list[I64] = []
    position_parts: list[DocumentPieces] = []
    mask_parts: list[NDArray[np.bool_]] = []
    for index, source in enumerate(plan.sources.values()):
        is_of_source = slots.source[rows] == index
        rows_of_source = rows[is_of_source]
        assert isinstance(source.view, PackedView)
        pieces = source.view.table.pieces(slots.ordinal[rows_of_source])
        slot_parts.append(rows_of_source[pieces.row])
        position_parts.append(pieces)
        is_masked = plan.quarantine.holds(source.source, step, pieces.document)
        mask_parts.append(is_masked)

    columns = {}
    for name in DocumentPieces.__dataclass_fields__:
        parts = [getattr(pieces, name) for pieces in position_parts]
        columns[name] = np.concatenate(parts)
    positions = DocumentPieces(**columns)
    slot = np.concatenate(slot_parts)
    documents = Slots(
        source=slots.source[slot],
        position=slots.position[slot],
        epoch=slots.epoch[slot],
        ordinal=positions.document,
        view_ordinal=positions.document,
        valid=np.ones(len(positions), np.bool_),
        attempt=np.zeros(len(positions), np.int8),
    )
    return SlotPieces(
        slot=slot,
        positions=positions,
        documents=documents,
        is_masked=np.concatenate(mask_parts),
    )


Values = tuple[np.ndarray, ...]
"""Values of one piece, as in `Packing.fields`: its tokens, the fields beside them, and its document's ragged rows."""


def lay_out(
    packing: Packing,
    pieces: DocumentPieces,
    numbers: Sequence[int],
    values: Mapping[int, Values],
) -> dict[str, np.ndarray]:
    """Return one sequence's arrays.

    numbers: its pieces. values: piece -> values; pieces without values are masked.

    - token field -> [length], and each field beside it -> [length, ...], its own dtype; `pad_id` or the fill where
      there is no token.
    - `<field>.position_ids` -> int32 [length], from 0 in each piece.
    - `<field>.segment_ids` -> int32 [length], 1 for the first piece and so on; 0 where there is no token.
    - `<field>.loss_mask` -> bool [length], True at tokens that follow another of their piece.
    """
    length = packing.length
    name = packing.field
    fields: dict[str, np.ndarray] = {}
    for field, fill, dtype in packing.layout:
        native_dtype = np.dtype(dtype).newbyteorder("=")
        row_shape = packing.shapes.get(field, ())
        fields[field] = np.full((length, *row_shape), fill, native_dtype)
    n_fields = len(fields)
    position_ids = np.zeros(length, np.int32)
    segment_ids = np.zeros(length, np.int32)
    loss_mask = np.zeros(length, np.bool_)

    for number in numbers:
        if number not in values:
            continue
        start = int(pieces.offset_in_sequence[number])
        n_tokens = int(pieces.length[number])
        stop = start + n_tokens
        laid_out = values[number][:n_fields]
        for array, piece in zip(fields.values(), laid_out, strict=True):
            array[start:stop] = piece
        position_ids[start:stop] = np.arange(n_tokens, dtype=np.int32)
        segment_ids[start:stop] = pieces.number_in_sequence[number] + 1
        loss_mask[start + 1 : stop] = True
    return {
        **fields,
        f"{name}.{POSITION_IDS}": position_ids,
        f"{name}.{SEGMENT_IDS}": segment_ids,
        f"{name}.{LOSS_MASK}": loss_mask,
    }


def joined_rows(
    packing: Packing,
    pieces: DocumentPieces,
    numbers: Sequence[int],
    values: Mapping[int, Values],
) -> dict[str, np.ndarray]:
    """Return one sequence's ragged fields. Arguments: as for `lay_out`.

    - ragged field -> the rows of its documents, one after another.
    - `<field>.segment_ids` -> int32: segment of each row.
    """
    first_ragged = len(packing.layout)
    read_numbers = [number for number in numbers if number in values]
    fields: dict[str, np.ndarray] = {}
    for index, (name, dtype, row_shape) in enumerate(packing.ragged, first_ragged):
        native_dtype = np.dtype(dtype).newbyteorder("=")
        # An empty array first: a sequence may have no rows.
        parts = [np.zeros((0, *row_shape), native_dtype)]
        segments = [np.zeros(0, np.int32)]
        for number in read_numbers:
            rows = values[number][index]
            segment = pieces.number_in_sequence[number] + 1
            parts.append(rows)
            segments.append(np.full(len(rows), segment, np.int32))
        fields[name] = np.concatenate(parts)
        fields[f"{name}.{SEGMENT_IDS}"] = np.concatenate(segments)
    return fields


def sequence_crc(
    pieces: DocumentPieces,
    numbers: Sequence[int],
    crcs: Mapping[int, Sequence[int]],
) -> int:
    """Return the CRC-32C over a sequence's pieces, little-endian.

    A piece is u64 document, u64 start, u32 length, u32 CRC-32C of each field of the document in the order of
    `Packing.fields`. A masked piece, which has no entry in `crcs`, has length 0 and one CRC of 0.
    """
    body = b""
    for number in numbers:
        length = 0
        field_crcs: Sequence[int] = (0,)
        if number in crcs:
            length = int(pieces.length[number])
            field_crcs = crcs[number]
        document = int(pieces.document[number])
        start = int(pieces.start[number])
        n_fields = len(field_crcs)
        body += struct.pack(f"<QQI{n_fields}I", document, start, length, *field_crcs)
    return crc32c(body)


def sequence_address(view: PackedView, number: int) -> SampleAddress:
    """Return the address by which errors and records name a sequence. It has no bytes of its own, so no fields."""
    documents = stored_view(view)
    assert documents is not None
    version = documents.version
    return SampleAddress(
        key=sequence_key(number),
        version=version.name,
        version_id=version.id,
        part=f"pack-{view.table_sha256[:12]}",
        row=number,
        ordinal=number,
        fields={},
    )
