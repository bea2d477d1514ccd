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
from loader.dataset.columnar.plain_values import OutOfRange, value_reader
from loader.dataset.columnar.record_batches import first_head, record_batches
from loader.errors import InvalidSample, InvalidStore, NotSupported
from loader.json_text import MAX_DEPTH, DamagedJson, parse_json
from loader.storage import ByteRange

from .litdata_index import DTYPES, JSON, NUMBERS, Leaf
from .reading.exported import COLUMN_BYTES
from .reading.indexed import check_apart, corrupt
from .reading.object_file import ForwardReader

NESTED_HEAD = 5
"""Bytes of a JSON leaf's header: kind and count."""
NULL = b"\x0b"
"""JSON leaf of an absent field."""
# A value of LitData's own JSON encoding begins with a byte of its kind.
_DOCUMENT = 0
_TEXTS = 1
_MAPPING = 5
_RECORDS = 6
_TEXT = 7
_FLAT = {2: "i8", 3: "f8"}
"""Kind of a list of numbers, which becomes a field -> dtype word."""
_LISTS = {2: "q", 3: "d", 4: "?"}
"""Kind of a list -> `struct` code of its values."""
_SCALARS = {_TEXT: "", 8: "<q", 9: "<d", 10: "<?", 11: "<"}
"""Kind of one value -> its `struct` format; 11 is null, without bytes."""
_OF_RECORDS = {0x10: 11, 0x11: _TEXT, 0x12: 8, 0x13: 9, 0x14: 10}
"""Kind of a value in a record -> the same kind elsewhere."""
_MAGIC = b"LDARW01\0"
"""Last bytes of a chunk with a table, after the table's size."""
_TAIL_BYTES = 4 + len(_MAGIC)
Places = list[ByteRange | None]
"""Byte range of each row's value, or None."""


class LeafValues(NamedTuple):
    fields: dict[str, ByteRange]
    metadata: dict[str, Any]
    """Column -> value."""


def leaf_size(word: str) -> int:
    """Return the bytes of one value. word: dtype word, not ""."""
    return {"bool": 1, "bf16": 2}.get(word) or int(word[1:])


def sample_leaves(
    leaves: tuple[Leaf, ...], reader: ForwardReader, begin: int, end: int
) -> Iterator[tuple[Leaf, ByteRange]]:
    """Yield a sample's leaves and byte ranges; the sample starts with their sizes."""
    header_bytes = 4 * len(leaves)  # a uint32 per leaf
    offset = begin + header_bytes
    if offset > end:
        raise corrupt(reader, begin, f"the sample has {end - begin} bytes, fewer than its leaves need")
    sizes = np.frombuffer(reader.read(begin, header_bytes), "<u4").tolist()
    stated_bytes = header_bytes + sum(sizes)
    if begin + stated_bytes != end:
        message = f"the sample has {end - begin} bytes, and its leaves {stated_bytes}"
        raise corrupt(reader, begin, message, what="sample", given=end - begin, accepted=stated_bytes)
    for leaf, nbytes in zip(leaves, sizes, strict=True):
        yield leaf, ByteRange(offset, nbytes)
        offset += nbytes


def add_leaf(leaf: Leaf, reader: ForwardReader, at: ByteRange, out: LeafValues) -> None:
    """Add a leaf's value to `out`, as field or metadata."""
    if leaf.encoding in DTYPES:
        _put_array(leaf, reader, at, out)
        return
    if leaf.encoding in NUMBERS:
        out.metadata[leaf.column] = _number(leaf, reader, at)
        return
    if leaf.encoding == JSON and leaf.column:
        _put_json(leaf, reader, at, out)
        return
    # Without a column: a leaf of penstock's own export, whose JSON stays the field that it was.
    if leaf.encoding == JSON:
        is_null = at.nbytes == len(NULL) and reader.read(*at) == NULL
        if not is_null:
            out.fields[leaf.field] = json_range(leaf, reader, at)
        return
    # Without a dtype word: a file of any length.
    if leaf.word and at.nbytes % leaf_size(leaf.word):
        raise corrupt(
            reader, at.offset, f"leaf {leaf.name!r} has {at.nbytes} bytes, no whole values of {leaf.word}"
        )
    out.fields[leaf.field] = at


