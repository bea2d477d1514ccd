"""Open a node cache: claims, eviction and page access. Disk faults never reach a batch.

The folder keeps a fixed share of the pages that the node's loaders read (`fixed_share.py`). A killed owner's claim
costs a wait, and fetching a page twice is harmless.
"""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ..dataset.reading.read_faults import add_fault
from ..errors import PenstockError
from ..storage.threads import SizedLru
from .claims import CLAIM_S, ClaimFile, Claims
from .fixed_share import FixedShare, page_rank
from .object_sets import ObjectEpochs, ObjectSet, ObjectSets, StoredSet, pages_bytes
from .page_cache import Absence, Answer, Grant, PageQuestion
from .pages import HEADER_BYTES, BadPage, Identity, Pages, make_place
from .room import FolderRoom, folder_bytes
from .running_loaders import BEAT_S, RunningLoader, RunningLoaders
from .spec import NodeCache

logger = logging.getLogger(__name__)

VERIFIED_PAGES = 2**16
PAUSE_S = 30.0
"""Seconds without writes after a failed one: whole pages could not be kept."""
POLL_S = 0.005
OWN_WAIT_S = 60.0
"""Longest wait for a page that a thread of this process is fetching."""
TOUCH_S = 60.0
"""Age in seconds of a set's file at which a loader touches it, and pause before it declares its sets again."""
SLACK_PAGES = 1
"""Pages that the capacity leaves free for each running loader: one whose claim expired may still be written."""
ENDED_NS = 2**63 - 1
"""Begin of the epoch of a loader that has ended."""

Count = Callable[[str, int], None]
Sets = Callable[[], Sequence[ObjectSet]]
"""() -> the sets of objects that a loader reads. Called before the first claim, and again `TOUCH_S` after a failure."""


