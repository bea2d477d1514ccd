"""The discovery sensor against a real instance: at least once, and once."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

import loader
from assets.discovery import BatchLimits, discover
from assets.manifests import manifests
from assets.spec import DatasetSpec
from assets.stages import partitions
from dagster_project.definitions import batches_of, build_defs
from dagster_project.sensors import discovery_sensor
from loader.storage import Store, open_store
from resources.compute import ComputeResource
from resources.storage import LandingResource, RootResource

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
DATASET = "demo"
SPEC = DatasetSpec(name=DATASET, max_reject_rate=1.0)
BATCHES = batches_of(SPEC)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(
        str(tmp_path / "dagster"), overrides={"telemetry": {"enabled": False}}
    ) as made:
        yield made


@pytest.fixture
def place(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "landing"))


class Daemon:
    """Does with a tick's answer what Dagster's daemon does: partitions first, then a run per new run key."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.instance = instance
        self.resources = {
            "root": RootResource(url=str(folder / "root")),
            "landing": LandingResource(url=str(folder / "landing")),
        }
        inline = {"compute": ComputeResource(engine="inline")}
        self.defs = build_defs(self.resources | inline, [SPEC])
        self.sensor = discovery_sensor(
            DATASET, BATCHES, "demo_ingest", limits=BatchLimits(max_objects=2), max_runs=3
        )

    def tick(self) -> list[dg.RunRequest]:
        context = dg.build_sensor_context(instance=self.instance, resources=self.resources)
        answer = self.sensor(context)
        if isinstance(answer, dg.SkipReason):
            return []
        assert isinstance(answer, dg.SensorResult)
        for request in answer.dynamic_partitions_requests or ():
            assert request.partitions_def_name == BATCHES.name
            self.instance.add_dynamic_partitions(str(BATCHES.name), list(request.partition_keys))
        return list(answer.run_requests or ())

    def launch(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        return self.defs.resolve_job_def("demo_ingest").execute_in_process(
            instance=self.instance,
            partition_key=request.partition_key,
            tags={**request.tags, "dagster/run_key": str(request.run_key)},
            run_config=QUIET,
            raise_on_error=False,
        )


@pytest.fixture
def daemon(tmp_path: Path, instance: dg.DagsterInstance) -> Daemon:
    return Daemon(tmp_path, instance)


def test_what_arrives_becomes_runs_and_each_batch_one(
    daemon: Daemon, place: Store, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    assert daemon.tick() == []
    for number in range(3):
        place.put(f"{number}.txt", b"%d" % number)
    first = daemon.tick()
    assert [request.run_key for request in first] == [request.partition_key for request in first]
    assert len(first) == 2
    assert daemon.tick() == first  # nothing was launched: it is asked for again
    for request in first:
        daemon.launch(request)
    assert daemon.tick() == []
    with loader.Root(tmp_path / "root") as root:
        expected = [found.batch for found in manifests(root.store, DATASET)]
        assert partitions(root.store, DATASET, "raw_objects") == expected
    assert [request.partition_key for request in first] == expected
    assert sorted(instance.get_dynamic_partitions(str(BATCHES.name))) == expected

    place.put("0.txt", b"overwritten")
    place.put("!late and below", b"x")
    (second,) = daemon.tick()
    daemon.launch(second)
    assert daemon.tick() == []
    with loader.Root(tmp_path / "root") as root:
        objects = [item.identity for found in manifests(root.store, DATASET) for item in found.objects]
    assert len(objects) == len(set(objects)) == 5
    assert instance.get_runs_count() == 3


def test_a_tick_that_died_after_its_manifests_is_made_up_for(
    daemon: Daemon, place: Store, tmp_path: Path
) -> None:
    place.put("a.txt", b"a")
    with loader.Root(tmp_path / "root") as root:
        root.create()
        (batch,) = discover(root.store, place, DATASET)
    (request,) = daemon.tick()
    assert request.partition_key == batch


def test_a_failed_run_is_not_started_again_by_itself_and_does_not_hold_up_others(
    daemon: Daemon, place: Store, instance: dg.DagsterInstance
) -> None:
    for number in range(10):
        place.put(f"{number}.txt", b"%d" % number)
    place.put("_origins.json", b"{")  # every run fails before it leaves a record
    first = daemon.tick()
    assert len(first) == 3  # no more at once
    assert not any(daemon.launch(request).success for request in first)
    second = daemon.tick()
    assert len(second) == 2
    assert not {request.run_key for request in first} & {request.run_key for request in second}
    place.put("_origins.json", b"{}")
    for request in second:
        daemon.launch(request)
    assert daemon.tick() == []
    assert instance.get_runs_count() == 5


def test_the_sensor_is_off_until_somebody_starts_it() -> None:
    sensor = discovery_sensor("my.data-set", BATCHES, "demo_ingest", minimum_interval_s=5)
    assert sensor.name == "my_data_set_discovery"
    assert sensor.minimum_interval_seconds == 5
    assert sensor.default_status == dg.DefaultSensorStatus.STOPPED
