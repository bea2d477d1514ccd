"""A dataset's alarms, and sensors that alert a person about alarms, failed runs and abandoned cluster jobs."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import dagster as dg

from assets.arrivals.batches import IngestBatch, IngestBatches, backlog
from assets.pages.report import dagster_name
from assets.spec import DatasetSpec, Limits
from dagster_project.runs import PARTITION, location_tags, sensor_label
from dagster_project.sensors.recovery import will_start_again
from loader.dataset.versions.version import Version
from loader.errors import Corrupt, EngineUnreachable
from loader.storage import Store
from penstock.alerts import Alert
from penstock.metrics.conditions import (
    BY_NAME,
    DatasetFacts,
    RaisedCondition,
    WaitingBatch,
    dataset_conditions,
)
from resources.alerts import AlertsResource
from resources.compute import ComputeResource
from resources.storage import RootResource

if TYPE_CHECKING:
    from penstock.compute.job import JobFolder


REMINDER_S = 86_400.0
SEND_S = 60.0
"""Seconds of a tick in which alerts are sent; the others wait for the next one. A dead channel takes 30 for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A lasting problem."""

    alert: Alert
    """Alert that is sent while the problem lasts."""
    subject: str = ""
    """Key of the batch, or ""."""

    @property
    def key(self) -> str:
        return f"{self.alert.name} {self.subject}".strip()


def alarms(
    dataset: str,
    batches: Sequence[IngestBatch],
    published_s: float | None,
    limits: Limits,
    now_s: float,
) -> list[Alarm]:
    """Return the dataset's current alarms. published_s: Unix time of its newest version, None before the first."""
    stopped = [(batch.key, batch.stopped_by) for batch in batches if batch.standing == "stopped"]
    landed = [batch.landed_at_us / 1e6 for batch in batches if batch.landed_at_us]
    waiting = [batch for batch in backlog(batches) if batch.landed_at_us]
    oldest: WaitingBatch | None = None
    if waiting:
        batch = min(waiting, key=lambda each: each.landed_at_us)
        oldest = WaitingBatch(
            batch=batch.key,
            landed_s=batch.landed_at_us / 1e6,
            standing=batch.standing,
        )
    n_objects = sum(batch.objects for batch in waiting)
    facts = DatasetFacts(
        dataset=dataset,
        stopped=stopped,
        oldest_waiting=oldest,
        waiting_text=f"{len(waiting)} batches with {n_objects} objects wait",
        landed_s=max(landed, default=None),
        published_s=published_s,
    )
    return [_build_alarm(raised) for raised in dataset_conditions(facts, now_s, limits)]


class DueAlert(NamedTuple):
    """An alert to send."""

    key: str
    """Key of its alarm."""
    alert: Alert


def due(now: Sequence[Alarm], state: str, now_s: float | None = None) -> tuple[list[DueAlert], str]:
    """Return (alerts to send, state for the next call). state: "" on the first call; unreadable text counts as ""."""
    if now_s is None:
        at_s = time.time()
    else:
        at_s = now_s
    before = _sent_alerts(state)
    lasting: dict[str, list[object]] = {}
    alerts = []
    for alarm in now:
        # Alarms that remain in `before` are over.
        known = before.pop(alarm.key, None)
        is_due = known is None or at_s - known[0] >= REMINDER_S
        if is_due:
            alerts.append(DueAlert(alarm.key, alarm.alert))
        lasting[alarm.key] = [at_s if is_due or known is None else known[0], alarm.alert.dataset]
    for key, (_, dataset) in before.items():
        name, _, subject = key.partition(" ")
        what = f"{name} is over" + (f": {subject}" if subject else "")
        alerts.append(DueAlert(key, Alert(name=name, severity="resolved", dataset=dataset, what=what)))
    return alerts, json.dumps(lasting, sort_keys=True)


def without_unsent(state: str, earlier: str, unsent: Sequence[str]) -> str:
    """Return the state after alerts, in which alarms that no channel took are due again.

    state, earlier: after and before `due`. unsent: keys of their alarms.
    """
    alerts = dict[str, object](_sent_alerts(state))
    before = _sent_alerts(earlier)
    for key in unsent:
        alerts.pop(key, None)
        if key in before:
            alerts[key] = before[key]
    return json.dumps(alerts, sort_keys=True)


def _send_due(
    context: dg.SensorEvaluationContext, alerts: AlertsResource, lasting: Sequence[Alarm], now_s: float
) -> str:
    """Send the alerts of lasting alarms, and note them in the cursor; return how many were sent and how many not."""
    earlier = context.cursor or ""
    to_send, state = due(lasting, earlier, now_s)
    n_remote = _n_remote(alerts)
    until_s = time.monotonic() + SEND_S
    unsent = []
    n_sent = 0
    n_problems = 0
    for key, alert in to_send:
        if time.monotonic() > until_s:
            unsent.append(key)
            continue
        problems = alerts.send(alert)
        n_sent += 1
        n_problems += len(problems)
        for problem in problems:
            context.log.error(problem)
        # One that took it would get it twice.
        if problems and len(problems) == n_remote:
            unsent.append(key)
    # Last, so that a killed tick sends its alerts again.
    context.update_cursor(without_unsent(state, earlier, unsent))
    return f"{n_sent} alerts sent, {n_problems} not delivered"


