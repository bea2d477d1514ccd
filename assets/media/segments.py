"""Given segments: a table next to the media lists the stretches of video or audio that become units.

It is `_segments.csv`, `.jsonl` or `.parquet` in the landing folder, with a row per unit: the object's `key`, `start_s`
and `end_s`, optionally `label` and `caption`. An invalid row rejects its object. Arrow allocates whatever size a
Parquet page's header states, so headers (Thrift compact structs, https://github.com/apache/parquet-format) are checked
first.
"""

import io
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet
import pyarrow.parquet as pq

from loader.dataset.log.entries import DAMAGED
from loader.errors import Corrupt, ObjectNotFound
from loader.json_text import is_text, parse_json_object
from loader.modalities.fields import is_of_the_machine
from loader.storage import Store

DELTA_BYTE_ARRAY = 7
"""Encoding whose values share the previous one's prefix, so the decoded size is unknown."""

_MAX_FIELDS = 64  # per header; there are about 20
_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, 12
_DATA, _DICTIONARY, _DATA_V2 = 5, 7, 8  # header fields; the encoding is their field 2, 2 and 4


@dataclass(frozen=True, slots=True)
class ParquetPage:
    """One page of a Parquet file."""

    nbytes: int
    """Bytes of the page after decompression."""
    encoding: int
    """Encoding of the values; -1 for a dictionary."""


def pages(data: bytes, metadata: pq.FileMetaData, columns: frozenset[str]) -> Iterator[ParquetPage]:
    """Yield every page of these columns, compressed. Raises: ValueError for an invalid header."""
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for number in range(row_group.num_columns):
            column = row_group.column(number)
            if column.path_in_schema not in columns:
                continue
            at = column.data_page_offset
            if column.has_dictionary_page and 0 < (column.dictionary_page_offset or 0) < at:
                at = column.dictionary_page_offset
            end = at + column.total_compressed_size
            if not 0 <= at <= end <= len(data):
                raise ValueError(f"column {column.path_in_schema} lies outside of the file")
            while at < end:
                header = _ThriftStruct(data, at, end)
                fields = header.struct(0)
                nbytes = fields.get(2)
                stored = fields.get(3)
                if not isinstance(nbytes, int) or not isinstance(stored, int) or nbytes < 0 or stored < 0:
                    raise ValueError(f"no page begins at byte {at}")
                if fields.get(_DICTIONARY, {}).get(1, 0) > nbytes:
                    raise ValueError(f"the dictionary at byte {at} says that it has more values than bytes")
                encoding = fields.get(_DATA, {}).get(2, fields.get(_DATA_V2, {}).get(4, -1))
                yield ParquetPage(nbytes=nbytes, encoding=encoding)
                at = header.at + stored


