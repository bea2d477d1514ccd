"""The schedules of a dataset: release, reconcile, refresh of stale features; off until somebody starts them."""

from collections.abc import Iterator

import dagster as dg

from assets.features.refresh import StaleCache, stale
from assets.spec import DatasetSpec
from dagster_project.jobs import REFRESH, job_name, tags_of
from dagster_project.last_run import PARTITION
from resources.storage import RootResource


def schedules_of(spec: DatasetSpec) -> list[dg.ScheduleDefinition]:
    """Return the schedules that the dataset's upkeep has a cron for."""
    made = []
    if spec.upkeep.release:
        made.append(
            _plain(
                spec,
                "release",
                spec.upkeep.release,
                "Publishes what has passed its checks since the last one",
            )
        )
    if spec.upkeep.reconcile:
        made.append(
            _plain(spec, "reconcile", spec.upkeep.reconcile, "Compares every source with all batches")
        )
    if spec.upkeep.refresh and spec.features:
        made.append(refresh_schedule(spec))
    return made


def _plain(spec: DatasetSpec, what: str, cron: str, says: str) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        name=job_name(spec, f"{what}_schedule"),
        job_name=job_name(spec, what),
        cron_schedule=cron,
        execution_timezone=spec.upkeep.timezone,
        description=f"{says}: {spec.name}.",
    )


def refresh_schedule(spec: DatasetSpec) -> dg.ScheduleDefinition:
    """Ask for one run per published batch with stale features, for so many batches at most, the oldest first.

    A batch whose run of an earlier tick still waits is not asked for again. Costs the same as `refresh.stale` after an
    earlier look, for as long as the code server lives, and a query per batch asked for.
    """
    name, looked = job_name(spec, "refresh"), StaleCache(spec)

    @dg.schedule(
        name=job_name(spec, "refresh_schedule"),
        job_name=name,
        cron_schedule=spec.upkeep.refresh,
        execution_timezone=spec.upkeep.timezone,
        description=f"Computes stale features of published batches of {spec.name} again, "
        f"{spec.upkeep.refresh_partitions} batches at most.",
    )
    def refresh(
        context: dg.ScheduleEvaluationContext, root: RootResource
    ) -> Iterator[dg.RunRequest | dg.SkipReason]:
        with root.opened() as opened:
            found = stale(opened, spec, looked)
        batches: dict[str, list[str]] = {}
        for one in found:
            batches.setdefault(one.partition, []).append(one.stage)
        asked = 0
        for batch, stages in batches.items():
            if asked == spec.upkeep.refresh_partitions:
                break
            if _is_under_way(context.instance, name, batch):
                continue
            asked += 1
            yield dg.RunRequest(
                run_key=f"{context.scheduled_execution_time:%Y-%m-%dT%H:%M}-{batch}",
                partition_key=batch,
                asset_selection=[dg.AssetKey([spec.name, stage]) for stage in stages],
                tags=dict(tags_of(spec, REFRESH)),
            )
        context.log.info(f"{len(batches)} batches are stale, {asked} runs asked for")
        if not asked:
            waits = f"{len(batches)} batches are stale, and all have a run under way"
            yield dg.SkipReason(waits if batches else f"no feature of {spec.name} is stale")

    return refresh


_UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
]


def _is_under_way(instance: dg.DagsterInstance, job: str, batch: str) -> bool:
    wanted = dg.RunsFilter(job_name=job, tags={PARTITION: batch}, statuses=_UNFINISHED)
    return bool(instance.get_runs(wanted, limit=1))
