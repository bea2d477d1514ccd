"""The jobs of a dataset, its schedules (off by default), and the tags by which the run queue orders and limits runs.

- dagster/priority: ingest 10, release 5, manual runs 0, refresh -10.
- penstock/dataset, penstock/tenant: on every job
- penstock/release: on jobs that publish
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from assets.arrivals.make_batches import copy_batches
from assets.arrivals.progress import pause, resume, source_pause
from assets.features.refresh import StaleCache, stale
from assets.pages.report import dagster_name
from assets.spec import DatasetSpec
from dagster_project.runs import PARTITION
from resources.storage import RootResource

INGEST, RELEASE, REFRESH = 10, 5, -10
"""Priorities; a run without one has 0."""

Assets = Sequence[dg.AssetsDefinition]


def run_tags(spec: DatasetSpec, priority: int) -> Mapping[str, str]:
    if spec.upkeep.tenant:
        tenant = {"penstock/tenant": spec.upkeep.tenant}
    else:
        tenant = {}
    return {"dagster/priority": str(priority), "penstock/dataset": spec.name, **tenant}


def publishing_tags(spec: DatasetSpec) -> Mapping[str, str]:
    return {**run_tags(spec, RELEASE), "penstock/release": spec.name}


def job_name(spec: DatasetSpec, what: str) -> str:
    """Return a job's name, such as `demo_ingest`."""
    return f"{dagster_name(spec.name)}_{what}"


def dataset_jobs(
    spec: DatasetSpec,
    *,
    per_batch: Assets,
    features: Assets,
    publishing: Assets,
    quarantine: Assets,
    reconciliation: Assets,
) -> list[Any]:
    """Return the jobs of a dataset that materialize assets, each with the assets of its runs."""
    ingest = run_tags(spec, INGEST)
    release = publishing_tags(spec)
    refresh = run_tags(spec, REFRESH)
    jobs: list[tuple[str, Assets, Mapping[str, str], str]] = [
        (
            "ingest",
            per_batch,
            ingest,
            "One run per batch, its partition: land, check, cut, compute features, assemble samples.",
        ),
        (
            "release",
            publishing,
            release,
            "Check waiting batches and publish each that passes; then publish recomputed features.",
        ),
        (
            "refresh",
            features,
            refresh,
            "Recompute features of one published batch, its partition; the next release publishes them.",
        ),
        (
            "quarantine",
            quarantine,
            release,
            "Check samples that trainings report as corrupt, and publish a version without corrupt ones.",
        ),
        (
            "reconcile",
            reconciliation,
            refresh,
            "Compare every source with all batches, and make batches of objects that discovery missed.",
        ),
    ]
    return [
        dg.define_asset_job(
            job_name(spec, what),
            selection=dg.AssetSelection.assets(*assets),
            tags=tags,
            description=text,
        )
        for what, assets, tags, text in jobs
        if assets
    ]


class PauseConfig(dg.Config):
    """Settings of a pause."""

    source: str
    """Name of the source to pause."""
    reason: str = ""
    """Shown on every tick of the pause."""
    by: str = ""
    """Name of the person, shown on every tick of the pause."""
    resume: bool = False
    """True ends the pause."""


def pause_job(spec: DatasetSpec) -> dg.JobDefinition:
    """Return the job `<dataset>_pause_source`, which pauses or resumes a source without a deploy.

    It writes or deletes tables/<dataset>/arrivals/<source>/paused.json, as any tool may.
    """
    names = [source.name for source in spec.sources]

    @dg.op(
        name=f"{dagster_name(spec.name)}_pause",
        description="Write or delete the file that the sensor looks for.",
    )
    def pause_source(context: dg.OpExecutionContext, config: PauseConfig, root: RootResource) -> None:
        # A mistyped name would make a file that no sensor reads.
        if config.source not in names:
            why = f"{spec.name} has no source {config.source!r}; it has {', '.join(names)}"
            raise dg.Failure(why, allow_retries=False)
        if not config.resume and not (config.reason.strip() and config.by.strip()):
            raise dg.Failure(
                "a pause needs a reason and a name (by), for the next person on call", allow_retries=False
            )
        with root.opened() as opened:
            if config.resume:
                was_paused = resume(opened.store, spec.name, config.source)
                context.log.info(f"{config.source} {'resumes' if was_paused else 'was not paused'}")
            else:
                pause(opened.store, spec.name, config.source, reason=config.reason, by=config.by)
                pause_facts = source_pause(opened.store, spec.name, config.source)
                context.log.info(
                    f"{config.source} is paused: {pause_facts}; the next tick of the sensor skips it"
                )

    @dg.job(
        name=f"{dagster_name(spec.name)}_pause_source",
        description="Pause a source of the dataset, or resume it. Existing batches continue.",
    )
    def pausing() -> None:
        pause_source()

    return pausing


