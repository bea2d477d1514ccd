"""Listing from a key on, where a listing is long and goes on another time."""

from collections.abc import Callable, Iterator
from typing import cast

from .store import ObjectInfo, Store


def list_from(store: Store, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
    """As `Store.list`, but a bucket is asked to begin behind `start_after`: O(what is listed), not O(all before).

    Servers differ in that, so it is for callers who begin anew later or only look for what should not be there, and for
    nothing that has to be complete. Stores that have no such request list from the beginning. Raises: as `Store.list`.
    """
    seeking = cast(Callable[[str, str], Iterator[ObjectInfo]], getattr(store, "list_from", store.list))
    return seeking(prefix, start_after)
