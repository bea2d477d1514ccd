"""The compute engine as a Dagster resource: processes of this machine, or a cluster's jobs for which a step waits."""

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import dagster as dg
from dagster._core.storage.tags import MAX_RUNTIME_SECONDS_TAG
from pydantic import Field

from penstock.compute.pool import Compute, open_compute

if TYPE_CHECKING:
    from penstock.compute.attach import JobState

WAITS = "penstock/waits_for_job"
"""Tag of a run while a step of it waits for a job: its id; "" afterwards."""
_ENDED_BY_A_PERSON = (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)
_log = logging.getLogger(__name__)


class ComputeResource(dg.ConfigurableResource[None]):
    """Engine of heavy work. Changes how long a run takes, never what it writes."""

    engine: str = Field(
        default="local", description="local: processes on this machine; inline: no isolation."
    )
    workers: int = Field(default=0, description="How many units run at once; 0: one per core.")
    variables: list[str] = Field(
        default_factory=list,
        description="Variables of the environment that workers need besides the short list and their stores' own; "
        "'ACME_*' are all that begin so.",
    )
    cluster: str = Field(
        default="",
        description="File of a cluster (docs/clusters.md) that reads objects and samples, and runs models.",
    )

    @contextmanager
    def opened(self, context: dg.AssetExecutionContext | None = None) -> Iterator[Compute]:
        """Yield the open engine; nothing of it runs on afterwards but a cluster's jobs.

        context: of the step that waits for jobs: its log tells how far they are; they end if a person ends its run.

        Raises: InvalidRuntime; InvalidCluster.
        """
        with closing(open_compute(self.engine, self.workers or None, self.variables)) as here:
            yield self._on_cluster(here, context) if self.cluster else here

    def _on_cluster(self, here: Compute, context: dg.AssetExecutionContext | None) -> Compute:
        from penstock.compute.cluster import read_cluster
        from penstock.compute.cluster_compute import ClusterCompute

        cluster = read_cluster(self.cluster)
        if context is None:
            return ClusterCompute(cluster, here, _log.info)
        instance, run_id = context.instance, context.run_id
        return ClusterCompute(
            cluster,
            here,
            context.log.info,
            given_up=partial(is_ended_by_a_person, instance, run_id),
            waits=partial(_tell_waiting, instance, run_id),
            file=self.cluster,
            ended=partial(_show_job, context),
        )


def _show_job(context: dg.AssetExecutionContext, state: "JobState") -> None:
    """Add a job that is done to the metadata of the step's asset."""
    rows = {
        "job": state.id,
        "place": state.status.place,
        "attempts": state.attempt,
        "blocks": state.n_blocks,
        "units": state.n_units,
    }
    context.add_asset_metadata({f"cluster_{name}": value for name, value in rows.items() if value})


def is_ended_by_a_person(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Return whether a person ended a run. A database that does not answer says nothing: jobs go on."""
    try:
        run = instance.get_run_by_id(run_id)
    except Exception:  # noqa: BLE001 - of whatever database this is
        _log.exception("whether run %s was ended is not known: its job goes on", run_id)
        return False
    return run is not None and run.status in _ENDED_BY_A_PERSON


def _tell_waiting(instance: dg.DagsterInstance, run_id: str, job: str) -> None:
    """Tag a run as one that waits for a job, "" for none; its time is unlimited from then on, since jobs take days."""
    try:
        instance.add_run_tags(run_id, {WAITS: job, MAX_RUNTIME_SECONDS_TAG: "0"})
    except Exception:  # noqa: BLE001 - a run waits as well without its tags
        _log.exception("run %s could not be tagged", run_id)
