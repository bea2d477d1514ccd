"""Segments of bands: the bands of some parts' documents, sorted, under `tables/<dataset>/bands/`.

    <segment>/<first byte>.parquet    hash uint64, document uint32, by hash: from this first byte up to the next file's
    <segment>/segment.json            the parts, and the files with their checksums

A document is a row of the parts, one part after another. A file holds up to 2^20 bands, and a segment has up to 256
files. A part is named with its index, as in `search/`: a part that a takedown wrote again has another one. A segment is
derived from its parts, and a damaged one is made again.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loader.dataset.log.entries import canonical
from loader.dataset.search.segments import SegmentPart, part_starts
from loader.dataset.tables.parquet import (
    TableFile,
    footer_sha256,
    hashed_table_bytes,
)
from loader.dataset.tables.table_rows import get_row_groups
from loader.errors import AlreadyExists, Corrupt, FormatTooNew
from loader.json_text import parse_json_object
from loader.storage import ObjectInfo, Store

from .bands import UInt32s
from .hamming import Int64s, UInt64s

BANDS = "bands"
RECORD = "segment.json"
FORMAT = 1
FILE_BANDS = 2**20
"""Bands of a file that is not too large: 12 MiB."""
MAX_FILES = 256
"""Most files of a segment: one per first byte of a hash."""
ROW_GROUP_BANDS = 2**12
"""Bands that a look-up reads at least: 48 KiB."""
KIND = "bands"
_SCHEMA = pa.schema([("hash", pa.uint64()), ("document", pa.uint32())])
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bands:
    """Bands of documents, by hash."""

    hashes: UInt64s
    """Uint64 [n], ascending."""
    documents: UInt32s
    """Uint32 [n]: document of each band."""

    def __len__(self) -> int:
        return len(self.hashes)

    def take(self, rows: Any) -> "Bands":
        return Bands(hashes=self.hashes[rows], documents=self.documents[rows])


def no_bands() -> Bands:
    return Bands(hashes=np.zeros(0, np.uint64), documents=np.zeros(0, np.uint32))


def joined(bands: Sequence[Bands]) -> Bands:
    """Return all bands, one after another."""
    hashes: UInt64s = np.concatenate([one.hashes for one in bands])
    documents: UInt32s = np.concatenate([one.documents for one in bands])
    return Bands(hashes=hashes, documents=documents)


def sort_bands(
    hashes: UInt64s,
    documents: UInt32s,
) -> Bands:
    """Return bands by hash, and bands of one hash by document. hashes: uint64 [n]. documents: uint32 [n]."""
    order = np.lexsort((documents, hashes))
    return Bands(hashes=hashes[order], documents=documents[order])


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedPart:
    """A part of a segment."""

    own: SegmentPart
    """Id, path of the index of its signatures, and rows."""
    excluded: tuple[int, ...]
    """Rows that were excluded from the version, and have no bands here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BandSegment:
    """A stored segment, by its record."""

    folder: str
    """Folder, with a `/` at its end."""
    parts: tuple[IndexedPart, ...]
    """Parts, in the order of their documents."""
    files: tuple[TableFile, ...]
    """Files, by first byte."""

    @property
    def n_bands(self) -> int:
        return sum(file.n_rows for file in self.files)

    @property
    def starts(self) -> Int64s:
        """int64 [parts + 1]: first document of each part, then the number of documents."""
        return part_starts([part.own for part in self.parts])


def bands_folder(dataset: str) -> str:
    return f"tables/{dataset}/{BANDS}/"


def n_files(n_bands: int) -> int:
    """Return the number of a segment's files: a power of two, so that each has equally many first bytes."""
    n = 1
    while n < MAX_FILES and n_bands > n * FILE_BANDS:
        n *= 2
    return n


def put_segment(
    store: Store,
    dataset: str,
    parts: Iterable[IndexedPart],
    n_bands: int,
    read: Callable[[int, int], Bands],
) -> BandSegment:
    """Store a segment and return it. Memory: one file's bands.

    n_bands: about how many it has. read: (first byte, end) -> the bands whose hash begins with these bytes.
    """
    indexed = tuple(parts)
    facts = [[*part.own, list(part.excluded)] for part in indexed]
    folder = f"{bands_folder(dataset)}{_digest(facts)}/"
    width = MAX_FILES // n_files(n_bands)  # first bytes of a file
    files = []
    for first_byte in range(0, MAX_FILES, width):
        bands = read(first_byte, first_byte + width)
        files.append(_put_file(store, f"{folder}{first_byte:02x}.parquet", bands))
    segment = BandSegment(folder=folder, parts=indexed, files=tuple(files))
    body = {"format": FORMAT, "parts": facts, "files": [file.to_json() for file in files]}
    # Last: a segment without its record is the rest of a killed run.
    store.put(folder + RECORD, canonical(body))
    return segment


def _digest(facts: list[Any]) -> str:
    """Return the name of the folder of a segment with these parts."""
    return hashlib.sha256(canonical([FORMAT, facts])).hexdigest()[:16]


