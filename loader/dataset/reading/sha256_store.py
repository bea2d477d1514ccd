"""Check shard pages against SHA-256 at first use: `Root(verify="sha256")`.

CRC-32C detects accidents only. A chain of SHA-256 hashes runs from the version's id through manifest, shards table and
index to a shard's pages.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Unpack, cast

import numpy as np

from ...errors import Corrupt
from ...storage import Blob, ByteRange, RangeReader, ReadLimits
from ...storage.mirror import MirroredStore
from ...storage.requests import noting_who_serves
from ...storage.store import Disk, Piece, disk_of, fill_pieces, is_local, is_on_network
from ...storage.stream import slice_reads
from ...storage.threads import lock
from ..shards.shard import PageHashes
from .read_faults import add_fault

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

KEPT_SHARDS = 16_384
"""Most recently used shards whose verified pages are remembered, at 33 bytes a page."""

KEPT_OBJECTS = 4
"""Objects remembered per shard: its copies in mirrors, and replacements."""

HashesOf = Callable[[str], PageHashes]
"""Path of a shard -> hashes of its pages. Raises: Corrupt; InvalidRuntime if it has none."""

Identity = tuple[str | int, ...]
"""Identity of an object: its ETag, and with several stores the store's number."""

_NEAREST = -1
_READ_BYTES = 2**20  # a power of two, like the page size: whole pages

ReadSpans = Callable[[Sequence[ByteRange], str | None], tuple[list[bytes], str]]
"""(spans, expected ETag) -> (bytes of the spans, ETag)."""


