"""Tensors and arrays of any library as numpy arrays, their range, and their faults."""

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
"""Values that are looked at together: few enough to stay in a core's cache."""
CHUNK_BYTES = 2**20
"""Values of uint8 that are counted together: each is read once."""
MAX_EXAMINED = 2**24
"""Values whose range is told; of a larger array the first."""
MAX_CONVERTED = 2**28
"""Values that are copied into a dtype of numpy's own; a larger array is shown by its shape alone."""

Array = np.ndarray[Any, np.dtype[Any]]


def as_array(value: object) -> Array | None:
    """Return numbers or truth values as an array of a dtype of numpy's own; None for all other values.

    bfloat16 and float8 become float32, which holds each of their values. Memory is shared where it can be.
    """
    array = _of_torch(value) if _is_tensor(value) else _of_numpy(value)
    if array is None or array.dtype.kind not in "biufc":
        return None
    return array


def shape_of(value: object) -> str | None:
    """Return such as 'float32 [3, 224, 224]' of an array or tensor of any dtype; None for all other values."""
    if not (_is_tensor(value) or isinstance(value, np.ndarray | np.generic)):
        return None
    array: Any = value
    shape, dtype = tuple(array.shape), str(array.dtype).removeprefix("torch.")
    if len(dtype) > 60:
        dtype = f"{dtype[:59]}…"
    return f"{dtype} {list(shape)}"


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _of_numpy(value: object) -> Array | None:
    if not isinstance(value, np.ndarray | np.generic):
        return None
    array = np.asarray(value)
    if array.dtype.type.__module__ != "ml_dtypes":
        return array
    return array.astype(np.float32) if array.size <= MAX_CONVERTED else None


