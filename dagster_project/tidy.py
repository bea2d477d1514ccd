"""Weekly jobs: delete old Dagster runs that its pages do not need, and condemn objects that no version needs.

The runs job keeps each partition's last run, and runs with the newest materialization of an asset or partition, or the
newest result of a check.
"""

import time
from collections.abc import Iterable, Iterator
from itertools import islice

import dagster as dg
from pydantic import Field

from dagster_project.runs import is_last, location_label, location_tags
from penstock.text import markdown_table
from resources.storage import RootResource

DAY_S = 86_400.0
_FINISHED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_AT_ONCE = 200
_PAGE = 1_000


class Retention(dg.Config):
    """Settings of the tidy job."""

    keep_days: float = Field(
        default=30.0,
        gt=0,
        description="Keep all runs that ended later.",
    )
    max_runs: int = Field(
        default=5_000,
        gt=0,
        description="Most runs to delete, oldest first.",
    )
    dry_run: bool = Field(default=False, description="Only count.")


def superfluous(
    instance: dg.DagsterInstance,
    before_s: float,
    max_runs: int,
    label: str = "",
) -> Iterator[str]:
    """Yield ids of the first `max_runs` superfluous runs that ended before `before_s`, oldest first.

    Costs a query per asset, per 1,000 partitions, per check and per 200 runs, and two for each run without a newest
    materialization.
    """
    makers = _makers(instance)
    # The limit is on superfluous runs, not on all old ones. Otherwise a pass could find only runs that stay, such as
    # the last runs of many partitions, and no later pass would get beyond these.
    superfluous_ids = _superfluous(instance, _old_runs(instance, before_s, label), makers)
    return islice(superfluous_ids, max_runs)


def _superfluous(
    instance: dg.DagsterInstance,
    old_runs: Iterable[dg.RunRecord],
    makers: set[str],
) -> Iterator[str]:
    """Yield ids of the old runs that Dagster's pages do not need. makers: ids of runs with a newest materialization."""
    newest_checks = dict[dg.AssetCheckKey, str]()  # cache of `_has_newest_check`
    for record in old_runs:
        run = record.dagster_run
        if run.run_id in makers or is_last(instance, run):
            continue
        if not _has_newest_check(instance, run.run_id, newest_checks):
            yield run.run_id


def _old_runs(
    instance: dg.DagsterInstance,
    before_s: float,
    label: str,
) -> Iterator[dg.RunRecord]:
    """Yield the code location's finished runs that ended before `before_s`, in order of creation."""
    cursor = None
    while True:
        page = instance.get_run_records(
            dg.RunsFilter(statuses=_FINISHED, tags=location_tags(label)),
            limit=_AT_ONCE,
            cursor=cursor,
            ascending=True,
        )
        for record in page:
            if record.create_timestamp.timestamp() >= before_s:
                return  # the rest is newer
            if (record.end_time or before_s) < before_s and location_label(record.dagster_run) == label:
                yield record
        if not page:
            return
        cursor = page[-1].dagster_run.run_id


def _makers(instance: dg.DagsterInstance) -> set[str]:
    """Return ids of the runs with the newest materialization of an asset, or of one of its partitions."""
    run_ids: set[str] = set()
    storage = instance.event_log_storage
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    for key in instance.all_asset_keys():
        newest_event = instance.fetch_materializations(key, limit=1)
        run_ids.update(event.run_id for event in newest_event.records)
        newest_ids = sorted(storage.get_latest_storage_id_by_partition(key, kind).values())
        for start in range(0, len(newest_ids), _PAGE):
            page = dg.AssetRecordsFilter(asset_key=key, storage_ids=newest_ids[start : start + _PAGE])
            events = instance.fetch_materializations(page, limit=_PAGE)
            run_ids.update(event.run_id for event in events.records)
    return run_ids


