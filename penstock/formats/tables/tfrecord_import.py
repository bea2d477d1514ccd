"""TFRecord files of `tf.train.Example`, plain or with gzip, read without TensorFlow: each record is a sample.

A feature of one number is metadata. One of several is a field of flat values, `<name>.i8` or `<name>.f4`. One of bytes
is a field whose extension follows from its first bytes, or metadata where it is text. `--field NAME=EXT` chooses
otherwise.
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
from loader.dataset.columnar.field_values import encoded
from loader.dataset.shards.shard import crc32c
from loader.errors import Corrupt, InvalidSample
from loader.storage import ObjectInfo, Store

from ..importing.byte_stream import ByteStream
from ..importing.importer import Options, Readable, ReadSample, Run
from ..reading.object_file import ObjectFile, opened
from .example_wire import Feature, Wire, features_of

OPTIONS = frozenset({"key", "fields"})
RECORD_BYTES = 2**28
"""Bytes of a record, at most: it is held in memory."""
_NAME = re.compile(r"\.tfrecords?(-\d+-of-\d+)?(\.gz)?$")
_HEAD_BYTES = 12
"""Length of a record, eight bytes, and its checksum."""
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_FLAT = {"int64": "i8", "float": "f4"}


def find_objects(store: Store, infos: list[ObjectInfo], options: Options) -> Readable:
    """Return the objects whose names end so. An object is one run: it is read from its beginning to its end."""
    mine = [info for info in infos if _NAME.search(info.key.lower())]
    return Readable(mine, lambda info: [Run(info, nbytes=info.nbytes)], partial(_samples, store, options))


def _samples(store: Store, options: Options, run: Run) -> Iterator[ReadSample]:
    """Yield the samples. Raises: Corrupt with the byte; InvalidSample with the record; Changed; StoreError."""
    for row, _, features in examples(store, run.info):
        yield sample_of(features, options, run.info.key, row)


def examples(store: Store, info: ObjectInfo) -> Iterator[tuple[int, str, dict[str, Feature]]]:
    """Yield the number of each record of an object, its place for messages, and its features.

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
    """Return the compression of an object by its first bytes: names seldom tell it."""
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


def sample_of(features: dict[str, Feature], options: Options, object_key: str, row: int) -> ReadSample:
    """Return the sample of a record. Raises: InvalidSample, with object, record and feature."""
    where = f"{object_key}, record {row}"
    key = row_key(object_key, row)
    if options.key is not None:
        key = key_of_value(_one(features.get(options.key)), options.key, where)
    fields, metadata = dict[str, bytes](), dict[str, Any]()
    for name, feature in features.items():
        if not len(feature.values) or name == options.key or name in options.without:
            continue
        made = _made(name, feature, options.fields.get(name), where)
        into: dict[str, Any] = fields if isinstance(made, tuple) else metadata
        mine, value = made if isinstance(made, tuple) else (metadata_name(name), made)
        if mine in into:
            raise InvalidSample(f"{where}: two features would both be {mine!r}; leave one out (--without)")
        into[mine] = value
    return ReadSample(key, fields, metadata)


def _made(name: str, feature: Feature, word: str | None, where: str) -> tuple[str, bytes] | int | float | str:
    """Return name and bytes of the field that a feature becomes, or its value as metadata. Raises: InvalidSample.

    word: extension that was chosen, "" for ours, None where the feature was not named.
    """
    one = _one(feature)
    if isinstance(feature.values, list):
        if one is None:
            raise InvalidSample(
                f"{where}: feature {name!r} has {len(feature.values)} values of bytes, and a field has one: leave it "
                f"out (--without {name})"
            )
        if word is None and isinstance(one, str):
            return check_text(one, name, where)
        (data,) = feature.values
        return field_name(name, word or word_of(data) or ("txt" if isinstance(one, str) else "")), data
    if word is None and isinstance(one, int | float):
        return one
    word = word or _FLAT[feature.kind]
    values: Any = feature.values.tolist() if word == "json" else feature.values
    return field_name(name, word), encoded(values, word, name, where)


def _one(feature: Feature | None) -> int | float | str | bytes | None:
    """Return the value of a feature that has one: bytes as text where they are text and no known format's."""
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
    """Return the checksum of bytes as TFRecord has it: rotated, and a constant added."""
    crc = crc32c(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")
