"""Read the signs of a record: faults, intervals, ends of attempts, failed checks.

A watcher looks every 15 s for years. So a `SignReader` lists only keys from shortly before the last that it has read:
they begin with a time or a number that rises. Each training names itself once a day under `nodes/runs/`. The first
reading lists the whole record. A damaged object is logged once, and hides no other one.

A trainer may create any key and write any time. So all recent keys of a run are listed again every 10 min. No node's
signs replace another node's. No time counts as later than the object's own or now.
"""

import heapq
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from loader.dataset.log.entries import DAMAGED
from loader.dataset.reading.read_faults import NEWEST
from loader.errors import Corrupt, EngineUnreachable
from loader.storage import ObjectInfo, Store
from loader.storage.store import list_from

from ..checkpoints.marker import is_run
from ..checkpoints.ranks import map_in_order
from ..train.intervals import IntervalValues, interval_values
from ..train.launch.launcher import Span
from ..train.record_objects.json_object import read_object
from ..train.record_writer import parse_faults
from ..train.run_folder import ACTIVE, AT_ONCE, FOLDER, Event, RunFolder, interval_keys
from ..units import utc_day, utc_us
from .node_check import CHECKS
from .notices import Notices, Subject
from .recent_keys import MOST_BYTES, ListedKeys, TimedFolder
from .suspects import (
    CLOCKS_US,
    MINUTE_US,
    RECENT_US,
    Attempt,
    FailedCheck,
    LossDifference,
    NodeFault,
    NodeInterval,
    NodeSigns,
    is_node,
)

_log = logging.getLogger(__name__)
ATTEMPTS_US = 14 * 24 * 60 * MINUTE_US
"""Age at which ends of attempts no longer count."""
LOSSES_US = ALIVE_US = 24 * 60 * MINUTE_US
"""Age at which differences of replays no longer count, and at which a silent run is no longer read."""
RUN_EVERY_US = MINUTE_US
"""Time between two readings of a run's attempts, events and intervals."""
LATE_US = 10 * MINUTE_US
"""Time for which a scheduler's accounting, and the trail of a replay, may be late."""
AHEAD_US = 60 * MINUTE_US
"""Most by which the clock of a rank may be ahead of this one."""
LIST_ALL_US = 10 * MINUTE_US
"""Time after which all keys of a run are listed again: forged ones with high numbers may sort after new ones."""
MOST_INTERVAL_BYTES = 64 * 2**20
"""Larger intervals are left out, with a warning: one of 100,000 ranks has 20 MB."""
MOST_SIGNS = 20_000
"""Most faults of a run, and most failed checks, in memory."""
NO_FAILURE = ("PREEMPTED", "CANCELLED", "TIMEOUT", "DEADLINE", "COMPLETED", "NODE_FAIL")
"""Slurm's states of a start that no node in use ended: after NODE_FAIL, Slurm itself keeps the node out of use."""
LAST_EVENTS = ("stopped", "ended", "failed", "killed")
Spans = Callable[[str], Sequence[Span]]
"""Name of a run -> the times that its scheduler gave it."""
Losses = Callable[[str], Sequence[LossDifference]]
"""Name of a run -> differences of its replays."""
T = TypeVar("T")


def read_signs(
    store: Store, now_us: int, spans: Spans | None = None, losses: Losses | None = None
) -> NodeSigns:
    """Return the signs of all runs, by a new `SignReader`."""
    return SignReader(store, spans, losses).read(now_us)


