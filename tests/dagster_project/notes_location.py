"""A code location of Dagster: short texts with one feature, with PENSTOCK_ROOT and PENSTOCK_LANDING set."""

from assets.spec import DatasetSpec, Feature
from dagster_project.definitions import build_defs
from resources.compute import ComputeResource
from tests.dagster_project.lengths import MODULE

SPEC = DatasetSpec(name="notes", features=(Feature(name=f"{MODULE}:Unscored"),), max_reject_rate=1.0)
defs = build_defs({"compute": ComputeResource(engine="inline")}, [SPEC])
