"""Open a node cache: claims, eviction and page access. Disk faults never reach a batch.

Eviction removes pages without a known need first, least recently used first, then the pages needed last. Each running
loader writes its needs to a hint: one small file of page names (20 bytes each), by next use. A killed owner's claim
costs a wait, and fetching a page twice is harmless.
"""

import logging
import os
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

from ..dataset.reading.read_faults import add_fault
from ..dataset.search import CODE_FOLDER
from ..errors import PenstockError
from .pages import HEADER_BYTES, NAME_BYTES, BadPage, Identity, Pages, file_mode, make_place, write_whole
from .spec import PAGES_MIN, NodeCache

ABANDONED_S = 60.0
"""Age in seconds at which files in `writing/` or `claims/` are abandoned."""
VICTIMS_AT_ONCE = 2**16
_UNFINISHED = re.compile(r"\.[0-9a-f]{8}$")
HINT_PAGES = 4096
"""Most names in a hint: 80 KiB, 4 GiB of pages."""
BEAT_S = 10.0
DEAD_S = 60.0
"""Age in seconds at which a hint expires."""


class PageFile(NamedTuple):
    """One file in `pages/`, or a file of codes in `search/`, as scanned."""

    name: str
    path: str
    nbytes: int
    """File size."""
    used_ns: int
    """Time of last use, in ns since 1970."""


class CacheSweep(NamedTuple):
    held_bytes: int
    """Bytes that remain after the sweep."""
    evicted: int
    """Pages deleted."""
    refused: int
    """Files that could not be deleted."""


def held_bytes(folder: str) -> int:
    """Return the total bytes of a cache's pages, codes and unfinished files. O(pages)."""
    unfinished = sum(status.st_size for _, status in _files(os.path.join(folder, "writing")))
    return unfinished + sum(page.nbytes for page in scan(folder))


def scan(folder: str) -> Iterator[PageFile]:
    pages = os.path.join(folder, "pages")
    for shelf in sorted(os.listdir(pages)):
        for entry, status in _files(os.path.join(pages, shelf)):
            yield PageFile(entry.name, entry.path, status.st_size, status.st_atime_ns)
    with suppress(FileNotFoundError):  # without a search
        for entry, status in _files(os.path.join(folder, CODE_FOLDER)):
            # A search writes a file under another name first, in less time.
            is_unfinished = time.time() - status.st_mtime < ABANDONED_S and _UNFINISHED.search(entry.name)
            if not is_unfinished:
                yield PageFile(entry.name, entry.path, status.st_size, status.st_atime_ns)


def sweep(folder: str, high_bytes: int, low_bytes: int, needed: Mapping[str, int]) -> CacheSweep:
    """Reduce a cache above `high_bytes` to `low_bytes`. needed: page -> rank of its next use.

    Abandoned files are always deleted. O(pages) per round, usually one. Raises: OSError.
    """
    for sub in ("writing", "claims"):
        _remove_abandoned(os.path.join(folder, sub))
    held, evicted, refused = held_bytes(folder), 0, 0
    if held <= high_bytes:
        return CacheSweep(held, 0, 0)

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
                pass  # another sweeping process deleted it
            except OSError:
                refused += 1
                continue
            held -= page.nbytes
        if held == before:
            break
    return CacheSweep(held_bytes(folder), evicted, refused)


def _files(folder: str) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                yield entry, entry.stat(follow_symlinks=False)


def _remove_abandoned(folder: str) -> None:
    now_s = time.time()
    for entry, status in list(_files(folder)):
        # A file of the future was written before the clock was set back.
        if abs(now_s - status.st_mtime) > ABANDONED_S:
            with suppress(OSError):
                os.unlink(entry.path)


