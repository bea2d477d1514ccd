"""Sequences of a packed view as samples to store.

Keys are `sequence-<number in the table>-<12 hex>`. The hex digits are a hash of the pieces, so one key always has one
content: a takedown denies a key for ever, and a later table may need its number again.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from loader import View
from loader.dataset.publishing.apply_denies import DenyEntries
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.writing.part_writer import make_sample
from loader.dataset.writing.spill import Sample
from loader.errors import DecodeFailed, InvalidPlan
from loader.modalities import find_decoder
from loader.modalities.array import FLAT
from loader.modalities.fields import last_word
from loader.order.random.keyed_permutation import I64
from loader.order.sources.pack_table import DocumentPieces
from loader.order.sources.packing import STARTS, PackedView, sequence_key

from .document_sources import DocumentSources
from .members import MEMBERS, MemberDocument, members_json

KEYS_AT_ONCE = 2**12
"""Sequences whose keys are computed together."""
SEQUENCES_AT_ONCE = 64
"""Sequences whose documents are in memory together."""
SOURCES_AT_ONCE = 16 * SEQUENCES_AT_ONCE
"""Sequences whose documents' sources are read together: their documents are near in a table."""
# With the number, two sequences of one key are as unlikely as two equal hashes of 48 bits.
HASH_BYTES = 6

Document = tuple[np.ndarray, ...]
"""Values of each field of `Packing.layout`."""
Documents = dict[int, Document]
"""Version ordinal -> document."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SequenceKeys:
    keys: list[str]
    """Key of each sequence of the table."""
    denying_entries: I64
    """int64 [sequences]: log entry that denies one of the documents, 0 if there is none."""


class Sequences:
    """The sequences of a packed view. Thread-safe.

    packed: the packed view. view: its documents.
    """

    def __init__(self, packed: PackedView, view: View) -> None:
        self._packing = packed.packing
        self._table = packed.table
        self._version = view.version

    def keys(self, denied: DenyEntries) -> SequenceKeys:
        """Return the keys of all sequences, and which of them have a denied document. O(pieces).

        denied: rows of the documents' version that takedowns deny.
        """
        n_sequences = len(self._table)
        keys: list[str] = []
        entries = np.zeros(n_sequences, np.int64)  # `SequenceKeys.denying_entries`
        for first in range(0, n_sequences, KEYS_AT_ONCE):
            stop = min(first + KEYS_AT_ONCE, n_sequences)
            numbers = np.arange(first, stop, dtype=np.int64)
            pieces = self._table.pieces(numbers)
            parts, rows = self._places(pieces.document)
            texts = _piece_texts(
                pieces,
                parts,
                rows,
            )
            if denied:
                piece_entries = _denying_entries(
                    denied,
                    parts,
                    rows,
                )
                # One denied document is enough to leave a sequence out. If takedowns deny several, the newest counts.
                np.maximum.at(
                    entries,
                    first + pieces.row,
                    piece_entries,
                )
            for number, own in zip(numbers.tolist(), _by_sequence(pieces), strict=True):
                own_texts = texts[own.start : own.stop]
                key = _key(number, own_texts)
                keys.append(key)
        return SequenceKeys(keys=keys, denying_entries=entries)

    def samples(self, numbers: I64, keys: Sequence[str]) -> Iterator[Sample]:
        """Yield sequences as samples. numbers: int64 [n], of the table; keys: of each.

        Raises: InvalidPlan if a document has another dtype or length than was packed; Corrupt; DecodeFailed.
        """
        documents: Documents = {}
        sources: DocumentSources | None = None
        for first in range(0, len(numbers), SEQUENCES_AT_ONCE):
            if first % SOURCES_AT_ONCE == 0:
                stop = first + SOURCES_AT_ONCE
                several = self._table.pieces(numbers[first:stop])
                sources = DocumentSources(self._version, several.document)
            assert sources is not None  # the first block reads them
            block = slice(first, first + SEQUENCES_AT_ONCE)
            pieces = self._table.pieces(numbers[block])
            # A long document's pieces are in neighbouring sequences: it is read once for all of them.
            documents = self._read(pieces, documents)
            members = self._members(pieces)
            for key, own in zip(keys[block], _by_sequence(pieces), strict=True):
                dataset = self._version.dataset
                own_members = members[own.start : own.stop]
                own_documents = pieces.document[own.start : own.stop]
                own_sources = sources.values(own_documents)
                fields: dict[str, Any] = {
                    MEMBERS: members_json(dataset, own_members, own_sources),
                    STARTS: _starts(pieces, own),
                }
                for column, (field, _, _) in enumerate(self._packing.layout):
                    array = self._field_of_sequence(
                        pieces,
                        own,
                        documents,
                        column,
                    )
                    fields[field] = _as_field(field, array)
                yield make_sample(key, fields)

    def _places(self, documents: I64) -> tuple[list[str], list[int]]:
        """Return the part id and the row of each document. documents: int64 [n], version ordinals."""
        parts_table = self._version.parts
        positions, rows = parts_table.locate(documents)
        distinct, index = np.unique(positions, return_inverse=True)
        ids = parts_table.part_ids(distinct.tolist())
        parts = [ids[number] for number in index.tolist()]
        return parts, rows.tolist()

    def _members(self, pieces: DocumentPieces) -> list[MemberDocument]:
        """Return the document of each piece."""
        parts, rows = self._places(pieces.document)
        columns = (
            self._version.keys(pieces.document),
            parts,
            rows,
            pieces.start.tolist(),
        )
        return [MemberDocument(*values) for values in zip(*columns, strict=True)]

    def _read(
        self,
        pieces: DocumentPieces,
        known: Documents,
    ) -> Documents:
        """Return the documents of pieces. known: documents that were read before."""
        columns = (pieces.document.tolist(), pieces.tokens.tolist())
        n_tokens_by_document = dict(zip(*columns, strict=True))
        documents: Documents = {}
        for ordinal in n_tokens_by_document.keys() & known.keys():
            documents[ordinal] = known[ordinal]
        # In the order of storage, so that neighbours share a request.
        missing = sorted(n_tokens_by_document.keys() - known.keys())
        addresses = self._version.address(
            np.array(missing, np.int64),
            self._packing.fields,
        )
        data = read_fields(self._version.shard_store, addresses)
        for ordinal, address, stored in zip(missing, addresses, data, strict=True):
            values: list[np.ndarray] = []
            n_tokens = n_tokens_by_document[ordinal]
            for field, _, dtype in self._packing.layout:
                row_shape = self._packing.shapes.get(field, ())
                array = _decode(
                    address.describe(field),
                    field,
                    stored[field],
                    np.dtype(dtype),
                    (n_tokens, *row_shape),
                )
                values.append(array)
            documents[ordinal] = tuple(values)
        return documents

    def _field_of_sequence(
        self,
        pieces: DocumentPieces,
        own: range,
        documents: Documents,
        column: int,
    ) -> np.ndarray:
        """Return a field of the sequence whose pieces are `own`. column: number of the field in the layout."""
        field, fill, dtype = self._packing.layout[column]
        row_shape = self._packing.shapes.get(field, ())
        shape = (self._packing.length, *row_shape)
        # Batches have the machine's byte order, whatever the documents have.
        native_dtype = np.dtype(dtype).newbyteorder("=")
        array = np.full(shape, fill, native_dtype)
        for piece in own:
            ordinal = int(pieces.document[piece])
            document = documents[ordinal]
            start = int(pieces.start[piece])
            n_tokens = int(pieces.length[piece])
            place = int(pieces.offset_in_sequence[piece])
            stop = start + n_tokens
            place_end = place + n_tokens
            values = document[column]
            array[place:place_end] = values[start:stop]
        return array


def _key(number: int, texts: Sequence[str]) -> str:
    """Return the key of a sequence. number: in the table. texts: of its pieces, by `_piece_texts`."""
    text = "\n".join(texts)
    digest = hashlib.blake2b(
        text.encode(),
        digest_size=HASH_BYTES,
    )
    # Sorted, keys are in the table's order. If a number has other pieces, its key differs: another sample replaces it.
    numbered = sequence_key(number)
    return f"{numbered}-{digest.hexdigest()}"


def _piece_texts(
    pieces: DocumentPieces,
    parts: list[str],
    rows: list[int],
) -> list[str]:
    """Return a text for each piece, which names its tokens: the sequence's key is a hash of them.

    parts, rows: part id and row of each piece's document.
    """
    columns = (
        parts,
        rows,
        pieces.start.tolist(),
        pieces.length.tolist(),
    )
    texts = []
    for part, row, start, length in zip(*columns, strict=True):
        text = f"{part} {row} {start} {length}"
        texts.append(text)
    return texts


def _denying_entries(
    denied: DenyEntries,
    parts: list[str],
    rows: list[int],
) -> I64:
    """Return int64 [pieces]: log entry that denies the piece's document, 0 if there is none. parts, rows: of each."""
    entries = np.zeros(len(rows), np.int64)
    for piece, (part, row) in enumerate(zip(parts, rows, strict=True)):
        part_rows = denied.get(part)
        if part_rows is not None:
            entries[piece] = part_rows.get(row, 0)
    return entries