class _ThriftStruct:
    """Reader of a Thrift struct. at: position after the bytes read so far."""

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data = data
        self.at = at
        self._end = end
        self._fields_left = _MAX_FIELDS

    def struct(self, depth: int) -> dict[int, Any]:
        """Return field number -> value; None for doubles and binary."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            self._fields_left -= 1
            if self._fields_left < 0 or depth > 4:
                raise ValueError("a page header without an end")
            if head >> 4:
                number = number + (head >> 4)
            else:
                number = self._zigzag()
            fields[number] = self._value(head & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _BOOLEANS:
            return kind == 1
        if kind == _BYTE:
            return self._byte()
        if kind in _INTEGERS:
            return self._zigzag()
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind not in (_DOUBLE, _BINARY):
            raise ValueError(f"a page header with a field of type {kind}")
        if kind == _DOUBLE:
            nbytes = 8
        else:
            nbytes = self._varint()
        self.at += nbytes
        return None

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number without an end in a page header")

    def _byte(self) -> int:
        if self.at >= self._end:
            raise ValueError("a page header that is cut off")
        self.at += 1
        return self._data[self.at - 1]


NEEDED = ("key", "start_s", "end_s")
TEXTS = ("label", "caption")
MAX_ROWS = 10_000_000
MAX_DECODED_BYTES = 512 * 2**20
"""Most bytes of a Parquet file's decompressed pages, and of rows of a batch's objects."""
MAX_TEXT_BYTES = 64 * 2**10
"""Most bytes of one value."""

_BATCH_ROWS = 65_536
_BLOCK_BYTES = 16 * 2**20  # per CSV block; a row is shorter
Row = Mapping[str, Any] | ValueError
"""Column -> value, or an error if the row cannot be read."""


def select_rows(name: str, data: bytes, keys: Collection[str]) -> Iterator[tuple[int, str, Row]]:
    """Yield (row number from 1, key, row) for rows whose key is in `keys`; CSV values are text.

    Raises: ValueError or Arrow's errors if the table is unreadable or exceeds a limit.
    """
    if name.endswith(".jsonl"):
        yield from _json_rows(data, frozenset(keys))
        return
    if name.endswith(".parquet"):
        batches = _parquet_batches(data)
    else:
        batches = _csv_batches(data)
    keys_wanted = pa.array(sorted(keys), pa.string())
    n_rows = n_bytes = 0
    for batch in batches:
        for at in _matching(batch.column("key"), keys_wanted):
            key, row, nbytes = _row(batch, at)
            n_bytes += nbytes
            if n_bytes > MAX_DECODED_BYTES:
                raise ValueError(f"rows of one batch hold more than {MAX_DECODED_BYTES} bytes of text")
            yield n_rows + at + 1, key, row
        n_rows += len(batch)
        if n_rows > MAX_ROWS:
            raise ValueError(f"more than {MAX_ROWS} rows")


def _json_rows(data: bytes, keys: frozenset[str]) -> Iterator[tuple[int, str, Row]]:
    # Arrow's JSON reader crashes the process on deeply nested brackets
    number = 0
    names = set[str]()
    for line in io.BytesIO(data.removeprefix(b"\xef\xbb\xbf")):
        if not line.strip():
            continue
        number += 1
        if number > MAX_ROWS:
            raise ValueError(f"more than {MAX_ROWS} rows")
        try:
            row = parse_json_object(line)
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from error
        if "key" not in names:
            names = set(row)
        key = row.get("key")
        if type(key) is int:
            key = str(key)
        if isinstance(key, str) and key in keys:
            long = [name for name in TEXTS if len(str(row.get(name))) > MAX_TEXT_BYTES]
            yield number, key, _too_long(long[0]) if long else row
    if number and "key" not in names:
        _check_columns(names)


def _csv_batches(data: bytes) -> Iterator[pa.RecordBatch]:
    header = data[:_BLOCK_BYTES].split(b"\n", 1)[0].decode().strip("\r\ufeff").split(",")
    texts = {column.strip('" '): pa.string() for column in header}
    with pa.csv.open_csv(
        io.BytesIO(data),
        read_options=pa.csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False),
        convert_options=pa.csv.ConvertOptions(column_types=texts, strings_can_be_null=False),
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
    ) as reader:
        _check_columns(reader.schema.names)
        yield from reader


def _parquet_batches(data: bytes) -> Iterator[pa.RecordBatch]:
    schema = pa.parquet.read_schema(io.BytesIO(data))
    _check_columns(schema.names)
    names = [name for name in (*NEEDED, *TEXTS) if name in schema.names]
    for name in names:
        _check_type(name, schema.field(name).type)
    texts = [name for name in names if _is_text(schema.field(name).type)]  # as dictionaries: equal texts once
    file = pa.parquet.ParquetFile(io.BytesIO(data), read_dictionary=texts, pre_buffer=False)
    if file.metadata.num_rows > MAX_ROWS:
        raise ValueError(f"{file.metadata.num_rows} rows; accepted are {MAX_ROWS}")
    n_bytes = 0
    for page in pages(data, file.metadata, frozenset(names)):
        n_bytes += page.nbytes
        if n_bytes > MAX_DECODED_BYTES:
            raise ValueError(f"its pages are more than {MAX_DECODED_BYTES} bytes when they are read")
        if page.encoding == DELTA_BYTE_ARRAY:
            raise ValueError("a column is encoded as DELTA_BYTE_ARRAY; write it with a dictionary, or plain")
    yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=names, use_threads=False)


def _check_columns(names: Collection[str]) -> None:
    if missing := [column for column in NEEDED if column not in names]:
        raise ValueError(
            f"it has no column {', '.join(missing)}; needed are key, start_s, end_s (and, where wanted, label, "
            f"caption), it has {', '.join(sorted(names)[:20])}"
        )


def _check_type(name: str, kind: pa.DataType) -> None:
    if pa.types.is_dictionary(kind):
        of = kind.value_type
    else:
        of = kind
    known = (_is_text, pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
    if not any(is_one(of) for is_one in known):
        raise ValueError(f"column {name} is {kind}; accepted are text and numbers")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _matching(column: pa.Array, keys_wanted: pa.Array) -> list[int]:
    """All-digit keys may be stored as numbers."""
    if pa.types.is_dictionary(column.type):
        matches = pa.compute.is_in(column.dictionary.cast(pa.string()), value_set=keys_wanted).take(
            column.indices
        )
    else:
        matches = pa.compute.is_in(column.cast(pa.string()), value_set=keys_wanted)
    positions: list[int] = pa.compute.indices_nonzero(matches).to_pylist()
    return positions


def _row(batch: pa.RecordBatch, at: int) -> tuple[str, Row, int]:
    row: dict[str, Any] = {}
    nbytes = 0
    key = str(_cell(batch.column("key"), at).as_py())
    for name in (*NEEDED, *TEXTS):
        if name not in batch.schema.names:
            continue
        cell = _cell(batch.column(name), at)
        size = 0
        if cell.is_valid and _is_text(cell.type):
            size = cell.as_buffer().size
        if size > MAX_TEXT_BYTES:
            return key, _too_long(name), nbytes
        nbytes += size
        try:
            row[name] = cell.as_py()
        except UnicodeDecodeError as error:
            return key, ValueError(f"{name} is no UTF-8 ({error})"), nbytes
    return key, row, nbytes


def _cell(column: pa.Array, at: int) -> Any:
    if not pa.types.is_dictionary(column.type):
        return column[at]
    place = column.indices[at].as_py()
    if place is None:
        return pa.scalar(None, column.type.value_type)
    return column.dictionary[place]


def _too_long(name: str) -> ValueError:
    return ValueError(f"{name} has more than {MAX_TEXT_BYTES} bytes, which are accepted")


TABLES = ("_segments.csv", "_segments.jsonl", "_segments.parquet")
MIN_S, MAX_S = 0.02, 600.0
MAX_SEGMENTS = 100_000
"""Most segments per object."""
MAX_TABLE_BYTES = 256 * 2**20
"""Most bytes of a stored table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One given segment of an object."""

    start_s: float
    """Start, in seconds after the first frame or sample."""
    end_s: float
    """End, exclusive, in seconds after the first frame or sample."""
    label: str = ""
    """Label of the unit or ""."""
    caption: str = ""
    """Caption of the unit; "" keeps the object's own."""

    def span_s(self) -> tuple[Fraction, Fraction]:
        """Exact start and end, from the decimals as written."""
        return Fraction(str(self.start_s)), Fraction(str(self.end_s))

    @property
    def request(self) -> str:
        """The segment as `Unit.request`."""
        return repr((self.start_s, self.end_s, self.label, self.caption))

    def plain(self) -> dict[str, Any]:
        """Return the segment as a table row."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenSegments:
    """Given segments per object, and the objects with invalid rows."""

    by_key: Mapping[str, tuple[Segment, ...]] = field(default_factory=dict)
    """Object key -> segments, ordered by start."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Object key -> what is wrong with its first invalid row."""


