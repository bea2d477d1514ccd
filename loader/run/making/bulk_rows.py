"""Gather the arrays of many samples into the batch's rows, without a decoder."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...dataset.reading.verified_bucket_reads import FieldRead
from ...dataset.reading.verified_gathers import Gatherable, RowsOfField, gather_rows
from ...errors import DecodeFailed
from ...modalities import Decoder, array, decode_bytes
from ...order.random.keyed_permutation import I64
from ..batch.columns import Columns


class InRows(NamedTuple):
    """The result of reading one field into rows."""

    field: str
    filled: I64
    """int64: numbers of the samples whose rows are filled."""
    others: Sequence[FieldRead]
    """Samples whose rows are not filled: their bytes or error."""
    unread: I64
    """int64: numbers of the samples that were not read."""


class Bulk:
    """Fields of a view that need no decoder, and the last layouts of its arrays.

    Thread-safe: a layout is a guess, which every sample's own header confirms.
    """

    def __init__(self, fields: Sequence[str], decoders: Mapping[str, Decoder]) -> None:
        self.plain = frozenset(field for field in fields if decoders.get(field, decode_bytes) is decode_bytes)
        self._arrays = [field for field in fields if decoders.get(field) is array.decode]
        self._layouts: dict[str, array.NpyLayout] = {}

    def remember_layouts(self, payloads: Collection[Mapping[str, object]]) -> None:
        """Keep the layout of each field's first array, if such arrays can be read into rows."""
        if not payloads:
            return
        for field in self._arrays:
            data = next((payload[field] for payload in payloads if field in payload), None)
            if not isinstance(data, bytes | memoryview):
                continue
            try:
                layout = array.layout_of(bytes(data))
            except DecodeFailed:
                continue
            is_in_row_order = not layout.fortran or len(layout.shape) < 2
            if is_in_row_order and layout.nbytes and layout.dtype.isnative:
                self._layouts[field] = layout

    def gathered(self, columns: Columns | None) -> set[str]:
        if columns is None:
            return set()
        return {*self.plain, *self._layouts}

    def rows(
        self,
        gatherable: Gatherable,
        rows: I64,
        columns: Columns,
        bad: Collection[int],
    ) -> list[InRows]:
        """Gather arrays into rows.

        rows: int64, each sample's row. bad: numbers of samples to skip.
        """
        results: list[InRows] = []
        for field in self._arrays:
            layout = self._layouts.get(field)
            if layout is None:
                continue
            memory = columns.rows(field, layout.shape, layout.dtype)
            if memory is None:
                continue
            fits = gatherable.places.fields[field].nbytes == len(layout.head) + layout.nbytes  # bool [n]
            numbers = np.flatnonzero(fits)
            if bad:
                numbers = np.setdiff1d(numbers, list(bad), assume_unique=True)
            values = memory.reshape(len(columns), -1).view(np.uint8)  # [rows, bytes of an array]
            request = RowsOfField(
                field,
                layout.head,
                numbers,
                rows[numbers],
                values,
            )
            others = gather_rows(gatherable, request)
            filled = numbers
            if others:
                unfilled = [number for number, _, _ in others]
                filled = np.setdiff1d(numbers, unfilled, assume_unique=True)
            results.append(
                InRows(
                    field,
                    filled,
                    others,
                    unread=np.flatnonzero(~fits),
                )
            )
        return results
