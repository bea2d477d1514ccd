"""Rows of ragged fields, document by document, and joined by sequence."""

from collections.abc import Iterable, Sequence

import numpy as np

from ...dataset.reading.verified_gathers import GatheredBytes
from ...errors import DecodeFailed
from ...modalities import find_decoder
from ...order.random.keyed_permutation import I64
from ...order.sources.packing import SEGMENT_IDS, RaggedField
from ..recipe.document_pieces import SlotPieces

Fields = dict[str, np.ndarray]
RowsByPiece = dict[int, np.ndarray]


class RaggedRows:
    """The rows of ragged fields of a step's documents, by piece: no document with ragged fields is split."""

    def __init__(
        self,
        ragged: Sequence[RaggedField],
        pieces: SlotPieces,
    ) -> None:
        self._pieces = pieces
        self.fields: dict[str, RaggedField] = {}
        """Field -> its planned dtype and row shape."""
        self._rows: dict[str, RowsByPiece] = {}
        for field in ragged:
            name, _, _ = field
            self.fields[name] = field
            self._rows[name] = {}

    def decode(
        self,
        name: str,
        data: GatheredBytes,
        pieces: I64,
    ) -> I64:
        """Decode one field of documents. Return the pieces of the decoded ones; others are damaged or have other rows.

        pieces: int64 [n], the piece of each document in `data`.
        """
        field = self.fields[name]
        decode = find_decoder(name)
        assert decode is not None  # the field is decoded by default
        is_decoded = np.zeros(len(pieces), np.bool_)
        rows_by_piece = self._rows[name]
        for number, piece in enumerate(pieces.tolist()):
            begin = int(data.begin[number])
            size = int(data.sizes[number])
            stop = begin + size
            document = data.memory.data[begin:stop]
            try:
                value = decode(document, None)
            except DecodeFailed:
                continue  # decoded again with its sample's name
            rows = match_rows(field, value)
            if rows is not None:
                rows_by_piece[piece] = rows
                is_decoded[number] = True
        return pieces[is_decoded]

    def put(
        self,
        piece: int,
        values: Sequence[np.ndarray],
    ) -> None:
        """Keep a piece's rows of each field."""
        for name, rows in zip(self.fields, values, strict=True):
            rows_by_piece = self._rows[name]
            rows_by_piece[piece] = rows

    def joined(
        self,
        pieces: Iterable[int],
        has_values: np.ndarray,
    ) -> Fields:
        """Return field, and its segments -> the rows of pieces that are not masked, in their order.

        has_values: bool [pieces of the step].
        """
        read_pieces = [piece for piece in pieces if has_values[piece]]
        numbers = self._pieces.positions.number_in_sequence
        fields: Fields = {}
        for name, field in self.fields.items():
            _, dtype, row_shape = field
            planned_dtype = np.dtype(dtype)
            native_dtype = planned_dtype.newbyteorder("=")
            # An empty array first: a sequence may have no rows.
            no_rows = np.zeros((0, *row_shape), native_dtype)
            no_segments = np.zeros(0, np.int32)
            parts = [no_rows]
            segments = [no_segments]
            rows_by_piece = self._rows[name]
            for piece in read_pieces:
                rows = rows_by_piece[piece]
                segment = numbers[piece] + 1
                n_rows = len(rows)
                segment_of_rows = np.full(n_rows, segment, np.int32)
                parts.append(rows)
                segments.append(segment_of_rows)
            segments_name = f"{name}.{SEGMENT_IDS}"
            fields[name] = np.concatenate(parts)
            fields[segments_name] = np.concatenate(segments)
        return fields


def match_rows(
    field: RaggedField,
    value: object,
) -> np.ndarray | None:
    """Return a value that is an array of the planned dtype and row shape, with any number of rows; None for others."""
    _, dtype_name, row_shape = field
    dtype = np.dtype(dtype_name)
    if not isinstance(value, np.ndarray):
        return None
    if value.dtype != dtype:
        return None
    if value.ndim == 0:
        return None
    if value.shape[1:] != row_shape:
        return None
    return value
