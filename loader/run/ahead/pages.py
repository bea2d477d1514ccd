"""Pages read ahead: where the reads fit the cache, each page is fetched once, before its first use."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...cache.cached_store import CachedStore, Claim
from ...cache.memory import MemoryPages
from .next_reads import Extents, Steps


class Page(NamedTuple):
    """A page of one object: fetched once, used by many samples."""

    store: CachedStore
    """Store that the page is read from."""
    key: str
    """Key of the object."""
    number: int
    """Number of the page in the object."""


class PagesAhead:
    """Pages in the order of their next use. memory: where they are kept, if not on a disk, which evicts by hints.

    pages: tells how many there are in all; once memory has every one, or will have, there is nothing to plan.
    """

    def __init__(
        self,
        steps: Steps,
        stores: Mapping[int, CachedStore],
        page_bytes: int,
        memory: MemoryPages | None,
        pages: Callable[[], int],
    ) -> None:
        self._steps, self._stores, self._page_bytes = steps, stores, page_bytes
        self._memory, self._pages = memory, pages

    def units(self, step: int) -> Sequence[Page] | None:
        if self._memory is not None and len(self._memory) >= self._in_all:
            return []
        wanted = self._steps(step)
        if wanted is None:
            return None
        return [
            Page(self._stores[view], key, number)
            for view, shards in wanted.items()
            if view in self._stores
            for key, extents in shards.items()
            if self._stores[view].has_pages(key)
            for number in pages_of(extents, self._page_bytes)
        ]

    @cached_property
    def _in_all(self) -> int:
        return self._pages()

    def expect(self, step: int, units: Sequence[Page]) -> None:
        if self._memory is not None:
            self._memory.needs(step, [page.store.page_name(page.key, page.number) for page in units])

    def claim(self, unit: Page) -> Claim:
        return unit.store.claim(unit.key, unit.number)

    def fetch(self, unit: Page) -> int:
        return unit.store.keep(unit.key, unit.number)

    def give_back(self, unit: Page) -> None:
        unit.store.give_back(unit.key, unit.number)

    def passed(self, step: int) -> None:
        if self._memory is not None:
            self._memory.passed(step)

    def forget(self) -> None:
        if self._memory is not None:
            self._memory.forget()


def pages_of(extents: Extents, page_bytes: int) -> list[int]:
    """Return the numbers of the pages that hold these ranges, ascending, each once."""
    some = extents.nbytes > 0
    low = extents.offset[some] // page_bytes
    high = (extents.offset[some] + extents.nbytes[some] - 1) // page_bytes
    most = int((high - low).max(initial=0))
    numbers = np.minimum(low[:, None] + np.arange(most + 1), high[:, None])
    return sorted(set(numbers.ravel().tolist()))
