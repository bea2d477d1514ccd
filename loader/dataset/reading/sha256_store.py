"""Check shard pages against SHA-256 at first use: `Root(verify="sha256")`.

The default check is a CRC-32C (`verified_bucket_reads`, `verified_gathers`), which detects accidents only. A chain of
SHA-256 hashes runs from the version's id through manifest, shards table and index to a shard's pages.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn, Unpack, cast

import numpy as np

from ...errors import Corrupt
from ...storage import Blob, ByteRange, RangeReader, ReadLimits
from ...storage.mirror import MirroredStore
from ...storage.requests import record_store_numbers
from ...storage.store import Disk, Piece, as_disk, fill_pieces, is_local, is_on_network
from ...storage.stream import slice_reads
from ...storage.threads import SizedLru
from ..shards.shard import PageHashes
from .read_faults import add_fault
from .shard_pages import Bools, Identity, Int64s, ShardPages

MAX_SHARDS = 16_384
"""Most recently used shards whose verified pages are remembered, at 33 bytes a page."""

LoadHashes = Callable[[str], PageHashes]
"""Path of a shard -> hashes of its pages, from its index. Raises: Corrupt; InvalidRuntime if it has none."""

_NEAREST = -1  # no store has this number
_READ_BYTES = 2**20  # a power of two, like the page size: whole pages

ReadSpans = Callable[[Sequence[ByteRange], str | None], tuple[list[bytes], str]]
"""(spans, expected ETag) -> (bytes of the spans, ETag)."""


class VerifiedStore:
    """A store of shards that verifies bytes before returning them; unverified pages are checked whole. Thread-safe.

    Raises: as `origin`; also Corrupt if a page does not match its hash.
    """

    def __init__(
        self,
        origin: RangeReader,
        load_hashes: LoadHashes,
    ) -> None:
        self._origin = origin
        self._load_hashes = load_hashes
        self._shards = SizedLru(MAX_SHARDS)

    @property
    def url(self) -> str:
        return self._origin.url

    @property
    def is_local(self) -> bool:
        return is_local(self._origin)

    @property
    def is_on_network(self) -> bool:
        return is_on_network(self._origin)

    @property
    def disk(self) -> "VerifiedStore | None":
        if as_disk(self._origin) is None:
            return None
        return self

    def get_range(
        self,
        key: str,
        offset: int,
        nbytes: int,
        etag: str | None = None,
    ) -> Blob:
        def read(
            spans: Sequence[ByteRange],
            pinned: str | None,
        ) -> tuple[list[bytes], str]:
            # A cache's get_range discards its pages and reads its origin; get_ranges would return the pages again.
            blobs = [self._origin.get_range(key, *span, pinned) for span in spans]
            return [blob.data for blob in blobs], blobs[0].etag

        span = ByteRange(offset, nbytes)
        (data,), etag_read = self._read(key, [span], etag, read)
        return Blob(data, etag_read)

    def get_ranges(
        self,
        key: str,
        spans: Sequence[ByteRange],
        *,
        etag: str | None = None,
        **limits: Unpack[ReadLimits],
    ) -> list[Blob]:
        if not spans:
            return []

        def read(
            spans_read: Sequence[ByteRange],
            pinned: str | None,
        ) -> tuple[list[bytes], str]:
            blobs = self._origin.get_ranges(
                key,
                spans_read,
                etag=pinned,
                **limits,
            )
            return [blob.data for blob in blobs], blobs[0].etag

        data, etag_read = self._read(key, spans, etag, read)
        return [Blob(one, etag_read) for one in data]

    # methods of a disk store

    def read_each(
        self,
        key: str,
        spans: Sequence[tuple[int, int]],
        *,
        etag: str | None = None,
    ) -> tuple[list[bytes], str]:
        disk = self._disk

        def read(
            spans_read: Sequence[ByteRange],
            pinned: str | None,
        ) -> tuple[list[bytes], str]:
            return disk.read_each(key, spans_read, etag=pinned)

        ranges = [ByteRange(*span) for span in spans]
        return self._read(key, ranges, etag, read)

    def read_into(
        self,
        key: str,
        pieces: Sequence[Piece],
        *,
        etag: str | None = None,
    ) -> str:
        spans = [piece[:2] for piece in pieces]
        shard = self._shard(key, spans)
        offset, nbytes = _offsets_and_nbytes(spans)
        likely_identity = shard.last_verified(etag)
        # Verified pages go to the buffers directly.
        if not shard.unverified_ranges(likely_identity, offset, nbytes).any():
            with record_store_numbers() as store_numbers:
                etag_read = self._disk.read_into(key, pieces, etag=etag)
            # Another object may have answered, in which these pages are not verified. Then all is read again below.
            identity = _identity(etag_read, store_numbers)
            if not shard.unverified_ranges(identity, offset, nbytes).any():
                return etag_read

        # Whole pages are read, for which the buffers have no room.
        data, etag_read = self.read_each(key, spans, etag=etag)
        fill_pieces(pieces, data)
        return etag_read

    def etag_of(
        self,
        key: str,
        etag: str | None = None,
    ) -> str | None:
        return self._disk.etag_of(key, etag)

    def open_same(self, key: str, etag: str) -> int | None:
        """Return a descriptor, like the disk store. Check the file's bytes with `is_verified`."""
        return self._disk.open_same(key, etag)

    def is_verified(
        self,
        key: str,
        etag: str,
        offset: Int64s,
        nbytes: Int64s,
        file: int,
    ) -> bool:
        """Return whether bytes [offset, offset + nbytes) of an open shard are correct. Checks unverified pages.

        offset, nbytes: int64 [n]; file: descriptor of the shard with this ETag. If the answer is False, a read by
        another method raises the error.
        """
        shard = self._shard(key)
        identity: Identity = (etag,)
        if isinstance(self._origin, MirroredStore):
            # The open file is the nearest store's, whose number `open_same` does not report. Pages verified under
            # `_NEAREST` count for open files only.
            identity = (etag, _NEAREST)
        if shard.is_fully_verified(identity):
            return True
        last_byte_end = int((offset + nbytes).max(initial=0))
        if last_byte_end > shard.hashes.nbytes:
            return False

        # A run may be as long as the shard: check it in pieces, which bounds the memory.
        is_unverified = shard.unverified_ranges(identity, offset, nbytes)
        for run in shard.runs(is_unverified, offset, nbytes):
            read_bytes = max(shard.hashes.page_bytes, _READ_BYTES)
            run_end = run.offset + run.nbytes
            for start in range(run.offset, run_end, read_bytes):
                piece = ByteRange(start, min(read_bytes, run_end - start))
                if not shard.verify_file(identity, piece, file):
                    return False
        return True

    @property
    def _disk(self) -> Disk:
        return cast(Disk, self._origin)

    def _shard(
        self,
        key: str,
        spans: Sequence[tuple[int, int]] = (),
    ) -> "ShardPages":
        """Return the pages of a shard. Raises: Corrupt if it ends before one of the spans."""
        shard: ShardPages | None = self._shards.get(key)
        if shard is None:
            with self._shards.turns.of(key):
                shard = self._shards.get(key)  # another thread may have added it meanwhile: its pages stay
                if shard is None:
                    hashes = self._load_hashes(key)  # reads an index
                    shard = ShardPages(hashes)
                    self._shards.put(key, shard, 1)

        end = max((offset + nbytes for offset, nbytes in spans), default=0)
        if end > shard.hashes.nbytes:
            raise Corrupt(
                f"{self.url}/{key}: a range ends after byte {shard.hashes.nbytes}, where the shard ends",
                what="range",
                where=f"{self.url}/{key}",
                given=shard.hashes.nbytes,
            )
        return shard

    def _read(
        self,
        key: str,
        spans: Sequence[ByteRange],
        etag: str | None,
        read: ReadSpans,
    ) -> tuple[list[bytes], str]:
        """Return (verified bytes of the spans, ETag)."""
        shard = self._shard(key, spans)
        likely_identity = shard.last_verified(etag)
        result = _read_spans(shard, likely_identity, spans, etag, read)
        if result.is_other_object:  # another object or mirror answered: its pages are not verified
            result = _read_spans(shard, None, spans, etag, read)

        runs = result.runs
        run_data = result.data[: len(runs)]
        for run, whole_pages in zip(runs, run_data, strict=True):
            wrong = shard.verify(result.identity, run, memoryview(whole_pages))
            if wrong:
                self._raise_wrong(key, wrong[0])

        # Put the bytes of both kinds of spans back into the order of `spans`.
        unverified_data = iter(slice_reads(result.unverified_spans, runs, run_data))
        verified_data = iter(result.data[len(runs) :])
        out: list[bytes] = []
        for is_unverified in result.is_unverified.tolist():
            source = verified_data
            if is_unverified:
                source = unverified_data
            out.append(next(source))
        return out, result.etag

    def _raise_wrong(self, key: str, page: ByteRange) -> NoReturn:
        add_fault(
            "read",
            self.url,
            key,
            page,
            expected=None,
            actual=None,
        )
        end = page.offset + page.nbytes
        raise Corrupt(
            f"{self.url}/{key}: bytes [{page.offset}:{end}] differ from the SHA-256 in its index: the "
            "shard was replaced or damaged",
            what="SHA-256",
            where=f"{self.url}/{key}",
            given=[page.offset, end],
            accepted="the SHA-256 in its index",
        )


