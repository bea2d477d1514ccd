"""Pieces of documents in packed slots, and the checksums of their sequences."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...dataset.reading.sample_places import run_starts
from ...dataset.shards.address import SampleAddress
from ...dataset.shards.shard import crc32c
from ...order.plan import Plan
from ...order.random.keyed_permutation import I64
from ...order.slots import Slots
from ...order.sources.pack_table import DocumentPieces
from ...order.sources.packing import PackedView, sequence_key
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


def sequence_crcs(
    n_rows: int,
    pieces: SlotPieces,
    has_values: NDArray[np.bool_],
    crcs: I64,
) -> I64:
    """Return int64 [n_rows]: the CRC-32C over the pieces of each row's sequence, little-endian; 0 without a sequence.

    A piece is u64 document, u64 start, u32 length, u32 CRC-32C of each field of the document in the order of
    `Packing.fields`. A masked piece has length 0 and one CRC of 0.

    has_values: bool [pieces], False if masked. crcs: int64 [pieces, fields].
    """
    positions = pieces.positions
    n_pieces = len(positions)
    n_fields = crcs.shape[1]
    words = np.zeros((n_pieces, 5 + n_fields), "<u4")
    document = positions.document.astype("<u8")
    start = positions.start.astype("<u8")
    words[:, 0:2] = document.view("<u4").reshape(-1, 2)
    words[:, 2:4] = start.view("<u4").reshape(-1, 2)
    words[:, 4] = np.where(has_values, positions.length, 0)
    words[:, 5:] = np.where(has_values[:, np.newaxis], crcs, 0)
    is_hashed = np.ones(words.shape, np.bool_)
    is_hashed[~has_values, 6:] = False  # one CRC, whatever the number of fields
    hashed_words = words[is_hashed]
    n_words = is_hashed.sum(axis=1)  # [pieces]
    first_word = np.cumsum(n_words) - n_words  # [pieces]

    # A sequence's pieces are neighbours.
    first_pieces = run_starts(pieces.slot)
    rows = pieces.slot[first_pieces].tolist()
    bounds = [*first_word[first_pieces].tolist(), len(hashed_words)]  # [sequences + 1]
    out = np.zeros(n_rows, np.int64)
    for row, (first, stop) in zip(rows, pairwise(bounds), strict=True):
        out[row] = crc32c(hashed_words[first:stop].data)
    return out


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
