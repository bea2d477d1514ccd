"""The sensors that tell a person, on a real instance and a real failed run."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import dagster as dg
import pytest

import loader
from assets.arrivals.make_batches import discover
from assets.spec import DatasetSpec
from dagster_project.definitions import batch_partitions, build_defs
from loader.storage import open_store
from penstock.alerts import Alert
from resources.alerts import AlertsResource
from resources.compute import ComputeResource
from resources.storage import LandingResource, RootResource

SPEC = DatasetSpec(name="demo")
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    quiet = {"telemetry": {"enabled": False}}
    with dg.DagsterInstance.ephemeral(str(tmp_path), settings=quiet) as made:
        yield made


@pytest.fixture
def alerts(monkeypatch: pytest.MonkeyPatch) -> list[Alert]:
    """What was handed to the channels, which tests of their own cover."""
    alerts: list[Alert] = []
    monkeypatch.setattr("resources.alerts.send", lambda alert, to: alerts.append(alert) or [])
    return alerts


@pytest.fixture
def resources(tmp_path: Path) -> dict[str, object]:
    (tmp_path / "landing").mkdir()
    return {
        "root": RootResource(url=str(tmp_path / "root")),
        "landing": LandingResource(url=str(tmp_path / "landing")),
        "compute": ComputeResource(engine="inline"),
        "alerts": AlertsResource(),
    }


def stop_run(tmp_path: Path, defs: dg.Definitions, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    (tmp_path / "landing" / "torn.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(40))
    with loader.Root(tmp_path / "root") as root:
        root.create()
        (batch,) = discover(root.store, open_store(str(tmp_path / "landing")), "demo")
    instance.add_dynamic_partitions(str(batch_partitions(SPEC).name), [batch])
    return defs.resolve_job_def("demo_ingest").execute_in_process(
        instance=instance, partition_key=batch, raise_on_error=False, run_config=QUIET
    )


def test_stopped_batch_is_told_once_and_its_end_too(
    tmp_path: Path, instance: dg.DagsterInstance, resources: dict[str, object], alerts: list[Alert]
) -> None:
    defs = build_defs(resources, [SPEC])
    stop_run(tmp_path, defs, instance)
    watch = defs.resolve_sensor_def("demo_watch")
    context = dg.build_sensor_context(instance=instance, resources=resources)
    said = watch(context)
    assert [(alert.name, alert.severity) for alert in alerts] == [("batch-stopped", "error")]
    assert isinstance(said, dg.SkipReason)
    assert "1 alerts sent, 0 not delivered; batch 000001-" in str(said.skip_message)
    assert "was stopped" in str(said.skip_message)
    watch(context)
    assert len(alerts) == 1
    (tmp_path / "landing" / "torn.jpg").unlink()
    tolerant = build_defs(resources, [DatasetSpec(name="demo", max_reject_rate=1.0)])
    (key,) = instance.get_dynamic_partitions(str(batch_partitions(SPEC).name))
    tolerant.resolve_job_def("demo_ingest").execute_in_process(
        instance=instance, partition_key=key, run_config=QUIET
    )
    watch(context)
    assert [(alert.name, alert.severity) for alert in alerts[1:]] == [("batch-stopped", "resolved")]
    assert json.loads(context.cursor or "") == {}


def failure_context(
    result: dg.ExecuteInProcessResult, instance: dg.DagsterInstance, resources: dict[str, object]
) -> dg.RunFailureSensorContext:
    return dg.build_run_status_sensor_context(
        sensor_name="penstock_run_failure",
        dagster_event=next(event for event in result.all_events if event.is_job_failure),
        dagster_instance=instance,
        dagster_run=result.dagster_run,
        resources=resources,
    ).for_run_failure()


def test_failed_run_is_told_with_what_its_check_said(
    tmp_path: Path,
    instance: dg.DagsterInstance,
    resources: dict[str, object],
    alerts: list[Alert],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_WEBSERVER", "https://dagster.example")
    defs = build_defs(resources, [SPEC])
    result = stop_run(tmp_path, defs, instance)
    defs.resolve_sensor_def("penstock_run_failure")(failure_context(result, instance, resources))
    (alert,) = alerts
    assert (alert.name, alert.severity) == ("run-failed", "error")
    assert f"run {result.run_id} of demo_ingest, partition 000001-" in alert.what
    assert "demo__media: 1 of 1 objects are unreadable" in alert.details
    assert alert.url == f"https://dagster.example/runs/{result.run_id}"


@pytest.mark.parametrize("is_lost", ["no channel takes it", "invalid setting"])
def test_alert_of_a_failed_run_is_sent_again(
    is_lost: str,
    tmp_path: Path,
    instance: dg.DagsterInstance,
    resources: dict[str, object],
    alerts: list[Alert],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    defs = build_defs(resources, [SPEC])
    result = stop_run(tmp_path, defs, instance)
    jobs = defs.resolve_sensor_def("penstock_jobs")
    context = dg.build_sensor_context(instance=instance, resources=resources)
    with monkeypatch.context() as patched:
        if is_lost == "invalid setting":
            patched.setenv("PENSTOCK_ALERTS", "pager")
        else:
            patched.setenv("PENSTOCK_ALERTS", "webhook+https://a.example/x")
            patched.setattr("resources.alerts.send", lambda alert, to: ["a.example: 503"])
        with suppress(ValueError):
            defs.resolve_sensor_def("penstock_run_failure")(failure_context(result, instance, resources))
    jobs(context)
    assert alerts == [], "the sensor of failures may be sending it"
    later_s = time.time() + 120
    monkeypatch.setattr("dagster_project.sensors.alerting.time.time", lambda: later_s)
    for _ in range(2):
        jobs(context)
    (alert,) = alerts
    assert f"run {result.run_id} of demo_ingest, partition 000001-" in alert.what
    assert "demo__media: 1 of 1 objects are unreadable" in alert.details


def test_run_that_is_started_again_by_itself_is_not_told(
    tmp_path: Path, instance: dg.DagsterInstance, resources: dict[str, object], alerts: list[Alert]
) -> None:
    defs = build_defs(resources, [SPEC])
    result = stop_run(tmp_path, defs, instance)
    instance.add_run_tags(result.run_id, {"dagster/will_retry": "true"})
    context = dg.build_run_status_sensor_context(
        sensor_name="penstock_run_failure",
        dagster_event=next(event for event in result.all_events if event.is_job_failure),
        dagster_instance=instance,
        dagster_run=instance.get_run_by_id(result.run_id),
        resources=resources,
    )
    defs.resolve_sensor_def("penstock_run_failure")(context.for_run_failure())
    assert alerts == []
