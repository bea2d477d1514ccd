"""Import JSON lines, uncompressed or compressed: each line is an object whose members are columns."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from loader.dataset.columnar.column_names import check_text, field_name, key_of_value, metadata_name, row_key
from loader.dataset.columnar.plain_values import encoded
from loader.errors import InvalidSample
from loader.limits import MAX_LINE_BYTES
from loader.storage import ObjectInfo, Store

from ..importing.importer import ColumnarOptions, ImportRun, Readable, ReadSample
from ..reading.object_file import ObjectFile, opened

COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
"""File name ending -> Arrow's name for the compression."""
_READ_BYTES = 2**20
OPTIONS = frozenset({"key", "fields"})
_ENDINGS = tuple(f"{name}{more}" for name in (".jsonl", ".ndjson") for more in ("", *COMPRESSED))


def sample_of(values: Mapping[str, Any], options: ColumnarOptions, object_key: str, row: int) -> ReadSample:
    """Return a row as a sample: lists and objects become fields, other values metadata."""
    where = f"{object_key}, row {row}"
    key = row_key(object_key, row)
    if options.key is not None:
        key = key_of_value(values.get(options.key), options.key, where)
    fields, metadata = dict[str, bytes](), dict[str, Any]()
    for column, value in values.items():
        if value is None or column == options.key or column in options.without:
            continue
        if column in options.fields or isinstance(value, list | dict):
            word = options.fields.get(column) or ("txt" if isinstance(value, str) else "json")
            into: dict[str, Any] = fields
            content: Any
            name, content = field_name(column, word), encoded(value, word, column, where)
        else:
            into, name = metadata, metadata_name(column)
            content = check_text(value, column, where) if isinstance(value, str) else value
        if name in into:
            raise InvalidSample(f"{where}: two columns would both be {name!r}; leave one out (--without)")
        into[name] = content
    return ReadSample(key, fields, metadata)


def chunks(file: ObjectFile) -> Iterator[bytes]:
    """Yield an object's bytes, decompressed according to its name's ending."""
    codec = next((codec for ending, codec in COMPRESSED.items() if file.path.endswith(ending)), None)
    source: Any = file
    if codec:
        source = pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)
    while data := source.read(_READ_BYTES):
        yield data


def lines(file: ObjectFile) -> Iterator[bytes]:
    """Yield a text object's lines, without line ends. Raises: InvalidSample for a line that is too long."""
    rest, number = b"", 0
    for data in chunks(file):
        first, *more = data.split(b"\n")
        rest += first
        for line in more:
            yield rest.removesuffix(b"\r")
            rest, number = line, number + 1
        if len(rest) > MAX_LINE_BYTES:
            raise InvalidSample(
                f"{file.path}, row {number} has more than {MAX_LINE_BYTES:,} bytes; keep what is large in other files"
            )
    if rest:
        yield rest.removesuffix(b"\r")


def find_objects(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    """Return the JSON lines objects, one run each."""
    files = [info for info in infos if info.key.lower().endswith(_ENDINGS)]
    return Readable(
        files, lambda info: [ImportRun(info, nbytes=info.nbytes)], partial(_samples, store, options)
    )


def _samples(store: Store, options: ColumnarOptions, run: ImportRun) -> Iterator[ReadSample]:
    with opened(store, run.info) as file:
        for row, line in enumerate(lines(file)):
            if row == 0:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line and not line.isspace():
                yield sample_of(_parsed(line, f"{run.info.key}, row {row}"), options, run.info.key, row)


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    try:
        values = DECODER.decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidSample(f"{where} is not JSON: {error}; repair the line") from error
    if not isinstance(values, dict):
        raise InvalidSample(f"{where} is a {type(values).__name__}, not an object with columns")
    return values


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object has one name twice")
    return members


DECODER = json.JSONDecoder(object_pairs_hook=_object)
