"""An API server of Kubernetes with its Job controller, for tests marked `k8s`: pods are processes of this machine.

It knows what penstock asks of one. Objects are held to the schemas of release 1.37, unknown keys refused, and to rules
of the real server that schemas miss. No cluster was asked: it is an emulator.
"""

import itertools
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from penstock.compute.process_groups import end_group, has_ended

RELEASE = "1.37"
Json = dict[str, Any]


@dataclass(slots=True)
class Pod:
    """A pod, whose container is a process."""

    body: Json
    process: "subprocess.Popen[bytes] | None" = None
    log: Path | None = None
    told_s: float = 0.0


@dataclass(slots=True)
class Cluster:
    """Objects of one namespace, and the controller that works at them. folder: of logs."""

    folder: Path
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    jobs: dict[str, Json] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    workloads: list[Json] = field(default_factory=list)
    nodes: dict[str, Json] = field(default_factory=dict)
    requests: set[tuple[str, str]] = field(default_factory=set)
    """Methods and paths that were asked for."""
    free: int = 100
    """Pods that fit on the nodes."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def create(self, body: Json, *, dry_run: bool = False) -> tuple[int, Json]:
        if body["kind"] != "Job":
            return 404, {"message": "the server could not find the requested resource"}
        if wrong := job_error(body):
            return 422, {"message": wrong}
        name = body["metadata"]["name"]
        if name in self.jobs:
            return 409, {"message": f"jobs.batch {name} already exists"}
        body["metadata"]["uid"] = f"uid-{next(self.numbers)}"
        body["status"] = {"conditions": []}
        self.jobs[name] = body
        return 201, body

    def found(self, path: str) -> Json | None:
        """Return the object of a path."""
        return self.jobs.get(path.rpartition("/")[2])

    def delete(self, path: str, body: Json) -> tuple[int, Json]:
        job = self.found(path)
        if job is None:
            return 404, {"message": f"{path} not found"}
        if body.get("preconditions", {}).get("uid", job["metadata"]["uid"]) != job["metadata"]["uid"]:
            return 409, {"message": "the uid is another"}
        job["metadata"].setdefault("deletionTimestamp", "now")
        return 200, job

    def of(self, name: str) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.body["metadata"]["labels"][JOB] == name]

    def kill(self, evicted: bool = False) -> None:
        """End a pod that runs: as the kernel does, or as whoever drains its node."""
        pod = next(
            one for one in self.pods.values() if one.process is not None and not has_ended(one.process)
        )
        if evicted:
            condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
            pod.body["status"]["conditions"].append(condition)
            self.tell(pod)
        else:
            os.killpg(pod.process.pid, signal.SIGKILL)

    def tell(self, pod: Pod) -> None:
        """SIGTERM, and SIGKILL after the grace period."""
        if pod.process is None or has_ended(pod.process):
            return
        if not pod.told_s:
            pod.told_s = time.monotonic()
            pod.process.terminate()
        elif time.monotonic() - pod.told_s > pod.body["spec"]["terminationGracePeriodSeconds"]:
            os.killpg(pod.process.pid, signal.SIGKILL)

    def work(self) -> None:
        """What the controllers do, once."""
        with self.lock:
            for name, job in list(self.jobs.items()):
                for pod in self.of(name):
                    self._settle(pod)
                if "deletionTimestamp" in job["metadata"]:
                    if self._remove_pods(name):
                        del self.jobs[name]
                elif job["spec"].get("suspend"):
                    self._remove_pods(name)
                elif not job["status"]["conditions"]:
                    self._drive(name, job)

    def stop(self) -> None:
        """End every pod."""
        for pod in self.pods.values():
            if pod.process is not None:
                end_group(pod.process)

    def _settle(self, pod: Pod) -> None:
        status = pod.body["status"]
        if pod.process is None or not has_ended(pod.process) or status["phase"] != "Running":
            return
        code = end_group(pod.process)  # with what of the container is left
        code = 128 - code if code < 0 else code
        status["phase"] = "Failed" if code else "Succeeded"
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": now()}
        (container,) = pod.body["spec"]["containers"]
        status["containerStatuses"] = [{"name": container["name"], "state": {"terminated": ended}}]

    def _remove_pods(self, name: str) -> bool:
        """End a Job's pods; return whether all are gone."""
        pods = self.of(name)
        for pod in pods:
            self.tell(pod)
        if not all(pod.process is None or has_ended(pod.process) for pod in pods):
            return False
        for pod in pods:
            self._settle(pod)
            del self.pods[pod.body["metadata"]["name"]]
        return True

    def _drive(self, name: str, job: Json) -> None:
        spec, status, pods = job["spec"], job["status"], self.of(name)
        begun_s = status.setdefault("begun_s", time.monotonic())
        late = time.monotonic() - begun_s > spec.get("activeDeadlineSeconds", float("inf"))
        failing = status.get("failing") or self._fails_job(spec, pods) or (late and ("DeadlineExceeded", ""))
        if failing:
            status["failing"] = (
                failing  # the real one has the condition FailureTarget until the last pod has ended
            )
            reason, message = failing
            for pod in pods:
                self.tell(pod)
            if all(pod.process is None or has_ended(pod.process) for pod in pods):
                status["conditions"] = [
                    {"type": "Failed", "status": "True", "reason": reason, "message": message}
                ]
            return
        done, failed, active = set(), set(), list[Pod]()
        for index in range(spec["completions"]):
            mine = [pod for pod in pods if pod.body["metadata"]["labels"][INDEX] == str(index)]
            live = [pod for pod in mine if pod.body["status"]["phase"] in ("Pending", "Running")]
            active += live
            if any(pod.body["status"]["phase"] == "Succeeded" for pod in mine):
                done.add(index)
            elif any(map(self._fails_index(spec), mine)) or (
                sum(map(counts, mine)) > spec.get("backoffLimitPerIndex", len(mine))
            ):
                failed.add(index)
            elif not live and len(active) < spec["parallelism"]:
                active.append(self._begin(name, job, index))
        for pod in active:
            if pod.body["status"]["phase"] == "Pending":
                self._schedule(pod, job)
        ready = sum(pod.body["status"]["phase"] == "Running" for pod in active)
        status.update(
            active=len(active), ready=ready, completedIndexes=indexes(done), failedIndexes=indexes(failed)
        )
        if len(done) + len(failed) == spec["completions"]:
            status["conditions"] = [{"type": "Failed" if failed else "Complete", "status": "True"}]

    @staticmethod
    def _fails_job(spec: Json, pods: list[Pod]) -> tuple[str, str] | None:
        """Return reason and message of a Job that fails as a whole; the policy goes before the limit."""
        ended = [pod for pod in pods if pod.body["status"]["phase"] == "Failed"]
        for number, rule in enumerate(spec["podFailurePolicy"]["rules"]):
            codes = rule.get("onExitCodes", {}).get("values", [])
            kinds = {one["type"] for one in rule.get("onPodConditions", [])}
            for pod in ended if rule["action"] == "FailJob" else []:
                conditions = {one["type"] for one in pod.body["status"]["conditions"]}
                where, at = (
                    f"default/{pod.body['metadata']['name']}",
                    f"matching FailJob rule at index {number}",
                )
                if kinds & conditions:
                    return "PodFailurePolicy", f"Pod {where} has condition DisruptionTarget {at}"
                if exit_code(pod) in codes:
                    code = f"failed with exit code {exit_code(pod)}"
                    container = spec["template"]["spec"]["containers"][0]["name"]
                    return "PodFailurePolicy", f"Container {container} for pod {where} {code} {at}"
        limited = "backoffLimit" in spec and sum(map(counts, ended)) > spec["backoffLimit"]
        return ("BackoffLimitExceeded", "Job has reached the specified backoff limit") if limited else None

    @staticmethod
    def _fails_index(spec: Json) -> Any:
        rules = [rule for rule in spec["podFailurePolicy"]["rules"] if rule["action"] == "FailIndex"]
        codes = {code for rule in rules for code in rule["onExitCodes"]["values"]}
        return lambda pod: exit_code(pod) in codes

    def _begin(self, name: str, job: Json, index: int) -> Pod:
        number = next(self.numbers)
        own = job["spec"]["template"].get("metadata", {})
        metadata = {
            "name": f"{name}-{index}-{number}",
            "labels": {**own.get("labels", {}), JOB: name, INDEX: str(index)},
            "annotations": own.get("annotations", {}),
            "creationTimestamp": f"{number:09d}",
        }
        spec = {**job["spec"]["template"]["spec"], "nodeName": f"node-{number % 3}"}
        pod = Pod({"metadata": metadata, "spec": spec, "status": {"phase": "Pending", "conditions": []}})
        self.pods[metadata["name"]] = pod
        return pod

    def _schedule(self, pod: Pod, job: Json) -> None:
        running = sum(one.body["status"]["phase"] == "Running" for one in self.pods.values())
        if running >= self.free:
            words = {"reason": "Unschedulable", "message": "0/3 nodes are available: 3 Insufficient cpu."}
            pod.body["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", **words}]
            return
        (container,) = job["spec"]["template"]["spec"]["containers"]
        index = pod.body["metadata"]["labels"][INDEX]
        variables = {"PATH": os.environ["PATH"], "JOB_COMPLETION_INDEX": index}
        for one in container["env"]:
            source = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            if annotation := re.fullmatch(r"metadata\.annotations\['(.+)'\]", source):
                variables[one["name"]] = pod.body["metadata"]["annotations"][annotation[1]]
            else:
                variables[one["name"]] = (
                    pod.body["spec"]["nodeName"] if source == "spec.nodeName" else self.resolved(one["value"])
                )
        for one in container.get("envFrom", ()):
            variables |= self.secrets[one["secretRef"]["name"]]
        command = [expand_word(word, variables) for word in container["command"]]
        pod.log = self.folder / f"{pod.body['metadata']['name']}.log"
        with pod.log.open("wb") as log:
            pod.process = subprocess.Popen(
                command,
                env=variables,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        pod.body["status"] |= {"phase": "Running", "conditions": [], "startTime": now()}

    def resolved(self, value: str) -> str:
        """Return a variable's value; headless services resolve to this machine."""
        return value


JOB, INDEX = "batch.kubernetes.io/job-name", "batch.kubernetes.io/job-completion-index"


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def expand_word(word: str, variables: dict[str, str]) -> str:
    """Return a word of a command as Kubernetes makes it: $(NAME) by its value, $$ as $."""

    def one(found: "re.Match[str]") -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\((\w+)\)", one, word)


def exit_code(pod: Pod) -> int | None:
    for one in pod.body["status"].get("containerStatuses", ()):
        return int(one["state"]["terminated"]["exitCode"])
    return None


def counts(pod: Pod) -> bool:
    """Return whether a pod's end counts against its index: no eviction does, as the policy asks."""
    evicted = any(one["type"] == "DisruptionTarget" for one in pod.body["status"]["conditions"])
    return pod.body["status"]["phase"] == "Failed" and not evicted


def indexes(numbers: set[int]) -> str:
    return ",".join(map(str, sorted(numbers)))


def job_error(body: Json) -> str:
    """Return why the server refuses a Job, "" for one that it takes."""
    import kubernetes_validate

    try:
        kubernetes_validate.validate(body, RELEASE, strict=True)
    except kubernetes_validate.ValidationError as error:
        return str(error)
    spec = body["spec"]
    pod = spec["template"]["spec"]
    rules = {
        "an Indexed Job needs completions": spec.get("completionMode") != "Indexed"
        or spec.get("completions"),
        "backoffLimitPerIndex needs Indexed": spec.get("completionMode") == "Indexed",
        "FailIndex needs backoffLimitPerIndex": "backoffLimitPerIndex" in spec
        or all(rule["action"] != "FailIndex" for rule in spec["podFailurePolicy"]["rules"]),
        "podFailurePolicy needs restartPolicy Never": pod.get("restartPolicy") == "Never",
        "podReplacementPolicy of a podFailurePolicy is Failed": spec.get("podReplacementPolicy") == "Failed",
        "completions is at most 100000 with backoffLimitPerIndex": spec["completions"] <= 100_000,
        "a name has at most 63 characters": len(body["metadata"]["name"]) <= 63,
        "a container needs an image": all(one.get("image") for one in pod["containers"]),
    }
    return "; ".join(what for what, holds in rules.items() if not holds)


class _Handler(BaseHTTPRequestHandler):
    cluster: Cluster

    def parse_request(self) -> bool:
        whole = super().parse_request()
        if whole:
            self.cluster.requests.add((self.command, urlsplit(self.path).path))
        return whole

    def do_POST(self) -> None:
        with self.cluster.lock:
            self._answer(*self.cluster.create(self._body(), dry_run="dryRun=All" in self.path))

    def do_PATCH(self) -> None:
        """Merge conditions of a node's status by their type; another kind of patch is refused."""
        name, part = urlsplit(self.path).path.split("/")[-2:]
        with self.cluster.lock:
            node = self.cluster.nodes.get(name)
            if part != "status" or self.headers["Content-Type"] != "application/strategic-merge-patch+json":
                self._answer(415, {"message": "the body of the request was in an unknown format"})
            elif node is None:
                self._answer(404, {"message": f'nodes "{name}" not found'})
            else:
                conditions = {one["type"]: one for one in node["status"]["conditions"]}
                for one in self._body()["status"]["conditions"]:
                    conditions[one["type"]] = {**conditions.get(one["type"], {}), **one}
                node["status"]["conditions"] = list(conditions.values())
                self._answer(200, node)

    def do_DELETE(self) -> None:
        with self.cluster.lock:
            self._answer(*self.cluster.delete(self.path.partition("?")[0], self._body()))

    def do_GET(self) -> None:
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        with self.cluster.lock:
            if path.endswith("/log"):
                pod = self.cluster.pods.get(path.split("/")[-2])
                text = pod.log.read_bytes() if pod is not None and pod.log is not None else None
                self._raw(*((404, b"{}") if text is None else (200, text)))
            elif "/jobs/" in path or "/jobsets/" in path:
                job = self.cluster.found(path)
                self._answer(200 if job else 404, job or {"message": "not found"})
            elif path == "/api/v1/nodes":
                self._answer(200, {"items": list(self.cluster.nodes.values())})
            elif path.endswith("/workloads"):
                self._answer(200, {"items": self.cluster.workloads})
            else:
                wanted = dict(one.split("=") for one in query.get("labelSelector", [""])[0].split(",") if one)
                phase = query.get("fieldSelector", ["status.phase="])[0].removeprefix("status.phase=")
                self._answer(200, {"items": [pod.body for pod in self._pods(wanted, phase)]})

    def _pods(self, wanted: dict[str, str], phase: str) -> list[Pod]:
        return [
            pod
            for pod in self.cluster.pods.values()
            if wanted.items() <= pod.body["metadata"]["labels"].items()
            and phase in ("", pod.body["status"]["phase"])
        ]

    def _body(self) -> Json:
        found: Json = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        return found

    def _answer(self, status: int, body: Json) -> None:
        self._raw(status, json.dumps(body).encode())

    def _raw(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class Server:
    """The API server, which a test may take away for a while."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._handler = type("Handler", (_Handler,), {"cluster": cluster})
        self._http: ThreadingHTTPServer | None = None
        self.port = 0
        self._ends = threading.Event()
        self._controller = threading.Thread(target=self._control)

    def start(self) -> None:
        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler)
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        if not self._controller.is_alive():
            self._controller.start()

    def away(self) -> None:
        """End the server; pods and the controller go on."""
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None

    def stop(self) -> None:
        self._ends.set()
        self._controller.join()
        self.away()
        self.cluster.stop()

    def _control(self) -> None:
        while not self._ends.wait(0.1):
            self.cluster.work()


def kubeconfig(port: int) -> str:
    """Return the text of a kubeconfig for it."""
    cluster = {"name": "tests", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    user = {"name": "tests", "user": {"token": "planted-token-of-the-tests"}}
    context = {"name": "tests", "context": {"cluster": "tests", "user": "tests"}}
    told = {"apiVersion": "v1", "kind": "Config", "current-context": "tests"}
    return json.dumps({**told, "clusters": [cluster], "users": [user], "contexts": [context]})


@contextmanager
def kubernetes(folder: Path, kind: type[Cluster] = Cluster) -> Iterator[Server]:
    """Yield a fresh server; it ends with the block, and so do its pods. kind: which controllers it has."""
    server = Server(kind(folder))
    server.start()
    try:
        yield server
    finally:
        server.stop()
