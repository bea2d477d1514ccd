"""Any library's tensors and arrays as numpy, their range and faults."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...units import number
from .kind import Mark, mark

CHUNK_VALUES = 2**16
"""Values examined at a time, which stay in a core's cache."""
CHUNK_BYTES = 2**20
"""uint8 values counted at a time."""
MAX_EXAMINED = 2**24
"""Most values examined for a range, from the first on."""
MAX_CONVERTED = 2**28
"""Most values converted to a numpy dtype; of a larger array, only the shape is shown."""

Array = np.ndarray[Any, np.dtype[Any]]


def as_array(value: object) -> Array | None:
    """Return numbers or booleans as numpy, sharing memory if possible; None for other values.

    bfloat16 and float8 become float32.
    """
    array = _of_torch(value) if _is_tensor(value) else _of_numpy(value)
    if array is None or array.dtype.kind not in "biufc":
        return None
    return array


def shape_text(value: object) -> str | None:
    """Return text such as 'float32 [3, 224, 224]'; None for no array or tensor."""
    if not (_is_tensor(value) or isinstance(value, np.ndarray | np.generic)):
        return None
    array: Any = value
    shape = tuple(array.shape)
    dtype = str(array.dtype).removeprefix("torch.")
    if len(dtype) > 60:
        dtype = f"{dtype[:59]}…"
    return f"{dtype} {list(shape)}"


def _is_tensor(value: object) -> bool:
    # Not imported: without torch in the process, no value can be a tensor.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _of_numpy(value: object) -> Array | None:
    if not isinstance(value, np.ndarray | np.generic):
        return None
    array = np.asarray(value)
    # JAX's bfloat16 and float8, whose kind may be V: they would not count as numbers.
    if array.dtype.type.__module__ != "ml_dtypes":
        return array
    if array.size <= MAX_CONVERTED:
        return array.astype(np.float32)
    return None


def _of_torch(value: Any) -> Array | None:
    torch = sys.modules["torch"]
    if value.layout != torch.strided or value.is_meta or value.is_quantized:
        return None
    own = (torch.float16, torch.float32, torch.float64)
    if value.is_floating_point() and value.dtype not in own:
        if value.numel() > MAX_CONVERTED:
            return None
        # numpy has no bfloat16 and float8.
        value = value.float()
    array: Array = value.detach().cpu().resolve_conj().resolve_neg().numpy()
    return array


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """An array's range; complex numbers by magnitude."""

    low: float
    """Smallest finite, or NaN."""
    high: float
    """Largest finite, or NaN."""
    mean: float
    """Mean of the finite values, or NaN."""
    deviation: float
    """Their standard deviation, or NaN."""
    nan: int
    """NaN values."""
    infinite: int
    """Infinite values."""
    examined: int
    """Values examined: all, or the first MAX_EXAMINED."""
    counts: tuple[int, ...] = ()
    """Occurrences of 0, 1 ... 255 in uint8; else empty."""

    @property
    def finite(self) -> int:
        """Finite values."""
        return self.examined - self.nan - self.infinite


_Cache = dict[tuple[object, ...], tuple[Array, Range]]
_cache: ContextVar[_Cache | None] = ContextVar("penstock_ranges", default=None)


@contextmanager
def ranges_cached() -> Iterator[None]:
    """Measure each array once in this block, which keeps the arrays alive; they must not change."""
    token = _cache.set({})
    try:
        yield
    finally:
        _cache.reset(token)


def array_range(array: Array) -> Range:
    """Return an array's range, in O(1) memory even if strides are 0."""
    cache = _cache.get()
    if cache is None:
        return _buffer_range(array)
    # The cache's key: equal memory, dtype and axes mean equal values. The cache keeps the array, so that no other
    # array takes its address. Sorted, since a transposed array has the same values, and `array_chunks` yields them in
    # the same order.
    address, _ = array.__array_interface__["data"]
    axes = sorted(zip(array.strides, array.shape, strict=True))
    key = (address, array.dtype.str, *axes)
    if key not in cache:
        cache[key] = array, _buffer_range(array)
    _, values = cache[key]
    return values


def _range_of_bytes(array: Array) -> Range:
    # The sums are exact integers.
    from PIL import Image

    counts = np.zeros(256, np.int64)
    first = 0
    for at, chunk in enumerate(array_chunks(array, CHUNK_BYTES)):
        # Sums of differences from the first value: no cancellation for bright images with little contrast.
        first = first if at else int(chunk[0])
        # Pillow's histogram takes a quarter of np.bincount's time, which makes eight bytes of each.
        counts += Image.frombuffer("L", (chunk.size, 1), chunk, "raw", "L", 0, 1).histogram()
    n = int(counts.sum())
    values = np.arange(256)
    shift, square = (float(counts @ (values - first) ** power) / n for power in (1, 2))
    there = np.flatnonzero(counts)
    return Range(
        low=int(there[0]),
        high=int(there[-1]),
        mean=first + shift,
        deviation=max(0.0, square - shift * shift) ** 0.5,
        nan=0,
        infinite=0,
        examined=n,
        counts=tuple(counts.tolist()),
    )


