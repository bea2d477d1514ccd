"""The jobs of a dataset, and the tags by which the run queue orders and limits runs.

- dagster/priority: ingest 10, release 5, manual runs 0, refresh -10. Live ingestion goes before backfill.
- penstock/dataset: on every job
- penstock/tenant: on every job of a dataset with a tenant
- penstock/release: on jobs that publish
"""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from assets.arrivals.make_batches import take_over
from assets.arrivals.progress import pause, paused, resume
from assets.pages.report import dagster_name
from assets.spec import DatasetSpec
from resources.storage import RootResource

INGEST, RELEASE, REFRESH = 10, 5, -10
"""Priorities. A run without one, such as a backfill from Dagster's pages, has 0."""

Assets = Sequence[dg.AssetsDefinition]


def tags_of(spec: DatasetSpec, priority: int) -> Mapping[str, str]:
    """Return the tags of a dataset's runs."""
    tenant = {"penstock/tenant": spec.upkeep.tenant} if spec.upkeep.tenant else {}
    return {"dagster/priority": str(priority), "penstock/dataset": spec.name, **tenant}


def publishing_tags(spec: DatasetSpec) -> Mapping[str, str]:
    """Return the tags of runs that publish, which the run queue can limit to one per dataset."""
    return {**tags_of(spec, RELEASE), "penstock/release": spec.name}


def job_name(spec: DatasetSpec, what: str) -> str:
    """Return a job's name, such as `demo_ingest`."""
    return f"{dagster_name(spec.name)}_{what}"


def jobs_of(spec: DatasetSpec, per_batch: Assets, features: Assets, publishing: Assets) -> list[Any]:
    """Return the jobs of a dataset.

    per_batch: assets of an ingest run. features: assets of a refresh. publishing: assets of a release.
    """
    jobs = [
        dg.define_asset_job(
            job_name(spec, "ingest"),
            selection=dg.AssetSelection.assets(*per_batch),
            tags=tags_of(spec, INGEST),
            description="One run per batch: land, check, cut, compute features, assemble samples.",
        ),
        dg.define_asset_job(
            job_name(spec, "release"),
            selection=dg.AssetSelection.assets(*publishing),
            tags=publishing_tags(spec),
            description="Check waiting batches and publish each that passes; then publish recomputed features.",
        ),
    ]
    if features:
        jobs.append(
            dg.define_asset_job(
                job_name(spec, "refresh"),
                selection=dg.AssetSelection.assets(*features),
                tags=tags_of(spec, REFRESH),
                description="Recompute features of one published batch; the next release publishes them.",
            )
        )
    return jobs


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

    It writes or deletes tables/<dataset>/arrivals/<source>/paused.json. Any other tool may do the same.
    """
    names = [source.name for source in spec.sources]

    @dg.op(
        name=f"{dagster_name(spec.name)}_pause",
        description="Write or delete the file that the sensor looks for.",
    )
    def pause_source(context: dg.OpExecutionContext, config: PauseConfig, root: RootResource) -> None:
        if config.source not in names:
            why = f"{spec.name} has no source {config.source!r}; it has {', '.join(names)}"
            raise dg.Failure(why, allow_retries=False)
        if not config.resume and not (config.reason and config.by):
            raise dg.Failure(
                "a pause needs a reason and a name (by), for the next person on call", allow_retries=False
            )
        with root.opened() as opened:
            if config.resume:
                was_paused = resume(opened.store, spec.name, config.source)
                context.log.info(f"{config.source} {'resumes' if was_paused else 'was not paused'}")
            else:
                pause(opened.store, spec.name, config.source, reason=config.reason, by=config.by)
                pause_facts = paused(opened.store, spec.name, config.source)
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
            batch_keys = take_over(
                opened.store,
                spec.rebuild_of,
                spec.name,
                opened.state.denies,
                by_subject=spec.split_by == "subject",
            )
        context.instance.add_dynamic_partitions(str(batches.name), batch_keys)
        context.log.info(f"{len(batch_keys)} batches of {spec.rebuild_of} taken over")
        context.add_output_metadata({"batches": dg.MetadataValue.int(len(batch_keys))})

    @dg.job(
        name=job_name(spec, "take_over"),
        tags=dict(tags_of(spec, REFRESH)),
        description=f"Make the batches of {spec.rebuild_of} batches of {spec.name}, once, without a listing.",
    )
    def job() -> None:
        take()

    return job
