"""Gather and verify field bytes in memory, from open files or pieces that were already read from a bucket.

One call of `loader.native` copies and checks the samples of all shards without the interpreter's lock.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import compress, repeat
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...native import IN_MEMORY, RIGHT, WRONG, OpenFile, gather
from ...storage import ByteRange
from ...storage.disk.file_handles import FileHandle
from ...storage.requests import count_request
from ..shards.address import UNKNOWN_CRC, SampleAddress
from ..shards.bitmap import Bools
from ..shards.shard import crc32c
from .pinned_reads import FindReading, Reading, ShardRead
from .sample_places import Int64s, SamplePlaces, Shard
from .verified_bucket_reads import FieldRead, read_places


class RowsOfField(NamedTuple):
    """Rows of one field to fill with the bytes of samples."""

    field: str
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


class Sources(NamedTuple):
    """Bytes of one field of n samples, in open files or in memory."""

    files: list[OpenFile]
    """Files, as `loader.native` takes them."""
    numbers: Int64s
    """int64 [n]: numbers of the samples."""
    file_number: Int64s
    """int64 [n]: index into `files`."""
    file_offset: Int64s
    """int64 [n]: first byte in the file."""
    nbytes: Int64s
    """int64 [n]: number of bytes."""
    report: Callable[[float, float], None]
    """Called with (seconds of the whole read, seconds of verification)."""


class Gatherable(Protocol):
    """Samples that can be gathered: `OpenShards` on a disk, `UnverifiedSamples` from a bucket."""

    @property
    def find_reading(self) -> FindReading:
        """Returns the `Reading` for a second read."""

    @property
    def places(self) -> SamplePlaces:
        """Places of the samples."""

    def sources(
        self,
        field: str,
        numbers: Int64s,
    ) -> tuple[Sources, Int64s]:
        """Return (sources of the samples, numbers of samples that have none). numbers: int64, ascending."""


def gather_rows(
    gatherable: Gatherable,
    rows: RowsOfField,
) -> list[FieldRead]:
    """Fill the rows with verified bytes. Return those with another head or wrong bytes, read again, or their errors."""
    sources, unread = gatherable.sources(rows.field, rows.numbers)
    # [n]: position of each sample in `rows`
    if len(rows.numbers) == len(gatherable.places):
        position = sources.numbers  # the numbers of all samples are 0, 1, 2 ...: they need no search
    else:
        position = np.searchsorted(rows.numbers, sources.numbers)
    row_nbytes = rows.memory.shape[1]
    memory_offset = rows.rows[position] * row_nbytes  # [n]

    is_right = _gather_verified(
        gatherable=gatherable,
        sources=sources,
        field=rows.field,
        head=rows.head,
        memory=rows.memory,
        memory_offset=memory_offset,
    )
    if is_right.all() and not len(unread):
        return []
    failed = np.concatenate([sources.numbers[~is_right], unread])
    return _read_again(gatherable, rows.field, failed)


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
    gatherable: Gatherable,
    field: str,
    numbers: Int64s,
    allocate: Allocate,
) -> tuple[GatheredBytes, list[FieldRead]]:
    """Return (verified bytes of a field, samples that needed a second read or failed).

    numbers: int64, ascending.
    """
    sources, unread = gatherable.sources(field, numbers)
    # The samples lie one after the other in the memory.
    end = np.cumsum(sources.nbytes)
    memory_offset = end - sources.nbytes  # [n]
    total_bytes = int(sources.nbytes.sum())
    memory = allocate((total_bytes,), _UINT8)

    is_right = _gather_verified(
        gatherable=gatherable,
        sources=sources,
        field=field,
        head=b"",
        memory=memory,
        memory_offset=memory_offset,
    )
    gathered = GatheredBytes(
        numbers=sources.numbers[is_right],
        memory=memory,
        begin=memory_offset[is_right],
        sizes=sources.nbytes[is_right],
    )
    failed = np.concatenate([sources.numbers[~is_right], unread])
    return gathered, _read_again(gatherable, field, failed)


def _gather_verified(
    *,
    gatherable: Gatherable,
    sources: Sources,
    field: str,
    head: bytes,
    memory: np.ndarray,
    memory_offset: Int64s,
) -> Bools:
    """Copy samples without their head to `memory`; return bool [n], True if correct.

    Stores each CRC-32C that was unknown in the samples' places. memory_offset: int64 [n].
    """
    status = np.zeros(len(sources.numbers), np.uint8)
    if len(status):
        start = perf_counter()
        known_crcs = gatherable.places.fields[field].crc32c
        crcs = known_crcs[sources.numbers]
        verified_s = gather(
            sources.files,
            sources.file_number,
            sources.file_offset,
            sources.nbytes,
            head,
            memory,
            memory_offset,
            crcs,
            status,
        )
        sources.report(perf_counter() - start, verified_s)
        known_crcs[sources.numbers] = crcs  # `gather` fills in unknown checksums

    is_right: Bools = status == RIGHT
    if not is_right.all():
        # Not the unread ones: the second read reports those.
        wrong = np.flatnonzero(status == WRONG)
        _report_faults(gatherable, sources, field, wrong)
    return is_right


def _report_faults(
    gatherable: Gatherable,
    sources: Sources,
    field: str,
    wrong: Int64s,
) -> None:
    """Report samples with a wrong checksum. Samples whose head merely differs from the common one are correct.

    wrong: int64, positions in `sources`.
    """
    places = gatherable.places.fields[field]
    for position in wrong.tolist():
        number = int(sources.numbers[position])
        begin = int(sources.file_offset[position])
        nbytes = int(sources.nbytes[position])
        file_number = int(sources.file_number[position])
        descriptor, memory = sources.files[file_number]
        if descriptor == IN_MEMORY:
            assert isinstance(memory, bytes | memoryview)
            data = memoryview(memory)[begin : begin + nbytes]
        else:
            data = memoryview(os.pread(descriptor, nbytes, begin))

        address = places.address(field, number)
        checksum = crc32c(data)
        is_known = address.crc32c != UNKNOWN_CRC
        if is_known and checksum != address.crc32c:
            shard = places.shards[int(places.shard[number])]
            reading = gatherable.find_reading(shard.version)
            reading.report_fault(address, checksum)


def _read_again(
    gatherable: Gatherable,
    field: str,
    numbers: Int64s,
) -> list[FieldRead]:
    """Return samples of a field from a second read, or as errors. numbers: int64, in any order."""
    if not len(numbers):
        return []
    ascending = np.sort(numbers)
    return read_places(gatherable.find_reading, gatherable.places, {field: ascending})


class UnverifiedSamples(NamedTuple):
    """Samples whose bytes were read from a bucket and are not verified yet."""

    find_reading: FindReading
    """Returns the `Reading` for a second read."""
    places: SamplePlaces
    """Places of the samples in their shards."""
    data: Mapping[str, Mapping[int, bytes | memoryview]]
    """Field -> sample number -> unverified bytes."""
    on_verified: Callable[[float], None]
    """Called with the seconds spent verifying, copies included."""

    def sources(
        self,
        field: str,
        numbers: Int64s,
    ) -> tuple[Sources, Int64s]:
        # A sample without bytes, or with too few, is left to a second read.
        data = self.data.get(field, {})
        pieces = [data.get(number, b"") for number in numbers.tolist()]
        piece_nbytes = np.fromiter(map(len, pieces), np.int64, len(pieces))
        nbytes = self.places.fields[field].nbytes
        has_all_bytes = piece_nbytes == nbytes[numbers]  # bool [n]
        readable = numbers[has_all_bytes]
        complete_pieces = compress(pieces, has_all_bytes.tolist())
        files: list[OpenFile] = list(zip(repeat(IN_MEMORY), complete_pieces))

        def report(took_s: float, verified_s: float) -> None:
            self.on_verified(took_s)  # the bytes were read before: all of the time counts as verification

        sources = Sources(
            files=files,
            numbers=readable,
            file_number=np.arange(len(files)),
            file_offset=np.zeros(len(files), np.int64),
            nbytes=nbytes[readable],
            report=report,
        )
        return sources, numbers[~has_all_bytes]


class _ShardSamples(NamedTuple):
    """An open shard, and the samples to gather from it."""

    reading: Reading
    path: str
    file: FileHandle
    first_address: Callable[[], SampleAddress]
    """Returns the address of the first sample."""
    span: ByteRange
    nbytes: int
    """Bytes of the shard's samples in this read."""
    opened_s: float
    """Seconds that opening took."""


