"""Kubernetes (1.29 or newer) as an engine: an attempt is one Indexed Job of the same name; each pod is a runner."""

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from loader.errors import EngineUnreachable, InvalidCluster
from loader.keywords import check_whole_number

from ..job import MAX_STARTS
from .engine import AttemptState, AttemptStatus
from .kubernetes_api import KubernetesApi, how_ended, is_true, why_pending

ELEMENTS_PER_SLOT = 4
"""Elements per slot; a runner that finishes early takes another."""
MAX_ELEMENTS = 100_000
"""Most indexes in a Job."""
GRACE_S = 30
"""Pod's grace period, in s, for its runner to store outcomes."""
KEPT_S = 86_400
"""Kubernetes deletes an ended Job and its logs after this time, in s."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
SCRATCH = "/scratch"
_BY_DIGEST = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A node taint that pods tolerate."""

    key: str = ""
    """Name of the taint; "": any, with operator Exists."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """Operator that compares the taint's value with `value`."""
    value: str = ""
    """Value of the taint."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Effect of the taint; "": any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """Table `[kubernetes]` of a cluster's file."""

    context: str = ""
    """Context of the kubeconfig; "": the current one, or the pod's."""
    namespace: str = "default"
    """Namespace of the Job, pods and Secret."""
    service_account: str = ""
    """Pods' service account; "": the namespace's default, without its token."""
    node_selector: dict[str, str] = field(default_factory=dict)
    """Node label -> value that pods require."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that pods tolerate."""
    excluded_nodes: tuple[str, ...] = ()
    """Names of nodes that get no pod."""
    topology: str = ""
    """Trainings: node label with one value for all pods of a run; "": any nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesCluster:
    """A Kubernetes cluster, and each runner's resources."""

    slots: int
    """Most concurrent runners."""
    image: str
    """Runner image, by digest: 'registry/penstock@sha256:...'."""
    cpus: int = 1
    """Processors per runner."""
    memory_bytes: int = 0
    """Memory per runner, in bytes; 0: the namespace's default."""
    gpus: int = 0
    """GPUs per runner (nvidia.com/gpu)."""
    scratch_bytes: int = 0
    """Bytes needed on the node's own disk; 0: unchecked."""
    queue: str = ""
    """Kueue's LocalQueue; "": none."""
    secret: str = ""
    """Name of a Secret with the pods' environment variables; "": none."""
    placing: Placing = field(default_factory=Placing)
    """Placement of pods."""

    def __post_init__(self) -> None:
        for name, least in {"slots": 1, "cpus": 1, "memory_bytes": 0, "gpus": 0, "scratch_bytes": 0}.items():
            value = getattr(self, name)
            check_whole_number(name, value, least, error=InvalidCluster)
        if not _BY_DIGEST.fullmatch(self.image):
            raise InvalidCluster(
                f"image = {self.image!r}; accepted: an image by its digest, such as "
                "'registry.example/penstock@sha256:<64 hex digits>', which a push prints: "
                "a tag could name another source tree tomorrow",
                what="image",
                given=self.image,
                accepted="an image by its digest",
            )


def count_elements(n_blocks: int, slots: int) -> int:
    """Return the number of elements: four per slot, at most one per block."""
    return min(n_blocks, ELEMENTS_PER_SLOT * slots, MAX_ELEMENTS)


