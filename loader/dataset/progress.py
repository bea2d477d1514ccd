"""Progress of long-running work; the loader shows none."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")


class Watch(Protocol):
    def __call__(
        self, items: Iterable[T], what: str, size: Callable[[T], int], total: Callable[[], int]
    ) -> Iterator[T]:
        """Yield the items. what: name of the work. size: returns an item's size.

        total: returns the total size, called when shown.
        """


def unwatched(
    items: Iterable[T], what: str, size: Callable[[T], int], total: Callable[[], int]
) -> Iterator[T]:
    yield from items
