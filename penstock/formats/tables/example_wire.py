"""Decode `tf.train.Example` from the wire format of protocol buffers, without TensorFlow.

An Example has its Features in field 1. They have an entry per feature in field 1: its name in 1, the Feature in
2. A Feature has a list of bytes in field 1, of floats in 2, or of integers in 3. A list has its values in field
1, packed or one by one.
"""

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

MOST_FEATURES = 2**14
MOST_VALUES = 2**24
"""Limit on the values of a feature: a byte of a message can become eight bytes in memory, or more."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_NUMBERS_END = 2**29
"""Largest field number, plus one."""


class ExampleFeature(NamedTuple):
    """The values of a feature."""

    kind: str
    """"bytes", "float" or "int64"; "" for a feature without any list."""
    values: list[bytes] | np.ndarray[Any, Any]
    """Values, in order: bytes, float32 or int64."""


class Wire(ValueError):
    """Bytes that are no Example, with the damaged byte."""


class _Field(NamedTuple):
    number: int
    kind: int
    value: int
    """Value of a varint; 0 for any other."""
    start: int
    """First byte of the content; for a varint, the byte behind it."""
    stop: int
    """Byte behind the content."""
    at: int
    """First byte of the field."""


def features_of(data: bytes) -> dict[str, ExampleFeature]:
    """Return the features of an Example by name, in its order. Raises: Wire."""
    features = dict[str, ExampleFeature]()
    for outer in _fields(data, 0, len(data)):
        if outer.number == 2:
            raise Wire(f"byte {outer.at}: it is a SequenceExample, whose steps are not read")
        if outer.number != 1:
            continue
        for entry in _fields(data, *_content(outer)):
            if entry.number != 1:
                continue
            name, feature = _entry(data, entry)
            if name in features or len(features) == MOST_FEATURES:
                raise Wire(
                    f"byte {entry.at}: feature {name!r} comes twice, or behind {MOST_FEATURES:,} others"
                )
            features[name] = feature
    return features


def _entry(data: bytes, entry: _Field) -> tuple[str, ExampleFeature]:
    name, feature = "", ExampleFeature("", list[bytes]())
    for field in _fields(data, *_content(entry)):
        if field.number == 1:
            try:
                name = data[slice(*_content(field))].decode()
            except UnicodeDecodeError as error:
                raise Wire(f"byte {field.at}: the name of a feature is no UTF-8") from error
        elif field.number == 2:
            feature = _feature(data, field)
    return name, feature


def _feature(data: bytes, message: _Field) -> ExampleFeature:
    feature = ExampleFeature("", list[bytes]())
    for field in _fields(data, *_content(message)):
        if field.number > 3:
            continue
        if feature.kind:
            raise Wire(f"byte {field.at}: a feature has two lists")
        start, stop = _content(field)
        if field.number == 1:
            feature = ExampleFeature("bytes", _blobs(data, start, stop))
        elif field.number == 2:
            feature = ExampleFeature("float", _floats(data, start, stop))
        else:
            feature = ExampleFeature("int64", _ints(data, start, stop))
    return feature


def _blobs(data: bytes, start: int, stop: int) -> list[bytes]:
    out = list[bytes]()
    for field in _values(data, start, stop):
        out.append(data[slice(*_content(field))])
        _check_count(len(out), field)
    return out


def _floats(data: bytes, start: int, stop: int) -> np.ndarray[Any, Any]:
    out = bytearray()
    for field in _values(data, start, stop):
        if field.kind not in (_BYTES, _FIXED32) or (field.stop - field.start) % 4:
            raise Wire(
                f"byte {field.at}: {field.stop - field.start} bytes of type {field.kind} are no floats"
            )
        out += data[field.start : field.stop]
        _check_count(len(out) // 4, field)
    return np.frombuffer(bytes(out), "<f4")


def _ints(data: bytes, start: int, stop: int) -> np.ndarray[Any, Any]:
    out = array("Q")
    for field in _values(data, start, stop):
        if field.kind == _VARINT:
            out.append(field.value)
        else:
            at, end = _content(field)
            while at < end:
                number, at = _varint(data, at, end)
                out.append(number)
                _check_count(len(out), field)
        _check_count(len(out), field)
    return np.frombuffer(out.tobytes(), "=i8")


def _values(data: bytes, start: int, stop: int) -> Iterator[_Field]:
    return (field for field in _fields(data, start, stop) if field.number == 1)


def _check_count(n: int, field: _Field) -> None:
    if n > MOST_VALUES:
        raise Wire(f"byte {field.at}: a feature has more than {MOST_VALUES:,} values")


def _content(field: _Field) -> tuple[int, int]:
    """Return first byte and end of a message, a text or bytes."""
    if field.kind != _BYTES:
        raise Wire(f"byte {field.at}: field {field.number} has the type {field.kind}, and should have bytes")
    return field.start, field.stop


def _fields(data: bytes, start: int, stop: int) -> Iterator[_Field]:
    """Yield the fields of a message, in order."""
    at = start
    while at < stop:
        begin = at
        tag, at = _varint(data, at, stop)
        number, kind = tag >> 3, tag & 7
        value = nbytes = 0
        if kind == _VARINT:
            value, at = _varint(data, at, stop)
        elif kind == _BYTES:
            nbytes, at = _varint(data, at, stop)
        elif kind in (_FIXED32, _FIXED64):
            nbytes = 4 if kind == _FIXED32 else 8
        else:
            raise Wire(f"byte {begin}: a field has the type {kind}")
        if at + nbytes > stop or not 0 < number < _NUMBERS_END:
            raise Wire(
                f"byte {begin}: field {number} of {nbytes:,} bytes goes on behind its message, or is none"
            )
        yield _Field(number, kind, value, at, at + nbytes, begin)
        at += nbytes


def _varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    if at < stop and data[at] < 128:  # nearly all tags
        return data[at], at + 1
    value = 0
    for n in range(10):
        if at + n >= stop:
            raise Wire(f"byte {at}: a number goes on behind its message")
        byte = data[at + n]
        value |= (byte & 127) << 7 * n
        if byte < 128:
            if value >= 2**64:
                break
            return value, at + n + 1
    raise Wire(f"byte {at}: a number of more than 64 bits")
