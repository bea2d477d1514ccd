"""Order of eviction by next use: the page needed last goes first (Belady's rule, optimal for a known future).

Pages without a known use go before these, least recently used first.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable


class NextUses:
    """The known uses of pages, by name, and which are kept. Not thread-safe. O(log held) per use."""

    def __init__(self) -> None:
        self._steps: dict[str, deque[int]] = {}
        self._of_step: dict[int, tuple[str, ...]] = {}
        self._held: set[str] = set()
        self._idle: OrderedDict[str, None] = OrderedDict()  # held, without a known use
        self._last: list[
            tuple[int, str]
        ] = []  # a heap of (-next use, page); entries that are no longer so stay

    def add(self, step: int, names: Iterable[str]) -> None:
        """Note that these pages are needed at `step`, later than all steps before."""
        self._of_step[step] = tuple(dict.fromkeys(names))
        for name in self._of_step[step]:
            steps = self._steps.setdefault(name, deque())
            steps.append(step)
            if len(steps) == 1:
                self._changed(name)

    def passed(self, step: int) -> None:
        """Say that every step before this one has got its pages."""
        while self._of_step and (first := next(iter(self._of_step))) < step:
            for name in self._of_step.pop(first):
                steps = self._steps[name]
                steps.popleft()
                if not steps:
                    del self._steps[name]
                self._changed(name)

    def forget(self) -> None:
        """Forget all uses: the order goes on elsewhere."""
        self._steps.clear()
        self._of_step.clear()
        self._last.clear()
        self._idle = OrderedDict.fromkeys(self._held)

    def next(self, name: str) -> int | None:
        """Return the first step that needs a page; None where no use is known."""
        steps = self._steps.get(name)
        return steps[0] if steps else None

    def hold(self, name: str) -> None:
        """Hold a page from now on."""
        self._held.add(name)
        self._changed(name)

    def drop(self, name: str) -> None:
        """Hold a page no longer."""
        self._held.discard(name)
        self._idle.pop(name, None)

    def last(self) -> tuple[str, int | None] | None:
        """Return (page to evict first, its next use); None if none is held."""
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
        if len(self._last) > 64 + 4 * len(self._held):  # mostly entries that are no longer so
            self._last = [(-soon, one) for one in self._held if (soon := self.next(one)) is not None]
            heapq.heapify(self._last)
        else:
            heapq.heappush(self._last, (-step, name))
