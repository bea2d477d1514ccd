"""Read samples of plain values, which LitData stores as an Arrow table behind a chunk's offsets.

Arrow reads the table from memory without a copy, so a value's address gives its offset in the object.
"""

import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from loader.dataset.columnar.arrow_errors import arrow_errors
from loader.dataset.columnar.column_names import field_name, metadata_name
from loader.dataset.columnar.plain_values import OutOfRange, reader_of
from loader.dataset.columnar.record_batches import first_head, record_batches
from loader.errors import InvalidSample, InvalidStore, NotSupported
from loader.storage import Span

from ..reading.indexed import check_apart, corrupt
from ..reading.window import Window
from .litdata_leaves import LeafValues

_MAGIC = b"LDARW01\0"
_TAIL_BYTES = 4 + len(_MAGIC)
Places = list[Span | None]
"""Bytes of each row's value; None without a value."""


def table_rows(window: Window, start: int, n_samples: int) -> Iterator[LeafValues]:
    """Yield the rows of the table at an offset. Memory: the table.

    Raises: Corrupt; InvalidStore for a compressed table; InvalidSample for values that are not contiguous.
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


def _rows(window: Window, start: int, source: pa.Buffer, batch: pa.RecordBatch) -> Iterator[LeafValues]:
    """Yield the rows of a batch."""
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
    """Yield name and values of each column; for mappings with fixed keys, of their values."""
    waiting = [(field.name, batch.column(at)) for at, field in reversed([*enumerate(batch.schema)])]
    while waiting:
        name, array = waiting.pop()
        if not pa.types.is_struct(array.type) or not array.type.num_fields:
            yield name, array
            continue
        inner = zip(array.type, array.flatten(), strict=True)  # nulls of a mapping are nulls of its values
        waiting += reversed([(f"{name}.{field.name}", child) for field, child in inner])


def _word(kind: pa.DataType) -> str:
    """Return the last word of a field; "-" for none, "" for metadata."""
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
    """Return whether a metadata column can hold the values."""
    value_kind = kind.value_type if _is_list(kind) else kind
    plain = (
        pa.types.is_string,
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_null,
    )
    return any(of_kind(value_kind) for of_kind in plain)


def _places(window: Window, start: int, source: pa.Buffer, name: str, array: pa.Array) -> Places:
    """Return the bytes of texts, byte strings or lists of numbers."""
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
    return [Span(*place) if ok else None for *place, ok in zip(firsts, sizes, there, strict=True)]


def _compressed(window: Window) -> InvalidStore:
    return InvalidStore(
        f"{window.name}: its table is compressed: no value can be read by itself. Write the dataset again with "
        "optimize(..., compression=None)"
    )


def _documents(window: Window, name: str, array: pa.Array) -> list[str | None]:
    """Return values as JSON text."""
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
