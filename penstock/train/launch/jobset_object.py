"""The JobSet of a run: one Indexed Job with a pod per node, which Kueue admits as a whole.

A Job fails by its pod policy if a rank asks to begin again (exit status 75) or a pod is disrupted; the JobSet then
begins again without counting. Other failures count up to `MAX_RESTARTS`. If the run is over, a pod ends with 76, which
fails the JobSet. Kubernetes has one reason for all rules of a pod policy, so the Job's message decides.
"""

import hashlib
import json
import re
import secrets
from typing import Any

from ...compute.engines.kubernetes import QUEUE_LABEL, KubernetesCluster, container_spec, pod_spec
from ..run import AGAIN
from ..run_spec import RunSpec
from . import jobset_pod
from .jobset_pod import OVER

PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"
RESTARTS = "jobset.sigs.k8s.io/restart-attempt"
"""Label and annotation by JobSet: number of restarts before a pod."""
FILE = "penstock/file"
"""Annotation with the digest of the run's file."""
RANKS = "ranks"
"""Name of the replicated Job, and of its container."""
PORT = 29_500
"""Port of the first pod, at which the ranks meet."""
MARGIN_S = 15
"""Seconds from torchrun's SIGKILL of its ranks to Kubernetes' of the pod."""
MAX_RESTARTS = 20
"""Failures until a run ends."""
KEPT_S = 7 * 86_400
"""JobSet deletes an ended run and its logs after this time, in s."""


def object_name(record: str, run: str) -> str:
    """Return the JobSet's name of a run: at most 42 characters, so that a pod's host name has at most 63."""
    # DNS names take these characters only; the hash keeps runs with equal slugs apart.
    slug = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")[:30].rstrip("-")
    return f"pk-{slug or 'run'}-{hashlib.sha256(f'{record} {run}'.encode()).hexdigest()[:8]}"


def jobset_object(
    cluster: KubernetesCluster, spec: RunSpec, name: str, *, python: str, priority: str = ""
) -> dict[str, Any]:
    """Return a run's JobSet. python: interpreter in the image. priority: WorkloadPriorityClass; "" for none."""
    labels = {"app.kubernetes.io/name": "penstock", "app.kubernetes.io/managed-by": "penstock"}
    kueue = {QUEUE_LABEL: cluster.queue, PRIORITY_LABEL: priority}
    over = {
        "name": "over",
        "action": "FailJobSet",
        "onJobFailureReasons": ["PodFailurePolicy"],
        "onJobFailureMessagePatterns": [f"failed with exit code {OVER} matching FailJob rule"],
    }
    again = {
        "name": "beginAgain",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy", "DeadlineExceeded"],
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": cluster.placing.namespace,
            "labels": labels | {label: value for label, value in kueue.items() if value},
            "annotations": {"penstock/run": spec.run, "penstock/record": spec.record, FILE: spec.digest},
        },
        "spec": {
            # Kueue admits it by lifting this.
            "suspend": bool(cluster.queue),
            # Ranks look the first pod up before it is ready.
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {
                "maxRestarts": MAX_RESTARTS,
                "rules": [over, again, {"name": "failed", "action": "RestartJobSet"}],
            },
            "ttlSecondsAfterFinished": KEPT_S,
            "replicatedJobs": [
                {
                    "name": RANKS,
                    "replicas": 1,
                    "template": {"spec": _job(cluster, spec, name, python, labels)},
                }
            ],
        },
    }


def _job(
    cluster: KubernetesCluster, spec: RunSpec, name: str, python: str, labels: dict[str, str]
) -> dict[str, Any]:
    nodes = spec.node_range[1]
    stopped = {"containerName": RANKS, "operator": "In", "values": [AGAIN, OVER]}
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    topology = {TOPOLOGY: cluster.placing.topology} if cluster.placing.topology else {}
    return {
        "completionMode": "Indexed",
        "completions": nodes,
        "parallelism": nodes,
        # The JobSet restarts all pods; a Job that replaced one would wait for ranks that are gone.
        "backoffLimit": 0,
        # The only value that Kubernetes accepts beside a podFailurePolicy.
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": stopped},
                {"action": "FailJob", "onPodConditions": disrupted},
            ]
        },
        **({"activeDeadlineSeconds": spec.walltime_s} if spec.walltime_s else {}),
        "template": {
            "metadata": {"labels": labels, "annotations": topology},
            "spec": _pod(cluster, spec, name, python),
        },
    }


def _pod(cluster: KubernetesCluster, spec: RunSpec, name: str, python: str) -> dict[str, Any]:
    command = [python, "-m", jobset_pod.__name__, json.dumps(spec.to_json(), separators=(",", ":"))]
    container = container_spec(cluster, RANKS, command)
    restarts = {"fieldRef": {"fieldPath": f"metadata.annotations['{RESTARTS}']"}}
    container["env"] += [
        {"name": "PENSTOCK_ATTEMPT", "valueFrom": restarts},
        {"name": "PENSTOCK_SUBMISSION", "value": secrets.token_hex(8)},
        # A pod's host name is <JobSet>-<replicated Job>-<Job>-<pod>, in the JobSet's headless service.
        {"name": "PENSTOCK_MEETING", "value": f"{name}-{RANKS}-0-0.{name}:{PORT}"},
    ]
    # A container's own /dev/shm has 64 MiB: too little for the ranks' shared memory.
    container.setdefault("volumeMounts", []).append({"name": "memory", "mountPath": "/dev/shm"})
    pod = pod_spec(cluster, container, spec.grace_s + MARGIN_S)
    pod.setdefault("volumes", []).append({"name": "memory", "emptyDir": {"medium": "Memory"}})
    return pod
