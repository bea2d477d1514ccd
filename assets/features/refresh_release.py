"""The asset [dataset, refresh]: waiting features of published batches, audited and published as the next version.

stages/<dataset>/refresh/<transaction>/<r>.json       the verdict
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

import loader
from loader.dataset.labels.annotate import AnnotationOptions
from loader.dataset.publishing.extension import Extension, publish_extension
from loader.dataset.shards.part import ShardFile
from loader.dataset.tables.parquet import get_table
from loader.dataset.versions.samples_table import scan_samples
from loader.errors import EmptyVersion, FieldMismatch, StageNotPublished
from penstock.stages import StageRecord, append_record, current_records, fingerprint
from resources.storage import RootResource

from ..checks import CheckReport, CheckResult, run_checks, run_expectations
from ..gate_settings import EXPECTATIONS, Gate
from ..ingest.published import published_labels
from ..ingest.stored_faults import has_feature_faults
from ..pages.report import Metadata, table_metadata
from ..pipeline.stages import REFRESH, PipelineStage
from ..pipeline.tables import facts_of_fields
from ..spec import DatasetSpec, Filter, stage_name
from .refresh import REFRESHED, pin_weights, transaction

if TYPE_CHECKING:
    import polars as pl

CODE_VERSION = "1"
_ROW_COLUMNS = ("key", "code", "reason")
_NOTHING = "no whole batch waited"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshedBatch:
    """Waiting features of one batch."""

    record: StageRecord
    """Record of the features."""
    tables: tuple[pa.Table, ...]
    """Table per part: live samples with key, code, reason and the featurizer's columns."""
    whole: bool
    """True if every live sample has new features, and neither code nor machine caused a refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh:
    """Result of publishing refreshed features."""

    version: loader.Version | None
    """New version; None if nothing was published."""
    published: tuple[str, ...] = ()
    """"stage partition" of each published record."""
    left_out: int = 0
    """Number of excluded samples."""
    results: tuple[CheckResult, ...] = ()
    """Results of the gate's checks."""


def waiting(root: loader.Root, spec: DatasetSpec) -> list[StageRecord]:
    """Return the records of features that wait for a version, by stage, then batch."""
    open_txns = {name for name, txn in root.log.refresh().txns.items() if txn.status == "open"}
    result = []
    for feature in spec.features:
        featurizer = pin_weights(feature.build())
        records = current_records(root.store, spec.name, stage_name(featurizer.name))
        for record in records.values():
            is_open = record.body.get("refresh") in open_txns
            # Features of an earlier version of the featurizer wait for nothing: they are computed again.
            is_current = record.body["version"] == featurizer.version
            if record.verdict == "published" and is_open and is_current:
                result.append(record)
    return result


def publish_refresh(root: loader.Root, spec: DatasetSpec, run_id: str) -> Refresh:
    """Publish all waiting features as one version, or none; the gate's verdict is written first.

    A batch that is not whole (`RefreshedBatch.whole`) is left out, and becomes stale again. A refused refresh is
    dropped until a person or another featurizer version repeats it.

    Raises: StageNotPublished; Conflict if another writer changed the same cells: run it again.
    """
    records = waiting(root, spec)
    if not records:
        return Refresh(version=None)
    txn = transaction(root, spec.name)
    selected = [one for one in records if one.body["refresh"] == txn]
    version = root.open(f"{spec.name}@latest")
    batches = [one for one in _batches(spec, root, version, selected) if one.whole]
    if not batches:
        # Its features can no longer be published, so `stale` lists these batches again.
        root.abort(
            txn, "no batch is whole: excluded samples are back, or a featurizer's code or machine failed"
        )
        return Refresh(version=None)
    selected = [one.record for one in batches]
    exclude, table = _assemble(spec, version, batches)
    results, broken = audit(spec.gate, table)
    if broken:  # no verdict, so that the next run tries again
        raise StageNotPublished(
            f"nothing was refreshed: {_words(results)}; repair the check and run this again"
        )
    reason = _words(results)
    if not reason:
        # The verdict first: a version must never exist without the record that allowed it.
        verdict = _append_verdict(root, spec, txn, selected, results, run_id, "")
        extension = _extension(version, batches, exclude)
        producer = _producer(root, spec, selected, verdict, run_id)
        try:
            version_ = publish_extension(root, version, txn, extension, producer)
        except (FieldMismatch, EmptyVersion) as error:
            reason = f"{type(error).__name__}: {error}"
        else:
            named = tuple(f"{one.stage} {one.partition}" for one in selected)
            return Refresh(
                version=version_,
                published=named,
                left_out=len(exclude),
                results=results,
            )
    verdict = _append_verdict(root, spec, txn, selected, results, run_id, reason)
    _drop_refresh(root, txn, selected, reason, run_id)
    raise StageNotPublished(
        f"nothing was refreshed: {reason} ({verdict.path}). {len(selected)} batches of features were dropped; repair "
        "the featurizer or the gate, and materialize their feature assets again"
    )