SEGMENTS = pa.list_(
    pa.struct(
        [
            ("start_s", pa.float64()),
            ("end_s", pa.float64()),
            ("label", pa.string()),
            ("caption", pa.string()),
        ]
    )
)
"""Type of the column `segments` in raw_objects."""


def read_segments(landing: Store, keys: Collection[str]) -> GivenSegments:
    """Return the given segments of these objects; objects without segments have no entry.

    Costs a HEAD per table name and one read. An invalid row goes to `problems`, with its number and value.

    Raises: Corrupt if the table is unreadable or too large.
    """
    name, data = _read_table(landing)
    if data is None:
        return GivenSegments()
    place = f"{landing.url.rstrip('/')}/{name}"
    segments: dict[str, dict[tuple[float, float], Segment]] = {}
    problems: dict[str, str] = {}
    try:
        for number, key, row in select_rows(name, data, keys):
            others = segments.setdefault(key, {})
            try:
                _add(others, f"{place}, row {number} (key {key!r})", row)
            except Corrupt as error:
                problems.setdefault(key, str(error))
    except Corrupt:
        raise
    except (pa.ArrowException, OSError, *DAMAGED) as error:
        if is_of_the_machine(error):
            raise
        raise Corrupt(f"{place} cannot be read ({error}); repair it, or take it away") from error
    by_key = {
        key: tuple(spans[times] for times in sorted(spans))
        for key, spans in segments.items()
        if key not in problems
    }
    return GivenSegments(by_key=by_key, problems=problems)


