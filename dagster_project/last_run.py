"""The run to look at: the newest of its job and partition."""

import dagster as dg

from dagster_project.code_location import label_of, tags_of

PARTITION = "dagster/partition"
LAUNCHED = tuple(status for status in dg.DagsterRunStatus if status != dg.DagsterRunStatus.NOT_STARTED)
"""Statuses of runs that are, or were, somewhere. A tick that loses its database between making a run and launching
it leaves one that never was. Dagster launches it when it is asked for by its run key again."""


def is_last(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether a launched run is the newest of its job, code location, and partition where it has one."""
    tags = {**tags_of(label_of(run)), **({PARTITION: run.tags[PARTITION]} if PARTITION in run.tags else {})}
    newest = instance.get_runs(dg.RunsFilter(job_name=run.job_name, tags=tags, statuses=LAUNCHED), limit=1)
    return bool(newest) and newest[0].run_id == run.run_id
