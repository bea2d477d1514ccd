"""State of a training at a time, by its record if it has one, else by its run log and checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...metrics.conditions import RunState, run_state, silent_state
from ...train.record_objects.failed_starts import FailedStart
from ...train.run_folder import Event
from ...train.submitting import has_resumed
from ...units import minute


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFacts:
    """Facts that decide a run's state."""

    recorded: RunState | None
    """State by the run's record; None without a record."""
    last_step: int
    """Last recorded step; -1 without one."""
    last_us: int
    """Time when it was delivered, in UTC microseconds; 0 without one."""
    median_step_us: float
    """Median time between two steps; NaN if unknown."""
    checkpoint: int
    """Steps done at the newest checkpoint; -1 without one."""
    started_us: int = 0
    """Time of the newest start, in UTC microseconds; 0 without a record."""


@dataclass(frozen=True, slots=True)
class KnownState:
    state: str
    text: str
    """Last news of a run without a recorded end, as one sentence; "" for others."""


def state_from_record(
    events: Sequence[Event],
    failed: FailedStart | None,
) -> RunState:
    """Return a run's state by its record: an end, or running. events: the newest last."""
    if not events:
        return "running"
    has_failed = failed is not None and not has_resumed(failed, events)
    newest = events[-1].name
    return run_state(newest, has_failed=has_failed)


def state_from_facts(facts: StateFacts, now_s: float) -> KnownState:
    """Return the state at a Unix time. Only a record has a run's end; without one there is only silence."""
    # A run that has made no step yet is silent since its newest start.
    last_us = facts.last_us or facts.started_us
    state = silent_state(
        facts.recorded or "running",
        now_s - last_us / 1e6,
        facts.median_step_us / 1e6,
        is_recorded=facts.recorded is not None,
    )
    if state not in ("stalled", "silent"):
        return KnownState(state, "")
    text = "no step recorded"
    if facts.last_us:
        text = f"no news since {minute(facts.last_us)}"
    if facts.checkpoint > facts.last_step >= 0:
        text += ", saved after its last step"
    return KnownState(state, text)
