"""Reports of trainings on a real instance: each shown once, whatever dies in between."""

from pathlib import Path

import dagster as dg
import pytest

import loader
from assets.pages.training_asset import REPORT_TAG, training_key, training_runs
from dagster_project.definitions import build_defs
from dagster_project.sensors.trainings import training_sensor
from penstock.train.run_folder import RunFolder
from penstock.train.run_spec import RunSpec
from resources.storage import RootResource

DATASET = "demo"
KEY = training_key(DATASET)


@pytest.fixture
def root(tmp_path: Path) -> loader.Root:
    made = loader.Root(tmp_path / "root")
    with made.write(DATASET) as writer:
        for number in range(8):
            writer.add(f"{number:03d}", {"cls": number})
    return made


@pytest.fixture
def plan(root: loader.Root) -> loader.Plan:
    return loader.plan({"p": root.open(f"{DATASET}@1")}, seed=1, global_batch=4)


class Daemon:
    """Does with a tick's answer what Dagster's daemon does, in its order: events, partitions, and the cursor last."""

    def __init__(self, root: loader.Root, instance: dg.DagsterInstance, per_tick: int = 50) -> None:
        self.instance, self.cursor = instance, None
        self.resources = {"root": RootResource(url=root.url)}
        self.sensor = training_sensor(DATASET, per_tick=per_tick)

    def tick(self, *, dies_after: int | None = None) -> int:
        context = dg.build_sensor_context(
            instance=self.instance, resources=self.resources, cursor=self.cursor
        )
        answer = self.sensor(context)
        if isinstance(answer, dg.SkipReason):
            return 0
        events = list(answer.asset_events)
        for event in events[:dies_after]:
            self.instance.report_runless_asset_event(event)
        if dies_after is not None:
            return 0
        for request in answer.dynamic_partitions_requests:
            self.instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
        self.cursor = answer.cursor
        return len(events)


def materializations(instance: dg.DagsterInstance) -> list[dg.AssetMaterialization]:
    """Oldest first."""
    found = instance.fetch_materializations(KEY, limit=1000, ascending=True).records
    return [record.asset_materialization for record in found]


def tell(root: loader.Root, plan: loader.Plan, run: str, first: int, last: int, **more: object) -> None:
    assert loader.report(root, plan, run=run, steps=(first, last), strict=True, **more)


def test_report_becomes_a_materialization(
    root: loader.Root, plan: loader.Plan, instance: dg.DagsterInstance
) -> None:
    daemon = Daemon(root, instance)
    assert daemon.tick() == 0
    tell(root, plan, "big", 0, 99, checkpoint="s3://runs/big/100", metrics={"loss": 0.5})
    assert daemon.tick() == 1
    assert daemon.tick() == 0
    (event,) = materializations(instance)
    assert event.partition == "big"
    assert instance.get_dynamic_partitions(str(training_runs(DATASET).name)) == ["big"]
    told = {name: value.value for name, value in event.metadata.items()}
    assert (told["plan"], told["first_step"], told["last_step"]) == (plan.hash, 0, 99)
    assert (told["checkpoint"], told["metric loss"]) == ("s3://runs/big/100", 0.5)
    assert root.open("demo@1").id in told["versions"]
    assert f"penstock explain {plan.hash} --step 99 --root {root.url}" in told["samples of a step"]
    assert told["version_asset"] == dg.AssetKey([DATASET, "version"])


