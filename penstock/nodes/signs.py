"""Read the recent signs of a record: faults, windows, ends of attempts, failed checks.

Objects are chosen by the time of their last write, so a long history costs its listing only.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from loader.errors import Corrupt, EngineUnreachable
from loader.storage import ObjectInfo, Store

from ..checkpoints.ranks import several
from ..train.fault_record import faults_in
from ..train.launch.launcher import Span
from ..train.run_folder import AT_ONCE, Event, RunFolder, WindowKey, read_object, runs, window_keys
from .node_check import CHECKS
from .suspects import RECENT_US, Attempt, FailedCheck, LossDifference, NodeFault, NodeSigns, NodeWindow

_log = logging.getLogger(__name__)
ATTEMPTS_US = 14 * 24 * 3600 * 1_000_000
"""Age at which ends of attempts no longer count."""
LOSSES_US = 24 * 3600 * 1_000_000
"""Age at which starts of replays no longer count."""
NO_FAILURE = ("PREEMPTED", "CANCELLED", "TIMEOUT", "DEADLINE", "COMPLETED", "NODE_FAIL")
"""Slurm's states of a start that no node in use ended: after NODE_FAIL, Slurm itself keeps the node out of use."""
Spans = Callable[[str], Sequence[Span]]
"""Name of a run -> the times that its scheduler gave it."""
Losses = Callable[[str], Sequence[LossDifference]]
"""Name of a run -> differences of its replays."""


def read_signs(
    store: Store, now_us: int, spans: Spans | None = None, losses: Losses | None = None
) -> NodeSigns:
    """Return the signs of all runs.

    spans: Accounting of a run's starts; without it, nodes of attempts are known from windows only.

    Raises: Corrupt, which names the object.
    """
    faults, windows = list[NodeFault](), list[NodeWindow]()
    attempts, differences = list[Attempt](), list[LossDifference]()
    for name in runs(store):
        folder = RunFolder(store, name)
        try:
            faults += _faults(folder, now_us)
            windows += _windows(folder, now_us)
            attempts += _attempts(folder, now_us, spans)
            if losses is not None and _recent(store, folder.key("attempts/"), now_us - LOSSES_US):
                differences += losses(name)
        except (Corrupt, ValueError) as error:  # one damaged record hides no sign of another run
            _log.warning("the signs of %s are not whole: %s", name, error)
    checks = list(_checks(store, now_us))
    return NodeSigns(faults=faults, windows=windows, attempts=attempts, losses=differences, checks=checks)


def _recent(store: Store, prefix: str, since_us: int) -> list[ObjectInfo]:
    return [info for info in store.list(prefix) if info.modified_us is None or info.modified_us >= since_us]


def _faults(folder: RunFolder, now_us: int) -> Iterator[NodeFault]:
    infos = _recent(folder.store, folder.key("faults/"), now_us - RECENT_US)
    for pairs in several(lambda info: faults_in(folder.store, info.key), infos, at_once=AT_ONCE):
        for node, fault in pairs:
            yield NodeFault(
                node=node,
                at_us=fault.at_us,
                address=fault.address,
                begin=fault.begin,
                end=fault.end,
                expected=fault.expected,
                actual=fault.actual,
                store=fault.store,
                kind=fault.kind,
            )


def _windows(folder: RunFolder, now_us: int) -> Iterator[NodeWindow]:
    return _rows(folder, window_keys(_recent(folder.store, folder.key("windows/"), now_us - RECENT_US)))


def _rows(folder: RunFolder, keys: Sequence[WindowKey]) -> Iterator[NodeWindow]:
    columns = folder.windows(keys)
    names = ("attempt", "end_step", "node", "ended_us", "slow_read_s")
    for attempt, end_step, node, ended_us, slow_read_s in zip(
        *(columns.get(name, ()) for name in names), strict=True
    ):
        yield NodeWindow(
            run=folder.run,
            attempt=int(attempt),
            end_step=int(end_step),
            node=str(node),
            ended_us=int(ended_us),
            slow_read_s=float(slow_read_s),
        )


def _attempts(folder: RunFolder, now_us: int, spans: Spans | None) -> Iterator[Attempt]:
    """Yield the attempts that ended; an attempt without an end is one if a later one began."""
    if not _recent(folder.store, folder.key("attempts/"), now_us - ATTEMPTS_US):
        return
    begun = folder.attempts()
    events = {number: list(own) for number, own in groupby(folder.events(), key=lambda event: event.attempt)}
    try:
        accounted = list(spans(folder.run)) if spans is not None else []
    except EngineUnreachable as error:  # without it a preemption looks like a crash
        _log.warning("no crashes of %s are judged: %s", folder.run, error)
        return
    for number, facts in begun.items():
        span = _span(accounted, int(facts.get("at_us", 0)))
        ended_us = _ended_us(events.get(number, []), begun.get(number + 1), span)
        if ended_us is None or ended_us < now_us - ATTEMPTS_US:
            continue
        last = events[number][-1].name if events.get(number) else ""
        failed = last not in ("stopped", "ended") and (span is None or not span.state.startswith(NO_FAILURE))
        nodes = tuple(span.node_names) if span is not None else ()
        yield Attempt(
            run=folder.run,
            number=number,
            nodes=nodes or _nodes(folder, number, str(facts.get("node", ""))),
            ended_us=ended_us,
            failed=failed,
        )


def _span(spans: Sequence[Span], at_us: int) -> Span | None:
    return next((one for one in spans if one.begun_us <= at_us <= (one.ended_us or 2**63)), None)


def _ended_us(events: Sequence[Event], following: dict[str, Any] | None, span: Span | None) -> int | None:
    if span is not None and span.ended_us is not None:
        return span.ended_us
    if events and events[-1].name in ("stopped", "ended", "failed"):
        return events[-1].at_us
    return None if following is None else int(following.get("at_us", 0))


def _nodes(folder: RunFolder, attempt: int, first: str) -> tuple[str, ...]:
    """Return the nodes of an attempt by its last window; the first rank's without one."""
    rows = _rows(folder, folder.window_keys(attempt)[-1:])
    return tuple(sorted({row.node for row in rows})) or (first,)


def _checks(store: Store, now_us: int) -> Iterator[FailedCheck]:
    def parsed(body: dict[str, Any]) -> FailedCheck:
        return FailedCheck(
            node=str(body["node"]),
            at_us=int(body["at_us"]),
            check=str(body["check"]),
            text=str(body["text"]),
        )

    for info in _recent(store, CHECKS, now_us - RECENT_US):
        yield read_object(store, info.key, "failed check", parsed)
