"""The Dagster definitions of this project: `dagster dev -w workspace.yaml`, with PENSTOCK_ROOT and PENSTOCK_LANDING."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from assets.arrivals.reconciliation_asset import reconciliation_asset
from assets.features.feature_asset import feature_asset
from assets.features.refresh_release import refresh_asset
from assets.ingest.media import media_asset
from assets.ingest.raw_objects import raw_objects_asset
from assets.ingest.units import units_asset
from assets.pages.report import dagster_name
from assets.pages.training_asset import training_asset
from assets.release.version_asset import version_asset
from assets.samples.quarantine import quarantine_asset
from assets.samples.samples_asset import samples_asset
from assets.search.search_asset import search_asset
from assets.spec import DatasetSpec
from dagster_project.datasets import specs
from dagster_project.jobs import dataset_jobs, dataset_schedules, pause_job, take_over_job
from dagster_project.own_datasets import load_datasets, report
from dagster_project.sensors import dataset_sensors
from dagster_project.sensors.alerting import jobs_sensor, run_failure_sensor
from dagster_project.sensors.recovery import recovery_sensor
from dagster_project.tidy import collect_job, collect_schedule, tidy_job, tidy_schedule
from penstock.compute.pool.import_path import keep_import_path
from resources.alerts import AlertsResource
from resources.compute import ComputeResource
from resources.storage import LandingResource, RootResource
from resources.viewer_links import viewer_url

Asset = dg.AssetsDefinition | dg.AssetSpec

GROUPS = {
    "raw_objects": "raw",
    "reconciliation": "raw",
    "media": "ingest",
    "units": "ingest",
    "samples": "ingest",
    "version": "release",
    "refresh": "release",
    "quarantine": "release",
    "training_run": "release",
}
"""Last part of an asset's key -> its group; feature assets are in the group "features"."""
FEATURES = "features"
_MAX_TAG = 63


def in_groups(spec: DatasetSpec, assets: Iterable[Asset]) -> list[Asset]:
    """Return a dataset's assets with group, owners and tags. Select them by `tag:penstock/dataset=<name>`."""
    tags = {"penstock/dataset": dagster_name(spec.name)[:_MAX_TAG]}
    if spec.upkeep.tenant:
        tags["penstock/tenant"] = spec.upkeep.tenant

    def place_asset(asset: dg.AssetSpec) -> dg.AssetSpec:
        group = GROUPS.get(asset.key.path[-1], FEATURES)
        return asset.replace_attributes(
            group_name=group,
            owners=list(spec.upkeep.owners),
            tags={**asset.tags, **tags},
        )

    return list(dg.map_asset_specs(place_asset, assets))


def batch_partitions(spec: DatasetSpec) -> dg.DynamicPartitionsDefinition:
    """Return a dataset's batches as partitions. A batch is a set of raw objects that landed together."""
    return dg.DynamicPartitionsDefinition(name=f"{spec.name}_raw_batch")


def build_defs(
    overrides: Mapping[str, Any] | None = None, datasets: Sequence[DatasetSpec] | None = None
) -> dg.Definitions:
    """Return the definitions.

    overrides: resource name -> resource. datasets: specs that replace the registered ones and `PENSTOCK_DATASETS`.
    """
    viewer_url()  # fail here, not at the end of a run, if the address is invalid
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
    if datasets is None:
        own = _own_defs(shared)
    else:
        own = []
    keep_import_path()  # Dagster takes the working directory and the datasets' folder off the path once this returns
    return dg.Definitions.merge(*parts, *own, shared)


def _own_defs(shared: dg.Definitions) -> list[dg.Definitions]:
    loaded, broken = load_datasets()
    parts = []
    for own in loaded:
        try:
            part = _dataset_defs(own.spec)
            dg.Definitions.validate_loadable(dg.Definitions.merge(part, shared))
            parts.append(part)
        except Exception as error:  # noqa: BLE001 - whatever this spec raises, the others load
            broken.append(own.broken(f"{type(error).__name__}: {error}"))
    return [*parts, report(broken)]


def _dataset_defs(spec: DatasetSpec) -> dg.Definitions:
    batches = batch_partitions(spec)
    features = [feature_asset(spec, feature, batches) for feature in spec.features]
    per_batch = [
        raw_objects_asset(spec.name, batches, spec.sources),
        media_asset(spec, batches),
        units_asset(spec, batches),
        *features,
        samples_asset(spec, batches),
    ]
    publishing = [version_asset(spec.name, spec.gate, spec)]
    if features:
        publishing.append(refresh_asset(spec))
    if spec.search is not None:
        publishing.append(search_asset(spec, spec.search))
    quarantine = quarantine_asset(spec)
    reconciliation = reconciliation_asset(spec)
    jobs = dataset_jobs(
        spec,
        per_batch=per_batch,
        features=features,
        publishing=publishing,
        quarantine=[quarantine],
        reconciliation=[reconciliation],
    )
    # A rebuild ingests the batches of its original dataset, which this job copies.
    take_over = []
    if spec.rebuild_of:
        take_over.append(take_over_job(spec, batches))
    return dg.Definitions(
        assets=in_groups(
            spec, [*per_batch, *publishing, training_asset(spec.name), quarantine, reconciliation]
        ),
        jobs=[*jobs, pause_job(spec), *take_over],
        schedules=dataset_schedules(spec, batches),
        sensors=dataset_sensors(spec, batches),
    )


defs = build_defs()
