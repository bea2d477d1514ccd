"""The schedules of a dataset: release, reconcile, refresh of stale features. Off until a person starts them."""

from collections.abc import Iterator

import dagster as dg

from assets.features.refresh import StaleCache, stale
from assets.spec import DatasetSpec
from dagster_project.jobs import REFRESH, job_name, tags_of
from dagster_project.runs import PARTITION
from resources.storage import RootResource


def schedules_of(spec: DatasetSpec) -> list[dg.ScheduleDefinition]:
    """Return the schedules that have a cron in the dataset's upkeep."""
    schedules = []
    if spec.upkeep.release:
        schedules.append(
            _plain(
                spec,
                "release",
                spec.upkeep.release,
                "Publish batches that passed their checks",
            )
        )
    if spec.upkeep.reconcile:
        schedules.append(
            _plain(spec, "reconcile", spec.upkeep.reconcile, "Compare every source with all batches")
        )
    if spec.upkeep.refresh and spec.features:
        schedules.append(refresh_schedule(spec))
    return schedules


def _plain(spec: DatasetSpec, what: str, cron: str, action: str) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        name=job_name(spec, f"{what}_schedule"),
        job_name=job_name(spec, what),
        cron_schedule=cron,
        execution_timezone=spec.upkeep.timezone,
        description=f"{action}: {spec.name}.",
    )


def refresh_schedule(spec: DatasetSpec) -> dg.ScheduleDefinition:
    """Request one run per published batch with stale features, oldest first, up to `upkeep.refresh_partitions`.

    A batch with an unfinished run is skipped. Costs a cached `refresh.stale`, and a query per requested batch.
    """
    name, cache = job_name(spec, "refresh"), StaleCache(spec)

    @dg.schedule(
        name=job_name(spec, "refresh_schedule"),
        job_name=name,
        cron_schedule=spec.upkeep.refresh,
        execution_timezone=spec.upkeep.timezone,
        description=f"Recompute stale features of published batches of {spec.name}, at most "
        f"{spec.upkeep.refresh_partitions} batches.",
    )
    def refresh(
        context: dg.ScheduleEvaluationContext, root: RootResource
    ) -> Iterator[dg.RunRequest | dg.SkipReason]:
        with root.opened() as opened:
            stale_features = stale(opened, spec, cache)
        batches: dict[str, list[str]] = {}
        for item in stale_features:
            batches.setdefault(item.partition, []).append(item.stage)
        n_requested = 0
        for batch, stages in batches.items():
            if n_requested == spec.upkeep.refresh_partitions:
                break
            if _is_under_way(context.instance, name, batch):
                continue
            n_requested += 1
            yield dg.RunRequest(
                run_key=f"{context.scheduled_execution_time:%Y-%m-%dT%H:%M}-{batch}",
                partition_key=batch,
                asset_selection=[dg.AssetKey([spec.name, stage]) for stage in stages],
                tags=dict(tags_of(spec, REFRESH)),
            )
        context.log.info(f"{len(batches)} batches are stale, {n_requested} runs requested")
        if not n_requested:
            waits = f"{len(batches)} batches are stale, and all have an unfinished run"
            yield dg.SkipReason(waits if batches else f"no feature of {spec.name} is stale")

    return refresh


_UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
]


def _is_under_way(instance: dg.DagsterInstance, job: str, batch: str) -> bool:
    unfinished = dg.RunsFilter(job_name=job, tags={PARTITION: batch}, statuses=_UNFINISHED)
    return bool(instance.get_runs(unfinished, limit=1))
