"""A topic's columns: an array if all values are numbers of one shape, otherwise JSON."""

import io
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

_EXACT = 2**53
"""Largest magnitude with every integer exact in float64."""
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def leaves(message: Mapping[str, Any], front: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each leaf of nested mappings, with its dotted path."""
    for name, value in message.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{front}{name}.")
        else:
            yield f"{front}{name}", value


class TopicColumn:
    """Values at one path, one row per message."""

    def __init__(self) -> None:
        self._dtype: np.dtype[Any] | None = None
        self._data = bytearray()
        self._shapes: list[tuple[int, ...] | None] = []  # None for a message that has no such value
        self._texts: list[bytes] | None = None  # JSON of each row, once a value is not a number

    def add(self, row: int, value: Any) -> int:
        """Add a value after gaps for skipped rows; return the bytes that they take in memory."""
        before = len(self._data)
        if self._texts is None and self._takes(value):
            self._shapes += [None] * (row - len(self._shapes))
            self._shapes.append(value.shape)
            self._data += (value if value.dtype == self._dtype else value.astype(self._dtype)).tobytes()
            return 8 + len(self._data) - before
        if self._texts is None:
            self._texts = list(self._as_texts())
            self._data.clear()
        self._texts += [b"null"] * (row - len(self._texts))
        self._texts.append(json_of(value))
        return 40 + len(self._texts[-1])

    def _takes(self, value: Any) -> bool:
        if not isinstance(value, np.generic | np.ndarray):
            return False
        if self._dtype is None:
            self._dtype = value.dtype
        if value.dtype == self._dtype:
            return True
        if {value.dtype, self._dtype} != {np.dtype(np.int64), np.dtype(np.float64)}:
            return False
        if self._dtype == np.float64:
            return _exact(value)
        numbers = np.frombuffer(bytes(self._data), np.int64)
        if not _exact(numbers):
            return False
        self._dtype, self._data = value.dtype, bytearray(numbers.astype(np.float64).tobytes())
        return True

    def _as_texts(self) -> Iterator[bytes]:
        at = 0
        for shape in self._shapes:
            if shape is None:
                yield b"null"
                continue
            count = math.prod(shape)
            assert self._dtype is not None
            numbers = np.frombuffer(self._data, self._dtype, count, at).reshape(shape).copy()
            at += count * self._dtype.itemsize
            yield json_of(numbers)

    def finish(self, rows: int) -> tuple[str, bytes]:
        if self._texts is None and len(self._shapes) == rows and len(set(self._shapes)) == 1:
            shape = self._shapes[0]
            assert shape is not None
            return "npy", npy_of(np.frombuffer(self._data, self._dtype).reshape(rows, *shape))
        texts = list(self._as_texts()) if self._texts is None else self._texts
        return "json", b"[" + b",".join(texts + [b"null"] * (rows - len(texts))) + b"]"


def _exact(numbers: Any) -> bool:
    return bool(((numbers >= -_EXACT) & (numbers <= _EXACT)).all())


def npy_of(values: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, np.ascontiguousarray(values), allow_pickle=False)
    return out.getvalue()


def json_of(value: Any) -> bytes:
    """Return JSON; NaN and infinities become text."""
    return _JSON.encode(_plain(value)).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
