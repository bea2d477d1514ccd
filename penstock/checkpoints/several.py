"""The same call for many items, some at once, with no more of them in memory than are at work."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import TypeVar

from loader.storage.threads import DaemonPool

AT_ONCE = 4
"""Parts in flight per process: with parts of 64 MiB, 256 MiB of memory. More gain little where every rank does it."""

T = TypeVar("T")
R = TypeVar("R")


def several(
    call: Callable[[T], R], items: Iterable[T], *, at_once: int = AT_ONCE
) -> Generator[R, None, None]:
    """What the call gives for each item, in order. An error of one is raised in its turn: the rest is not begun, and
    what is at work is waited for, as it may be filling memory that whoever catches the error uses next."""
    pool = DaemonPool(at_once, "penstock-checkpoint")
    going: deque[Future[R]] = deque()
    try:
        for item in items:
            if len(going) == at_once:
                yield going.popleft().result()
            going.append(pool.submit(copy_context().run, partial(call, item)))
        while going:
            yield going.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
