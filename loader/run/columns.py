"""A batch while it is made: field by field, a value per slot, large arrays in the rows of the batch's own memory."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..modalities.place import Place

Allocate = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]
"""(shape, dtype) -> an array of any content."""

_WORTH_MOVING_BYTES = 4096  # smaller arrays cost less to hold than to look after


class _Mark:
    """Stands for a value that is not there itself."""


PADDED = _Mark()
"""In a slot without a sample."""
_IN_ROW = _Mark()
_ABSENT = _Mark()


class Columns:
    """Values of `n_slots` slots. A slot without any is padding.

    Holding every decoded array until the last one is there costs fresh memory for each (a third of the time of
    decoding a photo); moved into its row, or decoded there, one array's memory serves for the next. A row holds
    anything until a value is put into it.
    """

    def __init__(self, n_slots: int, allocate: Allocate = np.empty) -> None:
        self._n_slots, self._allocate = n_slots, allocate
        self._rows: dict[str, np.ndarray] = {}
        self._values: dict[str, list[Any]] = {}
        self._names: list[tuple[str, ...] | None] = [None] * n_slots

    def __len__(self) -> int:
        return self._n_slots

    def part(self, slots: slice) -> "Columns":
        """Some of the slots, in the same memory."""
        out = Columns(0, self._allocate)
        out._names = self._names[slots]
        out._n_slots = len(out._names)
        out._rows = {field: rows[slots] for field, rows in self._rows.items()}
        out._values = {field: values[slots] for field, values in self._values.items()}
        return out

    def names(self) -> list[str]:
        """Every field, in the order in which the slots bring them up."""
        orders = dict.fromkeys(names for names in self._names if names is not None)
        return list(dict.fromkeys(name for names in orders for name in names))

    def mask(self) -> list[bool]:
        """Per slot, whether it has a sample."""
        return [names is not None for names in self._names]

    def rows(self, field: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray | None:
        """The memory [n_slots, *shape] of a field's arrays, made when it is first asked for; None where those of the
        field have another shape or dtype, or where there are none: of objects, and not in the machine's byte order."""
        rows = self._rows.get(field)
        if rows is None:
            if dtype.hasobject or not dtype.isnative:
                return None
            rows = self._rows[field] = self._allocate((self._n_slots, *shape), dtype)
        return rows if rows.shape[1:] == shape and rows.dtype == dtype else None

    def put_rows(self, field: str, slots: Sequence[int]) -> None:
        """The rows of these slots hold their values."""
        values = self._of(field)
        for slot in slots:
            values[slot] = _IN_ROW

    def put_bytes(self, field: str, slots: Sequence[int], values: Iterable[Any]) -> None:
        """Values that are no arrays."""
        own = self._of(field)
        for slot, value in zip(slots, values, strict=True):
            own[slot] = value

    def put(self, slot: int, field: str, value: Any, *, in_row: bool = False) -> None:
        """One value, which lies in its row already or, where it is a large array, is copied there."""
        self._of(field)[slot] = _IN_ROW if in_row or self._moved(field, slot, value) else value

    def put_names(self, slots: Sequence[int], names: tuple[str, ...]) -> None:
        """The fields that the samples of these slots have, in their order."""
        for slot in slots:
            self._names[slot] = names

    def whole(self, field: str) -> np.ndarray | None:
        """The field's rows, zeros at padding, where every sample's value is in its row; else None."""
        rows = self._rows.get(field)
        padded = [slot for slot, names in enumerate(self._names) if names is None]
        in_rows = [value is _IN_ROW for value in self._values[field]]
        if rows is None or sum(in_rows) + len(padded) != self._n_slots:
            return None
        for slot in padded:
            rows[slot] = 0
        return rows

    def values(self, field: str) -> list[Any]:
        """Per slot, its value; None where the sample lacks the field, PADDED where there is no sample."""
        return [
            PADDED if names is None else self._value(field, slot, value)
            for slot, (names, value) in enumerate(zip(self._names, self._values[field], strict=True))
        ]

    def _value(self, field: str, slot: int, value: Any) -> Any:
        if value is _IN_ROW:
            return self._rows[field][slot, ...]
        return None if value is _ABSENT else value

    def _of(self, field: str) -> list[Any]:
        values = self._values.get(field)
        if values is None:
            values = self._values[field] = [_ABSENT] * self._n_slots
        return values

    def _moved(self, field: str, slot: int, value: Any) -> bool:
        if type(value) is not np.ndarray or value.nbytes < _WORTH_MOVING_BYTES:
            return False
        rows = self.rows(field, value.shape, value.dtype)
        if rows is None:
            return False
        rows[slot] = value
        return True


class Room:
    """One row of the columns: offered to decoders for what they decode, and filled."""

    def __init__(self, columns: Columns, row: int) -> None:
        self._columns, self._row = columns, row
        self._given: dict[str, np.ndarray] = {}

    def place_of(self, field: str) -> Place:
        """Where a decoder may put its value of a field."""

        def place(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray | None:
            rows = self._columns.rows(field, shape, dtype)
            if rows is None:
                return None
            self._given[field] = rows[self._row, ...]  # also of rank 0 an array, not a number
            return self._given[field]

        return place

    def put(self, sample: Mapping[str, Any], names: tuple[str, ...]) -> None:
        """Values of a sample whose fields are `names`; of other fields they are there already."""
        for field, value in sample.items():
            there = field in self._given and value is self._given[field]  # (the value may be None)
            self._columns.put(self._row, field, value, in_row=there)
        self._columns.put_names([self._row], names)