def _sent_alerts(text: str) -> dict[str, tuple[float, str]]:
    try:
        return {key: (float(at), str(dataset)) for key, (at, dataset) in json.loads(text or "{}").items()}
    # Each lasting problem is then sent once more.
    except (ValueError, TypeError, AttributeError):
        return {}


def _build_alarm(raised: RaisedCondition) -> Alarm:
    alert = Alert(
        name=raised.condition.name,
        severity=raised.condition.severity,
        dataset=raised.subject,
        what=raised.text,
        details=raised.details,
    )
    return Alarm(alert=alert, subject=raised.item)


def why_failed(event: dg.DagsterEvent) -> str:
    """Return the message of a step's `dg.Failure`, or of the first cause of its error."""
    failure = event.step_failure_data
    if failure.user_failure_data and failure.user_failure_data.description:
        return failure.user_failure_data.description
    error = failure.error
    # Dagster wraps the asset's own error.
    while error and error.cause:
        error = error.cause
    if error:
        return error.message.strip()
    return "no message"


WATCH_EVERY_S = (
    300  # a tick costs `IngestBatches.current`, the newest version's manifest and four requests for the log
)


def watch_sensor(spec: DatasetSpec, batches: dg.DynamicPartitionsDefinition) -> dg.SensorDefinition:
    """Return the sensor that watches a dataset for stopped and late batches."""
    features = [feature.stage for feature in spec.features]
    book = IngestBatches(spec.name, features)  # caches records as long as the code server lives

    @dg.sensor(
        name=f"{dagster_name(spec.name)}_watch",
        minimum_interval_seconds=WATCH_EVERY_S,
        description=f"Alert if a batch of {spec.name} was stopped or waits too long, or if nothing arrives.",
    )
    def watch(
        context: dg.SensorEvaluationContext, root: RootResource, alerts: AlertsResource
    ) -> dg.SensorResult | dg.SkipReason:
        with root.opened() as opened:
            facts = book.current(opened)
            newest = opened.state.newest(spec.name)
            published_us = None
            if newest:
                published_us = Version.of_record(opened.store, newest).manifest["created_us"]
        now_s = time.time()
        published_s = None
        if published_us:
            published_s = published_us / 1e6
        lasting = alarms(spec.name, facts, published_s, spec.alerts, now_s)
        sent = _send_due(context, alerts, lasting, now_s)
        summary = "; ".join(alarm.alert.what for alarm in lasting) or "all is well"
        return dg.SkipReason(f"{sent}; {summary}"[:1000])

    return watch


_DATASET = "penstock/dataset"
_ALERT, _UNSENT = "penstock/alert", "unsent"
"""Tag of a failed run, and its value until a channel takes the alert."""
_FAILURES = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}
_FIRST_SEND_S = 60.0
"""Age in s of an unsent alert: before, the sensor of failures may be sending it."""
_MAX_UNSENT = 100
"""Most failed runs that a tick reads."""


def run_failure_sensor() -> dg.SensorDefinition:
    """Return the sensor that alerts about failed runs of this code location, whatever their job."""

    @dg.run_failure_sensor(
        name="penstock_run_failure",
        minimum_interval_seconds=30,
        description="Alert about every failed run that is not retried automatically.",
    )
    def run_failure(context: dg.RunFailureSensorContext, alerts: AlertsResource) -> dg.SkipReason | None:
        run = context.dagster_run
        if will_start_again(context.instance, run):
            return dg.SkipReason(f"run {run.run_id} is retried")
        # Dagster shows each failure once, also to a tick that is killed: the tag lets `penstock_jobs` alert again.
        context.instance.add_run_tags(run.run_id, {_ALERT: _UNSENT})
        _send_failure(context.instance, run, alerts, context.log.error)
        return None

    return run_failure


def _send_failure(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    alerts: AlertsResource,
    tell: Callable[[str], object],
) -> None:
    """Alert about a failed run, and tag it once a channel took the alert. Raises: ValueError for invalid channels."""
    failed = [
        record.event_log_entry.get_dagster_event()
        for record in instance.get_records_for_run(run.run_id, of_type=_FAILURES, ascending=True).records
    ]
    steps = [event for event in failed if event.is_step_failure]
    if steps:
        details = "\n".join(f"{event.step_key}: {why_failed(event)}" for event in steps)
    else:
        details = "\n".join(event.message or "" for event in failed)
    partition = run.tags.get(PARTITION, "")
    condition = BY_NAME["run-failed"]
    alert = Alert(
        name=condition.name,
        severity=condition.severity,
        dataset=run.tags.get(_DATASET, ""),
        what=f"run {run.run_id} of {run.job_name}{f', partition {partition},' if partition else ''} failed",
        details=details[:3000],
        url=alerts.page(f"runs/{run.run_id}"),
    )
    problems = alerts.send(alert)
    for problem in problems:
        tell(problem)
    if not problems or len(problems) < _n_remote(alerts):
        instance.add_run_tags(run.run_id, {_ALERT: "sent"})


