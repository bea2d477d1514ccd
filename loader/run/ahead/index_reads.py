"""Read the indexes of a version through the pages of a node's cache.

The shards table has the SHA-256 of an index's footer, and the footer the hashes of its parts. A reader checks both, so
pages need no checksum here. If a page's bytes are wrong, the second read takes the origin's and deletes the page.
"""

from collections.abc import Callable

from ...cache.cached_ranges import Content
from ...cache.cached_store import CachedStore
from ...cache.page_cache import PageCache
from ...dataset.shards.index import IndexPlace
from ...dataset.versions.version import Version
from ...storage import Blob, ByteRange, Store
from ...storage.requests import is_retry
from ...storage.store import ObjectReader

FIRST_EXCESS = 2**18
"""Most bytes that a first batch reads beyond its own needs, so that the cache gets a whole page."""


class CachedIndexes:
    """Opens a version's indexes through pages until it is closed, then in the version's store.

    content_of: index -> content; None if it has no pages.
    """

    def __init__(
        self, version: Version, cache: PageCache, content_of: Callable[[IndexPlace], Content | None]
    ) -> None:
        self._version = version
        self._content_of = content_of
        self._contents: dict[str, Content] = {}  # path of an index -> its content
        # At a fraction of 0 each read fetches the whole page: nothing reads these pages ahead, and later readers need
        # other parts of them.
        pages = CachedStore(version.store, cache, self._contents.get, 0.0, first_excess=FIRST_EXCESS)
        self._store = IndexStore(version.store, pages)
        version.indexes.add_pages(self)

    def store(self, place: IndexPlace) -> ObjectReader:
        content = self._content_of(place)
        if content is None:
            return self._version.store
        self._contents[place.path] = content
        return self._store

    def close(self) -> None:
        """Read the version's store from now on; indexes that are open stay valid."""
        if not self._store.is_closed:
            self._version.indexes.remove_pages(self)
            self._store.close()


class IndexStore:
    """A store of indexes: ranges come from pages, whole objects and second reads from the origin."""

    def __init__(self, origin: Store, pages: CachedStore) -> None:
        self._origin = origin
        self._pages = pages
        self.is_closed = False

    @property
    def url(self) -> str:
        return self._origin.url

    def get(self, key: str) -> Blob:
        return self._origin.get(key)

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        """Return a range. A read that `retry_corrupt` repeats deletes its pages, and reads the origin."""
        if self.is_closed:
            return self._pages.get_origin_range(key, offset, nbytes, etag)
        if is_retry():
            return self._pages.get_range(key, offset, nbytes, etag)
        span = ByteRange(offset, nbytes)
        (blob,) = self._pages.get_ranges(key, [span], etag=etag)
        return blob

    def close(self) -> None:
        """Use no page from now on: the cache is closed."""
        self.is_closed = True