def job_object(
    cluster: KubernetesCluster, name: str, runner: Sequence[str], n_blocks: int, final: Sequence[int]
) -> dict[str, Any]:
    """Return an attempt's Job object. runner, final: as for `Engine.submit`."""
    elements = count_elements(n_blocks, cluster.slots)
    labels = {"app.kubernetes.io/name": "penstock", "app.kubernetes.io/managed-by": "penstock"}
    rules: list[dict[str, Any]] = [
        # An eviction is not a failure of the runner.
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
        "podReplacementPolicy": "Failed",  # an element's second runner starts only after the first has ended
        "podFailurePolicy": {"rules": rules},
        "ttlSecondsAfterFinished": KEPT_S,
        "template": {
            "metadata": {"labels": labels},
            "spec": pod_spec(cluster, _runner(cluster, runner, elements), GRACE_S),
        },
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


def pod_spec(cluster: KubernetesCluster, container: Mapping[str, Any], grace_s: int) -> dict[str, Any]:
    """Return the pod of a container. grace_s: seconds from SIGTERM to SIGKILL."""
    placing = cluster.placing
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_s,
        # A runner asks nothing of the API server.
        "automountServiceAccountToken": False,
        # A variable per service of the namespace could fill the environment.
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [dict(container)],
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
    if placing.excluded_nodes:
        fields = [  # a field takes one value, and a term's fields are all required
            {"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in placing.excluded_nodes
        ]
        required = {"nodeSelectorTerms": [{"matchFields": fields}]}
        pod["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return pod


def _runner(cluster: KubernetesCluster, runner: Sequence[str], elements: int) -> dict[str, Any]:
    container = container_spec(cluster, "runner", runner)
    # Kubernetes sets the index as a variable.
    container["command"] += ["--element", "$(JOB_COMPLETION_INDEX)", "--elements", str(elements)]
    return container


def container_spec(cluster: KubernetesCluster, name: str, command: Sequence[str]) -> dict[str, Any]:
    """Return a container with the share, the Secret and the scratch disk of the cluster's file."""
    resources = _resources(cluster)
    container: dict[str, Any] = {
        "name": name,
        "image": cluster.image,
        "command": [
            word.replace("$", "$$") for word in command
        ],  # Kubernetes expands $(NAME), and reads $$ as $
        "env": [{"name": "PENSTOCK_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        # Limits equal the requests: such pods are the last to be evicted.
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


CANCEL_S = 120.0
"""Longest wait for pods to end, in s: a lost node must first be declared down."""
ASK_S = 0.5
"""Poll interval for a deleted Job, in s."""


class KubernetesEngine:
    """Runs attempts in one namespace of a cluster."""

    poll_s = 5.0

    def __init__(self, cluster: KubernetesCluster) -> None:
        self._cluster = cluster
        self._api = KubernetesApi(cluster.placing.context, cluster.placing.namespace)

    def submit(self, name: str, runner: Sequence[str], n_blocks: int, final: Sequence[int] = (0,)) -> None:
        """See `Engine.submit`. A live attempt stays; an ended Job belongs to a cleared folder, and is replaced."""
        body = job_object(self._cluster, name, runner, n_blocks, final)
        until_s = time.monotonic() + CANCEL_S
        while not self._api.create_job(body):
            job = self._api.job(name)
            if job is not None:
                # Another submitter's, of the same attempt.
                if not _is_leaving(job) and not is_true(job, "Complete", "Failed"):
                    return
                self._api.delete_job(name, job["metadata"]["uid"])
            if time.monotonic() > until_s:
                raise EngineUnreachable(
                    f"an earlier Job {name} is not gone after {CANCEL_S:.0f} s", what=name, accepted=CANCEL_S
                )
            time.sleep(ASK_S)

    def find(self, name: str) -> bool:
        return self._api.job(name) is not None

    def status(self, name: str) -> AttemptStatus:
        """See `Engine.status`. Costs a request, and one more if pods wait."""
        job = self._api.job(name)
        if job is None:
            # Pods of a Job that was deleted may outlive it.
            pods = self._api.pods(name)
            remaining = [pod for pod in pods if pod["status"].get("phase") in ("Pending", "Running")]
            if remaining:
                return AttemptStatus(state="running", running=len(remaining), reason="ending")
            return AttemptStatus(state="ended")
        if is_true(job, "Complete", "Failed"):
            return AttemptStatus(state="ended")
        spec = job["spec"]
        status = job.get("status", {})
        active = status.get("active", 0)
        ending = status.get("terminating", 0)
        if _is_leaving(job):
            return AttemptStatus(state="running", running=active + ending, reason="ending")
        # Pods that wait count as active, too. Without one, the listing of pods is saved.
        reasons: Counter[str] = Counter()
        if active > status.get("ready", 0):
            reasons.update(why_pending(pod) for pod in self._api.pods(name, phase="Pending"))
        n_pending = reasons.total()
        # The two answers are of different moments, so a difference may be negative.
        running = max(0, active - n_pending) + ending
        ended = _n_indexes(status.get("completedIndexes", "")) + _n_indexes(status.get("failedIndexes", ""))
        # Indexes for which the Job has no pod yet.
        n_unstarted = max(0, spec["completions"] - ended - active - ending)
        waiting = n_pending + n_unstarted
        reason = ", ".join(f"{why} ({n})" for why, n in reasons.most_common())
        if spec.get("suspend"):
            reason = self._why_suspended(job)
        elif n_unstarted and not reason:
            reason = f"no free slot ({n_unstarted})"
        state: AttemptState = "running" if running else "waiting"
        place = f"Kubernetes Job {name} in namespace {job['metadata'].get('namespace', 'default')}"
        return AttemptStatus(state=state, reason=reason, waiting=waiting, running=running, place=place)

    def _why_suspended(self, job: dict[str, Any]) -> str:
        queue = job["metadata"].get("labels", {}).get(QUEUE_LABEL)
        if not queue:
            return "suspended"
        reason = self._api.queued(job["metadata"]["uid"])
        return f"suspended by queue {queue}: {reason or 'no word of Kueue'}"

    def cancel(self, name: str) -> None:
        """See `Engine.cancel`. Deletes the Job, and waits until its pods have ended."""
        until_s = time.monotonic() + CANCEL_S
        while self.status(name).state != "ended":
            job = self._api.job(name)
            # Its id: another process may have begun a Job of the same name meanwhile.
            if job is not None and not _is_leaving(job):
                self._api.delete_job(name, job["metadata"]["uid"])
            if time.monotonic() > until_s:
                raise EngineUnreachable(
                    f"pods of {name} have not ended after {CANCEL_S:.0f} s; cancel again",
                    what=name,
                    accepted=CANCEL_S,
                )
            time.sleep(ASK_S)

    def withdraw(self, name: str) -> None:
        """See `Engine.withdraw`."""

    def logs(self, name: str, element: int) -> str:
        """See `Engine.logs`: the newest pod's output and end."""
        pods = self._api.pods(name, element=element)
        for pod in sorted(pods, key=lambda entry: str(entry["metadata"]["creationTimestamp"]), reverse=True):
            text = self._api.log(pod["metadata"]["name"])
            end = how_ended(pod)
            if text or end:
                return "\n".join(filter(None, [text.rstrip("\n"), end])) + "\n"
        return ""

    def close(self) -> None:
        self._api.close()


def _is_leaving(job: dict[str, Any]) -> bool:
    return "deletionTimestamp" in job["metadata"]


def _n_indexes(text: str) -> int:
    """Count the indexes in a list: 5 for '1,3-5,7'."""
    runs = [run.partition("-") for run in text.split(",") if run]
    return sum(int(last or first) - int(first) + 1 for first, _, last in runs)
