"""Import TFRecord files of `tf.train.Example`, plain or with gzip, without TensorFlow: each record is a sample.

A feature of one number is metadata. Several numbers are a field of flat values, `<name>.i8` or `<name>.f4`.
Bytes are a field whose extension follows from its first bytes, or metadata if they are text. `--field NAME=EXT`
overrides this.
"""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from loader.dataset.columnar.column_names import (
    check_text,
    field_name,
    key_of_value,
    metadata_name,
    row_key,
    word_of,
)
from loader.dataset.columnar.plain_values import encoded
from loader.dataset.shards.shard import crc32c
from loader.errors import Corrupt, InvalidSample
from loader.storage import ObjectInfo, Store

from ..importing.byte_stream import ByteStream
from ..importing.importer import ImportRun, Options, Readable, ReadSample
from ..reading.object_file import ObjectFile, opened
from .example_wire import ExampleFeature, Wire, features_of

OPTIONS = frozenset({"key", "fields"})
RECORD_BYTES = 2**28
"""Limit on the bytes of a record in memory."""
_NAME = re.compile(r"\.tfrecords?(-\d+-of-\d+)?(\.gz)?$")
_HEAD_BYTES = 12
"""Bytes of a record's length and its checksum."""
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_FLAT = {"int64": "i8", "float": "f4"}


def find_objects(store: Store, infos: list[ObjectInfo], options: Options) -> Readable:
    """Return the objects with such endings. An object is one run, read from beginning to end."""
    files = [info for info in infos if _NAME.search(info.key.lower())]
    return Readable(
        files, lambda info: [ImportRun(info, nbytes=info.nbytes)], partial(_samples, store, options)
    )


def _samples(store: Store, options: Options, run: ImportRun) -> Iterator[ReadSample]:
    for row, _, features in examples(store, run.info):
        yield sample_of(features, options, run.info.key, row)


def examples(store: Store, info: ObjectInfo) -> Iterator[tuple[int, str, dict[str, ExampleFeature]]]:
    """Yield number, place for messages, and features of each record of an object.

    Raises: Corrupt with the byte; Changed; StoreError.
    """
    with opened(store, info) as file:
        for row, (at, data) in enumerate(records(ByteStream(file, _codec_of(file), info.nbytes))):
            where = f"{file.path}, record {row}"
            try:
                features = features_of(data)
            except Wire as error:
                raise Corrupt(f"{where} at byte {at} is no tf.train.Example: {error}") from error
            yield row, where, features


def _codec_of(file: ObjectFile) -> str | None:
    """Return the compression of an object, from its first bytes: names seldom tell."""
    head = file.read(_HEAD_BYTES)
    file.seek(0)
    return "gzip" if head[:2] == b"\x1f\x8b" and masked_crc32c(head[:8]) != head[8:] else None


def records(stream: ByteStream) -> Iterator[tuple[int, bytes]]:
    """Yield the first byte and the data of each record. Raises: Corrupt; errors of Arrow."""
    while head := stream.read(_HEAD_BYTES):
        at = stream.at - len(head)
        if len(head) < _HEAD_BYTES or masked_crc32c(head[:8]) != head[8:]:
            raise Corrupt(
                f"{stream.name}, byte {at}: the length of a record is cut, or its checksum is wrong"
            )
        nbytes = int.from_bytes(head[:8], "little")
        if nbytes > RECORD_BYTES:
            raise Corrupt(
                f"{stream.name}, byte {at}: a record has {nbytes:,} bytes; at most {RECORD_BYTES:,} are read"
            )
        data = stream.read(nbytes)
        if len(data) < nbytes or masked_crc32c(data) != stream.read(4):
            raise Corrupt(
                f"{stream.name}, byte {at}: a record of {nbytes:,} bytes is cut, or its checksum is wrong"
            )
        yield at, data


def sample_of(features: dict[str, ExampleFeature], options: Options, object_key: str, row: int) -> ReadSample:
    """Return the sample of a record. Raises: InvalidSample, with object, record and feature."""
    where = f"{object_key}, record {row}"
    key = row_key(object_key, row)
    if options.key is not None:
        key = key_of_value(_single(features.get(options.key)), options.key, where)
    fields, metadata = dict[str, bytes](), dict[str, Any]()
    for name, feature in features.items():
        if not len(feature.values) or name == options.key or name in options.without:
            continue
        content = _field_or_value(name, feature, options.fields.get(name), where)
        into: dict[str, Any] = fields if isinstance(content, tuple) else metadata
        column, value = content if isinstance(content, tuple) else (metadata_name(name), content)
        if column in into:
            raise InvalidSample(f"{where}: two features would both be {column!r}; leave one out (--without)")
        into[column] = value
    return ReadSample(key, fields, metadata)


def _field_or_value(
    name: str, feature: ExampleFeature, word: str | None, where: str
) -> tuple[str, bytes] | int | float | str:
    """Return name and bytes of a feature's field, or its value as metadata.

    word: chosen extension, "" for the default, None if the feature was not named.
    """
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
        return field_name(name, word or word_of(data) or ("txt" if isinstance(single, str) else "")), data
    if word is None and isinstance(single, int | float):
        return single
    word = word or _FLAT[feature.kind]
    values: Any = feature.values.tolist() if word == "json" else feature.values
    return field_name(name, word), encoded(values, word, name, where)


def _single(feature: ExampleFeature | None) -> int | float | str | bytes | None:
    """Return the value of a feature with a single value; bytes as text if they are text of no known format."""
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
    return data if word_of(data) or _CONTROL.search(text) else text


def masked_crc32c(data: bytes) -> bytes:
    """Return TFRecord's checksum of bytes: CRC-32C, rotated, plus a constant."""
    crc = crc32c(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")
