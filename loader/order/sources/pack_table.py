"""The table of packed sequences, and the packing of documents that fills it.

Documents are packed in blocks of 2^14, in the view's order. Inside a block, packing is best-fit decreasing: the longest
document comes first, and each goes into the fullest sequence that still has room. It cuts only documents longer than a
sequence (Ding et al., "Fewer Truncations Improve Language Modeling", 2024). Groups of documents that share a sequence
are packed likewise, by the tokens of the group; they are never cut.
"""

import hashlib
from bisect import bisect_left, insort
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..random.keyed_permutation import I64

BLOCK_DOCUMENTS = 2**14
MAX_DOCUMENT_TOKENS = 2**32 - 1  # a table in memory has uint32
_HASHED_ROWS = 2**16  # 2 MiB of int64 rows in memory at once


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DocumentPieces:
    """Pieces of documents in some sequences; a row per piece."""

    row: I64
    """Index of the piece's sequence in the request."""
    number_in_sequence: I64
    """Number of the piece in its sequence, from 0."""
    document: I64
    """Version ordinal of its document."""
    start: I64
    """First token's offset in its document."""
    length: I64
    """Tokens in the piece."""
    offset_in_sequence: I64
    """Tokens of its sequence before it."""
    tokens: I64
    """Tokens in the whole document."""

    def __len__(self) -> int:
        return len(self.row)


class PackTable:
    """The pieces in each sequence. Takes 20 bytes per piece and 8 per sequence; read-only."""

    def __init__(
        self,
        sequence: I64,
        document: I64,
        start: I64,
        length: I64,
    ) -> None:
        """Build a table from int64 arrays, a row per piece as `DocumentPieces`; `sequence` ascends without gaps."""
        n_sequences = 0
        if len(sequence):
            last = int(sequence[-1])
            n_sequences = last + 1
        numbers = np.arange(n_sequences + 1)
        self._first = np.searchsorted(sequence, numbers)  # [sequences + 1]: first row of each, and the end
        self._document = document
        self._start = start.astype(np.uint32)
        self._length = length.astype(np.uint32)
        self._tokens = _document_tokens(document, length)

    def __len__(self) -> int:
        return len(self._first) - 1

    @property
    def n_pieces(self) -> int:
        return len(self._document)

    @property
    def n_tokens(self) -> int:
        total = self._length.sum(dtype=np.int64)  # in 32 bits the sum would overflow
        return int(total)

    def pieces(self, sequences: I64) -> DocumentPieces:
        """Return the pieces of these sequences (int64), in the order of the argument. O(pieces)."""
        first = self._first[sequences]
        stop = self._first[sequences + 1]
        count = stop - first  # [sequences]: pieces of each
        before = np.cumsum(count) - count  # [sequences]: pieces of earlier ones in the request

        # numpy reuses the memory of large arrays without a name, so the piece numbers have none.
        n_pieces = int(count.sum())
        number_in_sequence = np.arange(n_pieces, dtype=np.int64) - np.repeat(before, count)
        rows = np.repeat(first, count) + number_in_sequence  # [pieces]: rows of the table
        start = self._start[rows].astype(np.int64)
        length = self._length[rows].astype(np.int64)
        tokens = self._tokens[rows].astype(np.int64)

        piece_start = np.cumsum(length) - length  # [pieces]: tokens before each, over all sequences
        sequence_start = piece_start[before]  # [sequences]: of its first piece, and each has one
        offset_in_sequence = piece_start - np.repeat(sequence_start, count)
        sequence_number = np.arange(len(sequences), dtype=np.int64)
        return DocumentPieces(
            row=np.repeat(sequence_number, count),
            number_in_sequence=number_in_sequence,
            document=self._document[rows],
            start=start,
            length=length,
            offset_in_sequence=offset_in_sequence,
            tokens=tokens,
        )

    def document_sequences(self, document: int) -> list[int]:
        """Return the sequences that contain pieces of a document (version ordinal), ascending. O(pieces)."""
        is_piece = self._document == document
        pieces = np.flatnonzero(is_piece)
        sequences = self._sequences_of_rows(pieces)
        distinct = np.unique(sequences)
        ascending: list[int] = distinct.tolist()
        return ascending

    def longer_than(self, length: int) -> tuple[I64, I64]:
        """Return int64 arrays: documents with more than `length` tokens, ascending, and their token counts."""
        is_long = self._tokens > length
        rows = np.flatnonzero(is_long)
        document_of_row = self._document[rows]
        documents, index = np.unique(document_of_row, return_index=True)
        tokens_of_row = self._tokens[rows]
        tokens = tokens_of_row[index]  # every piece has the whole document's tokens
        return documents, tokens.astype(np.int64)

    def rows(self, first: int, stop: int) -> I64:
        """Return rows `first` to `stop` as int64 [stop - first, 4]: sequence, document, start, length."""
        stop = min(stop, self.n_pieces)
        numbers = np.arange(first, stop, dtype=np.int64)
        block = slice(first, stop)
        sequence = self._sequences_of_rows(numbers)
        document = self._document[block]
        start = self._start[block]
        length = self._length[block]
        table = np.column_stack([sequence, document, start, length])
        return table.astype(np.int64)

    def _sequences_of_rows(self, rows: I64) -> I64:
        """Return int64 [rows]: the sequence of each row of the table."""
        # [rows]: sequences that begin at the row or before it.
        n_begun = np.searchsorted(
            self._first,
            rows,
            side="right",
        )
        return n_begun.astype(np.int64, copy=False) - 1

    @cached_property
    def sha256(self) -> str:
        """sha256, in hex, of all rows (sequence, document, start, length) as little-endian int64."""
        digest = hashlib.sha256()
        for first in range(0, self.n_pieces, _HASHED_ROWS):
            stop = first + _HASHED_ROWS
            rows = self.rows(first, stop)
            little_endian = rows.astype("<i8")
            digest.update(little_endian.data)
        return digest.hexdigest()


