"""Read the uncompressed sizes of a Parquet file's pages from their headers.

Arrow allocates whatever size a page's header states: a file of a few kB can ask for gigabytes. Headers are Thrift
compact structs, https://github.com/apache/parquet-format.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

DELTA_BYTE_ARRAY = 7
"""Encoding in which values share the previous value's prefix, so the decoded size is unknown."""

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
    """Yield every page of these columns without decompressing any. Raises: ValueError for an invalid header."""
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
                nbytes, stored = fields.get(2), fields.get(3)
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
        self._data, self.at, self._end, self._fields_left = data, at, end, _MAX_FIELDS

    def struct(self, depth: int) -> dict[int, Any]:
        """Return field number -> value; None for doubles and binary."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            self._fields_left -= 1
            if self._fields_left < 0 or depth > 4:
                raise ValueError("a page header without an end")
            number = number + (head >> 4) if head >> 4 else self._signed()
            fields[number] = self._value(head & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _BOOLEANS:
            return kind == 1
        if kind == _BYTE:
            return self._byte()
        if kind in _INTEGERS:
            return self._signed()
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind not in (_DOUBLE, _BINARY):
            raise ValueError(f"a page header with a field of type {kind}")
        nbytes = 8 if kind == _DOUBLE else self._varint()
        self.at += nbytes
        return None

    def _signed(self) -> int:
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
