"""Arrays of torch and JAX, which are imported only when a batch needs them."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...errors import InvalidRuntime, MissingDependency

NANOSECONDS = ("anchor_ns", ".age_ns")
"""Endings of the fields with the times of windows."""
FRAMEWORKS = ("torch", "numpy", "jax")

_FITTING = "call jax.config.update('jax_enable_x64', True) before the first batch, or let a transform return what fits"


def as_framework(fields: Mapping[str, Any], mask: np.ndarray, framework: str) -> tuple[dict[str, Any], Any]:
    """Return the fields and mask of `gather_columns` as the framework's arrays, in the same memory."""
    if framework == "jax":
        arrays = {name: to_jax(name, values) for name, values in fields.items()}
        jax_mask = to_jax("mask", mask)
        return arrays, jax_mask
    if framework == "numpy":
        return dict(fields), mask
    torch = _torch()
    tensors = {name: _torch_field(values, torch) for name, values in fields.items()}
    torch_mask = torch.from_numpy(mask)
    return tensors, torch_mask


def to_jax(name: str, value: Any, device: Any = None) -> Any:
    """Return a field's value with its numpy arrays on a JAX device or sharding; None is JAX's default device.

    Dtypes that JAX lacks (strings, dates) stay numpy. While JAX is limited to 32 bits, 64-bit numbers are rounded to 32
    as JAX does. Times of windows (`anchor_ns`, `<field>.age_ns`) then stay numpy: 32 bits hold two seconds of
    nanoseconds.

    Raises: InvalidRuntime for numbers that 32 bits cannot hold, which JAX would wrap silently or make infinite;
    MissingDependency if jax is missing.
    """
    if isinstance(value, list):
        return _convert_arrays(value, lambda array: to_jax(name, array, device))
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
        return value
    jax = _jax()
    dtype = jax.dtypes.canonicalize_dtype(value.dtype)
    if dtype != value.dtype and name.endswith(NANOSECONDS):
        return value
    if dtype != value.dtype:
        value = _narrow(name, value, dtype)
    return jax.device_put(value, device)


def _narrow(name: str, value: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    with np.errstate(over="ignore"):  # numpy would warn of values that become infinite, which `lost` finds
        narrow = value.astype(dtype)
    if value.dtype.kind in "iu":
        lost = narrow != value
    else:
        lost = np.isfinite(narrow) != np.isfinite(value)
    if lost.any():
        lost_values = value[lost]
        first = lost_values.flat[0]
        message = f"field {name!r} holds {first!r}, which is not {dtype}, and JAX would change it; {_FITTING}"
        raise InvalidRuntime(message, what=name, given=first, accepted=str(dtype))
    return narrow


def _missing(name: str) -> MissingDependency:
    message = (
        f"framework={name!r} needs {name}, which is not installed: pip install 'penstock-data[{name}]'. "
        "framework='numpy' needs nothing"
    )
    return MissingDependency(message, what=name)


def _jax() -> Any:
    try:
        import jax
    except ImportError as error:
        raise _missing("jax") from error
    return jax


def find_torch(framework: str) -> Any:
    """Return torch for this framework if it is imported, else None."""
    if framework != "torch":
        return None
    torch = sys.modules.get("torch")
    if hasattr(torch, "Tensor"):  # otherwise another thread is importing it
        return torch
    return None


def import_framework(framework: str) -> None:
    """Raise MissingDependency if the framework is not installed."""
    if framework == "torch":
        _torch()
    elif framework == "jax":
        _jax()


def _torch_field(value: Any, torch: Any) -> Any:
    if isinstance(value, list):
        return _convert_arrays(value, lambda array: _torch_field(array, torch))
    if not isinstance(value, np.ndarray) or value.dtype.hasobject:
        return value
    array = value
    flags = value.flags
    is_as_torch_needs = flags.c_contiguous and flags.writeable and value.dtype.isnative
    if not is_as_torch_needs:
        native_dtype = value.dtype.newbyteorder("=")
        array = np.require(value, native_dtype, ["C", "W"])
    try:
        return torch.from_numpy(array)
    except TypeError:
        return array  # torch lacks this dtype


def _convert_arrays(items: list[Any], convert: Callable[..., Any]) -> list[Any]:
    """Return the items with each numpy array converted; others as they are."""
    converted = []
    for item in items:
        if isinstance(item, np.ndarray):
            item = convert(item)
        converted.append(item)
    return converted


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise _missing("torch") from error
    return torch
