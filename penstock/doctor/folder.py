"""A folder of the doctor's own inside the one that is looked at."""

import os
import shutil
from contextlib import suppress

from loader.storage.keys import TEMPORARY


class Folder:
    """A fresh folder of the probes' own inside the store's, gone at the end with what had to be made above it.

    disk: a folder in it that the store does not list."""

    def __init__(self, root: str, prefix: str) -> None:
        """Raises: OSError."""
        self.path = self._there = os.path.join(root, prefix.rstrip("/"))
        self.disk = os.path.join(self.path, f"{TEMPORARY}disk")
        while not os.path.isdir(self._there):
            self._there = os.path.dirname(self._there)
        os.makedirs(self.disk)

    def remove(self) -> None:
        """The folder with all files in it, and then empty folders up to what was there before."""
        shutil.rmtree(self.path, ignore_errors=True)
        above = os.path.dirname(self.path)
        with suppress(OSError):  # somebody keeps something there
            while above != self._there:
                os.rmdir(above)
                above = os.path.dirname(above)