class OpenCache:
    """One loader's access to a node cache. Thread-safe. Pages are named by `pages.page_name`.

    sets: the objects that this loader reads. Pages of objects that no loader reads go first.

    count(name, amount) receives cache_hits and cache_misses (pages), cache_written_bytes, cache_evicted (files),
    cache_corrupt (pages with wrong bytes) and cache_failed (disk faults).

    Raises: InvalidRuntime if the folder may not be a cache.
    """

    def __init__(self, spec: NodeCache, count: Count, sets: Sets = tuple) -> None:
        folder = str(spec.path)
        shared = spec.shared
        self.page_bytes = spec.page_bytes
        self.limit_bytes = spec.limit_bytes
        self.count = count
        self.share = FixedShare()
        self._folder = folder
        self._load_sets = sets
        self._own_sets: Sequence[ObjectSet] = ()  # loaded before the first claim
        self._is_declared = False
        self._next_declaration_s = -math.inf  # earliest time of the next try; -inf before the first
        self._pages = Pages(folder, shared=shared)
        self._claims = Claims(folder, shared=shared)
        self._sets = ObjectSets(folder, shared=shared)
        self._loaders = RunningLoaders(folder, shared=shared)
        self._room = FolderRoom(folder, spec.page_bytes, self._epochs, count, shared=shared)
        self._verified = SizedLru(VERIFIED_PAGES)  # page -> Identity of its file
        self._granted: dict[str, tuple[ClaimFile, int]] = {}  # page -> (claim, reserved bytes)
        self._lock = threading.Lock()
        self._beating = threading.Lock()
        self._warned: set[str] = set()
        self._read_sets: Mapping[str, ObjectSet | StoredSet] = {}  # id -> set, of any loader
        self._running: Sequence[RunningLoader] = ()
        self._demand_bytes = 0
        self._capacity_bytes = 0
        self._next_beat_s = 0.0
        self._next_touch_s = 0.0
        self._recount_s = math.inf  # time at which a killed loader's claims have expired
        self._paused_until_s = 0.0
        try:
            make_place(folder, shared=shared)
        except OSError as error:
            self._log_failure("open", error)
        if self.limit_bytes is None:
            with self._contain_errors("open"):
                self.limit_bytes = _half_of_free(folder)
        with self._contain_errors("open"):
            self._loaders.write(self.limit_bytes or 0, ())
            self._look_at_folder()
            self._room.trim(self._capacity_bytes)
        self._warn_of_refused()

    peers = 0
    """Nodes that keep pages for each other: none."""

    def read(
        self,
        name: str,
        cuts: Sequence[slice],
        *,
        claim: int | None = None,
        wait_s: float | None = None,
    ) -> Answer:
        """Return a page's bytes, one object per cut, or a claim, or why there is neither (`PageCache.read`)."""
        until_s = None
        while True:
            pieces = self._read_page(name, cuts)
            if pieces is not None:
                return pieces
            answer: Answer = Absence.COMING
            if not self._is_coming(name):
                answer = self._claim(name, cuts, claim)
            if answer is Absence.NOT_KEPT and claim is None:
                # A page is written before its claim ends: it may have come between our two looks.
                pieces = self._read_page(name, cuts)
                if pieces is not None:
                    return pieces
            if answer is not Absence.COMING or wait_s is None:
                return answer
            now_s = time.monotonic()
            if until_s is None:
                longest_s = OWN_WAIT_S if name in self._granted else wait_s
                until_s = now_s + longest_s
            if now_s >= until_s:
                return answer
            time.sleep(POLL_S)

    def read_all(self, questions: Sequence[PageQuestion]) -> list[Answer]:
        return [self.read(name, cuts, claim=claim) for name, cuts, claim in questions]

    def read_present(self, questions: Sequence[PageQuestion]) -> list[Answer]:
        return self.read_all(questions)

    def put(self, name: str, nonce: Hashable, data: bytes) -> bool:
        """Store a claimed page and end the claim; return whether the folder has the page."""
        reserved = self._end(name, nonce)
        if reserved is None:
            return False
        claim, reserved_bytes = reserved
        nbytes = 0
        with self._contain_errors("write"):
            if self._claims.is_current(name, claim):  # else another reader has it by now, and writes the page
                self._pages.write(name, data)
                nbytes = HEADER_BYTES + len(data)
                self.count("cache_written_bytes", nbytes)
        self._release_claim(name, claim, reserved_bytes - nbytes)  # all of the room, if nothing was written
        return nbytes > 0

    def release(self, name: str, nonce: Hashable) -> None:
        reserved = self._end(name, nonce)
        if reserved is not None:
            self._release_claim(name, *reserved)

    def discard(self, name: str) -> None:
        with self._contain_errors("discard"):
            self._room.change(-self._pages.discard(name))

    def beat(self) -> None:
        """Show every `BEAT_S` seconds that this loader runs, and look at what the others do."""
        now_s = time.monotonic()
        if now_s < self._next_beat_s or not self._beating.acquire(blocking=False):
            return
        try:
            self._next_beat_s = now_s + BEAT_S
            with self._contain_errors("beat"):
                self._loaders.beat()
                self._look_at_folder()
        finally:
            self._beating.release()

    def begin_epoch(self) -> None:
        """Note that the order begins again: from here on each page costs the same, read or refused."""
        self.share.begin_epoch()
        self._room.outdate()
        with self._contain_errors("beat"):
            self._loaders.begin_epoch()

    def room_bytes(self) -> int:
        """Return the bytes of the disk that pages may still take."""
        room_bytes = 0
        with self._contain_errors("open"):
            room_bytes = (self.limit_bytes or 0) - self._room.held_bytes()
        return max(0, room_bytes)

    def close(self) -> None:
        with self._contain_errors("beat"):
            self._loaders.withdraw()

    def _read_page(self, name: str, cuts: Sequence[slice]) -> list[bytes] | None:
        """Return a page's bytes; None if the page is missing or corrupt."""
        if not cuts:
            return [] if self._pages.exists(name) else None
        verified: Identity | None = self._verified.get(name)
        try:
            page = self._pages.read(name, cuts, verified)
        except BadPage as error:
            self._report_bad(name, error)
            return None
        except OSError as error:
            self._log_failure("read", error)
            return None
        if page is None:
            return None
        pieces, identity = page
        if identity != verified:
            self._verified.put(name, identity)
        self.count("cache_hits", 1)
        return pieces

    def _report_bad(self, name: str, error: BadPage) -> None:
        """Count and delete a page whose bytes are wrong."""
        self.count("cache_corrupt", 1)
        if error.checksums is not None:
            add_fault("cache page", self._folder, name, (0, self.page_bytes), *error.checksums)
        self._warn("corrupt", f"{error}; it is thrown away and read again. Check the disk")
        self.discard(name)

    def _is_coming(self, name: str) -> bool:
        """Return whether a reader has claimed a page; False if the disk fails."""
        try:
            return self._claims.is_taken(name)
        except OSError as error:
            self._log_failure("claim", error)
            return False

    def _claim(self, name: str, cuts: Sequence[slice], nbytes: int | None) -> Answer:
        """Claim a page of so many bytes; None claims nothing."""
        if nbytes is None or self._is_paused():
            return Absence.NOT_KEPT
        if not self._is_declared:
            self._declare()
        self.beat()
        rank = page_rank(name)
        if not self.share.takes(rank):
            return Absence.NOT_KEPT
        file_bytes = HEADER_BYTES + nbytes
        with self._contain_errors("claim"):
            claim = self._claims.take(name)
            if claim is None:
                return Absence.COMING
            has_room: bool | None = False
            try:
                # Another reader may have written the page between our read and our claim.
                pieces = self._read_page(name, cuts)
                if pieces is None:
                    has_room = self._room.reserve(self.share.share, file_bytes, self._capacity_bytes)
            finally:
                if not has_room:
                    self._claims.release(name, claim)
            if pieces is not None:
                return pieces
            if has_room:
                with self._lock:
                    self._granted[name] = (claim, file_bytes)
                return Grant(claim)
            if has_room is not None:
                self.share.refuse(rank)
        self._warn_of_refused()
        return Absence.NOT_KEPT

    def _end(self, name: str, nonce: Hashable) -> tuple[ClaimFile, int] | None:
        """Return and forget the claim of a page, if it is this one."""
        with self._lock:
            granted = self._granted.get(name)
            if granted is None:
                return None
            claim, _ = granted
            if claim != nonce:
                return None
            return self._granted.pop(name)

    def _release_claim(self, name: str, claim: ClaimFile, unused_bytes: int) -> None:
        """Release a claim, and the room that it did not need."""
        with self._contain_errors("claim"):
            self._claims.release(name, claim)
        if unused_bytes:
            with self._contain_errors("claim"):
                self._room.change(-unused_bytes)

    def _declare(self) -> None:
        """Publish which objects this loader reads, unless that failed less than `TOUCH_S` ago."""
        with self._beating:
            now_s = time.monotonic()
            if self._is_declared or now_s < self._next_declaration_s:
                return
            is_first = self._next_declaration_s == -math.inf
            self._write_sets()
            # The share counts this loader's sets only now. No page is refused yet, so the ceiling may rise.
            if is_first:
                self.share.begin_epoch()

    def reload_sets(self) -> None:
        """Publish the objects that this loader reads anew, because its share of them has changed."""
        with self._beating:
            if self._is_declared:
                self._write_sets()

    def _write_sets(self) -> None:
        """Load and publish the sets. After a failure, a later claim tries again (`_declare`)."""
        self._is_declared = False
        self._next_declaration_s = time.monotonic() + TOUCH_S
        with self._contain_errors("declare"):
            self._own_sets = [objects for objects in self._load_sets() if objects.body]
            self._next_touch_s = 0.0
            self._loaders.write(self.limit_bytes or 0, [objects.id for objects in self._own_sets])
            self._look_at_folder()
            self._is_declared = True

    def _look_at_folder(self) -> None:
        """Set the share from the sets and the running loaders in the folder. Raises: OSError."""
        now_s = time.monotonic()
        own_sets = self._own_sets
        if own_sets and now_s >= self._next_touch_s:
            self._next_touch_s = now_s + TOUCH_S
            for objects in own_sets:
                self._sets.touch(objects)
        sets: dict[str, ObjectSet | StoredSet] = {**self._sets.read()}
        for objects in own_sets:
            sets.setdefault(objects.id, objects)
        for name in self._sets.damaged:
            self._warn(
                f"wanted {name}",
                f"wanted/{name} is forged or cut, and does not count. Delete it",
            )
        self._sets.damaged.clear()
        running = self._loaders.read()
        if self._loaders.killed:
            self._loaders.killed = 0
            self._recount_s = now_s + CLAIM_S  # until then its claims count as running ones
        if now_s >= self._recount_s:
            self._recount_s = math.inf
            self._room.recount()
        limits = [one.limit_bytes for one in running]
        limit = min([*limits, self.limit_bytes or 0])
        slack = SLACK_PAGES * (self.page_bytes + HEADER_BYTES) * max(len(running), 1)
        self._capacity_bytes = max(0, limit - slack)
        has_changed = sets.keys() != self._read_sets.keys() or running != self._running
        if sets.keys() != self._read_sets.keys():
            bodies = [objects.load() for objects in sets.values()]
            self._demand_bytes = pages_bytes(bodies, self.page_bytes, HEADER_BYTES)
            self._read_sets = sets  # after `load`, which may fail: the next look tries again
        self._running = running
        if has_changed:
            self._room.outdate()
        self.share.set_share(self._capacity_bytes, self._demand_bytes)

    def _epochs(self) -> ObjectEpochs:
        """Return the epochs of the objects that are read."""
        begins: dict[str, int] = {}
        for loader in self._running:
            for id in loader.sets:
                begins[id] = min(loader.epoch_ns, begins.get(id, ENDED_NS))
        sets: list[tuple[bytes, int]] = []
        for id, objects in self._read_sets.items():
            epoch_ns = begins.get(id, ENDED_NS)
            sets.append((objects.load(), epoch_ns))
        return ObjectEpochs(sets)

    def _is_paused(self) -> bool:
        return time.monotonic() < self._paused_until_s

    @contextmanager
    def _contain_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, PenstockError) as error:  # PenstockError: from loading the sets
            self._log_failure(what, error)

    def _log_failure(self, what: str, error: Exception) -> None:
        self.count("cache_failed", 1)
        if what in ("open", "write", "claim"):
            self._paused_until_s = time.monotonic() + PAUSE_S
        self._warn(what, f"cannot {what}: {error}; reads go to the origin. Check the disk and its space")

    def _warn_of_refused(self) -> None:
        refused = self._room.refused
        if refused:
            self._room.refused = 0
            self.count("cache_failed", refused)
            self._warn("evict", f"{refused} files cannot be deleted (another user's?); they count, and stay")

    def _warn(self, what: str, text: str) -> None:
        with self._lock:
            if what in self._warned:
                return
            self._warned.add(what)
        logger.warning("node cache %s: %s (said once; metrics() counts)", self._folder, text)


def _half_of_free(folder: str) -> int:
    """Return the default limit: half of the disk's free bytes, where the cache's own files count as free."""
    disk = os.statvfs(folder)
    return (disk.f_bavail * disk.f_frsize + folder_bytes(folder)) // 2
