"""List and read the new objects of one run: its log, and its record."""

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from loader.dataset.log.entries import DAMAGED
from loader.errors import Corrupt, ObjectNotFound, PenstockError, StoreError
from loader.run.trail.row_numbers import MOST_OBJECT_BYTES
from loader.run.trail.row_objects import ROWS
from loader.run.trail.trail import trail_folder
from loader.run.trail.trail_outline import evenly_spread
from loader.storage import ObjectInfo, Store

from ..nodes.signs import interval_rows
from ..nodes.suspects import NodeFault
from ..train.intervals import interval_sum, interval_values
from ..train.record_objects.failed_starts import is_failed_start, read_failed_start
from ..train.record_writer import parse_faults
from ..train.run_folder import ATTEMPT, EVENT, RunFolder, interval_keys
from .new_objects import NewObjects
from .record_facts import RecordFacts
from .trail_facts import TrailFacts

_log = logging.getLogger("penstock.metrics")
MOST_UNREAD = 24
"""Objects of a source that wait to be read: of more, some evenly spread."""
MOST_EVENTS_UNREAD = 200
RELIST_S = 600.0
"""Seconds without a new object after which all folders of a run log are listed again."""
KINDS = ("events", "windows", "attempts", "ends", "faults")
"""Folders of a run's record that are read."""


class RunObjects(Protocol):
    """Objects of a run, read one at a time."""

    @property
    def unread(self) -> list[ObjectInfo]:
        """Listed objects that are to be read, the next one first."""

    def refresh(self, now_s: float) -> None:
        """List new objects. Raises: StoreError."""

    def read(self, info: ObjectInfo) -> None:
        """Read one of them. Raises: Corrupt; StoreError."""


class TrailSource:
    """The run log of one recorded rank: the first one in the first listing that has objects."""

    def __init__(
        self,
        store: Store,
        run: str,
        facts: TrailFacts,
    ) -> None:
        self.newest_us = 0
        """Newest write of an object, UTC microseconds by the store's clock."""
        self.is_whole = True
        """False if some objects were left out."""
        self.relists = True
        """True if a new start may write to another folder."""
        self._store = store
        self._facts = facts
        self._prefix = trail_folder(run)
        self._folders = NewObjects(store, self._prefix)  # of all ranks
        self._rank = 0  # whose rows are read, once `_folder` is set
        self._folder: NewObjects | None = None  # of that rank; None before its first object
        self._listed_s = 0.0  # Unix time of the last listing of all folders
        self._unread: list[ObjectInfo] = []

    @property
    def unread(self) -> list[ObjectInfo]:
        """Listed objects that are to be read, the next one first."""
        return self._unread

    def refresh(self, now_s: float) -> None:
        """List new objects. Raises: StoreError."""
        is_quiet = now_s - self.newest_us / 1e6 > RELIST_S
        is_late = now_s - self._listed_s > RELIST_S
        lists_all = self.relists or (is_quiet and is_late)
        if self._folder is None or lists_all:
            new = self._rows_of_rank()
            self._listed_s = now_s
            self.relists = False
        else:
            new = self._folder.new()
            self._note_times(new)
        new.sort(key=_write_us)
        self._unread.extend(new)
        if len(self._unread) > MOST_UNREAD:
            self._unread = evenly_spread(
                self._unread,
                MOST_UNREAD,
            )
            self.is_whole = False

    def read(self, info: ObjectInfo) -> None:
        """Read a new object. Raises: Corrupt; FormatTooNew; StoreError."""
        where = f"{self._store.url}/{info.key}"
        if info.nbytes > MOST_OBJECT_BYTES:
            raise Corrupt(f"{where} has {info.nbytes:,} bytes; an object of a run log has fewer")
        blob = self._store.get(info.key)
        self._facts.add(blob.data, where)

    def _rows_of_rank(self) -> list[ObjectInfo]:
        """List the folders of all ranks; return the new objects of the rank that is read."""
        by_rank = self._new_by_rank()
        if not by_rank:
            return []
        self._rank = self._choose_rank(by_rank)
        rows = by_rank.get(self._rank, [])
        if not rows:
            return []
        # A start with another number of ranks writes to another folder.
        newest = max(rows, key=_write_us)
        path, _, _ = newest.key.rpartition("/")
        folder = f"{path}/"
        if self._folder is None or self._folder.prefix != folder:
            self._folder = NewObjects(self._store, folder)
        else:
            # A listing of only this folder may have returned some of them. `_folders` has no note of it.
            rows = [info for info in rows if self._folder.is_new(info)]
        self._folder.add_known(rows)
        self._note_times(rows)
        return rows

    def _new_by_rank(self) -> dict[int, list[ObjectInfo]]:
        """Return rank -> its objects that are new since the last listing of all folders."""
        by_rank: dict[int, list[ObjectInfo]] = {}
        since_us = self.newest_us - RELIST_S * 1e6
        for info in self._folders.new(lists_all=True):
            name = info.key.removeprefix(self._prefix)
            match = ROWS.fullmatch(name)
            if match is None:
                continue
            # Older ones were read. In a long folder, `NewObjects` forgets their keys, and a listing returns them again.
            if info.modified_us is not None and info.modified_us < since_us:
                continue
            rank = int(match[1])
            of_rank = by_rank.setdefault(rank, [])
            of_rank.append(info)
        return by_rank

    def _choose_rank(self, by_rank: Mapping[int, list[ObjectInfo]]) -> int:
        """Return the rank to read: the one that is read already, or the first if that one has stopped writing.

        The figures count each step once, so they must not mix ranks that write at the same time.
        """
        if self._folder is None:
            return min(by_rank)
        if self._rank in by_rank:
            return self._rank
        # A rank writes an object a minute. One that others have outlived this long is no longer recorded: a later start
        # may record other ranks.
        stopped_us = self.newest_us + RELIST_S * 1e6
        later_ranks = [rank for rank, rows in by_rank.items() if max(map(_write_us, rows)) > stopped_us]
        return min(later_ranks, default=self._rank)

    def _note_times(self, infos: list[ObjectInfo]) -> None:
        for info in infos:
            written_us = _write_us(info)
            self.newest_us = max(self.newest_us, written_us)


