"""TFRecord files of `tf.train.Example`, uncompressed or gzipped, read without TensorFlow.

One number becomes metadata, several a field of flat values. Bytes become metadata if they are text, otherwise a field
whose extension follows from its first bytes. `--field NAME=EXT` overrides this.

The protobuf package does not locate damage and is slower for floats. An Example nests messages by field number:
Features in 1, entries in 1, then a name in 1 and a Feature in 2. A Feature has bytes in 1, floats in 2, or integers in
3.
"""

import re
from array import array
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from loader.dataset.columnar.column_names import (
    check_text,
    field_name,
    key_of_value,
    metadata_name,
    row_key,
    sniff_extension,
)
from loader.dataset.columnar.plain_values import encode_value
from loader.dataset.columnar.shard_names import OF
from loader.dataset.shards.shard import crc32c
from loader.errors import Corrupt, InvalidSample
from loader.storage import ObjectInfo, Store

from ..importer import ColumnarOptions, ImportRun, Readable, ReadSample
from ..reading.object_file import ByteStream, ObjectFile, open_object
from ..reading.stated_counts import StatedCounts
from .tfds_info import INFO as TFDS_INFO
from .tfds_info import count_records

MOST_FEATURES = 2**14
MOST_VALUES = 2**24
"""Most values of a feature; one byte can become eight in memory."""
_VARINT = 0
_FIXED64 = 1
_BYTES = 2
_FIXED32 = 5
"""Protobuf's wire types; groups, 3 and 4, are in no Example."""
_NUMBERS_END = 2**29
"""Protobuf's field numbers end before it."""
OPTIONS = frozenset({"key", "fields"})
RECORD_BYTES = 2**28
"""Largest record, in bytes."""
_NAME = re.compile(rf"\.tfrecords?(-{OF})?(\.gz)?$")
_HEAD_BYTES = 12
"""Bytes of a record's length and its checksum."""
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_FLAT = {"int64": "i8", "float": "f4"}


class ExampleFeature(NamedTuple):
    """One feature's values."""

    kind: str
    """"bytes", "float", "int64", or "" without a list."""
    values: list[bytes] | np.ndarray[Any, Any]
    """bytes, float32 or int64."""


class Wire(ValueError):
    """Bytes that are not an Example; names the damaged byte."""


class _WireField(NamedTuple):
    number: int
    """Field number, which names the field in its message."""
    kind: int
    """Wire type."""
    value: int
    """A varint's value; else 0."""
    start: int
    """First byte of the content; for a varint, the byte after it."""
    stop: int
    """First byte after the content."""
    at: int
    """First byte of the field, for errors."""


def parse_features(data: bytes) -> dict[str, ExampleFeature]:
    """Return features by name, in their order. Raises: Wire."""
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
                    f"byte {entry.at}: feature {name!r} comes twice, or after {MOST_FEATURES:,} others"
                )
            features[name] = feature
    return features


def _entry(data: bytes, entry: _WireField) -> tuple[str, ExampleFeature]:
    """Return a feature's name and values. An entry of a protobuf map may lack either."""
    name = ""
    feature = ExampleFeature("", list[bytes]())
    for field in _fields(data, *_content(entry)):
        if field.number == 1:
            start, stop = _content(field)
            try:
                name = data[start:stop].decode()
            except UnicodeDecodeError as error:
                raise Wire(f"byte {field.at}: the name of a feature is not UTF-8") from error
        elif field.number == 2:
            feature = _feature(data, field)
    return name, feature


def _feature(data: bytes, message: _WireField) -> ExampleFeature:
    feature = ExampleFeature("", list[bytes]())
    for field in _fields(data, *_content(message)):
        if field.number > 3:  # unknown: readers of protobuf skip it
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
    """Return the values of the list of bytes that lies from `start` to `stop`."""
    out: list[bytes] = []
    for field in _values(data, start, stop):
        blob_start, blob_stop = _content(field)
        out.append(data[blob_start:blob_stop])
        _check_count(len(out), field)
    return out


