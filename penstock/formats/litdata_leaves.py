"""Read LitData samples: leaf by leaf, or from the Arrow table after a chunk's last sample, by memory addresses."""

import json
import math
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from loader.dataset.columnar.arrow_errors import arrow_errors
from loader.dataset.columnar.column_names import field_name, metadata_name
from loader.dataset.columnar.plain_values import OutOfRange, reader_of
from loader.dataset.columnar.record_batches import first_head, record_batches
from loader.errors import InvalidSample, InvalidStore, NotSupported
from loader.json_text import MAX_DEPTH, DamagedJson, parse_json
from loader.storage import ByteRange

from .litdata_index import DTYPES, JSON, NUMBERS, Leaf
from .reading.exported import COLUMN_BYTES
from .reading.indexed import check_apart, corrupt
from .reading.object_file import ObjectWindow

NESTED_HEAD = 5
"""Bytes of a JSON leaf's header: kind and count."""
NULL = b"\x0b"
"""JSON leaf of an absent field."""
_DOCUMENT, _TEXTS, _MAPPING, _RECORDS, _TEXT = 0, 1, 5, 6, 7
_FLAT = {2: "i8", 3: "f8"}
_LISTS = {2: "q", 3: "d", 4: "?"}
_SCALARS = {_TEXT: "", 8: "<q", 9: "<d", 10: "<?", 11: "<"}
_OF_RECORDS = {0x10: 11, 0x11: _TEXT, 0x12: 8, 0x13: 9, 0x14: 10}
"""Value kinds of LitData's own JSON encoding."""
_MAGIC = b"LDARW01\0"
_TAIL_BYTES = 4 + len(_MAGIC)
Places = list[ByteRange | None]
"""Byte range of each row's value, or None."""


class LeafValues(NamedTuple):
    fields: dict[str, ByteRange]
    metadata: dict[str, Any]
    """Column -> value."""


def size_of(word: str) -> int:
    return {"bool": 1, "bf16": 2}.get(word) or int(word[1:])


def values_at(
    leaves: tuple[Leaf, ...], window: ObjectWindow, begin: int, end: int
) -> Iterator[tuple[Leaf, ByteRange]]:
    """Yield a sample's leaves and byte ranges; the sample starts with their sizes."""
    at = begin + 4 * len(leaves)
    if at > end:
        raise corrupt(window, begin, f"the sample has {end - begin} bytes, fewer than its leaves need")
    sizes = np.frombuffer(window.read(begin, 4 * len(leaves)), "<u4").tolist()
    if at + sum(sizes) != end:
        raise corrupt(
            window, begin, f"the sample has {end - begin} bytes, and its leaves {at - begin + sum(sizes)}"
        )
    for leaf, nbytes in zip(leaves, sizes, strict=True):
        yield leaf, ByteRange(at, nbytes)
        at += nbytes


def put(leaf: Leaf, window: ObjectWindow, at: ByteRange, out: LeafValues) -> None:
    """Add a leaf's value to `out`, as field or metadata."""
    if leaf.encoding in DTYPES:
        word, shape, start = _array(leaf, window, at)
        out.fields[field_name(leaf.name, word)] = ByteRange(start, at.offset + at.nbytes - start)
        if len(shape) != 1:
            out.metadata[leaf.column] = shape
    elif leaf.encoding in NUMBERS:
        out.metadata[leaf.column] = _number(leaf, window, at)
    elif leaf.encoding == JSON and leaf.column:
        _put_json(leaf, window, at, out)
    elif leaf.encoding == JSON:
        if at.nbytes != len(NULL) or window.read(*at) != NULL:
            out.fields[leaf.field] = document(leaf, window, at)
    else:
        if leaf.word and at.nbytes % size_of(leaf.word):
            raise corrupt(
                window, at.offset, f"leaf {leaf.name!r} has {at.nbytes} bytes, no whole values of {leaf.word}"
            )
        out.fields[leaf.field] = at


def document(leaf: Leaf, window: ObjectWindow, at: ByteRange) -> ByteRange:
    """Return the byte range of a leaf's JSON."""
    head = window.read(at.offset, NESTED_HEAD) if at.nbytes >= NESTED_HEAD else b""
    if head != struct.pack("<BI", _DOCUMENT, max(0, at.nbytes - NESTED_HEAD)):
        raise corrupt(window, at.offset, f"leaf {leaf.name!r} has {at.nbytes} bytes, which are no JSON text")
    return ByteRange(at.offset + NESTED_HEAD, at.nbytes - NESTED_HEAD)


