"""The record of a run under `trainings/<run>/` of a root (docs/format.md, "Training runs").

Objects are created, never replaced, except for a person's request to stop, which `resume` deletes.
"""

import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, TypeVar

from numpy.typing import NDArray

from loader.dataset.log.entries import canonical
from loader.dataset.log.marker import create_root_if_empty
from loader.errors import AlreadyExists, Corrupt, Forbidden, ObjectNotFound, PenstockError, RunNotFound
from loader.run.trail.trail import is_run_name
from loader.storage import ObjectInfo, Store

from ..checkpoints.ranks import map_in_order
from ..units import utc_day, utc_us
from .intervals import IntervalSum, TooManyRows, interval_columns, interval_sum, interval_values
from .record_objects.json_object import read_object, whole_number
from .record_objects.spec_changes import SpecChange, put_change, spec_changes, spec_of_record
from .run_spec import RunSpec, check_without_secrets

_log = logging.getLogger(__name__)
FORMAT = 1
FOLDER = "trainings/"
ACTIVE = "nodes/runs/"
"""Folder with an empty object `<day>/<run>` for each day of a run, so that a watcher need not list all runs."""
ATTEMPT = re.compile(r"([0-9]{6})\.json")
EVENT = re.compile(r"([0-9]{6})-([0-9]{6})\.json")
_INTERVAL = re.compile(r"([0-9]{6})-([0-9]{12})\.parquet")
AT_ONCE = 16
"""Objects read at once."""
MOST_INTERVALS = 1500
"""Intervals read for one answer: a day has 1,440."""
MOST_BYTES = 64 * 2**20
"""Most stored bytes of intervals whose rows are in memory at once."""
MOST_OBJECTS = 100_000
"""Starts or events of a run that are read: a checkpoint a minute, and an event for it, for ten weeks."""
MOST_EVENT_BYTES = 32 * 2**20
"""Most stored bytes of a run's starts, or events, that are in memory at once: an event has about 150."""
LARGE_BYTES = 4 * 2**20
"""Size from which an interval is in memory without others."""
_ONE_INTERVAL = threading.Lock()
"""Lock held while an interval is parsed, or a large one is read: a forged one may take 256 MiB."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A line in the life of a run."""

    attempt: int
    """Number of the start."""
    number: int
    name: str
    """Kind: ranks_up, restored, first_batch, saved, stopped, ended."""
    at_us: int
    """UTC microseconds since 1970, by the clock of the first rank's node."""
    step: int
    """Steps done by then."""
    facts: Mapping[str, Any]
    """Further facts, such as `took_us`."""

    def __str__(self) -> str:
        words = self.name.replace("_", " ")
        step = self.facts.get("checkpoint", self.step)
        return f"{words} ({step})"


