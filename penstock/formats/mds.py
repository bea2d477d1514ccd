"""Register MDS shards, and import compressed ones, which are decompressed whole.

A key is the sample's decimal index in the dataset, after the split's folder. Numbers become metadata.
"""

import itertools
import json
import math
import re
from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from loader.dataset.columnar.column_names import field_name, metadata_name
from loader.errors import Corrupt, InvalidSample, InvalidStore, NotSupported
from loader.json_text import DamagedJson, parse_json_object
from loader.keywords import is_whole_number
from loader.storage import ByteRange, ObjectInfo, Store

from .importer import ColumnarOptions, ImportRun, Readable, ReadSample, list_runs, with_bytes
from .reading.exported import KEY, METADATA, Exported, find_export
from .reading.indexed import (
    Reader,
    check_apart,
    check_size,
    compare_files,
    corrupt,
    list_objects,
    read_indexes,
    read_offsets,
    split_reader,
)
from .reading.object_file import ForwardReader, Unpacked, open_object
from .reading.sample import ForeignSample, FoundObjects
from .reading.stated_counts import StatedCounts

SCALARS = {
    "int": "i8",
    **{f"{sign}int{8 * n}": f"{kind}{n}" for sign, kind in (("", "i"), ("u", "u")) for n in (1, 2, 4, 8)},
    **{f"float{8 * n}": f"f{n}" for n in (2, 4, 8)},
}
"""Encoding of one number -> dtype word."""
NUMBERS_AS_TEXT = ("str_int", "str_float", "str_decimal")
WORDS = {"str": "txt", "json": "json", "jpeg": "jpg", "jpeg_array": "jpg", "jpegarray": "jpg", "png": "png"}
"""Encoding -> field name's last word."""
BYTES = ("bytes", "pkl", "pil", "list[pil]", "list[jpeg]", "list[png]")
"""Encodings that become a field unchanged."""
_ARRAY = re.compile(
    r"ndarray(:(?P<dtype>u?int(8|16|32|64)|float(16|32|64))(:(?P<shape>[1-9]\d*(,[1-9]\d*)*))?)?"
)

OBJECTS_PER_SHARD = 1
SHARDS = re.compile(r"(^|/)shard\.\d+\.mds(\.\w+)?$")
"""Shard names, uncompressed and compressed."""
MAKE_INDEX = (
    "MDSWriter.finish() of MosaicML streaming writes it, and streaming.base.util.merge_index(folder) joins the indexes "
    "of several folders"
)
_DTYPES = {
    8: "u1",
    9: "i1",
    16: "u2",
    17: "i2",
    18: "f2",
    32: "u4",
    33: "i4",
    34: "f4",
    64: "u8",
    65: "i8",
    66: "f8",
}


class MdsColumn(NamedTuple):
    name: str
    encoding: str
    """Without an array's dtype and shape."""
    size: int
    """Bytes of every value; 0 if they vary."""
    word: str
    """Dtype word of a number or array; "" if arrays have their own."""
    shape: tuple[int, ...]
    """Shape of every array; () if they have their own."""


class MdsShard(NamedTuple):
    key: str
    """Object key."""
    nbytes: int
    """Size in bytes."""
    n_samples: int
    """Number of samples."""
    first: int
    """Index of its first sample in the dataset."""
    columns: tuple[MdsColumn, ...]
    """In the order of their values."""


def parse_shards(data: bytes, name: str) -> list[MdsShard]:
    """Return the shards that an index lists. name: for errors. Raises: InvalidStore if compressed."""
    try:
        listed = parse_json_object(data)["shards"]
        if not isinstance(listed, list):
            raise TypeError(f"shards is a {type(listed).__name__}, no list")
    except (DamagedJson, KeyError, TypeError) as error:
        message = f"{name}, byte 0: it is not an index of MDS shards: {error!r}"
        raise Corrupt(message, where=name, accepted="an index of MDS shards") from error
    shards: dict[str, MdsShard] = {}
    first = 0
    for number, entry in enumerate(listed):
        try:
            shard = _shard(entry, first)
        except (KeyError, TypeError, ValueError) as error:
            message = f"{name}: shards[{number}] is not of MDS, version 2: {error!r}"
            raise Corrupt(
                message, what=f"shards[{number}]", where=name, given=str(error), accepted="MDS, version 2"
            ) from error
        if entry.get("compression") or entry.get("zip_data"):
            raise InvalidStore(
                f"{name}: {shard.key} is compressed: no sample can be read by itself. Copy its samples "
                "(penstock import mds-compressed), or write the dataset again with MDSWriter(compression=None)",
                what=f"compression of {shard.key}",
                where=name,
                accepted="shards without compression",
            )
        if shard.key in shards:
            raise Corrupt(f"{name}: shards[{number}] is {shard.key}, and it comes twice")
        shards[shard.key] = shard
        first += shard.n_samples
    return list(shards.values())


