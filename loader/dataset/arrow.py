"""Numbers out of Arrow columns, without pandas.

`to_numpy` of pyarrow, `pa.scalar`, `pa.array` and comparisons with a Python value import pandas, where it is installed:
0.15 to 0.4 s of a process's start, for nothing. What reads a root goes by these instead.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Int64s = np.ndarray[Any, np.dtype[np.int64]]


def integers(column: pa.Array | pa.ChunkedArray) -> Int64s:
    """int64 [n], read-only where it is the column's own memory. Raises: TypeError for a column of another kind, or with
    nulls."""
    if not pa.types.is_integer(column.type) or column.null_count:
        raise TypeError(f"a column of {column.type} with {column.null_count} nulls; integers are needed")
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    found = [np.from_dlpack(chunk) for chunk in chunks if len(chunk)]
    return (found[0] if len(found) == 1 else np.concatenate([np.empty(0, np.int64), *found])).astype(
        np.int64, copy=False
    )


def codes(column: pa.ChunkedArray) -> tuple[pa.Array, Int64s]:
    """(its values, each once, in the order of their first row; int64 [n], the number of each row's value). Raises:
    TypeError for a column with nulls."""
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return encoded.dictionary, integers(encoded.indices)


def changes(column: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """bool [n]: which values differ from the one before; the first does."""
    out = np.ones(len(column), bool)
    out[1:] = integers(pc.cast(pc.not_equal(column[1:], column[:-1]), pa.int8()))
    return out


def taken(column: pa.Array, positions: Int64s) -> pa.Array:
    """The values at these positions."""
    return column.take(
        pa.Int64Array.from_buffers(pa.int64(), len(positions), [None, pa.py_buffer(positions)])
    )


def text(value: str) -> pa.StringScalar:
    """A value to compare a column of strings with."""
    data = value.encode()
    ends = np.array([0, len(data)], np.int32)
    return pa.StringArray.from_buffers(1, pa.py_buffer(ends), pa.py_buffer(data))[0]
