"""Read stored embeddings of samples or of whole parts as unit vectors, checked by their checksums.

All embeddings of a field have the same header, so a part is read without decoding each file. The headers are compared,
and the numbers are gathered into one array.
"""

import io
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...errors import Corrupt, FieldMismatch
from ...storage.disk.file_handles import FileHandles
from ...storage.store import as_disk
from ...storage.threads import DaemonPool
from ..reading.pinned_reads import Reading
from ..reading.sample_places import FieldPlaces, SamplePlaces, Shard
from ..reading.verified_bucket_reads import FieldRead, read_places
from ..reading.verified_gathers import OpenShards, RowsOfField, gather_rows
from ..shards.bitmap import Bools
from ..shards.index import ROW_GROUP_ROWS
from ..tables.parquet import Int64s

if TYPE_CHECKING:
    from ..reading.sample_places import VersionData

Floats = np.ndarray[Any, np.dtype[np.float32]]
BLOCK_ROWS = 8192
"""Rows that are read together: 16 MiB of embeddings with 512 float32."""
_ROWS_IN_CACHE = 256
"""Rows of a piece: 512 KiB of embeddings with 512 float32."""
_HALF_BOUND = 65_536.0
"""Larger than all finite float16."""
_SIGN_AND_HALF = np.int32(-0x70002000)
"""Sign, and the 15 other bits of a float16 in their places in a float32: 0x8fffe000."""
_EXPONENT_SHIFT = np.float32(2.0**112)
"""Exponents of float16 begin at -15, and these of float32 at -127."""
_MOST_NUMBERS = 65_536
_READS_AT_ONCE = 16

logger = logging.getLogger(__name__)


class UnitVectors(NamedTuple):
    """Embeddings of samples, of length 1."""

    rows: Floats
    """float32 [n, numbers]; zeros where `is_valid` is False."""
    is_valid: Bools
    """bool [n]: False for an embedding that is missing, damaged, not finite, zero, or of another width."""


def open_reading(version: "VersionData") -> Reading:
    """Return how a version's shards are read. The caller closes its files, which only a local disk has."""
    store = version.shard_store
    disk = as_disk(store)
    files = None
    if disk is not None:
        files = FileHandles(disk)
    return Reading(store, {}, files=files)


