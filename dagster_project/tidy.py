"""Retention of Dagster's runs: a job that deletes old ones which nothing on its pages needs.

Kept whatever their age:

- a run whose materialization is the newest of its asset or partition
- a run whose check result is the newest of its check
- the last run of a partition, as it is the one to look at

Data, verdicts and lineage lie in the root, and are not touched.
"""

import time
from collections.abc import Iterator

import dagster as dg
from pydantic import Field

from dagster_project.code_location import label_of, tags_of
from dagster_project.last_run import is_last

DAY_S = 86_400.0
_FINISHED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_AT_ONCE = 200
_PAGE = 1_000


class Retention(dg.Config):
    """Limits of the job."""

    keep_days: float = Field(default=30.0, gt=0, description="Runs that ended later are kept, all of them.")
    max_runs: int = Field(default=5_000, gt=0, description="How many are looked at, oldest first.")
    dry_run: bool = Field(default=False, description="Only count.")


def superfluous(
    instance: dg.DagsterInstance, before_s: float, max_runs: int, label: str = ""
) -> Iterator[str]:
    """Yield ids of runs that ended before that time and that nothing needs, oldest first.

    Of the oldest `max_runs`. label: of the code location whose runs they are; those of others are others' to delete.

    Costs a query per asset, one per thousand partitions, one per check, and two per run that is looked at.
    """
    makers, checked = _makers(instance), dict[dg.AssetCheckKey, str]()
    for record in _old_runs(instance, before_s, max_runs, label):
        run = record.dagster_run
        if run.run_id in makers or is_last(instance, run) or _has_newest_check(instance, run.run_id, checked):
            continue
        yield run.run_id


def _old_runs(
    instance: dg.DagsterInstance, before_s: float, max_runs: int, label: str
) -> Iterator[dg.RunRecord]:
    cursor, looked_at = None, 0
    while looked_at < max_runs:
        page = instance.get_run_records(
            dg.RunsFilter(statuses=_FINISHED, tags=tags_of(label)),
            limit=min(_AT_ONCE, max_runs - looked_at),
            cursor=cursor,
            ascending=True,
        )
        for record in page:
            if record.create_timestamp.timestamp() >= before_s:
                return  # created later still: none of the rest is old
            if (record.end_time or before_s) < before_s and label_of(record.dagster_run) == label:
                yield record
        if not page:
            return
        cursor, looked_at = page[-1].dagster_run.run_id, looked_at + len(page)


def _makers(instance: dg.DagsterInstance) -> set[str]:
    """Return the runs with the newest materialization of an asset, or of a partition of one."""
    found: set[str] = set()
    storage, kind = instance.event_log_storage, dg.DagsterEventType.ASSET_MATERIALIZATION
    for key in instance.all_asset_keys():
        found.update(event.run_id for event in instance.fetch_materializations(key, limit=1).records)
        newest = sorted(storage.get_latest_storage_id_by_partition(key, kind).values())
        for start in range(0, len(newest), _PAGE):
            page = dg.AssetRecordsFilter(asset_key=key, storage_ids=newest[start : start + _PAGE])
            found.update(event.run_id for event in instance.fetch_materializations(page, limit=_PAGE).records)
    return found


def _has_newest_check(instance: dg.DagsterInstance, run_id: str, newest: dict[dg.AssetCheckKey, str]) -> bool:
    """Return whether a check's newest result is of this run. newest: check -> run, as far as it was asked for."""
    events = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION).records
    for event in events:
        evaluation = event.event_log_entry.get_dagster_event().asset_check_evaluation_data
        key = evaluation.asset_check_key
        if key not in newest:
            known = instance.event_log_storage.get_latest_asset_check_execution_by_key([key])
            newest[key] = known[key].run_id if key in known else ""
        if newest[key] == run_id:
            return True
    return False


@dg.op(description="Deletes old runs from Dagster's databases; data, verdicts and lineage lie in the root.")
def tidy(context: dg.OpExecutionContext, config: Retention) -> None:
    """Write metadata of the run: how many were deleted."""
    before_s = time.time() - config.keep_days * DAY_S
    deleted = 0
    for run_id in list(superfluous(context.instance, before_s, config.max_runs, label_of(context.run))):
        if not config.dry_run:
            context.instance.delete_run(run_id)
        deleted += 1
    what = "would be deleted" if config.dry_run else "deleted"
    context.log.info(f"{deleted} runs that ended more than {config.keep_days:g} days ago {what}")
    context.add_output_metadata({"runs": dg.MetadataValue.int(deleted)})


@dg.job(name="penstock_tidy", description="Weekly: forget old runs that nothing on Dagster's pages needs.")
def tidy_job() -> None:
    """Run one step."""
    tidy()


tidy_schedule = dg.ScheduleDefinition(
    name="penstock_tidy_weekly", job=tidy_job, cron_schedule="30 5 * * 0", execution_timezone="UTC"
)
