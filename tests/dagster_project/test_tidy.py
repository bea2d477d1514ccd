"""Old runs go, except those that a page of Dagster's needs; on a real instance with real runs."""

import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteRepositoryOrigin

from dagster_project.tidy import superfluous, tidy_job

BATCHES = dg.DynamicPartitionsDefinition(name="batches")
CHECK = dg.AssetCheckSpec("sound", asset="per_batch")


@dg.asset(partitions_def=BATCHES, check_specs=[CHECK])
def per_batch(
    context: dg.AssetExecutionContext,
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult[None]]:
    if "fail" in context.run.tags:
        raise dg.Failure("as asked", allow_retries=False)
    yield dg.AssetCheckResult(passed=True)
    yield dg.MaterializeResult()


@dg.asset
def whole() -> dg.MaterializeResult[None]:
    return dg.MaterializeResult()


DEFS = dg.Definitions(
    assets=[per_batch, whole],
    jobs=[dg.define_asset_job("ingest", [per_batch]), dg.define_asset_job("release", [whole]), tidy_job],
)
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides={"telemetry": {"enabled": False}}) as made:
        made.add_dynamic_partitions("batches", ["1", "2"])
        yield made


def go(instance: dg.DagsterInstance, job: str, partition: str | None = None, **tags: str) -> str:
    result = DEFS.resolve_job_def(job).execute_in_process(
        instance=instance, partition_key=partition, tags=tags, run_config=QUIET, raise_on_error=False
    )
    return result.run_id


def superfluous_runs(
    instance: dg.DagsterInstance, before_s: float | None = None, max_runs: int = 100
) -> list[str]:
    return list(superfluous(instance, time.time() + 1 if before_s is None else before_s, max_runs))


def test_only_runs_that_nothing_needs_go(instance: dg.DagsterInstance) -> None:
    old_1, old_whole = go(instance, "ingest", "1"), go(instance, "release")
    failed_1 = go(instance, "ingest", "1", fail="yes")
    go(instance, "ingest", "1")  # the newest of partition 1
    go(instance, "release")  # the newest of `whole`
    go(instance, "ingest", "2")  # has the newest materialization of partition 2 ...
    go(instance, "ingest", "2", fail="yes")  # ... and this is its last run, the one to look at
    assert superfluous_runs(instance) == [old_1, old_whole, failed_1]


def test_what_is_not_old_stays_and_a_pass_is_bounded(instance: dg.DagsterInstance) -> None:
    go(instance, "ingest", "1")  # old, and stays: it must not use up the pass
    first = go(instance, "release")
    second = go(instance, "release")
    go(instance, "release")
    assert superfluous_runs(instance, before_s=time.time() - 3600) == []
    assert superfluous_runs(instance, max_runs=1) == [first]
    assert superfluous_runs(instance) == [first, second]


def test_runs_of_other_code_locations_are_theirs_to_delete(instance: dg.DagsterInstance) -> None:
    made: dict[str, list[str]] = {"here": [], "elsewhere": []}
    for location in [*made, *made]:
        at = GrpcServerCodeLocationOrigin(host="code", port=4266, location_name=location)
        run = instance.create_run_for_job(
            DEFS.resolve_job_def("release"),
            remote_job_origin=RemoteRepositoryOrigin(at, "__repository__").get_job_origin("release"),
            job_code_origin=JobPythonOrigin(
                "release", RepositoryPythonOrigin("python", ModuleCodePointer("tests", "defs", None))
            ),
        )
        instance.report_run_failed(run)
        made[location].append(run.run_id)
    assert superfluous_runs(instance) == []
    later_s = time.time() + 1
    assert list(superfluous(instance, later_s, 100, "__repository__@here")) == made["here"][:1]


@pytest.mark.parametrize("dry_run", [True, False])
def test_job_deletes_and_pages_still_show_every_partition(
    instance: dg.DagsterInstance, dry_run: bool
) -> None:
    old = go(instance, "ingest", "1")
    go(instance, "ingest", "1")
    keep_days = 1e-9
    time.sleep(0.01)
    config = {"ops": {"tidy": {"config": {"keep_days": keep_days, "dry_run": dry_run}}}}
    result = DEFS.resolve_job_def("penstock_tidy").execute_in_process(
        instance=instance, run_config=QUIET | config
    )
    assert result.success
    assert (instance.get_run_by_id(old) is None) == (not dry_run)
    assert instance.get_materialized_partitions(dg.AssetKey("per_batch")) == {"1"}


def test_retention_that_makes_no_sense_is_refused(instance: dg.DagsterInstance) -> None:
    with pytest.raises(ValueError, match="keep_days"):
        DEFS.resolve_job_def("penstock_tidy").execute_in_process(
            instance=instance, run_config={"ops": {"tidy": {"config": {"keep_days": 0}}}}
        )
