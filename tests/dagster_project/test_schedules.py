"""The schedules of a dataset, and what Dagster's own instance makes of a featurizer that changes."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

import loader
from assets.arrivals.make_batches import BatchLimits, discover
from assets.features.refresh import Stale, stale
from assets.spec import DatasetSpec, Upkeep
from dagster_project import jobs
from dagster_project.definitions import build_defs
from loader.errors import InvalidSpec
from loader.storage import open_store
from resources.compute import ComputeResource
from resources.storage import LandingResource, RootResource
from tests.dagster_project.lengths import make_spec
from tests.refusals import refusal

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
NIGHT = datetime(2026, 11, 20, 1, tzinfo=UTC)
UPKEEP = Upkeep(tenant="acme", timezone="Europe/Berlin", refresh_partitions=2)


class Place:
    """A root, a landing place with three batches, and an instance of Dagster on SQLite."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.root, self.instance = loader.Root(folder / "root"), instance
        self.root.create()
        landing = open_store(str(folder / "landing"))
        for number in range(3):
            landing.put(f"{number}.txt", b"text " * (number + 1))
        self.batches = discover(self.root.store, landing, "notes", BatchLimits(max_objects=1))
        self.instance.add_dynamic_partitions("notes_raw_batch", self.batches)
        self.resources = {
            "root": RootResource(url=str(folder / "root")),
            "landing": LandingResource(url=str(folder / "landing")),
            "compute": ComputeResource(engine="inline"),
        }

    def defs(self, spec: DatasetSpec) -> dg.Definitions:
        return build_defs(self.resources, [spec])

    def run(self, what: str, spec: DatasetSpec, batch: str | None = None, **more: Any) -> None:
        job = self.defs(spec).resolve_job_def(f"notes_{what}")
        result = job.execute_in_process(
            instance=self.instance, partition_key=batch, run_config=QUIET, raise_on_error=False, **more
        )
        failed = [event.step_failure_data for event in result.all_events if event.is_step_failure]
        assert result.success, failed

    def stale(self, spec: DatasetSpec) -> set[tuple[str, str]]:
        """(asset, batch) of all that Dagster calls stale."""
        graph = self.defs(spec).resolve_asset_graph()
        resolver = CachingStaleStatusResolver(self.instance, graph, LoadingContextForTest(self.instance))
        return {
            (key.path[-1], batch)
            for key in graph.materializable_asset_keys
            for batch in (self.batches if graph.get(key).is_partitioned else [""])
            if resolver.get_status(key, batch or None) == StaleStatus.STALE
        }

    def tick(self, spec: DatasetSpec, night: datetime = NIGHT) -> Any:
        made = self.defs(spec)
        schedule = made.resolve_schedule_def("notes_refresh_schedule")
        with dg.build_schedule_context(
            self.instance,
            scheduled_execution_time=night,
            resources=self.resources,
            repository_def=made.get_repository_def(),
        ) as context:
            return schedule.evaluate_tick(context)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "dagster").mkdir()
    quiet = {"telemetry": {"enabled": False}}
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster"), overrides=quiet) as instance:
        made = Place(tmp_path, instance)
        with made.root:
            yield made


def test_new_featurizer_is_refreshed_night_by_night_and_nothing_else_is_stale(place: Place) -> None:
    first, second = make_spec(1, upkeep=UPKEEP), make_spec(2, upkeep=UPKEEP)
    for batch in place.batches:
        place.run("ingest", first, batch)
    place.run("release", first)
    assert place.stale(first) == set()
    assert "no feature of notes is stale" in str(place.tick(first).skip_message)

    column = {("feature_lengths", batch) for batch in place.batches}
    assert place.stale(second) == column
    asked = place.tick(second).run_requests
    assert [one.partition_key for one in asked] == place.batches[:2]  # no more a night, the oldest first
    assert {tuple(one.asset_selection) for one in asked} == {(dg.AssetKey(["notes", "feature_lengths"]),)}
    assert asked[0].tags["dagster/priority"] == "-10"
    assert asked[0].tags["penstock/tenant"] == "acme"
    place.instance.create_run_for_job(
        place.defs(second).resolve_job_def("notes_refresh"),
        tags={"dagster/partition": place.batches[0]},
        status=dg.DagsterRunStatus.NOT_STARTED,
    )
    later = place.tick(second, NIGHT + timedelta(days=1)).run_requests
    assert [one.partition_key for one in later] == place.batches[
        1:
    ]  # what is under way is not asked for again
    assert not {one.run_key for one in later} & {one.run_key for one in asked}

    for one in asked:
        place.run("refresh", second, one.partition_key, asset_selection=one.asset_selection)
    place.run("release", second)
    assert [record.number for record in place.root.versions("notes")] == [1, 2, 3, 4]
    group = place.root.open("notes@4").manifest["groups"]["lengths_r2"]
    assert (group["n_parts"], place.root.open("notes@4").manifest["n_parts"]) == (2, 3)
    assert {one for one in place.stale(second) if one[0].startswith("feature_")} == {batch_column(place, 2)}
    assert [one.partition for one in stale(place.root, second)] == place.batches[2:]


