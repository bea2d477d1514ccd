"""Nodes of a cluster by its engine."""

from collections.abc import Callable, Mapping

from loader.errors import InvalidCluster

from ..compute.cluster import Cluster
from ..compute.engines.kubernetes_api import KubernetesApi
from ..compute.engines.slurm import SlurmQueue
from .node_condition import KubernetesNodes
from .slurm_drain import SlurmNodes
from .watch import NodeControl


def _kubernetes(cluster: Cluster) -> NodeControl:
    return KubernetesNodes(KubernetesApi(cluster.kubernetes.context, cluster.kubernetes.namespace))


CONTROLS: Mapping[str, Callable[[Cluster], NodeControl]] = {
    "kubernetes": _kubernetes,
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
