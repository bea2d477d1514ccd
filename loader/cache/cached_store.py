"""A store whose objects are read through pages, in memory or on a local disk."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from itertools import islice
from typing import NamedTuple, Protocol, Unpack

from ..errors import Changed, Corrupt
from ..storage import Blob, ByteRange, RangeReader, ReadLimits
from .pages import page_name

Buffer = bytes | memoryview

FETCH_BYTES = 16 * 2**20
"""Most bytes of pages that one thread fetches together, which bounds its memory."""


class PageCache(Protocol):
    """A cache of pages by name (`pages.page_name`)."""

    page_bytes: int
    count: Callable[[str, int], None]
    """(counter name, amount) -> None: counts hits, misses and so on."""

    @property
    def takes_pages(self) -> bool:
        """True if a fetched page is likely to be kept."""

    def read(self, name: str, cuts: Sequence[slice]) -> Sequence[Buffer] | None:
        """Return a page's bytes, one buffer per cut; None if the page is missing. The bytes never change."""

    def has(self, name: str) -> bool:
        """Return whether a page exists; it may be evicted right after."""

    def claim(self, name: str, nbytes: int) -> bool:
        """Claim a page; return whether the caller should fetch it and may keep it."""

    def write(self, name: str, data: bytes) -> None:
        """Store a claimed page."""

    def release(self, name: str) -> None:
        """Release a claim."""

    def is_coming(self, name: str) -> bool:
        """Return whether another reader is fetching a page that it claimed."""

    def wait(self, name: str) -> None:
        """Wait until another reader has fetched its claimed page or given up."""

    def discard(self, name: str) -> None:
        """Delete a page."""


class Content(NamedTuple):
    """Identity of an object's bytes; its pages are named by it."""

    sha256: str
    """SHA-256 of the bytes, in hex."""
    nbytes: int
    """Size in bytes."""


VERIFIED = " verified"
"""Suffix of the SHA-256 that names pages of hash-checked shards."""
_waits: ContextVar[bool] = ContextVar("penstock_waits_for_pages", default=True)


@contextmanager
def waiting_for_no_page() -> Iterator[None]:
    """Do not wait for pages in this context, so that a first batch reads only the bytes that it needs."""
    token = _waits.set(False)
    try:
        yield
    finally:
        _waits.reset(token)


class Claim(Enum):
    GRANTED = "it is the caller's to fetch"
    NEEDLESS = "it is there, or another reader fetches it"
    NO_ROOM = "it would not be kept"


