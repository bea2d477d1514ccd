"""Decode messages: JSON, protobuf by the log's descriptors, ROS by its message definitions.

Results are mappings. Numbers are numpy scalars, arrays of numbers numpy arrays, other arrays lists.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np

from loader.errors import Corrupt, InvalidSample, MissingDependency, PenstockError
from loader.json_text import parse_json
from loader.modalities.fields import is_machine_fault

MAX_FIELD_BYTES = 2**30
"""Largest field, in bytes."""
MAX_EPISODE_BYTES = 4 * 2**30
"""Largest sample, in bytes; all of it is in memory."""
MAX_CHUNK_BYTES = 2**28
"""Largest decompressed chunk, in bytes: a small one can declare any size."""
MAX_LEAVES = 4096
"""Most values of a message that become fields."""


class LogChannel(NamedTuple):
    """A topic's properties."""

    topic: str
    """Name in the log."""
    encoding: str
    """"json", "protobuf", "cdr" or "ros1"."""
    type_name: str
    """Message type; "" if none."""
    schema_encoding: str
    """"jsonschema", "protobuf", "ros2msg", "ros2idl", "ros1msg" or ""."""
    schema: bytes
    """Message definition."""


class LogMessage(NamedTuple):
    channel: LogChannel
    log_time: int
    """Unix nanoseconds."""
    data: bytes
    """Encoded content."""


@contextmanager
def damage_named(where: str) -> Iterator[None]:
    """Turn log libraries' errors into `Corrupt` with the file's name; the machine's own errors pass through."""
    try:
        yield
    except PenstockError:
        raise
    except ImportError as error:
        raise MissingDependency(
            f"logs of robots are read by mcap, rosbags and protobuf: pip install 'penstock-data[mcap]' ({error})"
        ) from error
    except Exception as error:  # raised by three libraries, and by definitions in the file
        if is_machine_fault(error):
            raise
        raise Corrupt(f"{where}: {type(error).__name__}: {error}; repair it, or move it elsewhere") from error


Decoder = Callable[[bytes], Mapping[str, Any]]

_PROTOBUF_DTYPES = {
    1: "int32",
    2: "int64",
    3: "uint32",
    4: "uint64",
    5: "float64",
    6: "float32",
    7: "bool",
    8: "int32",  # enum
}
"""`FieldDescriptor.cpp_type` -> dtype."""
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
_NATIVE = "<" if sys.byteorder == "little" else ">"


def topic_decoder(channel: LogChannel) -> Decoder:
    """Return a topic's decoder. Raises: InvalidSample if the encoding is unknown."""
    how = (channel.encoding, channel.schema_encoding)
    if channel.encoding == "json":
        return _json_decoder(channel)
    if how == ("protobuf", "protobuf"):
        return _protobuf_decoder(channel)
    if how in (("cdr", "ros2msg"), ("cdr", "ros2idl"), ("cdr", ""), ("ros1", "ros1msg")):
        return ros_decoder(channel)
    raise InvalidSample(
        f"its encoding is {channel.encoding!r} with a schema of {channel.schema_encoding!r}; read are json, protobuf, "
        "cdr with ros2msg or ros2idl, and ros1 with ros1msg"
    )


def _json_decoder(channel: LogChannel) -> Decoder:
    schema = None
    if channel.schema_encoding == "jsonschema" and channel.schema:
        schema = parse_json(channel.schema)

    def decode(data: bytes) -> Mapping[str, Any]:
        message = _of_json(parse_json(data, lenient=True), schema)
        if not isinstance(message, dict):
            raise InvalidSample("a message of JSON is an object; this is none")
        return message

    return decode


