"""Recovery: runs whose process is gone are marked failed, and runs that failed by no fault of their own run again.

Dagster starts a crashed run again (`run_retries`), and its monitor ends one that never began. Each of these cases would
leave a batch behind until a person looks; the first three were seen when a code server was killed:

- A run that was on stays "Started" for ever, since its launcher cannot be asked for the health of a process.
- A run that was taken from the queue meanwhile fails.
- A retry that is asked for meanwhile is given up.
- Nobody starts a step again that failed because the store, or Dagster's own database, did not answer.
- A retry that Dagster has promised may never come. It looks at each failure once, and passes over one whose run is not
  written down as failed in that moment.
"""

import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg

from dagster_project.code_location import CodeLocation, code_location_of, is_server_here, tags_of
from dagster_project.last_run import PARTITION, is_last
from loader.errors import Throttled, Transient
from resources.compute import WAITS

WILL_RETRY = "dagster/will_retry"
AGAIN_OF, ATTEMPT = "penstock/again_of", "penstock/attempt"
PAUSES_S = (0.0, 60.0, 600.0, 3600.0)
"""Seconds between the end of the first, second ... attempt and the next. One that dies after all of them is for a
person: something about it kills, or the store has been away for longer than that."""

WAITED_S = 600.0
"""Seconds that a run lived, at least, whose wait for a job uses up no attempt."""

PROMISE_S = 300.0
"""Seconds after a failure. A retry by Dagster itself is asked for within them, or never."""

_ASKED_AGAIN = "_ingest"  # by discovery; what publishes is asked for by its schedule or sensor anyhow
_GRACE_S = 30.0
_LOOK_BACK_S = 86_400.0
_MAX_RUNS = 100
_REASON = "dagster/failure_reason"
_RETRY, _BACKFILL = "dagster/auto_retry_run_id", "dagster/backfill"
_OF_THE_RUN = ("STEP_FAILURE", "JOB_INITIALIZATION_FAILURE")
_NO_ANSWER = {Throttled.__name__, Transient.__name__, "OperationalError", "InterfaceError"}
"""Errors of the store, and of the driver of Dagster's database in a step that tells what it made."""
_PID = re.compile(r"\(pid: (\d+)\)")


