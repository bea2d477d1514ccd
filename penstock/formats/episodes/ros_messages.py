"""Decode messages of ROS 1 and ROS 2 along the parse tree of their definition, without generating code.

A struct is a mapping, an array of numbers a numpy array, any other array a list, a number a numpy scalar.
"""

import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np

from loader.errors import Corrupt, InvalidSample

from .log_message import MAX_LEAVES, Channel

_MAX_DEPTH = 32
_MAX_SCHEMA_BYTES = 2**19
_EMPTY = "structure_needs_at_least_one_member"
_DTYPES = {
    name: name for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
} | {
    "bool": "bool",
    "char": "uint8",
    "float32": "float32",
    "float64": "float64",
}


class _Node(NamedTuple):
    """A type."""

    kind: str
    """"number", "string", "struct", "array" (of a fixed length) or "sequence"."""
    least: int
    """Fewest bytes of a value."""
    dtype: Any = None
    of: Any = None
    """Node of an array's values; for a struct, name -> node."""
    length: int = 0
    """Number of values in an array."""


def ros_decoder(channel: Channel) -> Callable[[bytes], Mapping[str, Any]]:
    """Return the decoder of a topic's messages. Raises: InvalidSample; errors of rosbags."""
    from rosbags.typesys.msg import normalize_msgtype

    if len(channel.schema) > _MAX_SCHEMA_BYTES:
        raise InvalidSample(
            f"the definition of {channel.type_name} has more than {_MAX_SCHEMA_BYTES:,} bytes"
        )
    name = normalize_msgtype(channel.type_name)
    node = _Types(_definitions(channel, name), ros1=channel.encoding == "ros1").node_of(name)
    read = _read_ros1 if channel.encoding == "ros1" else _read_cdr
    return lambda data: read(node, data)


def _definitions(channel: Channel, name: str) -> Mapping[str, Any]:
    """Return type -> its parse tree, from the definition, or else from ROS's usual types."""
    from rosbags.typesys import get_types_from_idl, get_types_from_msg

    text = channel.schema.decode()
    if channel.schema_encoding == "ros2idl":
        return {**_usual(False), **get_types_from_idl(text)}
    own = get_types_from_msg(text, name) if text.strip() or channel.schema_encoding else {}
    return {**_usual(channel.encoding == "ros1"), **own}


@cache
def _usual(ros1: bool) -> Mapping[str, Any]:
    from rosbags.typesys import Stores, get_typestore

    return get_typestore(Stores.ROS1_NOETIC if ros1 else Stores.ROS2_HUMBLE).fielddefs


class _Types:
    """The types of a definition."""

    def __init__(self, definitions: Mapping[str, Any], *, ros1: bool) -> None:
        self._definitions, self._ros1, self._n_left = definitions, ros1, MAX_LEAVES

    def node_of(self, name: str, depth: int = 0) -> _Node:
        """Return the node of a struct."""
        if name not in self._definitions:
            raise InvalidSample(f"the type {name} is not defined in the log")
        if depth > _MAX_DEPTH:
            raise InvalidSample(f"the type {name} lies more than {_MAX_DEPTH} types deep, or in itself")
        members = {}
        for field, description in self._definitions[name][1]:
            self._n_left -= 1
            if self._n_left < 0:
                raise InvalidSample(f"the type {name} has more than {MAX_LEAVES:,} values")
            members[field] = self._node(description, depth)
        if not members and not self._ros1:
            members[_EMPTY] = _number("uint8")
        if self._ros1:
            members.pop(_EMPTY, None)
        return _Node("struct", sum(node.least for node in members.values()), None, members)

    def _node(self, description: Any, depth: int) -> _Node:
        kind, of = description[0].name, description[1]
        if kind == "BASE":
            if of[0] == "string":
                return _Node("string", 4)
            if of[0] == "byte":
                return _number("int8" if self._ros1 else "uint8")
            if of[0] not in _DTYPES:
                raise InvalidSample(f"values of the type {of[0]} are not read")
            return _number(_DTYPES[of[0]])
        if kind == "NAME":
            return self.node_of(of, depth + 1)
        of, length = self._node(of[0], depth), of[1]
        if not of.least:
            raise InvalidSample("an array of messages without values is not read")
        if kind == "SEQUENCE":
            return _Node("sequence", 4, None, of)
        return _Node("array", of.least * length, None, of, length)


def _number(name: str) -> _Node:
    dtype = np.dtype(name)
    return _Node("number", dtype.itemsize, dtype)


def _read_cdr(node: _Node, data: bytes) -> Mapping[str, Any]:
    if len(data) < 4 or data[0] or data[1] > 1:
        raise Corrupt(f"its first bytes {data[:4].hex()} are no plain CDR; other encodings are not read")
    reader = _Reader(data[4:], "<" if data[1] else ">", cdr=True)
    message: Mapping[str, Any] = reader.value(node)
    if len(reader.data) - reader.at > 3:  # more than padding
        raise Corrupt(f"{len(reader.data) - reader.at:,} bytes follow it that its definition does not have")
    return message


def _read_ros1(node: _Node, data: bytes) -> Mapping[str, Any]:
    reader = _Reader(data, "<", cdr=False)
    message: Mapping[str, Any] = reader.value(node)
    if reader.at != len(data):
        raise Corrupt(f"{len(data) - reader.at:,} bytes follow it that its definition does not have")
    return message


class _Reader:
    """Reads the values of a message in sequence."""

    def __init__(self, data: bytes, order: str, *, cdr: bool) -> None:
        self.data, self.at = data, 0
        self._swapped, self._cdr = order != _NATIVE, cdr
        self._of_count: Literal["little", "big"] = "little" if order == "<" else "big"

    def value(self, node: _Node) -> Any:
        if node.kind == "number":
            return self._numbers(node, 1)[0]
        if node.kind == "string":
            text = self._take(self._count())
            if self._cdr and text[-1:] == b"\0":
                text = text[:-1]
            return text.decode(errors="backslashreplace")
        if node.kind == "struct":
            read = {name: self.value(member) for name, member in node.of.items()}
            read.pop(_EMPTY, None)
            return read
        length = node.length if node.kind == "array" else self._count()
        if length * node.of.least > len(self.data) - self.at:
            raise Corrupt(
                f"an array at byte {self.at:,} has {length:,} values, more than the message has bytes"
            )
        if node.of.kind == "number":
            return self._numbers(node.of, length)
        return [self.value(node.of) for _ in range(length)]

    def _count(self) -> int:
        """Return the length of a text, or of an array."""
        if self._cdr:
            self.at += -self.at % 4
        return int.from_bytes(self._take(4), self._of_count)

    def _numbers(self, node: _Node, length: int) -> Any:
        size = node.dtype.itemsize
        if self._cdr and length:
            self.at += -self.at % size
        dtype = node.dtype.newbyteorder() if self._swapped else node.dtype
        values = np.frombuffer(self._take(length * size), dtype)
        if dtype.kind == "b":
            return values.view(np.uint8) != 0
        return values.astype(node.dtype) if self._swapped else values

    def _take(self, nbytes: int) -> bytes:
        data = self.data[self.at : self.at + nbytes]
        if len(data) < nbytes:
            raise Corrupt(f"it ends at byte {len(self.data):,}, within a value")
        self.at += nbytes
        return data


_NATIVE = "<" if sys.byteorder == "little" else ">"
