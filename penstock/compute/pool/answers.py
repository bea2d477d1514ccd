"""Decode workers' answers as plain data, only with dataclasses in the function's return annotation."""

import functools
import inspect
import json
import struct
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from loader.keywords import is_whole_number

from .worker import ARRAY_KINDS

Types = Mapping[str, type]
"""'module:name' -> dataclass."""

_LENGTH = struct.Struct(">Q")
_HOLDERS = frozenset({list, dict})


class NotAnAnswer(ValueError):
    """An answer that no healthy worker sends."""


def answer_types(function: Callable[..., Any]) -> Types:
    """Return the dataclasses that the function's return annotation names."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        returned = typing.get_type_hints(function).get("return")
    except (NameError, TypeError, AttributeError):  # raised for a name that only type checkers import
        return {}
    types: dict[str, type] = {}
    _collect(returned, types)
    return types


def _collect(hint: Any, types: dict[str, type]) -> None:
    """Add the dataclasses of an annotation, and of their fields, to `types`."""
    for argument in typing.get_args(hint):
        _collect(argument, types)
    if not (isinstance(hint, type) and is_dataclass(hint)):
        return
    name = f"{hint.__module__}:{hint.__qualname__}"
    if name not in types:
        # Before its fields: a dataclass may have fields of its own type.
        types[name] = hint
        for field_hint in typing.get_type_hints(hint).values():
            _collect(field_hint, types)


def decode_answer(body: bytes | bytearray, types: Types) -> Any:
    """Decode the result of `worker.encode_result`. types: accepted dataclasses. Raises: NotAnAnswer."""
    try:
        (length,) = _LENGTH.unpack_from(body)
        if not length:
            return bytes(memoryview(body)[_LENGTH.size :])
        start = _LENGTH.size + length
        sizes, names, plain = json.loads(bytes(body[_LENGTH.size : start]).decode("ascii"))
        pieces = list(_pieces(memoryview(body)[start:], sizes))
        return _Reader([_find_type(name, types) for name in names], pieces).value(plain)
    except NotAnAnswer:
        raise
    except Exception as error:
        raise NotAnAnswer(f"a worker's answer cannot be read: {type(error).__name__}: {error}") from error


def decode_failure(body: bytes | bytearray) -> tuple[str, str]:
    """Return a failure's (code, reason)."""
    try:
        failure = decode_answer(body, {})
    except NotAnAnswer as error:
        return "exception", str(error)
    if isinstance(failure, list) and len(failure) == 2 and all(isinstance(one, str) for one in failure):
        return failure[0], failure[1]
    return "exception", "a worker failed, without a reason"


def _pieces(rest: memoryview, sizes: Any) -> Iterator[bytes]:
    at = 0
    for size in sizes:
        if not is_whole_number(size, 0) or at + size > len(rest):
            raise NotAnAnswer("a worker's answer is shorter than its sizes")
        yield bytes(rest[at : at + size])
        at += size
    if at != len(rest):
        raise NotAnAnswer("a worker's answer is longer than its sizes")


def _find_type(name: str, types: Types) -> type:
    if name not in types:
        raise NotAnAnswer(
            f"a worker's answer holds {name}; accepted: plain values and the dataclasses that the function's return "
            f"annotation names ({', '.join(sorted(types)) or 'none'})"
        )
    return types[name]


class _Reader:
    """Decoder. classes: dataclasses by number; pieces: bytes by number."""

    def __init__(self, classes: Sequence[type], pieces: Sequence[bytes]) -> None:
        self._classes: list[tuple[type, list[str]]] = []
        """(dataclass, names of the fields that its constructor takes)."""
        for kind in classes:
            names = [field.name for field in fields(kind) if field.init]
            self._classes.append((kind, names))
        self._pieces = pieces
        self._kinds: Mapping[str, Callable[[Any], Any]] = {
            "dict": self._mapping,
            "pairs": lambda held: dict(self._each(pair) for pair in held),
            "is": self._dataclass,
            "tuple": lambda held: tuple(self._each(held)),
            "set": lambda held: set(self._each(held)),
            "frozenset": lambda held: frozenset(self._each(held)),
            "bytes": lambda held: self._pieces[held],
            "path": Path,
            "array": self._array,
            "number": lambda held: self._array(held)[()],
        }

    def value(self, plain: Any) -> Any:
        """Return the value of its JSON. A list is a list; an object has one member, {kind: content}."""
        if isinstance(plain, list):
            return self._each(plain)
        if not isinstance(plain, dict):
            return plain
        ((name, held),) = plain.items()
        if name not in self._kinds:
            raise NotAnAnswer(f"a worker's answer has a value of kind {name!r}, which does not exist")
        return self._kinds[name](held)

    def _each(self, values: Iterable[Any]) -> list[Any]:
        return [self.value(one) if type(one) in _HOLDERS else one for one in values]

    def _mapping(self, held: dict[str, Any]) -> dict[str, Any]:
        if _HOLDERS.isdisjoint(map(type, held.values())):
            return held
        return dict(zip(held, self._each(held.values()), strict=True))

    def _dataclass(self, held: Any) -> Any:
        number, values = held
        kind, names = self._classes[number]
        return kind(**dict(zip(names, self._each(values), strict=True)))

    def _array(self, held: Any) -> Any:
        import numpy as np

        dtype, shape, piece = held
        kind = np.dtype(dtype)
        if kind.kind not in ARRAY_KINDS or any(n < 0 for n in shape):
            raise NotAnAnswer(f"a worker's answer holds an array of {dtype!r} {shape}")
        return np.frombuffer(self._pieces[piece], kind).reshape(shape).copy()
