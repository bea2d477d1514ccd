"""Columns of a batch: one value per slot, large arrays in the rows of its memory, byte strings in one block."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ...dataset.reading.verified_gathers import Allocate as Allocate
from ...modalities.fields import Place
from ...order.random.keyed_permutation import I64


class BytesColumn(Sequence[bytes]):
    """One byte string per slot, b"" at padding: a sequence of `bytes` that equals a list of the same.

    Each item is a copy. `view` returns an item without copying it, which keeps the whole memory alive.
    """

    __slots__ = ("_begin", "_memory", "_sizes")

    def __init__(self, memory: np.ndarray, begin: I64, sizes: I64) -> None:
        """Keep the arrays. memory: uint8 [any]. begin, sizes: int64 [slots], in bytes."""
        self._memory = memory
        self._begin = begin
        self._sizes = sizes

    @property
    def nbytes(self) -> int:
        return int(self._sizes.sum())

    def view(self, slot: int) -> memoryview:
        """Return a slot's bytes in place, read-only. Raises: IndexError."""
        begin = int(self._begin[slot])
        end = begin + int(self._sizes[slot])
        return self._memory.data[begin:end].toreadonly()

    def parts(self) -> tuple[np.ndarray, I64, I64]:
        return self._memory, self._begin, self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    @overload
    def __getitem__(self, slot: int) -> bytes: ...
    @overload
    def __getitem__(self, slot: slice) -> "BytesColumn": ...
    def __getitem__(self, slot: int | slice) -> "bytes | BytesColumn":
        if isinstance(slot, slice):
            return BytesColumn(self._memory, self._begin[slot], self._sizes[slot])
        return bytes(self.view(slot))

    def __iter__(self) -> Iterator[bytes]:
        data = self._memory.data
        # Python's numbers: indexing an array costs more than the whole copy of a short item.
        begins = self._begin.tolist()
        sizes = self._sizes.tolist()
        for begin, size in zip(begins, sizes, strict=True):
            yield bytes(data[begin : begin + size])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BytesColumn | list):
            return NotImplemented
        if len(self) != len(other):
            return False
        return all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment] # unhashable, like a list

    def __repr__(self) -> str:
        return f"BytesColumn({len(self)} items, {self.nbytes} bytes)"

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_items, (list(self),)


def _from_items(items: Sequence[bytes]) -> BytesColumn:
    lengths = [len(item) for item in items]
    sizes = np.array(lengths, np.int64)
    memory = np.frombuffer(b"".join(items), np.uint8)
    begin = np.cumsum(sizes) - sizes
    return BytesColumn(memory, begin, sizes)


_WORTH_MOVING_BYTES = 4096  # smaller arrays are cheaper to keep than to track


class _Mark:
    """Placeholder for a value."""


PADDED = _Mark()
"""Value of a slot without a sample."""
EXAMPLE = -1
"""Slot number of another rank's sample, which supplies the shapes of padding."""
_PADDING = -1