def _drop_refresh(
    root: loader.Root,
    txn: str,
    records: Sequence[StageRecord],
    reason: str,
    run_id: str,
) -> None:
    """Abort the transaction of a refused refresh, and append a failed record for each of its batches."""
    root.abort(txn, f"the gate before a refresh: {reason}"[:500])
    for record in records:
        # A failed record per batch: the sensor then repeats it only for another featurizer version.
        append_record(
            root.store,
            replace(
                record,
                verdict="failed",
                reason=reason[:2000],
                run_id=run_id,
                r=0,  # `append_record` numbers it
            ),
        )


def audit(gate: Gate, table: "pl.DataFrame") -> tuple[tuple[CheckResult, ...], bool]:
    """Return the gate's results over the refreshed samples, and whether a check could not run.

    No other version is compared: a refresh is meant to differ.
    """
    reports: list[CheckReport] = []

    def suite() -> CheckResult:
        reports.append(run_expectations(table, gate.suite))
        return reports[0].as_check()

    own = {name: partial(check, table, None) for name, check in gate.checks.items()}
    results, broken = run_checks({EXPECTATIONS: suite, **own})
    return results, broken or any(report.broken for report in reports)


def _words(results: Sequence[CheckResult]) -> str:
    return "; ".join(f"{one.name}: {one.explanation}" for one in results if one.stops)


def _batches(
    spec: DatasetSpec,
    root: loader.Root,
    version: loader.Version,
    records: Sequence[StageRecord],
) -> list[RefreshedBatch]:
    live_keys = scan_samples(version, ["key"]).collect()["key"].to_list()
    live = pa.array(live_keys, pa.string())
    columns_of_featurizers = {}
    for feature in spec.features:
        featurizer = feature.build()
        columns_of_featurizers[featurizer.name] = featurizer.columns
    batches = []
    for record in records:
        columns = columns_of_featurizers[str(record.body["featurizer"])]
        batches.append(_batch(root, version, record, columns, live))
    return batches


def _assemble(
    spec: DatasetSpec, version: loader.Version, batches: Sequence[RefreshedBatch]
) -> tuple[dict[str, str], "pl.DataFrame"]:
    """Return (key of each sample to exclude -> reason; the table for the gate).

    The table has a row per other refreshed sample: the version's columns, with the new values. It is in memory.
    """
    import polars as pl

    frame = scan_samples(version).collect()
    exclude: dict[str, str] = {}
    for batch in batches:
        for key, reason in _rejections(spec.filters, batch):
            exclude.setdefault(key, reason)  # the first reason counts
    tables = [table for batch in batches for table in batch.tables]
    refreshed = set[str]()
    for table in tables:
        refreshed.update(table["key"].to_pylist())
    keys = list(refreshed - exclude.keys())
    frame = frame.filter(pl.col("key").is_in(keys))
    for table in tables:
        new = pl.DataFrame(table.drop_columns(["code", "reason"]))
        # `update` ignores columns that the frame lacks.
        added = [pl.lit(None, one.dtype).alias(one.name) for one in new if one.name not in frame.columns]
        # include_nulls: a refused sample's new null must replace its old value.
        frame = frame.with_columns(added).update(new, on="key", include_nulls=True)
    return exclude, frame


