"""Text objects: lines and compressed bytes, and the samples that their rows become."""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from loader.dataset.columnar.choices import Options, ReadSample
from loader.dataset.columnar.column_names import check_text, field_name, key_of_value, metadata_name, row_key
from loader.dataset.columnar.plain_values import encoded
from loader.errors import InvalidSample
from loader.limits import MAX_LINE_BYTES

from ..reading.object_file import ObjectFile


def sample_of(values: Mapping[str, Any], options: Options, object_key: str, row: int) -> ReadSample:
    """Return the sample of a row: lists and objects become fields, numbers and texts metadata, unless options differ.

    Raises: InvalidSample, with object, row and column.
    """
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


COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
"""Ending of a name -> Arrow's name of its compression."""
_READ_BYTES = 2**20


def chunks(file: ObjectFile) -> Iterator[bytes]:
    """Yield the bytes of an object, decompressed if its name has an ending of `COMPRESSED`. Raises: ArrowException."""
    codec = next((codec for ending, codec in COMPRESSED.items() if file.path.endswith(ending)), None)
    source: Any = file
    if codec:
        source = pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)
    while data := source.read(_READ_BYTES):
        yield data


def lines(file: ObjectFile) -> Iterator[bytes]:
    """Yield the lines of a text object, without line ends. Raises: InvalidSample for a line that is too long."""
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
