"""Pages of remote objects in memory: a loader's cache without a folder."""

from collections.abc import Callable, Iterable, Sequence
from threading import Condition

from .next_use import NextUses
from .spec import PageMemory

Count = Callable[[str, int], None]

WAIT_S = 60.0
"""Seconds that a read waits for a page on its way: a store's default timeout."""


class MemoryPages:
    """One loader's pages; thread-safe. Keeps at most `limit_bytes`, pages on their way included.

    count(name, amount) receives cache_hits and cache_misses (pages), cache_written_bytes and cache_evicted (pages).
    """

    takes_pages = True

    def __init__(self, spec: PageMemory, count: Count) -> None:
        self.page_bytes, self.limit_bytes, self.count = spec.page_bytes, spec.limit_bytes, count
        self._pages: dict[str, memoryview] = {}
        self._coming: dict[str, int] = {}  # page -> bytes that are set aside for it
        self._taken_bytes = 0
        self._uses = NextUses()
        self._changed = Condition()

    @property
    def taken_bytes(self) -> int:
        """Bytes held and set aside."""
        return self._taken_bytes

    def read(self, name: str, cuts: Sequence[slice]) -> list[memoryview] | None:
        """Return a page's bytes per cut, uncopied; None if it is missing or too short."""
        data = self._pages.get(name)
        if data is None or (len(data) < self.page_bytes and any(cut.stop > len(data) for cut in cuts)):
            return None
        self.count("cache_hits", 1)
        return [data[cut] for cut in cuts]

    def has(self, name: str) -> bool:
        """Return whether a page is there."""
        return name in self._pages

    def claim(self, name: str, nbytes: int) -> bool:
        """Reserve room for a page to fetch, evicting pages needed later; False if on its way, or without room."""
        with self._changed:
            if name in self._coming or not self._make_room(name, nbytes):
                return False
            self._coming[name] = nbytes
            self._taken_bytes += nbytes
            return True

    def write(self, name: str, data: bytes) -> None:
        """Keep a page, if room was set aside for it."""
        with self._changed:
            if name not in self._coming:
                return
            self._taken_bytes += len(data) - self._coming.pop(name)
            self._pages[name] = memoryview(data)
            self._uses.hold(name)
            self._changed.notify_all()
        self.count("cache_written_bytes", len(data))

    def release(self, name: str) -> None:
        """Give a claim back, whether the page was written or not."""
        with self._changed:
            self._taken_bytes -= self._coming.pop(name, 0)
            self._changed.notify_all()

    def is_coming(self, name: str) -> bool:
        """Return whether a page was claimed and is being fetched."""
        return name in self._coming

    def wait(self, name: str) -> None:
        """Wait until a page on its way is there, or is not coming."""
        with self._changed:
            self._changed.wait_for(lambda: name not in self._coming, WAIT_S)

    def discard(self, name: str) -> None:
        """Throw a page away."""
        with self._changed:
            self._drop(name)

    def __len__(self) -> int:
        """Return the number of pages held and on their way."""
        return len(self._pages) + len(self._coming)

    def needs(self, step: int, names: Iterable[str]) -> None:
        """Note that a step needs these pages; call in the order of the steps."""
        with self._changed:
            self._uses.add(step, names)

    def passed(self, step: int) -> None:
        """Say that every step before this one has got its pages."""
        with self._changed:
            self._uses.passed(step)

    def forget(self) -> None:
        """Forget the needs; the pages stay."""
        with self._changed:
            self._uses.forget()

    def close(self) -> None:
        """Hold nothing any more."""
        with self._changed:
            for name in list(self._pages):
                self._drop(name)

    def _make_room(self, name: str, nbytes: int) -> bool:
        next_use = self._uses.next(name)
        while self._taken_bytes + nbytes > self.limit_bytes:
            last = self._uses.last()
            if last is None or next_use is None or (last[1] is not None and last[1] <= next_use):
                return False
            self._drop(last[0])
            self.count("cache_evicted", 1)
        return True

    def _drop(self, name: str) -> None:
        self._taken_bytes -= len(self._pages.pop(name, b""))
        self._uses.drop(name)
