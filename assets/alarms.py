"""Compute a dataset's alarms from the root. Each is sent when it starts, daily while it lasts, and when it ends.

docs/operations.md explains each name under a heading.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

from resources.alerts import Alert, Severity

from .batches import IngestBatch, backlog
from .upkeep import Limits

REMINDER_S = 86_400.0
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A lasting problem."""

    alert: Alert
    """Message to send while the problem lasts."""
    subject: str = ""
    """Key of the batch, or ""."""

    @property
    def key(self) -> str:
        return f"{self.alert.name} {self.subject}".strip()


def alarms(
    dataset: str, batches: Sequence[IngestBatch], published_s: float | None, limits: Limits, now_s: float
) -> list[Alarm]:
    """Return the dataset's current alarms. published_s: Unix time of its newest version, None before the first."""
    raised = [
        _alarm(
            dataset, "batch-stopped", "error", f"batch {batch.key} was stopped", batch.stopped_by, batch.key
        )
        for batch in batches
        if batch.standing == "stopped"
    ]
    landed = [batch.landed_at_us / 1e6 for batch in batches if batch.landed_at_us]
    waiting = [batch for batch in backlog(batches) if batch.landed_at_us]
    if limits.backlog_s is not None and waiting:
        oldest = min(waiting, key=lambda batch: batch.landed_at_us)
        waited_s = now_s - oldest.landed_at_us / 1e6
        if waited_s > limits.backlog_s:
            what = (
                f"batch {oldest.key} landed {_hours(waited_s)} ago and is not trainable ({oldest.standing})"
            )
            details = f"{len(waiting)} batches with {sum(batch.objects for batch in waiting)} objects wait"
            raised.append(_alarm(dataset, "backlog-old", "error", what, details))
    if limits.silence_s is not None and landed and now_s - max(landed) > limits.silence_s:
        what = f"nothing has landed for {_hours(now_s - max(landed))}"
        raised.append(_alarm(dataset, "nothing-arrives", "warning", what))
    if limits.version_s is not None and published_s is not None and now_s - published_s > limits.version_s:
        what = f"the newest version is {_hours(now_s - published_s)} old"
        raised.append(_alarm(dataset, "version-old", "warning", what))
    return raised


def due(now: Sequence[Alarm], state: str, now_s: float | None = None) -> tuple[list[Alert], str]:
    """Return (alerts to send, state for the next call).

    state: as the previous call returned it; "" on the first call. Unreadable text counts as "".
    """
    at_s = time.time() if now_s is None else now_s
    before = _sent_before(state)
    lasting: dict[str, list[object]] = {}
    alerts = []
    for alarm in now:
        known = before.pop(alarm.key, None)
        is_due = known is None or at_s - known[0] >= REMINDER_S
        if is_due:
            alerts.append(alarm.alert)
        lasting[alarm.key] = [at_s if is_due or known is None else known[0], alarm.alert.dataset]
    for key, (_, dataset) in before.items():
        name, _, subject = key.partition(" ")
        what = f"{name} is over" + (f": {subject}" if subject else "")
        alerts.append(Alert(name=name, severity="resolved", dataset=dataset, what=what))
    return alerts, json.dumps(lasting, sort_keys=True)


def _sent_before(text: str) -> dict[str, tuple[float, str]]:
    try:
        return {key: (float(at), str(dataset)) for key, (at, dataset) in json.loads(text or "{}").items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def _alarm(
    dataset: str, name: str, severity: Severity, what: str, details: str = "", subject: str = ""
) -> Alarm:
    return Alarm(
        alert=Alert(name=name, severity=severity, dataset=dataset, what=what, details=details),
        subject=subject,
    )


def _hours(seconds: float) -> str:
    return f"{seconds / _HOUR_S:.1f} h" if seconds >= _HOUR_S else f"{seconds / 60:.0f} min"
