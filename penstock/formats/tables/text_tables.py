"""Text tables, uncompressed or compressed: CSV, JSON lines, and JSON. Each row is a sample.

CSV values are text under the names of the first line; JSON members are columns. A `*.json` file is an array of objects
or concatenated objects, read forward: memory holds one object and one chunk.
"""

import codecs
import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa

from loader.dataset.columnar.column_names import (
    check_number,
    check_text,
    field_name,
    key_of_value,
    metadata_name,
    row_key,
)
from loader.dataset.columnar.plain_values import encode_value
from loader.errors import Corrupt, InvalidSample
from loader.limits import MAX_JSON_CHARACTERS, MAX_LINE_BYTES, limit_message
from loader.storage import ObjectInfo, Store

from ..importer import ColumnarOptions, ImportRun, Readable, ReadSample
from ..reading.object_file import ObjectFile, open_object

COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
"""File name ending -> Arrow's compression."""
_READ_BYTES = 2**20
_SPACE = " \t\r\n"
_NEAR = 16
"""A parse error this near the end, in characters, may only mean that more must be read."""


@dataclass(frozen=True)
class TextTables:
    """A text format's importer."""

    endings: tuple[str, ...]
    """File name endings; compressed ones have another after it."""
    read: Callable[[ObjectFile, ColumnarOptions, str], Iterator[ReadSample]]
    """Yields an open object's samples; the last argument is its key."""

    OPTIONS: ClassVar = frozenset({"key", "fields"})

    def find_readable(self, store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
        endings = tuple(f"{ending}{more}" for ending in self.endings for more in ("", *COMPRESSED))
        files = [info for info in infos if info.key.lower().endswith(endings)]
        samples = partial(self._samples, store, options)
        return Readable(files, lambda info: [ImportRun(info, nbytes=info.nbytes)], samples)

    def _samples(self, store: Store, options: ColumnarOptions, run: ImportRun) -> Iterator[ReadSample]:
        with open_object(store, run.info) as file:
            yield from self.read(file, options, run.info.key)


def row_sample(values: Mapping[str, Any], options: ColumnarOptions, object_key: str, row: int) -> ReadSample:
    """Return a row as a sample: lists and objects become fields, other values metadata."""
    where = f"{object_key}, row {row}"
    key = row_key(object_key, row)
    if options.key is not None:
        key = key_of_value(values.get(options.key), options.key, where)
    fields = dict[str, bytes]()
    metadata = dict[str, Any]()
    for column, value in values.items():
        if value is None or column == options.key or column in options.without:
            continue
        if column in options.fields or isinstance(value, list | dict):
            word = options.fields.get(column) or ("txt" if isinstance(value, str) else "json")
            into: dict[str, Any] = fields
            content: Any
            name = field_name(column, word)
            content = encode_value(value, word, column, where)
        else:
            into = metadata
            name = metadata_name(column)
            content = value
            if isinstance(value, str):
                content = check_text(value, column, where)
            elif isinstance(value, int):
                content = check_number(value, column, where)
        if name in into:
            raise InvalidSample(f"{where}: two columns would both be {name!r}; leave one out (--without)")
        into[name] = content
    return ReadSample(key, fields, metadata)


def chunks(file: ObjectFile) -> Iterator[bytes]:
    """Yield an object's bytes, decompressed by its name's ending."""
    codec = next((codec for ending, codec in COMPRESSED.items() if file.path.endswith(ending)), None)
    source: Any = file
    if codec:
        source = pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)
    while data := source.read(_READ_BYTES):
        yield data


def lines(file: ObjectFile) -> Iterator[bytes]:
    """Yield lines without their ends. Raises: InvalidSample for one that is too long."""
    rest = b""
    number = 0
    for data in chunks(file):
        first, *more = data.split(b"\n")
        rest += first
        for line in more:
            yield rest.removesuffix(b"\r")
            rest = line
            number = number + 1
        if len(rest) > MAX_LINE_BYTES:
            raise InvalidSample(
                f"{file.path}, row {number} has more than {MAX_LINE_BYTES:,} bytes; keep what is large in other files"
            )
    if rest:
        yield rest.removesuffix(b"\r")


def _json_lines(file: ObjectFile, options: ColumnarOptions, key: str) -> Iterator[ReadSample]:
    for row, line in enumerate(lines(file)):
        if row == 0:
            # A byte order mark, which some editors write.
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line and not line.isspace():
            yield row_sample(_parse_line(line, f"{key}, row {row}"), options, key, row)


def _parse_line(line: bytes, where: str) -> dict[str, Any]:
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


class _RowLines:
    """The lines of a CSV file. A row has several if its cells have line breaks."""

    def __init__(self, file: ObjectFile) -> None:
        self._name = file.path
        self._lines = lines(file)
        self.nbytes = 0
        """Bytes of the current row."""

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.nbytes += len(line) + 1
            if self.nbytes > MAX_LINE_BYTES:
                raise InvalidSample(
                    limit_message(f"{self._name}: a row", self.nbytes, "bytes", MAX_LINE_BYTES)
                )
            # With its end, by which csv joins a cell of several lines.
            yield line.decode("utf-8-sig") + "\n"


