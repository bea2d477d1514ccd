"""A scratch prefix of the store, or a scratch folder, that is one examination's own."""

import os
import secrets
import shutil
from contextlib import suppress

from loader.dataset.log.marker import PROBES
from loader.storage import Store
from loader.storage.store import TEMPORARY


class Folder:
    """A fresh folder of the probes' own inside the store's.

    At the end it goes, with the folders that had to be made above it. disk: a folder in it that the store does not
    list.
    """

    def __init__(self, root: str, prefix: str) -> None:
        """Make the folder. Raises: OSError."""
        self.path = self._there = os.path.join(root, prefix.rstrip("/"))
        self.disk = os.path.join(self.path, f"{TEMPORARY}disk")
        while not os.path.isdir(self._there):
            self._there = os.path.dirname(self._there)
        os.makedirs(self.disk)

    def remove(self) -> None:
        """Remove the folder with all files in it, and then empty folders up to the first that was there before."""
        shutil.rmtree(self.path, ignore_errors=True)
        above = os.path.dirname(self.path)
        with suppress(OSError):  # another process keeps something there
            while above != self._there:
                os.rmdir(above)
                above = os.path.dirname(above)


class Scratch:
    """Names keys below a fresh prefix, and deletes them all at the end.

    The prefix is one that may lie beside a root before it is made, so that a killed doctor hinders nobody else from
    making one there.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.prefix = f"{PROBES}{secrets.token_hex(8)}/"
        self._given: set[str] = set()

    def key(self, name: str) -> str:
        """Return the key of a probe's object."""
        key = self.prefix + name
        self._given.add(key)
        return key

    def remove(self) -> None:
        """Delete all objects, even unlisted ones. Raises: StoreError."""
        self.store.delete_many(sorted(self._given))
