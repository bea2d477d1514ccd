"""The pages that the running loaders need next: one small file per loader, replaced as a whole, dead by its age.

A file is the names of pages (20 bytes each) in the order of their next use. Process ids would not do: the jobs of a
node may live in containers that do not see each other.
"""

import os
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice

from .folder import file_mode
from .pages import NAME_BYTES, write_whole

HINT_PAGES = 4096
"""Names in a hint at most: 80 KiB, 4 GiB of pages."""
BEAT_S = 10.0
"""Seconds from one hint of a loader to the next."""
DEAD_S = 60.0
"""The age at which a hint's loader counts as gone."""


class Hints:
    """One loader's hint, and those of the others. Methods raise OSError."""

    def __init__(self, folder: str, *, shared: bool = False) -> None:
        self._mode = file_mode(shared)
        self._folder, self._writing = os.path.join(folder, "hints"), os.path.join(folder, "writing")
        self._mine = os.path.join(self._folder, secrets.token_hex(8))

    def write(self, names: Iterable[str]) -> None:
        """Write the pages that are needed next, the soonest first; without names: only that there is a reader."""
        write_whole(
            self._writing, self._mine, self._mode, b"".join(map(bytes.fromhex, islice(names, HINT_PAGES)))
        )

    def withdraw(self) -> None:
        """Need nothing any more."""
        with suppress(FileNotFoundError):
            os.unlink(self._mine)

    def read(self) -> tuple[int, dict[str, int]]:
        """Return (loaders alive, page -> rank of its first need, 0 the soonest). Dead hints are removed."""
        alive, needed = 0, dict[str, int]()
        now_s = time.time()
        for entry in list(os.scandir(self._folder)):
            with suppress(FileNotFoundError):
                if now_s - entry.stat().st_mtime > DEAD_S:
                    os.unlink(entry.path)
                    continue
                with open(entry.path, "rb") as file:
                    names = file.read(HINT_PAGES * NAME_BYTES).hex()
                alive += 1
                for soon, at in enumerate(range(0, len(names), 2 * NAME_BYTES)):
                    name = names[at : at + 2 * NAME_BYTES]
                    needed[name] = min(soon, needed.get(name, soon))
        return alive, needed
