"""Ray as an engine, through its REST interface: an attempt is a Ray job of the same name, whose tasks are runners."""

import json
import os
import re
import shlex
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

from loader.errors import EngineUnreachable, InvalidCluster
from loader.redaction import redact

from . import ray_driver
from .engine import AttemptState, AttemptStatus
from .ray_element import LINE, LOG_BYTES

ANSWER_S = 30.0
"""Timeout for an answer, in s."""
CANCEL_S = 120.0
"""Longest wait for a stopped job to end, in s."""
END_S = 20
"""Seconds that Ray gives a driver to end its runners."""
_STATES: Mapping[str, AttemptState] = {
    "PENDING": "waiting",
    "RUNNING": "running",
    "STOPPED": "ended",
    "SUCCEEDED": "ended",
    "FAILED": "ended",
}
"""Ray's status of a job, that is of its driver -> state of an attempt."""


class RayEngine:
    """Runs attempts on one Ray cluster."""

    poll_s = 5.0

    def __init__(
        self,
        address: str,
        *,
        slots: int,
        cpus: int,
        memory_bytes: int = 0,
        gpus: int = 0,
        gpu_type: str = "",
        environment: str = "",
    ) -> None:
        """Connect to nothing yet: each request reads the token where Ray's own tools do.

        address: URL of the head's dashboard, such as "http://head:8265".
        environment: file of NAME=value lines on nodes. gpu_type: Ray's name, such as "A100"; "": any.
        """
        self._address = address.rstrip("/")
        self._facts = {
            "slots": slots,
            "cpus": cpus,
            "memory_bytes": memory_bytes,
            "gpus": gpus,
            "gpu_type": gpu_type,
            "environment": environment,
        }

    def submit(self, name: str, runner: Sequence[str], n_blocks: int, final: Sequence[int] = (0,)) -> None:
        """See `Engine.submit`. The Ray job contains no secrets; nodes supply them."""
        settings = json.dumps({"runner": [*runner], "n_blocks": n_blocks, "final": [*final], **self._facts})
        body = {
            "submission_id": name,
            "entrypoint": shlex.join([runner[0], "-m", ray_driver.__name__, settings]),
            "runtime_env": {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(END_S)}},
        }
        try:
            self._request("POST", "/api/jobs/", body)
        except (EngineUnreachable, InvalidCluster):
            if not self.find(name):  # Ray refuses a second submission of a name
                raise

    def find(self, name: str) -> bool:
        return self._job(name) is not None

    def status(self, name: str) -> AttemptStatus:
        job = self._job(name)
        if job is None:
            return AttemptStatus(state="ended", reason="the cluster does not know it: its head began anew")
        state = _STATES.get(job["status"], "unknown")
        place = f"Ray job {redact(self._address)}/#/jobs/{job.get('job_id') or name}"
        if state == "ended":
            return AttemptStatus(state="ended", place=place)
        counts = self._counts(job.get("job_id") or "")
        running = counts.get("RUNNING", 0)
        waiting = 0
        for task_state, n_tasks in counts.items():
            if task_state.startswith(("PENDING", "SUBMITTED")):
                waiting += n_tasks
        reason = ""
        if waiting or not running:
            reason = self._free(waiting)
        # The driver itself waits: Ray's message on it is closer to the cause than free slots.
        if state == "waiting":
            reason = str(job.get("message") or reason)
        # The tasks decide, not the driver: its runners may still wait.
        if running:
            state = "running"
        elif state != "unknown":
            state = "waiting"
        return AttemptStatus(
            state=state,
            reason=reason,
            waiting=waiting,
            running=running,
            place=place,
        )

    def cancel(self, name: str) -> None:
        """See `Engine.cancel`. Ray sends SIGTERM to the driver, which waits for its runners."""
        until_s = time.monotonic() + CANCEL_S
        while (job := self._job(name)) is not None and _STATES.get(job["status"]) != "ended":
            self._request("POST", f"/api/jobs/{name}/stop")
            if time.monotonic() > until_s:
                raise EngineUnreachable(
                    f"{name} has not ended after {CANCEL_S:.0f} s; cancel again", what=name, accepted=CANCEL_S
                )
            time.sleep(0.5)

    def withdraw(self, name: str) -> None:
        """See `Engine.withdraw`."""

    def logs(self, name: str, element: int) -> str:
        """See `Engine.logs`: output of failed runners, or of a driver that started none."""
        text = str((self._request("GET", f"/api/jobs/{name}/logs") or {}).get("logs", ""))
        lines = [
            match[2] for line in text.splitlines() if (match := LINE.match(line)) and int(match[1]) == element
        ]
        others = [line for line in text.splitlines() if not LINE.match(line)]
        return "\n".join(lines or others)[-LOG_BYTES:]

    def close(self) -> None:
        """See `Engine.close`."""

    def _job(self, name: str) -> dict[str, Any] | None:
        """Return Ray's record of a job; None if the cluster has none of this name."""
        job: dict[str, Any] | None = self._request("GET", f"/api/jobs/{name}")
        return job

    def _counts(self, job_id: str) -> Mapping[str, int]:
        """Return task state -> number of a job's tasks. job_id: Ray's, "" if it has none yet."""
        if not job_id:
            return {}
        query = f"?filter_keys=job_id&filter_predicates=%3D&filter_values={job_id}"
        body = self._request("GET", f"/api/v0/tasks/summarize{query}") or {}
        matches = re.findall(r"\"state_counts\": (\{[^}]*\})", json.dumps(body))
        counts: dict[str, int] = {}
        for text in matches:
            for state, n in json.loads(text).items():
                counts[state] = counts.get(state, 0) + n
        return counts

    def _free(self, waiting: int) -> str:
        """Return what waiting runners need, and how much of the cluster is in use. waiting: their number."""
        body = self._request("GET", "/api/cluster_status") or {}
        report = ((body.get("data") or {}).get("clusterStatus") or {}).get("loadMetricsReport") or {}
        asked = {"CPU": self._facts["cpus"], "GPU": self._facts["gpus"]}
        each = []
        in_use = []
        for name, n in asked.items():
            if n:
                used, total = (report.get("usage") or {}).get(name) or (0, 0)
                each.append(f"{n} free {name}s")
                in_use.append(f"{used:g} of the cluster's {total:g} {name}s")
        free = f"each needs {' and '.join(each)} of a node ({max(waiting, 1)})"
        return f"{free}: {', '.join(in_use)} are in use"

    def _request(self, method: str, path: str, body: object = None) -> Any:
        """Return the JSON of an answer; None if Ray has no such job. Raises: InvalidCluster; EngineUnreachable."""
        data = None
        if body is not None:
            data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **_authorization()}
        request = urllib.request.Request(self._address + path, data, headers, method=method)
        try:
            answer = _send(request)
            if answer.status < 300:
                return json.loads(answer.body or b"null")
        # HTTPException: the answer is cut off, or is not HTTP. Ray may have accepted the job all the same.
        except (OSError, ValueError, HTTPException) as error:
            raise EngineUnreachable(
                f"{self._address} does not answer {method} {path}: {error}",
                what=f"{method} {path}",
                where=self._address,
                given=type(error).__name__,
            ) from error
        why = answer.body.decode(errors="replace").strip()[-500:]
        if answer.status == 404 and "does not exist" in why:  # a proxy's 404 proves nothing about a job
            return None
        if answer.status in (400, 401, 403) or 300 <= answer.status < 400:
            raise InvalidCluster(
                f"{self._address} refuses {method} {path}: {answer.status} {why}",
                what=f"{method} {path}",
                where=self._address,
                given=answer.status,
            )
        raise EngineUnreachable(
            f"{self._address} answers {method} {path} with {answer.status}: {why}",
            what=f"{method} {path}",
            where=self._address,
            given=answer.status,
        )


class _HeadAnswer(NamedTuple):
    status: int
    body: bytes


def _send(request: urllib.request.Request) -> _HeadAnswer:
    """Return the answer to a request, whatever its status. Raises: OSError; ValueError; HTTPException."""
    try:
        with _OPENER.open(request, timeout=ANSWER_S) as answer:
            return _HeadAnswer(answer.status, answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return _HeadAnswer(error.code, error.read())


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, because it would send the token to another server."""

    def redirect_request(self, *_: object) -> None:
        """Return None."""


_OPENER = urllib.request.build_opener(_NoRedirect)


def _authorization() -> dict[str, str]:
    """Return the authorization header, with the token that Ray's own tools would use."""
    token = os.environ.get("RAY_AUTH_TOKEN", "")
    usual = Path.home() / ".ray" / "auth_token"
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or (str(usual) if usual.exists() else "")
    if not token and path:
        try:
            token = Path(path).read_text().strip()
        except OSError as error:
            raise InvalidCluster(
                f"the token of Ray (RAY_AUTH_TOKEN_PATH): {error}", what="RAY_AUTH_TOKEN_PATH", where=path
            ) from error
    if token:
        return {"Authorization": f"Bearer {token}"}
    return {}
