"""Samples to one batch: equal shapes become one array or tensor, anything else a list."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import InvalidRuntime, MissingDependency
from .jax_arrays import to_jax

FRAMEWORKS = ("torch", "numpy", "jax")

_INT64 = np.iinfo(np.int64)
_WORTH_MOVING_BYTES = 4096  # smaller arrays cost less to hold than to look after


class _Padded:
    """Stands in a field's values for a slot without a sample."""


_PADDED = _Padded()

Allocate = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]
"""(shape, dtype) -> an array of any content."""


class _Rows(np.ndarray):
    """A batch's memory for one field. A type of its own, so that nobody else's array is taken for it."""


class BatchRows:
    """Puts arrays into their rows of the batch as soon as they are there; `collate` then finds them stacked.

    Holding every decoded array until the last one is there costs fresh memory for each (a third of the time of
    decoding a photo); this way one array's memory serves for the next.
    """

    def __init__(self, n_slots: int, allocate: Allocate = np.empty) -> None:
        self._n_slots, self._allocate = n_slots, allocate
        self._rows: dict[str, _Rows] = {}

    def __len__(self) -> int:
        return self._n_slots

    def take(self, slot: int, sample: Mapping[str, Any]) -> dict[str, Any]:
        """The sample, its arrays moved into row `slot`; one of another shape than its field's first stays."""
        return {name: self._placed(name, slot, value) for name, value in sample.items()}

    def _placed(self, name: str, slot: int, value: Any) -> Any:
        if type(value) is not np.ndarray or value.nbytes < _WORTH_MOVING_BYTES or value.dtype.hasobject:
            return value
        rows = self._rows.get(name)
        if rows is None:
            rows = self._allocate((self._n_slots, *value.shape), value.dtype.newbyteorder("=")).view(_Rows)
            self._rows[name] = rows
        if rows.shape[1:] != value.shape or rows.dtype != value.dtype:
            return value
        rows[slot] = value
        return rows[slot].view(np.ndarray)


def collate(
    samples: Sequence[Mapping[str, Any] | None], framework: str, *, like: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], Any]:
    """(fields, mask) of a batch; field names in the order in which the samples bring them up.

    samples: one mapping field -> value per slot, None for a padded slot. framework: one of FRAMEWORKS. like:
    a sample to take fields and shapes from when every slot is padded; without it such a batch has no fields.
    mask: bool [slots], True at real slots; a tensor for torch, an array on the device for jax.

    A field's values become
    - one array [slots, ...] where all are arrays of one shape and dtype (numpy scalars count as rank 0), in
      native byte order; each value is copied once. A tensor for torch, or still an array where torch has no
      such dtype;
    - bool, int64 or float64 [slots] where all are bool, int within int64, or int and float;
    - torch.stack of them where all are tensors of one shape and dtype (torch only);
    - otherwise a list, where torch and jax get its arrays as their own. A field that a sample lacks (mixed
      sources may have different fields) is None there, which makes it a list.
    A padded slot is zeros in an array, and in a list "" or b"" among str or bytes, else None.

    Raises: InvalidRuntime (another framework; a number that jax would change); MissingDependency (torch or jax
    is not installed).
    """
    if framework not in FRAMEWORKS:
        raise InvalidRuntime(f"framework={framework!r}; accepted: {', '.join(map(repr, FRAMEWORKS))}")
    return as_framework(*gathered(samples, framework, like=like), framework)


def gathered(
    samples: Sequence[Mapping[str, Any] | None], framework: str, *, like: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], np.ndarray]:
    """`collate` up to the framework, which is not imported: its arrays are numpy's. (Tensors in the samples, which only
    somebody who imported torch can have made, are stacked for torch.)"""
    torch = sys.modules.get("torch") if framework == "torch" else None
    torch = torch if hasattr(torch, "Tensor") else None  # another thread may be in the middle of importing it
    real = [sample for sample in samples if sample is not None]
    examples = real or ([] if like is None else [like])
    fields: dict[str, Any] = {}
    for name in dict.fromkeys(name for sample in examples for name in sample):
        values = [_PADDED if sample is None else sample.get(name) for sample in samples]
        fields[name] = _field(values, [sample.get(name) for sample in examples], torch)
    return fields, np.array([sample is not None for sample in samples], bool)