def _batch(
    root: loader.Root,
    version: loader.Version,
    record: StageRecord,
    columns: Mapping[str, Sequence[str]],
    live: pa.Array,
) -> RefreshedBatch:
    """Return a record's batch. columns: kind -> the featurizer's columns. live: keys of the version's samples."""
    table = get_table(root.store, record.files[record.stage])
    start = 0
    tables: list[pa.Table] = []  # per part, the rows of its live samples
    whole = not _has_faults(table)
    part_ids = set(version.parts.ids.to_pylist())
    for part, kind, n_rows in record.body["taken"]:  # the table has the rows of part after part
        own_columns = [name for name in columns[kind] if name in table.column_names]
        rows = table.slice(start, n_rows)
        start += n_rows
        if n_rows:
            is_live = pc.is_in(rows["key"], value_set=live)
            rows = rows.filter(is_live)
            tables.append(rows.select([*_ROW_COLUMNS, *own_columns]))
        if part in part_ids:
            # An exclusion that was withdrawn brings samples back, whose features were never computed.
            n_live = int(version.parts.n_live[version.parts.position(part)])
            whole &= n_live == rows.num_rows
    return RefreshedBatch(record=record, tables=tuple(tables), whole=whole)


def _has_faults(table: pa.Table) -> bool:
    if not table.num_rows:  # then it has no columns either
        return False
    refused = table.filter(pc.not_equal(table["code"], ""))
    return has_feature_faults(refused.select(["code", "reason"]).to_pylist())


def _rejections(filters: Sequence[Filter], batch: RefreshedBatch) -> Iterator[tuple[str, str]]:
    """Yield (key, reason) for each refusal of a sample by the featurizer or a filter; a sample may have several."""
    featurizer = batch.record.body["featurizer"]
    for table in batch.tables:
        own_filters = [one for one in filters if one.column in table.column_names]
        for row in table.to_pylist():
            if row["code"]:
                yield row["key"], f"{featurizer}: {row['code']}: {row['reason']}"
            for filter in own_filters:
                reason = filter.reason(row[filter.column])
                if reason:
                    yield row["key"], reason


def _extension(
    version: loader.Version, batches: Sequence[RefreshedBatch], exclude: Mapping[str, str]
) -> Extension:
    part_ids = set(version.parts.ids.to_pylist())
    known_columns = version.manifest["columns"]
    shards: list[ShardFile] = []  # of parts that the version still has
    # (featurizer, its version, columns) -> tables of their values
    annotations: dict[tuple[str, str, tuple[str, ...]], list[pa.Table]] = {}
    for batch in batches:
        body = batch.record.body
        for shard in body["shards"]:
            file = ShardFile(**shard)
            if file.part in part_ids:
                shards.append(file)
        for table in batch.tables:
            is_accepted = pc.equal(table["code"], "")
            values = table.filter(is_accepted).drop_columns(["code", "reason"])
            names = []
            for name in values.column_names:
                # A column of nulls only has no type to store; a known column must still lose its old values.
                has_values = values[name].null_count < values.num_rows
                if has_values or name in known_columns:
                    names.append(name)
            # The key is always there: one name means no column.
            if len(names) > 1 and values.num_rows:
                # Equal names give one annotation for many batches, which joins once.
                annotation = (str(body["featurizer"]), str(body["version"]), tuple(sorted(names)))
                annotations.setdefault(annotation, []).append(values.select(names))
    rows = []
    for annotation in sorted(annotations):
        featurizer, featurizer_version, _ = annotation
        options = AnnotationOptions(
            name=f"refresh-{featurizer}"[:64],
            author=f"{featurizer} {featurizer_version}",
            nulls="remove",
        )
        # Column types follow from the values of each batch: whole numbers in one may be floats in another.
        values = pa.concat_tables(annotations[annotation], promote_options="permissive")
        rows.append((options, values))
    facts = facts_of_fields(shards, *(batch.record.body.get("facts", {}) for batch in batches))
    return Extension(shards=shards, rows=rows, exclude=exclude, facts=facts)


