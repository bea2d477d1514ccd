"""The room in a cache folder: how many bytes its files take, and which files make room.

The file `held` is the ledger. It has three little-endian int64: the bytes of files and claimed pages, the time of the
last count, and the bytes of all claims ever. It is read and changed under a lock of the file, so that all processes
together stay within the limit. A killed process leaves the figure too high until the files are counted again.

A count takes seconds for a million pages, so that it has no lock: claims that begin meanwhile are added to its result.
A page that is claimed during a count may count twice until the next one, but is never missed.
"""

import fcntl
import os
import re
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from heapq import nsmallest
from threading import Lock
from typing import NamedTuple

from ..dataset.search import CODE_FOLDER
from .claims import CLAIM_S
from .fixed_share import page_rank
from .object_sets import ObjectEpochs
from .pages import HEADER_BYTES, OBJECT_DIGITS, file_mode

LEDGER = "held"
ABANDONED_S = 60.0
"""Age in seconds at which files in `writing/` or `claims/` are abandoned."""
COUNT_S = 600.0
"""Age in seconds at which the figure is counted anew before the next page."""
RECOUNT_S = 60.0
"""The same for a folder that seems to be full."""
COUNT_PAUSE = 20
"""Least time between two counts, as a multiple of the time that a count takes."""
VICTIMS_MAX = 2**14
"""Most files that a count remembers to make room with: about 6 MB."""
ABOVE_THE_LIMIT = -1.0
"""Share for which every file may go."""
_RECORD = struct.Struct("<qqq")
_PAGE = re.compile(r"[0-9a-f]{40}")
_UNFINISHED = re.compile(r"\.[0-9a-f]{8}$")


class PageFile(NamedTuple):
    """One file in `pages/`, or a file of codes in `search/`."""

    name: str
    path: str
    nbytes: int
    """File size."""
    used_ns: int
    """Time of last use, in ns since 1970."""
    written_ns: int
    """Time of the last change, in ns since 1970."""


def folder_bytes(folder: str) -> int:
    """Return the total bytes of a cache's pages, codes and unfinished files. O(pages)."""
    total = _writing_bytes(folder)
    for page in scan(folder):
        total += page.nbytes
    return total


def _writing_bytes(folder: str) -> int:
    """Return the bytes of the files that are being written."""
    total = 0
    for _, status in _files(os.path.join(folder, "writing")):
        total += status.st_size
    return total


def scan(folder: str) -> Iterator[PageFile]:
    """Yield the files of pages and of codes. Skips what vanishes meanwhile. Raises: OSError."""
    pages = os.path.join(folder, "pages")
    for shelf in sorted(os.listdir(pages)):
        for entry, status in _files(os.path.join(pages, shelf)):
            yield _page_file(entry, status)
    with suppress(FileNotFoundError):  # without a search
        for entry, status in _files(os.path.join(folder, CODE_FOLDER)):
            # A search writes a file under another name first, in less time.
            is_young = time.time() - status.st_mtime < ABANDONED_S
            if not (is_young and _UNFINISHED.search(entry.name)):
                yield _page_file(entry, status)


def _page_file(entry: "os.DirEntry[str]", status: os.stat_result) -> PageFile:
    return PageFile(
        entry.name,
        entry.path,
        status.st_size,
        status.st_atime_ns,
        status.st_mtime_ns,
    )


def _files(folder: str) -> Iterator[tuple["os.DirEntry[str]", os.stat_result]]:
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


class Held(NamedTuple):
    """The ledger."""

    nbytes: int
    """Bytes of files and claimed pages."""
    counted_ns: int
    """Time of the last count, in ns since 1970; 0 if the figure needs one."""
    claimed: int
    """Bytes of all claims since the folder began. It never falls."""

    @property
    def age_s(self) -> float:
        """Return the seconds since the last count, negative after a clock was set back."""
        return (time.time_ns() - self.counted_ns) / 1e9


NEVER_COUNTED = Held(0, 0, 0)
MOST = 2**62
"""Largest figure that a ledger can have: sums of them fit into its record."""


class Victim(NamedTuple):
    """A file that may make room. Victims go in ascending order."""

    is_wanted: bool
    """True if a loader reads the page's object."""
    is_fresh: bool
    """True if the page was written in the running epoch of a loader that reads it: it has not paid for itself yet."""
    order: float
    """Time of last use for an unwanted file, else the negative rank."""
    page: PageFile


Epochs = Callable[[], ObjectEpochs]
"""() -> the epochs of the objects that are read."""


