"""What writers have not finished: of a folder of this machine, where no listing shows it, and no key names it.

Buckets have uploads that were never ended, which their own APIs list (`penstock doctor`, `penstock takedown`).
"""

from collections.abc import Iterable, Iterator

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


def list_in_place(store: Store, prefix: str, top: str = "") -> Iterator[tuple[ObjectInfo, bool]]:
    """For whoever deletes: what `list_with_unfinished` gives, without what lies behind a symbolic link below the folder
    `top`, and True beside each such link. Raises: as `Store.list`."""
    if isinstance(store, LocalStore):
        return store.list_in_place(prefix, top)
    return ((info, False) for info in store.list(prefix))


def delete_in_place(store: Store, paths: Iterable[str], top: str = "") -> None:
    """Delete what `list_in_place` named, but no link, and nothing behind one. Raises: InvalidStore for these; as
    `Store.delete_many`, which stops where it may."""
    if isinstance(store, LocalStore):
        store.delete_in_place(paths, top)
    else:
        store.delete_many(paths)