def as_framework(fields: Mapping[str, Any], mask: np.ndarray, framework: str) -> tuple[dict[str, Any], Any]:
    """What `gathered` gave, with its arrays as the framework's own over the same memory. Raises: as `collate`."""
    if framework == "jax":
        return {name: to_jax(name, values) for name, values in fields.items()}, to_jax("mask", mask)
    if framework == "numpy":
        return dict(fields), mask
    torch = _torch()
    return {name: _torch_field(values, torch) for name, values in fields.items()}, torch.from_numpy(mask)


def _field(values: list[Any], examples: list[Any], torch: Any) -> Any:
    """`values` with padding as one array, stack of tensors or list; `examples`, at least one, are those without it."""
    first = examples[0]
    if isinstance(first, np.ndarray | np.generic):
        if _alike(examples, np.ndarray | np.generic) and not first.dtype.hasobject:
            return _stacked(values, first.shape, first.dtype.newbyteorder("="))
    elif torch is not None and isinstance(first, torch.Tensor):
        if _alike(examples, torch.Tensor):
            return torch.stack([torch.zeros_like(first) if value is _PADDED else value for value in values])
    else:
        dtype = _number_dtype(examples)
        if dtype is not None:
            return _stacked(values, (), dtype)
    kind = type(first)
    blank = kind() if kind in (str, bytes) and all(type(value) is kind for value in examples) else None
    return [blank if value is _PADDED else value for value in values]


def _alike(values: list[Any], kinds: Any) -> bool:
    """All of these kinds, of one shape and one dtype."""
    first = values[0]
    return all(
        isinstance(value, kinds) and value.shape == first.shape and value.dtype == first.dtype
        for value in values
    )


def _number_dtype(values: list[Any]) -> np.dtype[Any] | None:
    """What holds these Python numbers; None where they are something else, or ints beyond int64."""
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return np.dtype(np.bool_)
    if kinds == {int} and all(_INT64.min <= value <= _INT64.max for value in values):
        return np.dtype(np.int64)
    if (
        kinds <= {int, float}
        and float in kinds
        and all(abs(value) <= 2**53 for value in values if type(value) is int)
    ):
        return np.dtype(np.float64)
    return None


def _stacked(values: list[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """One allocation, one copy of each value; zeros at padded slots."""
    rows = _rows_under(values)
    if rows is not None:
        for slot, value in enumerate(values):
            if value is _PADDED:
                rows[slot] = 0
        return rows
    out = np.empty((len(values), *shape), dtype)
    zero = np.zeros((), dtype)
    for slot, value in enumerate(values):
        out[slot] = zero if value is _PADDED else value
    return out


def _rows_under(values: list[Any]) -> np.ndarray | None:
    """The memory in which `BatchRows` has stacked these very values, slot by slot; None when it has not."""
    base = next((_owner(value) for value in values if isinstance(value, np.ndarray)), None)
    if base is None or len(base) != len(values):
        return None
    start, stride = base.ctypes.data, base.strides[0]
    for slot, value in enumerate(values):
        if value is not _PADDED and (_owner(value) is not base or value.ctypes.data != start + slot * stride):
            return None
    return base.view(np.ndarray)


def _owner(value: Any) -> "_Rows | None":
    """The batch's memory that a value is a row of. (numpy keeps the subclass's own view in between.)"""
    between = value.base if isinstance(value, np.ndarray) else None
    return between.base if type(between) is _Rows and type(between.base) is _Rows else None


def _torch_field(value: Any, torch: Any) -> Any:
    """A field for torch, which takes neither read-only memory, negative strides nor foreign byte order."""
    if isinstance(value, list):
        return [_torch_field(item, torch) if isinstance(item, np.ndarray) else item for item in value]
    if not isinstance(value, np.ndarray) or value.dtype.hasobject:
        return value
    array = np.require(value, value.dtype.newbyteorder("="), ["C", "W"])
    try:
        return torch.from_numpy(array)
    except TypeError:
        return array  # torch has no such dtype


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingDependency(
            "framework='torch' needs torch, which is not installed: pip install 'penstock[torch]'. "
            "framework='numpy' needs nothing"
        ) from error
    return torch
