"""The sensors of a dataset: one file each, and one line in this registry."""

from collections.abc import Callable

import dagster as dg

from assets.spec import DatasetSpec
from dagster_project.sensors import alarms, discovery, quarantine, release, training

Make = Callable[[DatasetSpec, dg.DynamicPartitionsDefinition], dg.SensorDefinition | None]
"""Function of (the dataset, its batches) that makes a sensor, whose name begins with `dagster_name(spec.name)`; None
where it has none."""

SENSORS: dict[str, Make] = {
    "discovery": discovery.sensor,
    "training": training.sensor,
    "quarantine": quarantine.sensor,
    "release": release.sensor,
    "watch": alarms.sensor,
}


def sensors_of(spec: DatasetSpec, batches: dg.DynamicPartitionsDefinition) -> list[dg.SensorDefinition]:
    """Return every sensor of a dataset."""
    made = (make(spec, batches) for make in SENSORS.values())
    return [one for one in made if one is not None]
