"""MDS, the shards of MosaicML streaming, read where they lie: the index, and of each shard its offsets and sizes.

A sample's key is its number in the dataset, in decimal. Numbers become metadata, everything else fields.
"""

import math
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...dataset.tables.columns import RESERVED_COLUMNS
from ...errors import Corrupt, InvalidSample, InvalidStore
from ...storage import ObjectInfo, Span, Store
from .exported import KEY, METADATA, Exported, exported_at
from .mds_index import INDEX, NUMBERS_AS_TEXT, SCALARS, WORDS, Column, MdsShard, shards_in
from .sample import NO_METADATA, ForeignSample, Found
from .window import Window

OBJECTS_PER_SHARD = 1
TOLD_BYTES = 2**20
"""Bytes of a key or of the metadata that an export of ours wrote, at most."""
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
"""Number of a dtype in front of an array -> our word for it."""
_NO_COLUMN = re.compile(r"[^A-Za-z0-9_]|^(?=\d)")


class _Value(NamedTuple):
    """A value's place in its shard."""

    column: Column
    """Its column."""
    at: int
    """First byte."""
    nbytes: int
    """Bytes."""


def look(store: Store, infos: list[ObjectInfo]) -> Found:
    """Return the shards that the index of a place lists. Raises: as `shards_in`; InvalidStore; StoreError."""
    objects = {info.key: info for info in infos}
    if INDEX not in objects:
        if deeper := [key for key in objects if key.endswith(f"/{INDEX}")]:
            raise InvalidStore(
                f"{store.url} has no {INDEX}, and {deeper[0]} ({len(deeper)} such) below: register the folder of one"
            )
        return Found([], partial(samples, store, {}, None))
    name = f"{store.url}/{INDEX}"
    shards = {shard.key: shard for shard in shards_in(store.get(INDEX).data, name, objects)}
    exported = exported_at(store, infos, "mds")
    return Found([info for info in infos if info.key in shards], partial(samples, store, shards, exported))


def samples(
    store: Store, shards: dict[str, MdsShard], exported: Exported | None, info: ObjectInfo
) -> Iterator[ForeignSample]:
    """Yield the samples of a shard, in order. Raises: Corrupt with the byte; InvalidSample; Changed; StoreError."""
    shard, window = shards[info.key], Window(store, info)
    try:
        own = {KEY, METADATA} - exported.fields if exported else set[str]()
        names = _names(shard, window.name, exported)
        for number, (begin, end) in enumerate(_offsets(shard, window)):
            fields, metadata, told = dict[str, Span](), dict[str, Any](), dict[str, Span]()
            for value in _values(shard, window, begin, end):
                name = names[value.column.name]
                if value.column.name in own:
                    told[name] = Span(value.at, value.nbytes)
                elif value.column.encoding == "ndarray":
                    word, shape, start = _array(window, value)
                    fields[_with_word(value.column.name, word)] = Span(start, value.at + value.nbytes - start)
                    if len(shape) != 1:
                        metadata[name] = list(shape)
                elif value.column.encoding in (*SCALARS, *NUMBERS_AS_TEXT):
                    metadata[name] = _number(window, value)
                else:
                    fields[name] = Span(value.at, value.nbytes)
            one = ForeignSample(str(shard.first + number), fields, metadata)
            yield _restored(one, told, exported, window) if exported else one
    finally:
        window.close()


def _restored(
    sample: ForeignSample, told: Mapping[str, Span], exported: Exported, window: Window
) -> ForeignSample:
    """Return a sample of an export of ours with its key and its columns. Raises: Corrupt."""
    key, metadata, source = sample.key, NO_METADATA, NO_METADATA
    for at in told.values():
        if at.nbytes > TOLD_BYTES:
            raise _corrupt(
                window, at.offset, f"key or metadata has {at.nbytes:,} bytes; at most {TOLD_BYTES:,} are read"
            )
    if KEY in told:
        try:
            key = window.read(*told[KEY]).decode()
        except UnicodeDecodeError as error:
            raise _corrupt(window, told[KEY].offset, f"the key is no UTF-8: {error}") from error
    if METADATA in told:
        at = told[METADATA]
        metadata, source = exported.read(window.read(*at), f"{window.name}, byte {at.offset}", key)
    return ForeignSample(key, sample.fields, metadata, source)