def json_range(leaf: Leaf, reader: ForwardReader, at: ByteRange) -> ByteRange:
    """Return the byte range of a leaf's JSON."""
    text_bytes = at.nbytes - NESTED_HEAD
    if text_bytes >= 0:
        head = reader.read(at.offset, NESTED_HEAD)
        if head == struct.pack("<BI", _DOCUMENT, text_bytes):
            return ByteRange(at.offset + NESTED_HEAD, text_bytes)
    raise corrupt(reader, at.offset, f"leaf {leaf.name!r} has {at.nbytes} bytes, which are not JSON text")


def _put_array(leaf: Leaf, reader: ForwardReader, at: ByteRange, out: LeafValues) -> None:
    word, shape, start = _array(leaf, reader, at)
    end = at.offset + at.nbytes
    out.fields[field_name(leaf.name, word)] = ByteRange(start, end - start)
    if len(shape) != 1:
        out.metadata[leaf.column] = shape


def _array(leaf: Leaf, reader: ForwardReader, at: ByteRange) -> tuple[str, list[int], int]:
    """Return an array's dtype, its shape, and the offset of its values."""
    order = ">" if leaf.encoding == "tensor" else "<"
    words = DTYPES[leaf.encoding]
    end = at.offset + at.nbytes
    if at.nbytes >= 8:
        dtype, rank = struct.unpack(f"{order}II", reader.read(at.offset, 8))
        start = at.offset + 8 + 4 * rank
        # The rank of a damaged leaf may be any number: no shape is read that ends after the leaf.
        if dtype < len(words) and start <= end:
            dimensions = reader.read(at.offset + 8, 4 * rank)
            shape = np.frombuffer(dimensions, f"{order}u4").tolist()
            value_bytes = math.prod(shape) * leaf_size(words[dtype])
            if start + value_bytes == end:
                return words[dtype], shape, start
    raise corrupt(
        reader,
        at.offset,
        f"leaf {leaf.name!r} has {at.nbytes} bytes, which are not an array",
        what=f"leaf {leaf.name!r}",
        given=at.nbytes,
        accepted="an array",
    )


def _number(leaf: Leaf, reader: ForwardReader, at: ByteRange) -> int | float | bool:
    if at.nbytes != leaf_size(leaf.word):
        raise corrupt(reader, at.offset, f"leaf {leaf.name!r} has {at.nbytes} bytes, no {leaf.encoding}")
    dtype = "?"
    if leaf.word != "bool":
        dtype = f"<{leaf.word}"
    number: int | float | bool = np.frombuffer(reader.read(*at), dtype)[0].item()
    return number


def _put_json(leaf: Leaf, reader: ForwardReader, at: ByteRange, out: LeafValues) -> None:
    try:
        kind = _DOCUMENT  # of an empty leaf, which is damaged and fails below
        if at.nbytes:
            kind = reader.read(at.offset, 1)[0]
        if kind in _FLAT:
            name = field_name(leaf.name, _FLAT[kind])
            out.fields[name] = _flat_values(reader, at)
            return
        value = _json_value(reader, at, kind)
    except (DamagedJson, LookupError, struct.error, ValueError) as error:
        raise corrupt(reader, at.offset, f"leaf {leaf.name!r} holds no JSON value: {error}") from error
    if value is not None:
        out.metadata[leaf.column] = json.dumps(value, ensure_ascii=False)


def _flat_values(reader: ForwardReader, at: ByteRange) -> ByteRange:
    (n_values,) = struct.unpack("<I", reader.read(at.offset + 1, 4))
    if at.nbytes != NESTED_HEAD + 8 * n_values:
        raise ValueError("it is cut")
    return ByteRange(at.offset + NESTED_HEAD, at.nbytes - NESTED_HEAD)


def _json_value(reader: ForwardReader, at: ByteRange, kind: int) -> Any:
    if at.nbytes > COLUMN_BYTES:
        raise ValueError(f"it has {at.nbytes:,} bytes; at most {COLUMN_BYTES:,} are read")
    data = reader.read(*at)
    if kind > 32:  # a printable character: the leaf is JSON text, without a header
        return parse_json(data)
    value, end = _nested_value(data, 0, 0)
    if end != len(data):
        raise ValueError(f"it ends after {end} of {len(data)} bytes")
    return value


