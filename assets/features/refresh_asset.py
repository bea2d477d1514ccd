"""The asset [dataset, refresh]: features computed again, which the release job publishes."""

from collections.abc import Iterator

import dagster as dg

from loader.errors import StageNotPublished
from resources.storage import RootResource

from ..pages.report import Metadata, markdown_table
from ..spec import DatasetSpec
from ..stages import REFRESH
from .refresh_release import Refresh, publish_refresh

CHECK = "refresh_gate"
_CHECK_SAYS = (
    "The dataset's gate over the samples whose features were computed again, as they would be. What fails is given up: "
    "it is computed again by hand, or by another featurizer version."
)
RefreshEvent = dg.AssetCheckResult | dg.MaterializeResult[None]


def refresh_asset(spec: DatasetSpec) -> dg.AssetsDefinition:
    """Return the asset [dataset, refresh] with its check, for a dataset with featurizers."""
    key = dg.AssetKey([spec.name, REFRESH])

    @dg.asset(
        key=key,
        deps=[dg.AssetKey([spec.name, feature.stage]) for feature in spec.features],
        kinds={"webdataset", "parquet"},
        check_specs=[dg.AssetCheckSpec(CHECK, asset=key, blocking=True, description=_CHECK_SAYS)],
        description="A version with the features of published batches that were computed again; the older ones stay.",
    )
    def refresh(context: dg.AssetExecutionContext, root: RootResource) -> Iterator[RefreshEvent]:
        with root.opened() as opened:
            try:
                made = publish_refresh(opened, spec, context.run.run_id)
            except StageNotPublished as error:
                yield dg.AssetCheckResult(check_name=CHECK, passed=False, metadata={"reason": str(error)})
                raise dg.Failure(str(error), allow_retries=False) from error
        yield dg.AssetCheckResult(check_name=CHECK, passed=True, metadata=_results(made))
        yield dg.MaterializeResult(metadata=_told(made))

    return refresh


def _results(made: Refresh) -> Metadata:
    rows = [("passed" if one.passed else "warning", one.name, one.explanation) for one in made.results]
    said = markdown_table(("", "check", ""), rows) if rows else "nothing waited"
    return {"checks": dg.MetadataValue.md(said)}


def _told(made: Refresh) -> Metadata:
    facts: Metadata = {
        "version": dg.MetadataValue.text(made.version.name if made.version else "none: nothing waited"),
        "refreshed_batches": dg.MetadataValue.int(len(made.published)),
        "left_out_samples": dg.MetadataValue.int(made.left_out),
    }
    if made.version is None:
        return facts
    groups = [
        (name, one["version"], one["group"], ", ".join(sorted(one["fields"].values())))
        for name, one in sorted(made.version.manifest["producer"]["featurizers"].items())
    ]
    table = markdown_table(("featurizer", "version", "group", "fields"), groups)
    batches = markdown_table(("feature and batch",), [(name,) for name in made.published])
    return facts | {
        "id": dg.MetadataValue.text(made.version.id),
        "featurizers": dg.MetadataValue.md(table),
        "batches": dg.MetadataValue.md(batches),
    }
