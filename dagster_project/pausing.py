"""The job `<dataset>_pause_source`: stop taking from a source, or go on, from the launchpad and without a deploy."""

import dagster as dg

from assets.arrivals.progress import pause, paused, resume
from assets.pages.report import dagster_name
from assets.spec import DatasetSpec
from resources.storage import RootResource


class PauseConfig(dg.Config):
    """Settings of a pause."""

    source: str
    """Name of the source."""
    reason: str = ""
    """Reason, shown on every tick while it is paused."""
    by: str = ""
    """Person, shown on every tick while it is paused."""
    resume: bool = False
    """True ends the pause."""


def pause_job(spec: DatasetSpec) -> dg.JobDefinition:
    """Return the dataset's job.

    It writes or removes tables/<dataset>/arrivals/<source>/paused.json, which any tool may do too.
    """
    names = [source.name for source in spec.sources]

    @dg.op(
        name=f"{dagster_name(spec.name)}_pause",
        description="Writes or removes the mark that the sensor looks for.",
    )
    def pause_source(context: dg.OpExecutionContext, config: PauseConfig, root: RootResource) -> None:
        if config.source not in names:
            said = f"{spec.name} has no source {config.source!r}; it has {', '.join(names)}"
            raise dg.Failure(said, allow_retries=False)
        if not config.resume and not (config.reason and config.by):
            raise dg.Failure(
                "a pause needs a reason and a name (by): who is on call next reads them", allow_retries=False
            )
        with root.opened() as opened:
            if config.resume:
                was = resume(opened.store, spec.name, config.source)
                context.log.info(f"{config.source} {'goes on' if was else 'was not paused'}")
            else:
                pause(opened.store, spec.name, config.source, reason=config.reason, by=config.by)
                told = paused(opened.store, spec.name, config.source)
                context.log.info(
                    f"{config.source} is paused: {told}; the next tick of the sensor takes nothing of it"
                )

    @dg.job(
        name=f"{dagster_name(spec.name)}_pause_source",
        description="Pause a source of the dataset, or resume it. Batches that are made go on.",
    )
    def pausing() -> None:
        pause_source()

    return pausing