def pieces_fit(
    document: I64,
    start: I64,
    length: I64,
    split: bool,
) -> bool:
    """Return whether no piece ends after its document's tokens; without `split`, whether each is a whole document."""
    tokens = np.bincount(document, length)[document]  # [pieces]: tokens of each one's document
    if not split:
        return bool((length == tokens).all() and not start.any())
    return bool((start <= tokens - length).all())  # start + length could overflow


def pack_documents(
    documents: I64,
    tokens: I64,
    capacity: int,
) -> PackTable:
    """Pack documents into sequences; return the table.

    documents: int64 [N], version ordinals in the view's order.
    tokens: int64 [N], tokens per document, >= 0. A document without tokens is in no sequence.
    capacity: tokens per sequence.
    """
    empty = np.zeros(0, np.int64)
    sequences = [empty]
    piece_documents = [empty]
    starts = [empty]
    lengths = [empty]
    n_sequences = 0
    for first in range(0, len(documents), BLOCK_DOCUMENTS):
        stop = first + BLOCK_DOCUMENTS
        block = slice(first, stop)
        pieces = pack_block(tokens[block], capacity)
        block_sequences = pieces.sequence + n_sequences
        block_documents = documents[block]
        sequences.append(block_sequences)
        piece_documents.append(block_documents[pieces.document])
        starts.append(pieces.start)
        lengths.append(pieces.length)
        if len(pieces.sequence):
            last = int(pieces.sequence[-1])
            n_sequences += last + 1
    return PackTable(
        sequence=np.concatenate(sequences),
        document=np.concatenate(piece_documents),
        start=np.concatenate(starts),
        length=np.concatenate(lengths),
    )


def pack_groups(
    documents: I64,
    tokens: I64,
    groups: I64,
    capacity: int,
) -> PackTable:
    """Pack documents, each group as neighbours in one sequence; return the table.

    documents: int64 [N], version ordinals in the view's order.
    tokens: int64 [N], tokens per document, >= 0. A document without tokens is in no sequence.
    groups: int64 [N], equal for documents of one group. No group has more tokens than a sequence.
    capacity: tokens per sequence.
    """
    has_tokens = tokens > 0
    documents = documents[has_tokens]
    tokens = tokens[has_tokens]
    # [documents with tokens]: groups in order of their first document.
    group = number_by_first(groups[has_tokens])
    group_tokens = np.bincount(group, tokens).astype(np.int64)

    group_sequence = np.zeros(len(group_tokens), np.int64)  # [groups]: sequence of each
    n_sequences = 0
    for first in range(0, len(group_tokens), BLOCK_DOCUMENTS):
        block = slice(first, first + BLOCK_DOCUMENTS)
        bins = best_fit(group_tokens[block], capacity)
        group_sequence[block] = n_sequences + number_by_first(bins)
        n_sequences = int(group_sequence[block].max()) + 1

    sequence = group_sequence[group]
    # Stable: documents of a group stay in the view's order.
    order = np.lexsort((group, sequence))
    return PackTable(
        sequence=sequence[order],
        document=documents[order],
        start=np.zeros(len(documents), np.int64),
        length=tokens[order],
    )


