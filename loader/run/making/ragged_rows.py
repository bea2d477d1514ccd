"""Rows of ragged fields, document by document, and joined by sequence."""

from collections.abc import Iterable, Sequence

import numpy as np

from ...dataset.reading.verified_gathers import GatheredBytes
from ...errors import DecodeFailed
from ...modalities import decoder_for
from ...order.random.keyed_permutation import I64
from ...order.sources.packing import SEGMENT_IDS, RaggedField
from ..recipe.document_pieces import SlotPieces


class RaggedRows:
    """The rows of ragged fields of a step's documents, by piece: no document with ragged fields is split."""

    def __init__(self, ragged: Sequence[RaggedField], pieces: SlotPieces) -> None:
        self.fields = {field[0]: field for field in ragged}
        self._pieces = pieces
        self._rows: dict[str, dict[int, np.ndarray]] = {
            name: {} for name in self.fields
        }  # field -> piece -> rows

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
        decode = decoder_for(name)
        bounds = zip(data.begin.tolist(), data.sizes.tolist(), strict=True)
        is_decoded = np.zeros(len(pieces), np.bool_)
        for number, (begin, size) in enumerate(bounds):
            stop = begin + size
            try:
                rows = decode(data.memory.data[begin:stop], None)
            except DecodeFailed:
                continue  # decoded again with its sample's name
            if has_rows_of(field, rows):
                piece = int(pieces[number])
                self._rows[name][piece] = rows
                is_decoded[number] = True
        return pieces[is_decoded]

    def put(self, piece: int, values: Sequence[np.ndarray]) -> None:
        """Keep a piece's rows of each field."""
        for name, rows in zip(self.fields, values, strict=True):
            self._rows[name][piece] = rows

    def joined(self, pieces: Iterable[int], has_values: np.ndarray) -> dict[str, np.ndarray]:
        """Return field, and its segments -> the rows of pieces that are not masked, in their order.

        has_values: bool [pieces of the step].
        """
        read_pieces = [piece for piece in pieces if has_values[piece]]
        fields: dict[str, np.ndarray] = {}
        for name, (_, dtype, row_shape) in self.fields.items():
            native_dtype = np.dtype(dtype).newbyteorder("=")
            # An empty array first: a sequence may have no rows.
            parts = [np.zeros((0, *row_shape), native_dtype)]
            segments = [np.zeros(0, np.int32)]
            for piece in read_pieces:
                rows = self._rows[name][piece]
                segment = self._pieces.positions.number_in_sequence[piece] + 1
                parts.append(rows)
                segments.append(np.full(len(rows), segment, np.int32))
            fields[name] = np.concatenate(parts)
            fields[f"{name}.{SEGMENT_IDS}"] = np.concatenate(segments)
        return fields


def has_rows_of(field: RaggedField, value: object) -> bool:
    """Return whether a value is an array of the planned dtype and row shape, with any number of rows."""
    if not isinstance(value, np.ndarray) or not value.ndim:
        return False
    _, dtype, row_shape = field
    return value.dtype == np.dtype(dtype) and value.shape[1:] == row_shape
