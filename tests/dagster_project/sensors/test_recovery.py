"""Runs that nobody would start again: real runs, real processes, real kills."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteRepositoryOrigin
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError

from dagster_project.runs import CodeLocation, sensor_location
from dagster_project.sensors import recovery
from dagster_project.sensors.discovery import _without_run
from dagster_project.sensors.recovery import (
    ATTEMPT,
    PAUSES_S,
    PROMISE_S,
    WILL_RETRY,
    end_orphans,
    is_alive,
    lost_runs,
    repeat_requests,
    will_start_again,
)
from loader.errors import Transient
from resources.compute import WAITS
from tests.servers.patience import until

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
HOUR_S = 3600.0
CODE = ModuleCodePointer("tests", "defs", None)


@dg.asset
def flaky_asset(context: dg.AssetExecutionContext) -> None:
    if "refuse" in context.run.tags:
        raise dg.Failure("a check said no", allow_retries=False)
    if "store" in context.run.tags:
        try:
            raise Transient("the store does not answer")
        except Transient as error:
            raise RuntimeError("reading failed") from error
    if "database" in context.run.tags:
        raise OperationalError("INSERT", {}, Exception("server closed the connection unexpectedly"))


JOB = dg.define_asset_job("cats_ingest", [flaky_asset])
DEFS = dg.Definitions(assets=[flaky_asset], jobs=[JOB])


def go(instance: dg.DagsterInstance, **tags: str) -> dg.DagsterRun:
    result = DEFS.resolve_job_def("cats_ingest").execute_in_process(
        instance=instance, tags=tags, run_config=QUIET, raise_on_error=False
    )
    found = instance.get_run_by_id(result.run_id)
    assert found is not None
    return found


HERE = CodeLocation("__repository__@here", "code", 4266)
SERVER = {"host": "code", "port": 4266}


def start_run(
    instance: dg.DagsterInstance,
    pid: int,
    location: str = "here",
    server: dict[str, object] | None = SERVER,
    tags: dict[str, str] | None = None,
) -> dg.DagsterRun:
    """A run as its process leaves it behind: started, and with the word of which process it is. server: that the
    default launcher asked to start it."""
    at = GrpcServerCodeLocationOrigin(host="code", port=4266, location_name=location)
    run = instance.create_run_for_job(
        DEFS.resolve_job_def("cats_ingest"),
        tags=({".dagster/grpc_info": json.dumps(server)} if server else {}) | (tags or {}),
        remote_job_origin=RemoteRepositoryOrigin(at, "__repository__").get_job_origin("cats_ingest"),
        job_code_origin=JobPythonOrigin("cats_ingest", RepositoryPythonOrigin("python", CODE)),
    )
    instance.report_engine_event(f"Executing steps in process (pid: {pid})", run)
    instance.handle_new_event(
        dg.EventLogEntry(
            error_info=None,
            level=10,
            user_message="",
            run_id=run.run_id,
            timestamp=time.time(),
            step_key=None,
            job_name=run.job_name,
            dagster_event=dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, job_name=run.job_name),
        )
    )
    return run


def status(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    return found.status.value


def test_run_whose_process_was_killed_is_ended_and_one_that_lives_is_not(
    instance: dg.DagsterInstance,
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        early = time.time()
        run = start_run(instance, process.pid)
        mine = start_run(instance, os.getpid())
        later = time.time() + 60
        assert end_orphans(instance, later, HERE) == []
        process.kill()
        process.wait()
        assert end_orphans(instance, early, HERE) == []  # too early to say
        assert end_orphans(instance, later, HERE) == [run.run_id]
    assert status(instance, run) == "FAILURE"
    assert status(instance, mine) == "STARTED"


def dead_pid() -> int:
    """The number of a process that is no more."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_runs_that_may_live_elsewhere_are_left_alone(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    pid, later = dead_pid(), time.time() + 60
    (tmp_path / "socket").touch()
    alone = [
        start_run(instance, pid, "elsewhere"),
        start_run(instance, pid, server={"host": "another", "port": 4266}),
        start_run(instance, pid, server={"host": "localhost", "socket": str(tmp_path / "socket")}),
        start_run(instance, pid, server=None),
    ]
    by_hand = instance.create_run_for_job(DEFS.resolve_job_def("cats_ingest"))
    mine = start_run(instance, pid)
    assert end_orphans(instance, later, None) == []  # nobody knows where this is
    assert end_orphans(instance, later, HERE) == [mine.run_id]
    assert {status(instance, run) for run in alone} == {"STARTED"}
    assert status(instance, by_hand) == "NOT_STARTED"