def _report(
    shards: Sequence[_ShardSamples],
    took_s: float,
    verified_s: float,
) -> None:
    """Report the slowest shard. Reading is timed as a whole: a shard's share of the time is its share of the bytes."""
    total_bytes = sum(shard.nbytes for shard in shards)
    s_per_byte = (took_s - verified_s) / max(1, total_bytes)
    fetch_s = [shard.opened_s + s_per_byte * shard.nbytes for shard in shards]
    longest_s = max(fetch_s)
    slowest = shards[fetch_s.index(longest_s)]
    read = ShardRead(
        first_address=slowest.first_address,
        path=slowest.path,
        span=slowest.span,
        fetch_s=longest_s,
        verify_s=verified_s,  # of all shards
    )
    slowest.reading.on_read(read)


class OpenShards(NamedTuple):
    """Samples in shards on a disk, which are opened when they are gathered."""

    find_reading: FindReading
    """Returns the `Reading` for a version's shards."""
    places: SamplePlaces

    def sources(
        self,
        field: str,
        numbers: Int64s,
    ) -> tuple[Sources, Int64s]:
        places = self.places.fields[field]
        ordered, shares = places.shares(numbers)  # ordered: int64 [n], samples of one shard are adjacent
        offset = places.offset[ordered]
        nbytes = places.nbytes[ordered]

        # Open each shard. One that cannot be opened leaves its samples at file number -1.
        file_number = np.full(len(ordered), -1, np.int64)
        shards: list[_ShardSamples] = []
        if shares:  # numpy's reduceat raises if there are none
            starts = [share.start for share in shares]
            first_bytes = np.minimum.reduceat(offset, starts).tolist()
            end_bytes = np.maximum.reduceat(offset + nbytes, starts).tolist()
            shard_bytes = np.add.reduceat(nbytes, starts).tolist()
            for share, first_byte, end_byte, total in zip(
                shares,
                first_bytes,
                end_bytes,
                shard_bytes,
                strict=True,
            ):
                samples = slice(share.start, share.stop)
                shard = self._open_shard(
                    shard=share.shard,
                    first=int(ordered[share.start]),
                    field=field,
                    offset=offset[samples],
                    nbytes=nbytes[samples],
                    span=ByteRange(first_byte, end_byte - first_byte),
                    total=total,
                )
                if shard is not None:
                    file_number[samples] = len(shards)
                    shards.append(shard)

        count_request(len(shards))

        # Leave the samples of unopened shards to a second read.
        files: list[OpenFile] = [(shard.file.descriptor, shard.file.map) for shard in shards]
        report = partial(_report, shards)
        is_open = file_number >= 0  # bool [n]
        if is_open.all():  # almost always: saves the copies below
            sources = Sources(files, ordered, file_number, offset, nbytes, report)
            return sources, ordered[:0]
        sources = Sources(
            files=files,
            numbers=ordered[is_open],
            file_number=file_number[is_open],
            file_offset=offset[is_open],
            nbytes=nbytes[is_open],
            report=report,
        )
        return sources, ordered[~is_open]

    def _open_shard(
        self,
        *,
        shard: Shard,
        first: int,
        field: str,
        offset: Int64s,
        nbytes: Int64s,
        span: ByteRange,
        total: int,
    ) -> _ShardSamples | None:
        """Return the open shard; None if another read must report its error.

        first: number of its first sample. offset, nbytes: int64 [samples of the shard]. total: sum of nbytes.
        """
        start_s = perf_counter()
        reading = self.find_reading(shard.version)
        first_address = partial(self.places.address, first)
        file = reading.open_shard(
            shard.path,
            offset,
            nbytes,
            first_address,
            field,
        )
        if file is None:
            return None
        opened_s = perf_counter() - start_s
        # By position: keywords cost 2 % of a batch with a shard for each sample.
        return _ShardSamples(
            reading,
            shard.path,
            file,
            first_address,
            span,
            total,
            opened_s,
        )
