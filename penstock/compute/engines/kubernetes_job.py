"""Build the Indexed Job of an attempt; pod i is the runner of element i. Credentials come from a Secret by name."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from loader.errors import InvalidCluster

from ..job import MAX_STARTS

ELEMENTS_PER_SLOT = 4
"""Blocks differ in cost: a runner that finishes early takes another element."""
MAX_ELEMENTS = 100_000
"""Most indexes of a Job."""
GRACE_S = 30
"""Grace period of a pod in s, for its runner to store outcomes."""
KEPT_S = 86_400
"""Kubernetes deletes a Job and its logs this long after its end, in s."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
SCRATCH = "/scratch"
_BY_DIGEST = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A taint of nodes that pods tolerate."""

    key: str = ""
    """Name of the taint; "": any, with the operator Exists."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """Comparison of the taint's value with `value`."""
    value: str = ""
    """Value of the taint."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Effect of the taint; "": any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """Table `[kubernetes]` of a cluster's file."""

    context: str = ""
    """Context of the kubeconfig; "": the current one, or the pod's own service account."""
    namespace: str = "default"
    """Namespace of Job, pods and Secret."""
    service_account: str = ""
    """Service account of the pods; "": the namespace's default, without its token."""
    node_selector: dict[str, str] = field(default_factory=dict)
    """Label -> value of the nodes that pods may run on."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that pods tolerate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesCluster:
    """A Kubernetes cluster, and the resources of a runner."""

    slots: int
    """Runners at once, at most."""
    image: str
    """Image of the runners by digest: 'registry/penstock@sha256:...'. A tag could name two source trees."""
    cpus: int = 1
    """Processors of a runner."""
    memory_bytes: int = 0
    """Memory of a runner; 0: the namespace's default."""
    gpus: int = 0
    """GPUs of a runner, as nvidia.com/gpu."""
    scratch_bytes: int = 0
    """Space on the node's own disk; 0: unchecked."""
    queue: str = ""
    """Kueue's LocalQueue; "": none."""
    secret: str = ""
    """Name of a Secret with variables of the pods; "": none."""
    placing: Placing = field(default_factory=Placing)
    """Place of pods."""

    def __post_init__(self) -> None:
        """Check numbers and image. Raises: InvalidCluster."""
        for name, least in {"slots": 1, "cpus": 1, "memory_bytes": 0, "gpus": 0, "scratch_bytes": 0}.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise InvalidCluster(f"{name} = {value!r}; accepted: a whole number, {least} or more")
        if not _BY_DIGEST.fullmatch(self.image):
            raise InvalidCluster(
                f"image = {self.image!r}; accepted: an image by its digest, such as "
                "'registry.example/penstock@sha256:<64 hex digits>', which a push prints: "
                "a tag could name another source tree tomorrow"
            )


def elements_of(n_blocks: int, slots: int) -> int:
    """Return the number of elements: four per slot, at most one per block."""
    return min(n_blocks, ELEMENTS_PER_SLOT * slots, MAX_ELEMENTS)


def job_object(
    cluster: KubernetesCluster, name: str, runner: Sequence[str], n_blocks: int, final: Sequence[int]
) -> dict[str, Any]:
    """Return the Job of an attempt.

    runner: its command, without element and elements. final: exit codes after which it does not begin again.
    """
    elements = elements_of(n_blocks, cluster.slots)
    labels = {"app.kubernetes.io/name": "penstock", "app.kubernetes.io/managed-by": "penstock"}
    rules: list[dict[str, Any]] = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    ]
    if refused := sorted(code for code in final if code):
        codes = {"containerName": "runner", "operator": "In", "values": refused}
        rules.append({"action": "FailIndex", "onExitCodes": codes})
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": elements,
        "parallelism": min(cluster.slots, elements),
        "backoffLimitPerIndex": MAX_STARTS - 1,
        "podReplacementPolicy": "Failed",  # no second runner of an element before the first has ended
        "podFailurePolicy": {"rules": rules},
        "ttlSecondsAfterFinished": KEPT_S,
        "template": {"metadata": {"labels": labels}, "spec": _pod(cluster, runner, elements)},
    }
    queue = {QUEUE_LABEL: cluster.queue} if cluster.queue else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": cluster.placing.namespace,
            "labels": labels | queue,
        },
        "spec": spec | ({"suspend": True} if queue else {}),
    }


def _pod(cluster: KubernetesCluster, runner: Sequence[str], elements: int) -> dict[str, Any]:
    placing = cluster.placing
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(cluster, runner, elements)],
    }
    if cluster.scratch_bytes:
        pod["volumes"] = [{"name": "scratch", "emptyDir": {"sizeLimit": str(cluster.scratch_bytes)}}]
    if placing.service_account:
        pod["serviceAccountName"] = placing.service_account
    if placing.node_selector:
        pod["nodeSelector"] = dict(placing.node_selector)
    if placing.tolerations:
        pod["tolerations"] = [
            {name: value for name in ("key", "operator", "value", "effect") if (value := getattr(one, name))}
            for one in placing.tolerations
        ]
    return pod


def _container(cluster: KubernetesCluster, runner: Sequence[str], elements: int) -> dict[str, Any]:
    # Kubernetes puts variables in the place of $(NAME), and reads $$ as $. It adds the index to the variables.
    command = [word.replace("$", "$$") for word in runner]
    node = {"name": "PENSTOCK_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    resources = _resources(cluster)
    container: dict[str, Any] = {
        "name": "runner",
        "image": cluster.image,
        "command": [*command, "--element", "$(JOB_COMPLETION_INDEX)", "--elements", str(elements)],
        "env": [node],
        # Limits that are the requests: such pods are the last to be evicted.
        "resources": {"requests": resources, "limits": resources},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    if cluster.secret:
        container["envFrom"] = [{"secretRef": {"name": cluster.secret}}]
    if cluster.scratch_bytes:
        container["env"].append({"name": "TMPDIR", "value": SCRATCH})
        container["volumeMounts"] = [{"name": "scratch", "mountPath": SCRATCH}]
    return container


def _resources(cluster: KubernetesCluster) -> Mapping[str, str]:
    resources = {
        "cpu": cluster.cpus,
        "memory": cluster.memory_bytes,
        "ephemeral-storage": cluster.scratch_bytes,
        "nvidia.com/gpu": cluster.gpus,
    }
    return {name: str(amount) for name, amount in resources.items() if amount}