def _array(leaf: Leaf, window: ObjectWindow, at: ByteRange) -> tuple[str, list[int], int]:
    order = ">" if leaf.encoding == "tensor" else "<"
    end, words = at.offset + at.nbytes, DTYPES[leaf.encoding]
    if at.nbytes >= 8:
        dtype, rank = struct.unpack(f"{order}II", window.read(at.offset, 8))
        start = at.offset + 8 + 4 * rank
        if dtype < len(words) and start <= end:
            shape = np.frombuffer(window.read(at.offset + 8, 4 * rank), f"{order}u4").tolist()
            if start + math.prod(shape) * size_of(words[dtype]) == end:
                return words[dtype], shape, start
    raise corrupt(window, at.offset, f"leaf {leaf.name!r} has {at.nbytes} bytes, which are no array")


def _number(leaf: Leaf, window: ObjectWindow, at: ByteRange) -> int | float | bool:
    if at.nbytes != size_of(leaf.word):
        raise corrupt(window, at.offset, f"leaf {leaf.name!r} has {at.nbytes} bytes, no {leaf.encoding}")
    number: int | float | bool = np.frombuffer(
        window.read(*at), "?" if leaf.word == "bool" else f"<{leaf.word}"
    )[0].item()
    return number


def _put_json(leaf: Leaf, window: ObjectWindow, at: ByteRange, out: LeafValues) -> None:
    try:
        kind = window.read(at.offset, 1)[0] if at.nbytes else _DOCUMENT
        if kind in _FLAT:
            if at.nbytes != NESTED_HEAD + 8 * struct.unpack("<I", window.read(at.offset + 1, 4))[0]:
                raise ValueError("it is cut")
            name = field_name(leaf.name, _FLAT[kind])
            out.fields[name] = ByteRange(at.offset + NESTED_HEAD, at.nbytes - NESTED_HEAD)
            return
        if at.nbytes > COLUMN_BYTES:
            raise ValueError(f"it has {at.nbytes:,} bytes; at most {COLUMN_BYTES:,} are read")
        data = window.read(*at)
        value, end = (parse_json(data), len(data)) if kind > 32 else _nested(data, 0, 0)
        if end != len(data):
            raise ValueError(f"it ends after {end} of {len(data)} bytes")
        if value is not None:
            out.metadata[leaf.column] = json.dumps(value, ensure_ascii=False)
    except (DamagedJson, LookupError, struct.error, ValueError) as error:
        raise corrupt(window, at.offset, f"leaf {leaf.name!r} holds no JSON value: {error}") from error


