"""The external asset `training_run`: shows reports from `loader.report` as materializations."""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

import loader
from loader.api.report import Report
from penstock.text import markdown_table
from resources.viewer_links import run_page, version_page

from ..pipeline.stages import VERSION
from .report import code_block, link, viewer_metadata

ASSET = "training_run"
REPORT_TAG = "penstock/report"
"""Tag that identifies the report."""

_PAGE = 200  # materializations per query


def training_key(dataset: str) -> dg.AssetKey:
    """Return [dataset, training_run]."""
    return dg.AssetKey([dataset, ASSET])


def training_runs(dataset: str) -> dg.DynamicPartitionsDefinition:
    """Return the dataset's training runs as partitions, by name."""
    return dg.DynamicPartitionsDefinition(name=f"{dataset}_{ASSET}")


def training_asset(dataset: str) -> dg.AssetSpec:
    """Return the external asset [dataset, training_run]: a partition per run, a materialization per report."""
    return dg.AssetSpec(
        training_key(dataset),
        deps=[dg.AssetKey([dataset, VERSION])],
        partitions_def=training_runs(dataset),
        kinds={"training"},
        description="Trainings that read the dataset, as they reported themselves: loader.report(root, plan, ...).",
    )


def report_problem(root: loader.Root, report: Report) -> str:
    """Return why a report is rejected (version or plan missing in the root), or "". Raises: StoreError."""
    known = root.state.ids
    for version in report.versions:
        if version["id"] not in known or "{}@{}".format(*known[version["id"]]) != version["name"]:
            return f"{report.key} names {version['name']} {version['id']}, which the log of {root.url} does not have"
    # Listed, not read: a plan may have megabytes.
    if not any(True for _ in root.store.list(f"plans/{report.plan}.json")):
        return f"{report.key} names the plan {report.plan}, which was not saved in {root.url}"
    return ""


def is_known(instance: dg.DagsterInstance, report: Report) -> bool:
    """Return whether a materialization shows this report. Costs a query per 200 reports of the training run."""
    records = dg.AssetRecordsFilter(asset_key=training_key(report.dataset), asset_partitions=[report.run])
    return any(tags.get(REPORT_TAG) == report.identity for tags in _tags(instance, records))


def _tags(instance: dg.DagsterInstance, records: dg.AssetRecordsFilter) -> Iterator[Mapping[str, str]]:
    cursor = None
    while True:
        page = instance.fetch_materializations(records, limit=_PAGE, cursor=cursor)
        for record in page.records:
            if record.asset_materialization is not None:
                yield record.asset_materialization.tags or {}
        if not page.has_more:
            return
        cursor = page.cursor


def training_event(
    root: loader.Root,
    report: Report,
    usage: Mapping[str, Any],
) -> dg.AssetMaterialization:
    """Return a report as a materialization. usage: metadata of the run's goodput and GPU hours."""
    names = ", ".join(dict.fromkeys(version["name"] for version in report.versions))
    rows = [
        (version["source"], link(version["name"], _version_page(version["name"])), version["id"])
        for version in report.versions
    ]
    metadata: dict[str, Any] = {
        "versions": dg.MetadataValue.md(markdown_table(("source", "version", "id"), rows)),
        "version_asset": dg.MetadataValue.asset(dg.AssetKey([report.dataset, VERSION])),
        "plan": dg.MetadataValue.text(report.plan),
        "first_step": dg.MetadataValue.int(report.first_step),
        "last_step": dg.MetadataValue.int(report.last_step),
        "checkpoint": dg.MetadataValue.text(report.checkpoint or "none was named"),
        "reported_at": dg.MetadataValue.timestamp(report.at_us / 1e6),
        "report": dg.MetadataValue.text(f"{root.url}/{report.key}"),
        "samples of a step": dg.MetadataValue.md(
            code_block("sh", f"penstock explain {report.plan} --step {report.last_step} --root {root.url}")
        ),
    }
    if any(True for _ in root.store.list(f"trails/{report.run}/")):
        metadata |= viewer_metadata(run_page(report.run))
    metadata |= usage
    for name, value in report.metrics.items():
        if isinstance(value, float):
            # A float gets a plot over all reports in Dagster.
            metadata[f"metric {name}"] = dg.MetadataValue.float(value)
        else:
            metadata[f"metric {name}"] = dg.MetadataValue.text(str(value))
    return dg.AssetMaterialization(
        asset_key=training_key(report.dataset),
        partition=report.run,
        description=f"steps {report.first_step} to {report.last_step} on {names}",
        metadata=metadata,
        tags={REPORT_TAG: report.identity, "dagster/data_version": report.identity},
    )


def _version_page(version: str) -> str:
    dataset, _, number = version.rpartition("@")
    return version_page(dataset, int(number))
