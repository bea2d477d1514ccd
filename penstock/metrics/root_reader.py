"""Read a root for metrics, scrape by scrape: versions, slices, runs and signs against nodes.

A scrape after the first makes three requests, and two for each run. The three are: the log; the names of active runs;
and, in turn, slices, run logs without a record, failed checks of nodes, or cases against nodes.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple

import loader
from loader.dataset.log.entries import DAMAGED
from loader.dataset.log.state import VersionRecord, newest_live
from loader.dataset.tables.manifest import read_record_manifest
from loader.dataset.tables.slice_record import FOLDER as SLICES
from loader.dataset.tables.slice_record import MAX_RECORD_BYTES, parse_slice, path_parts
from loader.errors import Corrupt, ObjectNotFound, PenstockError, StoreError
from loader.run.trail.trail import is_run_name
from loader.storage import ObjectInfo
from loader.storage.mirror import primary_store
from loader.storage.store import list_from

from ..train.run_folder import ACTIVE
from ..units import DAY_US
from .cost_reader import CostReader
from .new_objects import MOST_LISTED, PAGE
from .node_signs import NodeSignReader
from .run_reader import RunReader, read_runs

_log = logging.getLogger("penstock.metrics")
TRAILS = "trails/"
PARTS = ("versions", "slices", "trainings", "nodes")
"""Parts of a root that are read one after the other: one that fails hides no other."""
COST = "cost"
"""Part that only `--cost` reads."""
SILENT_US = 7 * DAY_US
"""Silence after which a run is left out."""
MOST_RUNS = 500
"""Most runs: the ones that wrote last."""
MOST_DATASETS = 1000
MOST_SLICES = 2000
MOST_MARKS = 20_000
"""Names of active runs that are listed."""


@dataclass(frozen=True, slots=True)
class VersionFigures:
    number: int
    n_samples: int
    """Live samples."""
    created_us: int
    """UTC microseconds of its publication."""


class SliceFigures(NamedTuple):
    n: int
    """Newest number."""
    n_samples: int


class RootReader:
    """Figures of a root. Not thread-safe: one scrape at a time."""

    def __init__(
        self,
        root: loader.Root,
        now_s: Callable[[], float] = time.time,
        cost: CostReader | None = None,
    ) -> None:
        """cost: reader of the cost; None reads none."""
        self.cost = cost
        self.versions: dict[str, VersionFigures] = {}
        """Dataset -> its newest version that is not retired."""
        self.slices: dict[tuple[str, str], SliceFigures] = {}
        """(dataset, name) -> its newest number."""
        self.runs: dict[str, RunReader] = {}
        """Name -> run that was not silent for seven days."""
        self.errors: dict[str, str] = {}
        """Part -> why it could not be read whole; absent if it could."""
        self.seconds: dict[str, float] = {}
        """Part -> seconds of the last reading."""
        self.read_s = 0.0
        """Unix time of the last reading."""
        self._root = root
        self._now_s = now_s
        # Mirrors have neither run logs nor records.
        self._store = primary_store(root.store)
        self._nodes = NodeSignReader(self._store)
        self._ids: dict[str, str] = {}  # dataset -> id of the version that gave its figures
        # (dataset, name) -> newest listed number, and its record's etag. Removed ones have a number too.
        self._listed_slices: dict[tuple[str, str], tuple[int, str]] = {}
        self._unread_slices: dict[tuple[str, str], ObjectInfo] = {}  # newest records, to be read
        self._slices_left_out: set[tuple[str, str]] = set()  # beyond MOST_SLICES, of this listing
        self._has_slices = False  # True after all slices were read once
        self._slice_key = ""  # key from which the next page of slices goes on; "" begins anew
        self._left_out: dict[str, int] = {}  # subject of a warning -> the number that it last gave
        self._is_read = False  # True after the first scrape, which reads everything
        self._turn = 0  # index of the listing whose turn is next
        self._mark = ""  # prefix of the newest day that names active runs; "" before the first
        self._trail_key = ""  # key from which the next page of run logs goes on; "" begins anew

    def read(self) -> None:
        """Read what is new. Does not raise for a store that fails or an object that is damaged: see `errors`."""
        self.errors = {}
        now_s = self._now_s()
        self.read_s = now_s
        with self._part("versions"):
            self._read_versions()
        turns: Sequence[Callable[[float], None]] = (
            self._read_slices,
            self._find_trails,
            self._read_checks,
            self._read_cases,
        )
        chosen = turns
        if self._is_read:
            # One of the four listings in each scrape: they change seldom.
            chosen = [turns[self._turn]]
            self._turn = (self._turn + 1) % len(turns)
        for turn in chosen:
            turn(now_s)
        with self._part("trainings"):
            self._find_active(now_s)
        with self._part("trainings"):
            self._read_runs(now_s)
        if self.cost is not None:
            self._read_cost(self.cost, now_s)
        self._is_read = True

    def _read_cost(self, cost: CostReader, now_s: float) -> None:
        with self._part(COST):
            for problem in cost.read(now_s):
                self.errors.setdefault(COST, problem)

    @contextmanager
    def _part(self, part: str) -> Iterator[None]:
        """Record an error of the body as the part's, and add the body's time to the part's seconds."""
        begun_s = time.perf_counter()
        try:
            yield
        except (PenstockError, *DAMAGED) as error:
            self._fail(part, str(error))
        earlier_s = self.seconds.get(part, 0.0)  # of this reading: some parts have several bodies
        took_s = time.perf_counter() - begun_s
        self.seconds[part] = earlier_s + took_s

    def _fail(
        self,
        part: str,
        text: str,
    ) -> None:
        _log.warning(
            "%s: %s",
            part,
            text,
        )
        self.errors.setdefault(
            part,
            text,
        )

    def _log_omission(
        self,
        what: str,
        n: int,
        chosen: str,
    ) -> None:
        """Warn that `n` have no metrics, once until their number changes."""
        n = max(0, n)
        if n and self._left_out.get(what, 0) != n:
            _log.warning(
                "%s without metrics: %s; only %s have them",
                what,
                f"{n:,}",
                chosen,
            )
        self._left_out[what] = n

    def _read_versions(self) -> None:
        self.seconds = {}
        datasets = self._root.state.datasets
        self.versions = {name: own for name, own in self.versions.items() if name in datasets}
        self._log_omission("datasets", len(datasets) - MOST_DATASETS, "the first by name")
        for name in sorted(datasets)[:MOST_DATASETS]:
            newest = newest_live(datasets[name])
            if newest is None:
                self.versions.pop(name, None)
            elif self._ids.get(name) != newest.id:
                self._read_version(name, newest)

    def _read_version(
        self,
        name: str,
        record: VersionRecord,
    ) -> None:
        try:
            manifest = read_record_manifest(
                self._root.store,
                record,
            )
            figures = VersionFigures(
                number=record.number,
                n_samples=int(manifest["n_live"]),
                created_us=int(manifest["created_us"]),
            )
        except (PenstockError, *DAMAGED) as error:
            # Read again in the next scrape; other datasets have their figures.
            self.versions.pop(name, None)
            self._ids.pop(name, None)
            self._fail(
                "versions",
                str(error),
            )
            return
        self.versions[name] = figures
        self._ids[name] = record.id

    def _read_slices(self, now_s: float) -> None:
        with self._part("slices"):
            if not self._has_slices:
                # The first scrape goes through all pages; a forged folder may have more.
                for _ in range(MOST_LISTED // PAGE):
                    self._list_slices()
                    if not self._slice_key:
                        break
                while self._unread_slices:
                    self._read_next_slice()
                self._has_slices = True
            elif self._unread_slices:
                self._read_next_slice()
            else:
                self._list_slices()

    def _list_slices(self) -> None:
        """List a page of slices, from where the last one ended, and queue the new ones.

        Keys begin with names, so new ones are anywhere.
        """
        infos = self._page(SLICES, self._slice_key)
        if not self._slice_key:
            self._slices_left_out = set()
        self._slice_key = ""
        if len(infos) == PAGE:
            self._slice_key = infos[-1].key
        for info in infos:
            parts = path_parts(info.key)
            if parts is not None and info.key.endswith(".json"):
                self._note_slice(info, *parts)
        self._log_omission("slices", len(self._slices_left_out), "the first by name")

    def _note_slice(self, info: ObjectInfo, dataset: str, name: str, n: int) -> None:
        """Queue a listed slice, if its number is new, or its record was replaced."""
        known = self._listed_slices.get((dataset, name))
        if known is None and len(self._listed_slices) >= MOST_SLICES:
            if len(self._slices_left_out) < MOST_LISTED:
                self._slices_left_out.add((dataset, name))
            return
        if known is not None:
            known_n, known_etag = known
            is_known = n == known_n and info.etag == known_etag
            if n < known_n or is_known:
                return
        self._listed_slices[dataset, name] = n, info.etag
        self._unread_slices[dataset, name] = info

    def _read_next_slice(self) -> None:
        """Read the first slice that waits. Raises: StoreError; the slice then waits as the last one."""
        at = next(iter(self._unread_slices))
        info = self._unread_slices.pop(at)
        try:
            self._read_slice(info)
        except ObjectNotFound as error:
            self._fail("slices", str(error))
        except StoreError:
            self._unread_slices[at] = info
            # Others may have come meanwhile, if this one is never read.
            self._list_slices()
            raise

    def _read_slice(self, info: ObjectInfo) -> None:
        """Read the figures of a slice. Damage is noted. Raises: StoreError."""
        try:
            if info.nbytes > MAX_RECORD_BYTES:
                raise Corrupt(
                    f"{info.key} has {info.nbytes:,} bytes; the record of a slice has at most {MAX_RECORD_BYTES:,}"
                )
            blob = self._store.get(info.key)
            record = parse_slice(blob.data, info.key)
        except StoreError:
            raise  # no verdict on the slice
        except (PenstockError, *DAMAGED) as error:  # one forged slice hides no other
            self._fail("slices", str(error))
            return
        # Only figures: the rules of 2,000 slices may have 16 GB.
        self.slices[record.dataset, record.name] = SliceFigures(record.n, record.n_samples)
        if record.removed:
            del self.slices[record.dataset, record.name]

    def _read_checks(self, now_s: float) -> None:
        with self._part("nodes"):
            self._nodes.read_checks(round(now_s * 1e6))

    def _read_cases(self, now_s: float) -> None:
        with self._part("nodes"):
            self._nodes.read_cases()

    def _find_active(self, now_s: float) -> None:
        """Add the runs that named themselves under a day, from the day of the newest known name on."""
        first = _day(now_s - SILENT_US / 1e6)
        today = _day(now_s)
        since = max(f"{ACTIVE}{first}", self._mark)
        marks = list_from(
            self._store,
            ACTIVE,
            since,
        )
        for info in islice(marks, MOST_MARKS):
            name = info.key.removeprefix(ACTIVE)
            day, _, run = name.partition("/")
            if day <= today:
                self._add_run(run)
                # Names of a day come in any order: list the whole day again.
                self._mark = f"{ACTIVE}{day}"

    def _find_trails(self, now_s: float) -> None:
        """Add runs that only have a run log: a page of the logs' listing, from where the last one ended."""
        with self._part("trainings"):
            since_us = round(now_s * 1e6) - SILENT_US
            while True:
                self._find_trails_in_page(since_us)
                # The first scrape goes through all pages.
                if self._is_read or not self._trail_key:
                    return

    def _find_trails_in_page(self, since_us: int) -> None:
        infos = self._page(TRAILS, self._trail_key)
        for info in infos:
            if info.modified_us is None or info.modified_us >= since_us:
                run = _key_run(info.key)
                self._add_run(run)
        self._trail_key = ""
        if len(infos) == PAGE:
            self._trail_key = _next_key(
                infos[0].key,
                infos[-1].key,
            )

    def _page(self, prefix: str, first: str) -> list[ObjectInfo]:
        """List a page of a folder. first: key to begin with; "" for the folder's first. Raises: StoreError."""
        listed = list_from(
            self._store,
            prefix,
            first or prefix,
        )
        return list(islice(listed, PAGE))

    def _add_run(self, run: str) -> None:
        if run not in self.runs and is_run_name(run):
            self.runs[run] = RunReader(self._store, run)

    def _read_runs(self, now_s: float) -> None:
        def newest_first(reader: RunReader) -> tuple[int, str]:
            return -reader.newest_us, reader.run

        # New runs have no time yet, and are read before it is decided which ones stay.
        readers = list(self.runs.values())
        read_runs(
            readers,
            now_s,
            self._training_failed,
        )
        since_us = round(now_s * 1e6) - SILENT_US
        alive = [reader for reader in readers if reader.newest_us > since_us]
        alive.sort(key=newest_first)
        self._log_omission("trainings", len(alive) - MOST_RUNS, "the newest")
        # A run names itself once, so one that a failing store has not shown yet stays.
        unread = [reader for reader in readers if not reader.is_read]
        self.runs = {reader.run: reader for reader in (*alive[:MOST_RUNS], *unread)}
        for reader in self.runs.values():
            if reader.error:
                self.errors.setdefault(
                    "trainings",
                    reader.error,
                )

    def _training_failed(self, text: str) -> None:
        self._fail("trainings", text)

    @property
    def parts(self) -> tuple[str, ...]:
        """Parts that are read."""
        if self.cost is None:
            return PARTS
        return (*PARTS, COST)

    @property
    def suspects(self) -> dict[str, list[str]]:
        """Suspect node -> figures of each sign against it."""
        records = [reader.record for reader in self.runs.values()]
        return self._nodes.suspects(
            records,
            round(self.read_s * 1e6),
        )


def _next_key(first: str, last: str) -> str:
    """Return the key to go on from: after the whole run, if a page has only one."""
    run = _key_run(last)
    if run == _key_run(first):
        return f"{TRAILS}{run}0"  # "0" follows "/"
    return last


def _key_run(key: str) -> str:
    path = key.removeprefix(TRAILS)
    run, _, _ = path.partition("/")
    return run


def _day(at_s: float) -> str:
    moment = datetime.fromtimestamp(at_s, UTC)
    return f"{moment:%Y-%m-%d}"