class VerifiedStore:
    """A store of shards that verifies bytes before returning them; new pages are checked whole. Thread-safe.

    Raises: as `origin`; also Corrupt if a page does not match its hash.
    """

    def __init__(self, origin: RangeReader, hashes_of: HashesOf) -> None:
        self._origin, self._hashes_of = origin, hashes_of
        self._lock = lock()
        self._shards: OrderedDict[str, _ShardPages] = OrderedDict()

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
        return None if disk_of(self._origin) is None else self

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        def read(spans: Sequence[ByteRange], pinned: str | None) -> tuple[list[bytes], str]:
            # One by one: they must come from the origin, not from a cache in front of it.
            blobs = [self._origin.get_range(key, *span, pinned) for span in spans]
            return [blob.data for blob in blobs], blobs[0].etag

        (data,), etag_read = self._read(key, [ByteRange(offset, nbytes)], etag, read)
        return Blob(data, etag_read)

    def get_ranges(
        self, key: str, spans: Sequence[ByteRange], *, etag: str | None = None, **limits: Unpack[ReadLimits]
    ) -> list[Blob]:
        def read(spans_read: Sequence[ByteRange], pinned: str | None) -> tuple[list[bytes], str]:
            blobs = self._origin.get_ranges(key, spans_read, etag=pinned, **limits)
            return [blob.data for blob in blobs], blobs[0].etag

        data, etag_read = self._read(key, spans, etag, read) if spans else ([], "")
        return [Blob(one, etag_read) for one in data]

    # methods of a disk store

    def read_each(
        self, key: str, spans: Sequence[tuple[int, int]], *, etag: str | None = None
    ) -> tuple[list[bytes], str]:
        disk = self._disk

        def read(spans_read: Sequence[ByteRange], pinned: str | None) -> tuple[list[bytes], str]:
            return disk.read_each(key, spans_read, etag=pinned)

        return self._read(key, [ByteRange(*span) for span in spans], etag, read)

    def read_into(self, key: str, pieces: Sequence[Piece], *, etag: str | None = None) -> str:
        spans = [piece[:2] for piece in pieces]
        shard, columns = self._shard(key, spans), _columns(spans)
        if not shard.unverified(shard.guess(etag), *columns).any():
            with noting_who_serves() as serving:
                etag_read = self._disk.read_into(key, pieces, etag=etag)
            if not shard.unverified(_identity(etag_read, serving), *columns).any():
                return etag_read
        data, etag_read = self.read_each(key, spans, etag=etag)
        fill_pieces(pieces, data)
        return etag_read

    def etag_of(self, key: str, etag: str | None = None) -> str | None:
        return self._disk.etag_of(key, etag)

    def open_same(self, key: str, etag: str) -> int | None:
        """Return a descriptor, like the disk store. Check the file's bytes with `is_verified`."""
        return self._disk.open_same(key, etag)

    def is_verified(self, key: str, etag: str, offset: Int64s, nbytes: Int64s, file: int) -> bool:
        """Return whether bytes [offset, offset + nbytes) of an open shard are correct. Checks unverified pages.

        offset, nbytes: int64 [n]; file: descriptor of the shard with this ETag.
        """
        shard = self._shard(key)
        # With several stores the open file is the nearest store's; other reads do not reveal their store.
        identity = (etag, _NEAREST) if isinstance(self._origin, MirroredStore) else (etag,)
        if shard.is_whole(identity):
            return True
        if int((offset + nbytes).max(initial=0)) > shard.hashes.nbytes:
            return False
        for low, nbytes_left in shard.runs(shard.unverified(identity, offset, nbytes), offset, nbytes):
            end, at_once = low + nbytes_left, max(shard.hashes.page_bytes, _READ_BYTES)
            for start in range(low, end, at_once):
                run = ByteRange(start, min(at_once, end - start))
                try:
                    data = os.pread(file, run.nbytes, run.offset)
                except OSError:
                    return False
                if len(data) != run.nbytes or shard.verify(identity, run, memoryview(data)):
                    return False
        return True

    @property
    def _disk(self) -> Disk:
        return cast(Disk, self._origin)

    def _shard(self, key: str, spans: Sequence[tuple[int, int]] = ()) -> "_ShardPages":
        with self._lock:
            shard = self._shards.get(key)
            if shard is not None:
                self._shards.move_to_end(key)
        if shard is None:
            fresh = _ShardPages(self._hashes_of(key))
            with self._lock:
                shard = self._shards.setdefault(key, fresh)
                if len(self._shards) > KEPT_SHARDS:
                    self._shards.popitem(last=False)
        if max((offset + nbytes for offset, nbytes in spans), default=0) > shard.hashes.nbytes:
            raise Corrupt(
                f"{self.url}/{key}: a range ends behind byte {shard.hashes.nbytes}, where the shard ends"
            )
        return shard

    def _read(
        self, key: str, spans: Sequence[ByteRange], etag: str | None, read: ReadSpans
    ) -> tuple[list[bytes], str]:
        shard = self._shard(key, spans)
        return self._read_as(shard, key, spans, etag, read, shard.guess(etag))

    def _read_as(
        self,
        shard: "_ShardPages",
        key: str,
        spans: Sequence[ByteRange],
        etag: str | None,
        read: ReadSpans,
        expected: Identity | None,
    ) -> tuple[list[bytes], str]:
        columns = _columns(spans)
        new = shard.unverified(expected, *columns)
        runs = shard.runs(new, *columns)
        with noting_who_serves() as serving:
            data, etag_read = read(
                [*runs, *(span for span, run_data in zip(spans, new, strict=True) if not run_data)], etag
            )
        identity = _identity(etag_read, serving)
        if (shard.unverified(identity, *columns) & ~new).any():
            # The object, or its store, is not the one that was verified.
            return self._read_as(shard, key, spans, etag, read, None)
        for run, run_data in zip(runs, data, strict=False):
            if wrong := shard.verify(identity, run, memoryview(run_data)):
                low, nbytes = wrong[0]
                add_fault("read", self.url, key, wrong[0], None, None)
                raise Corrupt(
                    f"{self.url}/{key}: bytes [{low}:{low + nbytes}] differ from the SHA-256 in its index: the "
                    "shard was replaced or damaged"
                )
        inside = [span for span, run_data in zip(spans, new, strict=True) if run_data]
        cut, others = iter(slice_reads(inside, runs, data[: len(runs)])), iter(data[len(runs) :])
        return [next(cut) if run_data else next(others) for run_data in new], etag_read


