"""Decoders of messages: JSON, protobuf by the log's descriptors, ROS by its definitions.

A decoder returns a mapping: numbers as numpy scalars, arrays of numbers as numpy arrays, text, lists, None,
mappings.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from loader.errors import InvalidSample
from loader.json_text import parse_json

from .log_message import MAX_LEAVES, Channel
from .ros_messages import ros_decoder

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


def decoder_of(channel: Channel) -> Decoder:
    """Return the decoder of a topic's messages. Raises: InvalidSample for an unknown encoding."""
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


def _json_decoder(channel: Channel) -> Decoder:
    schema = (
        parse_json(channel.schema) if channel.schema_encoding == "jsonschema" and channel.schema else None
    )

    def decode(data: bytes) -> Mapping[str, Any]:
        message = _of_json(parse_json(data, lenient=True), schema)
        if not isinstance(message, dict):
            raise InvalidSample("a message of JSON is an object; this is none")
        return message

    return decode


def _of_json(value: Any, schema: Any) -> Any:
    """Return a JSON value with numpy numbers. schema: of the value, or None."""
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
    return np.int64(value) if isinstance(value, int) and -(2**63) <= value < 2**63 else value


def _protobuf_decoder(channel: Channel) -> Decoder:
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
    """Reads one message."""

    def __init__(self, most: int) -> None:
        """most: limit on its values; two bytes can stand for a message of thousands of defaults."""
        self._most = self._n_left = most

    def read(self, message: Any, within: tuple[str, ...]) -> Mapping[str, Any]:
        """Return a message's values; unset ones have the type's defaults. within: enclosing types."""
        values = {}
        within = (*within, message.DESCRIPTOR.full_name)
        for field in message.DESCRIPTOR.fields:
            value = getattr(message, field.name)
            if field.is_repeated:
                values[field.name] = self._repeated(field, value, within)
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

    def _repeated(self, field: Any, value: Any, within: tuple[str, ...]) -> Any:
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
