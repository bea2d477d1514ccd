"""Definitions in which Dagster's own ways round a gate are open: what comes after `media` has another backfill policy,
so that a backfill does it in runs of its own, and automation asks for versions.

Batches are four photos. Of what lies under c- the last gate says that it is not what it was.
"""

import dagster as dg
import polars as pl

from assets.checks import CheckResult
from assets.gate_settings import Gate
from assets.sources import BatchLimits
from assets.spec import DatasetSpec, Feature
from dagster_project.definitions import build_defs
from resources.compute import ComputeResource

AFTER_MEDIA = ("units", "feature_phash", "samples")
VERSION = dg.AssetKey(["small", "version"])
_EAGER = dg.AutomationCondition.eager().without(~dg.AutomationCondition.any_deps_missing())
"""Eager that does not wait for batches that were stopped."""


def regression_check(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
    passed = not table["raw_uri"].str.contains("/c-", literal=True).any()
    return CheckResult(name="regressed", passed=passed, explanation="it is not what it was")


SPEC = DatasetSpec(
    name="small",
    features=(Feature(name="phash"),),
    max_reject_rate=0.5,
    batch=BatchLimits(max_objects=4, max_wait_s=0),
    gate=Gate(checks={"regressed": regression_check}),
)


def _open_policy(definitions: dg.AssetsDefinition) -> dg.AssetsDefinition:
    """With the policy of its place in the line, or with automation."""
    if definitions.key == VERSION:
        return definitions.map_asset_specs(lambda spec: spec.replace_attributes(automation_condition=_EAGER))
    if definitions.key.path[-1] in AFTER_MEDIA:
        return definitions.with_attributes(backfill_policy=dg.BackfillPolicy.multi_run(1))
    return definitions


_built = build_defs({"compute": ComputeResource(engine="inline")}, [SPEC])
_automation = dg.AutomationConditionSensorDefinition(
    "automation", target=dg.AssetSelection.assets(VERSION), minimum_interval_seconds=5
)
defs = dg.Definitions(
    assets=[
        _open_policy(one) if isinstance(one, dg.AssetsDefinition) else one for one in _built.assets or ()
    ],
    jobs=_built.jobs,
    schedules=_built.schedules,
    sensors=[*(_built.sensors or ()), _automation],
    resources=_built.resources,
    executor=_built.executor,
)
