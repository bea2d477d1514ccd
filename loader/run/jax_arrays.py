"""A collated batch's numpy arrays as `jax.Array`s."""

from typing import Any

import numpy as np

from ..errors import InvalidRuntime, MissingDependency


def to_jax(name: str, value: Any) -> Any:
    """A field's value with its numpy arrays put on JAX's default device, uncommitted: a jitted function may move them.

    value: an array [slots, ...], or a list, whose arrays are put one by one and whose other elements stay Python.
    dtypes that JAX does not have (strings, dates) stay numpy. While JAX holds to 32 bits, 64-bit numbers become 32-bit
    ones as JAX rounds them. On a CPU the memory is shared where it lies on 64 bytes, else copied; on other devices
    the copy goes on in the background.

    Raises: InvalidRuntime for numbers that 32 bits do not hold, which JAX itself would wrap around in silence, or make
    infinite; MissingDependency without jax.
    """
    if isinstance(value, list):
        return [to_jax(name, item) if isinstance(item, np.ndarray) else item for item in value]
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
        return value
    jax = _jax()
    dtype = jax.dtypes.canonicalize_dtype(value.dtype)
    return jax.device_put(value if dtype == value.dtype else _narrowed(name, value, dtype))


def _narrowed(name: str, value: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """The array in JAX's 32-bit dtype. Raises: InvalidRuntime where a number does not fit."""
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
            "framework='jax' needs jax, which is not installed: pip install 'penstock[jax]'. framework='numpy' "
            "needs nothing"
        ) from error
    return jax
