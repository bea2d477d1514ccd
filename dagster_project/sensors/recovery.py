"""Recovery: mark runs without a process as failed, and repeat runs that failed through no fault of their own.

Dagster retries a crashed run, and its monitor ends a run that never started. These cases would need a person:

- A running run stays "Started": its launcher cannot check a process.
- A run that leaves the queue while a code server is down fails, and a retry requested then is dropped.
- No retry follows a step that failed because the store, or Dagster's database, did not respond.
- A promised retry may never come: Dagster checks each failure once, and skips a run not yet stored as failed.
"""

import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import dagster as dg

from dagster_project.runs import (
    PARTITION,
    CodeLocation,
    is_last,
    is_server_here,
    location_tags,
    sensor_location,
)
from loader.errors import Throttled, Transient
from resources.compute import WAITS

WILL_RETRY = "dagster/will_retry"
AGAIN_OF, ATTEMPT = "penstock/again_of", "penstock/attempt"
PAUSES_S = (0.0, 60.0, 600.0, 3600.0)
"""Seconds from the end of the first, second ... attempt to the next; after the last, a person is needed."""

WAITED_S = 600.0
"""Shortest run, in s, whose wait uses up no attempt."""

PROMISE_S = 300.0
"""Seconds within which Dagster retries, if at all."""

_REPEATED_SUFFIX = (
    "_ingest"  # jobs that discovery requests; schedules and sensors repeat publishing jobs anyway
)
_GRACE_S = 30.0
"""Shortest age in s of a process whose absence ends its run."""
_LOOK_BACK_S = 86_400.0
_MAX_RUNS = 100
"""Most runs that a tick reads."""
_REASON = "dagster/failure_reason"
_RETRY, _BACKFILL = "dagster/auto_retry_run_id", "dagster/backfill"
_STEP_OR_START = ("STEP_FAILURE", "JOB_INITIALIZATION_FAILURE")
_NO_ANSWER = {Throttled.__name__, Transient.__name__, "OperationalError", "InterfaceError"}
"""Error classes of store and Dagster's database."""
_PID = re.compile(r"\(pid: (\d+)\)")


