"""List a store twice, before a decision that depends on an object's absence."""

from loader.storage import ObjectInfo, Store


def listed_twice(store: Store, prefix: str) -> list[ObjectInfo]:
    """Return the objects of two listings, sorted by key, because one may miss some. Raises: StoreError."""
    infos = {info.key: info for _ in range(2) for info in store.list(prefix)}
    return [infos[key] for key in sorted(infos)]
