"""What the code server of the benchmark loads."""

from benchmarks.pipeline.world import SPEC
from dagster_project.definitions import build_defs
from resources.compute import ComputeResource

defs = build_defs({"compute": ComputeResource(engine="inline")}, [SPEC])
