"""Best-fit packing of documents into sequences of one length, as a table.

Documents are packed in blocks of 2^14, in the view's order. Inside a block, packing is best-fit decreasing: the longest
document comes first, and each goes into the fullest sequence that still has room. It cuts only documents longer than a
sequence (Ding et al., "Fewer Truncations Improve Language Modeling", 2024).
"""

import hashlib
from bisect import bisect_left, insort
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..random.keyed_permutation import I64

BLOCK_DOCUMENTS = 2**14
_HASHED_ROWS = 2**16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DocumentPieces:
    row: I64
    """Index of the piece's sequence in the request."""
    place: I64
    """The piece's number in its sequence, from 0."""
    document: I64
    """Version ordinal of its document."""
    start: I64
    """First token's offset in its document."""
    length: I64
    """Tokens in the piece."""
    at: I64
    """Position in its sequence where it begins."""
    tokens: I64
    """Tokens in the whole document."""

    def __len__(self) -> int:
        return len(self.row)


class PackTable:
    """The pieces in each sequence. Takes 20 bytes per piece and 8 per sequence; read-only."""

    def __init__(self, sequence: I64, document: I64, start: I64, length: I64) -> None:
        """Build a table from int64 arrays, a row per piece as `DocumentPieces`; `sequence` ascends without gaps."""
        n = int(sequence[-1]) + 1 if len(sequence) else 0
        self._first = np.searchsorted(sequence, np.arange(n + 1))
        self._document = document
        self._start, self._length = start.astype(np.uint32), length.astype(np.uint32)
        self._tokens = np.bincount(document, length).astype(np.uint32)[document]

    def __len__(self) -> int:
        return len(self._first) - 1

    @property
    def n_pieces(self) -> int:
        return len(self._document)

    @property
    def n_tokens(self) -> int:
        return int(self._length.sum(dtype=np.int64))

    def pieces(self, sequences: I64) -> DocumentPieces:
        """Return the pieces of these sequences (int64), in the order of the argument. O(pieces)."""
        first = self._first[sequences]
        count = self._first[sequences + 1] - first
        before = np.cumsum(count) - count
        place = np.arange(int(count.sum()), dtype=np.int64) - np.repeat(before, count)
        rows = np.repeat(first, count) + place
        length = self._length[rows].astype(np.int64)
        ends = np.cumsum(length)
        begun = np.concatenate([np.zeros(1, np.int64), ends])[before]  # tokens before each sequence's first
        return DocumentPieces(
            row=np.repeat(np.arange(len(sequences), dtype=np.int64), count),
            place=place,
            document=self._document[rows],
            start=self._start[rows].astype(np.int64),
            length=length,
            at=ends - length - np.repeat(begun, count),
            tokens=self._tokens[rows].astype(np.int64),
        )

    def sequences_of(self, document: int) -> list[int]:
        """Return the sequences that contain pieces of a document (version ordinal), ascending. O(pieces)."""
        pieces = np.flatnonzero(self._document == document)
        sequences: list[int] = np.unique(np.searchsorted(self._first, pieces, side="right") - 1).tolist()
        return sequences

    def longer_than(self, length: int) -> tuple[I64, I64]:
        """Return int64 arrays: documents with more than `length` tokens, ascending, and their token counts."""
        rows = np.flatnonzero(self._tokens > length)
        documents, at = np.unique(self._document[rows], return_index=True)
        return documents, self._tokens[rows[at]].astype(np.int64)

    def rows(self, first: int, stop: int) -> I64:
        """Return rows `first` to `stop` as int64 [stop - first, 4]: sequence, document, start, length."""
        number = np.arange(first, min(stop, self.n_pieces), dtype=np.int64)
        sequence = np.searchsorted(self._first, number, side="right") - 1
        here = slice(first, stop)
        return np.column_stack(
            [sequence, self._document[here], self._start[here], self._length[here]]
        ).astype(np.int64)

    @cached_property
    def sha256(self) -> str:
        """sha256, in hex, of all rows (sequence, document, start, length) as little-endian int64."""
        digest = hashlib.sha256()
        for first in range(0, self.n_pieces, _HASHED_ROWS):
            digest.update(self.rows(first, first + _HASHED_ROWS).astype("<i8").tobytes())
        return digest.hexdigest()


def pack_documents(documents: I64, tokens: I64, length: int) -> PackTable:
    """Pack documents into sequences; return the table.

    documents: int64 [N], version ordinals in the view's order.
    tokens: int64 [N], tokens per document, >= 0. A document without tokens is in no sequence.
    length: tokens per sequence.
    """
    parts, n = [], 0
    for first in range(0, len(documents), BLOCK_DOCUMENTS):
        block = slice(first, first + BLOCK_DOCUMENTS)
        sequence, local, start, tokens_used = pack_block(tokens[block], length)
        parts.append((sequence + n, documents[block][local], start, tokens_used))
        n += int(sequence[-1]) + 1 if len(sequence) else 0
    empty = np.zeros(0, np.int64)
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else [empty] * 4
    return PackTable(*columns)


def pack_block(tokens: I64, length: int) -> tuple[I64, I64, I64, I64]:
    """Return (sequence, document, start, length) for every piece of a block, documents numbered from 0."""
    number = np.arange(len(tokens), dtype=np.int64)
    filled = tokens // length  # sequences that hold only this document
    rest = tokens - filled * length
    with_rest = np.flatnonzero(rest)
    fitted = best_fit(rest[with_rest], length)
    whole = np.repeat(number, filled)
    start = (np.arange(len(whole), dtype=np.int64) - np.repeat(np.cumsum(filled) - filled, filled)) * length
    document = np.concatenate([whole, with_rest])
    start = np.concatenate([start, filled[with_rest] * length])
    tokens_used = np.concatenate([np.full(len(whole), length, np.int64), rest[with_rest]])
    bins = np.concatenate([np.arange(len(whole), dtype=np.int64) - len(whole), fitted])
    order = np.lexsort((start, document))
    _, first, of = np.unique(bins[order], return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    sequence = rank[of]
    order = order[np.argsort(sequence, kind="stable")]
    return np.sort(sequence), document[order], start[order], tokens_used[order]


def best_fit(sizes: I64, capacity: int) -> I64:
    """Return the bin of each size (1 <= size <= capacity), bins numbered as they are opened. O(n log n).

    Sizes are placed in descending order, equal ones in input order. Each goes into the bin with the least sufficient
    room; among equal bins, the one opened first.
    """
    bits = len(sizes).bit_length()
    room: list[int] = []  # (tokens left << bits) + bin, ascending: one number sorts faster than a pair
    opened = 0
    order = np.argsort(-sizes, kind="stable")
    placed = []
    for size in sizes[order].tolist():
        at = bisect_left(room, size << bits)
        if at < len(room):
            room_left = room.pop(at)
        else:
            room_left = (capacity << bits) + opened
            opened += 1
        rest_of_room = room_left - (size << bits)
        if rest_of_room >> bits:
            insort(room, rest_of_room)
        placed.append(room_left & ((1 << bits) - 1))
    out = np.empty(len(sizes), np.int64)
    out[order] = placed
    return out
