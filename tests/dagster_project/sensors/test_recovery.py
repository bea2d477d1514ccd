"""Runs that nobody would start again: real runs, real processes, real kills."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError

from dagster_project.sensors.recovery import (
    ATTEMPT,
    PAUSES_S,
    PROMISE_S,
    WILL_RETRY,
    again,
    end_orphans,
    is_alive,
    lost,
    will_start_again,
)
from loader.errors import Transient

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
HOUR_S = 3600.0


@dg.asset
def made(context: dg.AssetExecutionContext) -> None:
    if "refuse" in context.run.tags:
        raise dg.Failure("a check said no", allow_retries=False)
    if "store" in context.run.tags:
        try:
            raise Transient("the store does not answer")
        except Transient as error:
            raise RuntimeError("reading failed") from error
    if "database" in context.run.tags:
        raise OperationalError("INSERT", {}, Exception("server closed the connection unexpectedly"))


JOB = dg.define_asset_job("cats_ingest", [made])
DEFS = dg.Definitions(assets=[made], jobs=[JOB])


def go(instance: dg.DagsterInstance, **tags: str) -> dg.DagsterRun:
    result = DEFS.resolve_job_def("cats_ingest").execute_in_process(
        instance=instance, tags=tags, run_config=QUIET, raise_on_error=False
    )
    found = instance.get_run_by_id(result.run_id)
    assert found is not None
    return found


def started(instance: dg.DagsterInstance, pid: int) -> dg.DagsterRun:
    """A run as its process leaves it behind: started, and with the word of which process it is."""
    run = instance.create_run_for_job(DEFS.resolve_job_def("cats_ingest"))
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


def test_a_run_whose_process_was_killed_is_ended_and_one_that_lives_is_not(
    instance: dg.DagsterInstance,
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        early = time.time()
        run = started(instance, process.pid)
        mine = started(instance, os.getpid())
        later = time.time() + 60
        assert end_orphans(instance, later) == []
        process.kill()
        process.wait()
        assert end_orphans(instance, early) == []  # too early to say
        assert end_orphans(instance, later) == [run.run_id]
    assert status(instance, run) == "FAILURE"
    assert status(instance, mine) == "STARTED"


def test_a_process_that_is_not_waited_for_is_dead_too() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert is_alive(process.pid, time.time())
    process.send_signal(signal.SIGKILL)
    while Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z":
        time.sleep(0.01)
    assert not is_alive(process.pid, time.time())
    process.communicate()


def test_a_number_that_was_given_away_again_is_not_the_process() -> None:
    assert is_alive(os.getpid(), time.time())
    assert not is_alive(os.getpid(), time.time() - 10 * 365 * 24 * HOUR_S)


def test_what_no_step_is_to_blame_for_is_lost(instance: dg.DagsterInstance) -> None:
    run = instance.create_run_for_job(DEFS.resolve_job_def("cats_ingest"))
    instance.report_run_failed(run, "its process is gone")
    (found,) = lost(instance, "cats_ingest", time.time())
    assert found.run_id == run.run_id
    assert will_start_again(instance, found)
    assert lost(instance, "another", time.time()) == []
    assert lost(instance, "cats_ingest", time.time() + 25 * HOUR_S) == []


def test_a_check_that_said_no_is_not(instance: dg.DagsterInstance) -> None:
    run = go(instance, refuse="yes")
    assert lost(instance, "cats_ingest", time.time() + HOUR_S) == []
    assert not will_start_again(instance, run)


def test_a_store_that_did_not_answer_is(instance: dg.DagsterInstance) -> None:
    run = go(instance, store="yes")
    assert [found.run_id for found in lost(instance, "cats_ingest", time.time() + 1)] == [run.run_id]


def test_what_dagster_starts_again_or_somebody_did_is_left_alone(instance: dg.DagsterInstance) -> None:
    before = time.time()
    run = go(instance, store="yes")
    instance.add_run_tags(run.run_id, {WILL_RETRY: "true"})
    assert lost(instance, "cats_ingest", before + PROMISE_S - 1) == []
    instance.add_run_tags(run.run_id, {WILL_RETRY: "false"})
    assert len(lost(instance, "cats_ingest", time.time() + 1)) == 1
    go(instance)
    assert lost(instance, "cats_ingest", time.time() + 1) == []


def test_a_retry_that_was_promised_and_never_came_is_asked_for(instance: dg.DagsterInstance) -> None:
    run = go(instance, store="yes", **{WILL_RETRY: "true"})
    late = time.time() + PROMISE_S + 5
    assert [found.run_id for found in lost(instance, "cats_ingest", late)] == [run.run_id]
    go(instance)  # it came
    assert lost(instance, "cats_ingest", late) == []


def test_a_promise_that_was_kept_or_taken_back_is_left_alone(instance: dg.DagsterInstance) -> None:
    late = time.time() + PROMISE_S + 5
    other = go(instance)
    go(instance, store="yes", **{WILL_RETRY: "true", "dagster/auto_retry_run_id": other.run_id})
    assert lost(instance, "cats_ingest", late) == []
    go(instance, store="yes", **{WILL_RETRY: "true", "dagster/backfill": "gone"})
    assert lost(instance, "cats_ingest", late) == []


def test_attempts_wait_longer_each_time_and_end(instance: dg.DagsterInstance) -> None:
    for attempt, pause_s in enumerate(PAUSES_S, 1):
        before = time.time()
        run = go(instance, store="yes", **{ATTEMPT: str(attempt)})
        if pause_s:
            assert lost(instance, "cats_ingest", before + pause_s / 2) == []
        assert [found.run_id for found in lost(instance, "cats_ingest", time.time() + pause_s + 5)] == [
            run.run_id
        ]
    last = go(instance, store="yes", **{ATTEMPT: str(len(PAUSES_S) + 1)})
    assert lost(instance, "cats_ingest", time.time() + 20 * HOUR_S) == []
    assert not will_start_again(instance, last)


def test_a_step_that_could_not_tell_dagsters_database_is_asked_for(instance: dg.DagsterInstance) -> None:
    run = go(instance, database="yes")
    assert run.tags.get("dagster/failure_reason") == "STEP_FAILURE"
    assert [found.run_id for found in lost(instance, "cats_ingest", time.time() + 1)] == [run.run_id]


def test_each_is_asked_for_with_the_next_attempt(instance: dg.DagsterInstance) -> None:
    run = go(instance, store="yes")
    (request,) = again(instance, "cats_ingest")
    assert request.run_key == f"again-{run.run_id}"
    assert request.tags[ATTEMPT] == "2"


@settings(deadline=None)
@given(st.integers(2**22, 2**30))
def test_a_process_that_never_was_is_not_alive(pid: int) -> None:
    assert not is_alive(pid, time.time())
