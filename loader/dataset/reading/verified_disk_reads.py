"""Gather and verify field bytes in memory, from open files or pieces that were already read from a bucket.

One call of `loader.native` copies and checks the samples of all shards without the interpreter's lock.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import compress, repeat
from operator import itemgetter
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...errors import Corrupt
from ...native import IN_MEMORY, RIGHT, WRONG, OpenFile, gather
from ...storage import ByteRange
from ...storage.disk.file_handles import FileHandle
from ...storage.requests import count_request
from ..shards.address import UNKNOWN_CRC, SampleAddress
from ..shards.bitmap import Bools
from ..shards.shard import crc32c
from .sample_places import Int64s, SamplePlaces
from .shard_read import Reading, ReadingOf, ShardRead
from .verified_bucket_reads import read_places


class RowsOfField(NamedTuple):
    field: str
    """Field name."""
    head: bytes
    """Common first bytes, which are compared and not copied."""
    numbers: Int64s
    """int64 [n], ascending: samples whose field has exactly the size of head and row."""
    rows: Int64s
    """int64 [n]: row of `memory` for the bytes after the head."""
    memory: np.ndarray
    """uint8 [rows, nbytes], contiguous."""


Allocate = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]
"""(shape, dtype) -> uninitialized array."""
_UINT8 = np.dtype(np.uint8)

FieldRead = tuple[int, str, bytes | memoryview | Corrupt]
"""(sample number, field, bytes or error)."""


class Sources(NamedTuple):
    files: list[OpenFile]
    """Files, as `loader.native` takes them."""
    numbers: Int64s
    """int64 [n]: numbers of the samples."""
    which: Int64s
    """int64 [n]: index into `files`."""
    begin: Int64s
    """int64 [n]: first byte in the file."""
    nbytes: Int64s
    """int64 [n]: number of bytes."""
    report: Callable[[float, float], None]
    """Called with (seconds of the whole read, seconds of verification)."""


class Gatherable(Protocol):
    """Samples that can be gathered: `OpenShards` on a disk, `UnverifiedSamples` from a bucket."""

    @property
    def reading_of(self) -> ReadingOf:
        """Returns the `Reading` for a second read."""

    @property
    def places(self) -> SamplePlaces:
        """Places of the samples."""

    def sources(self, field: str, numbers: Int64s) -> tuple[Sources, Int64s]:
        """Return (sources of the samples, numbers of samples that have none). numbers: int64, ascending."""


def gather_rows(gatherable: Gatherable, rows: RowsOfField) -> list[FieldRead]:
    """Fill the rows with verified bytes. Return the samples that do not fit, from a second read or as errors."""
    sources, unread = gatherable.sources(rows.field, rows.numbers)
    every = len(rows.numbers) == len(gatherable.places)
    row = rows.rows[sources.numbers if every else np.searchsorted(rows.numbers, sources.numbers)]
    at = row * rows.memory.shape[1]
    right = _gather_verified(gatherable, sources, rows.field, rows.head, rows.memory, at)
    if not len(unread) and right.all():
        return []
    return _read_again(gatherable, rows.field, np.concatenate([sources.numbers[~right], unread]))


class GatheredBytes(NamedTuple):
    """Verified bytes of one field, in one buffer."""

    numbers: Int64s
    """int64 [n]: numbers of the samples."""
    memory: np.ndarray
    """uint8 [bytes]: the samples' bytes; other parts are undefined."""
    begin: Int64s
    """int64 [n]: offset of each sample in `memory`."""
    sizes: Int64s
    """int64 [n]: size of each sample in bytes."""


def gather_bytes(
    gatherable: Gatherable, field: str, numbers: Int64s, allocate: Allocate
) -> tuple[GatheredBytes, list[FieldRead]]:
    """Return (verified bytes of a field, samples that needed a second read or failed).

    numbers: int64, ascending.
    """
    sources, unread = gatherable.sources(field, numbers)
    at = np.cumsum(sources.nbytes) - sources.nbytes
    memory = allocate((int(sources.nbytes.sum()),), _UINT8)
    right = _gather_verified(gatherable, sources, field, b"", memory, at)
    read = GatheredBytes(sources.numbers[right], memory, at[right], sources.nbytes[right])
    return read, _read_again(gatherable, field, np.concatenate([sources.numbers[~right], unread]))


def _gather_verified(
    gatherable: Gatherable, sources: Sources, field: str, head: bytes, memory: np.ndarray, at: Int64s
) -> Bools:
    """Copy samples without their head to `memory`, each at offset `at`; return bool [n], True if correct."""
    status = np.zeros(len(sources.numbers), np.uint8)
    if len(status):
        start, known = perf_counter(), gatherable.places.fields[field].crc32c
        crcs = known[sources.numbers]
        columns = sources.which, sources.begin, sources.nbytes
        verified_s = gather(sources.files, *columns, head, memory, at, crcs, status)
        sources.report(perf_counter() - start, verified_s)
        known[sources.numbers] = crcs  # fills in unknown checksums
    right: Bools = status == RIGHT
    if not right.all():
        _report_faults(gatherable, sources, field, np.flatnonzero(status == WRONG))
    return right


