"""Definitions for tests that start Dagster's own processes: one dataset of small photos, four objects a batch.

Great Expectations takes three seconds of each process that releases: its suite is in other_policies.py alone.
"""

import os

from assets.gate_settings import Gate
from assets.sources import BatchLimits
from assets.spec import DatasetSpec, Feature
from dagster_project.definitions import build_defs
from dagster_project.sensors import discovery
from resources.compute import ComputeResource

discovery.INTERVAL_S = discovery.STREAMING_INTERVAL_S  # tests wait for it, several times each
SPEC = DatasetSpec(
    name="small",
    features=(Feature(name="phash"),),
    max_reject_rate=0.5,
    gate=Gate(suite=()),
    batch=BatchLimits(max_objects=4, max_wait_s=int(os.environ.get("SMALL_MAX_WAIT_S", "0"))),
)
defs = build_defs({"compute": ComputeResource(engine="inline")}, [SPEC])