class CachedStore:
    """Reads ranges from cached pages, and the rest from the origin.

    content_of: key -> content; an object with None is read only from the origin. A cached object's change token is its
    SHA-256; the origin's token is pinned at the first read.
    """

    def __init__(
        self, origin: RangeReader, cache: PageCache, content_of: Callable[[str], Content | None]
    ) -> None:
        self._origin, self._cache, self._content_of = origin, cache, content_of
        self._contents: dict[str, Content | None] = {}
        self._pins: dict[str, str] = {}

    @property
    def url(self) -> str:
        return self._origin.url

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        """Return a range from the origin and drop its pages, because the caller got corrupt bytes."""
        content = self._content(key)
        if content is None:
            return self._origin.get_range(key, offset, nbytes, etag)
        self._check(key, content, etag)
        for number in _PageCuts([ByteRange(offset, nbytes)], self._cache.page_bytes).cuts:
            self._cache.discard(self._name(content, number))
        blob = self._origin.get_range(key, offset, nbytes, self._pins.get(key))
        self._pin(key, blob.etag)
        return Blob(blob.data, content.sha256)

    def get_ranges(
        self, key: str, spans: Sequence[ByteRange], *, etag: str | None = None, **limits: Unpack[ReadLimits]
    ) -> list[Blob]:
        """Return the ranges, like every store. Raises: as the origin.

        A missing page is fetched whole and kept if at least half of it is requested. Otherwise only the requested bytes
        are read, unless the page is being fetched. O(pages touched).
        """
        content = self._content(key)
        if content is None:
            return self._origin.get_ranges(key, spans, etag=etag, **limits)
        ranges = self._ranges(key, content, spans, etag, limits)
        return [Blob(bytes(data), content.sha256) for data in ranges]

    def lend_ranges(
        self, key: str, spans: Sequence[tuple[int, int]], etag: str | None = None
    ) -> tuple[Sequence[Buffer], str]:
        """Return (bytes of the (offset, nbytes) ranges, the object's change token).

        Ranges within one page are not copied.

        Each such range keeps a whole page in memory.
        """
        content = self._content(key)
        if content is not None:
            return self._ranges(key, content, spans, etag, {}), content.sha256
        blobs = self._origin.get_ranges(key, [ByteRange(*span) for span in spans], etag=etag)
        return [blob.data for blob in blobs], blobs[0].etag if blobs else etag or ""

    def _ranges(
        self,
        key: str,
        content: Content,
        spans: Sequence[tuple[int, int]],
        etag: str | None,
        limits: ReadLimits,
    ) -> list[Buffer]:
        self._check(key, content, etag)
        page_cuts = _PageCuts(spans, self._cache.page_bytes)
        if page_cuts.end > content.nbytes:
            raise Corrupt(
                f"{self.url}/{key}: a range ends behind byte {content.nbytes}, where the object ends"
            )
        missing = [number for number in page_cuts.cuts if not self._from_page(content, number, page_cuts)]
        if not missing:
            return page_cuts.joined()
        pages = [number for number in missing if self._is_worth_a_page(content, number, page_cuts)]
        at_once = max(1, FETCH_BYTES // self._cache.page_bytes)
        for start in range(0, len(pages), at_once):
            self._fetch_pages(key, content, pages[start : start + at_once], page_cuts)
        rest = sorted(set(missing) - set(pages))
        waits = _waits.get()
        coming = [number for number in rest if waits and self._cache.is_coming(self._name(content, number))]
        # A page that arrived between the two checks exists now.
        alone = [n for n in rest if n not in coming and not self._from_page(content, n, page_cuts)]
        self._read_alone(key, alone, page_cuts, limits)
        for number in coming:  # last: they arrive meanwhile
            self._cache.wait(self._name(content, number))
        missed = [number for number in coming if not self._from_page(content, number, page_cuts)]
        self._read_alone(key, missed, page_cuts, limits)
        return page_cuts.joined()

    def claim(self, key: str, number: int) -> Claim:
        """Claim a page to read ahead, and return the result. If granted, call `keep` or `give_back`."""
        content = self._content(key)
        if content is None:
            return Claim.NEEDLESS
        name = self._name(content, number)
        if self._cache.has(name) or self._cache.is_coming(name):
            return Claim.NEEDLESS
        if self._cache.takes_pages and self._cache.claim(name, self._page(content, number).nbytes):
            return Claim.GRANTED
        return Claim.NEEDLESS if self._cache.is_coming(name) else Claim.NO_ROOM

    def keep(self, key: str, number: int) -> int:
        """Fetch and keep a claimed page; return the bytes read. Raises: as the origin. The claim is always released."""
        content = self._certain(key)
        name, page = self._name(content, number), self._page(content, number)
        try:
            if self._cache.has(name):  # another reader finished between our check and our claim
                return 0
            self._cache.count("cache_misses", 1)
            (blob,) = self._origin.get_ranges(key, [page], etag=self._pins.get(key))
            self._pin(key, blob.etag)
            self._cache.write(name, blob.data)
        finally:
            self._cache.release(name)
        return page.nbytes

    def give_back(self, key: str, number: int) -> None:
        self._cache.release(self.page_name(key, number))

    def has_pages(self, key: str) -> bool:
        return self._content(key) is not None

    def page_name(self, key: str, number: int) -> str:
        """Return the name of a page of an object with `Content`."""
        return self._name(self._certain(key), number)

    def _content(self, key: str) -> Content | None:
        if key not in self._contents:
            self._contents[key] = self._content_of(key)
        return self._contents[key]

    def _certain(self, key: str) -> Content:
        content = self._content(key)
        assert content is not None, f"{key} has no content, hence no pages"
        return content

    def _name(self, content: Content, number: int) -> str:
        return page_name(content.sha256, self._cache.page_bytes, number)

    def _page(self, content: Content, number: int) -> ByteRange:
        start = number * self._cache.page_bytes
        return ByteRange(start, min(self._cache.page_bytes, content.nbytes - start))

    def _is_worth_a_page(self, content: Content, number: int, page_cuts: "_PageCuts") -> bool:
        if not self._cache.takes_pages:
            return False
        asked: int = sum(cut.stop - cut.start for _, cut in page_cuts.cuts[number])
        return 2 * asked >= self._page(content, number).nbytes

    def _from_page(self, content: Content, number: int, page_cuts: "_PageCuts") -> bool:
        cuts = page_cuts.cuts[number]
        pieces = self._cache.read(self._name(content, number), [cut for _, cut in cuts])
        if pieces is None:
            return False
        page_cuts.take(number, pieces)
        return True

    def _fetch_pages(
        self, key: str, content: Content, numbers: Sequence[int], page_cuts: "_PageCuts"
    ) -> None:
        names = {number: self._name(content, number) for number in numbers}
        claimed = [
            number
            for number in numbers
            if self._cache.claim(names[number], self._page(content, number).nbytes)
        ]
        try:
            # Another reader may have finished between our check and our claim.
            self._fetch(
                key, content, [n for n in claimed if not self._from_page(content, n, page_cuts)], page_cuts
            )
        finally:
            for number in claimed:
                self._cache.release(names[number])
        for number in sorted(set(numbers) - set(claimed)):  # holding no claims: no reader waits for us
            self._cache.wait(names[number])
            if not self._from_page(content, number, page_cuts):
                self._fetch(key, content, [number], page_cuts)

    def _fetch(self, key: str, content: Content, numbers: Sequence[int], page_cuts: "_PageCuts") -> None:
        if not numbers:
            return
        self._cache.count("cache_misses", len(numbers))
        spans = [self._page(content, number) for number in numbers]
        blobs = self._origin.get_ranges(key, spans, etag=self._pins.get(key), max_gap=0, max_span=FETCH_BYTES)
        for number, blob in zip(numbers, blobs, strict=True):
            self._pin(key, blob.etag)
            self._cache.write(self._name(content, number), blob.data)
            page = memoryview(blob.data)
            page_cuts.take(number, [page[cut] for _, cut in page_cuts.cuts[number]])

    def _read_alone(
        self, key: str, numbers: Sequence[int], page_cuts: "_PageCuts", limits: ReadLimits
    ) -> None:
        if not numbers:
            return
        self._cache.count("cache_misses", len(numbers))
        spans = page_cuts.spans(numbers)
        blobs = iter(self._origin.get_ranges(key, spans, etag=self._pins.get(key), **limits))
        for number in numbers:
            read = list(islice(blobs, len(page_cuts.cuts[number])))
            for blob in read:
                self._pin(key, blob.etag)
            page_cuts.take(number, [blob.data for blob in read])

    def _check(self, key: str, content: Content, etag: str | None) -> None:
        if etag is not None and etag != content.sha256:
            raise Changed(f"{self.url}/{key}: pinned as {etag}, and the version has SHA-256 {content.sha256}")

    def _pin(self, key: str, etag: str) -> None:
        if self._pins.setdefault(key, etag) != etag:
            raise Changed(
                f"{self.url}/{key} was replaced while it was being read; shards are immutable: find out who wrote there"
            )


class _PageCuts:
    """Spans of one object, cut at page boundaries. cuts: page -> (span number, bytes of the page), ascending.

    end: end of the last span.
    """

    def __init__(self, spans: Sequence[tuple[int, int]], page_bytes: int) -> None:
        self._page_bytes, self.end = page_bytes, 0
        self._whole: list[Buffer] = [b""] * len(spans)
        self._split: dict[int, dict[int, Buffer]] = {}  # for spans in several pages: page -> bytes
        cuts: dict[int, list[tuple[int, slice]]] = {}
        for i, (at, nbytes) in enumerate(spans):
            number, low = divmod(at, page_bytes)
            stop, high = at + nbytes, low + nbytes
            if stop > self.end:
                self.end = stop
            if high <= page_bytes:
                if nbytes:
                    cuts.setdefault(number, []).append((i, slice(low, high)))
                continue
            self._split[i] = {}
            while at < stop:
                number, low = divmod(at, page_bytes)
                high = min(page_bytes, low + stop - at)
                cuts.setdefault(number, []).append((i, slice(low, high)))
                at += high - low
        self.cuts = {number: cuts[number] for number in sorted(cuts)}

    def take(self, number: int, pieces: Sequence[Buffer]) -> None:
        for (i, _), piece in zip(self.cuts[number], pieces, strict=True):
            if i in self._split:
                self._split[i][number] = piece
            else:
                self._whole[i] = piece

    def spans(self, numbers: Iterable[int]) -> list[ByteRange]:
        return [
            ByteRange(number * self._page_bytes + cut.start, cut.stop - cut.start)
            for number in numbers
            for _, cut in self.cuts[number]
        ]

    def joined(self) -> list[Buffer]:
        for i, pieces in self._split.items():
            self._whole[i] = b"".join(pieces[number] for number in sorted(pieces))
        return self._whole
