"""A release that fails is asked for again until one succeeds: real runs on a real instance."""

import time
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from dagster_project.sensors import release
from dagster_project.sensors.recovery import ATTEMPT, PAUSES_S
from dagster_project.sensors.release import RELEASE_TAG, release_sensor

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
BROKEN = {"now": False}


@dg.asset(key=["stream", "samples"])
def samples() -> None:
    """A batch passes."""


@dg.asset(key=["stream", "version"])
def version() -> None:
    if BROKEN["now"]:
        raise dg.Failure("the cause is there", allow_retries=False)


DEFS = dg.Definitions(
    assets=[samples, version],
    jobs=[dg.define_asset_job("stream_ingest", [samples]), dg.define_asset_job("stream_release", [version])],
)


class Daemon:
    """Ticks, and runs what is asked for, each run key once; knows what time it is."""

    def __init__(self, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
        self.instance, self.cursor, self.later_s, self.keys = instance, None, 0.0, list[str]()
        self.sensor = release_sensor("stream")
        monkeypatch.setattr(release, "time", SimpleNamespace(time=lambda: time.time() + self.later_s))
        monkeypatch.setitem(BROKEN, "now", False)

    def passes(self) -> None:
        self.go("stream_ingest", {})

    def go(self, job: str, tags: dict[str, str]) -> None:
        DEFS.resolve_job_def(job).execute_in_process(
            instance=self.instance, tags=tags, run_config=QUIET, raise_on_error=False
        )

    def tick(self, later_s: float = 0) -> Any:
        self.later_s = later_s  # than now, when the runs of before have just ended
        context = dg.build_sensor_context(instance=self.instance, cursor=self.cursor)
        answer = self.sensor(context)
        self.cursor = context.cursor
        if isinstance(answer, dg.RunRequest) and answer.run_key not in self.keys:
            self.keys.append(answer.run_key)
            self.go("stream_release", {**answer.tags, "dagster/run_key": answer.run_key})
        return answer


@pytest.fixture
def daemon(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    made = Daemon(instance, monkeypatch)
    made.passes()
    return made


def test_last_batch_is_published_however_often_its_release_failed(daemon: Daemon) -> None:
    BROKEN["now"] = True
    daemon.tick(), daemon.tick()
    assert len(daemon.keys) == 2  # at once: a batch that its gate stopped is held back by then
    assert isinstance(answer := daemon.tick(), dg.SkipReason)
    assert "release 2 of stream failed; the next attempt is in " in (answer.skip_message or "")
    pauses_s = [*PAUSES_S[1:], PAUSES_S[-1], PAUSES_S[-1]]  # longer each time, then every hour
    for tries, pause_s in enumerate(pauses_s, 3):
        daemon.tick(pause_s / 2)
        assert len(daemon.keys) == tries - 1
        daemon.tick(pause_s + 5)
        assert len(daemon.keys) == tries
    BROKEN["now"] = False
    assert isinstance(answer := daemon.tick(PAUSES_S[3] + 1), dg.RunRequest)
    assert answer.tags == {RELEASE_TAG: "stream", ATTEMPT: "8"}
    assert len(set(daemon.keys)) == len(daemon.keys) == 8
    for _ in range(3):
        assert isinstance(daemon.tick(10 * PAUSES_S[3]), dg.SkipReason)


def test_another_batch_begins_anew(daemon: Daemon) -> None:
    BROKEN["now"] = True
    daemon.tick(), daemon.tick()
    daemon.passes()
    BROKEN["now"] = False
    assert isinstance(answer := daemon.tick(), dg.RunRequest)
    assert answer.tags[ATTEMPT] == "1"
    assert isinstance(daemon.tick(10 * PAUSES_S[3]), dg.SkipReason)


def test_what_somebody_released_meanwhile_is_not_asked_for_again(daemon: Daemon) -> None:
    BROKEN["now"] = True
    daemon.tick(), daemon.tick()
    BROKEN["now"] = False
    daemon.go("stream_release", {})
    assert isinstance(daemon.tick(10 * PAUSES_S[3]), dg.SkipReason)
    assert len(daemon.keys) == 2


def test_cursor_of_an_earlier_release_continues(daemon: Daemon) -> None:
    BROKEN["now"] = True
    daemon.tick(), daemon.tick()
    event = int(daemon.keys[0].rpartition("-")[2])
    daemon.cursor = f'{{"event": {event}, "again": true}}'
    assert isinstance(answer := daemon.tick(PAUSES_S[1] + 1), dg.RunRequest)
    assert answer.run_key == f"stream-{event}-again-3"