def _has_newest_check(
    instance: dg.DagsterInstance,
    run_id: str,
    newest_runs: dict[dg.AssetCheckKey, str],
) -> bool:
    """Return whether a run has the newest result of a check.

    newest_runs: check -> id of the run with its newest result, "" if there is none; a cache, which this fills.
    """
    kind = dg.DagsterEventType.ASSET_CHECK_EVALUATION
    events = instance.get_records_for_run(run_id, of_type=kind).records
    for event in events:
        evaluation = event.event_log_entry.get_dagster_event().asset_check_evaluation_data
        key = evaluation.asset_check_key
        if key not in newest_runs:
            newest = instance.event_log_storage.get_latest_asset_check_execution_by_key([key])
            newest_run = ""
            if key in newest:
                newest_run = newest[key].run_id
            newest_runs[key] = newest_run
        if newest_runs[key] == run_id:
            return True
    return False


@dg.op(description="Delete old runs from Dagster's databases. Data, verdicts and lineage are in the root.")
def tidy(context: dg.OpExecutionContext, config: Retention) -> None:
    """Delete superfluous runs, and write their number as metadata."""
    before_s = time.time() - config.keep_days * DAY_S
    deleted = 0
    label = location_label(context.run)
    # A list, before the first run is deleted: the pages of runs begin at a run that must still exist.
    run_ids = list(superfluous(context.instance, before_s, config.max_runs, label))
    for run_id in run_ids:
        if not config.dry_run:
            context.instance.delete_run(run_id)
        deleted += 1
    what = "deleted"
    if config.dry_run:
        what = "would be deleted"
    context.log.info(f"{deleted} runs that ended more than {config.keep_days:g} days ago {what}")
    context.add_output_metadata({"runs": dg.MetadataValue.int(deleted)})


@dg.job(name="penstock_tidy", description="Weekly: delete old runs that nothing on Dagster's pages needs.")
def tidy_job() -> None:
    """Run the op `tidy`."""
    tidy()


tidy_schedule = dg.ScheduleDefinition(
    name="penstock_tidy_weekly",
    job=tidy_job,
    cron_schedule="30 5 * * 0",
    execution_timezone="UTC",
)


@dg.op(description="Record condemned objects, so that their grace period starts. Deletes and aborts nothing.")
def record_condemned(context: dg.OpExecutionContext, root: RootResource) -> None:
    """Condemn unneeded objects; write their number and bytes per dataset as metadata."""
    # Imported by the run: the code server needs no collector.
    from penstock.denied.record import condemned_versions
    from penstock.upkeep.gc import Options, collect

    with root.opened() as opened:
        options = Options(condemned=condemned_versions(opened.store, opened.state.denies))
        report = collect(opened, options)
    summary = report.to_json()
    rows = [tuple(row.values()) for row in summary["datasets"]]
    if rows:
        header = tuple(summary["datasets"][0])
    else:
        header = ("dataset",)
    context.log.info(report.to_text())
    context.add_output_metadata(
        {
            "condemned": dg.MetadataValue.md(markdown_table(header, rows)),
            "condemned_objects": dg.MetadataValue.int(
                sum(row["condemned_objects"] for row in summary["datasets"])
            ),
            "condemned_bytes": dg.MetadataValue.int(
                sum(row["condemned_bytes"] for row in summary["datasets"])
            ),
            "collector": dg.MetadataValue.text(summary["collector"]),
            "silent_transactions": dg.MetadataValue.int(len(summary["silent_transactions"])),
        }
    )


@dg.job(
    name="penstock_collect",
    tags={"dagster/priority": "-10"},
    description="Weekly: objects that no version needs, per dataset. A dry run; `penstock gc sweep --apply` deletes.",
)
def collect_job() -> None:
    """Run the op `record_condemned`."""
    record_condemned()


collect_schedule = dg.ScheduleDefinition(
    name="penstock_collect_weekly",
    job=collect_job,
    cron_schedule="0 6 * * 0",
    execution_timezone="UTC",
)
