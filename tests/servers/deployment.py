"""Dagster as deploy/ starts it: code server, daemon and webserver as processes of their own, over a small dataset."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner
from dagster._cli import cli as dagster_cli

from tests.servers.ports import free_port
from tests.servers.processes import end, environment_bytes

REPOSITORY = Path(__file__).resolve().parents[2]
QUICK_DISK = str(Path(__file__).with_name("quick_disk"))
_DAGSTER = [sys.executable, "-m", "dagster"]
_PATIENCE_S = 600.0
"""A run that dies as it begins is only given up after three minutes, and others wait for its place."""
_MOST_WAITS = 6
ENDED = ("SUCCESS", "FAILURE", "CANCELED")
RUNS_IN_THE_DAEMON = {
    "run_launcher": {
        "module": "dagster._core.launcher.sync_in_memory_run_launcher",
        "class": "SyncInMemoryRunLauncher",
    },
    "run_queue": {"dequeue_interval_seconds": 1},
    "concurrency": {"runs": {"max_concurrent_runs": 8}},
    "compute_logs": {
        "module": "dagster.core.storage.noop_compute_log_manager",
        "class": "NoOpComputeLogManager",
    },
}
"""Settings for many small runs: the daemon itself does one after the other, since every process would import for
seconds. In threads of it (dequeue_use_threads) they wait for one another's locks of `logging` for ever."""


