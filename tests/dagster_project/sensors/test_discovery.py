"""The discovery sensor against a real instance: at least once, and once."""

import io
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from PIL import Image

import loader
from assets.arrivals.batch_manifests import manifests
from assets.arrivals.batches import IngestBatches
from assets.arrivals.make_batches import discover, stage_batches
from assets.ingest.published import published_labels
from assets.pipeline.stages import recut_requests, request_recut
from assets.sources import BatchLimits
from assets.spec import DatasetSpec
from dagster_project.definitions import batch_partitions, build_defs
from dagster_project.sensors import discovery
from dagster_project.sensors.discovery import discovery_sensor
from loader.storage import Store, open_store
from penstock.stages import partitions
from resources.compute import ComputeResource
from resources.storage import LandingResource, RootResource

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
DATASET = "demo"
SPEC = DatasetSpec(name=DATASET, label_from="folder", max_reject_rate=1.0)
BATCHES = batch_partitions(SPEC)


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
        self.repository = self.defs.get_repository_def()
        spec = replace(SPEC, batch=BatchLimits(max_objects=2, max_wait_s=0))
        self.sensor = discovery_sensor(spec, BATCHES, max_runs=3)

    def tick(self) -> list[dg.RunRequest]:
        context = dg.build_sensor_context(
            instance=self.instance,
            instance_ref=self.instance.get_ref(),
            resources=self.resources,
            repository_def=self.repository,
        )
        answer = self.sensor(context)
        if isinstance(answer, dg.SkipReason):
            return []
        assert isinstance(answer, dg.SensorResult)
        # Dagster's own check of a tick, which raises if a request names an unknown partition.
        self.sensor.resolve_run_requests(
            list(answer.run_requests or ()), context, None, list(answer.dynamic_partitions_requests or ())
        )
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

    def release(self) -> dg.ExecuteInProcessResult:
        return self.defs.resolve_job_def("demo_release").execute_in_process(
            instance=self.instance, run_config=QUIET, raise_on_error=False
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


def photo(shade: int) -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (32, 24), (shade, 0, 0)).save(sink, "JPEG")
    return sink.getvalue()


@pytest.mark.parametrize(
    ("landed", "labels"),
    [
        ({"0.jpg": 10, "1.jpg": 20, "2.jpg": 10, "3.jpg": 30}, [""]),  # the same bytes in two batches
        ({"a/0.jpg": 10, "a/1.jpg": 20, "b/2.jpg": 30, "b/3.jpg": 40}, ["a", "b"]),  # both have a new class
    ],
)
def test_batch_that_another_one_has_overtaken_is_cut_again(
    daemon: Daemon, place: Store, tmp_path: Path, landed: dict[str, int], labels: list[str]
) -> None:
    for name, shade in landed.items():
        place.put(name, photo(shade))
    for request in daemon.tick():
        daemon.launch(request)
    assert daemon.release().success
    with loader.Root(tmp_path / "root") as root:
        (second,) = [batch for batch in IngestBatches(DATASET).current(root) if batch.standing == "ready"]
    (request,) = daemon.tick()
    assert request.run_key != request.partition_key == second.key
    assert daemon.tick() == [request]
    assert daemon.launch(request).success
    assert daemon.tick() == []
    assert daemon.release().success
    with loader.Root(tmp_path / "root") as root:
        assert [batch.standing for batch in IngestBatches(DATASET).current(root)] == ["published"] * 2
        samples = root.open(f"{DATASET}@latest").samples().collect()
        assert samples["raw_sha256"].n_unique() == len(samples) == len(set(landed.values()))
        assert published_labels(root, DATASET) == labels
        assert not list(recut_requests(root.store, DATASET))


