"""A run waits for a cluster's job: whatever becomes of its process, the job goes on, unless a person ended the run."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

import loader
from assets.arrivals.make_batches import discover
from dagster_project.definitions import batch_partitions
from loader.storage import open_store
from penstock.compute.job import JobFolder, job_ids
from penstock.stages import current_record
from resources.compute import WAITS
from tests.assets.conftest import jpeg
from tests.dagster_project import waiting_run
from tests.servers.patience import until

REPOSITORY = Path(__file__).parents[2]


class World:
    """A landing place of one batch, its root, and Dagster's databases."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "landing").mkdir()
        for number in range(3):
            (folder / "landing" / f"{number}.jpg").write_bytes(jpeg(64 + 2 * number, 64))
        (folder / "cluster.toml").write_text('engine = "local"\n[slot]\ncpus = 1\n')
        with loader.Root(folder / "root") as root:
            root.create()
            (self.batch,) = discover(root.store, open_store(str(folder / "landing")), "demo")
        with waiting_run.make_instance(folder) as instance:
            instance.add_dynamic_partitions(str(batch_partitions(waiting_run.SPEC).name), [self.batch])
        self.store = open_store(str(folder / "root"))

    def run(self) -> "tuple[str, subprocess.Popen[bytes]]":
        """Begin a run of the batch."""
        run_id = str(uuid.uuid4())
        command = [sys.executable, "-m", waiting_run.__name__, str(self.folder), self.batch, run_id]
        with (self.folder / f"{run_id}.log").open("wb") as log:
            path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(REPOSITORY)]))
            environment = {**os.environ, "PYTHONPATH": path}
            return run_id, subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def waiting(self) -> "tuple[str, subprocess.Popen[bytes], JobFolder]":
        """Begin a run, and return once its first job is placed: it waits for its turn."""
        run_id, process = self.run()

        def is_placed() -> bool:
            given = [JobFolder(self.store, id_).newest_attempt()[1] for id_ in job_ids(self.store)]
            return any(one is not None and one.placed for one in given)

        until(is_placed, "a job is placed", process=process)
        (id_,) = job_ids(self.store)
        return run_id, process, JobFolder(self.store, id_)

    @property
    def submitted(self) -> list[str]:
        """Attempts so far."""
        return (self.folder / "submitted").read_text().split()

    def dagster_run(self, run_id: str) -> dg.DagsterRun:
        with waiting_run.make_instance(self.folder) as instance:
            run = instance.get_run_by_id(run_id)
        assert run is not None
        return run


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    for name in made.submitted:
        waiting_run.Elsewhere(tmp_path).cancel(name)


def assert_ends_alone(
    world: World, run_id: str, process: "subprocess.Popen[bytes]", folder: JobFolder, end: signal.Signals
) -> None:
    """A run that waits for the job ends by the signal, and the job goes on."""
    tags = world.dagster_run(run_id).tags
    assert (tags[WAITS], tags["dagster/max_runtime"]) == (folder.id, "0")
    process.send_signal(end)
    process.wait()
    assert not folder.stopped


def test_run_whose_process_ends_leaves_its_job_and_the_next_run_finds_it(
    tmp_path: Path, world: World
) -> None:
    """The first is told to end and the second is killed, while both wait for the same job; the third is left alone."""
    first, process, folder = world.waiting()
    assert_ends_alone(world, first, process, folder, signal.SIGTERM)
    second, process = world.run()
    with waiting_run.make_instance(tmp_path) as instance:
        known = dg.RunsFilter(run_ids=[second], tags={WAITS: folder.id})
        until(lambda: instance.get_runs(known), "the next run waits for the job", process=process)
    assert_ends_alone(world, second, process, folder, signal.SIGKILL)
    (tmp_path / "go").touch()
    until(lambda: folder.done() == [0], "the job goes on without anybody who waits")
    last, process = world.run()
    assert process.wait() == 0, (tmp_path / f"{last}.log").read_text()[-3000:]
    assert len(world.submitted) == 3, "one attempt each: of hashes, audit and cut"
    assert world.submitted[0].startswith(f"pk-{folder.id[:12]}-")
    landed = current_record(world.store, "demo", "raw_objects", world.batch)
    assert landed is not None
    assert landed.run_id == last
    assert (
        f"job {folder.id} (demo/raw_objects/{world.batch}): 1 of 1 blocks"
        in (tmp_path / f"{last}.log").read_text()
    )
    assert world.dagster_run(last).tags[WAITS] == ""
    with waiting_run.make_instance(tmp_path) as instance:
        shown = instance.get_latest_materialization_event(dg.AssetKey(["demo", "raw_objects"]))
    assert shown is not None
    assert shown.asset_materialization is not None
    metadata = {name: one.value for name, one in shown.asset_materialization.metadata.items()}
    assert metadata["cluster_job"] == folder.id
    assert (metadata["cluster_attempts"], metadata["cluster_blocks"], metadata["cluster_units"]) == (1, 1, 3)
    assert metadata["verdict"] == "published"
    assert not list(job_ids(world.store))


def test_person_who_ends_the_run_ends_the_job(tmp_path: Path, world: World) -> None:
    run_id, process, folder = world.waiting()
    with waiting_run.make_instance(tmp_path) as instance:
        instance.report_run_canceling(world.dagster_run(run_id))
    process.send_signal(signal.SIGINT)
    process.wait()
    assert folder.stopped
    assert (
        f"job {folder.id} (demo/raw_objects/{world.batch}) was cancelled"
        in (tmp_path / f"{run_id}.log").read_text()
    )
    engine = waiting_run.Elsewhere(tmp_path)
    until(lambda: engine.status(world.submitted[0]).state == "ended", "its runner has ended")
