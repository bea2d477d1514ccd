"""Python values of a row, and the bytes of the fields they become."""

import json
from io import BytesIO
from typing import Any

import numpy as np

from ...errors import InvalidSample, NotSupported

FLAT_WORDS = ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
"""Extensions of flat little-endian values."""
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encoded(value: Any, word: str, column: str, where: str, dtype: np.dtype[Any] | None = None) -> bytes:
    """Return a value as a field of that extension. dtype: of an array; None keeps the values'.

    Raises: InvalidSample.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return text_bytes(value, column, where)
    if word in FLAT_WORDS or word == "npy":
        return array_bytes(value, word, column, where, dtype)
    return json_bytes(value, column, where)


def json_bytes(value: Any, column: str, where: str) -> bytes:
    """Return plain values as JSON. Raises: NotSupported for what JSON does not hold; InvalidSample."""
    try:
        text = _JSON.encode(value)
    except (ValueError, TypeError) as error:
        what = (
            "a number that is not finite"
            if isinstance(error, ValueError)
            else f"a value of another kind ({error})"
        )
        raise NotSupported(
            f"{where}: column {column!r} holds {what}, which JSON does not hold; leave it out (--without {column})"
        ) from error
    return text_bytes(text, column, where)


def text_bytes(value: str, column: str, where: str) -> bytes:
    """Return UTF-8. Raises: InvalidSample for half a character."""
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidSample(
            f"{where}: column {column!r} is no UTF-8 text ({error}); leave it out (--without {column})"
        ) from error


def array_bytes(value: Any, word: str, column: str, where: str, dtype: np.dtype[Any] | None = None) -> bytes:
    """Return numbers as flat little-endian values or a .npy file. Raises: InvalidSample if they do not fit.

    dtype: of the .npy file; None keeps the values' dtype.
    """
    try:
        plain = np.asarray(value)
    except ValueError:
        plain = np.array(None)
    if plain.size == 0:
        plain = plain.astype(np.float64 if word in ("npy", "f2", "f4", "f8") else np.int64)
    if plain.dtype.kind not in "iuf" or (word != "npy" and plain.ndim != 1):
        raise InvalidSample(f"{where}: column {column!r} is no list of numbers, which {word} holds")
    if word == "npy":
        file = BytesIO()
        np.save(file, plain if dtype is None else plain.astype(dtype), allow_pickle=False)
        return file.getvalue()
    with np.errstate(over="ignore", invalid="ignore"):
        array = plain.astype(f"<{word}")
    if word[0] != "f" and (plain.dtype.kind == "f" or not _fits(plain, word)):
        raise InvalidSample(f"{where}: numbers of column {column!r} do not fit {word}; name a wider one")
    return array.tobytes()


def _fits(plain: np.ndarray[Any, Any], word: str) -> bool:
    held = np.iinfo(word)
    return not plain.size or (int(plain.min()) >= held.min and int(plain.max()) <= held.max)
