"""Runs on Kubernetes: a JobSet each, which Kueue queues, admits as a whole, and evicts.

Tested against published models and an emulator, never on a cluster. Needs Kubernetes 1.29 and JobSet 0.10 or newer.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from loader.dataset.root import Root
from loader.errors import EngineUnreachable, InvalidCluster, InvalidRuntime, InvalidSpec
from loader.json_text import parse_json_object

from ...compute.cluster import Cluster
from ...compute.engines.kubernetes import KubernetesCluster
from ...compute.engines.kubernetes_api import (
    INDEX_LABEL,
    LOG_BYTES,
    KubernetesApi,
    how_ended,
    is_true,
    why_pending,
)
from ..run_folder import RunFolder
from ..run_spec import RunSpec, parse_spec
from .jobset_object import FILE, RANKS, RESTARTS, jobset_object, object_name
from .jobset_pod import failure_spans
from .launcher import RunStatus, Span
from .run_log import LogPart, rank_lines

CANCEL_S = 120.0
"""Longest wait for pods to end beyond their grace, in s: Kubernetes must first declare a lost node down."""
ASK_S = 0.5
"""Poll interval for a deleted JobSet, in s."""
QUEUED = ("QuotaReserved", "Admitted")
"""Kueue's conditions that a run waits for."""
Json = dict[str, Any]