def _shard(entry: Any, first: int) -> MdsShard:
    if (entry["format"], entry["version"]) != ("mds", 2):
        raise ValueError(f"format {entry['format']!r}, version {entry['version']!r}")
    raw = entry["raw_data"]
    column_lists = (entry["column_names"], entry["column_encodings"], entry["column_sizes"])
    if not all(type(values) is list for values in column_lists):
        raise TypeError(f"columns {column_lists!r}")
    numbers = (raw["bytes"], entry["samples"])
    are_numbers = all(is_whole_number(n, 0, 2**32 - 1) for n in numbers)  # offsets in a shard are uint32
    if not are_numbers or type(raw["basename"]) is not str:
        raise ValueError(f"raw_data {raw!r}, samples {entry['samples']!r}")
    columns = tuple(_column(*column) for column in zip(*column_lists, strict=True))
    names = {column.name for column in columns}
    if not columns or len(names) < len(columns):
        raise ValueError(f"column_names {column_lists[0]!r}")
    return MdsShard(raw["basename"], *numbers, first, columns)


def _column(name: Any, encoding: Any, size: Any) -> MdsColumn:
    word = ""
    shape: tuple[int, ...] = ()
    nbytes = 0  # values vary in size
    array = _ARRAY.fullmatch(encoding)
    if array:
        if array["dtype"]:
            word = SCALARS[array["dtype"]]
        if array["shape"]:
            shape = tuple(map(int, array["shape"].split(",")))
            nbytes = math.prod(shape) * int(word[1:])
    elif encoding in SCALARS:
        word = SCALARS[encoding]
        nbytes = int(word[1:])
    elif encoding not in (*WORDS, *BYTES, *NUMBERS_AS_TEXT):
        raise ValueError(f"encoding {encoding!r} of column {name!r}")
    has_valid_size = size is None or type(size) is int
    if type(name) is not str or not name or not has_valid_size or (size or 0) != nbytes:
        raise ValueError(f"column {name!r} of {encoding!r} has the size {size!r}, not {nbytes or None}")
    if array:
        encoding = "ndarray"
    return MdsColumn(name, encoding, nbytes, word, shape)


class _ColumnValue(NamedTuple):
    column: MdsColumn
    at: int
    nbytes: int


def find_objects(store: Store, infos: list[ObjectInfo]) -> FoundObjects:
    readers = dict[str, Reader]()
    stated = StatedCounts()
    left_out = set[str]()
    for folder, name, data in read_indexes(store, infos, SHARDS, MAKE_INDEX):
        listed = parse_shards(data, name)
        compare_files(stated, name, {shard.key: shard.nbytes for shard in listed}, folder)
        shards = {f"{folder.prefix}{shard.key}": shard for shard in listed}
        exported = find_export(store, folder.objects.values(), "mds", folder=folder.prefix)
        read = partial(samples, store, shards, exported, without=left_out)
        readers |= dict.fromkeys(shards, split_reader(folder, read, named=exported is not None))
    return list_objects(infos, readers, stated, left_out)


def samples(
    store: Store,
    shards: dict[str, MdsShard],
    exported: Exported | None,
    info: ObjectInfo,
    *,
    without: Container[str] = (),
) -> Iterator[ForeignSample]:
    """Yield a shard's samples. without: names of columns to leave out."""
    shard = shards[info.key]
    reader = ForwardReader(store, info)
    try:
        check_size(store, info, shard.nbytes)
        export_names: set[str] = set()  # columns that an export of penstock added
        if exported:
            export_names = {KEY, METADATA} - exported.fields
        names = _names(shard, reader.name, exported)
        for number, (begin, end) in enumerate(_places(shard, reader)):
            fields: dict[str, ByteRange] = {}
            metadata: dict[str, Any] = {}
            export_columns: dict[str, ByteRange] = {}
            for value in _values(shard, reader, begin, end):
                column = value.column
                name = names[column.name]
                if column.name in without or name in without:
                    continue
                if column.name in export_names:
                    export_columns[name] = ByteRange(value.at, value.nbytes)
                elif column.encoding == "ndarray":
                    word, shape, start = _array(reader, value)
                    nbytes = value.at + value.nbytes - start
                    fields[field_name(column.name, word)] = ByteRange(start, nbytes)
                    if len(shape) != 1:  # a field is flat, so only a vector needs no shape
                        metadata[name] = list(shape)
                elif column.encoding in (*SCALARS, *NUMBERS_AS_TEXT):
                    metadata[name] = _number(reader, value)
                else:
                    fields[name] = ByteRange(value.at, value.nbytes)
            sample = ForeignSample(str(shard.first + number), fields, metadata)
            if exported:
                sample = exported.restored(sample, export_columns, reader)
            yield sample
    finally:
        reader.close()