class SignReader:
    """Reads the signs of a record again and again.

    spans: Accounting of a run's starts; without it, nodes of attempts are known from intervals only, and each end that
        was not asked for is a crash.
    losses: Compares a run's replays with their originals; without it, no loss is a sign.
    """

    def __init__(self, store: Store, spans: Spans | None = None, losses: Losses | None = None) -> None:
        self._store = store
        self._spans = spans
        self._losses = losses
        self._runs: dict[str, _RunReader] = {}
        self._alive_us: dict[str, int] | None = None
        """Run -> time of its newest sign of life; None before the first reading."""
        self._checks = TimedFolder(store, CHECKS)
        self._failed_checks: dict[str, FailedCheck] = {}
        """Node -> its newest failed check."""

    def read(self, now_us: int, nodes: Collection[str] | None = None) -> NodeSigns:
        """Return the signs of all runs at a time. Raises: StoreError.

        nodes: Names of the nodes whose wrong reads and checks count; None for all.
        """
        names = self._active_runs(now_us)
        for name in names - self._runs.keys():
            self._runs[name] = _RunReader(RunFolder(self._store, name), self._spans, self._losses)
        for _ in map_in_order(lambda name: self._runs[name].read(now_us, nodes), names, at_once=AT_ONCE):
            pass
        self._read_checks(now_us, nodes)
        for name in self._runs.keys() - names:
            self._runs[name].forget(now_us)
        runs = self._runs.values()
        return NodeSigns(
            faults=[fault for run in runs for fault in run.faults()],
            intervals=[interval for run in runs for interval in run.intervals],
            attempts=[attempt for run in runs for attempt in run.ended],
            losses=[loss for run in runs for loss in run.differences],
            checks=[*self._failed_checks.values()],
        )

    def _active_runs(self, now_us: int) -> set[str]:
        """Return the runs to read: active ones, and at the first reading all with attempts that count."""
        first = utc_day(now_us - ALIVE_US)
        last = utc_day(now_us + AHEAD_US)
        alive = self._listed() if self._alive_us is None else dict(self._alive_us)
        for info in list_from(self._store, ACTIVE, f"{ACTIVE}{first}"):
            day, _, name = info.key.removeprefix(ACTIVE).partition("/")
            if day <= last and is_run(name):
                alive[name] = now_us
        names = {name for name, at_us in alive.items() if at_us > now_us - ATTEMPTS_US}
        names |= {name for name, run in self._runs.items() if not run.is_read}  # the store failed
        self._alive_us = {name: at_us for name, at_us in alive.items() if at_us > now_us - ALIVE_US}
        return names

    def _listed(self) -> dict[str, int]:
        """Return run -> time of its newest object. Costs a listing of all records."""
        newest: dict[str, int] = {}
        now_us = utc_us()
        for info in self._store.list(FOLDER):
            name, slash, _ = info.key.removeprefix(FOLDER).partition("/")
            if slash and is_run(name):
                newest[name] = max(newest.get(name, 0), _not_ahead(now_us, info, now_us))
        return newest

    def _read_checks(self, now_us: int, nodes: Collection[str] | None) -> None:
        """Read the new checks, and keep each node's newest one while it is recent. nodes: as for `read`."""
        for info in self._checks.new(now_us):
            try:
                check = parse_failed_check(self._store, info, now_us)
            except Corrupt as error:
                _log.warning("%s", error)
                continue
            if not is_node(check.node) or (nodes is not None and check.node not in nodes):
                continue
            former = self._failed_checks.get(check.node)
            if former is None or check.at_us > former.at_us:
                self._failed_checks[check.node] = check
        recent = [check for check in self._failed_checks.values() if check.at_us > now_us - RECENT_US]
        # Bounded: without `nodes`, the record's writers may name any number of them.
        newest = heapq.nlargest(MOST_SIGNS, recent, key=lambda check: check.at_us)
        self._failed_checks = {check.node: check for check in newest}


def parse_failed_check(store: Store, info: ObjectInfo, now_us: int) -> FailedCheck:
    """Return a listed failed check of a node. Raises: Corrupt; StoreError."""

    def parse(body: dict[str, Any]) -> FailedCheck:
        return FailedCheck(
            node=str(body["node"]),
            at_us=_not_ahead(int(body["at_us"]), info, now_us),
            check=str(body["check"])[:200],
            text=str(body["text"])[:200],
        )

    return read_object(store, info.key, "failed check", parse, nbytes=info.nbytes)


