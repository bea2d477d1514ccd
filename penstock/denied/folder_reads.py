"""Read the small objects of a folder, several at once."""

from collections.abc import Iterator

from loader.storage import Store
from loader.storage.threads import DaemonPool

AT_ONCE = 32


def read_folder(store: Store, folder: str) -> Iterator[tuple[str, bytes]]:
    """Yield (path, data) of each object, in order of path. Holds at most 32 objects. Raises: StoreError."""
    paths = [info.key for info in store.list(folder)]

    def read(path: str) -> bytes:
        return store.get(path).data

    with DaemonPool(AT_ONCE, "penstock-takedown") as pool:
        for first in range(0, len(paths), AT_ONCE):
            block = paths[first : first + AT_ONCE]
            yield from zip(block, pool.map(read, block), strict=True)
