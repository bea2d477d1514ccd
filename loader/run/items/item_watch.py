"""Name an item that takes long while it is being made: one that hangs returns nothing that could be measured."""

import logging
import threading
import weakref
from collections.abc import Callable
from time import monotonic

from ...storage.threads import AwaitedThread, Signal, ends_with_the_process

SLOW_S = 60.0
"""Seconds after which an item is named, once."""

logger = logging.getLogger(__name__)

Report = Callable[[str, int, float], None]
"""Function of a source's name, an ordinal and seconds."""


def log_slow_item(
    source: str,
    ordinal: int,
    seconds: float,
) -> None:
    logger.warning(
        "source %r: item %d has not returned for %.0f s; look at its file, its store or its locks",
        source,
        ordinal,
        seconds,
    )


report: Report = log_slow_item
"""Logs a slow item here; a worker process replaces it, and sends the item to the trainer."""


class CurrentItem:
    """The item that is being made."""

    __slots__ = ("__weakref__", "ordinal")

    def __init__(self) -> None:
        self.ordinal: tuple[int] | None = None
        """A new tuple for each item, so that another call for the same item differs; None between batches."""


class ItemWatch:
    """Watches one source's items from a thread, which starts at the first batch."""

    def __init__(self, source: str) -> None:
        self.current = CurrentItem()
        self._source = source
        self._ended = Signal()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread unless it runs."""
        if self._thread is not None:
            return
        self._ended = Signal()
        # The thread refers to the current item and the signal only: a watch that is dropped ends it.
        weakref.finalize(self, self._ended.set).atexit = False
        ends_with_the_process(self)
        self._thread = AwaitedThread(
            _watch, (self._source, self.current, self._ended), name="penstock-item-watch"
        )
        self._thread.start()

    def end(self) -> None:
        """End the thread; `start` begins another."""
        self.dismiss()
        self.join()
        self._thread = None

    def dismiss(self) -> None:
        self._ended.set()

    def join(self, timeout_s: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)


def _watch(
    source: str,
    current: CurrentItem,
    ended: Signal,
) -> None:
    item: tuple[int] | None = None
    since_s = monotonic()
    is_reported = False
    while not ended.wait(SLOW_S / 4):
        if current.ordinal is not item:
            item = current.ordinal
            since_s = monotonic()
            is_reported = False
            continue
        seconds = monotonic() - since_s
        if item is not None and not is_reported and seconds >= SLOW_S:
            is_reported = True
            report(source, item[0], seconds)
