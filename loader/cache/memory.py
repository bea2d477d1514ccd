"""Cache pages of remote objects in memory, for a loader without a cache folder."""

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from threading import Condition

from .fixed_share import FixedShare, page_rank
from .object_sets import ObjectSet, pages_bytes
from .page_cache import Absence, Answer, Grant, PageQuestion
from .spec import PageMemory


class NextUses:
    """The steps that need each page, and the page whose next use is last: it goes first."""

    def __init__(self) -> None:
        self._steps: dict[str, deque[int]] = {}  # page -> steps that need it, ascending
        self._of_step: dict[int, tuple[str, ...]] = {}  # step -> its pages
        self._evictable: set[str] = set()  # pages in memory that may be evicted
        # Evictable pages without a known use, which go first: a queue, not a cache of its own.
        self._idle: OrderedDict[str, None] = OrderedDict()
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
        """Drop the uses by steps before this one."""
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
        self._idle = OrderedDict.fromkeys(self._evictable)

    def next(self, name: str) -> int | None:
        """Return the first step that needs a page; None if no use is known."""
        steps = self._steps.get(name)
        return steps[0] if steps else None

    def allow_eviction(self, name: str) -> None:
        """Record that a page is in memory, and may be evicted."""
        self._evictable.add(name)
        self._changed(name)

    def drop(self, name: str) -> None:
        """Record that a page is no longer in memory."""
        self._evictable.discard(name)
        self._idle.pop(name, None)

    def last(self) -> tuple[str, int | None] | None:
        """Return the page to evict first, and its next use (None if unknown); None if no page may be evicted."""
        if self._idle:
            return next(iter(self._idle)), None
        while self._last:
            soon, name = self._last[0]
            if name in self._evictable and self.next(name) == -soon:
                return name, -soon
            heapq.heappop(self._last)
        return None

    def _changed(self, name: str) -> None:
        """Put an evictable page where its next use belongs. Its former entry in the heap stays, outdated."""
        if name not in self._evictable:
            return
        self._idle.pop(name, None)
        step = self.next(name)
        if step is None:
            self._idle[name] = None
            return
        if len(self._last) > 64 + 4 * len(self._evictable):  # mostly outdated entries
            self._last = [(-soon, one) for one in self._evictable if (soon := self.next(one)) is not None]
            heapq.heapify(self._last)
        else:
            heapq.heappush(self._last, (-step, name))


Count = Callable[[str, int], None]
Sets = Callable[[], Sequence[ObjectSet]]

OWN_WAIT_S = 60.0
"""Longest wait for a page that another thread is fetching."""