def _names(shard: MdsShard, name: str, exported: Exported | None) -> dict[str, str]:
    """Return column -> its field or metadata column, an array's shape. name: of the object, for errors."""
    fields: dict[str, str] = {}
    columns: dict[str, str] = {}
    for column in shard.columns:
        if exported and (column.name in exported.fields or column.name in (KEY, METADATA)):
            fields[column.name] = column.name
        elif column.encoding == "ndarray":  # its field's name ends in a value's dtype: see `samples`
            columns[column.name] = metadata_name(f"{column.name}_shape", "mds")
        elif column.encoding in (*SCALARS, *NUMBERS_AS_TEXT):
            columns[column.name] = metadata_name(column.name, "mds")
        elif column.encoding == "bytes":
            fields[column.name] = column.name
        else:
            word = column.encoding.replace("[", "-").removesuffix("]")
            fields[column.name] = field_name(column.name, WORDS.get(column.encoding, word))
    check_apart(columns, name)
    if all(column.encoding in (*SCALARS, *NUMBERS_AS_TEXT) for column in shard.columns):
        message = f"{name} has only numbers, and no column that could be a field"
        raise InvalidSample(message, what="columns", where=name, accepted="a column that could be a field")
    return fields | columns


def _places(shard: MdsShard, reader: ForwardReader) -> Iterator[tuple[int, int]]:
    offsets = read_offsets(reader, shard.n_samples, "shard")
    if offsets[-1] != reader.nbytes:
        raise corrupt(
            reader,
            4 * (shard.n_samples + 1),
            f"the last sample ends at {offsets[-1]}, and the object at {reader.nbytes}",
        )
    return itertools.pairwise(offsets.tolist())


def _values(shard: MdsShard, reader: ForwardReader, begin: int, end: int) -> Iterator[_ColumnValue]:
    varying = sum(not column.size for column in shard.columns)  # their sizes, uint32, precede the values
    fixed = sum(column.size for column in shard.columns)
    at = begin + 4 * varying
    if at + fixed > end:
        raise corrupt(reader, begin, f"the sample has {end - begin} bytes, fewer than its columns need")
    if varying == 1:  # a single varying column takes the rest, so its size is not read
        sizes = [end - at - fixed]
    else:
        sizes = np.frombuffer(reader.read(begin, 4 * varying), "<u4").tolist()
    if at + fixed + sum(sizes) != end:
        message = f"the sample has {end - begin} bytes, and its columns {sum(sizes) + fixed}"
        raise corrupt(reader, begin, message, what="sample", given=end - begin, accepted=sum(sizes) + fixed)
    rest = iter(sizes)
    for column in shard.columns:
        nbytes = column.size or next(rest)
        yield _ColumnValue(column, at, nbytes)
        at += nbytes


def _array(reader: ForwardReader, value: _ColumnValue) -> tuple[str, tuple[int, ...], int]:
    """Return an array's dtype word, its shape, and its values' offset. Reads what the column does not fix."""
    column = value.column
    word = column.word
    shape = column.shape
    at = value.at
    end = value.at + value.nbytes
    if not word:
        if at < end:
            (code,) = reader.read(at, 1)
            word = _DTYPES.get(code, "")
        at += 1
    if not shape and at < end:
        # One byte holds the rank, and in its low two bits the width of a dimension.
        (packed_shape,) = reader.read(at, 1)
        rank = packed_shape >> 2
        width = 2 ** (packed_shape & 3)
        at += 1
        if at + rank * width <= end:
            dimensions = np.frombuffer(reader.read(at, rank * width), f"<u{width}")
            shape = tuple(dimensions.tolist())
        at += rank * width
    if not word or not shape or at + math.prod(shape) * int(word[1:]) != end:
        what = f"column {column.name!r}"
        message = f"{what} has {value.nbytes} bytes, which are not an array"
        raise corrupt(reader, value.at, message, what=what, given=value.nbytes, accepted="an array")
    return word, shape, at


def _number(reader: ForwardReader, value: _ColumnValue) -> int | float | str:
    column = value.column
    data = reader.read(value.at, value.nbytes)
    if column.word:
        number: int | float = np.frombuffer(data, f"<{column.word}")[0].item()
        return number
    try:
        text = data.decode()
        if column.encoding == "str_decimal":
            return text
        if column.encoding == "str_float":
            return float(text)
        if not _WHOLE_NUMBER.fullmatch(text):
            raise ValueError("no whole number")
    except ValueError as error:
        what = f"column {column.name!r}"
        message = f"{what} has {data[:40]!r}, no number"
        raise corrupt(reader, value.at, message, what=what, given=data[:40], accepted="a number") from error
    # Python refuses to parse thousands of digits, which any library of big numbers writes.
    if len(text) <= _MOST_DIGITS:
        number = int(text)
        if -(2**63) <= number < 2**64:
            return number
    raise NotSupported(
        f"{reader.name}, byte {value.at}: column {column.name!r} has the number {text[:40]} of {len(text)} characters; "
        f"metadata holds 64 bits. Leave the column out: --without {column.name}",
        what=f"column {column.name!r}",
        where=f"{reader.name}, byte {value.at}",
        given=text[:40],
        accepted="a number of 64 bits",
    )


