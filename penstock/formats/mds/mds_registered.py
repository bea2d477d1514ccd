"""Register MDS shards: read the index, and the offsets and sizes of each shard.

A sample's key is its decimal number in the dataset, with the split's folder in front. Numbers become metadata,
everything else fields.
"""

import itertools
import math
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from loader.dataset.columnar.column_names import field_name, metadata_name
from loader.errors import InvalidSample
from loader.storage import ObjectInfo, Span, Store

from ..reading.exported import KEY, METADATA, Exported, exported_at
from ..reading.indexed import (
    Reader,
    check_apart,
    check_indexed,
    check_size,
    corrupt,
    folders_in,
    lacking_of,
    listed_objects,
    offsets_in,
    split_reader,
)
from ..reading.sample import ForeignSample, FoundObjects
from ..reading.window import Window
from .mds_index import NUMBERS_AS_TEXT, SCALARS, WORDS, MdsColumn, MdsShard, shards_in

OBJECTS_PER_SHARD = 1
SHARDS = re.compile(r"(^|/)shard\.\d+\.mds(\.\w+)?$")
"""Names of shards, plain and compressed."""
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
"""Number of a dtype in front of an array -> penstock's word for it."""


class _Value(NamedTuple):
    """A value's column and bytes in its shard."""

    column: MdsColumn
    """Column of the value."""
    at: int
    """Offset of its first byte."""
    nbytes: int
    """Number of bytes."""


def find_objects(store: Store, infos: list[ObjectInfo]) -> FoundObjects:
    """Return the shards that the index of a place lists, or the indexes of its splits.

    Raises: as `shards_in`; StoreError.
    """
    check_indexed(store, infos, SHARDS, MAKE_INDEX)
    readers, lacking = dict[str, Reader](), list[str]()
    for folder in folders_in(infos):
        name = f"{store.url}/{folder.index_key}"
        listed = shards_in(store.get(folder.index_key).data, name)
        lacking += lacking_of(name, {shard.key: shard.nbytes for shard in listed}, folder.objects)
        shards = {f"{folder.prefix}{shard.key}": shard for shard in listed}
        exported = exported_at(store, folder.objects.values(), "mds", folder=folder.prefix)
        read = partial(samples, store, shards, exported)
        readers |= dict.fromkeys(shards, split_reader(folder, read, named=exported is not None))
    return listed_objects(infos, readers, lacking)


def samples(
    store: Store, shards: dict[str, MdsShard], exported: Exported | None, info: ObjectInfo
) -> Iterator[ForeignSample]:
    """Yield the samples of a shard, in order. Raises: Corrupt with the byte; InvalidSample; Changed; StoreError."""
    shard, window = shards[info.key], Window(store, info)
    try:
        check_size(store, info, shard.nbytes)
        own = {KEY, METADATA} - exported.fields if exported else set[str]()
        names = _names(shard, window.name, exported)
        for number, (begin, end) in enumerate(_places(shard, window)):
            fields, metadata, export_columns = dict[str, Span](), dict[str, Any](), dict[str, Span]()
            for value in _values(shard, window, begin, end):
                name = names[value.column.name]
                if value.column.name in own:
                    export_columns[name] = Span(value.at, value.nbytes)
                elif value.column.encoding == "ndarray":
                    word, shape, start = _array(window, value)
                    fields[field_name(value.column.name, word)] = Span(start, value.at + value.nbytes - start)
                    if len(shape) != 1:
                        metadata[name] = list(shape)
                elif value.column.encoding in (*SCALARS, *NUMBERS_AS_TEXT):
                    metadata[name] = _number(window, value)
                else:
                    fields[name] = Span(value.at, value.nbytes)
            sample = ForeignSample(str(shard.first + number), fields, metadata)
            yield exported.restored(sample, export_columns, window) if exported else sample
    finally:
        window.close()


