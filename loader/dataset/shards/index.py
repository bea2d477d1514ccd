"""Read and write a shard's sidecar index: offset, size and checksum of each field of each row.

Columns: `key`, then per field f (int64) `f_offset`, `f_nbytes`, `f_crc32c`; delta encoded. The shard's page hashes
precede the rows.
"""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import Corrupt
from ...storage.requests import retry_corrupt
from ...storage.store import ObjectReader
from ...storage.threads import lock
from ..tables.parquet import (
    MAGIC_BYTES,
    PartHashes,
    check_schema_version,
    corrupt_if_unreadable,
    hashed_table_bytes,
    integers,
    part_hashes,
)
from ..tables.parquet_ranges import TAIL_BYTES, WHOLE_BELOW_BYTES, RangeFile, footer_nbytes, row_group_extent
from .address import UNKNOWN_CRC
from .index_rows import COLUMNS, IndexRows, field_names, index_rows
from .seals import Crcs, read_seal, seal_path
from .shard import PAGE_BYTES, PageHashes, crc32c

if TYPE_CHECKING:
    from .early_rows import EarlyBytes

ROW_GROUP_ROWS = 2048

Int64s = npt.NDArray[np.int64]

# Errors that reading a damaged file may raise: Arrow's, `RangeFile`'s, and those for names and values.
_UNREADABLE = (
    pa.ArrowException,
    OSError,
    UnicodeDecodeError,
    KeyError,
    TypeError,
    OverflowError,
    MemoryError,
)


