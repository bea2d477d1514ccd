"""Release after each batch of a streaming dataset."""

import json
import time

import dagster as dg

from assets.pages.report import dagster_name
from assets.pipeline.stages import SAMPLES
from dagster_project.runs import LAUNCHED, location_tags, sensor_label
from dagster_project.sensors.discovery import STREAMING_INTERVAL_S
from dagster_project.sensors.recovery import ATTEMPT, PAUSES_S, PROMISE_S, WILL_RETRY

RELEASE_TAG = "penstock/release"
"""Tag of runs that publish, one at a time per dataset."""
_RUN_KEY = "dagster/run_key"


def release_sensor(dataset: str) -> dg.SensorDefinition:
    """Request a release if a batch's samples were materialized since the last request.

    Batches that arrive together share one release. The cursor is the newest event's number, and part of the run key: a
    killed tick requests the same run again.

    A failed release is requested again at once, as its gate now holds back the stopped batch. Later requests follow
    after a minute, ten minutes and hourly, until one succeeds or another batch arrives.
    """
    samples = dg.AssetKey([dataset, SAMPLES])
    job = f"{dagster_name(dataset)}_release"

    @dg.sensor(
        name=f"{dagster_name(dataset)}_release_batches",
        job_name=job,
        minimum_interval_seconds=STREAMING_INTERVAL_S,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Publish every batch of {dataset} as soon as it passes its checks.",
    )
    def release_batches(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        records = context.instance.fetch_materializations(samples, limit=1).records
        if not records:
            return dg.SkipReason(f"no batch of {dataset} has passed yet")
        newest = records[0].storage_id
        event, attempt = _cursor(context.cursor)
        if newest > event:
            context.update_cursor(json.dumps({"event": newest, "attempt": 1}))
            return _request(dataset, newest, 1)
        run_key = _key(dataset, event, attempt)
        failed_s = _final_failure_s(context.instance, job, run_key, sensor_label(context))
        if failed_s is None:
            return dg.SkipReason(f"a release of every passed batch of {dataset} was requested")
        # After the last pause, hourly.
        pause_s = PAUSES_S[min(attempt, len(PAUSES_S)) - 1]
        left_s = failed_s + pause_s - time.time()
        if left_s > 0:
            return dg.SkipReason(
                f"release {attempt} of {dataset} failed; the next attempt is in {left_s:.0f} s"
            )
        context.update_cursor(json.dumps({"event": event, "attempt": attempt + 1}))
        return _request(dataset, event, attempt + 1)

    return release_batches


def _cursor(text: str | None) -> tuple[int, int]:
    """Return (number of the event of the last request, its attempt from 1). text: None before the first tick."""
    cursor = json.loads(text or '{"event": 0}')
    # A cursor of an earlier release has "again" instead of the attempt.
    attempt = 1
    if cursor.get("again"):
        attempt = 2
    return int(cursor["event"]), int(cursor.get("attempt", attempt))


def _key(dataset: str, event: int, attempt: int) -> str:
    """Return the run key of a request. event: number of the newest event that it releases."""
    # As earlier releases named them: Dagster starts no second run with a known key.
    suffix = {1: "", 2: "-again"}.get(attempt, f"-again-{attempt}")
    return f"{dataset}-{event}{suffix}"


def _request(dataset: str, event: int, attempt: int) -> dg.RunRequest:
    tags = {RELEASE_TAG: dataset, ATTEMPT: str(attempt)}
    return dg.RunRequest(run_key=_key(dataset, event, attempt), tags=tags)


def _final_failure_s(
    instance: dg.DagsterInstance,
    job: str,
    key: str,
    label: str,
) -> float | None:
    """Return when the release failed for good, in Unix seconds; None if it may still succeed or is superseded.

    A failure that Dagster promised to retry counts only `PROMISE_S` later.

    key: of the sensor's request for the release. label: of the code location.
    """
    tags = location_tags(label)
    failure = dg.DagsterRunStatus.FAILURE
    # The newest launched run of the request: the release, or Dagster's retry of it.
    with_key = dg.RunsFilter(tags={_RUN_KEY: key, **tags}, statuses=LAUNCHED)
    requested = instance.get_run_records(with_key, limit=1)
    if not requested or requested[0].dagster_run.status != failure:
        return None
    # A person may have started a release since, whose result counts.
    of_job = dg.RunsFilter(job_name=job, tags=tags, statuses=LAUNCHED)
    releases = instance.get_run_records(of_job, limit=1) or requested
    newest = releases[0]
    if newest.dagster_run.status != failure:
        return None
    failed_s = newest.end_time or newest.update_timestamp.timestamp()
    # Dagster's daemon starts the retry some time after the failure.
    if newest.dagster_run.tags.get(WILL_RETRY) == "true":
        failed_s += PROMISE_S
    return failed_s
