"""Decisions of an online run, from its records under `follows/`, for a chart over steps and a page of each.

A record is untrusted: `RunRecords` checks types and bounds, and every text is cleaned here. A damaged record is named
in its place, and does not hide the others.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from loader import Root
from loader.api.plan_of import newest_plan
from loader.errors import Corrupt, FormatTooNew, NotRecorded, PlanMismatch
from loader.rollouts.record import DecisionRecord, RunRecords
from loader.storage import Store
from loader.storage.mirror import primary_store
from loader.storage.threads import DaemonPool

from ...text import clean
from ..json_record import JsonRecord
from ..marks import count_text
from ..replays.training import Training

MOST_SHOWN = 240
"""Most decisions of a chart, evenly spaced; each is an object to read."""
MOST_LISTED = 20
"""Most decisions of a run's table, the last ones."""
MOST_ENVS = 64
"""Most environments of a table."""
AT_ONCE = 8
"""Records that are read at once; a damaged one may have 16 MiB."""
MOST_ARGUMENTS = 40
QUARTILES = 4
_STEP = re.compile(r"(\d{19})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow(JsonRecord):
    """The counts of a decision."""

    step: int
    """First step."""
    steps: int
    policy: int
    """Version of the policy that was trained."""
    groups: int
    """Trained groups."""
    sequences: int
    """Packed sequences."""
    trained: int
    """Trained rollouts."""
    stale: int
    """Rollouts withheld because their policy was too old."""
    small: int
    """Rollouts withheld because too few of their group were fresh."""
    error: str = ""
    """Damage of the record, whose counts are 0 then, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvCounts(JsonRecord):
    """Rollouts of an environment, by quartile of length, the short ones first."""

    env: str
    trained: tuple[int, ...]
    withheld: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionDetail(JsonRecord):
    """A decision's page."""

    run: str
    owner: str
    """Run that made the decision: another one if this run repeats it."""
    row: DecisionRow
    plan: str
    """Hash; "" if a takedown left no rollout of it."""
    before: str
    """Hash of the plan of the step before."""
    by: tuple[EnvCounts, ...]
    n_envs: int
    """All environments, also those beyond the listed ones."""
    most: int
    """Largest number of rollouts in a cell of `by`."""
    asked: Mapping[str, str]
    """Argument that decides -> value; the first by name."""
    n_asked: int
    """All arguments, also those beyond the listed ones."""
    version_id: str
    """Id of the version that it read."""
    n_parts: int
    """Parts that the run had read after it."""
    last_part: str
    n_undecided_parts: int
    """Parts with rows that it left for later."""
    n_undecided: int
    """Rows that it left for later."""
    has_next: bool
    """True if the run has a decision after it, even a damaged one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionChart(JsonRecord):
    """Decisions of a run over steps."""

    n_decisions: int
    like: str
    """Run that it repeats, or ""."""
    until: int
    """Step from which it decides by itself; 0 without `like`."""
    rows: tuple[DecisionRow, ...]
    """By step, evenly spaced if there are more than `MOST_SHOWN`, with the last ones."""
    error: str = ""
    """Why there are none, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSummary(JsonRecord):
    """The decisions of a run together."""

    n_decisions: int
    like: str
    """Run that it repeats, or ""."""
    until: int
    """Step from which it decides by itself; 0 without `like`."""
    last_step: int
    """First step of the newest decision; -1 without one."""
    policy: int
    """Version of the policy that the newest decision trained."""
    plan: str
    """Hash of the newest plan, or ""."""
    n_counted: int
    """Decisions that the counts below are of: of very many only some are read."""
    groups: int
    """Trained groups."""
    sequences: int
    """Packed sequences."""
    trained: int
    """Trained rollouts."""
    stale: int
    """Rollouts withheld because their policy was too old."""
    small: int
    """Rollouts withheld because too few of their group were fresh."""
    error: str = ""
    """First damage of a record, or ""."""


ReadRow = Callable[[RunRecords, int], DecisionRow | None]
"""(records of a run, first step) -> counts of the decision, as `read_row`."""


def read_row(records: RunRecords, step: int) -> DecisionRow | None:
    """Return the counts of the decision that begins at a step, or None. Raises: Corrupt; FormatTooNew; PlanMismatch."""
    record = records.at(step)
    if record is None:
        return None
    return _row(record)


def is_online(training: Training) -> bool:
    """Return whether decisions name the plans of a run: its starts name none."""
    return training.trail is not None and any(not start.plan for start in training.trail.starts)


def decision_chart(
    store: Store,
    run: str,
    read: ReadRow = read_row,
) -> DecisionChart:
    """Return a run's decisions. Raises: StoreError."""
    try:
        records = RunRecords(store, run)
        steps = _decision_steps(store, records)
    except (Corrupt, FormatTooNew) as error:
        return DecisionChart(
            n_decisions=0,
            like="",
            until=0,
            rows=(),
            error=clean(error, 600),
        )
    like = records.like
    return DecisionChart(
        n_decisions=len(steps),
        like="" if like is None else clean(like.like, 128),
        until=0 if like is None else like.until,
        rows=_rows(records, _spread(steps), read),
    )


def decision_summary(root: Root, run: str) -> DecisionSummary:
    """Return the decisions of a run together. Raises: StoreError."""
    chart = decision_chart(primary_store(root.store), run)
    readable = [row for row in chart.rows if not row.error]
    errors = [chart.error, *(row.error for row in chart.rows)]
    error = next(filter(None, errors), "")
    plan = ""
    try:
        plan = newest_plan(root, run)
    except (Corrupt, FormatTooNew, PlanMismatch) as failure:
        error = error or clean(failure, 400)
    return DecisionSummary(
        n_decisions=chart.n_decisions,
        like=chart.like,
        until=chart.until,
        last_step=readable[-1].step if readable else -1,
        policy=readable[-1].policy if readable else 0,
        plan=plan,
        n_counted=len(readable),
        groups=sum(row.groups for row in readable),
        sequences=sum(row.sequences for row in readable),
        trained=sum(row.trained for row in readable),
        stale=sum(row.stale for row in readable),
        small=sum(row.small for row in readable),
        error=error,
    )


def summary_lines(summary: DecisionSummary) -> Iterator[str]:
    """Yield the decisions of a run of `loader.online` as lines."""
    if summary.error:
        yield f"  ! {summary.error}"
    if not summary.n_decisions:
        return
    line = f"  {count_text(summary.n_decisions, 'decision')}"
    if summary.like:
        line += f", as run {summary.like} before step {summary.until}"
    yield f"{line}; the newest begins at step {summary.last_step}, with policy {summary.policy}"
    if summary.plan:
        yield f"  newest plan {summary.plan}"
    withheld = f"withheld {summary.stale:,} stale, {summary.small:,} of small groups"
    line = f"  trained {summary.trained:,} rollouts of {summary.groups:,} groups; {withheld}"
    if summary.n_counted < summary.n_decisions:
        line += f" (in {summary.n_counted:,} of the decisions, evenly spaced)"
    yield line


def decision_detail(
    store: Store,
    run: str,
    step: int,
) -> DecisionDetail:
    """Return the decision that has a step. Raises: NotRecorded; Corrupt; FormatTooNew; StoreError."""
    try:
        records = RunRecords(store, run)
        record = records.covering(step)
    except PlanMismatch as error:  # the run follows a dataset
        raise NotRecorded(str(error), what=error.what, where=error.where, given=error.given) from error
    if record is None or step >= record.end:
        message = f"{store.url}: run {run!r} has no decision of step {step}"
        raise NotRecorded(message, what="decision", where=f"{store.url}: run {run!r}", given=step)
    by = _by_env(record)
    cells = [n for one in by for n in (*one.trained, *one.withheld)]
    undecided = record.cursor.ranges
    return DecisionDetail(
        run=run,
        owner=clean(record.run, 128),
        row=_row(record),
        plan=record.plan,
        before=record.before,
        by=tuple(by[:MOST_ENVS]),
        n_envs=len(by),
        most=max(cells, default=0),
        asked=_requested_facts(record),
        n_asked=len(record.asked),
        version_id=clean(record.cursor.version, 80),
        n_parts=record.cursor.parts,
        last_part=clean(record.cursor.last, 200),
        n_undecided_parts=len(undecided),
        n_undecided=sum(int((ranges[:, 1] - ranges[:, 0]).sum()) for ranges in undecided.values()),
        has_next=_has_next(records, record),
    )


def _has_next(records: RunRecords, record: DecisionRecord) -> bool:
    try:
        return records.at(record.end) is not None
    except (Corrupt, FormatTooNew, PlanMismatch):
        return True  # its page names the damage


def _requested_facts(record: DecisionRecord) -> dict[str, str]:
    asked = {}
    for name, value in sorted(record.asked.items())[:MOST_ARGUMENTS]:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        asked[clean(name, 40)] = clean(text, 400)
    return asked


def _row(record: DecisionRecord) -> DecisionRow:
    counts = record.counts
    return DecisionRow(
        step=record.step,
        steps=record.steps,
        policy=record.policy,
        groups=counts["groups"],
        sequences=counts["sequences"],
        trained=counts["trained"],
        stale=counts["stale"],
        small=counts["small"],
    )


def _by_env(record: DecisionRecord) -> list[EnvCounts]:
    """Return the counts by environment. Entries of one environment and quartile are added up."""
    trained: dict[str, list[int]] = {}
    withheld: dict[str, list[int]] = {}
    entries: list[Any] = record.counts["by"]
    for env, quartile, n_trained, n_withheld in entries:
        name = clean(env, 128)
        own_trained = trained.setdefault(name, [0] * QUARTILES)
        own_trained[quartile] += n_trained
        own_withheld = withheld.setdefault(name, [0] * QUARTILES)
        own_withheld[quartile] += n_withheld
    # Two names may be equal once they are cleaned, so their counts were added up above.
    by = []
    for name, numbers in sorted(trained.items()):
        by.append(EnvCounts(env=name, trained=tuple(numbers), withheld=tuple(withheld[name])))
    return by


def _rows(
    records: RunRecords,
    steps: list[int],
    read: ReadRow,
) -> tuple[DecisionRow, ...]:
    def row(step: int) -> DecisionRow | None:
        try:
            return read(records, step)
        except (Corrupt, FormatTooNew, PlanMismatch) as error:
            return _damage_row(step, clean(error, 400))

    with DaemonPool(AT_ONCE, "penstock-view-decisions") as pool:
        rows = list(pool.map(row, steps))
    return tuple(one for one in rows if one is not None)


def _damage_row(step: int, error: str) -> DecisionRow:
    return DecisionRow(
        step=step,
        steps=0,
        policy=0,
        groups=0,
        sequences=0,
        trained=0,
        stale=0,
        small=0,
        error=error,
    )


def _spread(steps: list[int]) -> list[int]:
    """Return all steps, or evenly spaced ones with the last `MOST_LISTED`."""
    if len(steps) <= MOST_SHOWN:
        return steps
    # The last ones are all read, because the table below the chart lists them.
    earlier = steps[:-MOST_LISTED]
    places = np.linspace(0, len(earlier) - 1, MOST_SHOWN - MOST_LISTED).astype(int)
    return [*(earlier[place] for place in np.unique(places).tolist()), *steps[-MOST_LISTED:]]


def _decision_steps(store: Store, records: RunRecords) -> list[int]:
    """Return the first step of each decision of a run, and of the run that it repeats."""
    steps: set[int] = set()
    end = None  # of the steps that count in an earlier run
    own: RunRecords | None = records
    while own is not None:
        folder = f"follows/{own.run}/"
        for info in store.list(folder):
            match = _STEP.fullmatch(info.key.removeprefix(folder))
            if match is not None and (end is None or int(match[1]) < end):
                steps.add(int(match[1]))
        like = own.like
        if like is None:
            break
        end = like.until if end is None else min(end, like.until)
        own = RunRecords(store, like.like)  # a circle of runs raised Corrupt when `records` was read
    return sorted(steps)
