"""A store whose objects are read through pages, in memory or on a local disk."""

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import NamedTuple, Unpack

from ..errors import Changed, Corrupt
from ..storage import Blob, ByteRange, RangeReader, ReadLimits
from .answers import Absence, Answer, Buffer, Grant, PageCache, PageQuestion
from .pages import page_name

FETCH_BYTES = 16 * 2**20
"""Most bytes of pages that one thread fetches together, which bounds its memory."""
WAIT_S = 0.3
"""Longest time that one call waits for the pages that other processes fetch; then it reads the ranges."""


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
    """Claim no page and wait for none in this context, so that a first batch reads only the bytes that it needs."""
    token = _waits.set(False)
    try:
        yield
    finally:
        _waits.reset(token)


class CachedStore:
    """Reads ranges from cached pages, and the rest from the origin.

    content_of: key -> content; an object with None is read only from the origin. A cached object's change token is its
    SHA-256; the origin's token is pinned at the first read.

    fraction: a read of at least this fraction of a page claims the page; 0 if nothing else brings pages.
    """

    def __init__(
        self,
        origin: RangeReader,
        cache: PageCache,
        content_of: Callable[[str], Content | None],
        fraction: float = 0.5,
        wait_s: float | None = None,
    ) -> None:
        self._origin, self._cache, self._content_of = origin, cache, content_of
        self._fraction = fraction
        self._wait_s = WAIT_S if wait_s is None else wait_s
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

        A missing page is fetched whole if the cache keeps it and enough of it is requested. Otherwise only the
        requested bytes are read, unless the page is being fetched. O(pages touched).
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
        is_patient = _waits.get()
        missing = self._read_pages(key, content, page_cuts, with_claims=is_patient)
        if not missing:
            return page_cuts.joined()
        coming = []
        alone = []
        for number, absence in missing.items():
            if is_patient and absence is Absence.COMING:
                coming.append(number)
            else:
                alone.append(number)
        self._read_alone(key, alone, page_cuts, limits)
        # Last: they arrive meanwhile. This thread has no claims by now, so that no reader waits for it.
        until_s = time.monotonic() + self._wait_s
        late = []
        for number in coming:
            wait_s = max(0.0, until_s - time.monotonic())
            answer = self._read_page(content, number, page_cuts, wait_s=wait_s)
            if isinstance(answer, Absence):
                late.append(number)
        self._read_alone(key, late, page_cuts, limits)
        return page_cuts.joined()

    def claim(self, key: str, number: int, cache: PageCache | None = None) -> Answer:
        """Claim a page to read ahead; with a grant, call `keep` or `give_back`. The answer is empty if it is here.

        cache: the part of the store's cache that is to keep the page.
        """
        content = self._content(key)
        if content is None:
            return []
        page = self._page(content, number)
        claimed_cache = cache or self._cache
        return claimed_cache.read(self._name(content, number), (), claim=page.nbytes)

    def is_here(self, key: str, number: int) -> bool:
        """Return whether a page is in the cache, or another reader is fetching it."""
        content = self._content(key)
        if content is None:
            return True
        answer = self._cache.read(self._name(content, number), ())
        return answer is not Absence.NOT_KEPT

    def page_nbytes(self, key: str, number: int) -> int:
        return self._page(self._certain(key), number).nbytes

    def keep(self, key: str, number: int, nonce: Hashable, cache: PageCache | None = None) -> int:
        """Fetch and keep a claimed page; return the bytes read. Raises: as the origin. The claim always ends."""
        content = self._certain(key)
        name = self._name(content, number)
        page = self._page(content, number)
        claimed_cache = cache or self._cache
        try:
            self._cache.count("cache_misses", 1)
            (blob,) = self._origin.get_ranges(key, [page], etag=self._pins.get(key))
            self._pin(key, blob.etag)
            claimed_cache.put(name, nonce, blob.data)
        finally:
            claimed_cache.release(name, nonce)
        return page.nbytes

    def give_back(self, key: str, number: int, nonce: Hashable, cache: PageCache | None = None) -> None:
        claimed_cache = cache or self._cache
        claimed_cache.release(self.page_name(key, number), nonce)

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

    def _read_page(
        self,
        content: Content,
        number: int,
        page_cuts: "_PageCuts",
        *,
        claim: int | None = None,
        wait_s: float | None = None,
    ) -> Answer:
        """Take the cuts of a page from the cache if it has the page; return its answer."""
        cuts = [cut for _, cut in page_cuts.cuts[number]]
        answer = self._cache.read(self._name(content, number), cuts, claim=claim, wait_s=wait_s)
        if not isinstance(answer, Grant | Absence):
            page_cuts.take(number, answer)
        return answer

    def _read_pages(
        self, key: str, content: Content, page_cuts: "_PageCuts", *, with_claims: bool
    ) -> dict[int, Absence]:
        """Take the cache's pages, and fetch the pages that it grants. Return the absences of all others.

        A page is asked for once, together with the others. Pages that may be granted are asked for a few at a time:
        all grants of a call are in memory together.
        """
        numbers = list(page_cuts.cuts)
        questions: list[PageQuestion] = []
        for number in numbers:
            page = self._page(content, number)
            cuts: list[slice] = []
            asked_bytes = 0
            for _, cut in page_cuts.cuts[number]:  # a loop: a comprehension would be a call for each page
                cuts.append(cut)
                asked_bytes += cut.stop - cut.start
            is_worth = asked_bytes >= self._fraction * page.nbytes
            claim = page.nbytes if with_claims and is_worth else None
            questions.append(PageQuestion(self._name(content, number), cuts, claim))
        at_once = max(1, FETCH_BYTES // self._cache.page_bytes)
        if not any(question.claim is not None for question in questions):
            at_once = max(1, len(numbers))
        missing: dict[int, Absence] = {}
        for start in range(0, len(numbers), at_once):
            grants: dict[int, Hashable] = {}
            try:
                answers = self._cache.read_all(questions[start : start + at_once])
                for number, answer in zip(numbers[start : start + at_once], answers, strict=True):
                    if isinstance(answer, Grant):
                        grants[number] = answer.nonce
                    elif isinstance(answer, Absence):
                        missing[number] = answer
                    else:
                        page_cuts.take(number, answer)
                self._fetch(key, content, grants, page_cuts)
            finally:
                for number, nonce in grants.items():
                    self._cache.release(self._name(content, number), nonce)
        return missing

    def _fetch(self, key: str, content: Content, grants: dict[int, Hashable], page_cuts: "_PageCuts") -> None:
        if not grants:
            return
        self._cache.count("cache_misses", len(grants))
        spans = [self._page(content, number) for number in grants]
        blobs = self._origin.get_ranges(key, spans, etag=self._pins.get(key), max_gap=0, max_span=FETCH_BYTES)
        for (number, nonce), blob in zip(grants.items(), blobs, strict=True):
            self._pin(key, blob.etag)
            self._cache.put(self._name(content, number), nonce, blob.data)
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
