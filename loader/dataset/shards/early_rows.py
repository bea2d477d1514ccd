"""Request a row group of a large index together with the footer, which has its place.

All row groups but the last have equally many rows, and row groups of one index differ by 4 % of their size at most. So
the number of a row group gives its place. Cost: 1.1 to 1.4 times the bytes of row groups. A wrong guess costs these
bytes, and a second request as without it. Rejected: larger tails, which take more bytes than they save requests.
"""

from typing import NamedTuple

from ...storage import ByteRange

# A footer has 1 kB, for each row group 65 bytes, and for each of its columns 106 (measured, keys of 16 characters).
# A row group's entry has its first and last key, so keys of other lengths move a guess by some bytes a row group.
FOOTER_BYTES = 1000
GROUP_FOOTER_BYTES = 65
COLUMN_FOOTER_BYTES = 106
KEYS_BYTES = 20
MARGIN = 0.05
"""Share of a row group's size that is read before and after the guess."""


class EarlyBytes(NamedTuple):
    """Bytes of an index that were read before its footer."""

    offset: int
    data: bytes
    etag: str
    """Change token of the object that had them."""

    def between(self, start: int, end: int) -> bytes:
        """Return these bytes of the index; b"" unless all were read."""
        if start < self.offset or end > self.offset + len(self.data):
            return b""
        return self.data[start - self.offset : end - self.offset]


def likely_range(
    *,
    rows_start: int,
    nbytes: int,
    n_rows: int,
    n_columns: int,
    group_rows: int,
    group: int,
) -> ByteRange:
    """Return the range that probably has a row group.

    rows_start: first byte of row group 0. nbytes, n_rows, n_columns: of the index, which is not empty.
    group_rows: rows of each row group but the last. group: number of the row group, from 0.
    """
    n_groups = -(-n_rows // group_rows)
    footer_nbytes = FOOTER_BYTES + n_groups * (GROUP_FOOTER_BYTES + COLUMN_FOOTER_BYTES * n_columns)
    rows_nbytes = max(0, nbytes - rows_start - footer_nbytes)
    group_nbytes = rows_nbytes * group_rows / n_rows
    margin = MARGIN * group_nbytes + KEYS_BYTES * (group + 1)
    start = rows_start + group * group_nbytes
    first = max(rows_start, int(start - margin))
    end = min(nbytes, int(start + group_nbytes + margin) + 1)
    return ByteRange(first, max(1, end - first))
