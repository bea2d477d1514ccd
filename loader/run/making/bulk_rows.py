"""Gather values that need no decoder into the batch: arrays into its rows, bytes into its columns."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...dataset.reading.verified_bucket_reads import FieldRead
from ...dataset.reading.verified_gathers import Gatherable, RowsOfField, gather_bytes, gather_rows
from ...errors import Corrupt, DecodeFailed
from ...modalities import Decoder, array, decode_bytes
from ...order.random.keyed_permutation import I64
from ..batch.columns import Columns
from ..recipe.rank_slots import LocatedSamples


class InRows(NamedTuple):
    """The result of gathering one field into rows.

    Each sample is in one of the three, except a bad one of the layout's size, which is in none.
    """

    field: str
    filled: I64
    """int64: numbers of the samples whose rows are filled."""
    read_again: Sequence[FieldRead]
    """Samples that a second read returned, or whose header differs: their bytes or error."""
    unread: I64
    """int64: numbers of the samples that were not gathered: their size differs from the layout's."""


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
                layout = array.npy_layout(bytes(data))
            except DecodeFailed:
                continue
            is_in_row_order = not layout.fortran or len(layout.shape) < 2
            if is_in_row_order and layout.nbytes and layout.dtype.isnative:
                self._layouts[field] = layout

    def bulk_fields(self, columns: Columns | None) -> set[str]:
        """Return the fields whose values `rows` or `gather_plain` copies and verifies."""
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
        """Gather arrays of known layouts into the columns' rows. Return the result of each field.

        rows: int64 [n], each sample's row. bad: numbers of samples to skip.
        """
        results: list[InRows] = []
        for field in self._arrays:
            layout = self._layouts.get(field)
            if layout is None:
                continue
            memory = columns.rows(field, layout.shape, layout.dtype)
            if memory is None:  # the batch has values of another shape or dtype
                continue
            file_nbytes = len(layout.head) + layout.nbytes
            has_layout_size = gatherable.places.fields[field].nbytes == file_nbytes  # bool [n]
            numbers = np.flatnonzero(has_layout_size)
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
            read_again = gather_rows(gatherable, request)
            filled = numbers
            if read_again:
                unfilled = [number for number, _, _ in read_again]
                filled = np.setdiff1d(numbers, unfilled, assume_unique=True)
            results.append(
                InRows(
                    field,
                    filled,
                    read_again,
                    unread=np.flatnonzero(~has_layout_size),
                )
            )
        return results


def gather_plain(
    gatherable: Gatherable,
    located: LocatedSamples,
    field: str,
    numbers: I64,
    columns: Columns,
) -> list[FieldRead]:
    """Gather a field that needs no decoder into `columns`, for the samples `numbers` (int64). Return the errors."""
    data, others = gather_bytes(gatherable, field, numbers, columns.allocate)
    columns.put_bytes(
        field,
        slots=located.rows[data.numbers],
        memory=data.memory,
        begin=data.begin,
        sizes=data.sizes,
    )
    errors: list[FieldRead] = []
    for result in others:
        number, _, second_read = result
        if isinstance(second_read, Corrupt):
            errors.append(result)
        else:
            columns.put(int(located.rows[number]), field, second_read)
    return errors
