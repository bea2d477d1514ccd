"""Progress of long work for its caller: `penstock` draws a progress line, the loader itself shows nothing."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")


class Watch(Protocol):
    """A function that yields the items, and may tell how much of `total` is done."""

    def __call__(
        self, items: Iterable[T], what: str, size: Callable[[T], int], total: Callable[[], int]
    ) -> Iterator[T]:
        """Yield the items.

        what: name of the work.
        size: size of an item; total: size of all, in the same unit, called when shown.
        """


def unwatched(
    items: Iterable[T], what: str, size: Callable[[T], int], total: Callable[[], int]
) -> Iterator[T]:
    """Yield the items."""
    yield from items