def _read_table(landing: Store) -> tuple[str, bytes | None]:
    tables = {}
    for name in TABLES:
        try:
            tables[name] = landing.head(name)
        except ObjectNotFound:
            continue
    if len(tables) > 1:
        raise Corrupt(
            f"{landing.url} holds {' and '.join(tables)}: which of them counts? Take all but one away"
        )
    for name, info in tables.items():
        if info.nbytes > MAX_TABLE_BYTES:
            raise Corrupt(
                f"{landing.url}/{name} has {info.nbytes} bytes; accepted are {MAX_TABLE_BYTES}: split the place into "
                "several sources"
            )
        return name, bytes(landing.get_range(name, 0, info.nbytes, info.etag).data) if info.nbytes else b""
    return "", None


def _add(others: dict[tuple[float, float], Segment], where: str, row: Mapping[str, Any] | ValueError) -> None:
    if isinstance(row, ValueError):
        raise Corrupt(f"{where}: {row}")
    segment = _segment(where, row)
    span = segment.start_s, segment.end_s
    if span in others:
        raise Corrupt(f"{where}: {span[0]} to {span[1]} s is there twice; take one of the rows away")
    if len(others) == MAX_SEGMENTS:
        raise Corrupt(f"{where}: more than {MAX_SEGMENTS} segments of one object; split it")
    others[span] = segment


def _segment(where: str, row: Mapping[str, Any]) -> Segment:
    start_s = _seconds(where, "start_s", row["start_s"])
    end_s = _seconds(where, "end_s", row["end_s"])
    if not MIN_S <= end_s - start_s <= MAX_S:
        raise Corrupt(
            f"{where}: start_s={start_s} to end_s={end_s} is {end_s - start_s:.6g} s; accepted are {MIN_S} to "
            f"{MAX_S:.0f} s"
        )
    texts = {name: row.get(name) or "" for name in TEXTS}
    for name, value in texts.items():
        if not is_text(value):
            raise Corrupt(f"{where}: {name}={value!r} is no text")
    return Segment(start_s=start_s, end_s=end_s, **texts)


def _seconds(where: str, name: str, value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if isinstance(value, bool) or not math.isfinite(seconds) or seconds < 0:
        raise Corrupt(f"{where}: {name}={value!r}; accepted are seconds from 0")
    return seconds