def _of_json(value: Any, schema: Any) -> Any:
    own_schema = schema if isinstance(schema, dict) else {}
    if isinstance(value, dict):
        inner = own_schema.get("properties")
        members = inner if isinstance(inner, dict) else {}
        return {name: _of_json(one, members.get(name)) for name, one in value.items()}
    if isinstance(value, list):
        values = [_of_json(one, own_schema.get("items")) for one in value]
        kinds = {type(one) for one in values}
        if len(kinds) == 1 and kinds <= {np.int64, np.float64, np.bool_}:
            return np.array(values)
        if kinds == {np.int64, np.float64} and all(float(one) == one for one in value):
            return np.array(values)
        return values
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, float) or (isinstance(value, int) and own_schema.get("type") == "number"):
        return np.float64(value)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return np.int64(value)
    return value


def _protobuf_decoder(channel: LogChannel) -> Decoder:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    files = {one.name: one for one in descriptor_pb2.FileDescriptorSet.FromString(channel.schema).file}
    pool = descriptor_pool.DescriptorPool()

    def add(name: str) -> None:
        if file := files.pop(name, None):  # each once, after its dependencies
            for other in file.dependency:
                add(other)
            pool.AddSerializedFile(file.SerializeToString())

    for name in list(files):
        add(name)
    message_class = message_factory.GetMessageClass(pool.FindMessageTypeByName(channel.type_name))
    return lambda data: _Protobuf(MAX_LEAVES + 8 * len(data)).read(message_class.FromString(data), ())


class _Protobuf:
    def __init__(self, most: int) -> None:
        """most: limit on values; a two-byte message can expand to thousands of defaults."""
        self._most = self._n_left = most

    def read(self, message: Any, within: tuple[str, ...]) -> Mapping[str, Any]:
        values = {}
        within = (*within, message.DESCRIPTOR.full_name)
        for field in message.DESCRIPTOR.fields:
            value = getattr(message, field.name)
            if field.is_repeated:
                values[field.name] = self._repeat_array(field, value, within)
            elif field.cpp_type != field.CPPTYPE_MESSAGE:
                self._n_left -= 1
                values[field.name] = _scalar(field, value)
            elif field.message_type.full_name in within:  # a recursive type
                values[field.name] = [self.read(value, within)] if message.HasField(field.name) else []
            else:
                values[field.name] = self.read(value, within)
            if self._n_left < 0:
                raise InvalidSample(f"it has more than {self._most:,} values outside of arrays")
        return values

    def _repeat_array(self, field: Any, value: Any, within: tuple[str, ...]) -> Any:
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            inner = kind.fields_by_name["value"]
            return [
                {
                    "key": key,
                    "value": self.read(value[key], within)
                    if inner.message_type
                    else _scalar(inner, value[key]),
                }
                for key in sorted(value)
            ]
        if kind is not None:
            return [self.read(one, within) for one in value]
        if field.cpp_type in _PROTOBUF_DTYPES:
            return np.array(value, _PROTOBUF_DTYPES[field.cpp_type])
        return [_scalar(field, one) for one in value]


def _scalar(field: Any, value: Any) -> Any:
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    dtype = _PROTOBUF_DTYPES.get(field.cpp_type)
    return np.dtype(dtype).type(value) if dtype else value


class _TypeNode(NamedTuple):
    kind: str
    """"number", "string", "struct", "array" (fixed length) or "sequence"."""
    least: int
    dtype: Any = None
    of: Any = None
    """Node of an array's elements; for a struct, name -> node."""
    length: int = 0
    """Elements of an array."""


def ros_decoder(channel: LogChannel) -> Callable[[bytes], Mapping[str, Any]]:
    from rosbags.typesys.msg import normalize_msgtype

    if len(channel.schema) > _MAX_SCHEMA_BYTES:
        raise InvalidSample(
            f"the definition of {channel.type_name} has more than {_MAX_SCHEMA_BYTES:,} bytes"
        )
    name = normalize_msgtype(channel.type_name)
    node = _Types(_definitions(channel, name), ros1=channel.encoding == "ros1").type_node(name)
    read = _read_ros1 if channel.encoding == "ros1" else _read_cdr
    return lambda data: read(node, data)


