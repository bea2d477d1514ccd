"""What ticks ask of the root's store, as batches become many: pages of listings grow, and nothing else."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.pipeline.ticks import cost, refresh, release, tick
from benchmarks.pipeline.world import World

SENSORS = ("discovery", "watch", "training_reports", "quarantine_reports")
FEW, MANY = 10, 30  # neither fills a page; from 20 to 30 there is no new hint of manifests


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n", encoding="utf-8")
    made = World(tmp_path / "world", home)
    yield made
    made.close()


def grow_world(world: World, to: int) -> None:
    for _ in world.grow(to):
        pass


def requests(world: World) -> dict[str, int]:
    """Of a tick of each, when the tick before has seen all that there is."""
    steps = {name: tick(world, name) for name in SENSORS} | {"refresh": refresh(world)}
    for step in steps.values():
        step()
    return {name: cost(world, step).requests for name, step in steps.items()}


def test_tick_asks_as_much_of_many_batches_as_of_few(world: World) -> None:
    grow_world(world, FEW)
    few = requests(world)
    for upto in (MANY - FEW, MANY):
        grow_world(world, upto)
    many = requests(world)
    # A refresh opens the newest version, whose tables are in as many files as log2 of the versions.
    assert abs(few.pop("refresh") - many.pop("refresh")) <= 2
    assert many == few
    assert max(few.values()) <= 12


def test_tick_reads_events_since_the_last_tick(world: World) -> None:
    grow_world(world, FEW)
    before = requests(world)
    grow_world(world, FEW + 1)
    of_one = {
        "discovery": 2 + 1,  # entries of the log, a manifest
        "watch": 2 + 5,  # entries of the log, records of the stages
        "refresh": 2 + 2,  # entries of the log, records of units and feature
    }
    for name, more in of_one.items():
        step = refresh(world) if name == "refresh" else tick(world, name)
        assert cost(world, step).requests <= before[name] + more + 2  # probes behind the newest entry


def test_release_reads_each_batch_and_not_the_log_for_each(world: World) -> None:
    asked = []
    for upto in (FEW, MANY):
        grow_world(world, upto)
        asked.append(cost(world, release(world)).requests)
    # Two reads of the samples' record, and the two entries of the log that a process reads which has read nothing.
    assert (asked[1] - asked[0]) / (MANY - FEW) <= 4.1