def _by_sequence(pieces: DocumentPieces) -> Iterator[range]:
    """Yield the indexes of each sequence's pieces, which are neighbours."""
    is_first = pieces.number_in_sequence == 0
    bounds = np.flatnonzero(is_first).tolist()
    bounds.append(len(pieces))
    for first, stop in pairwise(bounds):
        yield range(first, stop)


def _starts(pieces: DocumentPieces, own: range) -> np.ndarray:
    """Return int32 [n + 1]: the first position of each piece, then the number of filled positions."""
    block = slice(own.start, own.stop)
    at = pieces.offset_in_sequence[block]
    length = pieces.length[block]
    n_filled = at[-1:] + length[-1:]
    starts = np.concatenate([at, n_filled])
    return starts.astype(np.int32)


def _as_field(field: str, array: np.ndarray) -> np.ndarray | bytes:
    """Return what the writer takes: fields without a header are bytes."""
    if last_word(field) in FLAT:
        return array.tobytes()
    return array


def _decode(
    where: str,
    field: str,
    data: bytes,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
) -> np.ndarray:
    """Return a document's field. Raises: DecodeFailed; InvalidPlan unless it is an array of this dtype and shape."""
    decode = find_decoder(field)
    assert decode is not None  # packed fields are arrays
    try:
        values = decode(data, None)
    except DecodeFailed as error:
        message = f"{where}: {error}; leave the document out with penstock exclude"
        raise DecodeFailed(message, what=field, where=where, given=str(error)) from error
    described = type(values).__name__
    if isinstance(values, np.ndarray):
        if values.dtype == dtype and values.shape == shape:
            return values
        stored_shape = list(values.shape)
        described = f"{values.dtype} {stored_shape}"
    raise InvalidPlan(
        f"{where} is {described}; it was packed as {dtype} {list(shape)}. Store the field of all documents in one "
        "dtype and row shape, or leave such documents out with penstock exclude",
        what=field,
        where=where,
        given=described,
        accepted=f"{dtype} {list(shape)}",
    )
