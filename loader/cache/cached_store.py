"""A store whose objects are read through pages, in memory or on a local disk."""

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import Unpack

from ..errors import Changed, Corrupt
from ..storage import Blob, ByteRange, RangeReader, ReadLimits
from .cached_ranges import Content, RequestedRanges
from .page_cache import Absence, Answer, Buffer, Grant, PageCache, PageQuestion
from .pages import PageCuts, page_name

FETCH_BYTES = 16 * 2**20
"""Most bytes of pages that one thread fetches together, which bounds its memory."""
WAIT_S = 0.3
"""Longest time that one call waits for the pages that other processes fetch; then it reads the ranges."""


VERIFIED = " verified"
"""Suffix of the SHA-256 that names pages of hash-checked shards."""
INDEX = " index"
"""Suffix of a footer's SHA-256 that names pages of an index."""
_waits: ContextVar[bool] = ContextVar("penstock_waits_for_pages", default=True)


@contextmanager
def waiting_for_no_page() -> Iterator[None]:
    """Wait for no page in this context, and claim none unless `first_excess` allows it: for a first batch."""
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

    first_excess: bytes that a read in `waiting_for_no_page` takes besides its own, to claim a page; -1 claims none.
    """

    def __init__(
        self,
        origin: RangeReader,
        cache: PageCache,
        content_of: Callable[[str], Content | None],
        fraction: float = 0.5,
        wait_s: float | None = None,
        first_excess: int = -1,
    ) -> None:
        self._origin = origin
        self._cache = cache
        self._content_of = content_of
        self._fraction = fraction
        self._first_excess = first_excess
        self._wait_s = WAIT_S if wait_s is None else wait_s
        self._contents: dict[str, Content | None] = {}
        self._pins: dict[str, str] = {}
        self.origin_reads = 0
        """Reads of missing pages' ranges from the origin, about: threads count without a lock."""

    @property
    def url(self) -> str:
        return self._origin.url

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        """Return a range from the origin and drop its pages, because the caller got corrupt bytes."""
        content = self._content(key)
        if content is None:
            return self._origin.get_range(key, offset, nbytes, etag)
        self._check(key, content, etag)
        span = ByteRange(offset, nbytes)
        page_cuts = PageCuts([span], self._cache.page_bytes)
        for number in page_cuts.cuts:
            name = self._name(content, number)
            self._cache.discard(name)
        return self.get_origin_range(key, offset, nbytes, etag)

    def get_origin_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        """Return a range from the origin. Looks at no page."""
        content = self._content(key)
        if content is None:
            return self._origin.get_range(key, offset, nbytes, etag)
        self._check(key, content, etag)
        blob = self._origin.get_range(key, offset, nbytes, self._pins.get(key))
        self._pin(key, blob.etag)
        return Blob(blob.data, content.sha256)

    def get_ranges(
        self,
        key: str,
        spans: Sequence[ByteRange],
        *,
        etag: str | None = None,
        **limits: Unpack[ReadLimits],
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

    def get_cached_ranges(
        self, requests: Sequence[tuple[str, Sequence[ByteRange]]]
    ) -> list[list[Blob] | None]:
        """Return the ranges of each (key, ranges) whose pages are all in the cache, else None.

        Asks for the pages of all objects at once. Claims none, and reads nothing from the origin.
        """
        requested = RequestedRanges(self._cache.page_bytes)
        for key, spans in requests:
            content = self._content(key)
            requested.add(content, spans)
        answers = self._cache.read_present(requested.questions)
        return requested.blobs(answers)

    def lend_ranges(
        self,
        key: str,
        spans: Sequence[tuple[int, int]],
        etag: str | None = None,
    ) -> tuple[Sequence[Buffer], str]:
        """Return (bytes of the (offset, nbytes) ranges, the object's change token).

        Ranges within one page are not copied.

        Each such range keeps a whole page in memory.
        """
        content = self._content(key)
        if content is not None:
            ranges = self._ranges(key, content, spans, etag, {})
            return ranges, content.sha256
        blobs = self._origin.get_ranges(key, [ByteRange(*span) for span in spans], etag=etag)
        change_token = blobs[0].etag if blobs else etag or ""
        return [blob.data for blob in blobs], change_token

    def _ranges(
        self,
        key: str,
        content: Content,
        spans: Sequence[tuple[int, int]],
        etag: str | None,
        limits: ReadLimits,
    ) -> list[Buffer]:
        self._check(key, content, etag)
        page_cuts = PageCuts(spans, self._cache.page_bytes)
        if page_cuts.end > content.nbytes:
            raise Corrupt(
                f"{self.url}/{key}: a range ends after byte {content.nbytes}, where the object ends",
                what="range",
                where=f"{self.url}/{key}",
                given=content.nbytes,
            )
        is_patient = _waits.get()
        missing = self._read_pages(key, content, page_cuts, is_patient=is_patient)
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

        cache: the part of the store's cache that is to keep the page; None for the whole.
        """
        content = self._content(key)
        if content is None:
            return []
        page = self._page(content, number)
        name = self._name(content, number)
        claimed_cache = cache or self._cache
        return claimed_cache.read(name, (), claim=page.nbytes)

    def is_here(self, key: str, number: int) -> bool:
        """Return whether a page is in the cache, or another reader is fetching it."""
        content = self._content(key)
        if content is None:
            return True
        name = self._name(content, number)
        answer = self._cache.read(name, ())
        return answer is not Absence.NOT_KEPT

    def page_nbytes(self, key: str, number: int) -> int:
        page = self._page(self._certain_content(key), number)
        return page.nbytes

    def keep(
        self,
        key: str,
        number: int,
        nonce: Hashable,
        cache: PageCache | None = None,
    ) -> int:
        """Fetch and keep a claimed page; return the bytes read. Raises: as the origin. The claim always ends.

        nonce: of the grant that `claim` returned. cache: as for `claim`; None for the store's whole cache.
        """
        content = self._certain_content(key)
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

    def give_back(
        self,
        key: str,
        number: int,
        nonce: Hashable,
        cache: PageCache | None = None,
    ) -> None:
        """End a claim whose page is not fetched. nonce, cache: as for `keep`."""
        claimed_cache = cache or self._cache
        name = self.page_name(key, number)
        claimed_cache.release(name, nonce)

    def has_pages(self, key: str) -> bool:
        """Return whether an object is read through pages: only then may `keep` and `page_name` name it."""
        return self._content(key) is not None

    def page_name(self, key: str, number: int) -> str:
        """Return the name of a page of an object with `Content`."""
        content = self._certain_content(key)
        return self._name(content, number)

    def _content(self, key: str) -> Content | None:
        if key not in self._contents:
            self._contents[key] = self._content_of(key)
        return self._contents[key]

    def _certain_content(self, key: str) -> Content:
        """Return the content of an object that is read through pages."""
        content = self._content(key)
        assert content is not None, f"{key} has no content, hence no pages"
        return content

    def _name(self, content: Content, number: int) -> str:
        return page_name(content.sha256, self._cache.page_bytes, number)

    def _page(self, content: Content, number: int) -> ByteRange:
        """Return the bytes of the object that a page has: fewer in its last page."""
        start = number * self._cache.page_bytes
        rest = content.nbytes - start
        nbytes = min(self._cache.page_bytes, rest)
        return ByteRange(start, nbytes)

    def _read_page(
        self,
        content: Content,
        number: int,
        page_cuts: PageCuts,
        *,
        claim: int | None = None,
        wait_s: float | None = None,
    ) -> Answer:
        """Take the cuts of a page from the cache if it has the page; return its answer."""
        name = self._name(content, number)
        cuts = [cut for _, cut in page_cuts.cuts[number]]
        answer = self._cache.read(
            name,
            cuts,
            claim=claim,
            wait_s=wait_s,
        )
        if not isinstance(answer, Grant | Absence):
            page_cuts.take(number, answer)
        return answer

    def _read_pages(
        self,
        key: str,
        content: Content,
        page_cuts: PageCuts,
        *,
        is_patient: bool,
    ) -> dict[int, Absence]:
        """Take the cache's pages, and fetch the pages that it grants. Return the absences of all others.

        A page is asked for once, together with the others. Pages that may be granted are asked for a few at a time:
        all grants of a call are in memory together.
        """
        numbers = list(page_cuts.cuts)
        questions = self._questions(content, page_cuts, is_patient=is_patient)
        at_once = max(1, len(numbers))
        if any(question.claim is not None for question in questions):
            at_once = max(1, FETCH_BYTES // self._cache.page_bytes)
        missing: dict[int, Absence] = {}
        for start in range(0, len(numbers), at_once):
            stop = start + at_once
            grants: dict[int, Hashable] = {}
            try:
                answers = self._cache.read_all(questions[start:stop])
                for number, answer in zip(numbers[start:stop], answers, strict=True):
                    if isinstance(answer, Grant):
                        grants[number] = answer.nonce
                    elif isinstance(answer, Absence):
                        missing[number] = answer
                    else:
                        page_cuts.take(number, answer)
                self._fetch(key, content, grants, page_cuts)
            finally:
                for number, nonce in grants.items():
                    name = self._name(content, number)
                    self._cache.release(name, nonce)
        return missing

    def _questions(
        self,
        content: Content,
        page_cuts: PageCuts,
        *,
        is_patient: bool,
    ) -> list[PageQuestion]:
        """Return a question for each page, with a claim if enough of the page is requested."""
        questions: list[PageQuestion] = []
        for number, cuts_of_page in page_cuts.cuts.items():
            page = self._page(content, number)
            cuts: list[slice] = []
            asked_bytes = 0
            for _, cut in cuts_of_page:  # a loop: a comprehension would be a call for each page
                cuts.append(cut)
                asked_bytes += cut.stop - cut.start
            least_bytes: float = page.nbytes - self._first_excess
            if is_patient:
                least_bytes = self._fraction * page.nbytes
            claim = None
            if asked_bytes >= least_bytes:
                claim = page.nbytes
            name = self._name(content, number)
            question = PageQuestion(name, cuts, claim)
            questions.append(question)
        return questions

    def _fetch(self, key: str, content: Content, grants: dict[int, Hashable], page_cuts: PageCuts) -> None:
        """Read granted pages whole, store them and take their cuts. grants: page number -> nonce."""
        if not grants:
            return
        self._cache.count("cache_misses", len(grants))
        spans = [self._page(content, number) for number in grants]
        blobs = self._read_origin(key, spans, {"max_gap": 0, "max_span": FETCH_BYTES})
        for (number, nonce), blob in zip(grants.items(), blobs, strict=True):
            self._pin(key, blob.etag)
            self._cache.put(self._name(content, number), nonce, blob.data)
            page = memoryview(blob.data)
            page_cuts.take(number, [page[cut] for _, cut in page_cuts.cuts[number]])

    def _read_origin(self, key: str, spans: Sequence[ByteRange], limits: ReadLimits) -> list[Blob]:
        self.origin_reads += 1
        begun_s = time.perf_counter()
        blobs = self._origin.get_ranges(key, spans, etag=self._pins.get(key), **limits)
        self._cache.count("cache_store_us", int(1e6 * (time.perf_counter() - begun_s)))
        return blobs

    def _read_alone(self, key: str, numbers: Sequence[int], page_cuts: PageCuts, limits: ReadLimits) -> None:
        """Read only the cuts of some pages from the origin: this reader may not store these pages."""
        if not numbers:
            return
        self._cache.count("cache_misses", len(numbers))
        spans = page_cuts.spans(numbers)
        blobs = iter(self._read_origin(key, spans, limits))
        for number in numbers:
            read = list(islice(blobs, len(page_cuts.cuts[number])))
            for blob in read:
                self._pin(key, blob.etag)
            page_cuts.take(number, [blob.data for blob in read])

    def _check(self, key: str, content: Content, etag: str | None) -> None:
        """Raise Changed if a caller pinned another change token than the object's SHA-256."""
        if etag is not None and etag != content.sha256:
            raise Changed(
                f"{self.url}/{key}: pinned as {etag}, and the version has SHA-256 {content.sha256}",
                what="etag",
                where=f"{self.url}/{key}",
                given=etag,
                accepted=content.sha256,
            )

    def _pin(self, key: str, etag: str) -> None:
        """Pin the origin's change token of an object. Raises: Changed if it is another than before."""
        pinned = self._pins.setdefault(key, etag)
        if pinned != etag:
            raise Changed(
                f"{self.url}/{key} was replaced while it was being read; shards are immutable: find out who wrote there"
            )
