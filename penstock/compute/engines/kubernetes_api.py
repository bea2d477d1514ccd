"""Call Kubernetes' API server through the official client: Jobs, pods, and why they wait, as plain JSON."""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from loader.errors import EngineUnreachable, InvalidCluster, MissingDependency

from ...text import clean

ANSWER_S = (10.0, 60.0)
"""Timeouts for connecting and for an answer, in s."""
JOB_LABEL = "batch.kubernetes.io/job-name"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
TAIL_LINES = 1000
LOG_BYTES = 64 * 2**10
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
_JOBSETS = {"group": "jobset.x-k8s.io", "version": "v1alpha2", "plural": "jobsets"}
_KUEUE = ("v1beta2", "v1beta1")
_SILENT = frozenset({0, 408, 429})
"""HTTP statuses that mean no answer, as do 500 and above; 0: the client's TLS error."""
_OF_THE_USER = frozenset({401, 403})
"""HTTP statuses that refuse the caller; temporary if an earlier request succeeded."""

Json = dict[str, Any]


class KubernetesApi:
    """The API server of a kubeconfig context, or this pod's own, in one namespace.

    Methods raise EngineUnreachable without a response, InvalidCluster for a refusal.
    """

    def __init__(self, context: str, namespace: str) -> None:
        """Find server and credentials. Raises: InvalidCluster; MissingDependency."""
        try:
            from kubernetes import client, config
        except ImportError as error:
            raise MissingDependency(
                "clusters of Kubernetes need its client: pip install 'penstock-data[k8s]'", what="kubernetes"
            ) from error
        self._namespace = namespace
        self._heard = False
        self._config_error = config.ConfigException
        self._refusal = client.ApiException
        configuration = client.Configuration()
        try:
            if context or not _inside():
                config.load_kube_config(
                    os.environ.get("KUBECONFIG"),  # the client reads it only once, at import
                    context=context or None,
                    client_configuration=configuration,
                    persist_config=False,
                )
            else:
                config.load_incluster_config(client_configuration=configuration)
        except (config.ConfigException, OSError) as error:
            raise InvalidCluster(
                f"no cluster of Kubernetes: {error}; set KUBECONFIG, or kubernetes.context of the cluster's file",
                what="kubernetes.context",
            ) from error
        configuration.retries = False  # the waiting process retries, not the client
        self._client = client.ApiClient(configuration=configuration)
        self._batch = client.BatchV1Api(self._client)
        self._core = client.CoreV1Api(self._client)
        self._objects = client.CustomObjectsApi(self._client)

    def create_job(self, body: Json) -> bool:
        """Create a Job; return False if its name exists."""
        create = self._batch.create_namespaced_job
        return self._ask(create, body=body, field_validation="Strict", silent=(409,)) is not None

    def job(self, name: str) -> Json | None:
        """Return a Job, or None."""
        return self._json(self._batch.read_namespaced_job, name=name, silent=(404,))

    def delete_job(self, name: str, uid: str) -> None:
        """Start deleting a Job, which outlives its last pod. uid: spares a later Job of that name."""
        body = {"propagationPolicy": "Foreground", "preconditions": {"uid": uid}}
        self._ask(self._batch.delete_namespaced_job, name=name, body=body, silent=(404, 409))

    def pods(self, job: str, *, element: int | None = None, phase: str = "") -> list[Json]:
        """Return a Job's pods. element, phase: filters."""
        labels = f"{JOB_LABEL}={job}" + ("" if element is None else f",{INDEX_LABEL}={element}")
        chosen: dict[str, Any] = {"field_selector": f"status.phase={phase}"} if phase else {}
        return self._pods(labels, **chosen)

    def jobset_pods(self, name: str) -> list[Json]:
        return self._pods(f"{JOBSET_LABEL}={name}")

    def _pods(self, labels: str, **chosen: Any) -> list[Json]:
        pods = self._json(self._core.list_namespaced_pod, label_selector=labels, **chosen)
        return list(pods["items"]) if pods else []

    def create_jobset(self, body: Json, *, dry_run: bool = False) -> Json | None:
        """Create a JobSet; return it, or None if its name exists. dry_run: only check it."""
        return self._json(
            self._objects.create_namespaced_custom_object,
            **_JOBSETS,
            body=body,
            field_validation="Strict",
            silent=(409,),
            **({"dry_run": "All"} if dry_run else {}),
        )

    def jobset(self, name: str) -> Json | None:
        """Return a JobSet, or None."""
        return self._json(self._objects.get_namespaced_custom_object, **_JOBSETS, name=name, silent=(404,))

    def delete_jobset(self, name: str, uid: str) -> None:
        """Start deleting a JobSet, which outlives its last pod. uid: spares a later one of that name."""
        body = {"propagationPolicy": "Foreground", "preconditions": {"uid": uid}}
        self._ask(
            self._objects.delete_namespaced_custom_object,
            **_JOBSETS,
            name=name,
            body=body,
            silent=(404, 409),
        )

    def log(self, pod: str) -> str:
        """Return the last 64 KiB of a pod's output; "" if it has not started or is deleted."""
        read = self._core.read_namespaced_pod_log
        text = self._ask(read, name=pod, tail_lines=TAIL_LINES, silent=(400, 404))
        return (text or b"")[-LOG_BYTES:].decode(errors="replace")

    def nodes(self) -> list[Json]:
        nodes = self._json(lambda namespace, **how: self._core.list_node(**how))
        return list(nodes["items"]) if nodes else []

    def set_condition(self, node: str, condition: Json) -> None:
        """Set a condition in a node's status."""

        def patch(namespace: str, **how: Any) -> Any:
            kind = "application/strategic-merge-patch+json"  # conditions are merged by their type
            return self._core.patch_node_status(_content_type=kind, **how)

        self._ask(patch, name=node, body={"status": {"conditions": [condition]}})

    def queued(self, uid: str) -> str:
        """Return why Kueue delays a Job, or ""."""
        messages = (
            condition["message"]
            for condition in self.queue_conditions(uid)
            if condition["status"] == "False" and condition.get("message")
        )
        return str(next(messages, ""))

    def queue_conditions(self, uid: str) -> list[Json]:
        """Return the conditions of the Workload that Kueue keeps of an object; [] without one, or without the right."""
        for version in _KUEUE:
            workloads = self._json(
                self._objects.list_namespaced_custom_object,
                group="kueue.x-k8s.io",
                version=version,
                plural="workloads",
                label_selector=f"kueue.x-k8s.io/job-uid={uid}",
                silent=(403, 404),
            )
            for workload in (workloads or {}).get("items", []):
                return list(workload.get("status", {}).get("conditions", []))
        return []

    def close(self) -> None:
        self._client.close()

    def _json(
        self, call: Callable[..., Any], *, silent: tuple[int, ...] = (), **arguments: Any
    ) -> Json | None:
        answer = self._ask(call, silent=silent, **arguments)
        if answer is None:
            return None
        try:
            return dict(json.loads(answer))
        except ValueError as error:  # sent by something between here and the server
            raise EngineUnreachable(
                f"the API server's answer is not JSON: {error}", what="JSON", where="API server"
            ) from error

    def _ask(
        self, call: Callable[..., Any], *, silent: tuple[int, ...] = (), **arguments: Any
    ) -> bytes | None:
        from urllib3.exceptions import HTTPError

        try:
            response = call(
                namespace=self._namespace, **arguments, _preload_content=False, _request_timeout=ANSWER_S
            )
            body = bytes(response.data)
        except self._refusal as error:
            self._note_refusal(error, silent)
            return None
        except (HTTPError, OSError, self._config_error) as error:  # the last: while renewing credentials
            raise EngineUnreachable(
                f"the API server of Kubernetes does not answer: {type(error).__name__}: {error}",
                what="answer",
                where="API server",
                given=type(error).__name__,
            ) from error
        self._heard = True
        return body

    def _note_refusal(self, error: Any, silent: tuple[int, ...]) -> None:
        status = error.status or 0
        answer = f"Kubernetes answers {status}: {_message(error)}"
        if status in silent:
            self._heard = True
        elif status in _SILENT or status >= 500 or (status in _OF_THE_USER and self._heard):
            raise EngineUnreachable(answer, what="answer", where="API server", given=status) from error
        else:
            hint = "see image, queue, secret, slot and kubernetes of the cluster"
            if status == 404:
                hint = "is JobSet installed, and is there a namespace of this name?"
            raise InvalidCluster(
                f"{answer}; {hint}", what="request", where="API server", given=status
            ) from error


