"""<dataset>_take_over: the batches of the dataset that a rebuild is of become its own, to be ingested."""

import dagster as dg

from assets.arrivals.make_batches import take_over
from assets.spec import DatasetSpec
from dagster_project.jobs import REFRESH, job_name, tags_of
from resources.storage import RootResource


def take_over_job(spec: DatasetSpec, batches: dg.DynamicPartitionsDefinition) -> dg.JobDefinition:
    """Return the job of one step: manifests and partitions. The discovery sensor, or a backfill, then asks for runs."""

    @dg.op(name=job_name(spec, "take_over_batches"))
    def take(context: dg.OpExecutionContext, root: RootResource) -> None:
        with root.opened() as opened:
            made = take_over(
                opened.store,
                spec.rebuild_of,
                spec.name,
                opened.state.denies,
                by_subject=spec.split_by == "subject",
            )
        context.instance.add_dynamic_partitions(str(batches.name), made)
        context.log.info(f"{len(made)} batches of {spec.rebuild_of} taken over")
        context.add_output_metadata({"batches": dg.MetadataValue.int(len(made))})

    @dg.job(
        name=job_name(spec, "take_over"),
        tags=dict(tags_of(spec, REFRESH)),
        description=f"The batches of {spec.rebuild_of} become batches of {spec.name}; once, nothing is listed.",
    )
    def job() -> None:
        take()

    return job
