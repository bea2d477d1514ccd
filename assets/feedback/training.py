"""training_run: the reports of trainings with `loader.report`, as materializations of an external asset."""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

import loader
from loader.api.report import Report
from resources.alerts import run_page, version_page

from ..pages.report import code_block, link, markdown_table, viewer_metadata
from ..stages import VERSION

ASSET = "training_run"
REPORT_TAG = "penstock/report"
"""Tag of a materialization: the identity of the report that it shows."""

_PAGE = 200  # materializations of one run that are read at a time


def training_key(dataset: str) -> dg.AssetKey:
    """Return [dataset, training_run]."""
    return dg.AssetKey([dataset, ASSET])


def training_runs(dataset: str) -> dg.DynamicPartitionsDefinition:
    """Return the trainings of a dataset, by the name that they report under."""
    return dg.DynamicPartitionsDefinition(name=f"{dataset}_{ASSET}")


def training_asset(dataset: str) -> dg.AssetSpec:
    """Return the external asset [dataset, training_run]: one partition per training, one materialization per report."""
    return dg.AssetSpec(
        training_key(dataset),
        deps=[dg.AssetKey([dataset, VERSION])],
        partitions_def=training_runs(dataset),
        kinds={"training"},
        description="Trainings that read the dataset, as they reported themselves: loader.report(root, plan, ...).",
    )


def problem_of(root: loader.Root, found: Report) -> str:
    """Return why a report is not believed, or "": the root has no such version, or no such plan. Raises: StoreError."""
    known = root.state.ids
    for version in found.versions:
        if version["id"] not in known or "{}@{}".format(*known[version["id"]]) != version["name"]:
            return f"{found.key} names {version['name']} {version['id']}, which the log of {root.url} does not have"
    if not any(True for _ in root.store.list(f"plans/{found.plan}.json")):
        return f"{found.key} names the plan {found.plan}, which was not saved in {root.url}"
    return ""


def is_known(instance: dg.DagsterInstance, found: Report) -> bool:
    """Return whether a materialization shows this report. Costs a query per 200 reports of the same training."""
    wanted = dg.AssetRecordsFilter(asset_key=training_key(found.dataset), asset_partitions=[found.run])
    return any(tags.get(REPORT_TAG) == found.identity for tags in _tags(instance, wanted))


def _tags(instance: dg.DagsterInstance, wanted: dg.AssetRecordsFilter) -> Iterator[Mapping[str, str]]:
    cursor = None
    while True:
        page = instance.fetch_materializations(wanted, limit=_PAGE, cursor=cursor)
        for record in page.records:
            if record.asset_materialization is not None:
                yield record.asset_materialization.tags or {}
        if not page.has_more:
            return
        cursor = page.cursor


def training_event(root: loader.Root, found: Report) -> dg.AssetMaterialization:
    """Return the materialization that shows a report on the training's page."""
    names = ", ".join(dict.fromkeys(version["name"] for version in found.versions))
    rows = [
        (version["source"], link(version["name"], _page_of(version["name"])), version["id"])
        for version in found.versions
    ]
    metadata: dict[str, Any] = {
        "versions": dg.MetadataValue.md(markdown_table(("source", "version", "id"), rows)),
        "version_asset": dg.MetadataValue.asset(dg.AssetKey([found.dataset, VERSION])),
        "plan": dg.MetadataValue.text(found.plan),
        "first_step": dg.MetadataValue.int(found.first_step),
        "last_step": dg.MetadataValue.int(found.last_step),
        "checkpoint": dg.MetadataValue.text(found.checkpoint or "none was named"),
        "reported_at": dg.MetadataValue.timestamp(found.at_us / 1e6),
        "report": dg.MetadataValue.text(f"{root.url}/{found.key}"),
        "samples of a step": dg.MetadataValue.md(
            code_block("sh", f"penstock explain {found.plan} --step {found.last_step} --root {root.url}")
        ),
    }
    if any(True for _ in root.store.list(f"trails/{found.run}/")):
        metadata |= viewer_metadata(run_page(found.run))
    for name, value in found.metrics.items():
        told = (
            dg.MetadataValue.float(value) if isinstance(value, float) else dg.MetadataValue.text(str(value))
        )
        metadata[f"metric {name}"] = told
    return dg.AssetMaterialization(
        asset_key=training_key(found.dataset),
        partition=found.run,
        description=f"steps {found.first_step} to {found.last_step} on {names}",
        metadata=metadata,
        tags={REPORT_TAG: found.identity, "dagster/data_version": found.identity},
    )


def _page_of(version: str) -> str:
    """Return the address of the viewer's page of a version, `photos@3`; "" for no viewer."""
    dataset, _, number = version.rpartition("@")
    return version_page(dataset, int(number))
