"""Listings for decisions that rest on an object's absence."""

from loader.storage import ObjectInfo, Store


def listed_twice(store: Store, prefix: str) -> list[ObjectInfo]:
    """Return the objects that either of two listings shows, by key: an absence from one of them decides nothing.

    Raises: StoreError.
    """
    infos = {info.key: info for _ in range(2) for info in store.list(prefix)}
    return [infos[key] for key in sorted(infos)]