class Hints:
    """One loader's hint, and access to other loaders' hints. Methods raise OSError."""

    def __init__(self, folder: str, *, shared: bool = False) -> None:
        self._mode = file_mode(shared)
        self._folder, self._writing = os.path.join(folder, "hints"), os.path.join(folder, "writing")
        self._own = os.path.join(self._folder, secrets.token_hex(8))

    def write(self, names: Iterable[str]) -> None:
        """Write the pages needed next, soonest first. No names: only shows that the loader runs."""
        write_whole(
            self._writing, self._own, self._mode, b"".join(map(bytes.fromhex, islice(names, HINT_PAGES)))
        )

    def withdraw(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._own)

    def read(self) -> tuple[int, dict[str, int]]:
        alive, needed = 0, dict[str, int]()
        now_s = time.time()
        for entry in list(os.scandir(self._folder)):
            with suppress(FileNotFoundError):
                # A file of the future was written before the clock was set back.
                age_s = abs(now_s - entry.stat().st_mtime)
                if age_s > DEAD_S:
                    os.unlink(entry.path)
                    continue
                with open(entry.path, "rb") as file:
                    names = file.read(HINT_PAGES * NAME_BYTES).hex()
                alive += 1
                for soon, at in enumerate(range(0, len(names), 2 * NAME_BYTES)):
                    name = names[at : at + 2 * NAME_BYTES]
                    needed[name] = min(soon, needed.get(name, soon))
        return alive, needed


CLAIM_S = 5.0
"""Seconds for which a claim is valid: far longer than a range read."""
POLL_S = 0.005


class Claims:
    """The claims of one cache folder. Methods raise OSError."""

    def __init__(self, folder: str, *, shared: bool = False) -> None:
        self._mode = file_mode(shared)
        self._folder = os.path.join(folder, "claims")

    def take(self, name: str) -> bool:
        path = os.path.join(self._folder, name)
        for _ in range(2):
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._mode))
                return True
            age_s = self._age_s(name)
            if age_s is None:
                continue
            if 0 <= age_s < CLAIM_S:
                return False
            self.release(name)
        return False

    def is_taken(self, name: str) -> bool:
        age_s = self._age_s(name)
        return age_s is not None and 0 <= age_s < CLAIM_S

    def release(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self._folder, name))

    def wait(self, name: str, arrived: Callable[[], bool]) -> None:
        """Wait until the page has arrived, or its claim is released or expired."""
        path, deadline_s = os.path.join(self._folder, name), time.monotonic() + CLAIM_S
        while not arrived() and os.path.exists(path) and time.monotonic() < deadline_s:
            time.sleep(POLL_S)

    def _age_s(self, name: str) -> float | None:
        try:
            return time.time() - os.stat(os.path.join(self._folder, name)).st_mtime
        except FileNotFoundError:
            return None


logger = logging.getLogger(__name__)

VERIFIED_PAGES = 2**16

PAUSE_S = 30.0
"""Seconds without writes after a failed one: whole pages could not be kept."""

Count = Callable[[str, int], None]


