"""Release after each batch: of a dataset that streams, samples that passed ask for a version."""

import json
import time

import dagster as dg

from assets.pages.report import dagster_name
from assets.spec import DatasetSpec
from assets.stages import SAMPLES
from dagster_project.code_location import code_location_of, tags_of
from dagster_project.last_run import LAUNCHED
from dagster_project.sensors.discovery import STREAMING_INTERVAL_S
from dagster_project.sensors.recovery import ATTEMPT, PAUSES_S, PROMISE_S, WILL_RETRY

RELEASE_TAG = "penstock/release"
"""Tag of runs that publish: the run queue lets one per dataset run at a time."""
_RUN_KEY = "dagster/run_key"


def sensor(spec: DatasetSpec, batches: dg.DynamicPartitionsDefinition) -> dg.SensorDefinition | None:
    """Return the dataset's sensor, if it streams."""
    return release_sensor(spec.name) if spec.streaming else None


def release_sensor(dataset: str, *, minimum_interval_s: int = STREAMING_INTERVAL_S) -> dg.SensorDefinition:
    """Ask for a release when samples of a batch were materialized since the last one that was asked for.

    Many batches that came at once are one release. The cursor is the number of the newest such event, and the run key
    names it: a tick that dies asks for the same run.

    A release that failed is asked for again at once: a batch that its gate stopped is held back by then, and the others
    go. Then it is asked for after a minute, ten, and every hour, until one succeeds or another batch comes. So nothing
    waits for ever once the cause is gone. Each try is a run on Dagster's pages with its number, and each failure an
    alert.
    """
    samples, job = dg.AssetKey([dataset, SAMPLES]), f"{dagster_name(dataset)}_release"

    @dg.sensor(
        name=f"{dagster_name(dataset)}_release_batches",
        job_name=job,
        minimum_interval_seconds=minimum_interval_s,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Publishes every batch of {dataset} as soon as it has passed its checks.",
    )
    def release_batches(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        found = context.instance.fetch_materializations(samples, limit=1).records
        if not found:
            return dg.SkipReason(f"no batch of {dataset} has passed yet")
        newest, (event, attempt) = found[0].storage_id, _cursor(context.cursor)
        if newest > event:
            context.update_cursor(json.dumps({"event": newest, "attempt": 1}))
            return _asked(dataset, newest, 1)
        here = code_location_of(context)
        failed = _failed(context.instance, job, _key(dataset, event, attempt), here.label if here else "")
        if failed is None:
            return dg.SkipReason(f"every batch of {dataset} that has passed was asked to be published")
        left_s = failed + PAUSES_S[min(attempt, len(PAUSES_S)) - 1] - time.time()
        if left_s > 0:
            return dg.SkipReason(
                f"release {attempt} of {dataset} failed; it is asked for again in {left_s:.0f} s"
            )
        context.update_cursor(json.dumps({"event": event, "attempt": attempt + 1}))
        return _asked(dataset, event, attempt + 1)

    return release_batches


def _cursor(told: str | None) -> tuple[int, int]:
    """Return (number of the event, which try of its release was asked for). Earlier releases told of two tries."""
    cursor = json.loads(told or '{"event": 0}')
    return int(cursor["event"]), int(cursor.get("attempt", 2 if cursor.get("again") else 1))


def _key(dataset: str, event: int, attempt: int) -> str:
    again = {1: "", 2: "-again"}.get(attempt, f"-again-{attempt}")
    return f"{dataset}-{event}{again}"


def _asked(dataset: str, event: int, attempt: int) -> dg.RunRequest:
    tags = {RELEASE_TAG: dataset, ATTEMPT: str(attempt)}
    return dg.RunRequest(run_key=_key(dataset, event, attempt), tags=tags)


def _failed(instance: dg.DagsterInstance, job: str, key: str, label: str) -> float | None:
    """Return when the release of this key failed, seconds since 1970.

    None where it did not, is started again by Dagster, or another one that began behind it succeeded, or is on.
    """
    tags = tags_of(label)
    of_key = dg.RunsFilter(tags={_RUN_KEY: key, **tags}, statuses=LAUNCHED)
    of_job = dg.RunsFilter(job_name=job, tags=tags, statuses=LAUNCHED)
    asked = instance.get_run_records(of_key, limit=1)
    if not asked or asked[0].dagster_run.status != dg.DagsterRunStatus.FAILURE:
        return None
    newest = (instance.get_run_records(of_job, limit=1) or asked)[0]
    if newest.dagster_run.status != dg.DagsterRunStatus.FAILURE:
        return None
    promise_s = PROMISE_S if newest.dagster_run.tags.get(WILL_RETRY) == "true" else 0.0
    return (newest.end_time or newest.update_timestamp.timestamp()) + promise_s