def _floats(data: bytes, start: int, stop: int) -> np.ndarray[Any, Any]:
    out = bytearray()
    for field in _values(data, start, stop):
        nbytes = field.stop - field.start
        if field.kind not in (_BYTES, _FIXED32) or nbytes % 4:  # packed, or one float
            raise Wire(f"byte {field.at}: {nbytes} bytes of type {field.kind} are not floats")
        out += data[field.start : field.stop]
        _check_count(len(out) // 4, field)
    return np.frombuffer(bytes(out), "<f4")


def _ints(data: bytes, start: int, stop: int) -> np.ndarray[Any, Any]:
    # Unsigned: a negative int64 is a varint of 64 bits.
    out = array("Q")
    for field in _values(data, start, stop):
        if field.kind == _VARINT:  # a single number
            out.append(field.value)
        else:  # packed: numbers in a row
            at, end = _content(field)
            while at < end:
                number, at = _varint(data, at, end)
                out.append(number)
                _check_count(len(out), field)  # a packed field may be as long as the record
        _check_count(len(out), field)
    return np.frombuffer(out.tobytes(), "=i8")


def _values(data: bytes, start: int, stop: int) -> Iterator[_WireField]:
    """Return the fields of a list's message that hold its values, one or packed."""
    return (field for field in _fields(data, start, stop) if field.number == 1)


def _check_count(n: int, field: _WireField) -> None:
    if n > MOST_VALUES:
        raise Wire(f"byte {field.at}: a feature has more than {MOST_VALUES:,} values")


def _content(field: _WireField) -> tuple[int, int]:
    """Return (start, stop) of a nested message, text, bytes or packed numbers."""
    if field.kind != _BYTES:
        raise Wire(f"byte {field.at}: field {field.number} has the type {field.kind}, and should have bytes")
    return field.start, field.stop


def _fields(data: bytes, start: int, stop: int) -> Iterator[_WireField]:
    """Yield the fields of a message."""
    at = start
    while at < stop:
        begin = at
        tag, at = _varint(data, at, stop)
        number = tag >> 3
        kind = tag & 7
        value = 0
        nbytes = 0
        if kind == _VARINT:
            value, at = _varint(data, at, stop)
        elif kind == _BYTES:
            nbytes, at = _varint(data, at, stop)
        elif kind == _FIXED32:
            nbytes = 4
        elif kind == _FIXED64:
            nbytes = 8
        else:
            raise Wire(f"byte {begin}: a field has the type {kind}")
        if at + nbytes > stop or not 0 < number < _NUMBERS_END:
            raise Wire(
                f"byte {begin}: field {number} of {nbytes:,} bytes ends after its message, or is not a field"
            )
        yield _WireField(number, kind, value, at, at + nbytes, begin)
        at += nbytes


def _varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """Return a number of 7 bits a byte, lowest first, and the offset of its end."""
    if at < stop and data[at] < 128:  # nearly all tags
        return data[at], at + 1
    value = 0
    for n in range(10):
        if at + n >= stop:
            raise Wire(f"byte {at}: a number ends after its message")
        byte = data[at + n]
        value |= (byte & 127) << 7 * n
        if byte < 128:
            if value >= 2**64:
                break
            return value, at + n + 1
    raise Wire(f"byte {at}: a number of more than 64 bits")


def find_readable(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    files = [info for info in infos if _NAME.search(info.key.lower())]
    stated = StatedCounts()
    records = RecordCounts(count_records(store, infos, stated), stated)
    return Readable(
        files,
        lambda info: [ImportRun(info, nbytes=info.nbytes)],
        partial(_samples, store, options, records),
        stated=stated,
    )


def _samples(
    store: Store, options: ColumnarOptions, records: "RecordCounts", run: ImportRun
) -> Iterator[ReadSample]:
    for row, _, features in examples(store, run.info, records):
        yield record_sample(features, options, run.info.key, row)


class RecordCounts(NamedTuple):
    """Numbers of records that a `dataset_info.json` states."""

    of: Mapping[str, int]
    """Object key -> stated number of records."""
    stated: StatedCounts
    """Compares them with the numbers there."""


def examples(
    store: Store, info: ObjectInfo, counts: RecordCounts
) -> Iterator[tuple[int, str, dict[str, ExampleFeature]]]:
    """Yield each record's index, location for messages, and features."""
    row = -1
    with open_object(store, info) as file:
        for row, (at, data) in enumerate(records(ByteStream(file, _sniff_codec(file), info.nbytes))):
            where = f"{file.path}, record {row}"
            try:
                features = parse_features(data)
            except Wire as error:
                raise Corrupt(f"{where} at byte {at} is not a tf.train.Example: {error}") from error
            yield row, where, features
    if info.key in counts.of:
        what = f"{TFDS_INFO}, of {store.url}/{info.key},"
        counts.stated.compare(what, "records", counts.of[info.key], row + 1)


def _sniff_codec(file: ObjectFile) -> str | None:
    """Return the compression by the first bytes, because names seldom show it."""
    head = file.read(_HEAD_BYTES)
    file.seek(0)
    is_record = mask_crc32c(head[:8]) == head[8:]  # a record's length may begin as a gzip file does
    if head[:2] == b"\x1f\x8b" and not is_record:
        return "gzip"
    return None


def records(stream: ByteStream) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, data) of each record. Raises: Corrupt."""
    while head := stream.read(_HEAD_BYTES):
        at = stream.at - len(head)
        # Before the length is used: a damaged one could ask for gigabytes.
        if len(head) < _HEAD_BYTES or mask_crc32c(head[:8]) != head[8:]:
            raise Corrupt(
                f"{stream.name}, byte {at}: the length of a record is cut, or its checksum is wrong"
            )
        nbytes = int.from_bytes(head[:8], "little")
        if nbytes > RECORD_BYTES:
            raise Corrupt(
                f"{stream.name}, byte {at}: a record has {nbytes:,} bytes; at most {RECORD_BYTES:,} are read"
            )
        data = stream.read(nbytes)
        if len(data) < nbytes or mask_crc32c(data) != stream.read(4):
            raise Corrupt(
                f"{stream.name}, byte {at}: a record of {nbytes:,} bytes is cut, or its checksum is wrong"
            )
        yield at, data


def record_sample(
    features: dict[str, ExampleFeature], options: ColumnarOptions, object_key: str, row: int
) -> ReadSample:
    """Return a record's sample."""
    where = f"{object_key}, record {row}"
    key = row_key(object_key, row)
    if options.key is not None:
        key = key_of_value(_single(features.get(options.key)), options.key, where)
    fields: dict[str, bytes] = {}
    metadata: dict[str, Any] = {}
    for name, feature in features.items():
        if not len(feature.values) or name == options.key or name in options.without:
            continue
        content = _field_or_value(name, feature, options.fields.get(name), where)
        if isinstance(content, tuple):
            column, data = content
            is_repeated = column in fields
            fields[column] = data
        else:
            column = metadata_name(name)
            is_repeated = column in metadata
            metadata[column] = content
        if is_repeated:
            raise InvalidSample(f"{where}: two features would both be {column!r}; leave one out (--without)")
    return ReadSample(key, fields, metadata)


def _field_or_value(
    name: str, feature: ExampleFeature, word: str | None, where: str
) -> tuple[str, bytes] | int | float | str:
    """Return a feature's field name and bytes, or its metadata value. word: chosen extension."""
    single = _single(feature)
    if isinstance(feature.values, list):
        if single is None:
            raise InvalidSample(
                f"{where}: feature {name!r} has {len(feature.values)} values of bytes, and a field has one: leave it "
                f"out (--without {name})"
            )
        if word is None and isinstance(single, str):
            return check_text(single, name, where)
        (data,) = feature.values
        word = word or sniff_extension(data)
        if not word and isinstance(single, str):
            word = "txt"
        return field_name(name, word), data
    if word is None and isinstance(single, int | float):
        return single
    if not word:
        word = _FLAT[feature.kind]
    values: Any = feature.values
    if word == "json":
        values = values.tolist()
    return field_name(name, word), encode_value(values, word, name, where)


def _single(feature: ExampleFeature | None) -> int | float | str | bytes | None:
    """Return a feature's only value, or None; unknown bytes become text if possible."""
    if feature is None or len(feature.values) != 1:
        return None
    if not isinstance(feature.values, list):
        number: int | float = feature.values[0].item()
        return number
    (data,) = feature.values
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data
    # Some media and tensors are UTF-8 by chance.
    if sniff_extension(data) or _CONTROL.search(text):
        return data
    return text


def mask_crc32c(data: bytes) -> bytes:
    """Return TFRecord's checksum: CRC-32C, rotated, plus a constant."""
    crc = crc32c(data)
    rotated = crc >> 15 | crc << 17
    masked = (rotated + 0xA282EAD8) & 0xFFFFFFFF
    return masked.to_bytes(4, "little")
