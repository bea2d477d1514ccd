"""Everything Dagster knows of this project, assembled in one place.

dagster dev -w workspace.yaml          with PENSTOCK_ROOT and PENSTOCK_LANDING set
"""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from assets.arrivals.reconciliation_asset import reconcile_job, reconciliation_asset
from assets.features.feature_asset import feature_asset
from assets.features.refresh_release import refresh_asset
from assets.feedback.quarantine import quarantine_asset
from assets.feedback.training import training_asset
from assets.ingest.media import media_asset
from assets.ingest.raw_objects import raw_objects_asset
from assets.ingest.units import units_asset
from assets.release.version_asset import version_asset
from assets.samples.samples_asset import samples_asset
from assets.spec import DatasetSpec
from dagster_project.asset_groups import in_groups
from dagster_project.collecting import collect_job, collect_schedule
from dagster_project.datasets import specs
from dagster_project.jobs import REFRESH, jobs_of, publishing_tags, tags_of
from dagster_project.own_datasets import load_datasets, report
from dagster_project.pausing import pause_job
from dagster_project.rebuilding import take_over_job
from dagster_project.schedules import schedules_of
from dagster_project.sensors import sensors_of
from dagster_project.sensors.jobs_left import jobs_sensor
from dagster_project.sensors.quarantine import quarantine_job
from dagster_project.sensors.recovery import recovery_sensor
from dagster_project.sensors.run_failure import run_failure_sensor
from dagster_project.tidy import tidy_job, tidy_schedule
from resources.alerts import AlertsResource
from resources.compute import ComputeResource
from resources.storage import LandingResource, RootResource
from resources.viewer import viewer_url


def batches_of(spec: DatasetSpec) -> dg.DynamicPartitionsDefinition:
    """Return the batches of a dataset: raw objects that landed together.

    Stage records and tables lie under their keys.
    """
    return dg.DynamicPartitionsDefinition(name=f"{spec.name}_raw_batch")


def build_defs(
    overrides: Mapping[str, Any] | None = None, datasets: Sequence[DatasetSpec] | None = None
) -> dg.Definitions:
    """Return the definitions. overrides: resources by name, in place of those that the environment describes.

    datasets: in place of the registered ones and those of `PENSTOCK_DATASETS`.

    Raises: as `viewer_url`.
    """
    viewer_url()  # an address that cannot be shown is found here, not at the end of a run
    resources: dict[str, Any] = {
        "root": RootResource(url=dg.EnvVar("PENSTOCK_ROOT")),
        "landing": LandingResource(url=dg.EnvVar("PENSTOCK_LANDING")),
        "compute": ComputeResource(),
        "alerts": AlertsResource(),
    }
    parts = [_dataset_defs(spec) for spec in (specs() if datasets is None else datasets)]
    shared = dg.Definitions(
        resources=resources | dict(overrides or {}),
        executor=dg.in_process_executor,
        sensors=[run_failure_sensor(), recovery_sensor(), jobs_sensor()],
        jobs=[tidy_job, collect_job],
        schedules=[tidy_schedule, collect_schedule],
    )
    own = _own_defs(shared) if datasets is None else []
    return dg.Definitions.merge(*parts, *own, shared)


def _own_defs(shared: dg.Definitions) -> list[dg.Definitions]:
    """Return the definitions of the datasets outside of this repository, those that cannot be built as reports."""
    loaded, broken = load_datasets()
    parts = []
    for own in loaded:
        try:
            part = _dataset_defs(own.spec)
            dg.Definitions.validate_loadable(dg.Definitions.merge(part, shared))
            parts.append(part)
        except Exception as error:  # noqa: BLE001 - whatever the spec makes Dagster raise, others load
            broken.append(own.broken(f"{type(error).__name__}: {error}"))
    return [*parts, report(broken)]


def _dataset_defs(spec: DatasetSpec) -> dg.Definitions:
    """Return assets, jobs and sensors of one dataset."""
    batches = batches_of(spec)
    features = [feature_asset(spec, feature, batches) for feature in spec.features]
    per_batch = [
        raw_objects_asset(spec.name, batches, spec.sources),
        media_asset(spec, batches),
        units_asset(spec, batches),
        *features,
        samples_asset(spec, batches),
    ]
    publishing = [version_asset(spec.name, spec.gate, spec), *([refresh_asset(spec)] if features else [])]
    quarantine = quarantine_asset(spec)
    judge = dg.define_asset_job(
        quarantine_job(spec),
        selection=dg.AssetSelection.assets(quarantine),
        tags=publishing_tags(spec),
        description="Judge what trainings met as corrupt, and publish the version without what is.",
    )
    reconciliation = reconciliation_asset(spec)
    reconcile = dg.define_asset_job(
        reconcile_job(spec),
        selection=dg.AssetSelection.assets(reconciliation),
        tags=tags_of(spec, REFRESH),
        description="Compare every source with all batches, and make batches of what discovery missed.",
    )
    taking = [take_over_job(spec, batches)] if spec.rebuild_of else []
    return dg.Definitions(
        assets=in_groups(
            spec, [*per_batch, *publishing, training_asset(spec.name), quarantine, reconciliation]
        ),
        jobs=[*jobs_of(spec, per_batch, features, publishing), judge, reconcile, pause_job(spec), *taking],
        schedules=schedules_of(spec),
        sensors=sensors_of(spec, batches),
    )


defs = build_defs()