class Columns:
    """Values of `n_slots` slots. A slot without values is padding; a row is arbitrary until a value is written into it.

    If arrays are copied to their rows, or decoded there, one array's memory serves the next.

    list_fields: fields whose column is a list, even if their arrays have one shape.
    """

    def __init__(
        self,
        n_slots: int,
        allocate: Allocate = np.empty,
        list_fields: frozenset[str] = frozenset(),
    ) -> None:
        self._allocate = allocate
        self.list_fields = list_fields
        self._rows: dict[str, np.ndarray] = {}
        self._filled: dict[str, NDArray[np.bool_]] = {}  # slots whose row holds their value
        self._bytes: dict[str, BytesColumn] = {}  # byte strings in one block of memory; size -1: none
        self._values: dict[str, list[Any]] = {}  # values of other slots; None if the sample lacks the field
        self._orders: dict[tuple[str, ...], int] = {}  # sample field names, numbered in order of appearance
        self._order = np.full(n_slots, _PADDING)

    def __len__(self) -> int:
        return len(self._order)

    @property
    def allocate(self) -> Allocate:
        return self._allocate

    def parts(self, slots: Iterable[slice]) -> Iterator["Columns"]:
        """Yield the columns of each range of slots, in the same memory. The whole accepts no more values."""
        for part in slots:
            columns = Columns(0, self._allocate, self.list_fields)
            columns._order = self._order[part]
            columns._orders = self._orders
            for field, rows in self._rows.items():
                columns._rows[field] = rows[part]
            for field, is_filled in self._filled.items():
                columns._filled[field] = is_filled[part]
            for field, texts in self._bytes.items():
                columns._bytes[field] = texts[part]
            for field, values in self._values.items():
                columns._values[field] = values[part]
            yield columns

    @property
    def is_even(self) -> bool:
        """True if every slot has a sample with the same fields, and each field is in rows, bytes or text."""
        if len(self._orders) != 1 or not self.mask().all():
            return False
        (names,) = self._orders
        return all(self._is_even(name) for name in names)

    def _is_even(self, field: str) -> bool:
        if field in self._filled:
            return bool(self._filled[field].all())
        if field in self._bytes:
            _, _, sizes = self._bytes[field].parts()
            return bool((sizes >= 0).all())
        kinds = set(map(type, self._column_values(field)))
        return kinds == {bytes} or kinds == {str}

    def names(self) -> list[str]:
        """Return the fields of real slots, in the order in which samples introduce them."""
        name_lists = list(self._orders)
        is_real = self.mask()
        if len(name_lists) == 1:
            if is_real.any():
                return list(name_lists[0])
            return []
        numbers = dict.fromkeys(self._order[is_real].tolist())  # each once, in the order of slots
        names: dict[str, None] = {}
        for number in numbers:
            names.update(dict.fromkeys(name_lists[number]))
        return list(names)

    def mask(self) -> NDArray[np.bool_]:
        real: NDArray[np.bool_] = self._order != _PADDING
        return real

    def rows(self, field: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray | None:
        """Return the memory [n_slots, *shape] of a field's arrays, allocated on first use.

        None if the field already has another shape or dtype, or if the dtype is object or of foreign byte order.
        """
        rows = self._rows.get(field)
        if rows is None:
            if dtype.hasobject or not dtype.isnative:
                return None
            rows = self._rows[field] = self._allocate((len(self), *shape), dtype)
            self._filled[field] = np.zeros(len(self), bool)
        if rows.shape[1:] == shape and rows.dtype == dtype:
            return rows
        return None

    def put_rows(self, field: str, slots: Sequence[int] | I64) -> None:
        self._filled[field][slots] = True

    def put_bytes(self, field: str, slots: I64, memory: np.ndarray, begin: I64, sizes: I64) -> None:
        """Add byte strings from one block of memory. begin, sizes: int64 [slots], in bytes."""
        if field not in self._bytes:
            all_begins = np.zeros(len(self), np.int64)
            all_begins[slots] = begin
            all_sizes = np.full(len(self), -1, np.int64)
            all_sizes[slots] = sizes
            self._bytes[field] = BytesColumn(memory, all_begins, all_sizes)
            return
        # A second read for the same field, for other sources.
        own = self._column_values(field)
        read = BytesColumn(memory, begin, sizes)
        for slot, value in zip(slots.tolist(), read, strict=True):
            own[slot] = value

    def put(self, slot: int, field: str, value: Any, *, in_row: bool = False) -> None:
        """Set one value. A large array is copied to its row, unless it is already there (in_row)."""
        in_row = in_row or self._move_value(field, slot, value)
        if field in self._filled:
            self._filled[field][slot] = in_row
        if field in self._bytes:
            _, _, sizes = self._bytes[field].parts()
            sizes[slot] = -1
        if not in_row:
            self._column_values(field)[slot] = value

    def put_each(self, slots: Sequence[int], field: str, values: Sequence[Any]) -> None:
        """Set several values, each as `put` does: 0.1 us a small value instead of 0.3."""
        has_memory = field in self._filled or field in self._bytes
        # (no call per value: it would cost as much as storing one)
        is_moved = any(type(value) is np.ndarray and value.nbytes >= _WORTH_MOVING_BYTES for value in values)
        if has_memory or is_moved:
            for slot, value in zip(slots, values, strict=True):
                self.put(slot, field, value)
            return
        own = self._column_values(field)
        for slot, value in zip(slots, values, strict=True):
            own[slot] = value

    def put_names(self, slots: Sequence[int] | I64, names: tuple[str, ...]) -> None:
        next_number = len(self._orders)
        self._order[slots] = self._orders.setdefault(names, next_number)

    def replace(self, field: str, names: tuple[str, ...]) -> None:
        """Take a field's name from all samples that have it, and give these other names."""
        name_lists = list(self._orders)
        earlier = self._order.copy()
        self._orders.clear()
        for number, own in enumerate(name_lists):
            if field in own:
                others = [name for name in own if name != field]
                own = (*others, *names)
            slots = np.flatnonzero(earlier == number)
            self.put_names(slots, own)

    def whole(self, field: str) -> np.ndarray | BytesColumn | None:
        """Return the field's column if all values are in its memory, else None. Padding is zeros or b""."""
        if field in self._bytes and field not in self._filled:
            memory, begin, sizes = self._bytes[field].parts()
            if (sizes[self.mask()] < 0).any():  # -1: no bytes of this slot are in the memory
                return None
            return BytesColumn(memory, begin, np.maximum(sizes, 0))
        if field not in self._filled:
            return None
        real = self.mask()
        if not (self._filled[field] | ~real).all():
            return None
        rows = self._rows[field]
        if not real.all():
            rows[~real] = 0
        return rows

    def values(self, field: str) -> list[Any]:
        """Return each slot's value; None if the sample lacks the field, PADDED if there is no sample."""
        if field in self._bytes:
            self._list_bytes(field)
        if field not in self._filled and self.mask().all():
            return list(self._column_values(field))
        filled = [False] * len(self)
        if field in self._filled:
            filled = self._filled[field].tolist()
        out = list(self._column_values(field))
        for slot, order in enumerate(self._order.tolist()):
            if order == _PADDING:
                out[slot] = PADDED
            elif filled[slot]:
                out[slot] = self._rows[field][slot, ...]  # an array, not a number, even if the rank is 0
        return out

    def _column_values(self, field: str) -> list[Any]:
        values = self._values.get(field)
        if values is None:
            values = self._values[field] = [None] * len(self)
        return values

    def _list_bytes(self, field: str) -> None:
        column = self._bytes.pop(field)
        own = self._column_values(field)
        _, _, sizes = column.parts()
        for slot in np.flatnonzero(sizes >= 0).tolist():
            own[slot] = column[slot]

    def _move_value(self, field: str, slot: int, value: Any) -> bool:
        if type(value) is not np.ndarray or value.nbytes < _WORTH_MOVING_BYTES:
            return False
        if field in self.list_fields:
            return False
        rows = self.rows(field, value.shape, value.dtype)
        if rows is None:
            return False
        rows[slot] = value
        return True


class BatchRow:
    """Stores one sample's values in its row. Decoders may write large arrays there themselves."""

    def __init__(self, columns: Columns, row: int) -> None:
        self._columns = columns
        self._row = row
        self._lent: dict[str, np.ndarray] = {}

    def value_memory(self, field: str) -> Place:
        """Return a function that gives a decoder the row's memory for this field's array."""

        def place(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray | None:
            rows = self._columns.rows(field, shape, dtype)
            if rows is None:
                return None
            self._lent[field] = rows[self._row, ...]  # an array, not a number, even if the rank is 0
            return self._lent[field]

        return place

    def put(self, sample: Mapping[str, Any], names: tuple[str, ...]) -> None:
        """Store a sample with the fields `names`. Values that it lacks are already in the columns."""
        for field, value in sample.items():
            there = field in self._lent and value is self._lent[field]  # (the value may be None)
            self._columns.put(self._row, field, value, in_row=there)
        self._columns.put_names([self._row], names)


class FieldRows:
    """Stores one field's values row by row, each once, with little overhead.

    As a `Place` it offers the next row's memory.
    """

    __slots__ = ("_columns", "_dtype", "_field", "_filled", "_lent", "_rows", "_shape", "_values", "row")

    def __init__(self, columns: Columns, field: str) -> None:
        self._columns = columns
        self._field = field
        self.row = 0
        self._filled = list[int]()
        self._values: list[Any] | None = None
        self._lent: np.ndarray | None = None
        self._rows: np.ndarray | None = None
        self._shape: tuple[int, ...] | None = None
        self._dtype: np.dtype[Any] | None = None

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray | None:
        if shape != self._shape or dtype != self._dtype:
            self._fit(shape, dtype)
        rows = self._rows
        # `...` gives an array, not a number, even if the rank is 0.
        self._lent = None
        if rows is not None:
            self._lent = rows[self.row, ...]
        return self._lent

    def put(self, row: int, value: Any) -> None:
        if type(value) is np.ndarray:
            if value is self._lent:
                self._filled.append(row)
                return
            if value.nbytes >= _WORTH_MOVING_BYTES:
                if value.shape != self._shape or value.dtype != self._dtype:
                    self._fit(value.shape, value.dtype)
                if self._rows is not None:
                    self._rows[row] = value
                    self._filled.append(row)
                    return
        if self._values is None:
            self._values = self._columns._column_values(self._field)
        self._values[row] = value

    def finish(self) -> None:
        if self._filled:
            self._columns.put_rows(self._field, self._filled)

    def _fit(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._rows = self._columns.rows(self._field, shape, dtype)
        self._shape = shape
        self._dtype = dtype