class FolderRoom:
    """The room in one folder, for one loader. Thread-safe. Methods raise OSError.

    epochs: the objects that are read. count: receives cache_evicted. page_bytes: size of a claimed page.
    """

    def __init__(
        self,
        folder: str,
        page_bytes: int,
        epochs: Epochs,
        count: Callable[[str, int], None],
        *,
        shared: bool = False,
    ) -> None:
        self._folder = folder
        self._claim_bytes = page_bytes + HEADER_BYTES
        self._epochs = epochs
        self._count = count
        self._mode = file_mode(shared)
        self._lock = Lock()
        self._victims: list[Victim] = []  # the next one is last
        self._has_all_victims = False
        self._is_counting = False
        self._outdated = 0  # calls of `outdate`
        self._next_count_s = 0.0
        self.refused = 0
        """Files that could not be deleted."""

    def held_bytes(self) -> int:
        """Return the bytes of files and claimed pages. O(pages) if the last count is older than `COUNT_S`."""
        with self._ledger() as ledger:
            held = _read(ledger)
        if _is_younger(held, COUNT_S) or not self._count_files():
            return held.nbytes
        with self._ledger() as ledger:
            return _read(ledger).nbytes

    def change(self, nbytes: int) -> None:
        """Add to the bytes that files take. nbytes: negative if they take fewer."""
        with self._ledger() as ledger:
            held = _read(ledger)
            if held.counted_ns:  # else the next count finds them
                _write(ledger, held._replace(nbytes=held.nbytes + nbytes))

    def reserve(self, share: float, nbytes: int, capacity_bytes: int) -> bool | None:
        """Reserve room for a page, in the place of others if need be; return whether there is room.

        None: another thread counts the files, without which this is unknown.

        Files that no loader needs go first, then the pages of the highest rank above the share. A page below it never
        goes: if a few more pages lie below it than there is room for, the first ones stay, and nothing is written.
        """
        with self._ledger() as ledger:
            held = _read(ledger)
            is_full = held.nbytes + nbytes > capacity_bytes
            is_known = not self._needs_count(held, is_full=is_full)
            if self._is_counting and held.counted_ns and not is_full:
                is_known = True  # by a figure that is too old there is room
            if is_known:
                return self._reserve(ledger, held, share, nbytes, capacity_bytes)
        if not self._count_files(nbytes):
            return None
        with self._ledger() as ledger:
            return self._reserve(ledger, _read(ledger), share, nbytes, capacity_bytes)

    def trim(self, capacity_bytes: int) -> None:
        """Delete abandoned files, and what is above the capacity, because a limit has changed."""
        self._remove_abandoned()
        if self.held_bytes() <= capacity_bytes:
            return
        if not self._victims:  # the figure was young enough
            self._count_files()
        with self._ledger() as ledger:
            held = _read(ledger)
            left_bytes = self._make_room(held.nbytes, capacity_bytes, ABOVE_THE_LIMIT)
            _write(ledger, held._replace(nbytes=left_bytes))

    def outdate(self) -> None:
        """Count again before the next file goes: an epoch or a loader began or ended."""
        with self._lock:
            self._outdated += 1
            self._victims = []
            self._has_all_victims = False

    def recount(self) -> None:
        """Count the files before the next page: a killed loader's claims still have room."""
        with self._ledger() as ledger:
            _write(ledger, _read(ledger)._replace(counted_ns=0))
        self.outdate()

    @contextmanager
    def _ledger(self) -> Iterator[int]:
        """Yield the descriptor of the locked ledger."""
        path = os.path.join(self._folder, LEDGER)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        with self._lock:  # the lock of a file excludes other processes only
            descriptor = os.open(path, flags, self._mode)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield descriptor
            finally:
                os.close(descriptor)  # unlocks

    def _needs_count(self, held: Held, *, is_full: bool) -> bool:
        """Return whether the files must be counted before the next page.

        is_full: the page does not fit without an eviction.
        """
        if not is_full or self._victims:
            return not _is_younger(held, COUNT_S)
        # From here on a file must go, and none is known.
        pause_s = self._next_count_s - time.monotonic()
        if not self._has_all_victims and pause_s <= 0:
            return True
        return not _is_younger(held, max(RECOUNT_S, pause_s))

    def _reserve(self, ledger: int, held: Held, share: float, nbytes: int, capacity_bytes: int) -> bool:
        """Reserve room for a page, in the place of known victims if need be; return whether there is room.

        ledger: descriptor of the locked ledger. held: its content. share: rank from which wanted pages may go.
        """
        held_bytes = self._make_room(held.nbytes, capacity_bytes - nbytes, share)
        claimed = held.claimed
        has_room = held_bytes + nbytes <= capacity_bytes
        if has_room:
            held_bytes += nbytes
            claimed += nbytes
        _write(ledger, Held(held_bytes, held.counted_ns, claimed))
        return has_room

    def _make_room(self, held_bytes: int, most_bytes: int, share: float) -> int:
        """Delete files until at most `most_bytes` are left; return the bytes that are left.

        share: rank from which wanted pages may go.
        """
        while held_bytes > most_bytes and self._victims:
            victim = self._victims[-1]
            # The last victim goes first: after one that must stay, all must stay.
            if victim.is_fresh and share != ABOVE_THE_LIMIT:
                break
            if victim.is_wanted and -victim.order < share:
                break
            self._victims.pop()
            held_bytes -= self._delete(victim.page)
        return held_bytes

    def _delete(self, page: PageFile) -> int:
        """Delete a file; return the bytes that this frees."""
        try:
            os.unlink(page.path)
        except FileNotFoundError:
            return 0  # another process deleted it
        except OSError:
            self.refused += 1
            return 0
        self._count("cache_evicted", 1)
        return page.nbytes

    def _count_files(self, claim_bytes: int = 0) -> bool:
        """Count the files, and remember which may make room. O(pages), without a lock.

        claim_bytes: of a claim that has no room yet. Returns False at once if another thread counts.
        """
        start_s = time.monotonic()
        with self._ledger() as ledger:
            if self._is_counting:
                return False
            self._is_counting = True
            before = _read(ledger)
            outdated = self._outdated
        try:
            self._remove_abandoned()
            # Before the pages: a page that is published meanwhile counts twice, and is not missed.
            unfinished = max(0, self._unfinished_bytes() - claim_bytes)
            victims, n_files, total = self._find_victims()
            with self._ledger() as ledger:
                now = _read(ledger)
                claimed_meanwhile = now.claimed - before.claimed
                counted_ns = time.time_ns()
                if before.counted_ns and not now.counted_ns:  # a loader was killed meanwhile
                    counted_ns = 0
                held_bytes = total + unfinished + claimed_meanwhile
                _write(ledger, Held(held_bytes, counted_ns, now.claimed))
                if outdated == self._outdated:  # else an earlier epoch ordered them
                    self._victims = victims
                    self._has_all_victims = n_files <= VICTIMS_MAX
                stop_s = time.monotonic()
                self._next_count_s = stop_s + COUNT_PAUSE * (stop_s - start_s)
        finally:
            self._is_counting = False
        return True

    def _find_victims(self) -> tuple[list[Victim], int, int]:
        """Return (files that may make room, the next one last; number of all files; their bytes)."""
        epochs = self._epochs()
        total = 0
        n_files = 0

        def victims() -> Iterator[Victim]:
            nonlocal total, n_files
            for page in scan(self._folder):
                total += page.nbytes
                n_files += 1
                yield _victim(page, epochs)

        chosen = nsmallest(VICTIMS_MAX, victims())
        return chosen[::-1], n_files, total

    def _remove_abandoned(self) -> None:
        for name in ("writing", "claims"):
            _remove_abandoned(os.path.join(self._folder, name))

    def _unfinished_bytes(self) -> int:
        """Return the bytes that claimed pages will take. A page that is being written has a claim."""
        now_s = time.time()
        claimed = 0
        for _, status in _files(os.path.join(self._folder, "claims")):
            age_s = abs(now_s - status.st_mtime)
            if age_s < CLAIM_S:
                claimed += self._claim_bytes
        writing = _writing_bytes(self._folder)
        return max(claimed, writing)