def _definitions(channel: LogChannel, name: str) -> Mapping[str, Any]:
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
    def __init__(self, definitions: Mapping[str, Any], *, ros1: bool) -> None:
        self._definitions = definitions
        self._ros1 = ros1
        self._n_left = MAX_LEAVES

    def type_node(self, name: str, depth: int = 0) -> _TypeNode:
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
        return _TypeNode("struct", sum(node.least for node in members.values()), None, members)

    def _node(self, description: Any, depth: int) -> _TypeNode:
        kind = description[0].name
        of = description[1]
        if kind == "BASE":
            if of[0] == "string":
                return _TypeNode("string", 4)
            if of[0] == "byte":
                return _number("int8" if self._ros1 else "uint8")
            if of[0] not in _DTYPES:
                raise InvalidSample(f"values of the type {of[0]} are not read")
            return _number(_DTYPES[of[0]])
        if kind == "NAME":
            return self.type_node(of, depth + 1)
        of, length = self._node(of[0], depth), of[1]
        # Without bytes of its elements, nothing would bound its length.
        if not of.least:
            raise InvalidSample("an array of messages without values is not read")
        if kind == "SEQUENCE":
            return _TypeNode("sequence", 4, None, of)
        return _TypeNode("array", of.least * length, None, of, length)


def _number(name: str) -> _TypeNode:
    dtype = np.dtype(name)
    return _TypeNode("number", dtype.itemsize, dtype)


def _read_cdr(node: _TypeNode, data: bytes) -> Mapping[str, Any]:
    # Byte 0 is 0, byte 1 is 0 for big-endian and 1 for little-endian plain CDR; bytes 2 and 3 are options.
    if len(data) < 4 or data[0] or data[1] > 1:
        raise Corrupt(f"its first bytes {data[:4].hex()} are not plain CDR; other encodings are not read")
    reader = _MessageReader(data[4:], "<" if data[1] else ">", cdr=True)
    message: Mapping[str, Any] = reader.value(node)
    if len(reader.data) - reader.at > 3:  # more than padding
        raise Corrupt(f"{len(reader.data) - reader.at:,} bytes remain after the fields of its definition")
    return message


def _read_ros1(node: _TypeNode, data: bytes) -> Mapping[str, Any]:
    reader = _MessageReader(data, "<", cdr=False)
    message: Mapping[str, Any] = reader.value(node)
    if reader.at != len(data):
        raise Corrupt(f"{len(data) - reader.at:,} bytes remain after the fields of its definition")
    return message


class _MessageReader:
    def __init__(self, data: bytes, order: str, *, cdr: bool) -> None:
        self.data = data
        self.at = 0
        self._swapped = order != _NATIVE
        self._cdr = cdr
        self._of_count: Literal["little", "big"] = "little" if order == "<" else "big"

    def value(self, node: _TypeNode) -> Any:
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
        # Before memory is allocated: a damaged count may be any number.
        if length * node.of.least > len(self.data) - self.at:
            raise Corrupt(
                f"an array at byte {self.at:,} has {length:,} values, more than the message has bytes"
            )
        if node.of.kind == "number":
            return self._numbers(node.of, length)
        return [self.value(node.of) for _ in range(length)]

    def _count(self) -> int:
        if self._cdr:
            # CDR aligns each number to its size.
            self.at += -self.at % 4
        return int.from_bytes(self._take(4), self._of_count)

    def _numbers(self, node: _TypeNode, length: int) -> Any:
        size = node.dtype.itemsize
        if self._cdr and length:
            self.at += -self.at % size
        dtype = node.dtype.newbyteorder() if self._swapped else node.dtype
        values = np.frombuffer(self._take(length * size), dtype)
        if dtype.kind == "b":
            return values.view(np.uint8) != 0
        if self._swapped:
            return values.astype(node.dtype)
        return values

    def _take(self, nbytes: int) -> bytes:
        data = self.data[self.at : self.at + nbytes]
        if len(data) < nbytes:
            raise Corrupt(f"it ends at byte {len(self.data):,}, within a value")
        self.at += nbytes
        return data