class JobSets:
    """Runs of one record in one namespace of a cluster."""

    def __init__(self, record: str, cluster: Cluster) -> None:
        self._record = Root(record)
        self._cluster = cluster
        self._opened: KubernetesApi | None = None

    @property
    def _api(self) -> KubernetesApi:
        """The API server, on first use: `describe` needs none."""
        if self._opened is None:
            placing = self._cluster.kubernetes
            self._opened = KubernetesApi(placing.context, placing.namespace)
        return self._opened

    def name(self) -> str:
        """See `Launcher.name`: the server's URL differs inside and outside of a cluster."""
        return f"Kubernetes, namespace {self._cluster.kubernetes.namespace}"

    def describe(self, spec: RunSpec) -> str:
        """See `Launcher.describe`: the JobSet as JSON, which `kubectl create -f -` takes."""
        return json.dumps(self._body(spec), indent=2)

    def notes(self, spec: RunSpec) -> list[str]:
        """See `Launcher.notes`."""
        least, most = spec.node_range
        if least == most:
            return []
        return [
            f"nodes = {spec.nodes!r} asks for {most}: Kueue admits all pods of a JobSet or none. If they do not fit, "
            f"cancel the run, and resume it with --nodes {least}"
        ]

    def check(self, spec: RunSpec) -> str:
        """See `Launcher.check`: the server's schema, webhooks and rights decide."""
        body = self._body(spec)
        name = body["metadata"]["name"]
        if self._api.create_jobset(body, dry_run=True) is None:
            return f"{name} exists"
        return f"the server takes JobSet {name}"

    def submit(self, spec: RunSpec) -> str:
        """See `Launcher.submit`. A JobSet of the name that ended, or waits with another file, is replaced."""
        body = self._body(spec)
        name = body["metadata"]["name"]
        until_s = time.monotonic() + CANCEL_S + spec.grace_s
        while self._api.create_jobset(body) is None:
            jobset = self._api.jobset(name)
            if jobset is not None and not _is_leaving(jobset):
                has_ended = is_true(jobset, "Completed", "Failed")
                is_changed = jobset["metadata"].get("annotations", {}).get(FILE) not in (None, spec.digest)
                if not has_ended and not is_changed:
                    return self._place(jobset)
                if not has_ended and not self._waits(jobset):
                    return (
                        f"{self._place(jobset)}; it goes on with the file before: stop the run, and resume it with the "
                        "changed one"
                    )
                # By uid: another submit may have created the next one of this name.
                self._api.delete_jobset(name, jobset["metadata"]["uid"])
            if time.monotonic() > until_s:
                raise EngineUnreachable(f"an earlier JobSet {name} does not go; submit again")
            time.sleep(ASK_S)
        return self._place(body)

    def _waits(self, jobset: Json) -> bool:
        """Return whether a JobSet waits in its queue, or for nodes: no pod of it has begun."""
        if jobset["spec"].get("suspend"):
            return True
        pods = self._api.jobset_pods(jobset["metadata"]["name"])
        return all(pod["status"].get("phase") == "Pending" for pod in pods)

    def status(self, run: str) -> RunStatus:
        """See `Launcher.status`. Costs two requests."""
        name = self._name(run)
        jobset = self._api.jobset(name)
        if jobset is None:
            return RunStatus(state="unknown")
        place = self._place(jobset)
        if _is_leaving(jobset):
            return RunStatus(state="running", place=place, reason="ending")
        for condition in _conditions(jobset):
            if condition["type"] in ("Completed", "Failed") and condition["status"] == "True":
                failed = condition["type"] == "Failed"
                reason = ""
                if failed:
                    reason = _words(condition)
                return RunStatus(state="ended", place=place, reason=reason, exit_status=int(failed))
        if jobset["spec"].get("suspend"):
            return RunStatus(state="waiting", place=place, reason=self._why_suspended(jobset))
        pods = self._api.jobset_pods(name)
        waits = sorted({why_pending(pod) for pod in pods if pod["status"].get("phase") == "Pending"})
        running = any(pod["status"].get("phase") == "Running" for pod in pods)
        return RunStatus(state="running" if running else "waiting", place=place, reason="; ".join(waits))

    def statuses(self, runs: Sequence[str]) -> dict[str, RunStatus]:
        """See `Launcher.statuses`."""
        return {run: self.status(run) for run in runs}

    def why(self, run: str) -> str:
        """See `Launcher.why`: Kueue's own words, or else the scheduler's words on the pods."""
        return self.status(run).reason

    def cancel(self, run: str) -> None:
        """See `Launcher.cancel`. Kubernetes sends SIGTERM first, so ranks may save before they end."""
        name = self._name(run)
        until_s = None
        while (jobset := self._api.jobset(name)) is not None:
            if not _is_leaving(jobset):
                self._api.delete_jobset(name, jobset["metadata"]["uid"])
            until_s = until_s or time.monotonic() + CANCEL_S + _grace_s(jobset)
            if time.monotonic() > until_s:
                raise EngineUnreachable(f"pods of {name} do not end; cancel again")
            time.sleep(ASK_S)

    def withdraw(self, run: str) -> None:
        """See `Launcher.withdraw`."""
        jobset = self._api.jobset(self._name(run))
        if jobset is not None and jobset["spec"].get("suspend"):
            self._api.delete_jobset(jobset["metadata"]["name"], jobset["metadata"]["uid"])

    def spans(self, run: str) -> list[Span]:
        """See `Launcher.spans`: the pods' times.

        A restart deletes the pods before it. The record gives the earlier spans: from the ranks' meeting to the last
        event, and the times of pods that failed.
        """
        starts: dict[int, list[Json]] = {}
        for pod in self._api.jobset_pods(self._name(run)):
            if "startTime" in pod["status"]:
                starts.setdefault(int(pod["metadata"]["labels"][RESTARTS]), []).append(pod)
        spans = [_span(pods) for _, pods in sorted(starts.items())]
        first_us = min((span.begun_us for span in spans), default=2**63)
        return [*self._record_spans(run, before_us=first_us), *spans]

    def _record_spans(self, run: str, before_us: int) -> Iterable[Span]:
        folder = RunFolder(self._record.store, run)
        attempts = folder.attempts()
        last_events = {event.attempt: event for event in folder.events()}
        ranks_per_node = folder.ranks_per_node(attempts)
        recorded: list[Span] = []
        for number, facts in attempts.items():
            ended_us = facts["at_us"]
            state = ""
            last_event = last_events.get(number)
            if last_event is not None:
                ended_us = max(ended_us, last_event.at_us)
                state = last_event.name
            nodes = -(-int(facts["ranks"]) // ranks_per_node[number])
            recorded.append(Span(begun_us=facts["at_us"], ended_us=ended_us, nodes=nodes, state=state))
        failed = [_failure_span(span, recorded) for span in failure_spans(folder)]
        # A failed pod's own times replace the record's of the same start.
        others = [span for span in recorded if not any(_holds(failure, span) for failure in failed)]
        spans = sorted([*others, *failed], key=lambda span: span.begun_us)
        return [span for span in spans if span.begun_us < before_us]

    def logs(self, run: str, rank: int | None = None, start: int | None = None) -> str:
        """See `Launcher.logs`: the newest first pod's output, or the rank's pod's, and how other pods failed."""
        pods = sorted(
            self._api.jobset_pods(self._name(run)),
            key=lambda pod: (int(pod["metadata"]["labels"][RESTARTS]), pod["metadata"]["creationTimestamp"]),
        )
        starts = {int(pod["metadata"]["labels"][RESTARTS]) for pod in pods}
        if start is not None and start not in starts:
            raise InvalidRuntime(
                f"the pods of {run} with {start} restarts before them are gone: JobSet deletes them before it restarts",
                what="start",
                where=run,
                given=start,
                accepted=sorted(starts),
            )
        # Ranks are numbered pod by pod.
        index, local = divmod(rank or 0, _pod_ranks(pods[-1]) if pods else 1)
        of_index = [
            pod
            for pod in pods
            if pod["metadata"]["labels"].get(INDEX_LABEL) == str(index)
            and start in (None, int(pod["metadata"]["labels"][RESTARTS]))
        ]
        text = ""
        if of_index:
            text = self._api.log(of_index[-1]["metadata"]["name"])
        if rank is not None:
            return rank_lines(text, local)
        return "\n".join(filter(None, [text.rstrip("\n"), *map(how_ended, pods)]))[-LOG_BYTES:]

    def log_range(self, run: str, start: int | None = None) -> None:
        """See `Launcher.log_range`."""

    def label(self, run: str, rank: int) -> int | None:
        """See `Launcher.label`: torchrun names every rank."""
        return rank

    def missing_log(self, run: str) -> None:
        """See `Launcher.missing_log`."""

    def log_part(self, run: str, begin: int | None, end: int | None = None) -> LogPart:
        """See `Launcher.log_part`. Each pod has a log of its own."""
        raise InvalidRuntime(
            f"the pods of {run} have a log each: kubectl logs -f --all-containers -l "
            f"jobset.sigs.k8s.io/jobset-name={self._name(run)} -n {self._cluster.kubernetes.namespace} follows them"
        )

    def _body(self, spec: RunSpec) -> Json:
        cluster = self._cluster
        nodes = spec.node_range[1]
        if nodes > 1 and not cluster.queue:
            raise InvalidCluster(
                f"queue is missing for a run on {nodes} nodes: name a LocalQueue; Kueue starts all pods or none",
                what="queue",
                given=nodes,
                accepted="a LocalQueue",
            )
        if spec.srun:
            raise InvalidSpec(
                f"{spec.run}: srun = {list(spec.srun)} needs Slurm; remove it, or name Slurm's file"
            )
        if cluster.cpus < spec.ranks_per_node:
            message = f"slot.cpus = {cluster.cpus}; accepted: {spec.ranks_per_node} (ranks_per_node) or more"
            raise InvalidCluster(message, what="slot.cpus", given=cluster.cpus, accepted=spec.ranks_per_node)
        if spec.priority and spec.priority not in cluster.priorities:
            raise InvalidSpec(
                f"priority = {spec.priority!r}; accepted: {', '.join(sorted(cluster.priorities)) or 'none'}, as "
                "[priorities] of the cluster's file has them",
                what="priority",
                given=spec.priority,
                accepted=sorted(cluster.priorities),
            )
        share = KubernetesCluster(
            slots=nodes,
            image=cluster.image,
            cpus=cluster.cpus,
            memory_bytes=cluster.memory_bytes,
            gpus=spec.gpus_per_node,
            scratch_bytes=cluster.scratch_bytes,
            queue=cluster.queue,
            secret=cluster.secret,
            placing=cluster.kubernetes,
        )
        python = cluster.node_python("python")
        priority = cluster.priorities.get(spec.priority, "")
        return jobset_object(share, spec, self._name(spec.run), python=python, priority=priority)

    def _name(self, run: str) -> str:
        return object_name(self._record.url, run)

    def _place(self, jobset: Mapping[str, Any]) -> str:
        namespace = self._cluster.kubernetes.namespace
        queue = self._cluster.queue
        words = f"JobSet {jobset['metadata']['name']} in namespace {namespace}"
        return f"{words}, queue {queue}" if queue else words

    def _why_suspended(self, jobset: Json) -> str:
        words = [
            f"{condition['type']} {condition['status']}, {_words(condition)}"
            for condition in self._api.queue_conditions(jobset["metadata"]["uid"])
            if (condition["type"] in QUEUED and condition["status"] == "False")
            or (condition["type"] == "Evicted" and condition["status"] == "True")
        ]
        return "; ".join(words) or f"suspended by queue {self._cluster.queue}: no word of Kueue"


def _is_leaving(jobset: Json) -> bool:
    return "deletionTimestamp" in jobset["metadata"]


def _conditions(jobset: Json) -> list[Json]:
    return list(jobset.get("status", {}).get("conditions", []))


def _words(condition: Mapping[str, Any]) -> str:
    return ": ".join(str(condition[name]) for name in ("reason", "message") if condition.get(name))


def _pod_ranks(pod: Json) -> int:
    """Return the ranks of a pod by the file in its command: a later submit may have changed the run's."""
    for container in pod["spec"]["containers"]:
        if container["name"] == RANKS:
            text = container["command"][-1]
            return parse_spec(parse_json_object(text), "the pod's command").ranks_per_node
    return 1


def _grace_s(jobset: Json) -> int:
    (job,) = jobset["spec"]["replicatedJobs"]
    return int(job["template"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])


def _span(pods: Sequence[Json]) -> Span:
    """Return the time of the pods of one start."""
    ends = [_end_us(pod) for pod in pods]
    lasts = None in ends
    return Span(
        begun_us=min(_microseconds(pod["status"]["startTime"]) for pod in pods),
        # A start ends with its last pod.
        ended_us=None if lasts else max(end for end in ends if end is not None),
        nodes=len(pods),
        state="" if lasts else ", ".join(sorted({str(pod["status"]["phase"]) for pod in pods})),
        node_names=tuple(sorted({pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]})),
    )


def _failure_span(failed: Span, met: Sequence[Span]) -> Span:
    """Return the time of pods that failed, up to the last event of the start within it."""
    ends_us = [span.ended_us or 0 for span in met if _holds(failed, span)]
    return replace(failed, ended_us=max([failed.ended_us or 0, *ends_us]))


def _holds(span: Span, other: Span) -> bool:
    return span.begun_us <= other.begun_us <= (span.ended_us or 2**63)


def _end_us(pod: Json) -> int | None:
    """Return when a pod's container ended; None while it runs.

    A pod whose node was lost may have no such time: then its last condition counts.
    """
    status = pod["status"]
    for container in status.get("containerStatuses", []):
        ended = container.get("state", {}).get("terminated")
        if container["name"] == RANKS and ended and ended.get("finishedAt"):
            return _microseconds(ended["finishedAt"])
    if status.get("phase") not in ("Failed", "Succeeded"):
        return None
    times = [
        one["lastTransitionTime"] for one in status.get("conditions", []) if one.get("lastTransitionTime")
    ]
    # The last change of a condition is the nearest time that the server has.
    return max(map(_microseconds, [status["startTime"], *times]))


def _microseconds(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1e6)