def is_true(conditioned: Mapping[str, Any], *kinds: str) -> bool:
    """Return whether an object has one of these conditions."""
    conditions = conditioned.get("status", {}).get("conditions", [])
    return any(one["type"] in kinds and one["status"] == "True" for one in conditions)


def why_pending(pod: Mapping[str, Any]) -> str:
    """Return Kubernetes' reason why a pod does not run."""
    status = pod.get("status", {})
    for container in status.get("containerStatuses", []):
        waiting = container.get("state", {}).get("waiting")
        if waiting:
            return _words(waiting)
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return _words(condition)
    return "Pending"


def how_ended(pod: Mapping[str, Any]) -> str:
    """Return how and where a pod ended, or "" if it has not."""
    status = pod.get("status", {})
    node = pod.get("spec", {}).get("nodeName", "no node")
    for container in status.get("containerStatuses", []):
        ended = container.get("state", {}).get("terminated")
        if ended:
            return f"{pod['metadata']['name']} on {node} ended with {ended['exitCode']}: {_words(ended)}"
    if status.get("phase") == "Failed":
        return f"{pod['metadata']['name']} on {node} failed: {_words(status)}"
    return ""


def _words(condition: Mapping[str, Any]) -> str:
    return (
        ": ".join(clean(condition[name]) for name in ("reason", "message") if condition.get(name))
        or "no reason"
    )


def _message(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason)


def _inside() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ
