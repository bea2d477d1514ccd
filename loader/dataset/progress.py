"""Progress of long work: `penstock` draws a line, the loader itself shows nothing."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")


class Watch(Protocol):
    """A function that yields the items and may report progress."""

    def __call__(
        self, items: Iterable[T], what: str, size: Callable[[T], int], total: Callable[[], int]
    ) -> Iterator[T]:
        """Yield the items. what: name of the work. size: of an item; total: of all, called when shown."""


def unwatched(
    items: Iterable[T], what: str, size: Callable[[T], int], total: Callable[[], int]
) -> Iterator[T]:
    """Yield the items."""
    yield from items