_WHOLE_NUMBER = re.compile(r"\s*[+-]?\d+(_\d+)*\s*")
_MOST_DIGITS = 100
"""Most characters of a number that may fit 64 bits, with leading zeros."""

OPTIONS = frozenset[str]()
SHARD_BYTES = 2**30
"""Largest decompressed shard, in bytes; MDSWriter's default is 64 MiB."""
_CODECS = {"zstd": "zstd", "gz": "gzip", "bz2": "bz2", "br": "brotli", "snappy": "snappy"}


class _Compressed(NamedTuple):
    shard: MdsShard
    nbytes: int
    codec: str


def find_readable(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    """Return the compressed shards that indexes list.

    Raises: InvalidStore if a shard is not compressed, or Arrow does not have its codec.
    """
    shards: dict[str, MdsShard] = {}
    readers: dict[str, Callable[[ImportRun], Iterator[ReadSample]]] = {}
    stated = StatedCounts()
    for folder, name, data in read_indexes(store, infos, SHARDS, MAKE_INDEX):
        listed = _shards(data, name)
        sizes = {key: compressed.nbytes for key, compressed in listed.items()}
        compare_files(stated, name, sizes, folder)
        by_key = {f"{folder.prefix}{key}": compressed for key, compressed in listed.items()}
        shards |= {key: compressed.shard for key, compressed in by_key.items()}
        read = partial(_shard_samples, store, by_key, options.without)
        readers |= dict.fromkeys(by_key, split_reader(folder, read, named=False))
    return list_runs(infos, shards, readers, stated)


def _shards(data: bytes, name: str) -> dict[str, _Compressed]:
    """Return compressed file -> shard, from an index's bytes. name: of the index, for errors."""
    files: dict[str, tuple[str, int, str]] = {}  # shard -> (compressed file, bytes, codec)
    try:
        index = parse_json_object(data)
        for entry in index["shards"]:
            # `parse_shards` reads the rest as an index of uncompressed shards.
            compressed_file = entry.pop("zip_data")
            basename = entry["raw_data"]["basename"]
            compression = str(entry.pop("compression"))
            codec = _CODECS.get(compression.partition(":")[0])
            if not compressed_file or codec is None:
                raise InvalidStore(
                    f"{name}: {basename} has the compression {compression}; accepted: "
                    f"{', '.join(_CODECS)}. Shards without one: penstock import mds"
                )
            files[basename] = str(compressed_file["basename"]), int(compressed_file["bytes"]), codec
        plain = parse_shards(json.dumps(index).encode(), name)
    except (DamagedJson, KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{name}, byte 0: it is not an index of MDS shards: {error!r}") from error
    shards = {}
    for shard in plain:
        key, nbytes, codec = files[shard.key]
        shards[key] = _Compressed(shard._replace(key=key), nbytes, codec)
    return shards


def _shard_samples(
    store: Store, shards: Mapping[str, _Compressed], without: frozenset[str], run: ImportRun
) -> Iterator[ReadSample]:
    info = run.info
    compressed = shards[info.key]
    shard = compressed.shard
    check_size(store, info, compressed.nbytes)
    if shard.nbytes > SHARD_BYTES:
        raise InvalidSample(
            f"{store.url}/{info.key} has {shard.nbytes:,} bytes decompressed; at most {SHARD_BYTES:,} are read: write "
            "the dataset again with a smaller size_limit"
        )
    with open_object(store, info) as file:
        data = _decompress(file.read(), compressed.codec, shard.nbytes)
    if len(data) != shard.nbytes:
        raise Corrupt(
            f"{store.url}/{info.key} becomes {len(data):,} bytes or more; its index gives {shard.nbytes:,}"
        )
    plain = ObjectInfo(key=info.key, nbytes=shard.nbytes, etag="")
    unpacked = cast(Store, Unpacked(store.url, data))
    for sample in samples(unpacked, {info.key: shard}, None, plain, without=without):
        yield with_bytes(sample, data)


def _decompress(data: bytes, codec: str, nbytes: int) -> bytes:
    if codec == "snappy":  # snappy data is one block, whose size must be known
        return bytes(pa.Codec(codec).decompress(data, nbytes))
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        return bytes(stream.read(nbytes + 1))
