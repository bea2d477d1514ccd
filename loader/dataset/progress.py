"""How whoever calls watches long work: `penstock` draws a progress line, the loader itself shows nothing."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")


class Watch(Protocol):
    """Yields the items, and may say how much of `total` is done."""

    def __call__(
        self, items: Iterable[T], what: str, size: Callable[[T], int], total: Callable[[], int]
    ) -> Iterator[T]:
        """what: to call the work. size: of an item; total: of all, in the same unit, found out where it is shown."""


def unwatched(
    items: Iterable[T], what: str, size: Callable[[T], int], total: Callable[[], int]
) -> Iterator[T]:
    """Yield the items."""
    yield from items
