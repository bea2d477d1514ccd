"""Any other value by type, shape, dtype and first bytes, so that no field is invisible."""

from typing import Any

import numpy as np

from ...units import size
from .array_values import shape_of
from .kind import Facts, Kind, Mark, mark
from .text import bounded, hex_lines

MAX_BYTES = 64
"""Most bytes shown."""


def fits(value: Any, facts: Facts) -> bool:
    return True


def lines(value: Any, facts: Facts) -> tuple[str, ...]:
    if isinstance(value, bytes | bytearray | memoryview):
        view = memoryview(value)
        start = view.cast("B") if view.c_contiguous else view.tobytes()[:MAX_BYTES]
        return f"{view.nbytes:,} bytes ({size(view.nbytes)})", *hex_lines(start, most=MAX_BYTES)
    shape = shape_of(value)
    if shape is not None:
        return bounded(shape), *hex_lines(_first_bytes(value), most=MAX_BYTES)
    kind = type(value)
    name = bounded(f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."))
    if isinstance(value, dict | list | tuple | set | frozenset):
        return (f"{name}, {len(value):,} items",)
    return (name,)


def marks(value: Any, facts: Facts) -> tuple[Mark, ...]:
    empty = isinstance(value, bytes | bytearray | memoryview) and not memoryview(value).nbytes
    return (mark("empty", "no bytes"),) if empty else ()


def _first_bytes(value: object) -> bytes:
    if not isinstance(value, np.ndarray | np.generic):
        return b""
    array = np.asarray(value)
    return b"" if array.dtype.hasobject else array.flat[:MAX_BYTES].tobytes()


OTHER = Kind(name="other", fits=fits, lines=lines, marks=marks)
