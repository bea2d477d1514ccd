"""Conditions that need a person: one list for the first page, the exporter, the sensors and the alert rules.

Each name is a heading of the on-call page in docs/operations.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from ..alerts import HANDBOOK
from ..units import length

Severity = Literal["error", "warning"]
HOUR_S = 3600.0

STALLED_STEPS = 10
STALLED_LEAST_S = 600.0
"""A run without a step for ten median steps, and at least ten minutes, does not go on."""
STARVED_SHARE = 0.10
STARVED_S = 900.0
"""Share of the steps' time spent waiting for data, and the seconds for which it lasts."""
RESTARTS = 3
RESTARTS_S = HOUR_S
"""Starts within these seconds."""
CHECKPOINT_OLD_S = 2 * HOUR_S
"""Age of the newest checkpoint of a run that makes steps."""


@dataclass(frozen=True, slots=True)
class Condition:
    name: str
    """Heading of the on-call page, such as `run-stalled`."""
    severity: Severity
    sentence: str
    """Meaning, as one sentence."""

    @property
    def runbook(self) -> str:
        """Address of the remedy on the on-call page."""
        return f"{HANDBOOK}#{self.name}"


# In the order in which an operator looks: runs, then nodes, then datasets. The first page sorts by severity.
CONDITIONS = (
    Condition("run-failed", "error", "A training, or a run of the pipeline, failed."),
    Condition("run-stalled", "error", "A training has made no step for ten median steps, at least 10 min."),
    Condition("run-damaged", "error", "An object of a run log, or of a run's record, does not parse."),
    Condition("loss-not-finite", "error", "A metric of a training is NaN or infinite."),
    Condition("run-restarting", "error", "A training started three times within an hour."),
    Condition("run-starved", "warning", "A training has waited for data above 10 % of its time for 15 min."),
    Condition("checkpoint-old", "warning", "A training's newest checkpoint is older than two hours."),
    Condition("samples-substituted", "warning", "A training replaced samples that it could not read."),
    Condition("training-over", "error", "A training ended, was stopped, or failed for good."),
    Condition("node-suspect", "warning", "Signs of the record speak against a node."),
    Condition("dataset-damaged", "error", "The newest manifest of a dataset cannot be read."),
    Condition("batch-stopped", "error", "A check stopped a batch of a dataset."),
    Condition("backlog-old", "error", "An object of a dataset has waited too long to be trainable."),
    Condition("nothing-arrives", "warning", "Nothing has landed for a dataset for too long."),
    Condition("version-old", "warning", "The newest version of a dataset is too old."),
    Condition("job-left", "warning", "No process attends a job of a cluster."),
    Condition("metrics-gone", "error", "Part of the root cannot be read, or no scrape arrives."),
)
BY_NAME = {condition.name: condition for condition in CONDITIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedCondition:
    """A condition that holds now."""

    condition: Condition
    subject: str
    """Run, dataset or node."""
    text: str
    """One sentence with the figures. May hold untrusted text."""
    details: str = ""
    """Further text; "" for none."""
    item: str = ""
    """Batch of the dataset, or step of the run, that it is about; "" for none."""


def raise_condition(
    name: str,
    subject: str,
    text: str,
    details: str = "",
    item: str = "",
) -> RaisedCondition:
    """Return a condition of the list that holds now."""
    return RaisedCondition(
        condition=BY_NAME[name],
        subject=subject,
        text=text,
        details=details,
        item=item,
    )


RunState = Literal["running", "stalled", "silent", "finished", "stopped", "failed", "damaged"]
RUN_STATES: tuple[RunState, ...] = get_args(RunState)
ENDED_STATES: tuple[RunState, ...] = ("finished", "stopped", "failed")
"""States in which a run makes no steps, and nothing of it is late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFacts:
    """A training as its run log and its record have it. Unknown figures hold no condition."""

    run: str
    """Name."""
    state: str
    """One of `RUN_STATES`."""
    last_us: int = 0
    """Delivery of the last step, UTC microseconds; 0 without one."""
    median_step_s: float = 0.0
    """Median seconds between two steps; 0 or NaN if unknown."""
    metric: str = ""
    """Metric that is not finite; "" for any."""
    n_not_finite: int = 0
    """Steps with a metric that is not finite."""
    first_not_finite: int = -1
    """The first of them; -1 without one."""
    is_whole: bool = True
    """False if some of the run log was not read."""
    waits: Sequence[float] = ()
    """Share of waiting in each third of the last 15 minutes, from 0 to 1; () if they were not read."""
    starts_us: Sequence[int] = ()
    """Times of the starts, UTC microseconds."""
    checkpoint_us: int = 0
    """Time of the newest checkpoint, UTC microseconds; 0 without one."""
    substituted: int = 0
    """Samples that were substituted or masked."""
    failure: str = ""
    """Reason why its last start failed; "" if it did not, or has gone on since."""
    error: str = ""
    """Reason why the run cannot be read; "" if it can."""


def is_quiet(quiet_s: float, median_step_s: float) -> bool:
    """Return whether a run that makes steps has been silent for too long. median_step_s: 0 or NaN if unknown."""
    # A comparison with NaN is false.
    if median_step_s > 0:
        return quiet_s > max(STALLED_LEAST_S, STALLED_STEPS * median_step_s)
    return quiet_s > STALLED_LEAST_S


def run_state(newest_event: str, *, has_failed: bool) -> RunState:
    """Return a run's state by its record; "running" if only its silence can tell, which `silent_state` looks at.

    newest_event: name of the newest event; "" without one. has_failed: True if its last start failed, and the run has
    not gone on since.
    """
    if has_failed:
        return "failed"
    if newest_event == "ended":
        return "finished"
    if newest_event == "stopped":
        return "stopped"
    return "running"


def silent_state(state: str, quiet_s: float, median_step_s: float, *, is_recorded: bool) -> str:
    """Return the state of a run that has been silent for some seconds. is_recorded: False for a run log only."""
    if state not in ("running", "stalled", "silent") or not is_quiet(quiet_s, median_step_s):
        return state
    # Without a run's record, its end is not recorded either.
    if is_recorded:
        return "stalled"
    return "silent"


def training_conditions(facts: TrainingFacts, now_s: float) -> Iterator[RaisedCondition]:
    """Yield the conditions of a training that hold at a Unix time."""
    run = facts.run
    if facts.error:
        yield raise_condition("run-damaged", run, facts.error)
    if facts.state == "failed":
        yield raise_condition("run-failed", run, facts.failure)
    if facts.state == "stalled":
        yield raise_condition("run-stalled", run, _stall_text(facts, now_s))
    if facts.n_not_finite:
        yield raise_condition(
            "loss-not-finite", run, _not_finite_text(facts), item=str(facts.first_not_finite)
        )
    if facts.state in ENDED_STATES:
        return
    # All thirds: one slow minute in fifteen is not a starved run.
    least_wait = min(facts.waits, default=0.0)
    if least_wait > STARVED_SHARE:
        waited = f"{least_wait:.0%}".replace("%", " %")
        yield raise_condition("run-starved", run, f"waited for data at least {waited} of its time for 15 min")
    recent = recent_starts(facts.starts_us, now_s)
    if recent >= RESTARTS:
        yield raise_condition("run-restarting", run, f"{recent} starts in an hour")
    # A stalled run saves nothing, and has a condition of its own.
    if facts.state == "running" and facts.checkpoint_us:
        age_s = now_s - facts.checkpoint_us / 1e6
        if age_s > CHECKPOINT_OLD_S:
            yield raise_condition("checkpoint-old", run, f"the newest checkpoint is {length(age_s)} old")
    if facts.substituted:
        yield raise_condition("samples-substituted", run, f"{facts.substituted:,} samples were substituted")


def recent_starts(starts_us: Sequence[int], now_s: float) -> int:
    """Return the number of starts within the last hour."""
    # Restarts of many nodes come minutes apart; an hour also covers slow launches.
    since_us = (now_s - RESTARTS_S) * 1e6
    return sum(start_us > since_us for start_us in starts_us)


def _stall_text(facts: TrainingFacts, now_s: float) -> str:
    # Words as `penstock train status` has them.
    quiet_s = now_s - facts.last_us / 1e6
    quiet = length(quiet_s)
    median = length(facts.median_step_s)
    return f"no step for {quiet}; its median step takes {median}"


def _not_finite_text(facts: TrainingFacts) -> str:
    metric = facts.metric or "a metric"
    first = f"{facts.first_not_finite:,}"
    # All other steps of the log may be finite, or unread.
    if facts.n_not_finite == 1:
        return f"{metric} is not finite at step {first}"
    text = f"{metric} is not finite at {facts.n_not_finite:,} steps, the first {first}"
    if facts.is_whole:
        return text
    return f"{text} (some of the run log was read)"


def node_condition(node: str, signs: Sequence[str]) -> RaisedCondition:
    """Return the condition of a suspect node. signs: figures of each sign against it."""
    return raise_condition("node-suspect", node, "; ".join(signs))


class DatasetLimits(Protocol):
    """Delays in seconds after which a person is alerted; None never alerts."""

    @property
    def backlog_s(self) -> float | None: ...

    @property
    def silence_s(self) -> float | None: ...

    @property
    def version_s(self) -> float | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingBatch:
    """Batch that is neither trainable nor stopped."""

    batch: str
    """Key."""
    landed_s: float
    """Unix time at which it landed."""
    standing: str
    """Its state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFacts:
    """A dataset as its batches and versions have it. None is unknown."""

    dataset: str
    stopped: Sequence[tuple[str, str]] = ()
    """(batch, reason) of each stopped batch."""
    oldest_waiting: WaitingBatch | None = None
    waiting_text: str = ""
    """Size of the backlog, for a person."""
    landed_s: float | None = None
    """Unix time of the newest landing."""
    published_s: float | None = None
    """Unix time of the newest version."""
    error: str = ""
    """Reason why the newest version cannot be read; "" if it can."""


def dataset_conditions(
    facts: DatasetFacts,
    now_s: float,
    limits: DatasetLimits | None = None,
) -> Iterator[RaisedCondition]:
    """Yield the conditions of a dataset that hold at a Unix time. limits: None judges no delay."""
    dataset = facts.dataset
    if facts.error:
        yield raise_condition("dataset-damaged", dataset, facts.error)
    for batch, reason in facts.stopped:
        yield raise_condition("batch-stopped", dataset, f"batch {batch} was stopped", reason, batch)
    # The first page reads no arrivals, so it judges no delay.
    if limits is None:
        return
    waiting = facts.oldest_waiting
    if limits.backlog_s is not None and waiting is not None:
        waited_s = now_s - waiting.landed_s
        if waited_s > limits.backlog_s:
            text = f"batch {waiting.batch} landed {hours(waited_s)} ago and is not trainable"
            yield raise_condition("backlog-old", dataset, f"{text} ({waiting.standing})", facts.waiting_text)
    if limits.silence_s is not None and facts.landed_s is not None:
        silent_s = now_s - facts.landed_s
        if silent_s > limits.silence_s:
            yield raise_condition("nothing-arrives", dataset, f"nothing has landed for {hours(silent_s)}")
    if limits.version_s is not None and facts.published_s is not None:
        age_s = now_s - facts.published_s
        if age_s > limits.version_s:
            yield raise_condition("version-old", dataset, f"the newest version is {hours(age_s)} old")


def hours(seconds: float) -> str:
    """Format seconds as "3.5 h", or as minutes below an hour."""
    if seconds >= HOUR_S:
        return f"{seconds / HOUR_S:.1f} h"
    return f"{seconds / 60:.0f} min"
