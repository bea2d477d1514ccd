"""Columns of a batch in a few words: dtypes and shapes, never values. No tensor leaves its device."""

from typing import Any

from .bytes_column import BytesColumn


def shown(column: Any) -> str:
    """Return the column in a few words: "float32 [256, 3, 64, 64] on cuda:0", "list of 256 uint8 [*, *, 3]".

    A * stands for a size that differs among the arrays of a list.
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
    """Return the dtype of an array; the type of any other value."""
    return str(value.dtype).removeprefix("torch.") if _is_array(value) else type(value).__name__


def _place(values: list[Any]) -> str:
    """Return the devices of tensors, " on cuda:0"; "" for the CPU, and for values that are no tensors."""
    tensors = [value for value in values if _is_array(value) and str(value.dtype).startswith("torch.")]
    devices = dict.fromkeys(str(tensor.device) for tensor in tensors if tensor.device.type != "cpu")
    return f" on {' and '.join(devices)}" if devices else ""


def _sizes(arrays: list[Any]) -> str:
    """Return the shape of arrays of one rank, a * for each size in which they differ."""
    sizes = [set(of_axis) for of_axis in zip(*(tuple(array.shape) for array in arrays), strict=True)]
    return f"[{', '.join(str(*found) if len(found) == 1 else '*' for found in sizes)}]"