class RunFolder:
    """The record of one run."""

    def __init__(self, store: Store, run: str) -> None:
        self.store = store
        self.run = run
        self._prefix = f"{FOLDER}{run}/"
        self._day = ""

    def key(self, name: str) -> str:
        """Return the key of an object of the record."""
        return f"{self._prefix}{name}"

    @property
    def stop_key(self) -> str:
        """Key of a person's request to stop."""
        return self.key("stop")

    def put_spec(self, spec: RunSpec, by: str = "") -> str:
        """Store the run's file, or what it changes; return the key of the stored object, "" if nothing differs.

        by: person who submits it. Raises: RunTaken for a change that a run cannot take; InvalidSpec for a secret.
        """
        check_without_secrets(spec, spec.run)
        stored = self.read_spec()
        if stored is None:
            create_root_if_empty(self.store)
            key = self.key("spec.json")
            try:
                self.store.put_if_absent(key, canonical({"format": FORMAT, **spec.to_json()}))
            except AlreadyExists:  # of another submit at this moment
                stored = self.spec()
            else:
                return key
        return put_change(self.store, self._prefix, stored, spec, by)

    def spec(self) -> RunSpec:
        """Return the run's file. Raises: RunNotFound; Corrupt."""
        spec = self.read_spec()
        if spec is None:
            self.check_exists()
            raise RunNotFound(
                f"{self.store.url}/{self.key('spec.json')} is not there: no penstock train submit started {self.run}, "
                "and no launcher has it"
            )
        return spec

    def withdraw_spec(self, key: str) -> None:
        """Delete the file or change, as `put_spec` returned it, that no launcher took."""
        self.store.delete_many([key])

    def check_exists(self) -> None:
        """Raise RunNotFound if the run has no record."""
        if not any(True for _ in self.store.list(self._prefix)):
            raise RunNotFound(f"{self.store.url} has no run {self.run!r}: penstock train ls lists them")

    def read_spec(self) -> RunSpec | None:
        """Return the run's newest file; None for a run that no `penstock train submit` started. Raises: Corrupt."""
        changes = self.spec_changes()
        if changes:
            return changes[-1].spec
        return self.first_spec()

    def first_spec(self) -> RunSpec | None:
        """Return the file that the run began with; None as in `read_spec`. Raises: Corrupt."""
        try:
            return spec_of_record(self.store, self.key("spec.json"), self.run)
        except ObjectNotFound:
            return None

    def spec_changes(self) -> list[SpecChange]:
        """Return the changes of the run's file, in order. Raises: Corrupt."""
        return spec_changes(self.store, self._prefix, self.run)

    def begin_attempt(self, facts: Mapping[str, Any]) -> int:
        """Store a start, and return its number, from 1 on. The same facts have one number: a call may be repeated."""
        create_root_if_empty(self.store)
        self._mark_active()
        numbers = {number for number, _ in self._starts()}
        free = next(number for number in count(1) if number not in numbers)  # a forged one may be very high
        number = max(1, free - 1)  # it may be this start's
        body = canonical({"format": FORMAT, "at_us": utc_us(), **facts})
        while True:
            try:
                self.store.put_if_absent(self.key(f"attempts/{number:06d}.json"), body)
            except AlreadyExists:
                number += 1
            else:
                return number

    def attempts(self) -> dict[int, dict[str, Any]]:
        """Return the starts by their number, `at_us`, `ranks` and `restarts` among their facts. Raises: Corrupt.

        `ranks_per_node` is 0 if a start does not name it.
        """
        starts = sorted(self._limit_objects("attempts", self._starts()), key=lambda start: start[0])
        facts = map_in_order(lambda start: self.attempt(start[1]), starts, at_once=AT_ONCE)
        return {number: its for (number, _), its in zip(starts, facts, strict=True)}

    def newest_attempt(self) -> tuple[int, dict[str, Any]]:
        """Return the number and the facts of the newest start; 0 and none without one. Raises: Corrupt."""
        newest = max(self._starts(), key=lambda start: start[0], default=None)
        if newest is None:
            return 0, {"restarts": -1}
        number, info = newest
        return number, self.attempt(info)

    def ranks_per_node(self, attempts: Mapping[int, Mapping[str, Any]]) -> dict[int, int]:
        """Return start -> ranks on each of its nodes. attempts: as `attempts` returns them. Raises: Corrupt.

        A start of an earlier release does not name them: then all starts had the number of the run's first file.
        """
        first = self.first_spec()
        number = 1
        if first is not None:
            number = first.ranks_per_node
        return {attempt: facts["ranks_per_node"] or number for attempt, facts in attempts.items()}

    def attempt(self, info: ObjectInfo) -> dict[str, Any]:
        """Return the facts of a listed start. Raises: Corrupt."""
        return read_object(self.store, info.key, "start", _start, nbytes=info.nbytes)

    def put_event(
        self,
        attempt: int,
        number: int,
        name: str,
        step: int,
        facts: Mapping[str, Any],
        at_us: int | None = None,
    ) -> None:
        """Store an event, once: a second one of its number is left out. at_us: None for now."""
        at_us = utc_us() if at_us is None else at_us
        body = {"format": FORMAT, "event": name, "at_us": at_us, "step": step, **facts}
        self._put_once(f"events/{attempt:06d}-{number:06d}.json", canonical(body))

    def put_interval(self, attempt: int, end_step: int, data: bytes) -> None:
        """Store the table of an interval that ends before this step, once."""
        self._mark_active()
        self._put_once(f"windows/{attempt:06d}-{end_step:012d}.parquet", data)

    def _mark_active(self) -> None:
        """Name the run under the day, once. A watcher that runs already sees no other run."""
        day = utc_day(utc_us())
        if day == self._day:
            return
        try:
            self.store.put_if_absent(f"{ACTIVE}{day}/{self.run}", b"")
        except AlreadyExists:
            pass
        except PenstockError as error:  # a watcher may miss this run; its record is whole
            _log.warning("could not name %s among the active runs: %s", self.run, error)
            # A role that may not write there never may: do not ask at each interval.
            if not isinstance(error, Forbidden):
                return
        self._day = day

    def put_trace(self, name: str, data: bytes) -> None:
        """Store a profiler's trace under its name, once."""
        self._put_once(f"profiles/{name}", data)

    def _put_once(self, name: str, data: bytes) -> None:
        with suppress(AlreadyExists):  # a request that was repeated
            self.store.put_if_absent(self.key(name), data)

    def events(self, attempt: int | None = None) -> list[Event]:
        """Return the events in order: of one start, or of all. Raises: Corrupt."""
        start = ""
        if attempt is not None:
            start = f"{attempt:06d}-"
        numbered = (
            ((int(match[1]), int(match[2])), info)
            for info in self.store.list(self.key(f"events/{start}"))
            if (match := EVENT.fullmatch(info.key.rpartition("/")[2]))
        )
        listed = sorted(self._limit_objects("events", numbered), key=lambda item: item[0])
        return list(map_in_order(lambda item: self.event(*item), listed, at_once=AT_ONCE))

    def event(self, numbers: tuple[int, int], info: ObjectInfo) -> Event:
        """Return a listed event. numbers: of its start, and of the event in that start. Raises: Corrupt."""

        def parse(body: dict[str, Any]) -> Event:
            facts = {name: body[name] for name in body.keys() - {"format", "event", "at_us", "step"}}
            if "took_us" in facts:
                facts["took_us"] = whole_number(body, "took_us")
            return Event(
                attempt=numbers[0],
                number=numbers[1],
                name=str(body["event"]),
                at_us=whole_number(body, "at_us"),
                step=whole_number(body, "step"),
                facts=facts,
            )

        return read_object(self.store, info.key, "event", parse, nbytes=info.nbytes)

    def interval_keys(self, attempt: int | None = None) -> list["IntervalKey"]:
        """Return the keys of intervals in order: of one start, or of all. Costs a listing of them."""
        start = ""
        if attempt is not None:
            start = f"{attempt:06d}-"
        return interval_keys(self.store.list(self.key(f"windows/{start}")))

    def interval_sums(self, keys: Sequence["IntervalKey"] | None = None) -> list[IntervalSum]:
        """Return the sums of the intervals, in order. Memory does not grow with their ranks. keys: None lists them.

        If there are more than `MOST_INTERVALS`, it reads an even choice, and the last interval of each start.
        Raises: Corrupt.
        """

        def sum_key(key: IntervalKey) -> IntervalSum:
            def sum_data(data: bytes, where: str) -> IntervalSum:
                return interval_sum(key.attempt, key.end_step, interval_values(data, where), where)

            return self.with_interval(key, sum_data)

        listed = self.interval_keys() if keys is None else keys
        return list(map_in_order(sum_key, _even(listed), at_once=AT_ONCE))

    def with_interval(self, key: "IntervalKey", call: Callable[[bytes, str], T]) -> T:
        """Return what `call` makes of an interval's bytes and address, one interval at a time in this process.

        Raises: Corrupt.
        """
        where = f"{self.store.url}/{key.key}"
        if key.nbytes > LARGE_BYTES:
            with _ONE_INTERVAL:
                return call(self._interval(key), where)
        data = self._interval(key)
        with _ONE_INTERVAL:
            return call(data, where)

    def intervals(self, keys: Sequence["IntervalKey"] | None = None) -> dict[str, NDArray[Any]]:
        """Return the rows of intervals as columns, in order, `attempt` among them; none without intervals.

        keys: Some of `interval_keys`; None for all. If there are more than `MOST_INTERVALS`, or than `MOST_BYTES` in
            all, it reads an even choice, and the last interval of each start.

        Raises: Corrupt.
        """
        chosen = _even(self.interval_keys() if keys is None else keys)
        while len(chosen) > 1 and sum(key.nbytes for key in chosen) > MOST_BYTES:
            fewer = _even(chosen, len(chosen) // 2)
            if len(fewer) == len(chosen):
                break
            chosen = fewer
        tables: dict[int, list[bytes]] = {}
        for key, data in zip(chosen, map_in_order(self._interval, chosen, at_once=AT_ONCE), strict=True):
            tables.setdefault(key.attempt, []).append(data)
        try:
            return interval_columns(tables, f"{self.store.url}/{self.key('windows/')}")
        except TooManyRows:
            fewer = _even(chosen, len(chosen) // 2)
            if len(fewer) == len(chosen):
                raise
            return self.intervals(fewer)

    def _interval(self, key: "IntervalKey") -> bytes:
        if key.nbytes > MOST_BYTES:
            raise Corrupt(f"{self.store.url}/{key.key} has {key.nbytes:,} bytes; an interval has fewer")
        return self.store.get(key.key).data

    def ask_to_stop(self, by: str) -> None:
        """Ask the run to save and end."""
        self.store.put(self.stop_key, json.dumps({"by": by, "at_us": utc_us()}).encode())

    def withdraw_stop(self) -> None:
        """Take the request back, so that the run may begin again."""
        self.store.delete_many([self.stop_key])

    def is_to_stop(self) -> bool:
        """Return whether a person asked it to stop."""
        try:
            self.store.head(self.stop_key)
        except ObjectNotFound:
            return False
        return True

    def _starts(self) -> Iterator[tuple[int, ObjectInfo]]:
        for info in self.store.list(self.key("attempts/")):
            if match := ATTEMPT.fullmatch(info.key.rpartition("/")[2]):
                yield int(match[1]), info

    def _limit_objects(
        self, folder: str, objects: Iterable[tuple[T, ObjectInfo]]
    ) -> Iterator[tuple[T, ObjectInfo]]:
        """Yield the objects of a folder of the record. Raises: Corrupt if they are more than a run writes."""
        nbytes = 0
        for number, (name, info) in enumerate(objects):
            nbytes += info.nbytes
            if number == MOST_OBJECTS or nbytes > MOST_EVENT_BYTES:
                raise Corrupt(
                    f"{self.store.url}/{self.key(folder)} has more than {MOST_OBJECTS:,} objects or "
                    f"{MOST_EVENT_BYTES:,} bytes; a run has fewer",
                    what=folder,
                    where=self.store.url,
                    accepted=[MOST_OBJECTS, MOST_EVENT_BYTES],
                )
            yield name, info


class IntervalKey(NamedTuple):
    """The object of an interval."""

    attempt: int
    """Number of the start."""
    end_step: int
    """Step after the interval."""
    key: str
    nbytes: int
    """Its size."""


def interval_keys(infos: Iterable[ObjectInfo]) -> list[IntervalKey]:
    """Return the intervals among objects, in order."""
    matches = ((info, _INTERVAL.fullmatch(info.key.rpartition("/")[2])) for info in infos)
    return sorted(IntervalKey(int(m[1]), int(m[2]), info.key, info.nbytes) for info, m in matches if m)


def _even(keys: Sequence[IntervalKey], most: int = 0) -> Sequence[IntervalKey]:
    """Return at most so many keys, evenly chosen, and the last one of each start. most: 0 for MOST_INTERVALS."""
    # Rounded up, so that the choice is never larger than asked for.
    stride = max(1, -(-len(keys) // (most or MOST_INTERVALS)))
    # The last interval of a start has its end, which sums and goodput need.
    last = {key.attempt: number for number, key in enumerate(keys)}
    return [keys[number] for number in sorted({*range(0, len(keys), stride), *last.values()})]


def runs(store: Store) -> list[str]:
    """Return the names of the runs that have a record."""
    return sorted({run for run, _ in run_objects(store)} - {""})


def run_objects(store: Store) -> Iterator[tuple[str, ObjectInfo]]:
    """Yield the run of each object of the records; "" if its folder is not a run's name."""
    for info in store.list(FOLDER):
        run, slash, _ = info.key.removeprefix(FOLDER).partition("/")
        yield run if slash and is_run_name(run) else "", info


def _start(body: dict[str, Any]) -> dict[str, Any]:
    defaults = {"ranks": 1, "restarts": 0, "ranks_per_node": 0}
    numbers = {name: whole_number(body, name, default) for name, default in defaults.items()}
    return body | numbers | {"at_us": whole_number(body, "at_us"), "ranks": max(1, numbers["ranks"])}
