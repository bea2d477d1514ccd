"""The record of a run under `trainings/<run>/` of a root (docs/format.md, "Training runs").

Objects are created, never replaced, except for a person's request to stop, which `resume` deletes.
"""

import json
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from loader.dataset.log.entries import canonical
from loader.errors import (
    AlreadyExists,
    Corrupt,
    Forbidden,
    ObjectNotFound,
    PenstockError,
    RunNotFound,
    RunTaken,
)
from loader.json_text import parse_json_object
from loader.storage import Store

from ..checkpoints.ranks import several
from .run_spec import RunSpec, spec_of
from .windows import window_columns

_log = logging.getLogger(__name__)
FORMAT = 1
FOLDER = "trainings/"
ACTIVE = "nodes/runs/"
"""Folder with an empty object `<day>/<run>` for each day of a run, so that a watcher need not list all runs."""
_ATTEMPT = re.compile(r"([0-9]{6})\.json")
_EVENT = re.compile(r"([0-9]{6})-([0-9]{6})\.json")
_WINDOW = re.compile(r"([0-9]{6})-([0-9]{12})\.parquet")
AT_ONCE = 16
"""Objects read at once."""
MOST_WINDOWS = 1500
"""Windows read for one answer: a day has 1,440."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A line in the life of a run."""

    attempt: int
    """Number of the start."""
    number: int
    """Number of the event in it."""
    name: str
    """Kind: ranks_up, restored, first_batch, saved, stopped, ended."""
    at_us: int
    """UTC microseconds since 1970, by the clock of the first rank's node."""
    step: int
    """Steps done by then."""
    facts: Mapping[str, Any]
    """Further facts, such as `took_us`."""


