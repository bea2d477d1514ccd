"""What sensors' ticks and a release cost over a World: seconds, processor seconds and requests to the store."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import dagster as dg

import loader
from assets.release.version_asset import publish_batches
from loader.errors import StageNotPublished

from .world import DATASET, World


class Cost(NamedTuple):
    """wall_s and cpu_s: of this process; requests: to the root's store."""

    wall_s: float
    cpu_s: float
    requests: int


def cost(world: World, what: Callable[[], Any]) -> Cost:
    """Of one call."""
    far = world.resource.far()
    before, wall, cpu = far.requests, time.perf_counter(), time.process_time()
    what()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu, far.requests - before)


def tick(world: World, sensor: str) -> Callable[[], Any]:
    """One tick of a sensor of the dataset, as the code server evaluates it when its daemon asks."""
    found = world.defs.resolve_sensor_def(f"{DATASET}_{sensor}")

    def evaluate() -> Any:
        with dg.build_sensor_context(
            instance=world.instance, resources=world.resources, sensor_name=found.name
        ) as context:
            return found.evaluate_tick(context)

    return evaluate


def refresh(world: World) -> Callable[[], Any]:
    """One tick of the dataset's schedule of refreshes."""
    schedule = world.defs.resolve_schedule_def(f"{DATASET}_refresh_schedule")

    def evaluate() -> Any:
        with dg.build_schedule_context(
            world.instance,
            scheduled_execution_time=datetime.now(UTC),
            resources=world.resources,
            repository_def=world.defs.get_repository_def(),
        ) as context:
            return schedule.evaluate_tick(context)

    return evaluate


def release(world: World, latency_s: float = 0.0) -> Callable[[], Any]:
    """A release with nothing new; every request is answered so late."""

    def publish() -> None:
        far = world.resource.far()
        far.latency_s = latency_s
        try:
            with loader.Root(world.root_url) as root:
                root._use(far)  # type: ignore[arg-type]
                publish_batches(root, DATASET, "bench")
        except StageNotPublished as error:
            raise AssertionError("every batch of a World is published") from error
        finally:
            far.latency_s = 0.0

    return publish
