"""Read the values of a column of any type: as numbers, as texts, as names of licences."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from . import classes

Floats = np.ndarray[Any, np.dtype[np.float64]]


def floats(values: pa.Array) -> Floats:
    """Return float64; NaN for nulls and non-numeric columns."""
    kind = values.type
    is_numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if not is_numeric:
        n_values = len(values)
        return np.full(n_values, np.nan)
    double = pa.float64()
    doubles = values.cast(double, safe=False)  # large integers are rounded
    column = doubles.to_numpy(zero_copy_only=False)
    numbers: Floats = column.astype(np.float64)
    return numbers


def text(values: pa.Array) -> pa.Array:
    """Return strings; null for nested types."""
    string = pa.string()
    if pa.types.is_nested(values.type):
        n_values = len(values)
        return pa.nulls(n_values, string)
    return values.cast(string)


def words(values: pa.Array) -> pa.Array:
    """Return strings; null for blank ones."""
    texts = text(values)
    trimmed = pc.utf8_trim_whitespace(texts)
    is_blank = pc.equal(trimmed, "")
    return pc.if_else(is_blank, None, texts)


def licences(values: pa.Array) -> pa.Array:
    """Return names; null for unknown licences."""
    texts = text(values)
    encoded = texts.dictionary_encode()  # there are few: each name is classified once
    dictionary = encoded.dictionary
    names = dictionary.to_pylist()
    flags = [classes.is_unknown_licence(name) for name in names]
    is_unknown = pa.array(flags, pa.bool_())
    known_names = pc.if_else(is_unknown, None, dictionary)
    return known_names.take(encoded.indices)
