"""A training's state beside its run log: starts, goodput, waits, checkpoints."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from loader.errors import Corrupt, RunNotFound
from loader.storage import Store

from ...checkpoints import marker
from ...metrics.conditions import RunState
from ...train.goodput.run_usage import goodput_share, goodput_shares
from ...train.goodput.starts import AttemptGoodput, restarts
from ...train.submitting import has_resumed, run_brief
from ..json_record import JsonRecord
from ..replays.training import Training
from ..run_goodputs import RunGoodputs
from ..runs.log_facts import log_facts
from ..runs.run_state import KnownState, StateFacts, state_from_facts, state_from_record

MOST_STARTS = 12
"""Newest starts listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartLine(JsonRecord):
    number: int
    """From 1."""
    first_step: int
    end_step: int
    """Step after its last one."""
    nodes: int
    seconds: float
    """Its time."""
    end: str
    """Last event, such as saved, stopped or failed; "" while it runs."""
    lost_steps: int
    """Steps that the next start made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverview(JsonRecord):
    is_recorded: bool = False
    """False for a run that has a log only: then nothing but checkpoints and waits is known."""
    newest: str = ""
    """Newest event, such as "saved (120)", or ""."""
    failure: str = ""
    """Why its last start failed; "" if it did not, or has gone on since."""
    goodput: float = math.nan
    """Share of its time that made new steps; NaN if unknown."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Part of the time -> share, from 0 to 1; without empty ones."""
    n_starts: int = 0
    starts: tuple[StartLine, ...] = ()
    """The newest starts, the newest first."""
    restart_causes: Mapping[str, int] = field(default_factory=dict)
    """Cause of the end before a start -> starts."""
    checkpoints: tuple[int, ...] = ()
    """Steps of the newest checkpoints, the newest first."""
    n_checkpoints: int = 0
    waiting: float
    """Share of the log's time that training waited for data; NaN if unknown."""
    problem: str
    """Why the record cannot be read; "" if it can."""
    state: str = ""
    """State of the run, as on the first page; "" if unknown."""
    news: str = ""
    """Last news of a run without a recorded end that has been silent for long; "" for others."""


def run_overview(training: Training, store: Store, goodputs: RunGoodputs) -> RunOverview:
    """Return the overview of a run. Lists its record and its checkpoints, and reads what is new. Raises: StoreError."""
    steps = marker.steps(store, training.name) if marker.is_run(training.name) else []
    newest_first = steps[::-1]
    problem = ""
    attempts: Sequence[AttemptGoodput] = ()
    newest = ""
    failure = ""
    is_recorded = False
    recorded: RunState | None = None
    started_us = 0
    try:
        brief = run_brief(store, training.name)
        times, attempts = goodputs.starts(store, brief)
        is_recorded = True
        if times.events:
            newest = str(times.events[-1])
        failed = brief.failed
        if failed is not None and not has_resumed(failed, times.events):
            failure = f"last failure: {failed.summary()}"
        problem = brief.problem
        recorded = state_from_record(brief.events, failed)
        started_us = max((facts["at_us"] for facts in times.attempts.values()), default=0)
    except RunNotFound:
        pass  # a run with a log only
    except Corrupt as error:
        # Checkpoints and the log do not depend on the record, so the page shows them.
        problem = str(error)
    starts = [_start_line(attempt) for attempt in attempts]
    now = _state(
        training,
        recorded,
        checkpoint=max(steps, default=-1),
        started_us=started_us,
    )
    return RunOverview(
        is_recorded=is_recorded,
        newest=newest,
        failure=failure,
        goodput=goodput_share(attempts),
        parts=goodput_shares(attempts),
        n_starts=len(starts),
        starts=tuple(starts[::-1][:MOST_STARTS]),
        restart_causes={cause.cause: cause.count for cause in restarts(attempts)},
        checkpoints=tuple(newest_first[:MOST_STARTS]),
        n_checkpoints=len(steps),
        waiting=_waiting(training),
        problem=problem,
        state=now.state,
        news=now.text,
    )


def unavailable_overview(training: Training, problem: str) -> RunOverview:
    """Return an overview without the run's record, and the reason. Reads nothing."""
    return RunOverview(waiting=_waiting(training), problem=problem)


def _waiting(training: Training) -> float:
    if training.charted is None:
        return math.nan
    return log_facts(training).waiting


def _state(
    training: Training,
    recorded: RunState | None,
    *,
    checkpoint: int,
    started_us: int,
) -> KnownState:
    last_us = 0
    median_step_us = math.nan
    if training.charted is not None:
        facts = log_facts(training)
        last_us = facts.last_us
        median_step_us = facts.median_step_us
    known = StateFacts(
        recorded=recorded,
        last_step=training.last_step,
        last_us=last_us,
        median_step_us=median_step_us,
        checkpoint=checkpoint,
        started_us=started_us,
    )
    return state_from_facts(known, time.time())


def _start_line(attempt: AttemptGoodput) -> StartLine:
    return StartLine(
        number=attempt.attempt,
        first_step=attempt.first_step,
        end_step=attempt.end_step,
        nodes=attempt.nodes,
        seconds=attempt.seconds,
        end=attempt.end,
        lost_steps=attempt.lost_steps,
    )