def _put_file(
    store: Store,
    path: str,
    bands: Bands,
) -> TableFile:
    """Store a file of a segment, over one that is there: the name does not depend on its bytes."""
    columns = [pa.array(bands.hashes), pa.array(bands.documents)]
    table = pa.Table.from_arrays(columns, schema=_SCHEMA)
    data = hashed_table_bytes(
        table,
        KIND,
        row_group_rows=ROW_GROUP_BANDS,
        use_dictionary=False,  # hashes hardly repeat
    )
    try:
        store.put_if_absent(path, data)
    except AlreadyExists:  # a damaged file, or an older penstock's
        store.put(path, data)
    return TableFile(
        path=path,
        nbytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        n_rows=table.num_rows,
        footer_sha256=footer_sha256(data),
    )


def read_segment(
    store: Store,
    folder: str,
) -> BandSegment:
    """Return a segment by its record. Raises: Corrupt; ObjectNotFound."""
    path = folder + RECORD
    return parse_segment(store.get(path).data, folder)


def parse_segment(
    data: bytes,
    folder: str,
) -> BandSegment:
    """Return a segment. Raises: Corrupt; FormatTooNew."""
    name = folder + RECORD
    try:
        body = parse_json_object(data)
        version = int(body["format"])
        if version > FORMAT:
            raise FormatTooNew(
                f"{name} has format {version}; this penstock reads {FORMAT}. Upgrade penstock-data (docs/install.md)",
                what="format",
                where=name,
                given=version,
                accepted=FORMAT,
            )
        parts = [_parse_part(*facts) for facts in body["parts"]]
        files = tuple(TableFile.from_json(file) for file in body["files"])
        is_inside = all(file.path.startswith(folder) for file in files)
    except FormatTooNew:  # a ValueError, too
        raise
    except _UNREADABLE as error:
        raise Corrupt(
            f"{name} is not a record of a segment: {error}",
            what="record",
            where=name,
            given=type(error).__name__,
        ) from error
    # The folder's name is a hash of its parts.
    if not folder.endswith(f"/{_digest(body['parts'])}/"):
        raise Corrupt(f"{name} names parts that are not its folder's", what="parts", where=name)
    if not is_inside:
        raise Corrupt(f"{name} names files outside its folder", what="files", where=name, accepted=folder)
    return BandSegment(folder=folder, parts=tuple(parts), files=files)


def _parse_part(
    part: Any,
    source: Any,
    n_rows: Any,
    excluded: Any,
) -> IndexedPart:
    """Return a part of a record, which anyone may have written. Raises: ValueError, TypeError."""
    rows = tuple(int(row) for row in excluded)
    own = SegmentPart(str(part), str(source), int(n_rows))
    is_inside = all(0 <= row < own.n_rows for row in rows)
    if own.n_rows < 0 or not is_inside:
        raise ValueError(f"part {own.part} has {own.n_rows} rows, and excludes others")
    return IndexedPart(own=own, excluded=rows)


def list_segments(
    store: Store,
    dataset: str,
) -> dict[str, dict[str, ObjectInfo]]:
    """Return folder -> name -> object of a segment. Costs one listing."""
    folders: dict[str, dict[str, ObjectInfo]] = {}
    for info in store.list(bands_folder(dataset)):
        folder, _, name = info.key.rpartition("/")
        folders.setdefault(f"{folder}/", {})[name] = info
    return folders


def find_hash_bands(
    store: Store,
    segment: BandSegment,
    hashes: UInt64s,
) -> Iterator[Bands]:
    """Yield the bands of row groups that may have one of these hashes, uint64 [n], ascending.

    Raises: Corrupt; ObjectNotFound.
    """

    def choose(footer: pq.FileMetaData) -> list[int]:
        """Return the row groups between whose first and last hash a searched one lies."""
        groups = []
        for group in range(footer.num_row_groups):
            statistics = footer.row_group(group).column(0).statistics
            first = np.searchsorted(hashes, np.uint64(statistics.min), side="left")
            end = np.searchsorted(hashes, np.uint64(statistics.max), side="right")
            if first < end:
                groups.append(group)
        return groups

    for file in segment.files:
        for table in get_row_groups(store, file, choose):
            yield _table_bands(table)


def read_band_range(
    store: Store,
    segment: BandSegment,
    first_byte: int,
    end_byte: int,
) -> Bands:
    """Return the bands whose hash begins with bytes in [first_byte, end_byte). Raises: Corrupt; ObjectNotFound."""
    # The first byte of a hash is its highest.
    low = first_byte << 56
    high = (end_byte << 56) - 1

    def choose(footer: pq.FileMetaData) -> list[int]:
        """Return the row groups that may have a hash of the range."""
        groups = []
        for group in range(footer.num_row_groups):
            statistics = footer.row_group(group).column(0).statistics
            if statistics.min <= high and low <= statistics.max:
                groups.append(group)
        return groups

    bands = [no_bands()]
    for file in segment.files:
        bands += map(_table_bands, get_row_groups(store, file, choose))
    between = joined(bands)
    is_between = (between.hashes >= np.uint64(low)) & (between.hashes <= np.uint64(high))
    return between.take(is_between)


def _table_bands(table: pa.Table) -> Bands:
    hashes: UInt64s = table["hash"].combine_chunks().to_numpy()
    documents: UInt32s = table["document"].combine_chunks().to_numpy()
    return Bands(hashes=hashes, documents=documents)