def _names(shard: MdsShard, name: str, exported: Exported | None) -> dict[str, str]:
    """Return column -> its field, or its metadata column for numbers and shapes of arrays."""
    out, columns = dict[str, str](), dict[str, str]()
    for column in shard.columns:
        array = column.encoding == "ndarray"
        if exported and (column.name in exported.fields or column.name in (KEY, METADATA)):
            out[column.name] = column.name
        elif array or column.encoding in (*SCALARS, *NUMBERS_AS_TEXT):
            columns[column.name] = metadata_name(f"{column.name}_shape" if array else column.name, "mds")
        elif column.encoding == "bytes":
            out[column.name] = column.name
        else:
            word = column.encoding.replace("[", "-").removesuffix("]")
            out[column.name] = field_name(column.name, WORDS.get(column.encoding, word))
    check_apart(columns, name)
    if all(column.encoding in (*SCALARS, *NUMBERS_AS_TEXT) for column in shard.columns):
        raise InvalidSample(f"{name} has only numbers, and no column that could be a field")
    return out | columns


def _places(shard: MdsShard, window: Window) -> Iterator[tuple[int, int]]:
    """Return the first byte and the end of each sample."""
    offsets = offsets_in(window, shard.n_samples, "shard")
    if offsets[-1] != window.nbytes:
        raise corrupt(
            window,
            4 * (shard.n_samples + 1),
            f"the last sample ends at {offsets[-1]}, and the object at {window.nbytes}",
        )
    return itertools.pairwise(offsets.tolist())


def _values(shard: MdsShard, window: Window, begin: int, end: int) -> Iterator[_Value]:
    """Yield a sample's values; sizes of varying columns are in front."""
    varying = sum(not column.size for column in shard.columns)
    fixed = sum(column.size for column in shard.columns)
    at = begin + 4 * varying
    if at + fixed > end:
        raise corrupt(window, begin, f"the sample has {end - begin} bytes, fewer than its columns need")
    sizes = [end - at - fixed]  # one varying column has the rest: nothing is read for it
    if varying != 1:
        sizes = np.frombuffer(window.read(begin, 4 * varying), "<u4").tolist()
    if at + fixed + sum(sizes) != end:
        raise corrupt(
            window, begin, f"the sample has {end - begin} bytes, and its columns {sum(sizes) + fixed}"
        )
    rest = iter(sizes)
    for column in shard.columns:
        nbytes = column.size or next(rest)
        yield _Value(column, at, nbytes)
        at += nbytes


def _array(window: Window, value: _Value) -> tuple[str, tuple[int, ...], int]:
    """Return word, shape and first byte of an array's values."""
    column, at = value.column, value.at
    word, shape, end = column.word, column.shape, value.at + value.nbytes
    if not word:
        code = window.read(at, 1) if at < end else b""
        word, at = _DTYPES.get(code[0], "") if code else "", at + 1
    if not shape and at < end:
        (packed_shape,) = window.read(at, 1)
        rank, width = packed_shape >> 2, 2 ** (packed_shape & 3)
        if at + 1 + rank * width <= end:
            shape = tuple(np.frombuffer(window.read(at + 1, rank * width), f"<u{width}").tolist())
        at += 1 + rank * width
    if not word or not shape or at + math.prod(shape) * int(word[1:]) != end:
        raise corrupt(
            window, value.at, f"column {column.name!r} has {value.nbytes} bytes, which are no array"
        )
    return word, shape, at


def _number(window: Window, value: _Value) -> int | float | str:
    """Return a number; a decimal as text."""
    column, data = value.column, window.read(value.at, value.nbytes)
    if column.word:
        number: int | float = np.frombuffer(data, f"<{column.word}")[0].item()
        return number
    try:
        text = data.decode()
        if column.encoding == "str_decimal":
            return text
        if column.encoding == "str_float":
            return float(text)
        if not -(2**63) <= int(text) < 2**64:
            raise ValueError("beyond 64 bits")
        return int(text)
    except ValueError as error:
        raise corrupt(
            window, value.at, f"column {column.name!r} has {data[:40]!r}, no number of 64 bits"
        ) from error
