"""Ways round the gate that Dagster itself offers, on an instance that keeps its databases on disk: each is stopped."""

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import numpy as np
import polars as pl
import pytest
from PIL import Image

import loader
from assets.arrivals.make_batches import discover
from assets.checks import CheckResult
from assets.gate_settings import Gate
from assets.release.version_asset import version_asset
from assets.samples.samples_asset import samples_asset
from assets.sources import BatchLimits
from assets.spec import DatasetSpec
from dagster_project.definitions import batch_partitions, build_defs
from loader.errors import Fenced, StageNotPublished
from loader.storage import open_store
from penstock.stages import current_record
from resources.compute import ComputeResource
from resources.storage import LandingResource, RootResource
from tests.refusals import refusal
from tests.servers.deployment import REPOSITORY, RUNS_IN_THE_DAEMON, Deployment, deployment

ROOT, LANDING, BAD = "BYPASS_ROOT", "BYPASS_LANDING", "BYPASS_BAD"
VERSION = dg.AssetKey(["demo", "version"])


def regressed(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
    return CheckResult(name="regressed", passed=not os.environ.get(BAD), explanation="it is not what it was")


SPEC = DatasetSpec(name="demo", gate=Gate(checks={"regressed": regressed}))


def definitions() -> dg.Definitions:
    """Of the places that the environment names: a job that is executed again is loaded anew."""
    overrides = {
        "root": RootResource(url=os.environ[ROOT]),
        "landing": LandingResource(url=os.environ[LANDING]),
        "compute": ComputeResource(engine="inline"),
    }
    return build_defs(overrides, [SPEC])


def release_job() -> dg.JobDefinition:
    return definitions().resolve_job_def("demo_release")


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """SQLite on disk, as one machine has it."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    with dg.DagsterInstance.from_config(str(home)) as made:
        yield made


@pytest.fixture
def failed(
    root: loader.Root,
    landing: Path,
    arrive: Callable[[Path], str],
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[str, str]:
    """A batch that is cut and that the gate stops: its key, and the run that it failed in."""
    monkeypatch.setenv(ROOT, root.url)
    monkeypatch.setenv(LANDING, str(landing))
    monkeypatch.setenv(BAD, "1")
    batch = arrive(landing)
    instance.add_dynamic_partitions(str(batch_partitions(SPEC).name), [batch])
    ingest = definitions().resolve_job_def("demo_ingest")
    assert ingest.execute_in_process(instance=instance, partition_key=batch).success
    stopped = release_job().execute_in_process(instance=instance, raise_on_error=False)
    assert not stopped.success
    return batch, stopped.run_id


def test_run_that_is_executed_again_from_its_failure(
    root: loader.Root, instance: dg.DagsterInstance, failed: tuple[str, str]
) -> None:
    batch, run_id = failed
    again = dg.execute_job(
        dg.reconstructable(release_job),
        instance=instance,
        reexecution_options=dg.ReexecutionOptions.from_failure(run_id, instance),
        raise_on_error=False,
    )
    assert not again.success
    assert not root.state.versions("demo")
    verdict = current_record(root.store, "demo", "version", batch)
    assert verdict is not None
    assert (verdict.verdict, verdict.r, verdict.run_id) == ("failed", 1, run_id)


def test_automation_that_asks_for_a_version(
    root: loader.Root, instance: dg.DagsterInstance, failed: tuple[str, str]
) -> None:
    """Eager automation asks for it, because the samples are new; what it starts is stopped like any other run."""
    assets = dg.map_asset_specs(
        lambda spec: (
            spec.replace_attributes(automation_condition=dg.AutomationCondition.eager())
            if spec.key == VERSION
            else spec
        ),
        [samples_asset(SPEC, batch_partitions(SPEC)), version_asset("demo", SPEC.gate, SPEC)],
    )
    eager = dg.Definitions(
        assets=assets,
        resources={"root": RootResource(url=os.environ[ROOT])},
        executor=dg.in_process_executor,
    )
    mine = dg.AssetSelection.assets(VERSION)
    seen = dg.evaluate_automation_conditions(eager, instance, asset_selection=mine)
    samples = dg.AssetKey(["demo", "samples"])
    instance.report_runless_asset_event(dg.AssetMaterialization(samples, partition=failed[0]))
    asked = dg.evaluate_automation_conditions(eager, instance, asset_selection=mine, cursor=seen.cursor)
    assert seen.get_num_requested(VERSION) + asked.get_num_requested(VERSION) >= 1
    job = eager.resolve_implicit_global_asset_job_def()
    started = job.execute_in_process(instance=instance, asset_selection=[VERSION], raise_on_error=False)
    assert not started.success
    assert not root.state.versions("demo")


def test_check_that_is_overwritten_by_hand_opens_nothing(
    root: loader.Root, instance: dg.DagsterInstance, failed: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster can be told that the check passed, and the gate that it would pass now: the parts are given up."""
    instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(asset_key=VERSION, check_name="regressed", passed=True, metadata={})
    )
    assert not release_job().execute_in_process(instance=instance, raise_on_error=False).success
    monkeypatch.delenv(BAD)
    assert not release_job().execute_in_process(instance=instance, raise_on_error=False).success
    record = current_record(root.store, "demo", "samples", failed[0])
    assert record is not None
    with pytest.raises(Fenced):
        root.publish("demo", [loader.Part.from_json(body) for body in record.body["parts"]])
    assert not root.state.versions("demo")
    ingest = definitions().resolve_job_def("demo_ingest")
    assert ingest.execute_in_process(instance=instance, partition_key=failed[0]).success  # cut anew
    assert release_job().execute_in_process(instance=instance, raise_on_error=False).success
    assert [one.number for one in root.state.versions("demo")] == [1]