def _not_ahead(at_us: int, info: ObjectInfo, now_us: int) -> int:
    """Return a rank's time of a sign, or an earlier one if its clock is ahead."""
    if info.modified_us is None:
        return min(at_us, now_us)
    return min(at_us, now_us, info.modified_us)


class _RunReader:
    """The signs of one run."""

    def __init__(self, folder: RunFolder, spans: Spans | None, losses: Losses | None) -> None:
        self.intervals: list[NodeInterval] = []
        self.ended: list[Attempt] = []
        self.differences: list[LossDifference] = []
        self._folder = folder
        self._store = folder.store
        self._run = folder.run
        self._spans = spans
        self._losses = losses
        self._faults: dict[str, deque[NodeFault]] = {}
        self._fault_lists = TimedFolder(folder.store, folder.key("faults/"))
        self._keys = {kind: ListedKeys() for kind in ("attempts", "events", "windows")}
        self._begun: dict[int, tuple[int, str]] = {}
        """Attempt -> (UTC microseconds of its begin, node of its first rank; "" if unknown)."""
        self._last_events: dict[int, tuple[str, int]] = {}
        """Attempt -> (name, UTC microseconds) of its newest event; of its end, once there is one."""
        self._nodes: dict[int, set[str]] = {}
        self._end_steps: dict[int, int] = {}
        self._saved_steps: dict[int, int] = {}
        self._is_unjudged = True
        """True until the attempts were judged once: the accounting may not answer."""
        self.is_read = False
        """True once `read` has read all kinds of objects."""
        self._notices = Notices()
        self._is_changed = False
        """True from a change until the attempts were judged after it: a store may fail between the two."""
        self._changed_us = 0
        """Time of the newest change: attempts are judged again until `LATE_US` after it."""
        self._next_us = 0
        """Time of the next reading of attempts, events and intervals."""
        self._all_us = 0
        """Time from which on that reading lists all keys."""

    def read(self, now_us: int, nodes: Collection[str] | None) -> None:
        """Add new signs, and forget old ones. Raises: StoreError."""
        for fault in self._new_faults(now_us):
            if nodes is None or fault.node in nodes:
                self._faults.setdefault(fault.node, deque(maxlen=NEWEST)).append(fault)
        while sum(map(len, self._faults.values())) > MOST_SIGNS:
            max(self._faults.values(), key=len).popleft()
        if now_us >= self._next_us:
            lists_all = now_us >= self._all_us
            self._read("windows", now_us - RECENT_US, self._interval, self._add_interval, lists_all)
            self._read("attempts", now_us - ATTEMPTS_US, self._folder.attempt, self._add_attempt, lists_all)
            self._read("events", now_us - ATTEMPTS_US, self._event, self._add_event, lists_all)
            if self._is_changed:
                self._changed_us = now_us
            if self._is_unjudged or now_us < self._changed_us + LATE_US:
                self._judge()
                self._compare()
            self._is_changed = False
            self._next_us = now_us + RUN_EVERY_US
            self.is_read = True
            self._all_us = now_us + LIST_ALL_US if lists_all else self._all_us
        self.forget(now_us)

    def faults(self) -> Iterator[NodeFault]:
        """Yield the wrong reads of all nodes."""
        for own in self._faults.values():
            yield from own

    def forget(self, now_us: int) -> None:
        """Drop signs that no longer count."""
        for node, own in [*self._faults.items()]:
            recent = [fault for fault in own if fault.at_us > now_us - RECENT_US]
            self._faults[node] = deque(recent, NEWEST)
        self._faults = {node: own for node, own in self._faults.items() if own}
        self.intervals = [one for one in self.intervals if one.ended_us > now_us - RECENT_US]
        self.ended = [one for one in self.ended if one.ended_us > now_us - ATTEMPTS_US]
        self.differences = [one for one in self.differences if one.at_us > now_us - LOSSES_US]

    def _new_faults(self, now_us: int) -> Iterator[NodeFault]:
        """Yield wrong reads of lists that were not read before. A trainer may write anything there."""
        for info in self._fault_lists.new(now_us):
            try:
                pairs = parse_faults(self._store, info)
            except Corrupt as error:
                _log.warning("%s", error)
                continue
            for node, read_fault in pairs[-NEWEST:]:  # as many as a node's faults in memory
                fault = NodeFault(node=node, **read_fault._asdict())
                if fault.is_valid:
                    yield replace(fault, at_us=_not_ahead(fault.at_us, info, now_us))

    def _read(
        self,
        kind: str,
        since_us: int,
        parse: Callable[[ObjectInfo], T],
        add: Callable[[int, T], None],
        lists_all: bool,
    ) -> None:
        """Parse the new objects of a kind, and add each with the number of its start."""
        prefix = self._folder.key(f"{kind}/")
        keys = self._keys[kind]
        most = MOST_INTERVAL_BYTES if kind == "windows" else MOST_BYTES
        first = prefix
        if not lists_all and keys.since:
            first = keys.since
        infos = [*list_from(self._store, prefix, first)]
        recent = [info for info in infos if info.modified_us is None or info.modified_us >= since_us]
        unknown = [info for info in recent if info.key not in keys.known]
        new = [info for info in unknown if info.nbytes <= most]
        for info in unknown:
            if info.nbytes > most:
                _log.warning(
                    "%s is left out: it has %s bytes; accepted: at most %s",
                    info.key,
                    f"{info.nbytes:,}",
                    f"{most:,}",
                )

        def parsed(info: ObjectInfo) -> tuple[int, T] | None:
            try:
                return int(info.key.removeprefix(prefix)[:6]), parse(info)
            except DAMAGED as error:  # Corrupt too
                _log.warning("%s is left out: %s", info.key, error)
                return None

        for info, pair in zip(new, map_in_order(parsed, new, at_once=AT_ONCE), strict=True):
            if pair is not None:
                add(*pair)
            keys.known.add(info.key)
        keys.add_listing([info.key for info in infos], {info.key for info in recent}, lists_all)

    def _interval(self, info: ObjectInfo) -> list[NodeInterval]:
        (key,) = interval_keys([info])
        return self._folder.with_interval(
            key, lambda *interval: [*interval_rows(self._run, key.attempt, info, interval_values(*interval))]
        )

    def _add_interval(self, attempt: int, rows: list[NodeInterval]) -> None:
        self._is_changed = True
        for row in rows:
            self._nodes.setdefault(attempt, set()).add(row.node)
            self._end_steps[attempt] = max(self._end_steps.get(attempt, 0), row.end_step)
        self.intervals += rows

    def _add_attempt(self, attempt: int, facts: dict[str, Any]) -> None:
        self._is_changed = True
        self._begun[attempt] = facts["at_us"], str(facts.get("node", ""))

    def _event(self, info: ObjectInfo) -> Event:
        return self._folder.event((0, 0), info)

    def _add_event(self, attempt: int, event: Event) -> None:
        is_end = event.name in LAST_EVENTS
        last, _ = self._last_events.get(attempt, ("", 0))
        # An event that is listed after the attempt's end does not hide the end.
        if is_end or last not in LAST_EVENTS:
            self._last_events[attempt] = event.name, event.at_us
        self._end_steps[attempt] = max(self._end_steps.get(attempt, 0), event.step)
        if event.name == "saved":
            self._saved_steps[attempt] = max(self._saved_steps.get(attempt, 0), event.step)
        if is_end:
            self._is_changed = True

    def _judge(self) -> None:
        """Judge the attempts that ended; one without an end ended if a later one began."""
        self._is_unjudged = True
        try:
            accounted: list[Span] = []
            if self._spans is not None and self._begun:
                accounted = list(self._spans(self._run))
        except EngineUnreachable as error:  # without it a preemption looks like a crash
            self._warn("crashes", f"no crashes of {self._run} are judged: {error}")
            return
        self._notices.drop(lambda about: about.kind == "crashes")
        ended = list[Attempt]()
        for number, (begun_us, first) in sorted(self._begun.items()):
            span = _start_span(begun_us, accounted)
            last, last_us = self._last_events.get(number, ("", 0))
            ended_us = None
            if number + 1 in self._begun:
                ended_us, _ = self._begun[number + 1]
            if span is not None and span.ended_us is not None:
                ended_us = span.ended_us
            elif last in LAST_EVENTS:
                ended_us = last_us
            if ended_us is None:
                continue
            is_failure = span is None or not span.state.startswith(NO_FAILURE)
            if span is not None and span.node_names:
                nodes = span.node_names
            else:
                nodes = tuple(self._attempt_nodes(number, first))
            ended.append(
                Attempt(
                    run=self._run,
                    number=number,
                    nodes=nodes,
                    ended_us=min(ended_us, utc_us()),
                    failed=last not in ("stopped", "ended") and is_failure,
                    end_step=self._end_steps.get(number, 0),
                    saved_step=self._saved_steps.get(number, 0),
                )
            )
        self.ended = ended
        self._is_unjudged = False

    def _warn(self, kind: str, text: str) -> None:
        """Log a text once until it changes: the readings come once a minute."""
        if self._notices.is_new(Subject(self._run, kind), text):
            _log.warning("%s", text)

    def _attempt_nodes(self, attempt: int, first: str) -> list[str]:
        """Return the nodes of an attempt: of its first rank, and of its last interval if there is one."""
        if attempt not in self._nodes:
            nodes = {first} if is_node(first) else set[str]()
            for info in [*self._store.list(self._folder.key(f"windows/{attempt:06d}-"))][-1:]:
                try:
                    nodes |= {row.node for row in self._interval(info)}
                except DAMAGED as error:
                    _log.warning("%s/%s is left out: %s", self._store.url, info.key, error)
            self._nodes[attempt] = nodes
        return sorted(self._nodes[attempt])

    def _compare(self) -> None:
        if self._losses is not None:
            try:
                self.differences = list(self._losses(self._run))
                self._notices.drop(lambda about: about.kind == "losses")
            except (Corrupt, ValueError) as error:
                self._warn("losses", f"the losses of {self._run} are not compared: {error}")


