"""Cache pages of remote objects in memory, for a loader without a cache folder."""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from threading import Condition

from .spec import PageMemory


class NextUses:
    def __init__(self) -> None:
        self._steps: dict[str, deque[int]] = {}
        self._of_step: dict[int, tuple[str, ...]] = {}
        self._held: set[str] = set()
        self._idle: OrderedDict[str, None] = OrderedDict()  # pages in memory without a known use
        self._last: list[tuple[int, str]] = []  # heap of (-next use, page), with outdated entries

    def add(self, step: int, names: Iterable[str]) -> None:
        """Record that these pages are needed at `step`, which is after all earlier steps."""
        self._of_step[step] = tuple(dict.fromkeys(names))
        for name in self._of_step[step]:
            steps = self._steps.setdefault(name, deque())
            steps.append(step)
            if len(steps) == 1:
                self._changed(name)

    def passed(self, step: int) -> None:
        while self._of_step and (first := next(iter(self._of_step))) < step:
            for name in self._of_step.pop(first):
                steps = self._steps[name]
                steps.popleft()
                if not steps:
                    del self._steps[name]
                self._changed(name)

    def forget(self) -> None:
        """Drop all uses, because the order of steps changed."""
        self._steps.clear()
        self._of_step.clear()
        self._last.clear()
        self._idle = OrderedDict.fromkeys(self._held)

    def next(self, name: str) -> int | None:
        """Return the first step that needs a page; None if no use is known."""
        steps = self._steps.get(name)
        return steps[0] if steps else None

    def hold(self, name: str) -> None:
        self._held.add(name)
        self._changed(name)

    def drop(self, name: str) -> None:
        self._held.discard(name)
        self._idle.pop(name, None)

    def last(self) -> tuple[str, int | None] | None:
        if self._idle:
            return next(iter(self._idle)), None
        while self._last:
            soon, name = self._last[0]
            if name in self._held and self.next(name) == -soon:
                return name, -soon
            heapq.heappop(self._last)
        return None

    def _changed(self, name: str) -> None:
        if name not in self._held:
            return
        self._idle.pop(name, None)
        step = self.next(name)
        if step is None:
            self._idle[name] = None
            return
        if len(self._last) > 64 + 4 * len(self._held):  # mostly outdated entries
            self._last = [(-soon, one) for one in self._held if (soon := self.next(one)) is not None]
            heapq.heapify(self._last)
        else:
            heapq.heappush(self._last, (-step, name))


Count = Callable[[str, int], None]

WAIT_S = 60.0


class MemoryPages:
    """One loader's pages. Thread-safe. Keeps at most `limit_bytes`, including pages being fetched.

    count(name, amount) receives cache_hits and cache_misses (pages), cache_written_bytes and cache_evicted (pages).
    """

    takes_pages = True

    def __init__(self, spec: PageMemory, count: Count) -> None:
        self.page_bytes, self.limit_bytes, self.count = spec.page_bytes, spec.limit_bytes, count
        self._pages: dict[str, memoryview] = {}
        self._coming: dict[str, int] = {}  # page -> bytes reserved for it
        self._taken_bytes = 0
        self._uses = NextUses()
        self._changed = Condition()

    @property
    def taken_bytes(self) -> int:
        return self._taken_bytes

    def read(self, name: str, cuts: Sequence[slice]) -> list[memoryview] | None:
        """Return a page's bytes, one uncopied view per cut; None if the page is missing or too short."""
        data = self._pages.get(name)
        if data is None or (len(data) < self.page_bytes and any(cut.stop > len(data) for cut in cuts)):
            return None
        self.count("cache_hits", 1)
        return [data[cut] for cut in cuts]

    def has(self, name: str) -> bool:
        return name in self._pages

    def claim(self, name: str, nbytes: int) -> bool:
        """Reserve room for a page, evicting pages needed later; False if it is being fetched or does not fit."""
        with self._changed:
            if name in self._coming or not self._make_room(name, nbytes):
                return False
            self._coming[name] = nbytes
            self._taken_bytes += nbytes
            return True

    def write(self, name: str, data: bytes) -> None:
        with self._changed:
            if name not in self._coming:
                return
            self._taken_bytes += len(data) - self._coming.pop(name)
            self._pages[name] = memoryview(data)
            self._uses.hold(name)
            self._changed.notify_all()
        self.count("cache_written_bytes", len(data))

    def release(self, name: str) -> None:
        with self._changed:
            self._taken_bytes -= self._coming.pop(name, 0)
            self._changed.notify_all()

    def is_coming(self, name: str) -> bool:
        return name in self._coming

    def wait(self, name: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: name not in self._coming, WAIT_S)

    def discard(self, name: str) -> None:
        with self._changed:
            self._drop(name)

    def __len__(self) -> int:
        return len(self._pages) + len(self._coming)

    def needs(self, step: int, names: Iterable[str]) -> None:
        """Record that a step needs these pages. Call in step order."""
        with self._changed:
            self._uses.add(step, names)

    def passed(self, step: int) -> None:
        with self._changed:
            self._uses.passed(step)

    def forget(self) -> None:
        with self._changed:
            self._uses.forget()

    def close(self) -> None:
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
