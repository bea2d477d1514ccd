"""Lay out pieces of documents in the rows of a batch: one call copies a field's pieces out of gathered `.npy` files.

A call per document (decode, cut, copy) took 25 us each; this takes 1 us.
"""

from math import prod
from typing import Any

import numpy as np

from ...dataset.reading.verified_gathers import GatheredBytes
from ...modalities.array import rows_head
from ...native import RIGHT, copy_pieces, number_pieces
from ...order.random.keyed_permutation import I64
from ...order.sources.packing import LOSS_MASK, POSITION_IDS, SEGMENT_IDS, Packing
from ..batch.columns import Columns
from ..recipe.document_pieces import SlotPieces
from .ragged_rows import RaggedRows

Values = tuple[np.ndarray, ...]
"""Values of one piece, as in `Packing.fields`: its tokens, the fields beside them, and its document's ragged rows."""


class SequenceRows:
    """The arrays of a step's sequences, each in its row of the batch.

    - token field -> [rows, length], and each field beside it -> [rows, length, ...], its own dtype; `pad_id` or the
      fill without a token.
    - `<field>.position_ids` -> int32 [rows, length], from 0 in each piece.
    - `<field>.segment_ids` -> int32 [rows, length], 1 for a row's first piece and so on; 0 where there is no token.
    - `<field>.loss_mask` -> bool [rows, length], True at tokens that follow another of their piece.
    """

    def __init__(
        self,
        packing: Packing,
        pieces: SlotPieces,
        columns: Columns,
    ) -> None:
        """Allocate the arrays in `columns`. All pieces are masked until they get values."""
        self._layout = packing.layout
        self._row_shapes = packing.shapes
        self._ragged_rows = RaggedRows(packing.ragged, pieces)
        self._pieces = pieces
        self._columns = columns
        self._length = packing.length
        self._stored_dtypes: dict[str, np.dtype[Any]] = {}
        self._arrays: dict[str, np.ndarray] = {}
        for field, fill, dtype in self._layout:
            stored_dtype = np.dtype(dtype)
            self._stored_dtypes[field] = stored_dtype
            native_dtype = stored_dtype.newbyteorder("=")
            row_shape = self._row_shapes.get(field, ())
            self._add(field, native_dtype, fill, row_shape)
        number_dtype = np.dtype(np.int32)
        mask_dtype = np.dtype(np.bool_)
        name = packing.field
        self._position_ids = self._add(f"{name}.{POSITION_IDS}", number_dtype, fill=0)
        self._segment_ids = self._add(f"{name}.{SEGMENT_IDS}", number_dtype, fill=0)
        self._loss_mask = self._add(f"{name}.{LOSS_MASK}", mask_dtype, fill=False)

        # int64 [pieces]: each piece's first place among the [rows * length] of an array.
        row_start = pieces.slot * packing.length
        self._at = row_start + pieces.positions.offset_in_sequence
        self.has_values = np.zeros(len(pieces.slot), np.bool_)
        """bool [pieces]: False if the piece is masked."""

    def copy(
        self,
        field: str,
        data: GatheredBytes,
        pieces: I64,
    ) -> I64:
        """Copy pieces of one field, or the rows of a ragged one, out of their documents. Return the copied ones.

        The other documents have another header or size, so they need a decoder.

        pieces: int64 [n], the piece of each document in `data`.
        """
        if field in self._ragged_rows.fields:
            return self._ragged_rows.decode(field, data, pieces)
        stored_dtype = self._stored_dtypes[field]
        row_shape = self._row_shapes.get(field, ())
        n_values = prod(row_shape)
        row_nbytes = stored_dtype.itemsize * n_values
        if not stored_dtype.isnative or not row_nbytes:
            return pieces[:0]
        head = rows_head(field, stored_dtype, row_shape)
        positions = self._pieces.positions
        n_tokens = positions.tokens[pieces]
        start = positions.start[pieces]
        length = positions.length[pieces]
        at = self._at[pieces]
        status = np.empty(len(pieces), np.uint8)
        copy_pieces(
            data.memory,
            data.begin,
            data.sizes,
            n_tokens,
            start,
            length,
            at,
            head,
            row_nbytes,
            self._arrays[field],
            status,
        )
        is_copied = status == RIGHT
        copied: I64 = pieces[is_copied]
        return copied

    def put(
        self,
        piece: int,
        values: Values,
    ) -> None:
        """Put a piece's values into its row."""
        place = self._place(piece)
        n_fields = len(self._layout)
        laid_out = values[:n_fields]
        ragged = values[n_fields:]
        for entry, piece_values in zip(self._layout, laid_out, strict=True):
            field, _, _ = entry
            positions = self._positions(field)
            positions[place] = piece_values
        self._ragged_rows.put(piece, ragged)
        self.has_values[piece] = True

    def mask(self, piece: int) -> None:
        """Mask a piece of which some fields may have been copied."""
        place = self._place(piece)
        for field, fill, _ in self._layout:
            positions = self._positions(field)
            positions[place] = fill
        self.has_values[piece] = False

    def number(self) -> None:
        """Write the positions, segments and loss mask of all pieces that have values."""
        positions = self._pieces.positions
        pieces = np.flatnonzero(self.has_values)
        at = self._at[pieces]
        length = positions.length[pieces]
        segment = positions.number_in_sequence[pieces] + 1
        number_pieces(
            at,
            length,
            segment,
            self._position_ids,
            self._segment_ids,
            self._loss_mask,
        )

    def lists(self, pieces: range) -> dict[str, np.ndarray]:
        """Return ragged field, and its segments -> the rows of one sequence's pieces."""
        return self._ragged_rows.joined(pieces, self.has_values)

    def put_rows(
        self,
        rows: I64,
        other_names: tuple[str, ...],
    ) -> None:
        """Mark the batch's rows as filled.

        rows: int64, those with a sequence. other_names: fields that the caller adds, after these arrays.
        """
        for name in self._arrays:
            self._columns.put_rows(name, rows)
        names = (*self._arrays, *other_names)
        self._columns.put_names(rows, names)

    def sample(self, row: int) -> dict[str, Any]:
        """Return copies of one sequence's arrays: a transform may change or keep them."""
        arrays: dict[str, Any] = {}
        for name, array in self._arrays.items():
            sequence = array[row]
            arrays[name] = sequence.copy()
        return arrays

    def _add(
        self,
        name: str,
        dtype: np.dtype[Any],
        fill: int,
        row_shape: tuple[int, ...] = (),
    ) -> np.ndarray:
        array = self._columns.rows(name, (self._length, *row_shape), dtype)
        assert array is not None  # the columns have no values yet, and the dtype is native
        array[...] = fill
        self._arrays[name] = array
        return array

    def _positions(self, field: str) -> np.ndarray:
        """Return [rows * length, ...]: a view of a field's array."""
        array = self._arrays[field]
        row_shape = array.shape[2:]
        n_rows = array.shape[0]
        n_positions = n_rows * self._length
        return array.reshape(n_positions, *row_shape)

    def _place(self, piece: int) -> slice:
        positions = self._pieces.positions
        start = int(self._at[piece])
        n_tokens = int(positions.length[piece])
        return slice(start, start + n_tokens)
