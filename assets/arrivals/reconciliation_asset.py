"""The asset [dataset, reconciliation]: objects that discovery missed, and overwritten or vanished objects."""

import time

import dagster as dg

from loader.errors import PenstockError
from loader.redaction import redact
from penstock.text import markdown_table
from resources.storage import LandingResource, RootResource

from ..pages.report import Metadata, table_metadata
from ..pipeline.stages import RECONCILIATION
from ..sources import Source
from ..spec import DatasetSpec
from .batch_manifests import opener
from .progress import TickDataset, source_pause
from .reconcile import Reconciled, reconcile


class ReconcileConfig(dg.Config):
    """Settings of a reconcile run."""

    source: str = ""
    """Name of the source; "" for all."""
    inventory: str = ""
    """URL of the source's inventory; "" lists the source instead."""
    write: bool = True
    """True also writes batches; False only reports."""


def reconciliation_asset(spec: DatasetSpec) -> dg.AssetsDefinition:
    """Return the asset, which the job `<dataset>_reconcile` materializes."""

    @dg.asset(
        key=[spec.name, RECONCILIATION],
        kinds={"polars"},
        description="Every source compared with all batches: late, overwritten and vanished objects.",
    )
    def reconciliation(
        context: dg.AssetExecutionContext,
        config: ReconcileConfig,
        root: RootResource,
        landing: LandingResource,
    ) -> dg.MaterializeResult[None]:
        reports: list[Reconciled] = []
        failed: list[str] = []
        with root.opened() as opened:
            work = TickDataset(
                store=opened.store,
                name=spec.name,
                limits=spec.batch,
                denies=opened.state.denies,
                by_subject=spec.split_by == "subject",
                now_us=time.time_ns() // 1000,
            )
            for source in _select_sources(spec, config):
                stopped = source.paused or source_pause(opened.store, spec.name, source.name) is not None
                if stopped and config.write:
                    context.log.warning(f"source {source.name} is paused: reporting only")
                try:
                    with opener(landing)(source) as place:
                        write = config.write and not stopped
                        report = reconcile(work, source, place, inventory=config.inventory, write=write)
                except Exception as error:
                    why = f"source {source.name}: {type(error).__name__}: {redact(str(error))}"
                    # The product's own errors explain themselves; others need a traceback.
                    context.log.error(why, exc_info=not isinstance(error, PenstockError))
                    failed.append(why)
                else:
                    reports.append(report)
        shown = reconciliation_metadata(reports)
        if failed:
            raise dg.Failure("; ".join(failed), metadata=shown)
        return dg.MaterializeResult(metadata=shown)

    return reconciliation


def _select_sources(spec: DatasetSpec, config: ReconcileConfig) -> list[Source]:
    sources = [source for source in spec.sources if config.source in ("", source.name)]
    if not sources or (config.inventory and len(sources) != 1):
        names = ", ".join(source.name for source in spec.sources)
        raise dg.Failure(
            f"source={config.source!r}, inventory={config.inventory!r}: choose one of {names}; an inventory needs one",
            allow_retries=False,
        )
    return sources


def reconciliation_metadata(reports: list[Reconciled]) -> Metadata:
    counts = [
        (
            one.source,
            one.n_there,
            one.n_batched,
            *(one.count(status) for status in ("late", "overwritten", "vanished")),
            one.n_fresh,
            ", ".join(f"{n} {reason}" for reason, n in sorted(one.not_taken.items())) or "none",
            len(one.batches),
            one.table.path if one.table else "",
        )
        for one in reports
    ]
    header = (
        "source",
        "there",
        "in batches",
        "late",
        "overwritten",
        "vanished",
        "waiting or new",
        "not taken",
    )
    rows = [
        (row["status"], row["key"], row["nbytes"], row["batch"] or "")
        for one in reports
        for row in one.differences.head(50).to_dicts()
    ]
    metadata: Metadata = {
        status: dg.MetadataValue.int(sum(one.count(status) for one in reports))
        for status in ("late", "overwritten", "vanished")
    }
    return metadata | {
        "sources": dg.MetadataValue.md(markdown_table((*header, "batches made", "table"), counts)),
        "differences": table_metadata(("", "object", "bytes", "batch"), rows),
        "batches_made": dg.MetadataValue.int(sum(len(one.batches) for one in reports)),
    }
