"""Release after each batch: of a dataset that streams, samples that passed ask for a version."""

import json

import dagster as dg

from assets.report import dagster_name
from assets.samples import STAGE as SAMPLES
from assets.spec import DatasetSpec

from .discovery import STREAMING_INTERVAL_S

RELEASE_TAG = "penstock/release"
"""Of runs that publish: the run queue lets one per dataset run at a time."""
_RUN_KEY = "dagster/run_key"


def sensor(spec: DatasetSpec, batches: dg.DynamicPartitionsDefinition) -> dg.SensorDefinition | None:
    """The dataset's, if it streams."""
    return release_sensor(spec.name) if spec.streaming else None


def release_sensor(dataset: str, *, minimum_interval_s: int = STREAMING_INTERVAL_S) -> dg.SensorDefinition:
    """Ask for a release when samples of a batch were materialized since the last one that was asked for.

    Many batches that came at once are one release. The cursor is the number of the newest such event, and the run key
    names it: a tick that dies asks for the same run. A release that failed is asked for once more: a batch that its
    gate stopped is held back by then, and the others go.
    """
    samples = dg.AssetKey([dataset, SAMPLES])

    @dg.sensor(
        name=f"{dagster_name(dataset)}_release_batches",
        job_name=f"{dagster_name(dataset)}_release",
        minimum_interval_seconds=minimum_interval_s,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Publishes every batch of {dataset} as soon as it has passed its checks.",
    )
    def release_batches(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        found = context.instance.fetch_materializations(samples, limit=1).records
        cursor = json.loads(context.cursor or '{"event": 0, "again": false}')
        if not found:
            return dg.SkipReason(f"no batch of {dataset} has passed yet")
        newest = found[0].storage_id
        if newest > cursor["event"]:
            context.update_cursor(json.dumps({"event": newest, "again": False}))
            return _asked(dataset, str(newest))
        if not cursor["again"] and _failed(context.instance, dataset, str(newest)):
            context.update_cursor(json.dumps({"event": newest, "again": True}))
            return _asked(dataset, f"{newest}-again")
        return dg.SkipReason(f"every batch of {dataset} that has passed was asked to be published")

    return release_batches


def _asked(dataset: str, key: str) -> dg.RunRequest:
    return dg.RunRequest(run_key=f"{dataset}-{key}", tags={RELEASE_TAG: dataset})


def _failed(instance: dg.DagsterInstance, dataset: str, key: str) -> bool:
    runs = instance.get_runs(dg.RunsFilter(tags={_RUN_KEY: f"{dataset}-{key}"}), limit=1)
    return bool(runs) and runs[0].status == dg.DagsterRunStatus.FAILURE