def _csv_rows(file: ObjectFile, options: ColumnarOptions, key: str) -> Iterator[ReadSample]:
    # The module's limit is 131,072 characters a cell and holds for the process; `lines` bounds the rows.
    csv.field_size_limit(MAX_LINE_BYTES)
    row_lines = _RowLines(file)
    rows = csv.reader(row_lines, strict=True)
    row = -1
    try:
        columns = next(rows, [])
        if len(set(columns)) < len(columns):
            raise InvalidSample(f"{key} has two columns of one name: {', '.join(columns)}")
        for row, values in enumerate(rows):
            row_lines.nbytes = 0
            if len(values) != len(columns):
                raise InvalidSample(f"{key}, row {row} has {len(values)} values, and {len(columns)} columns")
            # CSV has no null: an empty cell is none.
            values_of = {column: value or None for column, value in zip(columns, values, strict=True)}
            yield row_sample(values_of, options, key, row)
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidSample(f"{key}, row {row + 1} is not CSV in UTF-8: {error}; repair it") from error


def _json_values(file: ObjectFile, options: ColumnarOptions, key: str) -> Iterator[ReadSample]:
    text = _Text(file)
    for row, values in enumerate(text.values()):
        if not isinstance(values, dict):
            raise InvalidSample(
                f"{key}, row {row} is a {type(values).__name__}; accepted are an array of objects, and "
                "objects one after the other"
            )
        # A layout of annotation files, such as COCO's.
        if row == 0 and not text.is_array and (name := _list_of_objects(values)) and text.is_at_end():
            raise InvalidSample(
                f"{key} is one object, whose {name!r} is a list of objects; accepted are an array of "
                f"objects, and JSON lines: write that list (jq .{name}), or leave the file out (--exclude)"
            )
        yield row_sample(values, options, key, row)


def _list_of_objects(values: dict[str, Any]) -> str:
    lists = {name: one for name, one in values.items() if isinstance(one, list) and one}
    return next((name for name, one in lists.items() if isinstance(one[0], dict)), "")


class _Text:
    def __init__(self, file: ObjectFile) -> None:
        self._name = file.path
        self._chunks = chunks(file)
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._at = 0
        self._ended = False
        self.is_array = False
        """Set once the first value is requested."""

    def values(self) -> Iterator[Any]:
        self.is_array = self._next() == "["
        if self.is_array:
            self._at += 1
            if self._next() == "]":
                return self._end()
        row = 0
        while self._next():
            yield self._value(row)
            row += 1
            character = self._next()
            if self.is_array and character == "]":
                return self._end()
            if self.is_array and character == ",":
                self._at += 1
            elif self.is_array and character:
                raise InvalidSample(
                    f"{self._name}, row {row} is not JSON: {character!r} in place of a comma; repair it"
                )
        if self.is_array:
            raise Corrupt(f"{self._name} is cut: its array has {row} values, and does not end")

    def is_at_end(self) -> bool:
        return not self._next()

    def _end(self) -> None:
        self._at += 1
        if character := self._next():
            raise InvalidSample(
                f"{self._name} is not JSON: {character!r} after the end of its array; repair it"
            )

    def _value(self, row: int) -> Any:
        more = 1
        while True:
            try:
                value, self._at = DECODER.raw_decode(self._text, self._at)
                return value
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - _NEAR
                if self._ended or not cut:
                    raise self._damage_error(row, error.msg) from error
            except (ValueError, RecursionError) as error:
                raise self._damage_error(row, str(error)) from error
            if (n := len(self._text) - self._at) > MAX_JSON_CHARACTERS:
                what = f"{self._name}, row {row}"
                advice = "Keep what is large in other files"
                raise InvalidSample(limit_message(what, n, "characters", MAX_JSON_CHARACTERS, advice))
            # Doubles each time, so that a large value is not parsed again for every chunk.
            for _ in range(more):
                self._read()
            more *= 2

    def _damage_error(self, row: int, why: str) -> InvalidSample:
        cut = ", or the file is cut" if self._ended else ""
        return InvalidSample(f"{self._name}, row {row} is not JSON: {why}; repair it{cut}")

    def _next(self) -> str:
        """Return the next character that is not white space, unconsumed; "" at the end."""
        while True:
            while self._at < len(self._text):
                if (character := self._text[self._at]) not in _SPACE:
                    return character
                self._at += 1
            if self._ended:
                return ""
            self._read()

    def _read(self) -> None:
        if self._ended:
            return
        data = next(self._chunks, b"")
        self._ended = not data
        try:
            read = self._decoder.decode(data, final=self._ended)
        except UnicodeDecodeError as error:
            raise InvalidSample(f"{self._name} is not UTF-8: {error.reason}; write it again") from error
        self._text = self._text[self._at :] + read
        self._at = 0


CSV = TextTables((".csv",), _csv_rows)
JSON_LINES = TextTables((".jsonl", ".ndjson"), _json_lines)
JSON = TextTables((".json",), _json_values)