class MemoryPages:
    """One loader's pages. Thread-safe. Keeps at most `limit_bytes`, including pages being fetched.

    A fixed share of the pages stays (`keep_share`). In the room that is left, if `by_need`, pages whose next use is
    known take the place of pages with a later use.

    count(name, amount) receives cache_hits and cache_misses (pages), cache_written_bytes and cache_evicted (pages).
    """

    peers = 0
    """Nodes that keep pages for each other: none."""

    def __init__(self, spec: PageMemory, count: Count) -> None:
        self.page_bytes = spec.page_bytes
        self.limit_bytes = spec.limit_bytes
        self.count = count
        self._pages: dict[str, memoryview] = {}
        self._coming: dict[str, tuple[int, int]] = {}  # page -> (nonce, bytes reserved for it)
        self._taken_bytes = 0
        self._uses = NextUses()
        self._changed = Condition()
        self._nonces = itertools.count()
        self._by_need = True
        self._sets: Sets = tuple
        self._is_share_set = True  # False from `keep_share` to the first claim
        self._share = FixedShare()
        self._share_bytes = 0
        self._share_taken_bytes = 0
        self._in_share: set[str] = set()  # pages, also those being fetched

    @property
    def taken_bytes(self) -> int:
        return self._taken_bytes

    def keep_share(self, nbytes: int, sets: Sets, *, by_need: bool) -> None:
        """Keep a fixed share of the pages of these objects, `nbytes` in all.

        by_need: other pages are kept for their next use; otherwise not at all.
        """
        self._share_bytes = nbytes
        self._sets = sets
        self._is_share_set = False  # the first claim loads the lists of objects
        self._by_need = by_need

    def read(
        self,
        name: str,
        cuts: Sequence[slice],
        *,
        claim: int | None = None,
        wait_s: float | None = None,
    ) -> Answer:
        """Return a page's bytes, one uncopied view per cut, or a claim, or why there is neither."""
        # Without the lock: a page that is here costs one look-up.
        data = self._pages.get(name)
        may_claim_or_wait = claim is not None or wait_s is not None
        if data is None and may_claim_or_wait:
            answer = self._wait_or_claim(name, claim, wait_s)
            if answer is not None:
                return answer
            data = self._pages.get(name)
        if data is None:
            if name in self._coming:
                return Absence.COMING
            data = self._pages.get(name)  # a thread may have put it between the two look-ups above
        if data is None:
            return Absence.NOT_KEPT
        if not cuts:
            return []
        if len(data) < self.page_bytes and any(cut.stop > len(data) for cut in cuts):
            return Absence.NOT_KEPT  # its object ends before a cut
        self.count("cache_hits", 1)
        return [data[cut] for cut in cuts]

    def read_all(self, questions: Sequence[PageQuestion]) -> list[Answer]:
        return [self.read(name, cuts, claim=claim) for name, cuts, claim in questions]

    def read_present(self, questions: Sequence[PageQuestion]) -> list[Answer]:
        return self.read_all(questions)

    def put(self, name: str, nonce: Hashable, data: bytes) -> None:
        """See `PageCache.put`. Pages of the fixed share have no next use: nothing evicts them."""
        with self._changed:
            reserved = self._coming.get(name)
            if reserved is None:
                return
            reserved_nonce, reserved_bytes = reserved
            if reserved_nonce != nonce:
                return
            del self._coming[name]
            self._pages[name] = memoryview(data)
            unused_bytes = reserved_bytes - len(data)
            self._taken_bytes -= unused_bytes
            if name in self._in_share:
                self._share_taken_bytes -= unused_bytes
            else:
                self._uses.allow_eviction(name)
            self._changed.notify_all()
        self.count("cache_written_bytes", len(data))

    def release(self, name: str, nonce: Hashable) -> None:
        with self._changed:
            reserved = self._coming.get(name)
            if reserved is None:
                return
            reserved_nonce, reserved_bytes = reserved
            if reserved_nonce != nonce:
                return
            del self._coming[name]
            self._free(name, reserved_bytes)
            self._changed.notify_all()

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

    def beat(self) -> None: ...

    def begin_epoch(self) -> None: ...

    def close(self) -> None:
        with self._changed:
            for name in list(self._pages):
                self._drop(name)

    def _wait_or_claim(self, name: str, claim: int | None, wait_s: float | None) -> Answer | None:
        """Wait for a page that is coming, or claim it; None if it came meanwhile."""
        if claim is not None:
            self._load_share()
        with self._changed:
            if name in self._coming:
                if wait_s is None:
                    return Absence.COMING
                self._changed.wait_for(lambda: name not in self._coming, OWN_WAIT_S)
            if name in self._pages or claim is None:
                return None
            if name in self._coming:
                return Absence.COMING
            absence = self._make_room(name, claim)
            if absence is not None:
                return absence
            nonce = next(self._nonces)
            self._coming[name] = (nonce, claim)
            self._taken_bytes += claim
            return Grant(nonce)

    def _load_share(self) -> None:
        """Set the share before the first claim."""
        if self._is_share_set:
            return
        with self._changed:
            if not self._is_share_set:
                bodies = [objects.body for objects in self._sets()]
                self._share.set_share(self._share_bytes, pages_bytes(bodies, self.page_bytes, 0))
            self._is_share_set = True

    def _make_room(self, name: str, nbytes: int) -> Absence | None:
        """Make room for a page; None if there is room."""
        fits_share = self._share_taken_bytes + nbytes <= self._share_bytes
        if fits_share and self._share.takes(page_rank(name)):
            # Pages that are kept for their next use may be in the way.
            if self._evict(name, nbytes):
                self._in_share.add(name)
                self._share_taken_bytes += nbytes
                return None
            return Absence.NO_ROOM
        if not self._by_need:
            return Absence.NOT_KEPT
        return None if self._evict(name, nbytes) else Absence.NO_ROOM

    def _evict(self, name: str, nbytes: int) -> bool:
        """Make room for a page by dropping pages with a later use. Return False if too few have one."""
        next_use = self._uses.next(name)
        while self._taken_bytes + nbytes > self.limit_bytes:
            last = self._uses.last()
            if last is None or next_use is None:
                return False
            last_name, last_use = last
            if last_use is not None and last_use <= next_use:
                return False
            self._drop(last_name)
            self.count("cache_evicted", 1)
        return True

    def _drop(self, name: str) -> None:
        """Delete a page, if it is in memory. The caller has the lock."""
        data = self._pages.pop(name, None)
        if data is not None:
            self._free(name, len(data))
            self._uses.drop(name)

    def _free(self, name: str, nbytes: int) -> None:
        """Free the room of a page that was in memory or claimed."""
        self._taken_bytes -= nbytes
        if name in self._in_share:
            self._in_share.discard(name)
            self._share_taken_bytes -= nbytes