def test_code_server_of_dagsters_own_is_known_by_its_socket(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    pid, later = dead_pid(), time.time() + 60
    (tmp_path / "socket").touch()
    mine = start_run(instance, pid, server={"host": "localhost", "socket": str(tmp_path / "socket")})
    other = start_run(
        instance, pid, server={"host": "localhost", "socket": str(tmp_path / "of-another-machine")}
    )
    assert end_orphans(instance, later, CodeLocation("__repository__@here")) == [mine.run_id]
    assert status(instance, other) == "STARTED"


class ElsewhereLauncher(dg.DefaultRunLauncher):
    """Starts runs on other machines."""


def test_runs_of_another_launcher_are_left_alone(tmp_path: Path) -> None:
    launcher = {"run_launcher": {"module": __name__, "class": "ElsewhereLauncher"}}
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides=launcher) as instance:
        run = start_run(instance, dead_pid())
        assert isinstance(instance.run_launcher, ElsewhereLauncher)
        assert end_orphans(instance, time.time() + 60, HERE) == []
        assert status(instance, run) == "STARTED"


def test_many_runs_elsewhere_hide_none_here(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_MAX_RUNS", 2)
    mine = start_run(instance, pid := dead_pid())
    for _ in range(3):
        start_run(instance, pid, "elsewhere")
    assert end_orphans(instance, time.time() + 60, HERE) == [mine.run_id]


def test_sensor_knows_where_it_is_evaluated(instance: dg.DagsterInstance) -> None:
    at = GrpcServerCodeLocationOrigin(host="code", port=4266, location_name="here")
    with dg.SensorEvaluationContext(
        instance_ref=None,
        last_tick_completion_time=None,
        last_run_key=None,
        cursor=None,
        log_key=None,
        repository_name="__repository__",
        instance=instance,
        code_location_origin=at,
    ) as context:
        assert sensor_location(context) == HERE
    assert sensor_location(dg.build_sensor_context(instance=instance)) is None


def test_batch_that_another_code_location_ran_is_still_to_be_run_here(instance: dg.DagsterInstance) -> None:
    run = start_run(instance, dead_pid(), "elsewhere", tags={"dagster/run_key": "000001-1f0c99ab"})
    asked = partial(_without_run, instance, ["000001-1f0c99ab"])
    assert run.tags["dagster/run_key"] == "000001-1f0c99ab"
    assert list(asked(HERE.label)) == ["000001-1f0c99ab"]
    assert list(asked("__repository__@elsewhere")) == []


def test_code_location_retries_only_its_own_runs(instance: dg.DagsterInstance) -> None:
    run, other = start_run(instance, dead_pid()), start_run(instance, dead_pid(), "elsewhere")
    for one in (run, other):
        instance.report_run_failed(one, "its process is gone")
    now_s = time.time() + 1
    assert [found.run_id for found in lost_runs(instance, "cats_ingest", now_s, HERE.label)] == [run.run_id]
    assert [
        request.tags[recovery.AGAIN_OF] for request in repeat_requests(instance, "cats_ingest", HERE.label)
    ] == [run.run_id]


def test_process_that_is_not_waited_for_is_dead_too() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert is_alive(process.pid, time.time())
    process.send_signal(signal.SIGKILL)
    until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    assert not is_alive(process.pid, time.time())
    process.communicate()


def test_number_that_was_given_away_again_is_not_the_process() -> None:
    assert is_alive(os.getpid(), time.time())
    assert not is_alive(os.getpid(), time.time() - 10 * 365 * 24 * HOUR_S)


def test_what_no_step_is_to_blame_for_is_lost(instance: dg.DagsterInstance) -> None:
    run = instance.create_run_for_job(DEFS.resolve_job_def("cats_ingest"))
    instance.report_run_failed(run, "its process is gone")
    (found,) = lost_runs(instance, "cats_ingest", time.time())
    assert found.run_id == run.run_id
    assert will_start_again(instance, found)
    assert lost_runs(instance, "another", time.time()) == []
    assert lost_runs(instance, "cats_ingest", time.time() + 25 * HOUR_S) == []


def test_check_that_said_no_is_not(instance: dg.DagsterInstance) -> None:
    run = go(instance, refuse="yes")
    assert lost_runs(instance, "cats_ingest", time.time() + HOUR_S) == []
    assert not will_start_again(instance, run)


def test_store_that_did_not_answer_is(instance: dg.DagsterInstance) -> None:
    run = go(instance, store="yes")
    assert [found.run_id for found in lost_runs(instance, "cats_ingest", time.time() + 1)] == [run.run_id]


def test_what_dagster_starts_again_or_somebody_did_is_left_alone(instance: dg.DagsterInstance) -> None:
    before = time.time()
    run = go(instance, store="yes")
    instance.add_run_tags(run.run_id, {WILL_RETRY: "true"})
    assert lost_runs(instance, "cats_ingest", before + PROMISE_S - 1) == []
    instance.add_run_tags(run.run_id, {WILL_RETRY: "false"})
    assert len(lost_runs(instance, "cats_ingest", time.time() + 1)) == 1
    go(instance)
    assert lost_runs(instance, "cats_ingest", time.time() + 1) == []


def test_promised_retry_that_never_came_is_requested(instance: dg.DagsterInstance) -> None:
    run = go(instance, store="yes", **{WILL_RETRY: "true"})
    late = time.time() + PROMISE_S + 5
    assert [found.run_id for found in lost_runs(instance, "cats_ingest", late)] == [run.run_id]
    go(instance)  # it came
    assert lost_runs(instance, "cats_ingest", late) == []


def test_promise_that_was_kept_or_taken_back_is_left_alone(instance: dg.DagsterInstance) -> None:
    late = time.time() + PROMISE_S + 5
    other = go(instance)
    go(instance, store="yes", **{WILL_RETRY: "true", "dagster/auto_retry_run_id": other.run_id})
    assert lost_runs(instance, "cats_ingest", late) == []
    go(instance, store="yes", **{WILL_RETRY: "true", "dagster/backfill": "gone"})
    assert lost_runs(instance, "cats_ingest", late) == []


def test_attempts_wait_longer_each_time_and_end(instance: dg.DagsterInstance) -> None:
    for attempt, pause_s in enumerate(PAUSES_S, 1):
        before = time.time()
        run = go(instance, store="yes", **{ATTEMPT: str(attempt)})
        if pause_s:
            assert lost_runs(instance, "cats_ingest", before + pause_s / 2) == []
        assert [found.run_id for found in lost_runs(instance, "cats_ingest", time.time() + pause_s + 5)] == [
            run.run_id
        ]
    last = go(instance, store="yes", **{ATTEMPT: str(len(PAUSES_S) + 1)})
    assert lost_runs(instance, "cats_ingest", time.time() + 20 * HOUR_S) == []
    assert not will_start_again(instance, last)


def test_step_that_could_not_report_to_the_database_is_retried(instance: dg.DagsterInstance) -> None:
    run = go(instance, database="yes")
    assert run.tags.get("dagster/failure_reason") == "STEP_FAILURE"
    assert [found.run_id for found in lost_runs(instance, "cats_ingest", time.time() + 1)] == [run.run_id]


def test_each_is_asked_for_with_the_next_attempt(instance: dg.DagsterInstance) -> None:
    run = go(instance, store="yes")
    (request,) = repeat_requests(instance, "cats_ingest")
    assert request.run_key == f"again-{run.run_id}"
    assert request.tags[ATTEMPT] == "2"


def test_long_wait_for_a_clusters_job_uses_up_no_attempt(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "WAITED_S", 0.0)
    go(instance, store="yes", **{WAITS: "3f9a"})
    (request,) = repeat_requests(instance, "cats_ingest")
    assert request.tags[ATTEMPT] == "1"
    monkeypatch.setattr(recovery, "WAITED_S", 600.0)
    (request,) = repeat_requests(instance, "cats_ingest")
    assert request.tags[ATTEMPT] == "2", "it may have a fault of its own"


@settings(deadline=None)
@given(st.integers(2**22, 2**30))
def test_process_that_never_was_is_not_alive(pid: int) -> None:
    assert not is_alive(pid, time.time())