def _names(shard: MdsShard, name: str, exported: Exported | None) -> dict[str, str]:
    """Return column -> its field; of numbers, and of arrays' shapes, the metadata column. Raises: InvalidSample."""
    out, taken = dict[str, str](), dict[str, str]()
    for column in shard.columns:
        array = column.encoding == "ndarray"
        if exported and (column.name in exported.fields or column.name in (KEY, METADATA)):
            mine = column.name
        elif array or column.encoding in (*SCALARS, *NUMBERS_AS_TEXT):
            mine = _NO_COLUMN.sub("_", f"{column.name}_shape" if array else column.name)
            mine = f"mds_{mine}" if mine in RESERVED_COLUMNS else mine
            if mine in taken:
                raise InvalidSample(
                    f"{name}: the columns {taken[mine]!r} and {column.name!r} would both be the metadata column "
                    f"{mine!r}; write the dataset again with other names"
                )
            taken[mine] = column.name
        elif column.encoding == "bytes":
            mine = column.name
        else:
            word = column.encoding.replace("[", "-").removesuffix("]")
            mine = _with_word(column.name, WORDS.get(column.encoding, word))
        out[column.name] = mine
    if all(column.encoding in (*SCALARS, *NUMBERS_AS_TEXT) for column in shard.columns):
        raise InvalidSample(f"{name} has numbers alone, and no column that could be a field")
    return out


def _with_word(name: str, word: str) -> str:
    return name if name.rpartition(".")[2].lower() == word else f"{name}.{word}"


def _offsets(shard: MdsShard, window: Window) -> Iterator[tuple[int, int]]:
    """Return the first byte of each sample, and that behind it. Raises: Corrupt."""
    head = 4 * (shard.n_samples + 2)
    if head > window.nbytes:
        raise _corrupt(window, 0, f"the shard is cut: {shard.n_samples} samples have {head} bytes of offsets")
    table = np.frombuffer(window.read(0, head), "<u4").astype(np.int64)
    if table[0] != shard.n_samples:
        raise _corrupt(window, 0, f"the shard has {table[0]} samples, and its index says {shard.n_samples}")
    offsets = table[1:]
    wrong = np.flatnonzero(np.diff(offsets, prepend=head) < 0)
    if len(wrong):
        at = int(wrong[0])
        raise _corrupt(window, 4 * (at + 1), f"the offset {offsets[at]} lies in front of the one before")
    if offsets[-1] != window.nbytes:
        raise _corrupt(
            window, head - 4, f"the last sample ends at {offsets[-1]}, and the object at {window.nbytes}"
        )
    return zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)


def _values(shard: MdsShard, window: Window, begin: int, end: int) -> Iterator[_Value]:
    """Yield the places of a sample's values. Sizes of columns that vary stand in front. Raises: Corrupt."""
    varying = sum(not column.size for column in shard.columns)
    fixed = sum(column.size for column in shard.columns)
    at = begin + 4 * varying
    if at + fixed > end:
        raise _corrupt(window, begin, f"the sample has {end - begin} bytes, fewer than its columns need")
    sizes = [end - at - fixed]  # one that varies has the rest: nothing is read for it
    if varying != 1:
        sizes = np.frombuffer(window.read(begin, 4 * varying), "<u4").tolist()
    if at + fixed + sum(sizes) != end:
        raise _corrupt(
            window, begin, f"the sample has {end - begin} bytes, and its columns {sum(sizes) + fixed}"
        )
    rest = iter(sizes)
    for column in shard.columns:
        nbytes = column.size or next(rest)
        yield _Value(column, at, nbytes)
        at += nbytes


def _array(window: Window, value: _Value) -> tuple[str, tuple[int, ...], int]:
    """Return word, shape and first byte of an array's values. Raises: Corrupt."""
    column, at = value.column, value.at
    word, shape, end = column.word, column.shape, value.at + value.nbytes
    if not word:
        told = window.read(at, 1) if at < end else b""
        word, at = _DTYPES.get(told[0], "") if told else "", at + 1
    if not shape and at < end:
        (told_shape,) = window.read(at, 1)
        rank, width = told_shape >> 2, 2 ** (told_shape & 3)
        if at + 1 + rank * width <= end:
            shape = tuple(np.frombuffer(window.read(at + 1, rank * width), f"<u{width}").tolist())
        at += 1 + rank * width
    if not word or not shape or at + math.prod(shape) * int(word[1:]) != end:
        raise _corrupt(
            window, value.at, f"column {column.name!r} has {value.nbytes} bytes, which are no array"
        )
    return word, shape, at


def _number(window: Window, value: _Value) -> int | float | str:
    """Return a number; a decimal one as its text. Raises: Corrupt."""
    column, data = value.column, window.read(value.at, value.nbytes)
    if column.word:
        found: int | float = np.frombuffer(data, f"<{column.word}")[0].item()
        return found
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
        raise _corrupt(
            window, value.at, f"column {column.name!r} has {data[:40]!r}, no number of 64 bits"
        ) from error


def _corrupt(window: Window, at: int, what: str) -> Corrupt:
    return Corrupt(f"{window.name}, byte {at}: {what}")