def _buffer_range(array: Array) -> Range:
    if array.dtype == np.uint8 and array.size:
        return _range_of_bytes(array)
    low = np.inf
    high = -np.inf
    first = 0.0
    total = 0.0
    squares = 0.0
    nan = finite = examined = 0
    for chunk in array_chunks(array):
        examined += chunk.size
        least = chunk.min()
        largest = chunk.max()
        if not (
            np.isfinite(least) and np.isfinite(largest)
        ):  # if there is a NaN, both min() and max() return NaN
            nan += int(np.isnan(chunk).sum())
            chunk = chunk[np.isfinite(chunk)]
            if not chunk.size:
                continue
            least = chunk.min()
            largest = chunk.max()
        low = min(low, least.item())
        high = max(high, largest.item())
        wide = chunk.astype(np.float64)
        first = first if finite else float(wide[0])
        finite += chunk.size
        with np.errstate(over="ignore", invalid="ignore"):
            wide -= first  # avoids cancellation for values that are far from 0 but close together
            total += float(wide.sum())
            squares += float(np.square(wide, out=wide).sum())
    shift, square = (total / finite, squares / finite) if finite else (np.nan, np.nan)
    return Range(
        low=low if finite else np.nan,
        high=high if finite else np.nan,
        mean=first + shift,
        deviation=max(0.0, square - shift * shift) ** 0.5,
        nan=nan,
        infinite=examined - nan - finite,
        examined=examined,
    )


def array_chunks(array: Array, n: int = CHUNK_VALUES) -> Iterator[Array]:
    """Yield up to MAX_EXAMINED values in flat chunks of `n`, in memory order.

    Complex numbers become magnitudes, booleans uint8.
    """
    # Reversed axes turned round and the largest stride first: values in the order of memory.
    back = tuple(slice(None, None, -1 if stride < 0 else 1) for stride in array.strides)
    array = array[back].transpose(np.argsort([-abs(stride) for stride in array.strides], kind="stable"))
    # `flat` of an array with gaps copies chunk by chunk; reshape would copy it whole.
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
    for start in range(0, min(array.size, MAX_EXAMINED), n):
        chunk = flat[start : min(start + n, MAX_EXAMINED)]
        if chunk.dtype.kind == "c":
            chunk = np.abs(chunk)
        yield chunk.view(np.uint8) if chunk.dtype == np.bool_ else chunk


def finite_limits(array: Array) -> tuple[float, float, bool]:
    """Return (smallest and largest finite value or NaN, whether all are finite)."""
    if _cache.get() is not None:  # the caller will need the range as well
        values = array_range(array)
        return values.low, values.high, not (values.nan or values.infinite)
    low = np.inf
    high = -np.inf
    finite = True
    for chunk in array_chunks(array):
        least = chunk.min()
        largest = chunk.max()
        if not (np.isfinite(least) and np.isfinite(largest)):
            finite = False
            chunk = chunk[np.isfinite(chunk)]
            if not chunk.size:
                continue
            least = chunk.min()
            largest = chunk.max()
        low = min(low, least.item())
        high = max(high, largest.item())
    if low <= high:
        return (low, high, finite)
    return (np.nan, np.nan, finite)


def number_text(value: float) -> str:
    """Return a number as short text, also if it is not finite."""
    return number(value) if np.isfinite(value) else str(value)


def array_lines(value: object, array: Array) -> tuple[str, ...]:
    """Return shape and dtype, then range, mean and standard deviation."""
    shape = shape_text(value) or f"{array.dtype} {list(array.shape)}"
    if not array.size:
        return (f"{shape}, no values",)
    values = array_range(array)
    lines = [shape]
    if values.finite:
        lines.append(
            f"from {number_text(values.low)} to {number_text(values.high)}, mean {number_text(values.mean)}, "
            f"deviation {number_text(values.deviation)}"
        )
    if values.nan or values.infinite:
        lines.append(f"{values.nan:,} NaN and {values.infinite:,} infinite of {values.examined:,} values")
    if values.examined < array.size:
        lines.append(f"the first {values.examined:,} of {array.size:,} values were examined")
    return tuple(lines)


def array_marks(array: Array, values: Range) -> tuple[Mark, ...]:
    if not array.size:
        return (mark("empty", f"no values: shape {list(array.shape)}"),)
    out = []
    if values.nan:
        out.append(mark("nan", f"{values.nan:,} of {values.examined:,} values are NaN"))
    if values.infinite:
        out.append(mark("infinite", f"{values.infinite:,} of {values.examined:,} values are infinite"))
    if values.finite == values.examined > 1 and values.low == values.high:
        out.append(mark("constant", f"all {values.examined:,} values are {number_text(values.low)}"))
    return tuple(out)