class Deployment:
    """One DAGSTER_HOME with its three processes. definitions: a Python file with `defs`; postgres_url: "": SQLite;
    settings: of dagster.yaml, in place of those of deploy/."""

    def __init__(
        self,
        folder: Path,
        definitions: Path,
        environment: Mapping[str, str],
        postgres_url: str = "",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder, self._definitions = folder, definitions
        self.home = folder / "dagster_home"
        self.home.mkdir(parents=True)
        self._ports = {name: free_port() for name in ("code-server", "webserver")}
        name = "production" if postgres_url else "one_machine"
        ours = yaml.safe_load((REPOSITORY / "deploy" / name / "dagster.yaml").read_text(encoding="utf-8"))
        ours["run_monitoring"] |= {"poll_interval_seconds": 3, "start_timeout_seconds": 180}
        ours["run_queue"] |= {"dequeue_interval_seconds": 1, "user_code_failure_retry_delay": 5}
        ours |= settings or {}
        (self.home / "dagster.yaml").write_text(yaml.safe_dump(ours), encoding="utf-8")
        server = {"host": "127.0.0.1", "port": self._ports["code-server"], "location_name": "penstock"}
        self.workspace = folder / "workspace.yaml"
        self.workspace.write_text(yaml.safe_dump({"load_from": [{"grpc_server": server}]}), encoding="utf-8")
        self.environment = {
            **os.environ,
            "DAGSTER_HOME": str(self.home),
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), QUICK_DISK, os.environ.get("PYTHONPATH", "")]),
            "PYTHONDONTWRITEBYTECODE": "",
            **environment,
        }
        if postgres_url:
            self.environment["PENSTOCK_DAGSTER_POSTGRES"] = postgres_url
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        """Of the pages."""
        return f"http://127.0.0.1:{self._ports['webserver']}"

    def pid(self, name: str) -> int:
        """Of the process that was started under this name."""
        return self._running[name].pid

    def prepare(self) -> None:
        """Make the databases, as deploy/ does before anything starts: two processes that make them at once leave them
        with two heads. The command runs in this process, where all that it imports is there."""
        done = CliRunner().invoke(dagster_cli, ["instance", "migrate"], env=self.environment)
        assert done.exit_code == 0, f"{done.output}{done.exception!r}"

    def start(self, *names: str) -> None:
        """Start these of code-server, daemon and webserver; returns when pages and definitions are there."""
        for name in names:
            with (self.folder / f"{name}.log").open("ab") as out:
                self._running[name] = subprocess.Popen(
                    self._command(name),
                    cwd=REPOSITORY,
                    env=self.environment,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        if "code-server" in names:
            self._await_port("code-server")
        if "webserver" in names:
            self._await_port("webserver")
            self.wait_for("the definitions are loaded", self._is_loaded)

    def kill(self, name: str) -> None:
        """SIGKILL to a process and all it started, as when its machine is gone."""
        process = self._running.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for number in self._started_by_code_server() if name == "code-server" else ():
            end(number)

    def kill_a_worker(self, run_id: str) -> bool:
        """SIGKILL to the process of a run; False when it has none any more."""
        for event in self.events(run_id):
            told = re.search(r"Started process for run \(pid: (\d+)\)", event.get("message", ""))
            if told and self._is_ours(int(told[1])):
                end(int(told[1]))
                return True
        return False

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """What GraphQL answers, as the pages ask it. Raises: AssertionError for errors."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{error}: {error.read().decode(errors='replace')[-2000:]}") from error
        assert "errors" not in found, found["errors"]
        data: dict[str, Any] = found["data"]
        return data

    def switch_on(self, sensor: str) -> None:
        """As the toggle on its page."""
        selector = {
            "repositoryName": "__repository__",
            "repositoryLocationName": "penstock",
            "sensorName": sensor,
        }
        answer = self.ask(
            "mutation($s: SensorSelector!) { startSensor(sensorSelector: $s) { __typename "
            "... on PythonError { message } } }",
            s=selector,
        )["startSensor"]
        assert answer["__typename"] == "Sensor", answer

    def launch(
        self, job: str, tags: Mapping[str, str] | None = None, assets: Sequence[Sequence[str]] = ()
    ) -> str:
        """Start a job as its launchpad does; its run id. assets: what to materialize of it, all if there are none."""
        selector: dict[str, Any] = {
            "repositoryName": "__repository__",
            "repositoryLocationName": "penstock",
            "pipelineName": job,
        }
        if assets:
            selector["assetSelection"] = [{"path": list(path)} for path in assets]
        answer = self.ask(
            "mutation($p: ExecutionParams!) { launchRun(executionParams: $p) { __typename "
            "... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }",
            p={
                "selector": selector,
                "mode": "default",
                "executionMetadata": {"tags": [{"key": k, "value": v} for k, v in (tags or {}).items()]},
            },
        )["launchRun"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        run_id: str = answer["run"]["runId"]
        return run_id

    def backfill(self, assets: Sequence[Sequence[str]], partitions: Sequence[str]) -> str:
        """Launch a backfill of assets as their page does; its id."""
        answer = self.ask(
            "mutation($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) { __typename "
            "... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }",
            p={
                "assetSelection": [{"path": list(path)} for path in assets],
                "partitionNames": list(partitions),
            },
        )["launchPartitionBackfill"]
        assert answer["__typename"] == "LaunchBackfillSuccess", answer
        backfill_id: str = answer["backfillId"]
        return backfill_id

    def backfill_ended(self, backfill_id: str) -> str:
        """How it ended, after waiting for that."""
        over = ("COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED", "CANCELED")
        self.wait_for("the backfill ends", lambda: self.backfill_status(backfill_id) in over)
        return self.backfill_status(backfill_id)

    def backfill_status(self, backfill_id: str) -> str:
        found = self.ask(
            "query($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } } }",
            id=backfill_id,
        )
        status: str = found["partitionBackfillOrError"]["status"]
        return status

    def runs(self, job: str | None = None) -> list[dict[str, Any]]:
        """runId, status, jobName and tags of all runs, newest first."""
        found = self.ask(
            "query($f: RunsFilter) { runsOrError(filter: $f) { ... on Runs { results { runId status jobName "
            "tags { key value } } } } }",
            f={"pipelineName": job} if job else {},
        )["runsOrError"]["results"]
        return [run | {"tags": {tag["key"]: tag["value"] for tag in run["tags"]}} for run in found]

    def events(self, run_id: str) -> list[dict[str, Any]]:
        """The messages of a run's log, as its page shows them."""
        found: list[dict[str, Any]] = self.ask(
            "query($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { events { "
            "... on MessageEvent { message } } } } }",
            id=run_id,
        )["logsForRun"]["events"]
        return found

    def reconnects(self) -> bool:
        """Whether the pages reach all three of Dagster's storages. Each has connections of its own, and the first
        answer over one that was open when Postgres went away is an error.
        """
        self.ask("{ instance { daemonHealth { allDaemonStatuses { healthy } } } }")
        self.ask(
            '{ sensorsOrError(repositorySelector: {repositoryName: "__repository__", '
            'repositoryLocationName: "penstock"}) { ... on Sensors { results { sensorState { status } } } } }'
        )
        return all(self.events(run["runId"]) for run in self.runs()[-1:])

    def wait_for(self, what: str, is_so: Callable[[], Any], patience_s: float = _PATIENCE_S) -> Any:
        """Return what `is_so` returns once it is true. Servers that are away are waited for.

        Raises: AssertionError if no run made progress in `patience_s` seconds, or if that passed six times.
        """
        last, seen = "", None
        for _ in range(_MOST_WAITS):
            deadline_s = time.monotonic() + patience_s
            while True:
                try:
                    if found := is_so():
                        return found
                except (OSError, AssertionError) as error:
                    last = str(error)
                seen = self._progress() if seen is None else seen
                if time.monotonic() >= deadline_s:
                    break
                time.sleep(0.3)
            before, seen = seen, self._progress()
            if seen == before:
                break
        raise AssertionError(
            f"no progress in {patience_s:.0f} s: {what}. {last}\n{self._told()}\n{self.logs()}"
        )

    def _progress(self) -> str:
        """Return the status of each run, and the number of events of those that have not ended."""
        try:
            return "\n".join(
                f"{run['runId']} {run['status']} {'' if run['status'] in ENDED else len(self.events(run['runId']))}"
                for run in self.runs()
            )
        except (OSError, AssertionError):
            return ""

    def _told(self) -> str:
        """A line per run, newest first."""
        try:
            found = self.runs()
        except (OSError, AssertionError) as error:
            return f"the pages do not tell of runs: {error}"
        return "\n".join(f"{run['runId']} {run['jobName']} {run['status']} {run['tags']}" for run in found)

    def logs(self) -> str:
        """The ends of what the processes said."""
        return "\n".join(
            f"== {path.name}\n{path.read_text(encoding='utf-8', errors='replace')[-3000:]}"
            for path in sorted(self.folder.glob("*.log"))
        )

    def close(self) -> None:
        """All of it ends."""
        for name in list(self._running):
            self.kill(name)

    def _command(self, name: str) -> list[str]:
        port = str(self._ports.get(name, ""))
        if name == "code-server":
            place = [
                "-f",
                str(self._definitions),
                "-d",
                str(REPOSITORY),
                "-a",
                "defs",
                "--location-name",
                "penstock",
            ]
            return [
                *_DAGSTER,
                "code-server",
                "start",
                "--heartbeat-ttl",
                "3600",
                "-h",
                "127.0.0.1",
                "-p",
                port,
                *place,
            ]
        if name == "daemon":
            return [sys.executable, "-m", "dagster._daemon", "run", "-w", str(self.workspace)]
        return [
            sys.executable,
            "-m",
            "dagster_webserver",
            "-h",
            "127.0.0.1",
            "-p",
            port,
            "-w",
            str(self.workspace),
        ]

    def _is_loaded(self) -> bool:
        found = self.ask("{ repositoriesOrError { ... on RepositoryConnection { nodes { name } } } }")
        return bool(found["repositoriesOrError"].get("nodes"))

    def _await_port(self, name: str) -> None:
        def listens() -> bool:
            process = self._running[name]
            assert process.poll() is None, f"{name} ended with {process.returncode}"
            with socket.create_connection(("127.0.0.1", self._ports[name]), timeout=1):
                return True

        self.wait_for(f"{name} listens", listens, 240)

    def _started_by_code_server(self) -> list[int]:
        """Runs, and the server behind the server, which have sessions of their own: known by their DAGSTER_HOME."""
        found = []
        others = {process.pid for process in self._running.values()}
        for number in [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]:
            with suppress(ProcessLookupError):
                if self._is_ours(number) and os.getpgid(number) not in others:
                    found.append(number)
        return found

    def _is_ours(self, number: int) -> bool:
        """Return whether a live process is of this deployment: another may have got the number of one that ended."""
        return f"DAGSTER_HOME={self.home}".encode() in environment_bytes(number).split(b"\0")


@contextmanager
def deployment(
    folder: Path,
    definitions: Path,
    environment: Mapping[str, str],
    postgres_url: str = "",
    settings: Mapping[str, Any] | None = None,
) -> Iterator[Deployment]:
    """All three processes are up; they end with the block."""
    made = Deployment(folder, definitions, environment, postgres_url, settings)
    try:
        made.prepare()
        made.start("code-server", "webserver", "daemon")
        yield made
    finally:
        made.close()
