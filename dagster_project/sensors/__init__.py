"""Registry of a dataset's sensors, one line each."""

from collections.abc import Callable

import dagster as dg

from assets.spec import DatasetSpec
from dagster_project.sensors import alerting, discovery, release, trainings

Make = Callable[[DatasetSpec, dg.DynamicPartitionsDefinition], dg.SensorDefinition | None]
"""(dataset, its batches) -> a sensor whose name begins with `dagster_name(spec.name)`, or None."""

SENSORS: dict[str, Make] = {
    "discovery": discovery.discovery_sensor,
    "training": lambda spec, batches: trainings.training_sensor(spec.name),
    "quarantine": lambda spec, batches: trainings.quarantine_sensor(spec),
    "release": lambda spec, batches: release.release_sensor(spec.name) if spec.streaming else None,
    "watch": alerting.watch_sensor,
}


def dataset_sensors(spec: DatasetSpec, batches: dg.DynamicPartitionsDefinition) -> list[dg.SensorDefinition]:
    """Return every sensor of a dataset."""
    sensors = (make(spec, batches) for make in SENSORS.values())
    return [sensor for sensor in sensors if sensor is not None]