class RecordSource:
    """The record of a run: by one listing while it has few objects, then by a listing of one folder after the other."""

    def __init__(
        self,
        store: Store,
        run: str,
        facts: RecordFacts,
    ) -> None:
        self.newest_us = 0
        self.n_starts = 0
        """Starts that the listings have."""
        self._store = store
        self._run = run
        self._facts = facts
        self._folder = RunFolder(store, run)
        # The whole record; None once it is long, and `_kinds` list its folders in turn.
        self._all: NewObjects | None = NewObjects(
            store,
            self._folder.key(""),
        )
        self._kinds = [NewObjects(store, self._folder.key(f"{kind}/")) for kind in KINDS]
        self._turn = 0  # index of the folder whose turn is next
        self._unread: list[ObjectInfo] = []
        self._starts: set[int] = set()  # numbers of the starts

    @property
    def unread(self) -> list[ObjectInfo]:
        """Listed objects that are to be read, the next one first."""
        return self._unread

    def refresh(self, now_s: float) -> None:
        """List new objects: of the whole record, or of one folder once the record is long. Raises: StoreError."""
        if self._all is None:
            folder_listing = self._kinds[self._turn]
            self._turn = (self._turn + 1) % len(self._kinds)
            new = folder_listing.new()
            self._queue(new)
            return
        new = self._all.new()
        self._queue(new)
        # They go on from here when the whole record is no longer listed.
        for folder_listing in self._kinds:
            folder_listing.add_known(new)
        if self._all.is_long:
            # One listing of all folders would now take several pages.
            self._all = None

    def read(self, info: ObjectInfo) -> None:
        """Read one of the new objects. Raises: Corrupt; StoreError."""
        kind, _ = self._parts(info)
        readers: dict[str, Callable[[ObjectInfo], None]] = {
            "events": self._read_event,
            "windows": self._read_interval,
            "attempts": self._read_attempt,
            "ends": self._read_end,
            "faults": self._read_faults,
        }
        readers[kind](info)

    def _queue(self, infos: list[ObjectInfo]) -> None:
        by_kind: dict[str, list[ObjectInfo]] = {kind: [] for kind in KINDS}
        for info in infos:
            kind, name = self._parts(info)
            if kind not in by_kind or not _is_object(kind, name, info):
                continue
            written_us = _write_us(info)
            self.newest_us = max(self.newest_us, written_us)
            by_kind[kind].append(info)
            if kind == "attempts":
                self._starts.add(_start_number(name))
            if kind == "ends":
                self._facts.n_failed += 1
        self.n_starts = len(self._starts)
        # Only the newest failed start is read, for its reason; the listing counts the others.
        chosen = by_kind["attempts"][-MOST_UNREAD:]
        chosen += by_kind["ends"][-1:]
        chosen += by_kind["events"][-MOST_EVENTS_UNREAD:]
        chosen += evenly_spread(
            by_kind["windows"],
            MOST_UNREAD,
        )
        chosen += by_kind["faults"][-MOST_UNREAD:]
        if by_kind["windows"]:
            # Intervals that still wait are older than these.
            waiting = [info for info in self._unread if "/windows/" not in info.key]
            self._unread = waiting
        self._unread.extend(chosen)

    def _parts(self, info: ObjectInfo) -> tuple[str, str]:
        """Return the folder of an object in the record, and its name; ("", name) outside of folders."""
        path = info.key.removeprefix(self._folder.key(""))
        kind, slash, name = path.partition("/")
        if not slash:
            return "", path
        return kind, name

    def _read_event(self, info: ObjectInfo) -> None:
        _, name = self._parts(info)
        # "<start>-<event of the start>.json"
        attempt, _, number = name.removesuffix(".json").partition("-")
        numbers = (int(attempt), int(number))
        event = self._folder.event(numbers, info)
        self._facts.add_event(event)

    def _read_attempt(self, info: ObjectInfo) -> None:
        _, name = self._parts(info)
        facts = self._folder.attempt(info)
        self._facts.add_attempt(_start_number(name), facts)

    def _read_end(self, info: ObjectInfo) -> None:
        failed = read_failed_start(
            self._store,
            info,
        )
        self._facts.add_failed(failed)

    def _read_interval(self, info: ObjectInfo) -> None:
        (key,) = interval_keys([info])

        def add(data: bytes, where: str) -> None:
            # Parsed once for both, the rows of the nodes and their sum: the first scrape of 500 runs parses 12,000
            # intervals.
            columns = interval_values(data, where)
            rows = interval_rows(
                self._run,
                key.attempt,
                info,
                columns,
            )
            interval = interval_sum(
                key.attempt,
                key.end_step,
                columns,
                where,
            )
            self._facts.add_interval(
                interval,
                list(rows),
            )

        self._folder.with_interval(
            key,
            add,
        )

    def _read_faults(self, info: ObjectInfo) -> None:
        for node, read_fault in parse_faults(self._store, info):
            facts = read_fault._asdict()
            fault = NodeFault(node=node, **facts)
            if fault.is_valid:
                self._facts.faults.append(fault)


def read_next(source: RunObjects) -> str:
    """Read the next object of a source; return its damage, or "". One that was deleted meanwhile is left out.

    Raises: StoreError; the object then stays the next one.
    """
    info = source.unread[0]
    damage = ""
    try:
        source.read(info)
    except ObjectNotFound:
        pass
    except StoreError:
        raise  # no verdict on the object: an event that is never read would leave an ended run running
    except (PenstockError, *DAMAGED) as error:  # also errors of a forged object's values
        damage = str(error)
    source.unread.pop(0)
    return damage


def _start_number(name: str) -> int:
    """Return the number of a start. name: of its object, "<number>.json"."""
    number = name.removesuffix(".json")
    return int(number)


def _write_us(info: ObjectInfo) -> int:
    return info.modified_us or 0


def _is_object(
    kind: str,
    name: str,
    info: ObjectInfo,
) -> bool:
    if kind == "events":
        return EVENT.fullmatch(name) is not None
    if kind == "attempts":
        return ATTEMPT.fullmatch(name) is not None
    if kind == "windows":
        return bool(interval_keys([info]))
    if kind == "ends":
        return is_failed_start(info)
    return name.endswith(".json")