def _nested_value(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """Return the value that starts at an offset, and the offset of its end."""
    kind = data[at]
    if kind in _SCALARS:
        return _scalar(data, at + 1, kind)
    (n,) = struct.unpack_from("<I", data, at + 1)
    at += NESTED_HEAD
    # Each value has a byte or more: a larger number is damage, and would fill the memory.
    if n > len(data) - at or depth > MAX_DEPTH:
        raise ValueError(f"{n} values, of {len(data) - at} bytes")
    if kind == _DOCUMENT:
        return parse_json(data[at : at + n]), at + n
    if kind in _LISTS:
        code = f"<{n}{_LISTS[kind]}"
        numbers = struct.unpack_from(code, data, at)
        return list(numbers), at + struct.calcsize(code)
    if kind == _TEXTS:
        return _text_list(data, at, n)
    if kind == _MAPPING:
        mapping = {}
        for _ in range(n):
            key, at = _scalar(data, at, _TEXT)
            mapping[key], at = _nested_value(data, at, depth + 1)
        return mapping, at
    if kind == _RECORDS:
        return _records(data, at, n)
    raise ValueError(f"a value of kind {kind}")


def _text_list(data: bytes, at: int, n: int) -> tuple[list[str], int]:
    texts = []
    for _ in range(n):
        text, at = _scalar(data, at, _TEXT)
        texts.append(text)
    return texts, at


def _records(data: bytes, at: int, n: int) -> tuple[list[dict[str, Any]], int]:
    """Return `n` mappings whose keys are stored once, and the offset of their end."""
    (n_keys,) = struct.unpack_from("<I", data, at)
    keys, at = _text_list(data, at + 4, n_keys)
    rows: list[dict[str, Any]] = []
    for _ in range(n):
        row = {}
        for key in keys:
            kind = _OF_RECORDS[data[at]]
            row[key], at = _scalar(data, at + 1, kind)
        rows.append(row)
    return rows, at


def _scalar(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    """Return the value after a kind's byte, and the offset of its end."""
    if kind == _TEXT:
        (nbytes,) = struct.unpack_from("<I", data, at)
        start = at + 4
        end = start + nbytes
        if end > len(data):
            raise ValueError("a text is cut")
        return data[start:end].decode(), end
    code = _SCALARS[kind]
    values = struct.unpack_from(code, data, at)
    end = at + struct.calcsize(code)
    if not values:  # null has no bytes
        return None, end
    return values[0], end


def table_rows(reader: ForwardReader, start: int, n_samples: int) -> Iterator[LeafValues]:
    """Yield the rows of the table at an offset. Memory: the table.

    Raises: InvalidStore for a compressed table; InvalidSample if a value is not contiguous.
    """
    data = _table_bytes(reader, start)
    n_rows = 0
    with arrow_errors(f"{reader.name}, byte {start}: the table of its samples", damaged="is damaged"):
        source = pa.py_buffer(data)
        head = first_head(pa.BufferReader(source), data)
        if head is not None and head.is_compressed:  # checked before Arrow decompresses it
            raise _compression_error(reader)
        _, batches = record_batches(pa.BufferReader(source), data, reader.name)
        for batch in batches:
            n_rows += batch.num_rows
            if n_rows > n_samples:
                break
            batch.validate(full=True)
            yield from _rows(reader, start, source, batch)
    if n_rows != n_samples:
        raise corrupt(reader, start, f"the table has {n_rows} rows, and the chunk {n_samples} samples")


def _table_bytes(reader: ForwardReader, start: int) -> bytes:
    """Return the table between an offset and the tail, which repeats the table's size."""
    size = reader.nbytes - start - _TAIL_BYTES
    if size > 0:
        tail = reader.read(start + size, _TAIL_BYTES)
        if tail == struct.pack("<I", size % 2**32) + _MAGIC:
            return reader.read(start, size)
    raise corrupt(reader, start, f"the {reader.nbytes - start} bytes after the last sample are not a table")


def _rows(
    reader: ForwardReader, start: int, source: pa.Buffer, batch: pa.RecordBatch
) -> Iterator[LeafValues]:
    fields: dict[str, Places] = {}
    columns: dict[str, list[Any]] = {}
    names: dict[str, str] = {}
    for name, array in _leaves(batch):
        kind = array.type
        if pa.types.is_null(kind):
            continue
        word = _word(kind)
        if word:
            field = field_name(name, word.strip("-"))
            fields[field] = _places(reader, start, source, name, array)
            continue
        if _is_plain(kind):
            columns[name] = array.to_pylist()
        else:
            columns[name] = _documents(reader, name, array)
        names[name] = metadata_name(name, "litdata")
    check_apart(names, reader.name)
    for row in range(batch.num_rows):
        spans: dict[str, ByteRange] = {}
        for field, places in fields.items():
            place = places[row]
            if place is not None:
                spans[field] = place
        metadata = {}
        for name, values in columns.items():
            if values[row] is not None:
                metadata[names[name]] = values[row]
        yield LeafValues(spans, metadata)


def _leaves(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
    """Yield the columns, with the fields of a struct in its place."""
    stack = [(field.name, batch.column(number)) for number, field in enumerate(batch.schema)]
    stack.reverse()  # pop() takes the first column
    while stack:
        name, array = stack.pop()
        if not pa.types.is_struct(array.type) or not array.type.num_fields:
            yield name, array
            continue
        children = array.flatten()  # passes nulls on to children, unlike field()
        inner = [(f"{name}.{field.name}", child) for field, child in zip(array.type, children, strict=True)]
        stack += reversed(inner)


def _word(kind: pa.DataType) -> str:
    """Return a field's dtype, "txt" for texts, "-" for bytes, or "" for metadata."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "txt"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "-"
    if not _is_list(kind):
        return ""
    value_type = kind.value_type
    if pa.types.is_floating(value_type):
        return f"f{value_type.bit_width // 8}"
    if pa.types.is_unsigned_integer(value_type):
        return f"u{value_type.bit_width // 8}"
    if pa.types.is_integer(value_type):
        return f"i{value_type.bit_width // 8}"
    return ""


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether a column of values, or of lists of them, becomes metadata without JSON."""
    value_kind = kind.value_type if _is_list(kind) else kind
    plain = (
        pa.types.is_string,
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_null,
    )
    return any(of_kind(value_kind) for of_kind in plain)


def _places(reader: ForwardReader, start: int, source: pa.Buffer, name: str, array: pa.Array) -> Places:
    """Return where the table's bytes hold each value of a column."""
    offsets = array.buffers()[1]
    width = 1
    values = array.buffers()[-1]
    if _is_list(array.type):
        inner = array.values
        if inner.null_count:
            raise InvalidSample(
                f"{reader.name}: a list of {name!r} holds a null, and has no values side by side"
            )
        width = inner.type.bit_width // 8
        values = inner.buffers()[1]
    edges = np.zeros(len(array) + 1, np.int64)  # [rows + 1]: offsets of the values, in bytes
    if len(array) and offsets is not None:
        size = _offset_bytes(array.type)
        counts = np.frombuffer(offsets, f"<i{size}", len(array) + 1, size * array.offset)
        edges = counts.astype(np.int64) * width
    low = 0
    if values is not None and values.size:
        low = values.address - source.address
    # Arrow decompresses into memory of its own: the values are then outside the table's bytes.
    if not 0 <= low <= low + int(edges[-1]) <= source.size:
        raise _compression_error(reader)
    starts = (edges[:-1] + low + start).tolist()  # [rows]: offsets in the object
    sizes = np.diff(edges).tolist()
    is_valid = array.is_valid().to_pylist()
    places: Places = []
    for offset, nbytes, has_value in zip(starts, sizes, is_valid, strict=True):
        places.append(ByteRange(offset, nbytes) if has_value else None)
    return places


def _offset_bytes(kind: pa.DataType) -> int:
    """Return the size of an offset in a column of texts, bytes or lists."""
    is_large = (
        pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) or pa.types.is_large_list(kind)
    )
    return 8 if is_large else 4


def _compression_error(reader: ForwardReader) -> InvalidStore:
    message = (
        f"{reader.name}: its table is compressed: no value can be read by itself. Write the dataset again with "
        "optimize(..., compression=None)"
    )
    return InvalidStore(message, what="compression", where=reader.name, accepted="chunks without compression")


def _documents(reader: ForwardReader, name: str, array: pa.Array) -> list[str | None]:
    """Return each value as JSON, or None for a null."""
    value_of = value_reader(array, as_text=True)
    out: list[str | None] = []
    for row in range(len(array)):
        try:
            value = value_of(row)
        except OutOfRange as error:
            raise NotSupported(
                f"{reader.name}: {name!r} holds {error}; write the dataset again with each as a key of its sample"
            ) from error
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if value is None:
            out.append(None)
        else:
            out.append(json.dumps(value, ensure_ascii=False))
    return out
