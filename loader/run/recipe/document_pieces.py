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
    of: DocumentPieces
    """Positions of the pieces in slots and documents."""
    documents: Slots
    """One slot per piece, with the piece's document."""
    held: NDArray[np.bool_]
    """bool [pieces]: True if the document is quarantined, and not read."""


def pieces_of(plan: Plan, step: int, slots: Slots, rows: I64) -> SlotPieces:
    """Return the pieces of the packed sequences in a step's slots (int64 numbers), source by source."""
    parts: list[tuple[I64, DocumentPieces, NDArray[np.bool_]]] = []
    for index, source in enumerate(plan.sources.values()):
        rows_of_source = rows[slots.source[rows] == index]
        assert isinstance(source.view, PackedView)
        pieces = source.view.table.pieces(slots.ordinal[rows_of_source])
        parts.append(
            (rows_of_source[pieces.row], pieces, plan.quarantine.holds(source.source, step, pieces.document))
        )
    slot = np.concatenate([owner for owner, _, _ in parts])
    columns = {
        name: np.concatenate([getattr(pieces, name) for _, pieces, _ in parts])
        for name in DocumentPieces.__dataclass_fields__
    }
    of = DocumentPieces(**columns)
    documents = Slots(
        source=slots.source[slot],
        position=slots.position[slot],
        epoch=slots.epoch[slot],
        ordinal=of.document,
        view_ordinal=of.document,
        valid=np.ones(len(of), np.bool_),
        attempt=np.zeros(len(of), np.int8),
    )
    return SlotPieces(
        slot=slot, of=of, documents=documents, held=np.concatenate([held for _, _, held in parts])
    )


Values = tuple[np.ndarray, ...]
"""Values of one piece [tokens]: its tokens, and the fields beside them, as in `Packing.layout`."""


def laid_out(
    packing: Packing, pieces: DocumentPieces, numbers: Sequence[int], values: Mapping[int, Values]
) -> dict[str, np.ndarray]:
    """Return one sequence's arrays.

    numbers: its pieces. values: piece -> values; pieces without values are masked.

    - token field, and each field beside it -> [length], its own dtype; `pad_id` or the fill where there is no token.
    - `<field>.position_ids` -> int32 [length], from 0 in each piece.
    - `<field>.segment_ids` -> int32 [length], 1 for the first piece and so on; 0 where there is no token.
    - `<field>.loss_mask` -> bool [length], True at tokens that follow another of their piece.
    """
    length, name = packing.length, packing.field
    out = {
        field: np.full(length, fill, np.dtype(dtype).newbyteorder("="))
        for field, fill, dtype in packing.layout
    }
    position, segment = np.zeros(length, np.int32), np.zeros(length, np.int32)
    loss = np.zeros(length, np.bool_)
    for number in numbers:
        if number not in values:
            continue
        at, n = int(pieces.offset_in_sequence[number]), int(pieces.length[number])
        for field, column in zip(out.values(), values[number], strict=True):
            field[at : at + n] = column
        position[at : at + n] = np.arange(n, dtype=np.int32)
        segment[at : at + n] = pieces.number_in_sequence[number] + 1
        loss[at + 1 : at + n] = True
    return {
        **out,
        f"{name}.{POSITION_IDS}": position,
        f"{name}.{SEGMENT_IDS}": segment,
        f"{name}.{LOSS_MASK}": loss,
    }


def sequence_crc(pieces: DocumentPieces, numbers: Sequence[int], crcs: Mapping[int, Sequence[int]]) -> int:
    """Return the CRC-32C over a sequence's pieces, little-endian.

    A piece is u64 document, u64 start, u32 length, u32 CRC-32C of each field of the document in the order of
    `Packing.layout`. A masked piece, which has no entry in `crcs`, has length 0 and one CRC of 0.
    """
    body = b""
    for number in numbers:
        of = crcs.get(number)
        length = 0 if of is None else int(pieces.length[number])
        sums = (0,) if of is None else of
        head = (int(pieces.document[number]), int(pieces.start[number]), length)
        body += struct.pack(f"<QQI{len(sums)}I", *head, *sums)
    return crc32c(body)


def sequence_address(view: PackedView, number: int) -> SampleAddress:
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
