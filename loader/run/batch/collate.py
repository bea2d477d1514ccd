"""Samples to one batch: equal shapes become one array, tensor or `jax.Array`, anything else a list."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import InvalidRuntime, MissingDependency
from .columns import PADDED, Columns


def to_jax(name: str, value: Any, device: Any = None) -> Any:
    """Return a field's value with its numpy arrays put on a device or sharding of JAX; None is JAX's default device.

    On the default device they are uncommitted: a jitted function may move them. The value is an array [slots, ...], or
    a list, whose arrays are put one by one and whose other elements stay Python. Arrays of dtypes that JAX does not
    have (strings, dates) stay numpy. While JAX holds to 32 bits, 64-bit numbers become 32-bit ones as JAX rounds them.
    On a CPU the memory is shared where it lies on 64 bytes, else copied; on other devices the copy goes on in the
    background.

    Raises: InvalidRuntime for numbers that 32 bits do not hold, which JAX itself would wrap around in silence, or make
    infinite; MissingDependency without jax.
    """
    if isinstance(value, list):
        return [to_jax(name, item, device) if isinstance(item, np.ndarray) else item for item in value]
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
        return value
    jax = _jax()
    dtype = jax.dtypes.canonicalize_dtype(value.dtype)
    return jax.device_put(value if dtype == value.dtype else _narrowed(name, value, dtype), device)


def _narrowed(name: str, value: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the array in JAX's 32-bit dtype. Raises: InvalidRuntime where a number does not fit."""
    with np.errstate(over="ignore"):
        narrow = value.astype(dtype)
    lost = narrow != value if value.dtype.kind in "iu" else np.isfinite(narrow) != np.isfinite(value)
    if lost.any():
        raise InvalidRuntime(
            f"field {name!r} holds {value[lost].flat[0]!r}, which is no {dtype}, and JAX would change it; call "
            "jax.config.update('jax_enable_x64', True) before the first batch, or let a transform return what fits"
        )
    return narrow


def _jax() -> Any:
    try:
        import jax
    except ImportError as error:
        raise MissingDependency(
            "framework='jax' needs jax, which is not installed: pip install 'penstock-data[jax]'. framework='numpy' "
            "needs nothing"
        ) from error
    return jax


FRAMEWORKS = ("torch", "numpy", "jax")

_INT64 = np.iinfo(np.int64)


def collate(columns: Columns, framework: str, *, like: Columns | None = None) -> tuple[dict[str, Any], Any]:
    """Return (fields, mask) of a batch; field names in the order in which the samples bring them up.

    framework: one of FRAMEWORKS.
    like: one slot with a sample, to take fields and shapes from when every slot is padded. Without it such a batch has
    no fields.

    The mask is bool [slots], True at real slots: a tensor for torch, an array on the device for jax. A field's values
    become:

    - one array [slots, ...] where all are arrays of one shape and dtype (numpy scalars count as rank 0), in native byte
      order. Each value is copied once at most. It is a tensor for torch, or still an array where torch has no such
      dtype;
    - bool, int64 or float64 [slots] where all are bool, int within int64, or int and float;
    - torch.stack of them where all are tensors of one shape and dtype (torch only);
    - otherwise a list, where torch and jax get its arrays as their own. A field that a sample lacks (mixed sources may
      have different fields) is None there, which makes it a list.

    A padded slot is zeros in an array, and in a list "" or b"" among str or bytes, else None.

    Raises: InvalidRuntime (another framework; a number that jax would change); MissingDependency (torch or jax is not
    installed).
    """
    if framework not in FRAMEWORKS:
        raise InvalidRuntime(f"framework={framework!r}; accepted: {', '.join(map(repr, FRAMEWORKS))}")
    return as_framework(*gathered(columns, framework, like=like), framework)