def _document_tokens(document: I64, length: I64) -> NDArray[np.uint32]:
    """Return uint32 [rows]: tokens of each row's whole document. document, length: int64 [rows]."""
    number = document
    largest = int(document.max(initial=0))
    if largest > 8 * len(document):  # few documents of a large version: count them, not all of its samples
        _, number = np.unique(document, return_inverse=True)
    tokens = np.bincount(number, length)  # [largest number + 1]
    return tokens.astype(np.uint32)[number]


class BlockPieces(NamedTuple):
    """Pieces of a block's documents, which are numbered from 0; int64 [pieces] each."""

    sequence: I64
    """A number that the pieces of one sequence share."""
    document: I64
    start: I64
    length: I64


def pack_block(tokens: I64, capacity: int) -> BlockPieces:
    """Return the pieces of a block in order of sequence, document and start; sequences are numbered from 0.

    tokens: int64 [N], tokens per document. capacity: tokens per sequence.
    """
    n_full = tokens // capacity  # [N]: sequences that hold only this document
    rest = tokens - n_full * capacity  # [N]: tokens of its last, shorter piece; 0 for none
    full_pieces = _full_pieces(n_full, capacity)
    rest_pieces = _rest_pieces(n_full, rest, capacity)
    columns = []
    for parts in zip(full_pieces, rest_pieces, strict=True):
        column = np.concatenate(parts)
        columns.append(column)
    pieces = BlockPieces._make(columns)

    by_document = np.lexsort((pieces.start, pieces.document))
    sequence = number_by_first(pieces.sequence[by_document])
    by_sequence = np.argsort(sequence, kind="stable")
    order = by_document[by_sequence]
    return BlockPieces(
        sequence=sequence[by_sequence],
        document=pieces.document[order],
        start=pieces.start[order],
        length=pieces.length[order],
    )


def _full_pieces(n_full: I64, capacity: int) -> BlockPieces:
    """Return the pieces that fill a sequence. n_full: int64 [N], how many each document has."""
    total = int(n_full.sum())
    documents = np.arange(len(n_full), dtype=np.int64)
    number = np.arange(total, dtype=np.int64)
    through = np.cumsum(n_full)
    earlier = through - n_full  # [N]: full pieces of the documents before
    earlier_of_piece = np.repeat(earlier, n_full)
    number_in_document = number - earlier_of_piece
    return BlockPieces(
        sequence=number - total,  # below 0, because bins of rests count from 0
        document=np.repeat(documents, n_full),
        start=number_in_document * capacity,
        length=np.full(total, capacity, np.int64),
    )


def _rest_pieces(
    n_full: I64,
    rest: I64,
    capacity: int,
) -> BlockPieces:
    """Return the pieces shorter than a sequence. rest: int64 [N], tokens of each document's, 0 for none."""
    document = np.flatnonzero(rest)
    rest_length = rest[document]
    return BlockPieces(
        sequence=best_fit(rest_length, capacity),
        document=document,
        start=n_full[document] * capacity,
        length=rest_length,
    )


def number_by_first(values: I64) -> I64:
    """Return int64 [N]: the number of each value, from 0 in the order in which the values first occur."""
    _, first, index = np.unique(
        values,
        return_index=True,
        return_inverse=True,
    )
    by_first = np.argsort(first)
    n_values = len(first)
    number = np.empty(n_values, np.int64)
    number[by_first] = np.arange(n_values)
    return number[index]


def best_fit(sizes: I64, capacity: int) -> I64:
    """Return the bin of each size (1 <= size <= capacity), bins numbered as they are opened. O(n log n).

    Sizes are placed in descending order, equal ones in input order. Each goes into the bin with the least sufficient
    room; among equal bins, the one opened first.
    """
    # An open bin is one number, (room << bits) + bin: that sorts by room, then bin, and faster than a pair.
    bits = len(sizes).bit_length()  # enough for any bin's number
    n_numbers = 1 << bits
    bin_mask = n_numbers - 1
    empty_bin = capacity << bits
    open_bins: list[int] = []  # ascending, without full ones
    n_bins = 0
    bins = []
    order = np.argsort(-sizes, kind="stable")
    descending = sizes[order]
    for size in descending.tolist():
        needed = size << bits
        smallest = bisect_left(open_bins, needed)  # the first bin with enough room
        if smallest < len(open_bins):
            open_bin = open_bins.pop(smallest)
        else:
            open_bin = empty_bin + n_bins
            n_bins += 1
        bins.append(open_bin & bin_mask)
        open_bin -= needed
        if open_bin >> bits:  # it has room left
            insort(open_bins, open_bin)
    out = np.empty(len(sizes), np.int64)
    out[order] = bins
    return out