def test_refresh_skips_a_batch_that_is_no_partition(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new instance of Dagster, whose partitions discovery has still to restore."""
    spec = make_spec(1, upkeep=UPKEEP)

    def stale_batches(*given: Any) -> list[Stale]:
        stage = "feature_lengths"
        return [Stale(stage=stage, partition=batch, was="", version="1") for batch in place.batches]

    monkeypatch.setattr(jobs, "stale", stale_batches)
    place.instance.delete_dynamic_partition("notes_raw_batch", place.batches[0])
    requests = place.tick(spec).run_requests
    assert [request.partition_key for request in requests] == place.batches[1:]
    for batch in place.batches[1:]:
        place.instance.delete_dynamic_partition("notes_raw_batch", batch)
    assert "3 are no partitions" in str(place.tick(spec).skip_message)


def batch_column(place: Place, number: int) -> tuple[str, str]:
    return "feature_lengths", place.batches[number]


def test_schedules_are_off_and_keep_to_the_dataset_s_clock(place: Place) -> None:
    made = place.defs(make_spec(1, upkeep=UPKEEP))
    mine = [one for one in made.schedules or () if one.name.startswith("notes")]
    assert {(one.name, one.cron_schedule, one.execution_timezone) for one in mine} == {
        ("notes_release_schedule", "0 3 * * *", "Europe/Berlin"),
        ("notes_reconcile_schedule", "0 5 * * 6", "Europe/Berlin"),
        ("notes_refresh_schedule", "0 1 * * *", "Europe/Berlin"),
    }
    assert {one.default_status for one in mine} == {dg.DefaultScheduleStatus.STOPPED}
    none = place.defs(make_spec(1, upkeep=Upkeep(release="", refresh="", reconcile="")))
    assert {one.name for one in none.schedules or ()} == {"penstock_tidy_weekly", "penstock_collect_weekly"}


def test_jobs_say_whose_they_are_and_who_goes_first(place: Place) -> None:
    made = place.defs(make_spec(1, upkeep=UPKEEP))
    tags = {name: made.resolve_job_def(f"notes_{name}").tags for name in ("ingest", "release", "refresh")}
    order = sorted(tags, key=lambda name: -int(tags[name]["dagster/priority"]))
    assert order == ["ingest", "release", "refresh"]
    assert {told["penstock/tenant"] for told in tags.values()} == {"acme"}
    assert tags["release"]["penstock/release"] == "notes"
    graph = made.resolve_asset_graph()
    pools = {key.path[-1]: graph.get(key).pools for key in graph.materializable_asset_keys}
    assert {name for name, found in pools.items() if found == {"notes"}} == {
        "media",
        "units",
        "feature_lengths",
        "feature_loudness",
    }


def test_versions_have_the_freshness_of_the_dataset(place: Place) -> None:
    upkeep = Upkeep(fresh_within=timedelta(days=2), warn_within=timedelta(days=1))
    for spec, expected in ((make_spec(1, upkeep=upkeep), (2 * 86_400, 86_400)), (make_spec(1), None)):
        node = place.defs(spec).resolve_asset_graph().get(dg.AssetKey(["notes", "version"]))
        policy: Any = node.freshness_policy
        windows = [policy.fail_window, policy.warn_window] if policy else []
        found = tuple(one.to_timedelta().total_seconds() for one in windows) or None
        assert found == expected


@pytest.mark.parametrize(
    "wrong", [{"tenant": "a b"}, {"refresh_partitions": 0}, {"warn_within": timedelta(days=1)}]
)
def test_what_upkeep_refuses(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with refusal(InvalidSpec, what=name, given=value):
        Upkeep(**wrong)


def test_collector_looks_and_deletes_nothing(place: Place) -> None:
    place.run("ingest", make_spec(1), place.batches[0])
    (txn,) = place.root.state.txns
    place.root.abort(txn, "given up")
    gone = [info for folder in ("data/", "heartbeats/") for info in place.root.store.list(folder)]
    job = place.defs(make_spec(1)).resolve_job_def("penstock_collect")
    result = job.execute_in_process(instance=place.instance, run_config=QUIET)
    (output,) = [event for event in result.all_events if event.event_type_value == "STEP_OUTPUT"]
    told: Any = output.event_specific_data
    assert told.metadata["condemned_objects"].value == len(gone)
    assert told.metadata["condemned_bytes"].value == sum(info.nbytes for info in gone)
    assert [info for folder in ("data/", "heartbeats/") for info in place.root.store.list(folder)] == gone
