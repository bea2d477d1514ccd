"""A private scratch prefix of the store, or scratch folder, for one examination."""

import os
import secrets
import shutil
from contextlib import suppress

from loader.dataset.log.marker import PROBES
from loader.storage import Store
from loader.storage.store import TEMPORARY


class Folder:
    """A fresh folder inside the store's.

    It is removed at the end with new folders above it. disk: a folder in it that the store does not list.
    """

    def __init__(self, root: str, prefix: str) -> None:
        """Make the folder. Raises: OSError."""
        self.path = self._there = os.path.join(root, prefix.rstrip("/"))
        self.disk = os.path.join(self.path, f"{TEMPORARY}disk")
        while not os.path.isdir(self._there):
            self._there = os.path.dirname(self._there)
        os.makedirs(self.disk)

    def remove(self) -> None:
        """Remove the folder with all files, then new empty folders above it."""
        shutil.rmtree(self.path, ignore_errors=True)
        above = os.path.dirname(self.path)
        with suppress(OSError):  # another process keeps something there
            while above != self._there:
                os.rmdir(above)
                above = os.path.dirname(above)


class Scratch:
    """Names keys below a fresh prefix, and deletes them at the end.

    A root can be made beside the prefix, so a killed doctor blocks no writer.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.prefix = f"{PROBES}{secrets.token_hex(8)}/"
        self._keys: set[str] = set()

    def key(self, name: str) -> str:
        """Return the key of a probe's object."""
        key = self.prefix + name
        self._keys.add(key)
        return key

    def remove(self) -> None:
        """Delete all objects, also unlisted ones. Raises: StoreError."""
        self.store.delete_many(sorted(self._keys))