class OpenCache:
    """One loader's access to a node cache. Thread-safe. Pages are named by `pages.page_name`.

    count(name, amount) receives cache_hits and cache_misses (pages), cache_written_bytes, cache_evicted (pages),
    cache_corrupt (pages with wrong bytes) and cache_failed (disk faults). Raises: InvalidRuntime if the folder may not
    be a cache.
    """

    def __init__(self, spec: NodeCache, count: Count) -> None:
        folder = str(spec.path)
        self.page_bytes, self._folder, self.count = spec.page_bytes, folder, count
        shared = spec.shared
        self._pages, self._claims = Pages(folder, shared=shared), Claims(folder, shared=shared)
        self._hints = Hints(folder, shared=shared)
        self._verified: OrderedDict[str, Identity] = OrderedDict()
        self._lock, self._sweeping = threading.Lock(), threading.Lock()
        self._warned: set[str] = set()
        self.limit_bytes, self._may_write = spec.limit_bytes, 0
        self._pressed, self._next_beat_s, self._paused_until_s = False, 0.0, 0.0
        try:
            make_place(folder, shared=shared)
        except OSError as error:
            self._failed("open", error)
        if self.limit_bytes is None:
            with self._contained("open"):
                self.limit_bytes = _half_of_free(folder)
        self.beat(tuple)
        with self._contained("evict"):
            self._sweep()

    @property
    def takes_pages(self) -> bool:
        return time.monotonic() >= self._paused_until_s

    def read(self, name: str, cuts: Sequence[slice]) -> list[bytes] | None:
        """Return a page's bytes, one object per cut; None if the page is missing or corrupt."""
        with self._lock:
            verified = self._verified.get(name)
        try:
            page = self._pages.read(name, cuts, verified)
        except BadPage as error:
            self.count("cache_corrupt", 1)
            if error.checksums is not None:
                add_fault("cache page", self._folder, name, (0, self.page_bytes), *error.checksums)
            self._warn("corrupt", f"{error}; it is thrown away and read again. Check the disk")
            self.discard(name)
            return None
        except OSError as error:
            self._failed("read", error)
            return None
        if page is None:
            return None
        with self._lock:
            self._verified[name] = page[1]
            if len(self._verified) > VERIFIED_PAGES:
                self._verified.popitem(last=False)
        self.count("cache_hits", 1)
        return page[0]

    def write(self, name: str, data: bytes) -> None:
        with self._contained("write"):
            nbytes = HEADER_BYTES + len(data)
            if self._has_room(nbytes):
                self._pages.write(name, data)
                self.count("cache_written_bytes", nbytes)

    def discard(self, name: str) -> None:
        with self._contained("discard"):
            self._pages.discard(name)

    def has(self, name: str) -> bool:
        return self._pages.exists(name)

    def claim(self, name: str, nbytes: int) -> bool:
        """Claim a page; return whether the caller should fetch it. False if another reader has claimed it."""
        try:
            return self._claims.take(name)
        except OSError as error:
            self._failed("claim", error)
            return True

    def release(self, name: str) -> None:
        with self._contained("claim"):
            self._claims.release(name)

    def is_coming(self, name: str) -> bool:
        try:
            return self._claims.is_taken(name)
        except OSError as error:
            self._failed("claim", error)
            return False

    def wait(self, name: str) -> None:
        with self._contained("claim"):
            self._claims.wait(name, lambda: self._pages.exists(name))

    def beat(self, needed: Callable[[], Iterable[str]]) -> None:
        """Write a hint every `BEAT_S` seconds, which shows that this loader runs.

        needed: returns the next pages, soonest first.
        """
        now_s = time.monotonic()
        with self._lock:
            if now_s < self._next_beat_s:
                return
            self._next_beat_s = now_s + BEAT_S
        with self._contained("hint"):
            self._hints.write(needed() if self._pressed else ())

    def close(self) -> None:
        with self._contained("hint"):
            self._hints.withdraw()

    def _has_room(self, nbytes: int) -> bool:
        with self._sweeping:  # other threads wait: otherwise their writes meanwhile would be unlimited
            if nbytes > self._may_write:
                self._sweep()
            if nbytes > self._may_write:
                self._pause()
                return False
            self._may_write -= nbytes
            return True

    def _pause(self) -> None:
        self._paused_until_s = time.monotonic() + PAUSE_S

    def _sweep(self) -> None:
        """Evict if all running loaders could exceed the limit, and set how much this loader may write."""
        if self.limit_bytes is None:
            return  # free space is unknown
        alive, needed = self._hints.read()
        eighth = self.limit_bytes // PAGES_MIN
        share = max(eighth // max(alive, 1), self.page_bytes + HEADER_BYTES)
        high = max(0, self.limit_bytes - share * max(alive, 1))
        swept = sweep(self._folder, high, max(0, high - eighth), needed)
        self.count("cache_evicted", swept.evicted)
        self._may_write = min(max(0, self.limit_bytes - swept.held_bytes), share)
        self._pressed = 2 * swept.held_bytes > self.limit_bytes
        if swept.refused:
            self.count("cache_failed", swept.refused)
            self._warn(
                "evict", f"{swept.refused} pages cannot be deleted (another user's?); they count, and stay"
            )

    @contextmanager
    def _contained(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, PenstockError) as error:  # PenstockError: from computing the next needs
            self._failed(what, error)

    def _failed(self, what: str, error: Exception) -> None:
        self.count("cache_failed", 1)
        if what in ("open", "write", "evict"):
            self._pause()
        self._warn(what, f"cannot {what}: {error}; reads go to the origin. Check the disk and its space")

    def _warn(self, what: str, text: str) -> None:
        with self._lock:
            if what in self._warned:
                return
            self._warned.add(what)
        logger.warning("node cache %s: %s (said once; metrics() counts)", self._folder, text)


def _half_of_free(folder: str) -> int:
    disk = os.statvfs(folder)
    return (disk.f_bavail * disk.f_frsize + held_bytes(folder)) // 2
