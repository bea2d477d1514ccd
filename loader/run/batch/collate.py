"""Collate the values of a batch's columns into fields, one array or list each, and a mask."""

from typing import Any

import numpy as np

from ...errors import InvalidRuntime
from .columns import PADDED, Columns
from .frameworks import FRAMEWORKS, as_framework, find_torch
from .nested_values import list_column

_INT64 = np.iinfo(np.int64)
_EXACT_FLOAT = 2**53  # float64 holds every integer up to here


def collate(columns: Columns, framework: str, *, like: Columns | None = None) -> tuple[dict[str, Any], Any]:
    """Return (fields, mask) of a batch; field names are in the order in which samples introduce them.

    framework: one of FRAMEWORKS. like: one slot with a sample; a batch of padding takes its fields and shapes.

    The mask is bool [slots], True at real slots: a tensor for torch, an array on the device for jax. A field's values
    become:

    - one array [slots, ...] of native byte order, if all are arrays of one shape and dtype (numpy scalars have rank 0).
      For torch it is a tensor, or an array if torch lacks the dtype;
    - bool, int64 or float64 [slots], if all are bool, int within int64, or int and float;
    - torch.stack, if all are tensors of one shape and dtype (torch only);
    - otherwise a list, whose arrays become torch's or jax's. It holds None for a sample that lacks the field.

    A padded slot is zeros in an array; in a list "" or b"" among str or bytes, else None.

    Raises: InvalidRuntime (another framework; a number that jax would change); MissingDependency.
    """
    if framework not in FRAMEWORKS:
        message = f"framework={framework!r}; accepted: {', '.join(map(repr, FRAMEWORKS))}"
        raise InvalidRuntime(message, what="framework", given=framework, accepted=list(FRAMEWORKS))
    return as_framework(*gather_columns(columns, framework, like=like), framework)


def gather_columns(
    columns: Columns, framework: str, *, like: Columns | None = None
) -> tuple[dict[str, Any], np.ndarray]:
    """Return `collate` as numpy arrays, without importing the framework; torch, if imported, stacks its tensors."""
    torch = find_torch(framework)
    mask = columns.mask()
    names = columns.names()
    if not names:  # a batch of padding
        if like is None:
            return {}, mask
        return _padding_fields(len(columns), like, torch), mask
    fields: dict[str, Any] = {}
    for name in names:
        whole = columns.whole(name)
        if whole is not None:
            fields[name] = whole
            continue
        values = columns.values(name)
        examples = [value for value in values if value is not PADDED]
        fields[name] = _field(values, examples, torch, is_list=name in columns.list_fields)
    return fields, mask


def _padding_fields(n_slots: int, like: Columns, torch: Any) -> dict[str, Any]:
    """Return `n_slots` slots of padding per field, with the fields and shapes of `like`."""
    padding = [PADDED] * n_slots
    fields: dict[str, Any] = {}
    for name in like.names():
        fields[name] = _field(padding, like.values(name), torch, is_list=name in like.list_fields)
    return fields


def collate_field(values: list[Any], examples: list[Any], framework: str) -> Any:
    """Return one field's column as `collate` makes it. examples: its values at real slots, at least one."""
    return _field(values, examples, find_torch(framework))


def padding_value(kinds: set[type]) -> Any:
    """Return the value of a padded slot in a list of values of these types."""
    if kinds == {bytes}:
        return b""
    if kinds == {str}:
        return ""
    return None


def _field(values: list[Any], examples: list[Any], torch: Any, *, is_list: bool = False) -> Any:
    if is_list:
        return list_column(values, examples)
    first = examples[0]
    kinds = set(map(type, examples))
    if isinstance(first, np.ndarray | np.generic):
        if _alike(examples, np.ndarray | np.generic) and not first.dtype.hasobject:
            return _stack(values, first.shape, first.dtype.newbyteorder("="))
    elif torch is not None and isinstance(first, torch.Tensor):
        if _alike(examples, torch.Tensor):
            return torch.stack(_pad(values, torch.zeros_like(first)))
    else:
        dtype = _number_dtype(examples, kinds)
        if dtype is not None:
            return _stack(values, (), dtype)
    return _pad(values, padding_value(kinds))


def _pad(values: list[Any], padding: Any) -> list[Any]:
    return [padding if value is PADDED else value for value in values]


def _alike(values: list[Any], kinds: Any) -> bool:
    """Return whether all values are of these classes and of one shape and dtype."""
    first = values[0]
    for value in values:
        if not isinstance(value, kinds):
            return False
        if value.shape != first.shape or value.dtype != first.dtype:
            return False
    return True


def _number_dtype(values: list[Any], kinds: set[type]) -> np.dtype[Any] | None:
    if kinds == {bool}:
        return np.dtype(np.bool_)
    if kinds == {int} and all(_INT64.min <= value <= _INT64.max for value in values):
        return np.dtype(np.int64)
    if float not in kinds or not kinds <= {int, float}:
        return None
    if all(abs(value) <= _EXACT_FLOAT for value in values if type(value) is int):
        return np.dtype(np.float64)
    return None


def _stack(values: list[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    out = np.empty((len(values), *shape), dtype)
    for slot, value in enumerate(_pad(values, np.zeros((), dtype))):
        out[slot] = value
    return out