def take_over_job(spec: DatasetSpec, batches: dg.DynamicPartitionsDefinition) -> dg.JobDefinition:
    """Return the job `<dataset>_take_over`, which copies the original dataset's batches to a rebuild."""

    @dg.op(name=job_name(spec, "take_over_batches"))
    def take(context: dg.OpExecutionContext, root: RootResource) -> None:
        with root.opened() as opened:
            batch_keys = copy_batches(
                opened.store,
                spec.rebuild_of,
                spec.name,
                opened.state.denies,  # denied objects are not copied
                by_subject=spec.split_by == "subject",
            )
        # After the batches are stored: a partition without its batch would fail.
        context.instance.add_dynamic_partitions(str(batches.name), batch_keys)
        context.log.info(f"{len(batch_keys)} batches of {spec.rebuild_of} taken over")
        context.add_output_metadata({"batches": dg.MetadataValue.int(len(batch_keys))})

    @dg.job(
        name=job_name(spec, "take_over"),
        tags=dict(run_tags(spec, REFRESH)),
        description=f"Make the batches of {spec.rebuild_of} batches of {spec.name}, once, without a listing.",
    )
    def job() -> None:
        take()

    return job


def dataset_schedules(
    spec: DatasetSpec, batches: dg.DynamicPartitionsDefinition
) -> list[dg.ScheduleDefinition]:
    """Return the schedules that have a cron in the dataset's upkeep."""
    plain = [
        ("release", spec.upkeep.release, "Publish batches that passed their checks"),
        ("reconcile", spec.upkeep.reconcile, "Compare every source with all batches"),
    ]
    schedules = [
        dg.ScheduleDefinition(
            name=job_name(spec, f"{what}_schedule"),
            job_name=job_name(spec, what),
            cron_schedule=cron,
            execution_timezone=spec.upkeep.timezone,
            description=f"{action}: {spec.name}.",
        )
        for what, cron, action in plain
        if cron
    ]
    if spec.upkeep.refresh and spec.features:
        schedules.append(refresh_schedule(spec, batches))
    return schedules


def refresh_schedule(spec: DatasetSpec, batches: dg.DynamicPartitionsDefinition) -> dg.ScheduleDefinition:
    """Request one run per published batch with stale features, oldest first, up to `upkeep.refresh_partitions`.

    Skips a batch with an unfinished run, and one that is no partition. Costs a cached `refresh.stale`, and a query per
    requested batch.
    """
    name = job_name(spec, "refresh")
    cache = StaleCache(spec)

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
        stale_stages: dict[str, list[str]] = {}  # key of a batch -> stages of its stale features
        for item in stale_features:
            stale_stages.setdefault(item.partition, []).append(item.stage)
        # Dagster rejects the whole tick if a request names an unknown partition. A new instance of Dagster lacks the
        # partitions of earlier batches until discovery restores them.
        known = set(context.instance.get_dynamic_partitions(str(batches.name)))
        n_requested = 0
        for batch, stages in stale_stages.items():
            if n_requested == spec.upkeep.refresh_partitions:
                break
            if batch not in known:
                continue
            # The batch's unfinished run computes the same features.
            if _is_under_way(context.instance, name, batch):
                continue
            n_requested += 1
            yield dg.RunRequest(
                # The scheduled time: a tick that runs again requests the same runs.
                run_key=f"{context.scheduled_execution_time:%Y-%m-%dT%H:%M}-{batch}",
                partition_key=batch,
                asset_selection=[dg.AssetKey([spec.name, stage]) for stage in stages],
                tags=dict(run_tags(spec, REFRESH)),
            )
        context.log.info(f"{len(stale_stages)} batches are stale, {n_requested} runs requested")
        if not n_requested:
            n_unknown = len(stale_stages.keys() - known)
            yield dg.SkipReason(_refresh_skip_reason(spec.name, len(stale_stages), n_unknown))

    return refresh


def _refresh_skip_reason(dataset: str, n_stale: int, n_unknown: int) -> str:
    """Return why no refresh was requested. n_unknown: stale batches that are no partitions."""
    if not n_stale:
        return f"no feature of {dataset} is stale"
    if not n_unknown:
        return f"{n_stale} batches are stale, and all have an unfinished run"
    return (
        f"{n_stale} batches are stale: {n_unknown} are no partitions of this instance, until {dataset}'s discovery "
        "sensor restores them; the others have an unfinished run"
    )


_UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
]


def _is_under_way(instance: dg.DagsterInstance, job: str, batch: str) -> bool:
    unfinished = dg.RunsFilter(
        job_name=job,
        tags={PARTITION: batch},
        statuses=_UNFINISHED,
    )
    return bool(instance.get_runs(unfinished, limit=1))
