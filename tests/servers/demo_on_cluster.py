"""The demo's dataset for tests that start Dagster's own processes; the file $DEMO_CLUSTER names where its works run."""

import os

from dagster_project.datasets.demo import SPEC
from dagster_project.definitions import build_defs
from resources.compute import ComputeResource

defs = build_defs({"compute": ComputeResource(cluster=os.environ["DEMO_CLUSTER"])}, [SPEC])
