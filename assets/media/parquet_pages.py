"""Headers of a Parquet file's pages.

Arrow allocates whatever size a page's header states, so the headers (Thrift compact structs,
https://github.com/apache/parquet-format) are checked first.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

DELTA_BYTE_ARRAY = 7
"""Encoding whose values share the previous one's prefix, so the decoded size is unknown."""

_MAX_FIELDS = 64  # per header; there are about 20
# Types of a field.
_BOOLEANS = (1, 2)
_BYTE = 3
_INTEGERS = (4, 5, 6)
_DOUBLE = 7
_BINARY = 8
_STRUCT = 12
# Fields of a page's header. The encoding is field 2 of _DATA and of _DICTIONARY, and field 4 of _DATA_V2.
_DATA = 5
_DICTIONARY = 7
_DATA_V2 = 8


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
            yield from _column_pages(data, column)


def _column_pages(data: bytes, column: pq.ColumnChunkMetaData) -> Iterator[ParquetPage]:
    """Yield the pages of a column in a row group, by their headers. Raises: ValueError for an invalid one."""
    at = column.data_page_offset
    if column.has_dictionary_page and 0 < (column.dictionary_page_offset or 0) < at:
        at = column.dictionary_page_offset
    end = at + column.total_compressed_size
    if not 0 <= at <= end <= len(data):
        raise ValueError(f"column {column.path_in_schema} lies outside of the file")
    while at < end:
        header = _ThriftStruct(data, at, end)
        fields = header.struct(0)
        nbytes = fields.get(2)  # uncompressed_page_size
        stored = fields.get(3)  # compressed_page_size
        if not isinstance(nbytes, int) or nbytes < 0:
            raise ValueError(f"no page begins at byte {at}")
        if not isinstance(stored, int) or stored < 0:
            raise ValueError(f"no page begins at byte {at}")
        n_values = fields.get(_DICTIONARY, {}).get(1, 0)
        if n_values > nbytes:
            raise ValueError(f"the dictionary at byte {at} states more values than bytes")
        encoding_v2 = fields.get(_DATA_V2, {}).get(4, -1)
        encoding = fields.get(_DATA, {}).get(2, encoding_v2)
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
            # Thrift's compact protocol: a byte has the step to the next field's number, or 0, and its type.
            step = head >> 4
            kind = head & 15
            if step:
                number += step
            else:
                number = self._zigzag()
            fields[number] = self._value(kind, depth)
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
        """Return a number of at most 10 bytes, 7 bits each, the lowest first."""
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