def _start_span(begun_us: int, spans: Sequence[Span]) -> Span | None:
    """Return the span in which a start began by its node's clock, or the nearest one if that clock may be wrong."""

    def distance_us(span: Span) -> int:
        return max(0, span.begun_us - begun_us, begun_us - (span.ended_us or begun_us))

    nearest = min(spans, key=distance_us, default=None)
    if nearest is not None and distance_us(nearest) <= CLOCKS_US:
        return nearest
    return None


def interval_rows(
    run: str,
    attempt: int,
    info: ObjectInfo,
    columns: IntervalValues,
) -> Iterator[NodeInterval]:
    """Yield a row per node: the median of its ranks that read."""
    now_us = utc_us()
    nodes, node_of = np.unique(columns["node"].astype(str), return_inverse=True)
    for number, node in enumerate(nodes.tolist()):
        own = node_of == number
        reads_s = columns["slow_read_s"][own]
        if is_node(node):
            yield NodeInterval(
                run=run,
                attempt=attempt,
                end_step=int(columns["end_step"][own].max()),
                node=node,
                ended_us=_not_ahead(int(columns["ended_us"][own].max()), info, now_us),
                slow_read_s=float(np.median(reads_s[reads_s > 0])) if (reads_s > 0).any() else 0.0,
            )
