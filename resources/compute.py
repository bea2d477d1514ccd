"""The compute engine as a Dagster resource: local processes, or cluster jobs that a step waits for."""

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import dagster as dg
from dagster._core.storage.tags import MAX_RUNTIME_SECONDS_TAG
from pydantic import Field

from penstock.compute.pool import Compute, open_compute
from penstock.compute.pool.import_path import restore_import_path

if TYPE_CHECKING:
    from penstock.compute.attach import JobState

WAITS = "penstock/waits_for_job"
"""Tag of a run: id of the cluster job that a step waits for, or ""."""
_ENDED_BY_A_PERSON = (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)
_log = logging.getLogger(__name__)


class ComputeResource(dg.ConfigurableResource[None]):
    """Engine for heavy work. It affects how long a run takes, never its output."""

    engine: str = Field(
        default="local", description="local: processes on this machine; inline: no isolation."
    )
    workers: int = Field(default=0, description="Number of units run at once; 0: one per core.")
    variables: list[str] = Field(
        default_factory=list,
        description="Environment variables that workers need besides the default list and their stores' own; "
        "'ACME_*' is a prefix.",
    )
    cluster: str = Field(
        default="",
        description="Cluster file (docs/clusters.md); the cluster reads objects and samples, and runs models.",
    )

    @contextmanager
    def opened(self, context: dg.AssetExecutionContext | None = None) -> Iterator[Compute]:
        """Yield the open engine. After the block, only cluster jobs keep running.

        context: the step's context; its log shows the jobs' progress, and cancelling its run cancels them.

        Raises: InvalidRuntime; InvalidCluster.
        """
        restore_import_path()  # steps run after Dagster has taken the code location's folders off the path
        with closing(open_compute(self.engine, self.workers or None, self.variables)) as own:
            if self.cluster:
                yield self._on_cluster(own, context)
            else:
                yield own

    def _on_cluster(self, own: Compute, context: dg.AssetExecutionContext | None) -> Compute:
        """Return the cluster's engine. own: engine of this process, for what the cluster does not do."""
        from penstock.compute.cluster import read_cluster
        from penstock.compute.cluster_compute import ClusterCompute

        cluster = read_cluster(self.cluster)
        if context is None:
            return ClusterCompute(cluster, own, _log.info)
        instance, run_id = context.instance, context.run_id
        return ClusterCompute(
            cluster,
            own,
            context.log.info,
            given_up=partial(is_ended_by_a_person, instance, run_id),
            waits=partial(_tag_waiting, instance, run_id),
            file=self.cluster,
            ended=partial(_show_job, context),
        )


def _show_job(context: dg.AssetExecutionContext, state: "JobState") -> None:
    facts = {
        "job": state.id,
        "place": state.status.place,
        "attempts": state.attempt,
        "blocks": state.n_blocks,
        "units": state.n_units,
    }
    context.add_asset_metadata({f"cluster_{name}": value for name, value in facts.items() if value})


def is_ended_by_a_person(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Return whether a person ended a run; False if the database does not respond, so that jobs continue."""
    try:
        run = instance.get_run_by_id(run_id)
    except Exception:  # noqa: BLE001 - any database driver
        _log.exception("cannot read whether run %s was ended: its job goes on", run_id)
        return False
    return run is not None and run.status in _ENDED_BY_A_PERSON


def _tag_waiting(instance: dg.DagsterInstance, run_id: str, job: str) -> None:
    """Tag a run with the job that a step of it waits for, or "" once no step waits."""
    # Without a time limit, since jobs take days. Nor is there one afterwards: Dagster counts from the run's start.
    try:
        instance.add_run_tags(run_id, {WAITS: job, MAX_RUNTIME_SECONDS_TAG: "0"})
    except Exception:  # noqa: BLE001 - a run can wait without tags too
        _log.exception("run %s could not be tagged", run_id)
