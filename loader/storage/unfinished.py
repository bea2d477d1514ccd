"""What writers have not finished: of a folder of this machine, where no listing shows it, and no key names it.

Buckets have uploads that were never ended, which their own APIs list (`penstock doctor`, `penstock takedown`).
"""

from collections.abc import Iterator, Sequence

from .keys import TEMPORARY
from .local import LocalStore
from .store import ObjectInfo, Store


def is_unfinished(path: str) -> bool:
    """Whether the file of this path is one that a writer has not finished."""
    return path.rpartition("/")[2].startswith(TEMPORARY)


def list_with_unfinished(store: Store, prefix: str) -> Iterator[ObjectInfo]:
    """The objects of a store in key order, and in a folder the files that writers have not finished. Raises: as
    `Store.list`."""
    return store.list_with_unfinished(prefix) if isinstance(store, LocalStore) else store.list(prefix)


def delete_with_unfinished(store: Store, paths: Sequence[str]) -> None:
    """Delete what `list_with_unfinished` named. Raises: as `Store.delete_many`, which stops where it may."""
    if not isinstance(store, LocalStore):
        store.delete_many(paths)
        return
    store.delete_many(path for path in paths if not is_unfinished(path))
    for path in filter(is_unfinished, paths):
        store.delete_unfinished(path)
