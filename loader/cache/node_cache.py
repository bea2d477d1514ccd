"""An open node cache: counts each disk fault and warns once; no fault reaches a batch."""

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ..errors import PenstockError
from .eviction import BEAT_S, Hints, held_bytes, sweep
from .folder import file_mode, make_place
from .pages import HEADER_BYTES, BadPage, Identity, Pages
from .spec import PAGES_MIN, NodeCache

CLAIM_S = 5.0
"""Seconds for which a claim is respected: far longer than a range read."""
POLL_S = 0.005


class Claims:
    """The claims of one cache folder. Methods raise OSError."""

    def __init__(self, folder: str, *, shared: bool = False) -> None:
        self._mode = file_mode(shared)
        self._folder = os.path.join(folder, "claims")

    def take(self, name: str) -> bool:
        """Return whether the caller is to fetch this page. An old claim is replaced."""
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
        """Return whether a page has a claim that is not too old."""
        age_s = self._age_s(name)
        return age_s is not None and 0 <= age_s < CLAIM_S

    def release(self, name: str) -> None:
        """Give a claim back; one that is gone is no error."""
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self._folder, name))

    def wait(self, name: str, arrived: Callable[[], bool]) -> None:
        """Wait until the page has arrived, or its claim is gone or expired."""
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
"""Seconds without writes after the disk refused one: fetching whole pages would be in vain."""

Count = Callable[[str, int], None]


class OpenCache:
    """One loader's access to a node cache; thread-safe. Pages go by name (`pages.page_name`).

    count(name, amount) receives cache_hits and cache_misses (pages), cache_written_bytes, cache_evicted (pages),
    cache_corrupt (pages with wrong bytes) and cache_failed (disk faults). Raises: InvalidRuntime for a folder that may
    not be a cache.
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
        """True unless the disk refused a page lately."""
        return time.monotonic() >= self._paused_until_s

    def read(self, name: str, cuts: Sequence[slice]) -> list[bytes] | None:
        """Return a page's bytes per cut; None if it is missing or wrong."""
        with self._lock:
            verified = self._verified.get(name)
        try:
            page = self._pages.read(name, cuts, verified)
        except BadPage as error:
            self.count("cache_corrupt", 1)
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
        """Keep a page, after making room for it."""
        with self._contained("write"):
            nbytes = HEADER_BYTES + len(data)
            if self._has_room(nbytes):
                self._pages.write(name, data)
                self.count("cache_written_bytes", nbytes)

    def discard(self, name: str) -> None:
        """Throw a page away."""
        with self._contained("discard"):
            self._pages.discard(name)

    def has(self, name: str) -> bool:
        """Return whether a page is there; it may be gone a moment later."""
        return self._pages.exists(name)

    def claim(self, name: str, nbytes: int) -> bool:
        """Return whether the caller shall fetch this page, which another reader has not claimed."""
        try:
            return self._claims.take(name)
        except OSError as error:
            self._failed("claim", error)
            return True

    def release(self, name: str) -> None:
        """Give a claim back."""
        with self._contained("claim"):
            self._claims.release(name)

    def is_coming(self, name: str) -> bool:
        """Return whether a reader in any process is about to fetch a page."""
        try:
            return self._claims.is_taken(name)
        except OSError as error:
            self._failed("claim", error)
            return False

    def wait(self, name: str) -> None:
        """Wait until another reader has fetched a page, or has had time enough."""
        with self._contained("claim"):
            self._claims.wait(name, lambda: self._pages.exists(name))

    def beat(self, needed: Callable[[], Iterable[str]]) -> None:
        """Show that this loader runs, every `BEAT_S` seconds; above half the limit also its next pages.

        needed: returns these, soonest first.
        """
        now_s = time.monotonic()
        with self._lock:
            if now_s < self._next_beat_s:
                return
            self._next_beat_s = now_s + BEAT_S
        with self._contained("hint"):
            self._hints.write(needed() if self._pressed else ())

    def close(self) -> None:
        """Need nothing any more; the pages stay."""
        with self._contained("hint"):
            self._hints.withdraw()

    def _has_room(self, nbytes: int) -> bool:
        with self._sweeping:  # other threads wait: what they would write meanwhile has no bound
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
        """Evict if all running loaders could exceed the limit, and set this one's share of an eighth.

        Raises: OSError.
        """
        if self.limit_bytes is None:
            return  # the disk did not say how much is free
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
        except (OSError, PenstockError) as error:  # the latter of finding out what is needed next
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