def recovery_sensor() -> dg.SensorDefinition:
    """Return the sensor that ends runs without a process: one for all jobs of a code location, on by default.

    The sensor or schedule that asked for a lost run asks for it again.
    """

    @dg.sensor(
        name="penstock_recovery",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Tells runs failed whose process is gone, so that they are started again.",
    )
    def recovery(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        ended = end_orphans(context.instance, time.time(), code_location_of(context))
        return dg.SkipReason(f"{len(ended)} runs had no process any more: {', '.join(ended) or 'none'}")

    return recovery


def again(instance: dg.DagsterInstance, job: str, label: str = "") -> list[dg.RunRequest]:
    """Return a request for each lost run of a job that does nothing twice.

    A stage that has its record is not made again.
    """
    return [
        dg.RunRequest(
            run_key=f"again-{run.run_id}",
            partition_key=run.tags.get(PARTITION),
            tags={AGAIN_OF: run.run_id, ATTEMPT: str(attempt_of(run) + (0 if waited(instance, run) else 1))},
        )
        for run in lost(instance, job, time.time(), label)
    ]


def attempt_of(run: dg.DagsterRun) -> int:
    """Return 1 for a run that was asked for in the first place, or by Dagster's own retry of one."""
    return int(run.tags.get(ATTEMPT, "1"))


def waited(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether a run ended in the midst of a long wait for a cluster's job, which uses up no attempt.

    The next run finds the job, and goes on waiting. One that ended sooner may have a fault of its own.
    """
    record = instance.get_run_record_by_id(run.run_id)
    if record is None or not run.tags.get(WAITS) or not record.start_time or not record.end_time:
        return False
    return record.end_time - record.start_time >= WAITED_S


def will_start_again(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether a run that failed is started again, by Dagster or by its sensor."""
    return run.tags.get(WILL_RETRY) == "true" or (
        run.job_name.endswith(_ASKED_AGAIN)
        and attempt_of(run) <= len(PAUSES_S)
        and is_no_fault_of_the_run(instance, run)
    )


def is_no_fault_of_the_run(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether a run failed without a word of its steps, or with an unanswered request.

    The store, or Dagster's database, did not answer.
    """
    if run.tags.get(_REASON) not in _OF_THE_RUN:
        return True
    failures = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records
    return any(_was_not_answered(event.event_log_entry.get_dagster_event()) for event in failures)


def _was_not_answered(event: dg.DagsterEvent) -> bool:
    error = event.step_failure_data.error
    while error is not None:
        if error.cls_name in _NO_ANSWER:
            return True
        error = error.cause
    return False


def end_orphans(instance: dg.DagsterInstance, now_s: float, here: CodeLocation | None) -> list[str]:
    """Mark runs as failed whose process is gone, and return their ids.

    They are of this code location, and were started on this machine by the default launcher. Dagster's retries take it
    from there. Nothing is known of other runs, and they are left alone.
    """
    if here is None or type(instance.run_launcher) is not dg.DefaultRunLauncher:
        return []  # another launcher can be asked for the health of its workers: the monitor does so
    statuses = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
    started = dg.RunsFilter(statuses=statuses, tags=tags_of(here.label))
    ended = []
    for record in instance.get_run_records(started, limit=_MAX_RUNS):
        run = record.dagster_run
        if not is_server_here(run, here):
            continue
        process = _process_of(instance, run.run_id)
        if process is None or now_s - process[1] < _GRACE_S or is_alive(*process):
            continue
        if (now := instance.get_run_by_id(run.run_id)) is None or now.is_finished:
            continue  # it ended while we looked
        instance.report_run_failed(now, f"The run's process (pid {process[0]}) is gone, and did not say why.")
        ended.append(run.run_id)
    return ended


def lost(instance: dg.DagsterInstance, job: str, now_s: float, label: str = "") -> list[dg.DagsterRun]:
    """Return failed runs of the last day that nobody has started again and whose pause is over.

    They failed for no fault of their own, and are the last of their job and partition. label: of the code location, ""
    for all.
    """
    since = dg.RunsFilter(
        job_name=job,
        tags=tags_of(label),
        statuses=[dg.DagsterRunStatus.FAILURE],
        updated_after=datetime.fromtimestamp(now_s - _LOOK_BACK_S, tz=UTC),
    )
    found = []
    for record in instance.get_run_records(since, limit=_MAX_RUNS):
        run, attempt = record.dagster_run, attempt_of(record.dagster_run)
        if attempt > len(PAUSES_S):
            continue
        ended_s = record.end_time or record.update_timestamp.timestamp()
        promise_s = PROMISE_S if run.tags.get(WILL_RETRY) == "true" else 0.0
        if now_s - ended_s < max(promise_s, PAUSES_S[attempt - 1]) or not is_last(instance, run):
            continue
        if promise_s and _is_settled_otherwise(instance, run):
            continue
        if is_no_fault_of_the_run(instance, run):
            found.append(run)
    return found


def _is_settled_otherwise(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether a promised retry was made, if not launched yet, or is not to come.

    It is not to come where its backfill has ended, or somebody cancelled it.
    """
    made, backfill = run.tags.get(_RETRY), run.tags.get(_BACKFILL)
    if made and instance.get_run_by_id(made) is not None:
        return True
    found = instance.get_backfill(backfill) if backfill else None
    return backfill is not None and (found is None or found.status.value != "REQUESTED")


def is_alive(pid: int, began_s: float) -> bool:
    """Return whether a process of that time is alive. A number that was given to another since does not count."""
    if not Path("/proc/self/stat").exists():
        return _answers(pid)
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        boot = re.search(r"^btime (\d+)$", Path("/proc/stat").read_text(encoding="utf-8"), re.M)
    except (FileNotFoundError, ProcessLookupError):
        return False
    state, ticks = fields[0], int(fields[19])
    started_s = int(boot[1] if boot else 0) + ticks / os.sysconf("SC_CLK_TCK")
    return state != "Z" and started_s <= began_s + 2  # the boot's time is in whole seconds


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _process_of(instance: dg.DagsterInstance, run_id: str) -> tuple[int, float] | None:
    """Return (pid, time when it said so); None for a run that has not told its process."""
    events = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT, limit=50).records
    for event in events:
        if event.event_log_entry.step_key is not None:
            continue  # of a step, which an executor may run elsewhere
        message = event.event_log_entry.get_dagster_event().message or ""
        if message.startswith(("Started process for run", "Executing steps in process")) and (
            told := _PID.search(message)
        ):
            return int(told[1]), event.event_log_entry.timestamp
    return None