def _producer(
    root: loader.Root,
    spec: DatasetSpec,
    records: Sequence[StageRecord],
    verdict: StageRecord,
    run_id: str,
) -> dict[str, Any]:
    listed: dict[str, dict[str, int]] = {}
    for record in records:
        listed.setdefault(record.stage, {})[record.partition] = record.r
    return {
        "dagster_run_id": run_id,
        "asset_key": f"{spec.name}/{REFRESH}",
        "refresh_record": verdict.path,
        "labels": published_labels(root, spec.name),
        "featurizers": {
            str(one.body["featurizer"]): {
                "version": one.body["version"],
                "group": one.body["group"],
                "fields": one.body["fields"],
            }
            for one in records
        },
        REFRESHED: listed,
    }


def _append_verdict(
    root: loader.Root,
    spec: DatasetSpec,
    txn: str,
    records: Sequence[StageRecord],
    results: Sequence[CheckResult],
    run_id: str,
    reason: str,
) -> StageRecord:
    """Append the refresh's verdict: "failed" if there is a reason, else "published". records: those audited."""
    read = [[one.stage, one.partition, one.r] for one in records]
    stage = PipelineStage(root.store, spec.name, REFRESH, txn, run_id=run_id, code_version=CODE_VERSION)
    return stage.append(
        fingerprint=fingerprint(CODE_VERSION, read, spec.gate.fingerprint()),
        reason=reason[:2000],
        reads=records,
        counts={"batches": len(records), "checks": len(results)},
        body={"checks": [result.to_json() for result in results]},
    )


CHECK = "refresh_gate"
_CHECK_DESCRIPTION = (
    "The dataset's gate over the samples with recomputed features. A failed refresh is dropped: recompute it by hand, "
    "or with another featurizer version."
)
RefreshEvent = dg.AssetCheckResult | dg.MaterializeResult[None]


def refresh_asset(spec: DatasetSpec) -> dg.AssetsDefinition:
    key = dg.AssetKey([spec.name, REFRESH])

    @dg.asset(
        key=key,
        deps=[dg.AssetKey([spec.name, feature.stage]) for feature in spec.features],
        kinds={"webdataset", "parquet"},
        check_specs=[
            dg.AssetCheckSpec(
                CHECK,
                asset=key,
                blocking=True,
                description=_CHECK_DESCRIPTION,
            )
        ],
        description="A version with recomputed features of published batches; older versions stay.",
    )
    def refresh(context: dg.AssetExecutionContext, root: RootResource) -> Iterator[RefreshEvent]:
        with root.opened() as opened:
            try:
                published = publish_refresh(opened, spec, context.run.run_id)
            except StageNotPublished as error:
                yield dg.AssetCheckResult(
                    check_name=CHECK,
                    passed=False,
                    metadata={"reason": str(error)},
                )
                raise dg.Failure(str(error), allow_retries=False) from error
        yield dg.AssetCheckResult(
            check_name=CHECK,
            passed=True,
            metadata=_results(published),
        )
        yield dg.MaterializeResult(metadata=_metadata(published))

    return refresh


def _results(refresh: Refresh) -> Metadata:
    rows = [("passed" if one.passed else "warning", one.name, one.explanation) for one in refresh.results]
    return {"checks": table_metadata(("", "check", ""), rows, _NOTHING)}


def _metadata(refresh: Refresh) -> Metadata:
    version = f"none: {_NOTHING}"
    if refresh.version:
        version = refresh.version.name
    facts: Metadata = {
        "version": dg.MetadataValue.text(version),
        "refreshed_batches": dg.MetadataValue.int(len(refresh.published)),
        "left_out_samples": dg.MetadataValue.int(refresh.left_out),
    }
    if refresh.version is None:
        return facts
    groups = [
        (name, one["version"], one["group"], ", ".join(sorted(one["fields"].values())))
        for name, one in sorted(refresh.version.manifest["producer"]["featurizers"].items())
    ]
    return facts | {
        "id": dg.MetadataValue.text(refresh.version.id),
        "featurizers": table_metadata(("featurizer", "version", "group", "fields"), groups),
        "batches": table_metadata(("feature and batch",), [(name,) for name in refresh.published]),
    }
