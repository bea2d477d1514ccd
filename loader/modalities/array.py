"""Decode and encode arrays: npy files without pickled objects, and flat little-endian words without a header."""

from __future__ import annotations

import ast
import io
import math
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.lib import format as npy_format

from ..errors import DecodeFailed, InvalidField
from ..native import NpyHead
from .fields import Buffer, Place, last_word, nowhere

CLOCK = ".ns.npy"
"""Ending of the field with the times of a stream."""
# Magic (6 bytes), version (2), header length (2 in format 1, 4 in formats 2 and 3).
_PREFIX_BYTES = {1: 10, 2: 12, 3: 12}
# numpy's limit: a longer header may crash the literal parser.
# For zero-size types such as S0: a 128-byte file may declare 10**12 values, copied one by one.
_MAX_WITHOUT_BYTES = 2**16
_MAX_HEADER_BYTES = 10_000
# Errors that the literal parser and the dtype and array constructors raise on invalid input.
_MALFORMED = (ValueError, LookupError, TypeError, SyntaxError, ArithmeticError, RecursionError)


class NpyLayout(NamedTuple):
    head: bytes
    """Bytes before the values."""
    shape: tuple[int, ...]
    """Length of each dimension."""
    fortran: bool
    """True for values in Fortran order."""
    dtype: np.dtype
    """Type of a value, including byte order."""
    nbytes: int
    """Bytes of the values."""


def decode(data: Buffer, rng: np.random.Generator | None = None, place: Place = nowhere) -> np.ndarray:
    """Return the stored array, C-contiguous and writable, in memory from `place` if offered.

    Raises: DecodeFailed if the bytes are not npy, have an object dtype, or are too few or too many.
    """
    view = memoryview(data)
    layout = npy_layout(view)
    try:
        if len(view) - len(layout.head) != layout.nbytes:
            raise ValueError(
                f"{layout.dtype} {list(layout.shape)} takes {layout.nbytes} bytes, got {len(view) - len(layout.head)}"
            )
        if not layout.dtype.itemsize and math.prod(layout.shape) > _MAX_WITHOUT_BYTES:
            raise ValueError(f"{math.prod(layout.shape)} values without a byte")
        order: Literal["F", "C"] = "C"
        if layout.fortran:
            order = "F"
        array = np.ndarray(layout.shape, layout.dtype, view, len(layout.head), order=order)
        out = place(layout.shape, layout.dtype)
        if out is None:
            return np.array(array, order="C", copy=True)
        out[...] = array
        return out
    except _MALFORMED as error:
        raise _refusal(error, view) from error


def _flat(word: str) -> Callable[..., np.ndarray]:
    def decode_flat(
        data: Buffer, rng: np.random.Generator | None = None, place: Place = nowhere
    ) -> np.ndarray:
        layout = field_layout(word, data)
        out = place(layout.shape, layout.dtype)
        if out is None:
            out = np.empty(layout.shape, layout.dtype)
        out[...] = np.frombuffer(data, layout.dtype, layout.shape[0])
        return out

    decode_flat.__name__ = decode_flat.__qualname__ = f"decode_{word}"  # pickles by name
    return decode_flat


FLAT = {
    word: np.dtype(f"<{word}") for word in ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]
}
globals().update({f"decode_{word}": _flat(word) for word in FLAT})


def is_array(field: str) -> bool:
    return last_word(field) in ("npy", *FLAT)