def index_bytes(keys: list[str] | pa.Array, fields: dict[str, Int64s], pages: bytes = b"") -> bytes:
    """Return the index file. fields: field -> int64 [rows, 3]: offset, nbytes, crc32c. pages: page hashes."""
    if isinstance(keys, list):
        keys = pa.array(keys, pa.string())
    columns: dict[str, pa.Array] = {"key": keys}
    encoding = {"key": "DELTA_BYTE_ARRAY"}
    for field in sorted(fields):
        for position, what in enumerate(COLUMNS):
            name = f"{field}_{what}"
            values = np.ascontiguousarray(fields[field][:, position])
            columns[name] = pa.array(values)
            encoding[name] = "DELTA_BINARY_PACKED"
    return hashed_table_bytes(
        pa.table(columns),
        "index",
        row_group_rows=ROW_GROUP_ROWS,
        front=pages,
        facts={"page_bytes": str(PAGE_BYTES)},
        use_dictionary=False,
        column_encoding=encoding,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPlace:
    """Path and size of an index, with checksums of its bytes: a damaged footer can crash Parquet."""

    path: str
    """Path in the root."""
    nbytes: int
    """Size in bytes."""
    crc32c: int
    """CRC-32C of the index."""
    footer_crc32c: int
    """CRC-32C of the footer."""
    footer_sha256: str = ""
    """Footer SHA-256, hex; "" in earlier releases."""
    pages_nbytes: int = 0
    """Bytes of page hashes before the rows; 0 in earlier releases."""
    seal: str = ""
    """Path of the seal of registered bytes, which may be missing, or ""."""
    n_rows: int = 0
    """Rows; 0 if unknown."""
    n_columns: int = 0
    """Columns; 0 if unknown."""

    @staticmethod
    def of(shard: Mapping[str, Any], n_fields: int = 0) -> "IndexPlace":
        """Return the place in a row of a shards table. n_fields: number of the shard's fields, if known."""
        footer_sha256 = shard.get("index_footer_sha256")
        return IndexPlace(
            path=shard["index_path"],
            nbytes=shard["index_nbytes"],
            crc32c=shard["index_crc32c"],
            footer_crc32c=shard["index_footer_crc32c"],
            footer_sha256=footer_sha256 or "",
            pages_nbytes=shard.get("index_pages_nbytes") or 0,
            seal=seal_path(shard["path"], footer_sha256),
            n_rows=shard.get("n_rows") or 0,
            n_columns=1 + len(COLUMNS) * n_fields if n_fields else 0,
        )

    @staticmethod
    def measure(path: str, data: bytes, pages_nbytes: int = 0) -> "IndexPlace":
        """Return the place of an index that will be stored at `path`, with its checksums. data: the whole index."""
        footer_start = len(data) - footer_nbytes(data)
        footer = data[footer_start:]
        return IndexPlace(
            path=path,
            nbytes=len(data),
            crc32c=crc32c(data),
            footer_crc32c=crc32c(footer),
            footer_sha256=hashlib.sha256(footer).hexdigest(),
            pages_nbytes=pages_nbytes,
        )

    def row(self) -> dict[str, Any]:
        return {
            "index_path": self.path,
            "index_nbytes": self.nbytes,
            "index_crc32c": self.crc32c,
            "index_footer_crc32c": self.footer_crc32c,
            "index_footer_sha256": self.footer_sha256,
            "index_pages_nbytes": self.pages_nbytes,
        }

    @property
    def start(self) -> int:
        """First byte to read of an index that is read whole: the page hashes before the rows are left out."""
        rows_start = 0
        if self.footer_sha256:
            rows_start = MAGIC_BYTES + self.pages_nbytes
        tail_start = self.nbytes - TAIL_BYTES
        return max(0, min(rows_start, tail_start))


class IndexFile:
    """An open index. Thread-safe. Keeps a small index whole in memory, otherwise only the footer.

    whole: keep any index whole.
    """

    def __init__(
        self,
        store: ObjectReader,
        place: IndexPlace,
        *,
        whole: bool = False,
    ) -> None:
        self._store = store
        self._place = place
        self._path = place.path
        self._nbytes = place.nbytes
        self._etag: str | None = None
        whole = whole or place.nbytes - place.start <= WHOLE_BELOW_BYTES
        reader, data, self._hashes = retry_corrupt(partial(self._open, whole))

        # From here on the footer is checked and parsed.
        self._metadata = reader.metadata
        self._facts = reader.schema_arrow.metadata or {}
        self._fields = field_names(reader.schema_arrow.names)
        self._first_row = self._first_rows()  # of each row group, then the number of rows
        self.n_rows = int(self._first_row[-1])

        # b"": rows are read when they are needed.
        self._data = b""
        self.held_bytes = 4 * footer_nbytes(data)  # about the parsed footer's size
        if whole:
            self._data = data
            self.held_bytes = len(data)
        if place.seal:
            self.held_bytes += 8 * self.n_rows * len(self._fields)
        self._lock = lock()
        self._seal: Crcs | None = None
        self._looked_for_seal = False

    @property
    def url(self) -> str:
        return f"{self._store.url}/{self._path}"

    def _first_rows(self) -> Int64s:
        """Return int64 [row groups + 1]: the first row of each, then the number of rows. Raises: Corrupt."""
        metadata = self._metadata
        group_rows: list[int] = []
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            group_rows.append(row_group.num_rows)

        # A row's group is its number divided by the group size, so every group except the last must be full.
        is_full = all(n == ROW_GROUP_ROWS for n in group_rows[:-1])
        largest = max(group_rows, default=0)
        if not is_full or largest > ROW_GROUP_ROWS:
            sizes = sorted(set(group_rows))
            message = f"{self.url} has row groups of {sizes} rows; all but the last have {ROW_GROUP_ROWS}"
            raise Corrupt(message, what="row groups", where=self.url, given=sizes, accepted=ROW_GROUP_ROWS)

        first_rows = np.zeros(len(group_rows) + 1, np.int64)
        np.cumsum(
            group_rows,
            dtype=np.int64,
            out=first_rows[1:],
        )
        return first_rows

    def row_group_number(self, row: int) -> int:
        """Return the number of the row group that has the row."""
        return int(np.searchsorted(self._first_row, row, side="right")) - 1

    def read_group(self, group: int) -> IndexRows:
        """Return one row group, with checksums. Raises: Corrupt if a page fails its checksum twice."""
        return self.with_checksums(self.read_rows(group))

    def read_rows(self, group: int, early: "EarlyBytes | None" = None) -> IndexRows:
        """Return one row group as it is stored: checksums that only a seal has are unknown. Raises: Corrupt.

        early: bytes that were requested together with the footer, and may have the row group.
        """
        if early is not None:
            with suppress(Corrupt):  # read again below
                return self._read_unchecked(group, early)
        return retry_corrupt(partial(self._read_unchecked, group))

    def with_checksums(self, rows: IndexRows) -> IndexRows:
        """Return rows of `read_rows`, changed in place. The first call with unknown checksums requests the seal."""
        if not self._place.seal:
            return rows
        is_unknown = rows.places[:, :, 2] == UNKNOWN_CRC  # [rows, fields]
        if not is_unknown.any():
            return rows
        seal = self._read_seal_once()
        if seal is None:
            return replace(rows, sealed=False)

        # Before this, only the keys of `rows` are read, so its checksums may change.
        end_row = rows.first_row + len(rows.keys)
        for number, (field, crcs) in enumerate(rows.crc32c.items()):
            unknown = is_unknown[:, number]
            seal_crcs = seal[field][rows.first_row : end_row]
            crcs[unknown] = seal_crcs[unknown]
        return rows

    def _read_seal_once(self) -> Crcs | None:
        """Return the index's seal, None if it has none. Only the first call costs a request."""
        with self._lock:
            if not self._looked_for_seal:
                self._seal = read_seal(
                    self._store,
                    self._place.seal,
                    self._fields,
                    self.n_rows,
                )
                self._looked_for_seal = True
            return self._seal

    def column(self, name: str) -> Int64s:
        """Return a column for all rows. Only for an index that was opened with `whole`. Raises: Corrupt."""
        with corrupt_if_unreadable(f"{self.url}, column {name}", _UNREADABLE):
            reader = pq.ParquetFile(
                RangeFile(self._nbytes, self._place.start, self._data),
                page_checksum_verification=True,
                pre_buffer=False,
            )
            table = reader.read(columns=[name], use_threads=False)
            return integers(table[name])

    def page_hashes(self, shard_nbytes: int) -> PageHashes | None:
        """Return the page hashes of the shard, whose size is given; None for earlier releases."""
        if self._hashes is None or not self._hashes.front_nbytes:
            return None
        read = partial(
            self._read_page_hashes,
            self._hashes,
            shard_nbytes,
        )
        return retry_corrupt(read)

    def _read_page_hashes(self, hashes: PartHashes, shard_nbytes: int) -> PageHashes:
        data = self._read(MAGIC_BYTES, hashes.front_nbytes)
        self._check_sha256("its hashes of pages have", data, expected=hashes.front, source="its footer")
        page_bytes = int(self._facts[b"penstock.page_bytes"])
        return PageHashes.of(
            digests=data,
            page_bytes=page_bytes,
            nbytes=shard_nbytes,
            name=self.url,
        )

    def _read_unchecked(self, group: int, early: "EarlyBytes | None" = None) -> IndexRows:
        """Return one row group, whose unknown checksums are not from the seal yet. Raises: Corrupt."""
        if self._data:
            start = self._place.start
            data = self._data
        else:
            start, end = row_group_extent(self._metadata, group)
            data = b""
            if early is not None and early.etag == self._etag:
                data = early.between(start, end)
            data = data or self._read(start, end - start)
            self._check_row_group(self._hashes, group, data)

        first_row = int(self._first_row[group])
        with corrupt_if_unreadable(f"{self.url}, row group {group}", _UNREADABLE):
            reader = pq.ParquetFile(
                RangeFile(self._nbytes, start, data),
                metadata=self._metadata,
                page_checksum_verification=True,
                pre_buffer=False,
            )
            table = reader.read_row_group(group, use_threads=False)
            rows = index_rows(table, first_row)
        expected = int(self._first_row[group + 1]) - first_row
        if len(rows.keys) != expected:
            raise Corrupt(
                f"{self.url}, row group {group} has {len(rows.keys)} rows, in its footer {expected}"
            )
        return rows

    def _open(self, whole: bool) -> tuple[pq.ParquetFile, bytes, PartHashes | None]:
        """Return (parsed footer, the bytes that were read, hashes of the row groups; None in earlier releases)."""
        if whole:
            data = self._read_whole()
        else:
            data = self._read_footer()
        data_start = self._nbytes - len(data)
        with corrupt_if_unreadable(f"{self.url} is not a readable index", _UNREADABLE):
            reader = pq.ParquetFile(RangeFile(self._nbytes, data_start, data), pre_buffer=False)
            check_schema_version(reader.schema_arrow, self.url)
            metadata = reader.metadata
            hashes = None
            if self._place.footer_sha256:
                hashes = part_hashes(metadata)
            if whole:
                for group in range(metadata.num_row_groups):
                    start, end = row_group_extent(metadata, group)
                    local_start = start - data_start
                    local_end = end - data_start
                    group_data = data[local_start:local_end]
                    self._check_row_group(hashes, group, group_data)
        return reader, data, hashes

    def _read_whole(self) -> bytes:
        start = self._place.start
        data = self._read(start, self._nbytes - start)
        if self._place.footer_sha256:
            self._check_footer(data)
        else:
            self._check_crc("its", data, self._place.crc32c)
        return data

    def _read_footer(self) -> bytes:
        """Return the last bytes of the index, with the whole footer. Raises: Corrupt."""
        data = self._read(self._nbytes - TAIL_BYTES, TAIL_BYTES)
        nbytes = footer_nbytes(data)
        # A footer takes about 110 bytes per column and row group: at 100,000 rows it exceeds the tail.
        if TAIL_BYTES < nbytes <= self._nbytes:
            footer_start = self._nbytes - nbytes
            front_nbytes = nbytes - TAIL_BYTES
            front = self._read(footer_start, front_nbytes)
            data = front + data
        self._check_footer(data)
        return data

    def _check_footer(self, data: bytes) -> None:
        nbytes = footer_nbytes(data)
        footer = data[-nbytes:]
        if self._place.footer_sha256:
            self._check_sha256(
                "its footer has",
                footer,
                expected=self._place.footer_sha256,
                source="the shards table",
            )
        else:
            self._check_crc("the footer's", footer, self._place.footer_crc32c)

    def _check_row_group(
        self,
        hashes: PartHashes | None,
        group: int,
        data: bytes,
    ) -> None:
        # Earlier releases have none: there, Parquet checks the CRC of each page.
        if hashes is not None:
            expected = hashes.row_groups[group]
            self._check_sha256(f"row group {group} has", data, expected=expected, source="its footer")

    def _check_sha256(
        self,
        what: str,
        data: bytes,
        expected: str,
        source: str,
    ) -> None:
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 != expected:
            message = (
                f"{self.url}: {what} SHA-256 {sha256}, in {source} {expected}: it was replaced or damaged; restore "
                "it from a mirror"
            )
            raise Corrupt(
                message, what=what.rpartition(" ")[0], where=self.url, given=sha256, accepted=expected
            )

    def _check_crc(
        self,
        what: str,
        data: bytes,
        expected: int,
    ) -> None:
        checksum = crc32c(data)
        if checksum != expected:
            raise Corrupt(
                f"{self.url}: {what} CRC-32C is {checksum:08x}, in the shards table {expected:08x}; restore "
                "it from a mirror",
                what="CRC-32C",
                where=self.url,
                given=f"{checksum:08x}",
                accepted=f"{expected:08x}",
            )

    def _read(
        self,
        offset: int,
        nbytes: int,
    ) -> bytes:
        # The first read's ETag applies to all others: the index may not be replaced meanwhile.
        blob = self._store.get_range(
            self._path,
            offset,
            nbytes,
            etag=self._etag,
        )
        self._etag = blob.etag
        return blob.data