def _report_faults(gatherable: Gatherable, sources: Sources, field: str, wrong: Int64s) -> None:
    """Report items with a wrong checksum. Items whose head merely differs from the common one are correct."""
    at = gatherable.places.fields[field]
    for i in wrong.tolist():
        number, (descriptor, memory) = int(sources.numbers[i]), sources.files[int(sources.which[i])]
        begin, nbytes = int(sources.begin[i]), int(sources.nbytes[i])
        if descriptor == IN_MEMORY:
            assert isinstance(memory, bytes | memoryview)
            data = memoryview(memory)[begin : begin + nbytes]
        else:
            data = memoryview(os.pread(descriptor, nbytes, begin))
        place, checksum = at.address(field, number), crc32c(data)
        if checksum != place.crc32c != UNKNOWN_CRC:
            gatherable.reading_of(at.shards[int(at.shard[number])].version).fault(place, checksum)


def _read_again(gatherable: Gatherable, field: str, numbers: Int64s) -> list[FieldRead]:
    by_field = {field: np.sort(numbers)}
    return read_places(gatherable.reading_of, gatherable.places, by_field) if len(numbers) else []


class UnverifiedSamples(NamedTuple):
    reading_of: ReadingOf
    """Returns the `Reading` for a second read."""
    places: SamplePlaces
    """Places of the samples in their shards."""
    data: Mapping[str, Mapping[int, bytes | memoryview]]
    """Field -> sample number -> unverified bytes."""
    on_verified: Callable[[float], None]
    """Called with the seconds spent verifying, copies included."""

    def sources(self, field: str, numbers: Int64s) -> tuple[Sources, Int64s]:
        data, sizes = self.data.get(field, {}), self.places.fields[field].nbytes
        pieces = [data.get(number, b"") for number in numbers.tolist()]
        there = np.fromiter(map(len, pieces), np.int64, len(pieces)) == sizes[numbers]
        readable = numbers[there]
        none = np.zeros(len(readable), np.int64)
        files: list[OpenFile] = list(zip(repeat(IN_MEMORY), compress(pieces, there.tolist())))
        which = np.arange(len(readable))

        def report(took_s: float, verified_s: float) -> None:
            self.on_verified(took_s)

        return Sources(files, readable, which, none, sizes[readable], report), numbers[~there]


class _ShardReads(NamedTuple):
    reading: Reading
    path: str
    file: FileHandle
    first: Callable[[], SampleAddress]
    span: ByteRange
    nbytes: int  # of the shard's samples in this read
    opened_s: float


def _report(shards: Sequence[_ShardReads], took_s: float, verified_s: float) -> None:
    """Report the slowest shard. Time is attributed to shards by their bytes."""
    each_s = (took_s - verified_s) / max(1, sum(shard.nbytes for shard in shards))
    fetched_s, slowest = max(
        ((shard.opened_s + each_s * shard.nbytes, shard) for shard in shards), key=itemgetter(0)
    )
    slowest.reading.on_read(ShardRead(slowest.first, slowest.path, slowest.span, fetched_s, verified_s))


class OpenShards(NamedTuple):
    reading_of: ReadingOf
    """Returns the `Reading` for a version's shards."""
    places: SamplePlaces

    def sources(self, field: str, numbers: Int64s) -> tuple[Sources, Int64s]:
        at, shards = self.places.fields[field], list[_ShardReads]()
        ordered, shares = at.shares(numbers)
        begin, nbytes = at.offset[ordered], at.nbytes[ordered]
        which = np.full(len(ordered), -1, np.int64)
        if shares:
            starts = [share.start for share in shares]
            lows = np.minimum.reduceat(begin, starts).tolist()
            ends = np.maximum.reduceat(begin + nbytes, starts).tolist()
            totals = np.add.reduceat(nbytes, starts).tolist()
            for (shard, first, stop), low, end, total in zip(shares, lows, ends, totals, strict=True):
                start, rows, reading = perf_counter(), slice(first, stop), self.reading_of(shard.version)
                address = partial(self.places.address, int(ordered[first]))
                file = reading.opened(shard.path, begin[rows], nbytes[rows], address, field)
                if file is None:
                    continue
                which[rows] = len(shards)
                opened_s = perf_counter() - start
                shards.append(
                    _ShardReads(
                        reading, shard.path, file, address, ByteRange(low, end - low), total, opened_s
                    )
                )
        count_request(len(shards))
        there = which >= 0
        files: list[OpenFile] = [(shard.file.descriptor, shard.file.map) for shard in shards]
        report = partial(_report, shards)
        if there.all():
            return Sources(files, ordered, which, begin, nbytes, report), ordered[:0]
        readable = ordered[there], which[there], begin[there], nbytes[there]
        return Sources(files, *readable, report), ordered[~there]