class VectorReader:
    """Reads one field's embeddings of a version. Not thread-safe. Opens shards of a local disk once."""

    def __init__(self, version: "VersionData", field: str) -> None:
        self._version = version
        self._field = field
        self._layout: _EmbeddingLayout | None = None
        self._reading = open_reading(version)
        self._pool = DaemonPool(_READS_AT_ONCE, "penstock-vectors")

    def close(self) -> None:
        self._pool.shutdown()
        if self._reading.files is not None:
            self._reading.files.close()

    @property
    def width(self) -> int:
        """Numbers of an embedding; 0 before one was read."""
        if self._layout is None:
            return 0
        return self._layout.width

    def samples(self, ordinals: Int64s) -> UnitVectors:
        """Return the embeddings of live ordinals, int64 [n]. Raises: FieldNotFound if a part lacks the field."""
        places = self._version.places(
            ordinals,
            [self._field],
            self._pool.map,
        )
        return self._read(places)

    def blocks(self, ordinals: Int64s) -> Iterator[tuple[Int64s, UnitVectors]]:
        """Yield (ordinals, embeddings) for blocks of live ordinals, int64 [n], in order."""
        for start in range(0, len(ordinals), BLOCK_ROWS):
            block = ordinals[start : start + BLOCK_ROWS]
            yield block, self.samples(block)

    def part(self, position: int) -> Iterator[UnitVectors]:
        """Yield the embeddings of all rows of a part, excluded ones too, in blocks."""
        for places in part_places(self._version, self._field, position):
            yield self._read(places)

    def _read(self, places: SamplePlaces) -> UnitVectors:
        n = len(places)
        field_places = places.fields[self._field]
        layout = self._first_layout(places)
        if layout is None:
            return UnitVectors(np.zeros((n, 0), np.float32), np.zeros(n, bool))
        stored = np.empty((n, layout.row_nbytes), np.uint8)
        is_filled = field_places.nbytes == len(layout.head) + layout.row_nbytes
        numbers = np.flatnonzero(is_filled)
        if self._reading.files is not None:
            rows = RowsOfField(
                self._field,
                layout.head,
                numbers,
                numbers,
                stored,
            )
            gatherable = OpenShards(self._find_reading, places)
            others = gather_rows(gatherable, rows)
        else:
            others = self._read_each(places, numbers)
        for number, _, data in others:
            is_filled[number] = self._fill(stored[number], layout, data)
        return _unit_vectors(stored.view(layout.dtype), is_filled)

    def _find_reading(self, version: int) -> Reading:
        return self._reading

    def _read_each(self, places: SamplePlaces, numbers: Int64s) -> list[FieldRead]:
        return read_places(
            self._find_reading,
            places,
            {self._field: numbers},
            self._pool.map,
        )

    def _fill(
        self,
        row: np.ndarray,
        layout: "_EmbeddingLayout",
        data: bytes | memoryview | Corrupt,
    ) -> bool:
        """Copy an embedding's numbers into uint8 [row_nbytes]; return whether it has the layout."""
        if isinstance(data, Corrupt):
            logger.warning("%s: this embedding is left out of the search", data)
            return False
        if bytes(data[: len(layout.head)]) != layout.head:
            return False
        row[:] = np.frombuffer(data, np.uint8)[len(layout.head) :]
        return True

    def _first_layout(self, places: SamplePlaces) -> "_EmbeddingLayout | None":
        """Return the layout of the field, from its first readable embedding."""
        if self._layout is not None:
            return self._layout
        for number in range(min(len(places), ROW_GROUP_ROWS)):
            ((_, _, data),) = self._read_each(places, np.array([number]))
            if isinstance(data, Corrupt):
                continue
            layout = _embedding_layout(bytes(data))
            if layout is not None:
                self._layout = layout
                return layout
        return None


class _EmbeddingLayout(NamedTuple):
    """Header and numbers of an embedding's file."""

    head: bytes
    """Bytes before the numbers."""
    dtype: np.dtype[Any]
    width: int
    """Count of numbers."""

    @property
    def row_nbytes(self) -> int:
        return self.width * self.dtype.itemsize


def _embedding_layout(data: bytes) -> _EmbeddingLayout | None:
    """Return the layout of a .npy file with one row of floats; None for other bytes."""
    try:
        file = io.BytesIO(data)
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    except (ValueError, TypeError, EOFError, SyntaxError, MemoryError, RecursionError):
        return None
    is_row = len(shape) == 1 and 0 < shape[0] <= _MOST_NUMBERS
    if not is_row or dtype.kind != "f" or dtype.itemsize > 8:
        return None
    head = data[: file.tell()]
    layout = _EmbeddingLayout(head, dtype, int(shape[0]))
    if len(data) != len(head) + layout.row_nbytes:
        return None
    return layout


def _unit_vectors(stored: np.ndarray, is_filled: Bools) -> UnitVectors:
    """Return vectors [n, width] of floats divided by their lengths."""
    rows = np.empty(stored.shape, np.float32)
    is_valid = np.zeros(len(rows), bool)
    bound = np.inf  # no number from here on is finite
    if stored.dtype == np.float16:
        bound = _HALF_BOUND
    # In pieces that stay in the processor's cache: half the time of one pass after another over all rows.
    for start in range(0, len(rows), _ROWS_IN_CACHE):
        piece = slice(start, start + _ROWS_IN_CACHE)
        vectors = rows[piece]
        with np.errstate(over="ignore", invalid="ignore"):
            if stored.dtype == np.float16:
                _widen(stored[piece], vectors)
            else:
                vectors[:] = stored[piece]
            # Scaled first: squares of large numbers overflow, squares of small ones vanish.
            greatest = vectors.max(axis=1, initial=0)  # [rows of the piece]
            least = vectors.min(axis=1, initial=0)
            largest = np.maximum(greatest, -least)
            is_usable = is_filled[piece] & (largest > 0) & (largest < bound)
            scale = np.where(is_usable, largest, 1)
            vectors /= scale[:, None]
        vectors[~is_usable] = 0
        squares = np.einsum("ij,ij->i", vectors, vectors)
        length = np.sqrt(np.where(is_usable, squares, 1))
        vectors /= length[:, None]
        is_valid[piece] = is_usable
    return UnitVectors(rows, is_valid)