def recovery_sensor() -> dg.SensorDefinition:
    """Return the sensor that ends runs without a process, one per code location.

    It only marks runs as failed. The sensor or schedule that requested a lost run requests it again; discovery does so
    with `repeat_requests`.
    """

    @dg.sensor(
        name="penstock_recovery",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Mark runs without a process as failed, so that they are repeated.",
    )
    def recovery(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        ended = end_orphans(context.instance, time.time(), sensor_location(context))
        return dg.SkipReason(f"{len(ended)} runs had no process: {', '.join(ended) or 'none'}")

    return recovery


def repeat_requests(instance: dg.DagsterInstance, job: str, label: str = "") -> list[dg.RunRequest]:
    """Return a request for each lost run of an idempotent job."""
    requests = []
    for run in lost_runs(instance, job, time.time(), label):
        attempt = run_attempt(run)
        if not is_after_wait(instance, run):  # its next run only finds the job: no new attempt
            attempt += 1
        request = dg.RunRequest(
            run_key=f"again-{run.run_id}",
            partition_key=run.tags.get(PARTITION),
            tags={AGAIN_OF: run.run_id, ATTEMPT: str(attempt)},
        )
        requests.append(request)
    return requests


def run_attempt(run: dg.DagsterRun) -> int:
    """Return the number of a run's attempt; Dagster's own retries all count as 1."""
    return int(run.tags.get(ATTEMPT, "1"))


def is_after_wait(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether a run ended during a long wait for a cluster job; its next run finds the job."""
    record = instance.get_run_record_by_id(run.run_id)
    if record is None or not run.tags.get(WAITS) or not record.start_time or not record.end_time:
        return False
    return record.end_time - record.start_time >= WAITED_S


def will_start_again(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether Dagster or a sensor will repeat a failed run."""
    if run.tags.get(WILL_RETRY) == "true":
        return True
    is_repeated = run.job_name.endswith(_REPEATED_SUFFIX) and run_attempt(run) <= len(PAUSES_S)
    return is_repeated and is_no_fault_of_the_run(instance, run)


def is_no_fault_of_the_run(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether a run failed without a step's error, or because the store or the database did not respond."""
    if run.tags.get(_REASON) not in _STEP_OR_START:
        return True
    failures = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records
    return any(_is_no_answer(event.event_log_entry.get_dagster_event()) for event in failures)


def _is_no_answer(event: dg.DagsterEvent) -> bool:
    """Return whether a step failed, at its root or on the way, because a service did not respond."""
    error = event.step_failure_data.error
    while error is not None:
        if error.cls_name in _NO_ANSWER:
            return True
        error = error.cause
    return False


def end_orphans(instance: dg.DagsterInstance, now_s: float, here: CodeLocation | None) -> list[str]:
    """Mark this code location's runs without a process, launched on this machine, as failed; return their ids.

    here: None without a workspace: no run is marked.
    """
    if here is None or type(instance.run_launcher) is not dg.DefaultRunLauncher:
        return []  # the monitor checks other launchers' workers
    statuses = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
    started = dg.RunsFilter(statuses=statuses, tags=location_tags(here.label))
    ended = []
    for record in instance.get_run_records(started, limit=_MAX_RUNS):
        run = record.dagster_run
        if not is_server_here(run, here):
            continue
        process = _run_process(instance, run.run_id)
        if process is None or now_s - process.began_s < _GRACE_S:
            continue
        if is_alive(process.pid, process.began_s):
            continue
        # Read again: a process that is gone may have finished its run after the list was read.
        current_run = instance.get_run_by_id(run.run_id)
        if current_run is None or current_run.is_finished:
            continue
        message = f"The run's process (pid {process.pid}) is gone without an error."
        instance.report_run_failed(current_run, message)
        ended.append(run.run_id)
    return ended


def lost_runs(
    instance: dg.DagsterInstance,
    job: str,
    now_s: float,
    label: str = "",
) -> list[dg.DagsterRun]:
    """Return the last day's lost runs that are the newest of their job and partition, and due for a repetition.

    label: the code location's; "" for all.
    """
    since = dg.RunsFilter(
        job_name=job,
        tags=location_tags(label),
        statuses=[dg.DagsterRunStatus.FAILURE],
        updated_after=datetime.fromtimestamp(now_s - _LOOK_BACK_S, tz=UTC),
    )
    runs = []
    for record in instance.get_run_records(since, limit=_MAX_RUNS):
        run = record.dagster_run
        attempt = run_attempt(run)
        if attempt > len(PAUSES_S):
            continue
        wait_s = PAUSES_S[attempt - 1]
        # Dagster promises a retry, which may never come.
        is_promised = run.tags.get(WILL_RETRY) == "true"
        if is_promised:
            wait_s = max(wait_s, PROMISE_S)
        ended_s = record.end_time or record.update_timestamp.timestamp()
        if now_s - ended_s < wait_s or not is_last(instance, run):
            continue
        if is_promised and _is_promise_settled(instance, run):
            continue
        if is_no_fault_of_the_run(instance, run):
            runs.append(run)
    return runs


def _is_promise_settled(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether a promised retry exists, or the run's backfill has ended or was cancelled."""
    retry_id = run.tags.get(_RETRY)
    if retry_id and instance.get_run_by_id(retry_id) is not None:
        return True
    backfill_id = run.tags.get(_BACKFILL)
    if backfill_id is None:
        return False
    backfill = None
    if backfill_id:
        backfill = instance.get_backfill(backfill_id)
    return backfill is None or backfill.status.value != "REQUESTED"


def is_alive(pid: int, began_s: float) -> bool:
    """Return whether the process that started at that time is alive. A later process may have its id."""
    if not Path("/proc/self/stat").exists():
        return _answers(pid)
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        boot = re.search(r"^btime (\d+)$", Path("/proc/stat").read_text(encoding="utf-8"), re.M)
    except (FileNotFoundError, ProcessLookupError):
        return False
    state = fields[0]
    ticks = int(fields[19])
    started_s = int(boot[1] if boot else 0) + ticks / os.sysconf("SC_CLK_TCK")
    return state != "Z" and started_s <= began_s + 2  # btime has whole seconds


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class RunProcess(NamedTuple):
    """A run's process on the machine that launched it."""

    pid: int
    began_s: float
    """Unix time of the event that names it."""


def _run_process(instance: dg.DagsterInstance, run_id: str) -> RunProcess | None:
    """Return a run's process; None if no event names one."""
    events = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT, limit=50).records
    for event in events:
        if event.event_log_entry.step_key is not None:
            continue  # a step's process may be on another machine
        message = event.event_log_entry.get_dagster_event().message or ""
        if not message.startswith(("Started process for run", "Executing steps in process")):
            continue
        pid = _PID.search(message)
        if pid:
            return RunProcess(int(pid[1]), event.event_log_entry.timestamp)
    return None
