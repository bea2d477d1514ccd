"""Group, owners and tags of a dataset's assets in the catalog of Dagster."""

from collections.abc import Iterable

import dagster as dg

from assets.pages.report import dagster_name
from assets.spec import DatasetSpec

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
"""Last part of an asset's key -> its group, of all datasets. Features have the group "features"."""
FEATURES = "features"
_MAX_TAG = 63


def in_groups(spec: DatasetSpec, assets: Iterable[Asset]) -> list[Asset]:
    """Return the assets of a dataset with group, owners and tags. `tag:penstock/dataset=<name>` selects a dataset."""
    tags = {"penstock/dataset": dagster_name(spec.name)[:_MAX_TAG]}
    if spec.upkeep.tenant:
        tags["penstock/tenant"] = spec.upkeep.tenant

    def placed(asset: dg.AssetSpec) -> dg.AssetSpec:
        group = GROUPS.get(asset.key.path[-1], FEATURES)
        return asset.replace_attributes(
            group_name=group, owners=list(spec.upkeep.owners), tags={**asset.tags, **tags}
        )

    return [made for asset in assets for made in dg.map_asset_specs(placed, [asset])]


__all__ = ["FEATURES", "GROUPS", "in_groups"]
