"""Short texts of a batch's columns, for its repr."""

from typing import Any

from .columns import BytesColumn


def column_text(column: Any) -> str:
    """Return a short text: "float32 [256, 3, 64, 64] on cuda:0", "list of 256 uint8 [*, *, 3]"."""
    if isinstance(column, BytesColumn):
        return f"list of {len(column)} bytes"
    if not isinstance(column, list):
        text = _kind(column)
        if _is_array(column):
            text += _sizes([column])
            text += _devices([column])
        return text
    if not column:
        return "list of 0"
    kinds = dict.fromkeys(map(_kind, column))
    text = f"list of {len(column)} {' or '.join(kinds)}"
    if all(map(_is_array, column)):
        ranks = {len(value.shape) for value in column}
        if len(ranks) == 1:
            text += _sizes(column)
    text += _devices(column)
    return text


def _is_array(value: Any) -> bool:
    if not hasattr(value, "dtype"):
        return False
    return hasattr(value, "shape")


def _kind(value: Any) -> str:
    if not _is_array(value):
        return type(value).__name__
    dtype = str(value.dtype)
    return dtype.removeprefix("torch.")


def _devices(values: list[Any]) -> str:
    devices: dict[str, None] = {}
    for value in values:
        if not _is_array(value):
            continue
        dtype = str(value.dtype)
        if not dtype.startswith("torch."):  # an array of numpy has no device
            continue
        if value.device.type != "cpu":
            name = str(value.device)
            devices[name] = None
    if not devices:
        return ""
    names = " and ".join(devices)
    return f" on {names}"


def _sizes(arrays: list[Any]) -> str:
    """Return the size of each axis, "*" where the arrays differ."""
    shapes = [tuple(array.shape) for array in arrays]
    texts = []
    for sizes in zip(*shapes, strict=True):
        text = "*"
        if len(set(sizes)) == 1:
            text = str(sizes[0])
        texts.append(text)
    return f" [{', '.join(texts)}]"