def _widen(halves: np.ndarray, out: Floats) -> None:
    """Write float16 numbers as float32: exact, but for `_HALF_BOUND` and more in the place of infinity and NaN.

    numpy takes six times as long, most of the time of an index.
    """
    bits = out.view(np.int32)
    bits[:] = halves.view(np.int16)  # with the sign in all upper bits
    bits <<= 13  # 23 bits of fraction, not 10
    bits &= _SIGN_AND_HALF
    out *= _EXPONENT_SHIFT


def unit_vector(vector: object, width: int, field: str) -> np.ndarray:
    """Return a query as float64 [width] of length 1. Raises: FieldMismatch."""
    try:
        values = np.asarray(vector, np.float64)
    except (ValueError, TypeError):
        raise FieldMismatch(
            f"like = {vector!r:.80}: pass a key, keys, or {width} numbers for {field!r}",
            what="like",
            given=vector,
            accepted=width,
        ) from None
    if values.ndim != 1 or len(values) != width:
        raise FieldMismatch(
            f"the vector has the shape {list(values.shape)}; embeddings in {field!r} have {width} numbers",
            what="vector",
            given=list(values.shape),
            accepted=width,
        )
    largest = np.abs(values).max(initial=0)
    if not np.isfinite(largest) or not largest:
        raise FieldMismatch(
            "the vector is zero or not finite; it needs a direction: finite numbers, not all zero",
            what="vector",
            given="zero or not finite",
        )
    scaled = values / largest
    unit: np.ndarray = scaled / np.sqrt(scaled @ scaled)
    return unit


def field_ordinals(version: "VersionData", field: str) -> Int64s:
    """Return int64 [n]: the live ordinals of samples with a field. Raises: FieldNotFound."""
    group = version.group_of(field)
    has_field = version.parts.has_live_group(group)
    return np.flatnonzero(has_field)


def part_places(
    version: "VersionData",
    field: str,
    position: int,
) -> Iterator[SamplePlaces]:
    """Yield the places of a field for all rows of a part, live or not, in blocks."""
    group = version.group_of(field)
    n_rows = int(version.parts.n_rows[position])
    for start in range(0, n_rows, BLOCK_ROWS):
        rows = np.arange(start, min(start + BLOCK_ROWS, n_rows))
        yield _row_places(
            version,
            group,
            field,
            position,
            rows,
        )


def _row_places(
    version: "VersionData",
    group: str,
    field: str,
    position: int,
    rows: Int64s,
) -> SamplePlaces:
    """Return the places of a field for neighbouring rows of a part, int64 [n], whether they are live or not."""
    first_stretch = int(rows[0]) // ROW_GROUP_ROWS
    last_stretch = int(rows[-1]) // ROW_GROUP_ROWS
    numbers = range(first_stretch, last_stretch + 1)
    stretches = [version.stretch(group, position, number) for number in numbers]
    offset = np.concatenate([stretch.rows.offset[field] for stretch in stretches])
    nbytes = np.concatenate([stretch.rows.nbytes[field] for stretch in stretches])
    crc32c = np.concatenate([stretch.rows.crc32c[field] for stretch in stretches])
    n = len(rows)
    only = np.zeros(n, np.int64)
    shard = Shard(0, group, stretches[0].path)
    field_places = FieldPlaces(
        shards=[shard],
        shard=only,
        offset=offset,
        nbytes=nbytes,
        crc32c=crc32c,
    )
    return SamplePlaces(
        versions=[version],
        version=only,
        part=np.full(n, position),
        row=rows,
        ordinal=np.full(n, -1),
        index=[stretch.rows for stretch in stretches],
        stretch=rows // ROW_GROUP_ROWS - first_stretch,
        fields={field: field_places},
    )
