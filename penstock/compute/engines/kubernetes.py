"""Kubernetes as an engine: an attempt is one Indexed Job of the attempt's name, and each pod is a runner.

Checked against the schema and an emulator, never on a real cluster. Needs release 1.29 or newer.
"""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from loader.errors import EngineUnreachable

from .engine import AttemptStatus
from .kubernetes_api import KubernetesApi, how_ended, is_true, why_pending
from .kubernetes_job import QUEUE_LABEL, KubernetesCluster, job_object

CANCEL_S = 120.0
"""Pods on a lost node stay until Kubernetes declares the node down."""
ASK_S = 0.5
"""Interval of polls for a deleted Job, in s."""


class KubernetesEngine:
    """Attempts in one namespace of a cluster, by name: 'pk-<job>-<token>-<attempt>'."""

    poll_s = 5.0

    def __init__(self, cluster: KubernetesCluster) -> None:
        self._cluster = cluster
        self._api = KubernetesApi(cluster.placing.context, cluster.placing.namespace)

    def submit(self, name: str, runner: Sequence[str], n_blocks: int, final: Sequence[int] = (0,)) -> None:
        """Place an attempt; an existing attempt of this name stays and counts.

        A Job that has ended keeps its name for a day; it belongs to a cleared folder and is replaced.

        Raises: EngineUnreachable, although the attempt may exist; InvalidCluster.
        """
        body = job_object(self._cluster, name, runner, n_blocks, final)
        until_s = time.monotonic() + CANCEL_S
        while not self._api.create_job(body):
            job = self._api.job(name)
            if job is not None:
                if not _is_leaving(job) and not is_true(job, "Complete", "Failed"):
                    return
                self._api.delete_job(name, job["metadata"]["uid"])
            if time.monotonic() > until_s:
                raise EngineUnreachable(f"an earlier Job {name} is not gone after {CANCEL_S:.0f} s")
            time.sleep(ASK_S)

    def find(self, name: str) -> bool:
        """Return whether Kubernetes has an attempt. Raises: EngineUnreachable."""
        return self._api.job(name) is not None

    def status(self, name: str) -> AttemptStatus:
        """Return the state of a placed attempt. Costs a request, and one more if pods wait.

        Raises: EngineUnreachable, which is no end.
        """
        job = self._api.job(name)
        if job is None:
            remaining = [
                one for one in self._api.pods(name) if one["status"].get("phase") in ("Pending", "Running")
            ]
            return (
                AttemptStatus(state="running", running=len(remaining), reason="ending")
                if remaining
                else AttemptStatus(state="ended")
            )
        if is_true(job, "Complete", "Failed"):
            return AttemptStatus(state="ended")
        spec, status = job["spec"], job.get("status", {})
        active, ending = status.get("active", 0), status.get("terminating", 0)
        if _is_leaving(job):
            return AttemptStatus(state="running", running=active + ending, reason="ending")
        reasons: Counter[str] = Counter()
        if active > status.get("ready", 0):
            reasons.update(why_pending(pod) for pod in self._api.pods(name, phase="Pending"))
        running = max(0, active - reasons.total()) + ending
        ended = _n_indexes(status.get("completedIndexes", "")) + _n_indexes(status.get("failedIndexes", ""))
        without = max(0, spec["completions"] - ended - active - ending)
        waiting = reasons.total() + without
        reason = ", ".join(f"{why} ({n})" for why, n in reasons.most_common())
        if spec.get("suspend"):
            reason = self._why_suspended(job)
        elif without and not reason:
            reason = f"no free slot ({without})"
        state = "running" if running else "waiting"
        place = f"Kubernetes Job {name} in namespace {job['metadata'].get('namespace', 'default')}"
        return AttemptStatus(state=state, reason=reason, waiting=waiting, running=running, place=place)  # type: ignore[arg-type]

    def _why_suspended(self, job: dict[str, Any]) -> str:
        queue = job["metadata"].get("labels", {}).get(QUEUE_LABEL)
        if not queue:
            return "suspended"
        reason = self._api.queued(job["metadata"]["uid"])
        return f"suspended by queue {queue}: {reason or 'no word of Kueue'}"

    def cancel(self, name: str) -> None:
        """Delete an attempt; return when its last pod is gone. Raises: EngineUnreachable."""
        until_s = time.monotonic() + CANCEL_S
        while self.status(name).state != "ended":
            job = self._api.job(name)
            if job is not None and not _is_leaving(job):
                self._api.delete_job(name, job["metadata"]["uid"])
            if time.monotonic() > until_s:
                raise EngineUnreachable(f"pods of {name} have not ended after {CANCEL_S:.0f} s; cancel again")
            time.sleep(ASK_S)

    def logs(self, name: str, element: int) -> str:
        """Return the last 64 KiB of an element's newest pod, and how it ended, or "". Raises: EngineUnreachable."""
        pods = self._api.pods(name, element=element)
        for pod in sorted(pods, key=lambda entry: str(entry["metadata"]["creationTimestamp"]), reverse=True):
            text, end = self._api.log(pod["metadata"]["name"]), how_ended(pod)
            if text or end:
                return "\n".join(filter(None, [text.rstrip("\n"), end])) + "\n"
        return ""

    def close(self) -> None:
        """Close connections. Attempts continue."""
        self._api.close()


def _is_leaving(job: dict[str, Any]) -> bool:
    return "deletionTimestamp" in job["metadata"]


def _n_indexes(text: str) -> int:
    """Return the count of Kubernetes' indexes: 5 for '1,3-5,7'."""
    runs = [run.partition("-") for run in text.split(",") if run]
    return sum(int(last or first) - int(first) + 1 for first, _, last in runs)
