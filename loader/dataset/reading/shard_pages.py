"""Remember which pages of a shard were verified, for each of its objects, and check others against their hashes."""

import os
from collections import OrderedDict
from typing import Any

import numpy as np

from ...storage import ByteRange
from ...storage.threads import lock
from ..shards.shard import PageHashes

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

MAX_OBJECTS = 4
"""Objects remembered per shard: its copies in mirrors, and replacements."""

Identity = tuple[str | int, ...]
"""Identity of an object: its ETag, and with several stores the store's number."""


class ShardPages:
    """The pages of one shard that were verified, by the object that they were read from. Thread-safe.

    hashes: right SHA-256 of each page, the same for all of the shard's objects.
    """

    def __init__(self, hashes: PageHashes) -> None:
        self.hashes = hashes
        self._lock = lock()
        # Per identity, bool [pages]: True until the page is verified; most recently used last. Not a `SizedLru`:
        # every batch reads it without a lock, and an evicted identity leaves `_fully_verified` too.
        self._is_unverified_page: OrderedDict[Identity, Bools] = OrderedDict()
        self._all_unverified = np.ones(hashes.n_pages, bool)
        self._fully_verified: set[Identity] = set()  # objects without unverified pages: skips the arrays

    def last_verified(self, etag: str | None) -> Identity | None:
        """Return the identity verified last, with this ETag if one is passed; None if there is none."""
        with self._lock:
            for identity in reversed(self._is_unverified_page):
                if etag is None or identity[0] == etag:
                    return identity
        return None

    def is_fully_verified(self, identity: Identity | None) -> bool:
        return identity in self._fully_verified

    def unverified_ranges(
        self,
        identity: Identity | None,
        offset: Int64s,
        nbytes: Int64s,
    ) -> Bools:
        """Return bool [n]: True for a range with a page that is not verified yet.

        identity: None for an unknown object, of which no page is verified.
        """
        if self.is_fully_verified(identity):
            return np.zeros(len(offset), bool)
        is_unverified_page = self._unverified_pages(identity)
        first, end = self._pages(offset, nbytes)
        n_pages = end - first
        if int(n_pages.max(initial=0)) <= 2:
            # Small samples: the first page and the last are all pages, and no sum over the shard's pages is needed.
            # An empty range, which has none, may start at the shard's end.
            last_of_shard = len(is_unverified_page) - 1
            is_first_unverified = is_unverified_page[np.minimum(first, last_of_shard)]
            is_last_unverified = is_unverified_page[end - 1]
            return (is_first_unverified | is_last_unverified) & (n_pages > 0)
        # [pages + 1]: number of unverified pages before each page
        unverified_before = np.concatenate([[0], np.cumsum(is_unverified_page)])
        is_unverified: Bools = unverified_before[end] > unverified_before[first]
        return is_unverified

    def runs(
        self,
        which: Bools,
        offset: Int64s,
        nbytes: Int64s,
    ) -> list[ByteRange]:
        """Return the runs of whole pages that cover some of n ranges, ascending and without overlap.

        which: bool [n], True for a range to cover.
        """
        if not which.any():
            return []
        first, end = self._pages(offset[which], nbytes[which])
        # Each range adds 1 at its first page and takes it off after its last. (`change[first] += 1` would count ranges
        # with the same first page once.)
        change = np.zeros(self.hashes.n_pages + 1, np.int64)
        np.add.at(change, first, 1)
        np.add.at(change, end, -1)
        is_covered = np.cumsum(change) > 0  # [pages + 1]; False at the end
        # Edges: the first page of a run, the page after its last, the first page of the next run ...
        is_edge = np.diff(is_covered, prepend=False)
        edges = np.flatnonzero(is_edge).tolist()
        runs: list[ByteRange] = []
        for run_first, run_end in zip(
            edges[::2],
            edges[1::2],
            strict=True,
        ):
            runs.append(self._span(run_first, run_end))
        return runs

    def verify(
        self,
        identity: Identity | None,
        run: ByteRange,
        data: memoryview,
    ) -> list[ByteRange]:
        """Check the unverified pages of a run, remember the right ones, and return the wrong ones."""
        page_bytes = self.hashes.page_bytes
        is_unverified_page = self._unverified_pages(identity)
        run_end = run.offset + run.nbytes
        first = run.offset // page_bytes
        end = -(-run_end // page_bytes)
        wrong: list[ByteRange] = []
        right: list[int] = []
        for page in range(first, end):
            if not is_unverified_page[page]:
                continue
            start = page * page_bytes - run.offset
            page_data = data[start : start + page_bytes]
            if self.hashes.is_page(page, page_data):
                right.append(page)
            else:
                wrong.append(self._span(page, page + 1))
        if identity is not None:
            self._remember(identity, right)
        return wrong

    def verify_file(
        self,
        identity: Identity,
        run: ByteRange,
        file: int,
    ) -> bool:
        """Return whether the unverified pages of a run of an open file are right; False too if they cannot be read."""
        try:
            data = os.pread(file, run.nbytes, run.offset)
        except OSError:
            return False
        if len(data) != run.nbytes:
            return False
        wrong = self.verify(identity, run, memoryview(data))
        return not wrong

    def _unverified_pages(self, identity: Identity | None) -> Bools:
        """Return bool [pages]: True for a page that is not verified yet. To read only, except by `_remember`."""
        if identity is None:
            return self._all_unverified
        return self._is_unverified_page.get(identity, self._all_unverified)

    def _remember(
        self,
        identity: Identity,
        pages: list[int],
    ) -> None:
        """Remember that pages of an object are verified. Forgets the object that was verified least recently."""
        with self._lock:
            is_unverified_page = self._is_unverified_page.setdefault(identity, self._all_unverified.copy())
            self._is_unverified_page.move_to_end(identity)
            is_unverified_page[pages] = False
            if not is_unverified_page.any():
                self._fully_verified.add(identity)
            if len(self._is_unverified_page) > MAX_OBJECTS:
                oldest, _ = self._is_unverified_page.popitem(last=False)
                self._fully_verified.discard(oldest)

    def _pages(
        self,
        offset: Int64s,
        nbytes: Int64s,
    ) -> tuple[Int64s, Int64s]:
        """Return (first page, page after the last) of ranges, int64 [n] each; equal for an empty range."""
        page_bytes = self.hashes.page_bytes
        first = offset // page_bytes
        end = -(-(offset + nbytes) // page_bytes)
        return first, np.where(nbytes > 0, end, first)

    def _span(
        self,
        first: int,
        end: int,
    ) -> ByteRange:
        """Return the bytes of pages first ... end - 1; the last page of a shard may be shorter."""
        page_bytes = self.hashes.page_bytes
        start = first * page_bytes
        stop = min(end * page_bytes, self.hashes.nbytes)
        return ByteRange(start, stop - start)
