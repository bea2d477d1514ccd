"""A backfill of many partitions as the pages start it: failures in the middle, the daemon killed, nothing twice."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest

import loader
from assets.arrivals.make_batches import BatchLimits, discover
from assets.ingest.media import media_stage
from assets.ingest.raw_objects import land
from assets.ingest.units import units_stage
from loader.storage import open_store
from penstock.compute.pool import InlineCompute
from penstock.stages import current_records
from tests.dagster_project.notes_location import SPEC
from tests.servers.deployment import REPOSITORY, RUNS_IN_THE_DAEMON, Deployment, deployment

STAGE = "feature_lengths"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory, where there is room: most of the runs would be fsync, and processes are killed here, not machines."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or shutil.disk_usage(memory).free < 2**29:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="penstock-") as made:
        yield Path(made)


class Place:
    """A root with n batches."""

    def __init__(self, folder: Path, n: int) -> None:
        self.environment = {
            "PENSTOCK_ROOT": str(folder / "root"),
            "PENSTOCK_LANDING": str(folder / "landing"),
        }
        self.root, self.landing = loader.Root(folder / "root"), open_store(str(folder / "landing"))
        self.root.create()
        for number in range(n):
            self.landing.put(f"{number:03d}.txt", b"text number %d" % number)
        self.batches = self.discovered(BatchLimits(max_objects=1, max_wait_s=0))

    def discovered(self, limits: BatchLimits) -> list[str]:
        return discover(self.root.store, self.landing, "notes", limits)

    def cut(self, batches: list[str]) -> None:
        """What comes before the feature, without Dagster."""
        for batch in batches:
            land(self.root.store, self.landing, dataset="notes", partition=batch, run_id="r")
            media_stage(self.root, self.landing, InlineCompute(), SPEC, partition=batch, run_id="r")
            units_stage(self.root, self.landing, InlineCompute(), SPEC, partition=batch, run_id="r")

    def done(self) -> dict[str, int]:
        """batch -> number of the feature's record."""
        return {name: one.r for name, one in current_records(self.root.store, "notes", STAGE).items()}


def again(servers: Deployment, backfill: str) -> str:
    """Once more, from failure."""
    query = """mutation($p: ReexecutionParams!) { reexecutePartitionBackfill(reexecutionParams: $p) {
        __typename ... on LaunchBackfillSuccess { backfillId } } }"""
    answer = servers.ask(query, p={"parentRunId": backfill, "strategy": "FROM_FAILURE"})
    return str(answer["reexecutePartitionBackfill"]["backfillId"])


def abandon_run(servers: Deployment, run: dg.DagsterRun) -> None:
    """As a person does with a run whose process is gone."""
    query = """mutation($id: String!) { terminateRun(
        runId: $id, terminatePolicy: MARK_AS_CANCELED_IMMEDIATELY) { __typename } }"""
    assert servers.ask(query, id=run.run_id)["terminateRun"]["__typename"] == "TerminateRunSuccess"


def standing(servers: Deployment) -> dict[str, str]:
    """What the page of the asset says of its column, by batch."""
    query = """{ assetNodes(assetKeys: [{path: ["notes", "feature_lengths"]}]) {
        staleStatusByPartition partitionKeys } }"""
    (node,) = servers.ask(query)["assetNodes"]
    return dict(zip(node["partitionKeys"], node["staleStatusByPartition"], strict=True))


@pytest.mark.server
def test_failures_in_the_middle_and_a_killed_daemon(
    folder: Path, at_scale: Callable[[int, int], int]
) -> None:
    n = at_scale(30, 120)
    place = Place(folder, n)
    bad = set(place.batches[n // 2 : n // 2 + at_scale(2, 5)])
    place.cut([batch for batch in place.batches if batch not in bad])
    definitions = REPOSITORY / "tests" / "dagster_project" / "notes_location.py"
    with (
        deployment(
            folder / "dagster", definitions, place.environment, settings=RUNS_IN_THE_DAEMON
        ) as servers,
        dg.DagsterInstance.from_config(str(servers.home)) as instance,
    ):

        def runs(*statuses: dg.DagsterRunStatus) -> dict[str, dg.DagsterRun]:
            found = instance.get_runs(dg.RunsFilter(statuses=statuses or None))
            return {run.run_id: run for run in found}

        def attempts() -> Counter[str]:
            return Counter(run.tags["dagster/partition"] for run in runs().values())

        instance.add_dynamic_partitions("notes_raw_batch", place.batches)
        first = servers.backfill([["notes", STAGE]], place.batches)
        servers.wait_for("a quarter is done", lambda: len(place.done()) >= n // 4, 900)
        servers.kill("daemon")
        assert n // 4 <= len(place.done()) < n - len(bad)
        killed = runs(dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING)
        queued = runs(dg.DagsterRunStatus.QUEUED)
        may_miss = bad | {run.tags["dagster/partition"] for run in killed.values()}
        assert len(killed) <= 1
        assert queued

        # While nobody works, something arrives: it goes before what waits.
        place.landing.put("later.txt", b"live")
        (live,) = place.discovered(BatchLimits(max_wait_s=0))
        instance.add_dynamic_partitions("notes_raw_batch", [live])
        ingest = servers.launch("notes_ingest", {"dagster/partition": live})
        for run in killed.values():
            abandon_run(servers, run)
        servers.start("daemon")
        assert servers.backfill_ended(first) == "COMPLETED_FAILED"
        missing = set(place.batches) - set(place.done())
        assert bad <= missing <= may_miss
        before = attempts()
        assert before == Counter([*place.batches, live])  # each once
        begun = {one.dagster_run.run_id: one.start_time or 1e12 for one in instance.get_run_records()}
        assert begun[ingest] < min(begun[run] for run in queued)

        place.cut(sorted(bad))
        second = again(servers, first)
        assert servers.backfill_ended(second) == "COMPLETED_SUCCESS"
        # One that was killed behind its last record may be done again, and need not be.
        assert missing <= set(attempts() - before) <= may_miss
        assert set(place.done()) == {*place.batches, live}
        assert set(place.done().values()) == {1}  # every batch was computed once
        shards = [
            info
            for info in place.root.store.list("data/")
            if info.key.endswith(f"{STAGE[8:]}-text_00000_0.tar")
        ]
        # One that was killed between its shard and its record left a shard that nobody names.
        assert 0 <= len(shards) - (n + 1) <= len(missing - bad)
        shown = standing(servers)
        assert {shown[batch] for batch in place.batches} == {"FRESH"}