class _SpansRead(NamedTuple):
    """Spans of a shard as they were read: the unverified ones in whole pages."""

    etag: str
    identity: Identity | None
    data: list[bytes]
    """Bytes of each run, then of each verified span."""
    runs: list[ByteRange]
    """Whole pages that cover the unverified spans."""
    is_unverified: Bools
    """bool [spans]: True for a span with a page that was not verified before."""
    unverified_spans: list[ByteRange]
    is_other_object: bool
    """True if the bytes of a span that counted as verified come from an object in which it is not."""


def _read_spans(
    shard: ShardPages,
    likely_identity: Identity | None,
    spans: Sequence[ByteRange],
    etag: str | None,
    read: ReadSpans,
) -> _SpansRead:
    """Read spans. likely_identity: object that will probably answer; None reads all spans as unverified."""
    offset, nbytes = _offsets_and_nbytes(spans)
    is_unverified = shard.unverified_ranges(likely_identity, offset, nbytes)
    runs = shard.runs(is_unverified, offset, nbytes)
    unverified_spans: list[ByteRange] = []
    verified_spans: list[ByteRange] = []
    for span, is_span_unverified in zip(spans, is_unverified.tolist(), strict=True):
        if is_span_unverified:
            unverified_spans.append(span)
        else:
            verified_spans.append(span)

    with record_store_numbers() as store_numbers:
        data, etag_read = read([*runs, *verified_spans], etag)
    identity = _identity(etag_read, store_numbers)
    # The object that answered may have fewer verified pages than the likely one.
    is_unverified_in_object = shard.unverified_ranges(identity, offset, nbytes)
    is_other_object = bool((is_unverified_in_object & ~is_unverified).any())
    return _SpansRead(
        etag=etag_read,
        identity=identity,
        data=data,
        runs=runs,
        is_unverified=is_unverified,
        unverified_spans=unverified_spans,
        is_other_object=is_other_object,
    )


def _identity(etag: str, store_numbers: set[int]) -> Identity | None:
    """Return the object's identity; None if several stores served the bytes, so that no page is remembered.

    store_numbers: stores that served the bytes; empty if there is only one.
    """
    if len(store_numbers) > 1:
        return None
    return (etag, *store_numbers)


def _offsets_and_nbytes(spans: Sequence[tuple[int, int]]) -> tuple[Int64s, Int64s]:
    """Return (offset, nbytes) of spans, int64 [n] each."""
    rows = np.array(spans, np.int64).reshape(-1, 2)  # also of no spans
    offset, nbytes = rows.T
    return offset, nbytes
