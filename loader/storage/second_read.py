"""Bytes that are not those that were written: read again, of another store where several hold the same objects.

No store notices a flipped bit; whoever knows the checksum does, far above it. So what served a read is noted in the
context of it, and the next try of the same read goes elsewhere.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from ..errors import Corrupt

T = TypeVar("T")


@dataclass(slots=True)
class _Doubt:
    """Numbers of stores: those whose bytes were wrong, and those that serve the try at hand."""

    wrong: set[int] = field(default_factory=set)
    serving: set[int] = field(default_factory=set)


_doubt: ContextVar[_Doubt | None] = ContextVar("penstock_doubt", default=None)
_serving: ContextVar[set[int] | None] = ContextVar("penstock_serving", default=None)


def retry_corrupt(read: Callable[[], T], *, again: int = 1) -> T:
    """What `read` gives: it fetches bytes and raises Corrupt where they are wrong. Then it is called once more for each
    store that has not served it yet, and `again` times in any case: a bit that flipped on the way is cured so.

    Raises: Corrupt, as the last call did; whatever else `read` raises, such as Transient of a store that may have the
    right bytes.
    """
    doubt = _Doubt()
    token = _doubt.set(doubt)
    try:
        while True:
            doubt.serving.clear()
            try:
                return read()
            except Corrupt:
                if doubt.serving <= doubt.wrong:
                    again -= 1
                if again < 0:
                    raise
                doubt.wrong |= doubt.serving
    finally:
        _doubt.reset(token)


def doubted() -> frozenset[int]:
    """Numbers of the stores whose bytes were wrong, in this context."""
    doubt = _doubt.get()
    return frozenset(doubt.wrong) if doubt else frozenset()


def note(number: int) -> None:
    """A store serves a read."""
    doubt = _doubt.get()
    if doubt is not None:
        doubt.serving.add(number)
    serving = _serving.get()
    if serving is not None:
        serving.add(number)


@contextmanager
def noting_who_serves() -> Iterator[set[int]]:
    """The numbers of the stores that serve the reads of the block; none where there is one store alone."""
    serving: set[int] = set()
    token = _serving.set(serving)
    try:
        yield serving
    finally:
        _serving.reset(token)