class RunFolder:
    """The record of one run."""

    def __init__(self, store: Store, run: str) -> None:
        self.store, self.run = store, run
        self._prefix = f"{FOLDER}{run}/"
        self._day = ""

    def key(self, name: str) -> str:
        """Return the key of an object of the record."""
        return f"{self._prefix}{name}"

    @property
    def stop_key(self) -> str:
        """Key of a person's request to stop."""
        return self.key("stop")

    def put_spec(self, spec: RunSpec) -> None:
        """Store the run's file, unless it is stored. Raises: RunTaken if another one is."""
        data = canonical({"format": FORMAT, **spec.to_json()})
        try:
            self.store.put_if_absent(self.key("spec.json"), data)
        except AlreadyExists:
            stored = self.spec()
            if stored != spec:
                changed = [name for name, value in spec.to_json().items() if stored.to_json()[name] != value]
                raise RunTaken(
                    f"{self.store.url}/{self.key('spec.json')} differs in {', '.join(changed)}: give the run another "
                    "name, or submit the file that it was started from"
                ) from None

    def spec(self) -> RunSpec:
        """Return the run's file. Raises: RunNotFound; Corrupt."""
        key = self.key("spec.json")
        try:
            data = self.store.get(key).data
        except ObjectNotFound:
            raise RunNotFound(
                f"{self.store.url} has no run {self.run!r}: penstock train ls lists them"
            ) from None
        values = json_object(data, f"{self.store.url}/{key}")
        return spec_of({name: value for name, value in values.items() if name != "format"}, key)

    def begin_attempt(self, facts: Mapping[str, Any]) -> int:
        """Store a start, and return its number, from 1 on."""
        self._mark_active()
        numbers = [number for number, _ in self._attempt_keys()]
        number = max(numbers, default=0) + 1
        body = canonical({"format": FORMAT, "at_us": time.time_ns() // 1000, **facts})
        while True:
            try:
                self.store.put_if_absent(self.key(f"attempts/{number:06d}.json"), body)
            except AlreadyExists:
                number += 1
            else:
                return number

    def attempts(self) -> dict[int, dict[str, Any]]:
        """Return the starts by their number. Raises: Corrupt."""
        keys = sorted(self._attempt_keys())
        datas = several(lambda key: self.store.get(key[1]).data, keys, at_once=AT_ONCE)
        return {
            number: json_object(data, f"{self.store.url}/{key}")
            for (number, key), data in zip(keys, datas, strict=True)
        }

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
        at_us = time.time_ns() // 1000 if at_us is None else at_us
        body = {"format": FORMAT, "event": name, "at_us": at_us, "step": step, **facts}
        self._put_once(f"events/{attempt:06d}-{number:06d}.json", canonical(body))

    def put_window(self, attempt: int, end_step: int, data: bytes) -> None:
        """Store the table of a window that ends before this step, once."""
        self._mark_active()
        self._put_once(f"windows/{attempt:06d}-{end_step:012d}.parquet", data)

    def _mark_active(self) -> None:
        """Name the run under the day, once. A watcher that runs already sees no other run."""
        day = time.strftime("%Y-%m-%d", time.gmtime())
        if day == self._day:
            return
        try:
            self.store.put_if_absent(f"{ACTIVE}{day}/{self.run}", b"")
        except AlreadyExists:
            pass
        except PenstockError as error:  # it costs the watcher's eye, not the record
            _log.warning("could not name %s among the active runs: %s", self.run, error)
            if not isinstance(error, Forbidden):
                return
        self._day = day

    def put_trace(self, name: str, data: bytes) -> None:
        """Store a profiler's trace under its name, once."""
        self._put_once(f"profiles/{name}", data)

    def _put_once(self, name: str, data: bytes) -> None:
        with suppress(AlreadyExists):  # a request that was repeated
            self.store.put_if_absent(self.key(name), data)

    def events(self) -> list[Event]:
        """Return all events, in order. Raises: Corrupt."""
        keys = {
            (int(match[1]), int(match[2])): info.key
            for info in self.store.list(self.key("events/"))
            if (match := _EVENT.fullmatch(info.key.rpartition("/")[2]))
        }
        return list(several(lambda item: self.event(*item), sorted(keys.items()), at_once=AT_ONCE))

    def event(self, numbers: tuple[int, int], key: str) -> Event:
        """Return the event under a key. numbers: of its start, and of the event in it. Raises: Corrupt."""
        where = f"{self.store.url}/{key}"
        body = json_object(self.store.get(key).data, where)
        try:
            return Event(
                attempt=numbers[0],
                number=numbers[1],
                name=str(body["event"]),
                at_us=int(body["at_us"]),
                step=int(body["step"]),
                facts={name: body[name] for name in body.keys() - {"format", "event", "at_us", "step"}},
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"{where} lacks event, at_us or step") from error

    def window_keys(self) -> list[tuple[int, str]]:
        """Return the number of the start and the key of each window, in order."""
        return sorted(
            (int(match[1]), info.key)
            for info in self.store.list(self.key("windows/"))
            if (match := _WINDOW.fullmatch(info.key.rpartition("/")[2]))
        )

    def window_steps(self, attempt: int) -> list[int]:
        """Return the steps done by the end of each window of a start. Costs a listing of them."""
        infos = self.store.list(self.key(f"windows/{attempt:06d}-"))
        return [int(match[2]) for info in infos if (match := _WINDOW.fullmatch(info.key.rpartition("/")[2]))]

    def windows(self, keys: Sequence[tuple[int, str]] | None = None) -> dict[str, NDArray[Any]]:
        """Return the rows of windows as columns, in order, `attempt` among them; none without windows.

        keys: Some of `window_keys`; None for all. If they are more than `MOST_WINDOWS`, an even choice is read, and the
            last window of each start.

        Raises: Corrupt.
        """
        keys = self.window_keys() if keys is None else keys
        stride = max(1, -(-len(keys) // MOST_WINDOWS))
        last = {attempt: number for number, (attempt, _) in enumerate(keys)}
        chosen = [keys[number] for number in sorted({*range(0, len(keys), stride), *last.values()})]
        datas = several(lambda key: self.store.get(key[1]).data, chosen, at_once=AT_ONCE)
        tables: dict[int, list[bytes]] = {}
        for (attempt, _), data in zip(chosen, datas, strict=True):
            tables.setdefault(attempt, []).append(data)
        return window_columns(tables, f"{self.store.url}/{self.key('windows/')}")

    def ask_to_stop(self, by: str) -> None:
        """Ask the run to save and end."""
        self.store.put(self.stop_key, json.dumps({"by": by, "at_us": time.time_ns() // 1000}).encode())

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

    def _attempt_keys(self) -> Iterator[tuple[int, str]]:
        for info in self.store.list(self.key("attempts/")):
            if match := _ATTEMPT.fullmatch(info.key.rpartition("/")[2]):
                yield int(match[1]), info.key


def end_step(key: str) -> int:
    """Return the step after a window, by its key; -1 for another key."""
    match = _WINDOW.fullmatch(key.rpartition("/")[2])
    return int(match[2]) if match else -1


def runs(store: Store) -> list[str]:
    """Return the names of the runs that have a record."""
    records = {info.key.removeprefix(FOLDER).partition("/")[0] for info in store.list(FOLDER)}
    return sorted(records)


@dataclass(slots=True, kw_only=True)
class RunBrief:
    """A run as one listing and its newest events have it."""

    run: str
    """Name."""
    attempts: list[int] = field(default_factory=list)
    """Numbers of its starts."""
    events: list[Event] = field(default_factory=list)
    """Newest event, behind the newest with a step if it has none."""
    window_step: int = 0
    """Steps done by its newest window."""
    stopping: bool = False
    """True if a person asked it to stop."""


def briefs(store: Store) -> list[RunBrief]:
    """Return all runs of a record: one listing, and at most two requests for each run. Raises: Corrupt."""
    by_run: dict[str, RunBrief] = {}
    newest: dict[tuple[str, bool], tuple[tuple[int, int], str]] = {}
    for info in store.list(FOLDER):
        run, _, name = info.key.removeprefix(FOLDER).partition("/")
        brief = by_run.setdefault(run, RunBrief(run=run))
        kind, _, file = name.rpartition("/")
        if kind == "attempts" and (match := _ATTEMPT.fullmatch(file)):
            brief.attempts.append(int(match[1]))
        elif kind == "windows" and (match := _WINDOW.fullmatch(file)):
            brief.window_step = max(brief.window_step, int(match[2]))
        elif kind == "events" and (match := _EVENT.fullmatch(file)):
            numbered = (int(match[1]), int(match[2])), info.key
            for has_step in {False, int(match[2]) > 0}:  # the first event of a start comes before its steps
                newest[run, has_step] = max(newest.get((run, has_step), numbered), numbered)
        brief.stopping |= name == "stop"
    keys = sorted({(run, *numbered) for (run, _), numbered in newest.items()})
    events = several(lambda key: RunFolder(store, key[0]).event(*key[1:]), keys, at_once=AT_ONCE)
    for (run, *_), event in zip(keys, events, strict=True):
        by_run[run].events.append(event)
    return [by_run[run] for run in sorted(by_run)]


def json_object(data: bytes, where: str) -> dict[str, Any]:
    """Return the JSON object of a stored record. Raises: Corrupt."""
    try:
        return parse_json_object(data)
    except ValueError as error:
        raise Corrupt(f"{where} is damaged: {error}") from error