def clock_field(field: str, fields: Collection[str], facts: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the field with another's times: by its own name, a shorter one, or its fact `clock`."""
    words = field.split(".")[:-1]
    for n in range(len(words), 0, -1):
        name = ".".join(words[:n]) + CLOCK
        if name in fields:
            return name
    named = facts.get(field, {}).get("clock")
    if isinstance(named, str) and named in fields and is_array(named):
        return named
    return None


def field_layout(field: str, data: Buffer) -> NpyLayout:
    """Return the layout of an array field, stored as .npy or as bare values. Raises: DecodeFailed."""
    word = last_word(field)
    if word not in FLAT:
        return npy_layout(data)
    count, rest = divmod(len(data), FLAT[word].itemsize)
    if rest:
        raise DecodeFailed(
            f"{word}: {len(data)} bytes are not whole values of {FLAT[word].itemsize} bytes",
            what=word,
            given=len(data),
        )
    return NpyLayout(
        head=b"",
        shape=(count,),
        fortran=False,
        dtype=FLAT[word],
        nbytes=len(data),
    )


def npy_layout(data: Buffer) -> NpyLayout:
    view = memoryview(data)
    try:
        if bytes(view[:6]) != npy_format.MAGIC_PREFIX:
            raise ValueError(f"begins with {bytes(view[:6])!r}, not {npy_format.MAGIC_PREFIX!r}")
        prefix = _PREFIX_BYTES[view[6]]
        start = prefix + int.from_bytes(view[8:prefix], "little")
        if start > min(len(view), prefix + _MAX_HEADER_BYTES):
            raise ValueError(f"a header of {start - prefix} bytes")
        return _layout(bytes(view[:start]), prefix)
    except _MALFORMED as error:
        raise _refusal(error, view) from error


@lru_cache(maxsize=256)
def rows_head(field: str, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> NpyHead:
    """Return the header that `encode` writes for arrays [n, *shape], for any n; none for a field without headers."""
    if last_word(field) in FLAT:
        return b"", b"", 0
    file = io.BytesIO()
    description = {
        "descr": npy_format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": (0, *shape),
    }
    npy_format.write_array_header_1_0(file, description)
    head = file.getvalue()
    before, number, after = head.partition(b"(0")
    return before + number[:1], after.rstrip(), len(head)


def _refusal(error: Exception, view: memoryview) -> DecodeFailed:
    return DecodeFailed(f"npy: {type(error).__name__}: {error} ({len(view)} bytes)")


def encode(field: str, value: object) -> bytes:
    """Return an array (or a numpy scalar, as rank 0) as a .npy file, format 1.0, in C order.

    Raises: InvalidField if the value is not an array, is masked, or has an object dtype or one that format 1.0 lacks,
    such as bfloat16.
    """
    if not isinstance(value, np.ndarray | np.generic) or isinstance(value, np.ma.MaskedArray):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise InvalidField(
            f"field {field!r} takes a numpy.ndarray or the bytes of a .npy file, got {kind}. "
            "Convert it first (a torch tensor with .numpy(), a masked array with .filled())",
            what=field,
            given=kind,
        )
    array = np.array(value, order="C", copy=None, subok=False)
    if array.dtype.hasobject:
        raise InvalidField(
            f"field {field!r}: dtype {array.dtype} holds Python objects, which would have to be pickled. "
            "Give it a plain dtype, or store .json",
            what=field,
            given=f"dtype {array.dtype}",
            accepted="a dtype without Python objects",
        )
    if npy_format.descr_to_dtype(npy_format.dtype_to_descr(array.dtype)) != array.dtype:
        raise InvalidField(
            f"field {field!r}: dtype {array.dtype} is none of numpy's own, and a .npy file would hold nameless bytes. "
            "Store array.view(np.uint16), or uint8 for one byte, and view the tensor as its dtype in the training: "
            "tensor.view(torch.bfloat16)",
            what=field,
            given=f"dtype {array.dtype}",
            accepted="a dtype of numpy's own",
        )
    file = io.BytesIO()
    try:
        npy_format.write_array(file, array, version=(1, 0), allow_pickle=False)
    except ValueError as error:
        raise InvalidField(
            f"field {field!r}: dtype {array.dtype} does not fit the .npy format: {error}",
            what=field,
            given=f"dtype {array.dtype}",
            accepted="the .npy format",
        ) from error
    return file.getvalue()


@lru_cache(maxsize=8192)
def _layout(head: bytes, prefix: int) -> NpyLayout:
    # prefix: bytes before the header's text. numpy's reader also accepts Python 2 headers and raises tokenizer errors.
    header = ast.literal_eval(head[prefix:].decode("utf-8" if head[6] == 3 else "latin-1"))
    shape = header["shape"]
    fortran = header["fortran_order"]
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"shape {shape!r}")
    if type(fortran) is not bool:
        raise ValueError(f"fortran_order {fortran!r}")
    dtype = npy_format.descr_to_dtype(header["descr"])
    if dtype.hasobject:
        raise ValueError(f"dtype {dtype} holds pickled objects, which are never loaded")
    return NpyLayout(head, shape, fortran, dtype, math.prod(shape) * dtype.itemsize)