def test_parts_are_not_published_by_hand_before_a_gate_has_looked_at_them(
    root: loader.Root,
    landing: Path,
    arrive: Callable[[Path], str],
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor after, with another batch's verdict: what the release shows is of these parts."""
    monkeypatch.setenv(ROOT, root.url)
    monkeypatch.setenv(LANDING, str(landing))
    batch = arrive(landing)
    instance.add_dynamic_partitions(str(batch_partitions(SPEC).name), [batch])
    ingest = definitions().resolve_job_def("demo_ingest")
    assert ingest.execute_in_process(instance=instance, partition_key=batch).success
    record = current_record(root.store, "demo", "samples", batch)
    assert record is not None
    parts = [loader.Part.from_json(body) for body in record.body["parts"]]
    transaction = f"transaction {record.body['txn']}"
    with refusal(StageNotPublished, what="verdict", where=transaction, given=""):
        root.publish("demo", parts, exclude=record.body["exclude"])
    # The samples' record is not a verdict on them.
    with refusal(StageNotPublished, what="parts", where=record.path):
        root.publish("demo", parts, exclude=record.body["exclude"], verdict=record.path)
    assert not root.state.versions("demo")
    assert release_job().execute_in_process(instance=instance, raise_on_error=False).success
    verdict = current_record(root.store, "demo", "version", batch)
    assert verdict is not None
    assert [one.number for one in root.state.versions("demo")] == [1]
    commit = root.store.get(f"log/{root.state.versions('demo')[0].n:012d}.json").data
    assert f'"verdict":"{verdict.path}"'.encode() in commit


def photo(seed: int, *, torn: bool = False) -> bytes:
    sink = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (32, 48, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(sink, "JPEG")
    return sink.getvalue()[: 1200 if torn else None]


@pytest.mark.server
def test_daemon_that_runs_every_stage_by_itself_and_automation_beside_it(tmp_path: Path) -> None:
    """Of three batches one is sound, one has torn files (media stops it), one regressed (the last gate stops it)."""
    landing = tmp_path / "landing"
    landing.mkdir()
    for number in range(4):
        (landing / f"a-{number}.jpg").write_bytes(photo(number))
        (landing / f"b-{number}.jpg").write_bytes(photo(10 + number, torn=number > 0))
        (landing / f"c-{number}.jpg").write_bytes(photo(20 + number))
    sound = {hashlib.sha256(path.read_bytes()).hexdigest() for path in landing.glob("a-*")}
    with loader.Root(tmp_path / "root") as root:
        root.create()
        limits = BatchLimits(max_objects=4, max_wait_s=0)
        batches = discover(root.store, open_store(str(landing)), "small", limits)
    environment = {"PENSTOCK_ROOT": str(tmp_path / "root"), "PENSTOCK_LANDING": str(landing)}
    definitions = REPOSITORY / "tests" / "servers" / "other_policies.py"
    with deployment(tmp_path / "dagster", definitions, environment, settings=RUNS_IN_THE_DAEMON) as servers:
        with dg.DagsterInstance.from_config(str(servers.home)) as instance:
            instance.add_dynamic_partitions("small_raw_batch", batches)
        servers.switch_on("automation")
        stages = [["small", stage] for stage in ("raw_objects", "media", "units", "feature_phash", "samples")]
        assert servers.backfill_ended(servers.backfill(stages, batches)) == "COMPLETED_FAILED"
        for stage in stages[2:]:  # later and by hand, which Dagster lets start
            servers.launch("small_ingest", {"dagster/partition": batches[1]}, [stage])
        servers.wait_for("automation has asked for versions", lambda: len(automatic(servers)) > 0)
        servers.launch("small_release")
        servers.launch("small_release")
        servers.wait_for(
            "nothing is on", lambda: all(run["status"] in ("SUCCESS", "FAILURE") for run in servers.runs())
        )
    with loader.Root(tmp_path / "root") as root:
        made = [root.open(record.id).samples().collect() for record in root.versions("small")]
        assert [set(table["raw_sha256"]) for table in made] == [sound]
        assert verdict(root, "media", batches[1]) == verdict(root, "version", batches[2]) == "failed"
        assert verdict(root, "samples", batches[1]) == "none"
        assert verdict(root, "samples", batches[2]) == "published"


def automatic(servers: Deployment) -> list[str]:
    """Runs of `version` that automation asked for and that have ended."""
    return [
        run["runId"]
        for run in servers.runs()
        if run["tags"].get("dagster/from_automation_condition") and run["status"] in ("SUCCESS", "FAILURE")
    ]


def verdict(root: loader.Root, stage: str, batch: str) -> str:
    found = current_record(root.store, "small", stage, batch)
    return found.verdict if found else "none"