def test_run_that_was_made_and_not_launched_is_asked_for_again(
    daemon: Daemon, place: Store, instance: dg.DagsterInstance
) -> None:
    """As the daemon leaves it whose database goes away in between: it launches that run when it is asked again."""
    place.put("a.txt", b"a")
    (request,) = daemon.tick()
    tags = {"dagster/run_key": str(request.run_key), "dagster/partition": str(request.partition_key)}
    run = dg.DagsterRun(job_name="demo_ingest", tags=tags)
    instance.add_run(run)
    assert [one.run_key for one in daemon.tick()] == [request.run_key]
    instance.report_run_failed(run)
    assert request.run_key not in [one.run_key for one in daemon.tick()]


def test_tick_that_died_after_its_manifests_is_repeated(daemon: Daemon, place: Store, tmp_path: Path) -> None:
    place.put("a.txt", b"a")
    with loader.Root(tmp_path / "root") as root:
        root.create()
        (batch,) = discover(root.store, place, DATASET)
    (request,) = daemon.tick()
    assert request.partition_key == batch


def test_instance_that_has_lost_everything_is_given_its_partitions_back_and_runs_nothing_twice(
    daemon: Daemon, place: Store, tmp_path: Path
) -> None:
    for number in range(4):
        place.put(f"{number}.txt", b"%d" % number)
    done, waiting = daemon.tick()
    daemon.launch(done)
    (tmp_path / "new").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "new"), {"telemetry": {"enabled": False}}) as new:
        daemon.instance = new
        (request,) = daemon.tick()
        assert request == waiting
        assert set(new.get_dynamic_partitions(str(BATCHES.name))) == {done.run_key, waiting.run_key}
        daemon.launch(request)
        assert daemon.tick() == []


def test_recut_brings_its_partition_back_before_its_turn(
    daemon: Daemon, place: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a batch after the first 500, which a tick of a new instance does not restore."""
    monkeypatch.setattr(discovery, "_RESTORED_AT_ONCE", 0)
    place.put("a.txt", b"a")
    (request,) = daemon.tick()
    daemon.launch(request)
    with loader.Root(tmp_path / "root") as root:
        (batch,) = stage_batches(root.store, DATASET, "samples")
        request_recut(root.store, DATASET, batch, "1" * 32)
    (tmp_path / "new").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "new"), {"telemetry": {"enabled": False}}) as new:
        daemon.instance = new
        (recut,) = daemon.tick()
        assert recut.partition_key == batch
        assert new.get_dynamic_partitions(str(BATCHES.name)) == [batch]


def test_lost_run_brings_its_deleted_partition_back(
    daemon: Daemon, place: Store, instance: dg.DagsterInstance
) -> None:
    place.put("a.txt", b"a")
    (request,) = daemon.tick()
    tags = {"dagster/run_key": str(request.run_key), "dagster/partition": str(request.partition_key)}
    run = instance.create_run_for_job(daemon.defs.resolve_job_def("demo_ingest"), tags=tags)
    instance.report_run_failed(run)
    instance.delete_dynamic_partition(str(BATCHES.name), str(request.partition_key))
    (repeated,) = daemon.tick()
    assert repeated.partition_key == request.partition_key
    assert instance.get_dynamic_partitions(str(BATCHES.name)) == [request.partition_key]


def test_partition_that_is_no_batch_does_not_stop_discovery(
    daemon: Daemon, place: Store, instance: dg.DagsterInstance
) -> None:
    instance.add_dynamic_partitions(str(BATCHES.name), ["added by hand"])
    place.put("a.txt", b"a")
    assert len(daemon.tick()) == 1


def test_failed_run_is_not_started_again_by_itself_and_does_not_hold_up_others(
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


def test_sensor_is_off_until_somebody_starts_it() -> None:
    spec = DatasetSpec(name="my.data-set", streaming=True, batch=BatchLimits(max_wait_s=0))
    sensor = discovery_sensor(spec, BATCHES)
    assert sensor.name == "my_data_set_discovery"
    assert sensor.minimum_interval_seconds == 5
    assert sensor.default_status == dg.DefaultSensorStatus.STOPPED