def _of_torch(value: Any) -> Array | None:
    torch = sys.modules["torch"]
    if value.layout != torch.strided or value.is_meta or value.is_quantized:
        return None
    own = (torch.float16, torch.float32, torch.float64)
    if value.is_floating_point() and value.dtype not in own:
        if value.numel() > MAX_CONVERTED:
            return None
        value = value.float()
    found: Array = value.detach().cpu().resolve_conj().resolve_neg().numpy()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Range of the values of an array. Complex numbers count by their magnitude."""

    low: float
    """Least finite value; NaN where there is none."""
    high: float
    """Largest finite value; NaN where there is none."""
    mean: float
    """Mean of the finite values; NaN where there is none."""
    deviation: float
    """Standard deviation of the finite values; NaN where there is none."""
    nan: int
    """Values that are NaN."""
    infinite: int
    """Values that are infinite."""
    examined: int
    """Values looked at: all, or the first MAX_EXAMINED."""
    counts: tuple[int, ...] = ()
    """Number of values that are 0, 1 ... 255, of uint8; empty for other dtypes."""

    @property
    def finite(self) -> int:
        """Values that are finite."""
        return self.examined - self.nan - self.infinite


_Known = dict[tuple[object, ...], tuple[Array, Range]]
_known: ContextVar[_Known | None] = ContextVar("penstock_ranges", default=None)


@contextmanager
def looking_once() -> Iterator[None]:
    """Go through the values of an array once in this block, however many functions ask for its range.

    Arrays that are looked at are held until its end, and must not change.
    """
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def range_of(array: Array) -> Range:
    """Return the range of an array, with O(1) memory, also of one whose memory is repeated."""
    known = _known.get()
    if known is None:
        return _range_of(array)
    # Axes in another order are the same values, in the order of `chunks_of`.
    axes = sorted(zip(array.strides, array.shape, strict=True))
    key = array.__array_interface__["data"][0], array.dtype.str, *axes
    if key not in known:
        known[key] = array, _range_of(array)
    return known[key][1]


def _range_of_bytes(array: Array) -> Range:
    """Return the range of uint8 by the number of each value: its sums are whole numbers, without a rounding."""
    from PIL import Image

    counts, first = np.zeros(256, np.int64), 0
    for at, chunk in enumerate(chunks_of(array, CHUNK_BYTES)):
        first = first if at else int(chunk[0])
        counts += Image.frombuffer("L", (chunk.size, 1), chunk, "raw", "L", 0, 1).histogram()
    n, values = int(counts.sum()), np.arange(256)
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


def _range_of(array: Array) -> Range:
    if array.dtype == np.uint8 and array.size:
        return _range_of_bytes(array)
    low, high, first, total, squares = np.inf, -np.inf, 0.0, 0.0, 0.0
    nan = finite = examined = 0
    for chunk in chunks_of(array):
        examined += chunk.size
        least, largest = chunk.min(), chunk.max()
        if not (
            np.isfinite(least) and np.isfinite(largest)
        ):  # NaN is the least and the largest of any values
            nan += int(np.isnan(chunk).sum())
            chunk = chunk[np.isfinite(chunk)]
            if not chunk.size:
                continue
            least, largest = chunk.min(), chunk.max()
        low, high = min(low, least.item()), max(high, largest.item())
        wide = chunk.astype(np.float64)
        first = first if finite else float(wide[0])
        finite += chunk.size
        with np.errstate(over="ignore", invalid="ignore"):
            wide -= first  # squares of numbers near one another, far from 0, would cancel out
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


def chunks_of(array: Array, n: int = CHUNK_VALUES) -> Iterator[Array]:
    """Yield MAX_EXAMINED values at most in flat pieces of `n`, in the order in which they lie in memory.

    Complex numbers come by their magnitude, truth values as uint8.
    """
    back = tuple(slice(None, None, -1 if stride < 0 else 1) for stride in array.strides)
    array = array[back].transpose(np.argsort([-abs(stride) for stride in array.strides], kind="stable"))
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
    for start in range(0, min(array.size, MAX_EXAMINED), n):
        chunk = flat[start : min(start + n, MAX_EXAMINED)]
        if chunk.dtype.kind == "c":
            chunk = np.abs(chunk)
        yield chunk.view(np.uint8) if chunk.dtype == np.bool_ else chunk


def limits_of(array: Array) -> tuple[float, float, bool]:
    """Return (least, largest, whether all are finite) of the finite values; (nan, nan, ...) where there is none.

    Quicker than `range_of`, which also counts.
    """
    if _known.get() is not None:  # it is asked for the range too
        found = range_of(array)
        return found.low, found.high, not (found.nan or found.infinite)
    low, high, sound = np.inf, -np.inf, True
    for chunk in chunks_of(array):
        least, largest = chunk.min(), chunk.max()
        if not (np.isfinite(least) and np.isfinite(largest)):
            sound = False
            chunk = chunk[np.isfinite(chunk)]
            if not chunk.size:
                continue
            least, largest = chunk.min(), chunk.max()
        low, high = min(low, least.item()), max(high, largest.item())
    return (low, high, sound) if low <= high else (np.nan, np.nan, sound)


def told(value: float) -> str:
    """Return a number in few letters, also one that is not finite."""
    return number(value) if np.isfinite(value) else str(value)


def array_lines(value: object, array: Array) -> tuple[str, ...]:
    """Return shape and dtype, then range, mean and deviation."""
    shape = shape_of(value) or f"{array.dtype} {list(array.shape)}"
    if not array.size:
        return (f"{shape}, no values",)
    found = range_of(array)
    lines = [shape]
    if found.finite:
        lines.append(
            f"from {told(found.low)} to {told(found.high)}, mean {told(found.mean)}, "
            f"deviation {told(found.deviation)}"
        )
    if found.nan or found.infinite:
        lines.append(f"{found.nan:,} NaN and {found.infinite:,} infinite of {found.examined:,} values")
    if found.examined < array.size:
        lines.append(f"the first {found.examined:,} of {array.size:,} values were looked at")
    return tuple(lines)


def array_marks(array: Array, found: Range) -> tuple[Mark, ...]:
    """Return the marks that hold for any array of this range: no values, NaN, infinite, constant."""
    if not array.size:
        return (mark("empty", f"no values: shape {list(array.shape)}"),)
    out = []
    if found.nan:
        out.append(mark("nan", f"{found.nan:,} of {found.examined:,} values are NaN"))
    if found.infinite:
        out.append(mark("infinite", f"{found.infinite:,} of {found.examined:,} values are infinite"))
    if found.finite == found.examined > 1 and found.low == found.high:
        out.append(mark("constant", f"all {found.examined:,} values are {told(found.low)}"))
    return tuple(out)
