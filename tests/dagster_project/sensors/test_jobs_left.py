"""Jobs that nobody waits for: a person is told after six hours, and they end after a day."""

import time
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

import loader
from dagster_project.sensors import alerting
from loader.storage import open_store
from penstock.alerts import Alert
from penstock.compute.job import JobFolder
from penstock.compute.job_json import to_json
from penstock.compute.submit import submit_job
from resources.alerts import AlertsResource
from resources.compute import ComputeResource
from resources.storage import RootResource
from tests.compute.job_checks import INLINE_FILE, done_by, job_in, numbers
from tests.compute.test_jobs import INLINE

HOUR_S = 3600.0


@pytest.fixture
def alerts(monkeypatch: pytest.MonkeyPatch) -> list[Alert]:
    """What was handed to the channels, which tests of their own cover."""
    alerts: list[Alert] = []
    monkeypatch.setattr("resources.alerts.send", lambda alert, to: alerts.append(alert) or [])
    return alerts


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    loader.Root(folder).create()
    return folder


def submit_old_job(root: Path, hours: float, name: str = "f") -> JobFolder:
    """The folder of a job that was submitted so long ago, and never begun."""
    job = job_in(root, name)
    there = submit_job(job, numbers(4))
    at_us = round((time.time() - hours * HOUR_S) * 1e6)
    job.store.put(there.folder.key("job.json"), to_json(replace(there.description, at_us=at_us)))
    return there.folder


def tick(instance: dg.DagsterInstance, root: Path, cursor: str, cluster: str = "") -> str:
    context = dg.build_sensor_context(
        instance,
        cursor=cursor,
        resources={
            "root": RootResource(url=str(root)),
            "compute": ComputeResource(engine="inline", cluster=cluster),
            "alerts": AlertsResource(),
        },
    )
    alerting.jobs_sensor()(context)
    return context.cursor or ""


def test_alert_names_an_abandoned_job_once_and_its_end(
    root: Path, instance: dg.DagsterInstance, alerts: list[Alert]
) -> None:
    young, old = submit_old_job(root, 5), submit_old_job(root, 7, "old")
    cursor = tick(instance, root, "")
    assert [alert.severity for alert in alerts] == ["warning"]
    assert old.id in alerts[0].what
    assert "0 of its 2 blocks" in alerts[0].what
    cursor = tick(instance, root, cursor)
    assert len(alerts) == 1
    done_by(job_in(root, "old"), numbers(4), INLINE)
    tick(instance, root, cursor)
    assert [alert.severity for alert in alerts] == ["warning", "resolved"]
    assert not young.stopped


def test_alert_that_no_channel_took_is_sent_again(
    root: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(AlertsResource().variable, "webhook+http://127.0.0.1:9/a,webhook+http://127.0.0.1:9/b")
    told: list[str] = []
    problems = [["a is down", "b is down"], ["a is down"], [], ["a is down", "b is down"], []]

    def send(alert: Alert, to: object) -> list[str]:
        told.append(alert.severity)
        return problems[len(told) - 1]

    monkeypatch.setattr("resources.alerts.send", send)
    submit_old_job(root, 7, "old")
    cursor = ""
    for _ in range(3):
        cursor = tick(instance, root, cursor)
    assert told == ["warning", "warning"], "one of two channels took the second"
    monkeypatch.setattr(alerting, "SEND_S", -1.0)
    submit_old_job(root, 7, "late")
    cursor = tick(instance, root, cursor)
    assert told == ["warning", "warning"], "a slow channel leaves the rest to the next tick"
    monkeypatch.setattr(alerting, "SEND_S", 60.0)
    cursor = tick(instance, root, cursor)
    assert told == ["warning"] * 3
    done_by(job_in(root, "old"), numbers(4), INLINE)
    for _ in range(3):
        cursor = tick(instance, root, cursor)
    assert told == ["warning"] * 3 + ["resolved"] * 2


def test_somebody_who_waits_keeps_a_job(
    root: Path, instance: dg.DagsterInstance, alerts: list[Alert]
) -> None:
    folder = submit_old_job(root, 30)
    folder.attend()
    tick(instance, root, "")
    assert (alerts, folder.stopped) == ([], False)


@pytest.mark.parametrize("on_cluster", [False, True])
def test_job_that_was_left_for_a_day_ends(
    tmp_path: Path, root: Path, instance: dg.DagsterInstance, alerts: list[Alert], on_cluster: bool
) -> None:
    (tmp_path / "cluster.toml").write_text(INLINE_FILE)
    folder = submit_old_job(root, 25)
    tick(instance, root, "", str(tmp_path / "cluster.toml") if on_cluster else "")
    assert folder.stopped
    assert alerts == []
    assert list(alerting.unattended_jobs(open_store(str(root)), time.time(), print)) == []


def test_who_waits_says_so(tmp_path: Path) -> None:
    job, before = job_in(tmp_path), time.time()
    done_by(job, numbers(2), INLINE)
    assert JobFolder(job.store, job.id).heartbeat_us() >= before * 1e6
