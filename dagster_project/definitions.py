"""Everything Dagster knows of this project, assembled in one place.

dagster dev -w workspace.yaml          with PENSTOCK_ROOT and PENSTOCK_LANDING set
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from assets.landing import raw_objects_asset
from assets.samples import samples_asset
from assets.version import version_asset
from dagster_project.sensors import discovery_sensor
from resources.storage import LandingResource, RootResource

DATASET = "demo"
BATCHES = dg.DynamicPartitionsDefinition(name="raw_batch")
"""A batch of raw objects that landed together; its key is what stage records and tables lie under."""


def build_defs(overrides: Mapping[str, Any] | None = None) -> dg.Definitions:
    """The definitions. overrides: resources by name, in place of those that the environment describes."""
    raw_objects, samples = raw_objects_asset(DATASET, BATCHES), samples_asset(DATASET, BATCHES)
    version = version_asset(DATASET)
    resources: dict[str, Any] = {
        "root": RootResource(url=dg.EnvVar("PENSTOCK_ROOT")),
        "landing": LandingResource(url=dg.EnvVar("PENSTOCK_LANDING")),
    }
    ingest = dg.define_asset_job(
        "ingest",
        selection=dg.AssetSelection.assets(raw_objects, samples),
        description="One batch: what landed, checked and cut into samples. One run per batch.",
    )
    release = dg.define_asset_job(
        "release",
        selection=dg.AssetSelection.assets(version),
        description="Publish the batches that passed their check.",
    )
    return dg.Definitions(
        assets=[raw_objects, samples, version],
        jobs=[ingest, release],
        sensors=[discovery_sensor(DATASET, BATCHES, "ingest")],
        resources=resources | dict(overrides or {}),
        executor=dg.in_process_executor,
    )


defs = build_defs()
