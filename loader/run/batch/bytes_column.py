"""Columns of byte strings in one block of memory, and short text that describes any column."""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from ...order.random.keyed_permutation import I64


class BytesColumn(Sequence[bytes]):
    """One byte string per slot, b"" at padding: a sequence of `bytes` that equals a list of the same.

    Each item is a copy. `view` returns an item without copying it, which keeps the whole memory alive.
    """

    __slots__ = ("_begin", "_memory", "_sizes")

    def __init__(self, memory: np.ndarray, begin: I64, sizes: I64) -> None:
        """Keep the arrays. memory: uint8 [any]. begin, sizes: int64 [slots], in bytes."""
        self._memory, self._begin, self._sizes = memory, begin, sizes

    @property
    def nbytes(self) -> int:
        """Total size of the items in bytes."""
        return int(self._sizes.sum())

    def view(self, slot: int) -> memoryview:
        """Return a slot's bytes in place, read-only. Raises: IndexError."""
        begin = int(self._begin[slot])
        return self._memory.data[begin : begin + int(self._sizes[slot])].toreadonly()

    def parts(self) -> tuple[np.ndarray, I64, I64]:
        """Return (memory, begin, sizes)."""
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
        for begin, size in zip(self._begin.tolist(), self._sizes.tolist(), strict=True):
            yield bytes(data[begin : begin + size])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BytesColumn | list):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment] # as of a list

    def __repr__(self) -> str:
        return f"BytesColumn({len(self)} items, {self.nbytes} bytes)"

    def __reduce__(self) -> tuple[Any, ...]:
        return _of, (list(self),)


def _of(items: Sequence[bytes]) -> BytesColumn:
    sizes = np.array([len(one) for one in items], np.int64)
    return BytesColumn(np.frombuffer(b"".join(items), np.uint8), np.cumsum(sizes) - sizes, sizes)


def shown(column: Any) -> str:
    """Return a short text: "float32 [256, 3, 64, 64] on cuda:0", "list of 256 uint8 [*, *, 3]".

    A * stands for a dimension that differs among a list's arrays.
    """
    if isinstance(column, BytesColumn):
        return f"list of {len(column)} bytes"
    if not isinstance(column, list):
        return f"{_kind(column)} {_sizes([column])}{_place([column])}" if _is_array(column) else _kind(column)
    if not column:
        return "list of 0"
    kinds = " or ".join(dict.fromkeys(map(_kind, column)))
    one_rank = all(map(_is_array, column)) and len({len(value.shape) for value in column}) == 1
    return f"list of {len(column)} {kinds}" + (f" {_sizes(column)}" if one_rank else "") + _place(column)


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _kind(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.") if _is_array(value) else type(value).__name__


def _place(values: list[Any]) -> str:
    tensors = [value for value in values if _is_array(value) and str(value.dtype).startswith("torch.")]
    devices = dict.fromkeys(str(tensor.device) for tensor in tensors if tensor.device.type != "cpu")
    return f" on {' and '.join(devices)}" if devices else ""


def _sizes(arrays: list[Any]) -> str:
    sizes = [set(of_axis) for of_axis in zip(*(tuple(array.shape) for array in arrays), strict=True)]
    return f"[{', '.join(str(*shape) if len(shape) == 1 else '*' for shape in sizes)}]"