def gathered(
    columns: Columns, framework: str, *, like: Columns | None = None
) -> tuple[dict[str, Any], np.ndarray]:
    """Return `collate` up to the framework, which is not imported: its arrays are numpy's.

    Tensors in the samples, which only somebody who imported torch can have made, are stacked for torch.
    """
    torch = _imported_torch(framework)
    mask, names = columns.mask(), columns.names()
    fields: dict[str, Any] = {}
    if not names:
        if like is not None:
            for name in like.names():
                fields[name] = _field([PADDED] * len(columns), like.values(name), torch)
        return fields, mask
    for name in names:
        whole = columns.whole(name)
        if whole is not None:
            fields[name] = whole
            continue
        values = columns.values(name)
        fields[name] = _field(values, [value for value in values if value is not PADDED], torch)
    return fields, mask


def as_framework(fields: Mapping[str, Any], mask: np.ndarray, framework: str) -> tuple[dict[str, Any], Any]:
    """Return the fields and mask of `gathered`, their arrays as the framework's, in the same memory.

    Raises: as `collate`.
    """
    if framework == "jax":
        return {name: to_jax(name, values) for name, values in fields.items()}, to_jax("mask", mask)
    if framework == "numpy":
        return dict(fields), mask
    torch = _torch()
    return {name: _torch_field(values, torch) for name, values in fields.items()}, torch.from_numpy(mask)


def _imported_torch(framework: str) -> Any:
    torch = sys.modules.get("torch") if framework == "torch" else None
    return torch if hasattr(torch, "Tensor") else None  # another thread may be in the middle of importing it


def field_of(values: list[Any], examples: list[Any], framework: str) -> Any:
    """Return the column of `gathered` of values, PADDED among them. examples: the real ones, of which there is one."""
    return _field(values, examples, _imported_torch(framework))


def padding_of(kinds: set[type]) -> Any:
    """Return the value of a padded slot in a list. kinds: types of its values."""
    return next(iter(kinds))() if kinds == {bytes} or kinds == {str} else None


def import_framework(framework: str) -> None:
    """Import the framework of batches. Raises: MissingDependency."""
    if framework == "torch":
        _torch()
    elif framework == "jax":
        _jax()


def _field(values: list[Any], examples: list[Any], torch: Any) -> Any:
    """Return padded `values` as one array, stack of tensors or list; `examples`, at least one, are the real ones."""
    first, kinds = examples[0], set(map(type, examples))
    if kinds == {bytes} or kinds == {str}:
        return [padding_of(kinds) if value is PADDED else value for value in values]
    if isinstance(first, np.ndarray | np.generic):
        if _alike(examples, np.ndarray | np.generic) and not first.dtype.hasobject:
            return _stacked(values, first.shape, first.dtype.newbyteorder("="))
    elif torch is not None and isinstance(first, torch.Tensor):
        if _alike(examples, torch.Tensor):
            return torch.stack([torch.zeros_like(first) if value is PADDED else value for value in values])
    else:
        dtype = _number_dtype(examples, kinds)
        if dtype is not None:
            return _stacked(values, (), dtype)
    return [None if value is PADDED else value for value in values]


def _alike(values: list[Any], kinds: Any) -> bool:
    """Return whether all are of these kinds, of one shape and one dtype."""
    first = values[0]
    return all(
        isinstance(value, kinds) and value.shape == first.shape and value.dtype == first.dtype
        for value in values
    )


def _number_dtype(values: list[Any], kinds: set[type]) -> np.dtype[Any] | None:
    """Return the dtype of these Python numbers of these types; None for other values, or ints beyond int64."""
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
    """Return one array of all: one allocation, one copy of each value, zeros at padded slots."""
    out = np.empty((len(values), *shape), dtype)
    zero = np.zeros((), dtype)
    for slot, value in enumerate(values):
        out[slot] = zero if value is PADDED else value
    return out


def _torch_field(value: Any, torch: Any) -> Any:
    """Return a field for torch, which takes neither read-only memory, negative strides nor foreign byte order."""
    if isinstance(value, list):
        return [_torch_field(item, torch) if isinstance(item, np.ndarray) else item for item in value]
    if not isinstance(value, np.ndarray) or value.dtype.hasobject:
        return value
    array = value
    if not (value.flags.c_contiguous and value.flags.writeable and value.dtype.isnative):
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
            "framework='torch' needs torch, which is not installed: pip install 'penstock-data[torch]'. "
            "framework='numpy' needs nothing"
        ) from error
    return torch