def test_training_with_a_trail_leads_to_its_page(
    root: loader.Root, plan: loader.Plan, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = loader.Loader(
        plan, 0, 1, steps=1, framework="numpy", workers=0, trail=loader.Trail(root, run="seen")
    )
    with batches:
        list(batches)
    daemon = Daemon(root, instance)
    tell(root, plan, "seen", 0, 0)
    assert daemon.tick() == 1
    monkeypatch.setenv("PENSTOCK_VIEW_URL", "http://view.example")
    tell(root, plan, "seen", 0, 1)
    tell(root, plan, "unseen", 0, 1)
    assert daemon.tick() == 2
    before, linked, unseen = materializations(instance)[-3:]
    assert "viewer" not in before.metadata
    assert linked.metadata["viewer"].value == "http://view.example/r/seen"
    assert "(http://view.example/v/demo/1)" in linked.metadata["versions"].value
    assert "viewer" not in unseen.metadata


def test_report_of_a_recorded_run_shows_its_usage(
    root: loader.Root, plan: loader.Plan, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two starts of 1,000 s with 8 GPUs each; the second does 30 of 90 steps again."""
    folder = RunFolder(root.store, "big")
    folder.put_spec(
        RunSpec(run="big", command=("true",), record=root.url, nodes="2", ranks_per_node=4, gpus_per_node=4)
    )
    with monkeypatch.context() as patched:
        for begun_s, steps, end in ((10_000, (0, 90), "failed"), (20_000, (60, 150), "ended")):
            patched.setattr("time.time_ns", lambda at_s=begun_s: at_s * 10**9)
            attempt = folder.begin_attempt({"launcher": "slurm 8", "ranks": 8})
            patched.setattr("time.time_ns", lambda at_s=begun_s + 100: at_s * 10**9)
            folder.put_event(attempt, 0, "first_batch", steps[0], {})
            patched.setattr("time.time_ns", lambda at_s=begun_s + 1000: at_s * 10**9)
            folder.put_event(attempt, 1, end, steps[1], {})
    daemon = Daemon(root, instance)
    tell(root, plan, "big", 0, 149)
    tell(root, plan, "unrecorded", 0, 1)
    assert daemon.tick() == 2
    big, unrecorded = materializations(instance)
    assert (big.metadata["attempts"].value, big.metadata["gpu_hours"].value) == (2, 2 * 1000 * 8 / 3600)
    assert big.metadata["goodput"].value == pytest.approx((900 + 600) / 2000)
    assert not {"attempts", "goodput", "gpu_hours"} & unrecorded.metadata.keys()
    root.store.put(folder.key("attempts/000001.json"), b"{")
    tell(root, plan, "big", 0, 151)
    assert daemon.tick() == 1
    assert "000001.json is not a valid start" in materializations(instance)[-1].metadata["run record"].value


@pytest.mark.parametrize("dies_after", [0, 1, 2, 5])
def test_tick_that_dies_shows_nothing_twice_and_loses_nothing(
    root: loader.Root, plan: loader.Plan, instance: dg.DagsterInstance, dies_after: int
) -> None:
    daemon = Daemon(root, instance, per_tick=3)
    for first in range(5):
        tell(root, plan, f"run-{first % 2}", first, first)
    tell(root, plan, "run-0", 0, 0)  # again, behind others: a number of its own
    daemon.tick(dies_after=dies_after)
    n_shown = [daemon.tick() for _ in range(4)]
    assert max(n_shown) <= 3
    assert [event.metadata["first_step"].value for event in materializations(instance)] == list(range(5))
    tags = [event.tags[REPORT_TAG] for event in materializations(instance)]
    assert len(set(tags)) == 5
    another = Daemon(root, instance)  # somebody reset the sensor: it begins at the first report again
    assert another.tick() == 0
    assert another.cursor == daemon.cursor == "6"


def test_what_is_not_true_is_not_shown(
    root: loader.Root, plan: loader.Plan, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    other = loader.Root(tmp_path / "other")
    with other.write(DATASET) as writer:
        for number in range(8):
            writer.add(f"other-{number}", {"cls": number})
    elsewhere = loader.plan({"p": other.open(f"{DATASET}@1")}, seed=1, global_batch=4)
    for told in loader.report(other, elsewhere, run="big", steps=(0, 1), strict=True):
        root.store.put(told.key, told.to_json())  # of a version that this root never had
        pointer = b'{"report": "%s"}' % told.key.encode()
        root.store.put("reports/training/demo/000000000001.json", pointer)
    root.store.put("reports/training/demo/000000000002.json", b"not JSON")
    tell(root, plan, "small", 0, 1)
    root.store.delete_many([f"plans/{plan.hash}.json"])
    tell(root, loader.plan({"p": root.open("demo@1")}, seed=2, global_batch=4), "good", 0, 1)
    daemon = Daemon(root, instance)
    assert daemon.tick() == 1
    assert [event.partition for event in materializations(instance)] == ["good"]
    assert daemon.cursor == "4"


def test_page_of_trainings_depends_on_the_version(root: loader.Root) -> None:
    graph = build_defs({"root": RootResource(url=root.url)}).resolve_asset_graph()
    node = graph.get(KEY)
    assert node.parent_keys == {dg.AssetKey([DATASET, "version"])}
    assert not node.is_materializable
    assert node.is_partitioned
