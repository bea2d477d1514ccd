"""Objects that no version of the root needs any more, found by the clock. Deleting them is left to a person."""

import dagster as dg

from assets.pages.report import markdown_table
from resources.storage import RootResource


@dg.op(
    description="Look at what is condemned, and note it, so that its grace runs; nothing is deleted or aborted."
)
def look(context: dg.OpExecutionContext, root: RootResource) -> None:
    """Write metadata of the run: objects and bytes per dataset, and the output of `penstock gc plan`."""
    from penstock.denied.record import condemned
    from penstock.upkeep.gc import Options, collect

    with root.opened() as opened:
        options = Options(condemned=condemned(opened.store, opened.state.denies))
        report = collect(opened, options)
    said = report.to_json()
    rows = [tuple(row.values()) for row in said["datasets"]]
    header = tuple(said["datasets"][0]) if rows else ("dataset",)
    context.log.info(report.to_text())
    context.add_output_metadata(
        {
            "condemned": dg.MetadataValue.md(markdown_table(header, rows)),
            "condemned_objects": dg.MetadataValue.int(
                sum(row["condemned_objects"] for row in said["datasets"])
            ),
            "condemned_bytes": dg.MetadataValue.int(sum(row["condemned_bytes"] for row in said["datasets"])),
            "collector": dg.MetadataValue.text(said["collector"]),
            "silent_transactions": dg.MetadataValue.int(len(said["silent_transactions"])),
        }
    )


@dg.job(
    name="penstock_collect",
    tags={"dagster/priority": "-10"},
    description="Weekly: what no version needs any more, per dataset; a dry run, `penstock gc sweep --apply` deletes.",
)
def collect_job() -> None:
    """Run one step."""
    look()


collect_schedule = dg.ScheduleDefinition(
    name="penstock_collect_weekly", job=collect_job, cron_schedule="0 6 * * 0", execution_timezone="UTC"
)
