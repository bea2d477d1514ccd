"""A progress line on a terminal."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")
WIDTH = 30


def progress(
    items: Iterable[T],
    what: str,
    size: Callable[[T], int] = lambda _: 1,
    total: int | Callable[[], int] | None = None,
) -> Iterator[T]:
    """Yield the items, and show the finished share of `total` (default: their number) and the remaining time.

    size: an item's amount. total: a function if it is costly; called only on a terminal.
    """
    # A log would get a line per item.
    if not sys.stderr.isatty():
        yield from items
        return
    if total is None:
        total = 0
        if isinstance(items, Sized):
            total = len(items)
    elif callable(total):
        total = total()
    start = time.monotonic()
    done = 0
    shown = 0.0
    for item in items:
        yield item
        done += size(item)
        now = time.monotonic()
        # A line on a terminal may take longer than an item.
        if now - shown > 0.1 or done >= total:
            shown = now
            share = 1.0
            if total:
                share = min(done / total, 1.0)
            remaining_s = 0.0
            if share:
                remaining_s = (now - start) * (1 - share) / share
            bar = "#" * int(WIDTH * share) + "-" * (WIDTH - int(WIDTH * share))
            print(
                f"\r{what} [{bar}] {share:4.0%} {remaining_s:5.0f} s left ",
                end="",
                file=sys.stderr,
                flush=True,
            )
    print("\r" + " " * (WIDTH + len(what) + 24) + "\r", end="", file=sys.stderr, flush=True)
