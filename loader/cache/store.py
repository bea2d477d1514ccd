"""A store whose objects are read through a node cache, page by page."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..errors import Changed, Corrupt
from ..storage import Blob, RangeReader, Span
from .opened import OpenCache
from .pages import page_name

FETCH_BYTES = 16 * 2**20
"""Pages fetched together by one thread: bounds what it holds."""


class Content(NamedTuple):
    """What an object is made of, said by who wrote it: the address of its pages."""

    sha256: str
    nbytes: int


class CachedStore:
    """Reads ranges from the pages of a node cache, and what is missing from the origin.

    content_of: key -> its content; None for an object that has none, which is read from the origin alone. The
    change token of a cached object is its SHA-256; that of the origin is pinned at the first read of it.
    whole_pages: fetch and keep every page that is touched (they will be read again before they must go); otherwise
    only pages of which a read wants half.
    """

    def __init__(
        self,
        origin: RangeReader,
        cache: OpenCache,
        content_of: Callable[[str], Content | None],
        *,
        whole_pages: bool,
    ) -> None:
        self._origin, self._cache, self._content_of = origin, cache, content_of
        self._whole_pages = whole_pages
        self._contents: dict[str, Content | None] = {}
        self._pins: dict[str, str] = {}

    @property
    def url(self) -> str:
        return self._origin.url

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        """From the origin, whatever is cached: a reader asks for one range when what it got before was wrong, so the
        pages that hold it are thrown away. Raises: as the origin does."""
        content = self._content(key)
        if content is None:
            return self._origin.get_range(key, offset, nbytes, etag)
        self._check(key, content, etag)
        for name in self.page_names(key, Span(offset, nbytes)):
            self._cache.discard(name)
        blob = self._origin.get_range(key, offset, nbytes, self._pins.get(key))
        self._pin(key, blob.etag)
        return Blob(blob.data, content.sha256)

    def get_ranges(
        self,
        key: str,
        spans: Sequence[Span],
        *,
        etag: str | None = None,
        max_gap: int = 64 * 2**10,
        max_span: int = 16 * 2**20,
    ) -> list[Blob]:
        """As every store; costs O(pages touched). Raises: as the origin does."""
        content = self._content(key)
        if content is None:
            return self._origin.get_ranges(key, spans, etag=etag, max_gap=max_gap, max_span=max_span)
        self._check(key, content, etag)
        wanted = _Wanted(spans, self._cache.page_bytes)
        if spans and max(offset + nbytes for offset, nbytes in spans) > content.nbytes:
            raise Corrupt(
                f"{self.url}/{key}: a range ends behind byte {content.nbytes}, where the object ends"
            )
        missing = [number for number in wanted.cuts if not self._from_page(content, number, wanted)]
        pages = [number for number in missing if self._is_worth_a_page(content, number, wanted)]
        at_once = max(1, FETCH_BYTES // self._cache.page_bytes)
        for start in range(0, len(pages), at_once):
            self._fetch_pages(key, content, pages[start : start + at_once], wanted)
        alone = sorted(set(missing) - set(pages))
        if alone:
            self._cache.count("cache_misses", len(alone))
            ranges = wanted.ranges(alone)
            blobs = self._origin.get_ranges(
                key,
                [span for _, _, span in ranges],
                etag=self._pins.get(key),
                max_gap=max_gap,
                max_span=max_span,
            )
            for (i, number, _), blob in zip(ranges, blobs, strict=True):
                self._pin(key, blob.etag)
                wanted.pieces[i][number] = blob.data
        return [Blob(data, content.sha256) for data in wanted.joined()]

    def page_names(self, key: str, span: Span) -> list[str]:
        """The pages that hold a range, in order; none for an object without content."""
        content = self._content(key)
        if content is None or span.nbytes == 0:
            return []
        size = self._cache.page_bytes
        numbers = range(span.offset // size, (span.offset + span.nbytes - 1) // size + 1)
        return [page_name(content.sha256, size, number) for number in numbers]

    def _content(self, key: str) -> Content | None:
        if key not in self._contents:
            self._contents[key] = self._content_of(key)
        return self._contents[key]

    def _name(self, content: Content, number: int) -> str:
        return page_name(content.sha256, self._cache.page_bytes, number)

    def _page(self, content: Content, number: int) -> Span:
        start = number * self._cache.page_bytes
        return Span(start, min(self._cache.page_bytes, content.nbytes - start))

    def _is_worth_a_page(self, content: Content, number: int, wanted: "_Wanted") -> bool:
        if not self._cache.takes_pages:
            return False
        if self._whole_pages:
            return True
        asked: int = sum(cut.stop - cut.start for _, cut in wanted.cuts[number])
        return 2 * asked >= self._page(content, number).nbytes

    def _from_page(self, content: Content, number: int, wanted: "_Wanted") -> bool:
        """Take what is wanted of a page from the cache; whether it was there."""
        cuts = wanted.cuts[number]
        found = self._cache.read(self._name(content, number), [cut for _, cut in cuts])
        if found is None:
            return False
        for (i, _), piece in zip(cuts, found, strict=True):
            wanted.pieces[i][number] = piece
        return True

    def _fetch_pages(self, key: str, content: Content, numbers: Sequence[int], wanted: "_Wanted") -> None:
        """Pages that were not there: claimed, fetched and kept, or waited for where another has claimed them."""
        names = {number: self._name(content, number) for number in numbers}
        mine = [number for number in numbers if self._cache.claim(names[number])]
        try:
            # Somebody may have finished between our look and our claim.
            self._fetch(key, content, [n for n in mine if not self._from_page(content, n, wanted)], wanted)
        finally:
            for number in mine:
                self._cache.release(names[number])
        for number in sorted(set(numbers) - set(mine)):  # with no claim held: nobody waits for us
            self._cache.wait(names[number])
            if not self._from_page(content, number, wanted):
                self._fetch(key, content, [number], wanted)

    def _fetch(self, key: str, content: Content, numbers: Sequence[int], wanted: "_Wanted") -> None:
        if not numbers:
            return
        self._cache.count("cache_misses", len(numbers))
        spans = [self._page(content, number) for number in numbers]
        blobs = self._origin.get_ranges(key, spans, etag=self._pins.get(key), max_gap=0, max_span=FETCH_BYTES)
        for number, blob in zip(numbers, blobs, strict=True):
            self._pin(key, blob.etag)
            self._cache.write(self._name(content, number), blob.data)
            for i, cut in wanted.cuts[number]:
                wanted.pieces[i][number] = blob.data[cut]

    def _check(self, key: str, content: Content, etag: str | None) -> None:
        if etag is not None and etag != content.sha256:
            raise Changed(
                f"{self.url}/{key}: pinned as {etag}, and the version says SHA-256 {content.sha256}"
            )

    def _pin(self, key: str, etag: str) -> None:
        if self._pins.setdefault(key, etag) != etag:
            raise Changed(
                f"{self.url}/{key} was replaced while it was being read; shards are immutable: find out who wrote there"
            )


class _Wanted:
    """Spans of one object cut at its pages. cuts: page -> (span's number, bytes of the page), pages ascending;
    pieces: per span, page -> bytes found."""

    def __init__(self, spans: Sequence[Span], page_bytes: int) -> None:
        self._page_bytes = page_bytes
        cuts: dict[int, list[tuple[int, slice]]] = {}
        for i, (offset, nbytes) in enumerate(spans):
            at, stop = offset, offset + nbytes
            while at < stop:
                number, low = divmod(at, page_bytes)
                high = min(page_bytes, low + stop - at)
                cuts.setdefault(number, []).append((i, slice(low, high)))
                at += high - low
        self.cuts = {number: cuts[number] for number in sorted(cuts)}
        self.pieces: list[dict[int, bytes]] = [{} for _ in spans]

    def ranges(self, numbers: Iterable[int]) -> list[tuple[int, int, Span]]:
        """(span's number, page, range in the object) of every cut of these pages."""
        return [
            (i, number, Span(number * self._page_bytes + cut.start, cut.stop - cut.start))
            for number in numbers
            for i, cut in self.cuts[number]
        ]

    def joined(self) -> list[bytes]:
        """The bytes of each span."""
        return [
            next(iter(found.values())) if len(found) == 1 else b"".join(found[n] for n in sorted(found))
            for found in self.pieces
        ]
