"""JobSets and Kueue's words on the emulated Kubernetes, held to the models that kubeflow-trainer-api publishes.

The controller does what JobSet's failure policy says. Tests admit and evict as Kueue would. No cluster
was asked: it is an emulator.
"""

import copy
import re
from dataclasses import dataclass, field
from typing import Any

from .kubernetes_api import Cluster, Json, job_error

NAME, RESTARTS = "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/restart-attempt"
REASONS = {
    "BackoffLimitExceeded",
    "DeadlineExceeded",
    "FailedIndexes",
    "MaxFailedIndexesExceeded",
    "PodFailurePolicy",
}
RULE = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
ACTIONS = {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"}


@dataclass(slots=True)
class JobSetCluster(Cluster):
    """A cluster with JobSet's controller."""

    jobsets: dict[str, Json] = field(default_factory=dict)

    def create(self, body: Json, *, dry_run: bool = False) -> tuple[int, Json]:
        if body["kind"] != "JobSet":
            return super(JobSetCluster, self).create(body, dry_run=dry_run)
        name = body["metadata"]["name"]
        if wrong := wrong_in_jobset(body):
            return 422, {"message": wrong}
        if name in self.jobsets:
            return 409, {"message": f"jobsets.jobset.x-k8s.io {name} already exists"}
        body["metadata"]["uid"] = f"uid-{next(self.numbers)}"
        body["status"] = {"conditions": [], "restarts": 0, "restartsCountTowardsMax": 0}
        if not dry_run:
            self.jobsets[name] = body
        return 201, body

    def found(self, path: str) -> Json | None:
        name = path.rpartition("/")[2]
        return (self.jobsets if "/jobsets/" in path else self.jobs).get(name)

    def admit(self, name: str) -> None:
        """Let a JobSet run, as Kueue does."""
        with self.lock:
            self.jobsets[name]["spec"]["suspend"] = False

    def evict(self, name: str) -> None:
        """Take its nodes away again, as Kueue does for a run of a higher priority."""
        with self.lock:
            self.jobsets[name]["spec"]["suspend"] = True

    def work(self) -> None:
        with self.lock:
            super(JobSetCluster, self).work()
            for name, jobset in list(self.jobsets.items()):
                self._drive_jobset(name, jobset)

    def resolved(self, value: str) -> str:
        return re.sub(r"[a-z0-9-]+-0-0\.[a-z0-9-]+(?=:)", "127.0.0.1", value)

    def _drive_jobset(self, name: str, jobset: Json) -> None:
        (replicated,) = jobset["spec"]["replicatedJobs"]
        job_name, status = f"{name}-{replicated['name']}-0", jobset["status"]
        job = self.jobs.get(job_name)
        if "deletionTimestamp" in jobset["metadata"]:
            if job is None:
                del self.jobsets[name]
            else:
                job["metadata"].setdefault("deletionTimestamp", "now")
            return
        if any(one["status"] == "True" for one in status["conditions"]):
            return
        if job is None:
            self._create_job(jobset, job_name, replicated["template"]["spec"])
            return
        job["spec"]["suspend"] = jobset["spec"]["suspend"]
        for condition in job["status"]["conditions"]:
            if condition["type"] == "Complete":
                status["conditions"] = [{"type": "Completed", "status": "True", "reason": "AllJobsCompleted"}]
            elif job["metadata"]["labels"][RESTARTS] == str(status["restarts"]):
                self._fail(jobset, condition["reason"], condition["message"])
            else:
                job["metadata"].setdefault("deletionTimestamp", "now")

    def _create_job(self, jobset: Json, job_name: str, spec: Json) -> None:
        own = {NAME: jobset["metadata"]["name"], RESTARTS: str(jobset["status"]["restarts"])}
        spec = copy.deepcopy(spec) | {"suspend": jobset["spec"]["suspend"]}
        metadata = spec["template"].setdefault("metadata", {})
        metadata["labels"] = metadata.get("labels", {}) | own
        metadata["annotations"] = metadata.get("annotations", {}) | own
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": job_name, "labels": own},
            "spec": spec,
        }
        status, answer = super(JobSetCluster, self).create(body)
        assert status == 201, answer

    def _fail(self, jobset: Json, reason: str, message: str) -> None:
        policy, status = jobset["spec"]["failurePolicy"], jobset["status"]
        rules = [
            rule
            for rule in policy["rules"]
            if reason in rule.get("onJobFailureReasons", [reason])
            and any(re.search(one, message) for one in rule.get("onJobFailureMessagePatterns", [""]))
        ]
        action = rules[0]["action"] if rules else "RestartJobSet"
        if action == "RestartJobSet" and status["restartsCountTowardsMax"] < policy["maxRestarts"]:
            status["restartsCountTowardsMax"] += 1
        elif action != "RestartJobSetAndIgnoreMaxRestarts":
            words = {
                "reason": "ReachedMaxRestarts",
                "message": "jobset failed due to reaching max number of restarts",
            }
            if action == "FailJobSet":
                words = {
                    "reason": "FailJobSetFailurePolicyAction",
                    "message": f"jobset failed due to FailJobSet failure policy action: {message}",
                }
            status["conditions"] = [{"type": "Failed", "status": "True", **words}]
            return
        status["restarts"] += 1


def wrong_in_jobset(body: Json) -> str:
    """Return why the server refuses a JobSet, "" for one that it takes."""
    from kubeflow_trainer_api.models import JobsetV1alpha2JobSet
    from pydantic import ValidationError

    try:
        unknown = _unknown(body, JobsetV1alpha2JobSet.from_dict(body).to_dict(), "JobSet")
    except ValidationError as error:
        return str(error)
    wrong = [f"{path} is unknown" for path in unknown]
    rules = body["spec"]["failurePolicy"]["rules"]
    wrong += [rule["action"] for rule in rules if rule["action"] not in ACTIONS]
    wrong += [
        reason for rule in rules for reason in rule.get("onJobFailureReasons", []) if reason not in REASONS
    ]
    wrong += [
        rule["name"]
        for rule in rules
        if not re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"])
    ]
    for replicated in body["spec"]["replicatedJobs"]:
        spec, name = replicated["template"]["spec"], body["metadata"]["name"]
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": f"{name}-{replicated['name']}-0"},
            "spec": spec,
        }
        wrong += filter(None, [job_error(job)])
        host = f"{name}-{replicated['name']}-0-{spec['completions'] - 1}"
        if len(host) > 63 or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", host):
            wrong.append(f"{host} is not a host name")
    return "; ".join(wrong)


def _unknown(body: Any, known: Any, path: str) -> list[str]:
    """Return the keys of an object that its model dropped."""
    if isinstance(body, dict) and isinstance(known, dict):
        return [
            one
            for name, value in body.items()
            for one in (
                [f"{path}.{name}"] if name not in known else _unknown(value, known[name], f"{path}.{name}")
            )
        ]
    if isinstance(body, list) and isinstance(known, list):
        return [one for n, value in enumerate(body) for one in _unknown(value, known[n], f"{path}[{n}]")]
    return []
