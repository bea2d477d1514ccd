"""Fields read from a disk, verified: those of one size into rows of memory, others as bytes.

`loader.native` reads and checks the samples of all shards in one go, outside the interpreter's lock.
"""

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ...errors import Corrupt
from ...native import RIGHT, OpenFile, gather
from ...storage import Span
from ...storage.disk.file_handles import FileHandle
from ...storage.shared.requests import count_request
from ..shards.address import SampleAddress
from ..shards.bitmap import Bools
from .places import Int64s, SamplePlaces
from .read_fields import read_places
from .shard_read import Reading, ReadingOf, ShardRead


class RowsOfField(NamedTuple):
    """Memory for the values of one field."""

    field: str
    """Name of the field."""
    head: bytes
    """Bytes that all values begin with; they are compared and dropped."""
    numbers: Int64s
    """int64 [n], ascending: numbers of the samples, whose fields have the size of head and row."""
    rows: Int64s
    """int64 [n]: row of `memory` that the rest of each sample fills."""
    memory: np.ndarray
    """uint8 [any, nbytes], contiguous."""


Allocate = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]
"""(shape, dtype) -> an array of any content."""
_UINT8 = np.dtype(np.uint8)

FieldRead = tuple[int, str, bytes | Corrupt]
"""Number of a sample, field, its bytes or the reason why it has none."""


def read_rows(reading_of: ReadingOf, places: SamplePlaces, one: RowsOfField) -> list[FieldRead]:
    """Fill the rows from disks, verified; return the samples that do not lie in their row.

    Raises: Changed; ObjectNotFound; Transient.
    """
    found, left = _opened(reading_of, places, one.field, one.numbers)
    at = one.rows[np.searchsorted(one.numbers, found.numbers)] * one.memory.shape[1]
    right = _gathered(found, places, one.field, one.head, one.memory, at)
    left = np.concatenate([found.numbers[~right], left])
    return _read_again(reading_of, places, one.field, left)


class BytesRead(NamedTuple):
    """Verified bytes of a field, in one piece of memory."""

    numbers: Int64s
    """int64 [n]: numbers of the samples."""
    memory: np.ndarray
    """uint8 [any]: their bytes, and others."""
    begin: Int64s
    """int64 [n]: first byte of each in `memory`."""
    sizes: Int64s
    """int64 [n]: bytes of each."""


def read_bytes(
    reading_of: ReadingOf, places: SamplePlaces, field: str, numbers: Int64s, allocate: Allocate
) -> tuple[BytesRead, list[FieldRead]]:
    """Return samples of a field from disks, verified; and those that had to be read once more, or cannot be.

    numbers: int64, ascending. Raises: as `read_rows`.
    """
    found, left = _opened(reading_of, places, field, numbers)
    at = np.cumsum(found.nbytes) - found.nbytes
    memory = allocate((int(found.nbytes.sum()),), _UINT8)
    right = _gathered(found, places, field, b"", memory, at)
    read = BytesRead(found.numbers[right], memory, at[right], found.nbytes[right])
    left = np.concatenate([found.numbers[~right], left])
    return read, _read_again(reading_of, places, field, left)


def _gathered(
    found: "_Opened", places: SamplePlaces, field: str, head: bytes, memory: np.ndarray, at: Int64s
) -> Bools:
    """Read samples behind their head into memory, each from byte `at` on; return which are right, bool [n]."""
    status = np.zeros(len(found.numbers), np.uint8)
    if len(status):
        start, crcs = perf_counter(), places.fields[field].crc32c[found.numbers]
        columns = found.which, found.begin, found.nbytes
        verified_s = gather(found.files(), *columns, head, memory, at, crcs, status)
        found.report(perf_counter() - start, verified_s)
    right: Bools = status == RIGHT
    return right


def _read_again(reading_of: ReadingOf, places: SamplePlaces, field: str, numbers: Int64s) -> list[FieldRead]:
    """Return samples that are not in place, each by reads of the store, which say what is wrong with it."""
    return read_places(reading_of, places, {field: np.sort(numbers)}) if len(numbers) else []


class _Shard(NamedTuple):
    reading: Reading
    path: str
    file: FileHandle
    first: Callable[[], SampleAddress]
    span: Span
    nbytes: int  # of all its samples at hand
    opened_s: float


class _Opened(NamedTuple):
    """Samples of one field that lie in open shards, shard by shard."""

    shards: list[_Shard]
    numbers: Int64s  # int64 [n]: of the samples
    which: Int64s  # int64 [n]: index into `shards`
    begin: Int64s  # int64 [n]: first byte in the shard
    nbytes: Int64s  # int64 [n]

    def files(self) -> list[OpenFile]:
        """Return the open shards as the verbs of `loader.native` take them."""
        return [(shard.file.descriptor, shard.file.map) for shard in self.shards]

    def report(self, took_s: float, verified_s: float) -> None:
        """Tell of the shard that took longest, its share of the common time being that of its bytes."""
        each_s = (took_s - verified_s) / max(1, sum(shard.nbytes for shard in self.shards))
        fetched_s, slowest = max(
            ((shard.opened_s + each_s * shard.nbytes, shard) for shard in self.shards), key=itemgetter(0)
        )
        read = ShardRead(slowest.first, slowest.path, slowest.span, fetched_s, verified_s)
        slowest.reading.on_read(read)


def _opened(
    reading_of: ReadingOf, places: SamplePlaces, field: str, numbers: Int64s
) -> tuple[_Opened, Int64s]:
    """Return samples in shards that could be opened, and the numbers of the others. Raises: as `read_rows`."""
    at, shards = places.fields[field], list[_Shard]()
    ordered, shares = at.shares(numbers)
    begin, nbytes = at.offset[ordered], at.nbytes[ordered]
    which = np.full(len(ordered), -1, np.int64)
    if shares:
        starts = [share.start for share in shares]
        lows = np.minimum.reduceat(begin, starts).tolist()
        ends = np.maximum.reduceat(begin + nbytes, starts).tolist()
        totals = np.add.reduceat(nbytes, starts).tolist()
        for (shard, first, stop), low, end, total in zip(shares, lows, ends, totals, strict=True):
            start, mine, reading = perf_counter(), slice(first, stop), reading_of(shard.of)
            address = partial(places.address, int(ordered[first]))
            file = reading.opened(shard.path, begin[mine], nbytes[mine], address, field)
            if file is None:
                continue
            count_request()
            which[mine] = len(shards)
            opened_s = perf_counter() - start
            shards.append(_Shard(reading, shard.path, file, address, Span(low, end - low), total, opened_s))
    there = which >= 0
    if there.all():
        return _Opened(shards, ordered, which, begin, nbytes), ordered[:0]
    found = _Opened(shards, ordered[there], which[there], begin[there], nbytes[there])
    return found, ordered[~there]