def send_unsent_failures(
    instance: dg.DagsterInstance,
    alerts: AlertsResource,
    label: str,
    now_s: float,
    tell: Callable[[str], object],
) -> None:
    """Alert about failed runs whose alert no channel took. label: the code location's; "" for all."""
    unsent = dg.RunsFilter(
        statuses=[dg.DagsterRunStatus.FAILURE],
        tags={**location_tags(label), _ALERT: _UNSENT},
        updated_before=datetime.fromtimestamp(now_s - _FIRST_SEND_S, tz=UTC),
    )
    until_s = time.monotonic() + SEND_S
    for record in instance.get_run_records(unsent, limit=_MAX_UNSENT, ascending=True):
        if time.monotonic() > until_s:
            return
        _send_failure(instance, record.dagster_run, alerts, tell)


def _n_remote(alerts: AlertsResource) -> int:
    return len(alerts.channels()) - 1  # the log takes every alert


JOBS_EVERY_S = 600
ALERT_S, CANCEL_S = 6 * 3600.0, 24 * 3600.0
"""Seconds unattended until the alert, and until the job is cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnattendedJob:
    """An unfinished cluster job. A process that monitors it writes to its folder every ten minutes."""

    folder: "JobFolder"
    about: str
    """Name of the job."""
    unattended_s: float
    """Seconds since a monitor wrote."""
    n_blocks: int
    n_done: int
    """Finished blocks."""


def jobs_sensor() -> dg.SensorDefinition:
    """Return the sensor of a root's cluster jobs. Costs a listing, and 4 requests per unfinished job."""

    @dg.sensor(
        name="penstock_jobs",
        minimum_interval_seconds=JOBS_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Alert about a cluster's job that no process attends, and cancel it after a day; alert again about "
        "failed runs whose alert no channel took.",
    )
    def jobs(
        context: dg.SensorEvaluationContext,
        root: RootResource,
        compute: ComputeResource,
        alerts: AlertsResource,
    ) -> dg.SkipReason:
        now_s = time.time()
        # First: the root may be what failed the runs.
        send_unsent_failures(context.instance, alerts, sensor_label(context), now_s, context.log.error)
        with root.opened() as opened:
            abandoned = [
                job
                for job in unattended_jobs(opened.store, now_s, context.log.error)
                if job.unattended_s > ALERT_S
            ]
            ended = [job for job in abandoned if job.unattended_s > CANCEL_S]
            for job in ended:
                _cancel_job(context, job.folder, compute)
        lasting = [_alarm(job) for job in abandoned if job not in ended]
        _send_due(context, alerts, lasting, now_s)
        return dg.SkipReason(f"{len(abandoned)} jobs without an attending process, {len(ended)} cancelled")

    return jobs


def unattended_jobs(store: Store, now_s: float, tell: Callable[[str], object]) -> Iterator[UnattendedJob]:
    """Yield a store's unfinished jobs, with the time since a monitor wrote.

    tell: receives messages about damaged descriptions.
    """
    from penstock.compute.job import JobFolder, job_ids

    for id_ in job_ids(store):
        folder = JobFolder(store, id_)
        try:
            description = folder.description()
        except Corrupt as error:
            tell(f"job {id_} is skipped: {error}")
            continue
        if description is None or folder.stopped:
            continue
        n_done = len(folder.done(description))
        n_blocks = len(description.blocks)
        if n_done < n_blocks:
            # A new job has no heartbeat yet.
            seen_us = max(description.at_us, folder.heartbeat_us())
            yield UnattendedJob(
                folder=folder,
                about=description.about,
                unattended_s=now_s - seen_us / 1e6,
                n_blocks=n_blocks,
                n_done=n_done,
            )


def _alarm(job: UnattendedJob) -> Alarm:
    what = (
        f"no process has attended job {job.folder.id} ({job.about}) for {job.unattended_s / 3600:.0f} h; "
        f"{job.n_done} of its {job.n_blocks} blocks are done, and after {CANCEL_S / 3600:.0f} h it is cancelled"
    )
    dataset = job.about.partition("/")[0]
    condition = BY_NAME["job-left"]
    alert = Alert(
        name=condition.name,
        severity=condition.severity,
        dataset=dataset,
        what=what,
    )
    return Alarm(alert=alert, subject=job.folder.id)


def _cancel_job(context: dg.SensorEvaluationContext, folder: "JobFolder", compute: ComputeResource) -> None:
    from penstock.compute.attach import cancel
    from penstock.compute.cluster import read_cluster

    if not compute.cluster:
        folder.stop()
        return
    try:
        cancel(folder, read_cluster(compute.cluster).open())
    except EngineUnreachable as error:
        # The job is stopped in the root already: its runners start no more blocks, and end.
        context.log.error(f"job {folder.id} should end, but its cluster does not respond: {error}")
