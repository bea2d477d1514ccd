"""Definitions for tests that start Dagster's own processes: one dataset of small photos, four objects a batch."""

import os

from assets.sources import BatchLimits
from assets.spec import DatasetSpec, Feature
from dagster_project.definitions import build_defs
from resources.compute import ComputeResource

SPEC = DatasetSpec(
    name="small",
    features=(Feature(name="phash"),),
    max_reject_rate=0.5,
    batch=BatchLimits(max_objects=4, max_wait_s=int(os.environ.get("SMALL_MAX_WAIT_S", "0"))),
)
defs = build_defs({"compute": ComputeResource(engine="inline")}, [SPEC])