def _nested(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    kind = data[at]
    if kind in _SCALARS:
        return _scalar(data, at + 1, kind)
    n, at = struct.unpack_from("<I", data, at + 1)[0], at + NESTED_HEAD
    if n > len(data) - at or depth > MAX_DEPTH:
        raise ValueError(f"{n} values, of {len(data) - at} bytes")
    if kind == _DOCUMENT:
        return parse_json(data[at : at + n]), at + n
    if kind in _LISTS:
        code = f"<{n}{_LISTS[kind]}"
        return list(struct.unpack_from(code, data, at)), at + struct.calcsize(code)
    if kind == _TEXTS:
        texts = []
        for _ in range(n):
            text, at = _scalar(data, at, _TEXT)
            texts.append(text)
        return texts, at
    if kind == _MAPPING:
        mapping = {}
        for _ in range(n):
            key, at = _scalar(data, at, _TEXT)
            mapping[key], at = _nested(data, at, depth + 1)
        return mapping, at
    if kind == _RECORDS:
        return _records(data, at, n)
    raise ValueError(f"a value of kind {kind}")


def _records(data: bytes, at: int, n: int) -> tuple[list[dict[str, Any]], int]:
    n_keys, at = struct.unpack_from("<I", data, at)[0], at + 4
    keys, rows = list[str](), list[dict[str, Any]]()
    for _ in range(n_keys):
        key, at = _scalar(data, at, _TEXT)
        keys.append(key)
    for _ in range(n):
        row = {}
        for key in keys:
            row[key], at = _scalar(data, at + 1, _OF_RECORDS[data[at]])
        rows.append(row)
    return rows, at


def _scalar(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind == _TEXT:
        start = at + 4
        end = start + struct.unpack_from("<I", data, at)[0]
        if end > len(data):
            raise ValueError("a text is cut")
        return data[start:end].decode(), end
    code = _SCALARS[kind]
    value = struct.unpack_from(code, data, at)
    return (value[0] if value else None), at + struct.calcsize(code)


def table_rows(window: ObjectWindow, start: int, n_samples: int) -> Iterator[LeafValues]:
    """Yield the rows of the table at an offset. Memory: the table.

    Raises: InvalidStore for a compressed table; InvalidSample if a value is not contiguous.
    """
    size = window.nbytes - start - _TAIL_BYTES
    tail = window.read(start + size, _TAIL_BYTES) if size > 0 else b""
    if tail != struct.pack("<I", max(0, size) % 2**32) + _MAGIC:
        raise corrupt(
            window, start, f"behind the last sample are {window.nbytes - start} bytes, which are no table"
        )
    data = window.read(start, size)
    done = 0
    with arrow_errors(f"{window.name}, byte {start}: the table of its samples", damaged="is damaged"):
        source = pa.py_buffer(data)
        head = first_head(pa.BufferReader(source), data)
        if head is not None and head.is_compressed:  # checked before Arrow decompresses it
            raise _compressed(window)
        for batch in record_batches(pa.BufferReader(source), data, window.name)[1]:
            done += batch.num_rows
            if done > n_samples:
                break
            batch.validate(full=True)
            yield from _rows(window, start, source, batch)
    if done != n_samples:
        raise corrupt(window, start, f"the table has {done} rows, and the chunk {n_samples} samples")


def _rows(window: ObjectWindow, start: int, source: pa.Buffer, batch: pa.RecordBatch) -> Iterator[LeafValues]:
    fields, columns = dict[str, Places](), dict[str, list[Any]]()
    names = dict[str, str]()
    for name, array in _leaves(batch):
        kind = array.type
        if pa.types.is_null(kind):
            continue
        if word := _word(kind):
            fields[field_name(name, word.strip("-"))] = _places(window, start, source, name, array)
            continue
        columns[name] = array.to_pylist() if _is_plain(kind) else _documents(window, name, array)
        names[name] = metadata_name(name, "litdata")
    check_apart(names, window.name)
    for number in range(batch.num_rows):
        spans = {name: at for name, places in fields.items() if (at := places[number]) is not None}
        metadata = {
            names[name]: values[number] for name, values in columns.items() if values[number] is not None
        }
        yield LeafValues(spans, metadata)


def _leaves(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
    waiting = [(field.name, batch.column(at)) for at, field in reversed([*enumerate(batch.schema)])]
    while waiting:
        name, array = waiting.pop()
        if not pa.types.is_struct(array.type) or not array.type.num_fields:
            yield name, array
            continue
        inner = zip(array.type, array.flatten(), strict=True)  # flatten() passes nulls on to children
        waiting += reversed([(f"{name}.{field.name}", child) for field, child in inner])


def _word(kind: pa.DataType) -> str:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "txt"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "-"
    if _is_list(kind) and pa.types.is_floating(kind.value_type):
        return f"f{kind.value_type.bit_width // 8}"
    if _is_list(kind) and pa.types.is_integer(kind.value_type):
        return f"{'iu'[pa.types.is_unsigned_integer(kind.value_type)]}{kind.value_type.bit_width // 8}"
    return ""


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_plain(kind: pa.DataType) -> bool:
    value_kind = kind.value_type if _is_list(kind) else kind
    plain = (
        pa.types.is_string,
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_null,
    )
    return any(of_kind(value_kind) for of_kind in plain)


def _places(window: ObjectWindow, start: int, source: pa.Buffer, name: str, array: pa.Array) -> Places:
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    wide = wide or pa.types.is_large_list(array.type)
    width, values = 1, array.buffers()[-1]
    if _is_list(array.type):
        inner = array.values
        if inner.null_count:
            raise InvalidSample(
                f"{window.name}: a list of {name!r} holds a null, and has no values side by side"
            )
        width, values = inner.type.bit_width // 8, inner.buffers()[1]
    edges = np.zeros(len(array) + 1, np.int64)
    if len(array) and (offsets := array.buffers()[1]) is not None:
        size = 8 if wide else 4
        edges = (
            np.frombuffer(offsets, f"<i{size}", len(array) + 1, size * array.offset).astype(np.int64) * width
        )
    low = values.address - source.address if values is not None and values.size else 0
    if not 0 <= low <= low + int(edges[-1]) <= source.size:
        raise _compressed(window)
    there = array.is_valid().to_pylist()
    sizes = np.diff(edges).tolist()
    firsts = (edges[:-1] + low + start).tolist()
    return [ByteRange(*place) if ok else None for *place, ok in zip(firsts, sizes, there, strict=True)]


def _compressed(window: ObjectWindow) -> InvalidStore:
    return InvalidStore(
        f"{window.name}: its table is compressed: no value can be read by itself. Write the dataset again with "
        "optimize(..., compression=None)"
    )


def _documents(window: ObjectWindow, name: str, array: pa.Array) -> list[str | None]:
    value_of, out = reader_of(array, as_text=True), list[str | None]()
    for at in range(len(array)):
        try:
            value = value_of(at)
        except OutOfRange as error:
            raise NotSupported(
                f"{window.name}: {name!r} holds {error}; write the dataset again with each as a key of its sample"
            ) from error
        plain = value.tolist() if isinstance(value, np.ndarray) else value
        out.append(None if value is None else json.dumps(plain, ensure_ascii=False))
    return out
