"""Decide which nodes are suspects. Pure: no store, no clock.

A sign counts against a node only if the same work is right elsewhere. Ranges that are wrong on two nodes accuse the
store; a gang's loss or failure names no single node.
"""

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Literal, NamedTuple

MINUTE_US = 60_000_000
FAULTS = 3
FAULTS_US = 10 * MINUTE_US
"""Wrong reads within these microseconds that make a suspect."""
SLOW_INTERVALS = 3
SLOW_TIMES = 2.0
SLOW_DEVIATIONS = 5.0
"""Intervals in a row above so many medians, and so many median absolute deviations above the median."""
CRASHES = 3
LAST_STARTS = 5
"""Failed starts among a node's last ones that make a suspect."""
RECENT_US = 60 * MINUTE_US
"""Age at which intervals and failed checks no longer count."""
CLOCKS_US = 10 * MINUTE_US
"""Most by which two clocks may differ: of watchers, or of a node and its scheduler."""
ALERT_EVERY_US = 24 * 60 * MINUTE_US
"""After an alert, the same state raises no other one for this time."""

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_CRC = re.compile(r"(?:[0-9a-f]{8})?")
LONGEST = 1024
"""Most characters of an address, and of a store's URL."""
Sign = Literal["wrong reads", "slow reads", "loss", "crashes", "check"]
SLOW_READS: Final = "slow reads"
"""The sign that is proved by times."""