def _victim(page: PageFile, epochs: ObjectEpochs) -> Victim:
    """Return a file with its place in the order of eviction. epochs: of the objects that loaders read."""
    epoch_ns = None  # of a file of codes, of a page of format 1, or of an object that no loader reads
    if _PAGE.fullmatch(page.name):
        epoch_ns = epochs.get(page.name[:OBJECT_DIGITS])
    if epoch_ns is None:
        return Victim(False, False, page.used_ns, page)
    is_fresh = page.written_ns >= epoch_ns
    # Negative: the highest rank goes first.
    return Victim(True, is_fresh, -page_rank(page.name), page)


def _is_younger(held: Held, seconds: float) -> bool:
    return 0 <= held.age_s < seconds


def _read(ledger: int) -> Held:
    """Return the ledger; zeros, which need a count, if it is new, damaged or of an earlier release."""
    record = os.pread(ledger, _RECORD.size, 0)
    if len(record) < _RECORD.size:
        return NEVER_COUNTED
    held = Held(*_RECORD.unpack(record))
    if max(held) > MOST or min(held) < 0:
        return NEVER_COUNTED
    return held


def _write(ledger: int, held: Held) -> None:
    record = _RECORD.pack(max(held.nbytes, 0), held.counted_ns, held.claimed)
    os.pwrite(ledger, record, 0)
