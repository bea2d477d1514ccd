"""Nodes of a cluster by its engine."""

from collections.abc import Callable, Mapping

from loader.errors import InvalidCluster

from ..compute.cluster import Cluster
from ..compute.engines.slurm import SlurmQueue
from .slurm_drain import SlurmNodes
from .watch import NodeControl

CONTROLS: Mapping[str, Callable[[Cluster], NodeControl]] = {
    "slurm": lambda cluster: SlurmNodes(SlurmQueue(cluster.submit)),
}
"""Engine of a cluster's file -> its nodes."""


def control_of(cluster: Cluster) -> NodeControl:
    """Return the nodes of a cluster. Raises: InvalidCluster."""
    if cluster.engine not in CONTROLS:
        raise InvalidCluster(
            f"engine = {cluster.engine!r} drains no nodes; accepted: {', '.join(sorted(CONTROLS))}"
        )
    return CONTROLS[cluster.engine](cluster)
