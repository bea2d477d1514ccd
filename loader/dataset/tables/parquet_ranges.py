"""Byte ranges of a Parquet file's footer and row groups, and a file of which only one range is there."""

import io

import pyarrow.parquet as pq

WHOLE_BELOW_BYTES = 512 * 2**10
"""Bytes below which a table or an index is read whole."""
TAIL_BYTES = 64 * 2**10
"""Bytes at the end that are read first: most footers are smaller."""


def footer_nbytes(tail: bytes) -> int:
    """Return the size of a footer, including its length and magic, from the file's last bytes."""
    length = tail[-8:-4]  # the last four bytes are the magic
    return int.from_bytes(length, "little") + 8


def row_group_extent(metadata: pq.FileMetaData, group: int) -> tuple[int, int]:
    """Return (first byte, end) of a row group."""
    row_group = metadata.row_group(group)
    starts = []
    ends = []
    for number in range(metadata.num_columns):
        column = row_group.column(number)
        start = chunk_start(column)
        end = start + column.total_compressed_size
        starts.append(start)
        ends.append(end)
    # Other writers need not store the columns in the schema's order.
    return min(starts), max(ends)


def chunk_start(column: pq.ColumnChunkMetaData) -> int:
    start = int(column.data_page_offset)
    # A dictionary page, if there is one, precedes the data pages.
    dictionary_start = column.dictionary_page_offset
    if dictionary_start is not None:
        start = min(start, dictionary_start)
    return start


class RangeFile(io.RawIOBase):
    """A read-only file that holds only [start, start + len(data)); reading elsewhere raises."""

    def __init__(
        self,
        nbytes: int,
        start: int,
        data: bytes,
    ) -> None:
        self._nbytes = nbytes
        self._start = start
        self._data = data
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset += self._position
        elif whence == io.SEEK_END:
            offset += self._nbytes
        self._position = offset
        return offset

    def read(self, size: int | None = -1) -> bytes:
        end = self._nbytes
        if size is not None and size >= 0:
            end = min(self._position + size, self._nbytes)
        low = self._position - self._start
        high = end - self._start
        # A slice would not raise: a negative `low` counts from the end.
        if low < 0 or high > len(self._data):
            raise OSError(
                f"bytes [{self._position}:{end}] of a file lie outside the part that its footer promised"
            )
        self._position = end
        return self._data[low:high]