def _identity(etag: str, serving: set[int]) -> Identity | None:
    """Return the identity; None, and nothing is remembered, if several stores may have served the bytes."""
    return (etag, *serving) if len(serving) < 2 else None


class _ShardPages:
    """Verified pages of one shard. Thread-safe."""

    def __init__(self, hashes: PageHashes) -> None:
        self.hashes = hashes
        self._lock = lock()
        # per identity, bool [pages]; most recently used last
        self._verified: OrderedDict[Identity, Bools] = OrderedDict()
        self._none = np.ones(hashes.n_pages, bool)
        self._whole: set[Identity] = set()

    def guess(self, etag: str | None) -> Identity | None:
        with self._lock:
            return next((one for one in reversed(self._verified) if etag in (None, one[0])), None)

    def is_whole(self, identity: Identity | None) -> bool:
        return identity in self._whole

    def unverified(self, identity: Identity | None, offset: Int64s, nbytes: Int64s) -> Bools:
        """Return bool [n]: True for a range in a page that is not verified yet."""
        if self.is_whole(identity):
            return np.zeros(len(offset), bool)
        verified = self._none if identity is None else self._verified.get(identity, self._none)
        first, end = self._pages(offset, nbytes)
        if int((end - first).max(initial=0)) <= 2:
            ends = len(verified) - 1
            return (verified[np.minimum(first, ends)] | verified[end - 1]) & (end > first)
        before = np.concatenate([[0], np.cumsum(verified)])  # unverified pages before each page
        new: Bools = before[end] > before[first]
        return new

    def runs(self, which: Bools, offset: Int64s, nbytes: Int64s) -> list[ByteRange]:
        if not which.any():
            return []
        first, end = self._pages(offset[which], nbytes[which])
        change = np.zeros(self.hashes.n_pages + 1, np.int64)
        np.add.at(change, first, 1)
        np.add.at(change, end, -1)
        edges = np.flatnonzero(np.diff(np.cumsum(change) > 0, prepend=False)).tolist()
        return [self._span(low, high) for low, high in zip(edges[::2], edges[1::2], strict=True)]

    def verify(self, identity: Identity | None, run: ByteRange, data: memoryview) -> list[ByteRange]:
        size, wrong, good = self.hashes.page_bytes, list[ByteRange](), list[int]()
        verified = self._none if identity is None else self._verified.get(identity, self._none)
        for page in range(run.offset // size, -(-(run.offset + run.nbytes) // size)):
            start = page * size - run.offset
            if not verified[page]:
                continue
            if self.hashes.is_page(page, data[start : start + size]):
                good.append(page)
            else:
                wrong.append(self._span(page, page + 1))
        if identity is not None:
            self._remember(identity, good)
        return wrong

    def _remember(self, identity: Identity, pages: list[int]) -> None:
        with self._lock:
            verified = self._verified.setdefault(identity, self._none.copy())
            self._verified.move_to_end(identity)
            verified[pages] = False
            if not verified.any():
                self._whole.add(identity)
            if len(self._verified) > KEPT_OBJECTS:
                self._whole.discard(self._verified.popitem(last=False)[0])

    def _pages(self, offset: Int64s, nbytes: Int64s) -> tuple[Int64s, Int64s]:
        size = self.hashes.page_bytes
        first = offset // size
        return first, np.where(nbytes > 0, -(-(offset + nbytes) // size), first)

    def _span(self, first: int, end: int) -> ByteRange:
        start = first * self.hashes.page_bytes
        return ByteRange(start, min(end * self.hashes.page_bytes, self.hashes.nbytes) - start)


def _columns(spans: Sequence[tuple[int, int]]) -> tuple[Int64s, Int64s]:
    offset, nbytes = np.array(spans, np.int64).reshape(-1, 2).T
    return offset, nbytes
