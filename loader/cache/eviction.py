"""Eviction at the limit, and the hints of running loaders that it respects.

Pages without a known need go first, least recently used first; then the pages needed last. Each running loader writes
its next needs to a hint: one small file of page names (20 bytes each) by next use. A hint expires by age, not by
process id: containers do not see each other's processes.
"""

import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

from .folder import file_mode
from .pages import NAME_BYTES, write_whole

ABANDONED_S = 60.0
"""Age in seconds of abandoned files in `writing/` or `claims/`; a page is written in milliseconds."""
VICTIMS_AT_ONCE = 2**16
"""Bounds the memory of a round: about 20 MB of names."""
HINT_PAGES = 4096
"""Names in a hint at most: 80 KiB, 4 GiB of pages."""
BEAT_S = 10.0
DEAD_S = 60.0
"""The age at which a hint's loader counts as gone."""


class PageFile(NamedTuple):
    """One file of `pages/` as a scan found it."""

    name: str
    """Name of the page."""
    path: str
    """Path of the file."""
    nbytes: int
    """Size of the file."""
    used_ns: int
    """Time of its last use, in ns since 1970."""


class Swept(NamedTuple):
    """The result of a sweep."""

    held_bytes: int
    """Bytes that are there after it."""
    evicted: int
    """Pages deleted."""
    refused: int
    """Files that could not be deleted."""


def held_bytes(folder: str) -> int:
    """Return the bytes of a cache's pages and unfinished files together. O(pages)."""
    unfinished = sum(status.st_size for _, status in _files(os.path.join(folder, "writing")))
    return unfinished + sum(page.nbytes for page in scan(folder))


def scan(folder: str) -> Iterator[PageFile]:
    """Yield every page of a cache. Raises: OSError."""
    pages = os.path.join(folder, "pages")
    for shelf in sorted(os.listdir(pages)):
        for entry, status in _files(os.path.join(pages, shelf)):
            yield PageFile(entry.name, entry.path, status.st_size, status.st_atime_ns)


def sweep(folder: str, high_bytes: int, low_bytes: int, needed: Mapping[str, int]) -> Swept:
    """Bring a cache above `high_bytes` down to `low_bytes`. needed: page -> how soon it is used.

    Abandoned files always go. O(pages) per round, usually one. Raises: OSError.
    """
    for sub in ("writing", "claims"):
        _remove_abandoned(os.path.join(folder, sub))
    held, evicted, refused = held_bytes(folder), 0, 0
    if held <= high_bytes:
        return Swept(held, 0, 0)

    def order(page: PageFile) -> tuple[bool, int]:
        soon = needed.get(page.name)
        return (False, page.used_ns) if soon is None else (True, -soon)

    while held > low_bytes:
        before = held
        for page in nsmallest(VICTIMS_AT_ONCE, scan(folder), key=order):
            if held <= low_bytes:
                break
            try:
                os.unlink(page.path)
                evicted += 1
            except FileNotFoundError:
                pass  # another process, which sweeps too, took it away
            except OSError:
                refused += 1
                continue
            held -= page.nbytes
        if held == before:
            break
    return Swept(held_bytes(folder), evicted, refused)


def _files(folder: str) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                yield entry, entry.stat(follow_symlinks=False)


def _remove_abandoned(folder: str) -> None:
    now_s = time.time()
    for entry, status in list(_files(folder)):
        if now_s - status.st_mtime > ABANDONED_S:
            with suppress(OSError):
                os.unlink(entry.path)


class Hints:
    """The hint of one loader, and the hints of the others. Methods raise OSError."""

    def __init__(self, folder: str, *, shared: bool = False) -> None:
        self._mode = file_mode(shared)
        self._folder, self._writing = os.path.join(folder, "hints"), os.path.join(folder, "writing")
        self._own = os.path.join(self._folder, secrets.token_hex(8))

    def write(self, names: Iterable[str]) -> None:
        """Write the pages needed next, soonest first; none: only that there is a reader."""
        write_whole(
            self._writing, self._own, self._mode, b"".join(map(bytes.fromhex, islice(names, HINT_PAGES)))
        )

    def withdraw(self) -> None:
        """Need nothing any more."""
        with suppress(FileNotFoundError):
            os.unlink(self._own)

    def read(self) -> tuple[int, dict[str, int]]:
        """Return (live loaders, page -> rank of its first need, from 0). Dead hints are removed."""
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
