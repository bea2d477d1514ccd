"""Everything Dagster knows of this project, assembled in one place.

dagster dev -w workspace.yaml          with PENSTOCK_ROOT and PENSTOCK_LANDING set
"""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from assets.features import feature_asset
from assets.landing import raw_objects_asset
from assets.report import dagster_name
from assets.samples import samples_asset
from assets.spec import DatasetSpec
from assets.units import units_asset
from assets.validation import media_asset
from assets.version import version_asset
from dagster_project.datasets import specs
from dagster_project.sensors import discovery_sensor
from resources.compute import ComputeResource
from resources.storage import LandingResource, RootResource


def batches_of(spec: DatasetSpec) -> dg.DynamicPartitionsDefinition:
    """The batches of a dataset: raw objects that landed together. Stage records and tables lie under their keys."""
    return dg.DynamicPartitionsDefinition(name=f"{spec.name}_raw_batch")


def build_defs(
    overrides: Mapping[str, Any] | None = None, datasets: Sequence[DatasetSpec] | None = None
) -> dg.Definitions:
    """The definitions. overrides: resources by name, in place of those that the environment describes; datasets: in
    place of the registered ones."""
    resources: dict[str, Any] = {
        "root": RootResource(url=dg.EnvVar("PENSTOCK_ROOT")),
        "landing": LandingResource(url=dg.EnvVar("PENSTOCK_LANDING")),
        "compute": ComputeResource(),
    }
    parts = [_dataset_defs(spec) for spec in (specs() if datasets is None else datasets)]
    shared = dg.Definitions(resources=resources | dict(overrides or {}), executor=dg.in_process_executor)
    return dg.Definitions.merge(*parts, shared)


def _dataset_defs(spec: DatasetSpec) -> dg.Definitions:
    """Assets, jobs and sensor of one dataset."""
    batches = batches_of(spec)
    per_batch = [
        raw_objects_asset(spec.name, batches),
        media_asset(spec, batches),
        units_asset(spec, batches),
        *(feature_asset(spec, feature, batches) for feature in spec.features),
        samples_asset(spec, batches),
    ]
    version = version_asset(spec.name, spec.gate, spec)
    ingest = dg.define_asset_job(
        f"{dagster_name(spec.name)}_ingest",
        selection=dg.AssetSelection.assets(*per_batch),
        description="One batch: what landed, checked, cut, featurized and put together. One run per batch.",
    )
    release = dg.define_asset_job(
        f"{dagster_name(spec.name)}_release",
        selection=dg.AssetSelection.assets(version),
        description="Check the batches that are ready, and publish those that pass.",
    )
    return dg.Definitions(
        assets=[*per_batch, version],
        jobs=[ingest, release],
        sensors=[discovery_sensor(spec.name, batches, f"{dagster_name(spec.name)}_ingest")],
    )


defs = build_defs()