def is_node(name: object) -> bool:
    """Return whether a value from a record can be the name of a node."""
    return isinstance(name, str) and _NODE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFault:
    """A read with a wrong checksum, or a damaged page of a node's cache."""

    node: str
    """Name of the node that read."""
    at_us: int
    """UTC microseconds since 1970."""
    address: str
    """Key of the object in its store."""
    begin: int
    """First byte."""
    end: int
    """Byte after the last one."""
    expected: str = ""
    """CRC-32C that the index has, 8 hex digits; "" if unknown."""
    actual: str = ""
    """CRC-32C of the bytes that came."""
    store: str = ""
    """URL of the store."""
    kind: str = "read"
    """"read" or "cache page"."""

    @property
    def range(self) -> tuple[str, str, int, int]:
        """Store, object and bytes, equal on every node."""
        return self.store, self.address, self.begin, self.end

    @property
    def is_valid(self) -> bool:
        """True if a rank could have written it: anyone with its credentials may write other values."""
        numbers = (self.at_us, self.begin, self.end)
        texts = (self.address, self.store)
        return (
            is_node(self.node)
            and all(type(one) is int for one in numbers)
            and 0 <= self.begin < self.end < 2**63
            and self.at_us > 0
            and all(isinstance(one, str) and len(one) <= LONGEST and one.isprintable() for one in texts)
            and all(isinstance(one, str) and _CRC.fullmatch(one) for one in (self.expected, self.actual))
            and self.kind in ("read", "cache page")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInterval:
    """Reads of a rank in one interval of a run."""

    run: str
    """Name of the run."""
    attempt: int
    """Number of its start."""
    end_step: int
    """Step after the interval's last one."""
    node: str
    """Name of the rank's node."""
    ended_us: int
    """UTC microseconds of its end."""
    slow_read_s: float
    """Median latency of a read, in seconds; 0 without reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A start of a run that ended."""

    run: str
    """Name of the run."""
    number: int
    """Number of the start."""
    nodes: tuple[str, ...]
    """Names of its nodes."""
    ended_us: int
    """UTC microseconds of its end."""
    failed: bool
    """True after a hang or crash; a requested stop is not a crash."""
    end_step: int = 0
    """Steps done by its last record."""
    saved_step: int = 0
    """Step of its last checkpoint; 0 without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossDifference:
    """A metric of a step that differed when other nodes repeated the step."""

    run: str
    """Name of the run."""
    step: int
    """Number of the step."""
    at_us: int
    """UTC microseconds of the replay."""
    nodes: tuple[str, ...]
    """Nodes of the run."""
    replay_nodes: tuple[str, ...]
    text: str
    """Both values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCheck:
    """A check that ended with 2 on a node."""

    node: str
    """Name of the node."""
    at_us: int
    """UTC microseconds since 1970."""
    check: str
    """Name of the check."""
    text: str = ""
    """First line of its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSigns:
    """Recent signs of all runs."""

    faults: Sequence[NodeFault] = ()
    """Wrong reads."""
    intervals: Sequence[NodeInterval] = ()
    """Rows of intervals."""
    attempts: Sequence[Attempt] = ()
    """Starts that ended."""
    losses: Sequence[LossDifference] = ()
    """Differences of replays."""
    checks: Sequence[FailedCheck] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A node, and one sign against it."""

    node: str
    """Name of the node."""
    sign: Sign
    """Kind of sign."""
    at_us: int
    """UTC microseconds of the newest sign."""
    text: str
    """Figures, for a person."""
    faults: tuple[NodeFault, ...] = ()
    """Wrong reads, for the proof."""
    runs: int = 1
    """Runs that accuse it by failures or slow intervals. Few nodes are in several gangs that did."""
    others: tuple[str, ...] = ()
    """Nodes of the same intervals that are not slow, to compare a slow one with."""


def suspects(signs: NodeSigns, now_us: int, after_us: Mapping[str, int] | None = None) -> list[Suspect]:
    """Return the suspects, by node and sign.

    after_us: Node -> time up to which its signs are settled: its last drain or return.
    """
    named = [
        *_wrong_reads(signs.faults, now_us, after_us or {}),
        *_slow_reads(signs.intervals, now_us, after_us or {}),
        *_losses(signs.losses, now_us, after_us or {}),
        *_crashes(signs.attempts, after_us or {}),
        *_checks(signs.checks, now_us, after_us or {}),
    ]
    return sorted(named, key=lambda suspect: (suspect.node, suspect.sign))


def _wrong_reads(faults: Sequence[NodeFault], now_us: int, after_us: Mapping[str, int]) -> Iterable[Suspect]:
    """Yield nodes with FAULTS wrong reads within FAULTS_US. after_us: node -> time up to which signs do not count."""
    nodes_of_range = defaultdict[tuple[str, str, int, int], set[str]](set)
    recent = defaultdict[str, list[NodeFault]](list)
    for fault in faults:
        nodes_of_range[fault.range].add(fault.node)
        if fault.at_us > max(now_us - RECENT_US, after_us.get(fault.node, 0)):
            recent[fault.node].append(fault)
    for node, of_node in recent.items():
        # A range that is wrong on two nodes accuses the store; a cache page is one node's.
        counted = [
            fault for fault in of_node if fault.kind == "cache page" or len(nodes_of_range[fault.range]) == 1
        ]
        own = sorted(counted, key=lambda fault: fault.at_us)
        # The first and last of each FAULTS in a row.
        for first, last in zip(own, own[FAULTS - 1 :], strict=False):
            if last.at_us - first.at_us <= FAULTS_US:
                text = f"{len(own)} wrong reads, {FAULTS} of them in {_span(last.at_us - first.at_us)}"
                yield Suspect(
                    node=node, sign="wrong reads", at_us=own[-1].at_us, text=text, faults=tuple(own)
                )
                break


class MeasuredInterval(NamedTuple):
    """Reads of a node and of the other nodes in an interval of a run."""

    ended_us: int
    """UTC microseconds of its end."""
    run: str
    """Name of the run."""
    own_s: float
    """Median seconds of the node's reads."""
    median_s: float
    """Median of all nodes."""
    limit_s: float
    """Seconds above which a node is slow."""
    others: tuple[str, ...]
    """Nodes that are not slow."""

    @property
    def is_slow(self) -> bool:
        """True if the node is slow in this interval."""
        return self.own_s > self.limit_s


def _slow_reads(
    intervals: Sequence[NodeInterval], now_us: int, after_us: Mapping[str, int]
) -> Iterable[Suspect]:
    """Yield nodes that were slow in each of their last intervals. after_us: as for `_wrong_reads`."""
    for node, measured in _recent_intervals(intervals, now_us).items():
        counted = sorted(interval for interval in measured if interval.ended_us > after_us.get(node, 0))
        last = counted[-SLOW_INTERVALS:]
        if not _are_slow(last):
            continue
        of_run = defaultdict[str, list[MeasuredInterval]](list)
        for interval in counted:
            of_run[interval.run].append(interval)
        runs = sum(_are_slow(own[-SLOW_INTERVALS:]) for own in of_run.values())
        newest = last[-1]
        times = statistics.median(interval.own_s / interval.median_s for interval in last)
        text = (
            f"median read {newest.own_s * 1e3:.0f} ms in three intervals, {times:.1f} times its run's"
            f" {newest.median_s * 1e3:.0f} ms"
        )
        if runs > 1:
            text += f", in {runs} runs"
        yield Suspect(
            node=node,
            sign=SLOW_READS,
            at_us=newest.ended_us,
            text=text,
            # The last intervals may be of several runs, none of which has enough for itself.
            runs=max(1, runs),
            others=newest.others,
        )


def _are_slow(last: Sequence[MeasuredInterval]) -> bool:
    return len(last) == SLOW_INTERVALS and all(interval.is_slow for interval in last)


def _recent_intervals(intervals: Sequence[NodeInterval], now_us: int) -> dict[str, list[MeasuredInterval]]:
    """Return node -> its recent intervals, each compared with the other nodes of the same interval.

    A node's latency is the median of its ranks. It is slow above a limit: a multiple of the median over the nodes, and
    some deviations above it.
    """

    def key(row: NodeInterval) -> tuple[str, int, int]:
        return row.run, row.attempt, row.end_step

    measured = defaultdict[str, list[MeasuredInterval]](list)
    recent = (row for row in intervals if row.ended_us > now_us - RECENT_US and row.slow_read_s > 0)
    for (run, _, _), rows in groupby(sorted(recent, key=key), key=key):
        rows_of_node = defaultdict[str, list[NodeInterval]](list)
        for row in rows:
            rows_of_node[row.node].append(row)
        latency_s: dict[str, float] = {}
        for node, own in rows_of_node.items():
            latency_s[node] = statistics.median(row.slow_read_s for row in own)
        # The lower median: if half of the nodes are slow, the other half is the measure.
        median_s = statistics.median_low(latency_s.values())
        deviation_s = statistics.median_low(abs(own_s - median_s) for own_s in latency_s.values())
        limit_s = max(SLOW_TIMES * median_s, median_s + SLOW_DEVIATIONS * deviation_s)
        others = tuple(sorted(node for node, own_s in latency_s.items() if own_s <= limit_s))
        for node, own in rows_of_node.items():
            measured[node].append(
                MeasuredInterval(
                    ended_us=max(row.ended_us for row in own),
                    run=run,
                    own_s=latency_s[node],
                    median_s=median_s,
                    limit_s=limit_s,
                    others=others,
                )
            )
    return measured


def _losses(losses: Sequence[LossDifference], now_us: int, after_us: Mapping[str, int]) -> Iterable[Suspect]:
    for loss in losses:
        own = sorted(set(loss.nodes) - set(loss.replay_nodes))
        if len(own) == 1 and loss.at_us > max(now_us - ALERT_EVERY_US, after_us.get(own[0], 0)):
            text = f"step {loss.step} of {loss.run}: {loss.text} on other nodes"
            yield Suspect(node=own[0], sign="loss", at_us=loss.at_us, text=text)


def _crashes(attempts: Sequence[Attempt], after_us: Mapping[str, int]) -> Iterable[Suspect]:
    """Yield nodes most of whose last starts failed, of runs that went on past these failures.

    A start accuses each of its nodes, and the proof decides. If one of them was drained since then, it accuses none.
    """
    counted = [one for one in attempts if all(after_us.get(node, 0) < one.ended_us for node in one.nodes)]
    of_node = defaultdict[str, list[Attempt]](list)
    for attempt in sorted(counted, key=lambda start: start.ended_us):
        for node in attempt.nodes:
            of_node[node].append(attempt)
    passed = _survivable_failures(attempts)
    for node, starts in of_node.items():
        ends = [start for start in starts if not start.failed or (start.run, start.number) in passed]
        failed = [start for start in ends[-LAST_STARTS:] if start.failed]
        if len(failed) >= CRASHES:
            text = f"{len(failed)} of its last {len(ends[-LAST_STARTS:])} starts failed: "
            text += ", ".join(sorted({start.run for start in failed}))
            runs = len({start.run for start in ends if start.failed})
            yield Suspect(node=node, sign="crashes", at_us=failed[-1].ended_us, text=text, runs=runs)


def _survivable_failures(attempts: Sequence[Attempt]) -> set[tuple[str, int]]:
    """Return (run, number) of the starts whose run later saved a step after theirs, or came as far without a failure.

    A failure that no start gets past may be the run's own.
    """
    past = set[tuple[str, int]]()
    # Run -> highest step of later starts: saved, and at an end that was no failure.
    saved = dict[str, int]()
    stopped = dict[str, int]()
    for start in sorted(attempts, key=lambda attempt: -attempt.ended_us):
        run = start.run
        if saved.get(run, 0) > start.end_step or stopped.get(run, -1) >= start.end_step:
            past.add((run, start.number))
        saved[run] = max(saved.get(run, 0), start.saved_step)
        if not start.failed:
            stopped[run] = max(stopped.get(run, 0), start.end_step)
    return past


def _checks(checks: Sequence[FailedCheck], now_us: int, after_us: Mapping[str, int]) -> Iterable[Suspect]:
    """Yield nodes with a failed check, by their newest one. after_us: as for `_wrong_reads`."""
    newest: dict[str, FailedCheck] = {}
    for check in sorted(checks, key=lambda check: check.at_us):
        if check.at_us > max(now_us - RECENT_US, after_us.get(check.node, 0)):
            newest[check.node] = check
    for node, check in newest.items():
        text = f"{check.check} failed: {check.text}".rstrip(": ")
        yield Suspect(node=node, sign="check", at_us=check.at_us, text=text)


def _span(us: int) -> str:
    if us >= 2 * MINUTE_US:
        return f"{us / MINUTE_US:.0f} min"
    return f"{us / 1e6:.0f} s"
