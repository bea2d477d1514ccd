"""refresh: features of published batches that wait, audited and published together as the dataset's next version.

    stages/<dataset>/refresh/<transaction>/<r>.json       the verdict

Fields come as groups, columns as other values of the same columns. Samples that the featurizer refuses, or that are now
outside one of the dataset's filters, are excluded. All of it is one log entry. Earlier versions stay.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

import loader
from loader.dataset.extension import Extension, publish_extension
from loader.dataset.labels.annotate import Annotating
from loader.dataset.shards.part import ShardFile
from loader.dataset.tables.parquet import get_table
from loader.dataset.versions.samples_table import scan_samples
from loader.errors import EmptyVersion, FieldMismatch, StageNotPublished
from penstock.stages import StageRecord, Upstream, append_record, current_records, fingerprint

from ..checks import CheckReport, CheckResult, run_checks, run_expectations
from ..field_facts import facts_told
from ..gate import EXPECTATIONS, Gate
from ..ingest.units import published_labels
from ..spec import DatasetSpec, Filter, stage_name
from ..stages import REFRESH
from .refresh import REFRESHED, settled, transaction

if TYPE_CHECKING:
    import polars as pl

CODE_VERSION = "1"
_TOLD = ("key", "code", "reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The features of one batch that wait."""

    record: StageRecord
    """Record of the features."""
    tables: tuple[pa.Table, ...]
    """Table of each part: rows of samples that the version still has, with key, code, reason and the columns that
    the featurizer gives that kind."""
    whole: bool
    """True where the version has no other samples in these parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh:
    """Result of a publish of refreshed features."""

    version: loader.Version | None
    """The new version; None where nothing waited."""
    published: tuple[str, ...] = ()
    """"stage partition" of each record."""
    left_out: int = 0
    """Samples left out."""
    results: tuple[CheckResult, ...] = ()
    """Results of the gate's checks."""


def waiting(root: loader.Root, spec: DatasetSpec) -> list[StageRecord]:
    """Return records of features that the dataset has now, computed of published batches and in no version.

    By stage, then batch. Costs a listing and a GET per batch of each feature. Raises: Corrupt; InvalidWeights;
    StoreError.
    """
    open_txns = {name for name, txn in root.log.refresh().txns.items() if txn.status == "open"}
    found = []
    for feature in spec.features:
        featurizer = settled(feature.made())
        records = current_records(root.store, spec.name, stage_name(featurizer.name)).values()
        found += [
            one
            for one in records
            if one.verdict == "published"
            and one.body.get("refresh") in open_txns
            and one.body["version"] == featurizer.version
        ]
    return found


def publish_refresh(root: loader.Root, spec: DatasetSpec, run_id: str) -> Refresh:
    """Publish the waiting features as one version, or none of them: the gate's verdict is written before.

    A batch with a sample that was excluded when it was computed, and is back since that version was retired, is not
    published: it is stale now, and computed again.

    A refused refresh is given up, batch by batch: its records say why, and it is computed again only by hand, or by
    another featurizer version.

    Raises: StageNotPublished with that reason; Conflict when somebody else changed the same cells, groups or samples
    meanwhile: nothing is lost, run it again.
    """
    records = waiting(root, spec)
    if not records:
        return Refresh(version=None)
    txn = transaction(root, spec.name)
    mine = [one for one in records if one.body["refresh"] == txn]
    version = root.open(f"{spec.name}@latest")
    batches = [one for one in _batches(spec, root, version, mine) if one.whole]
    if not batches:
        root.abort(txn, "samples that were not computed are back")
        return Refresh(version=None)
    mine = [one.record for one in batches]
    exclude, table = _assembled(spec, version, batches)
    results, broken = audit(spec.gate, table)
    if broken:  # nobody's fault yet: it is tried again
        raise StageNotPublished(
            f"nothing was refreshed: {_words(results)}; repair the check and run this again"
        )
    reason = _words(results)
    if not reason:
        verdict = _append_verdict(root, spec, txn, mine, results, run_id, "")
        extension = _extension(version, batches, exclude)
        producer = _producer(root, spec, mine, verdict, run_id)
        try:
            made = publish_extension(root, version, txn, extension, producer)
        except (FieldMismatch, EmptyVersion) as error:
            reason = f"{type(error).__name__}: {error}"
        else:
            named = tuple(f"{one.stage} {one.partition}" for one in mine)
            return Refresh(version=made, published=named, left_out=len(exclude), results=results)
    verdict = _append_verdict(root, spec, txn, mine, results, run_id, reason)
    root.abort(txn, f"the gate before a refresh: {reason}"[:500])
    for record in mine:
        append_record(root.store, replace(record, verdict="failed", reason=reason[:2000], run_id=run_id, r=0))
    raise StageNotPublished(
        f"nothing was refreshed: {reason} ({verdict.path}). {len(mine)} batches of features were given up; repair the "
        "featurizer or the gate, and materialize their feature assets again"
    )


def audit(gate: Gate, table: "pl.DataFrame") -> tuple[tuple[CheckResult, ...], bool]:
    """Return every result of the gate over the samples as they would be, and whether a check could not run.

    They are compared with no other version: a refresh is made to differ.
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
    spec: DatasetSpec, root: loader.Root, version: loader.Version, records: Sequence[StageRecord]
) -> list[Batch]:
    """Return the batches of the records. Reads the version's keys, and a table per record, all into memory."""
    live = pa.array(scan_samples(version, ["key"]).collect()["key"].to_list(), pa.string())
    columns = {one.name: one.columns for one in (feature.made() for feature in spec.features)}
    return [
        _batch(root, version, record, columns[str(record.body["featurizer"])], live) for record in records
    ]


def _assembled(
    spec: DatasetSpec, version: loader.Version, batches: Sequence[Batch]
) -> tuple[dict[str, str], "pl.DataFrame"]:
    """Return key -> why a sample is left out, and the samples table as it would be of the others.

    Reads the version's samples table, which is in memory once.
    """
    import polars as pl

    frame = scan_samples(version).collect()
    exclude: dict[str, str] = {}
    for batch in batches:
        for key, reason in _left_out(spec.filters, batch):
            exclude.setdefault(key, reason)
    tables = [table for batch in batches for table in batch.tables]
    keys = {key for table in tables for key in table["key"].to_pylist()} - set(exclude)
    frame = frame.filter(pl.col("key").is_in(list(keys)))
    for table in tables:
        new = pl.DataFrame(table.drop_columns(["code", "reason"]))
        added = [pl.lit(None, one.dtype).alias(one.name) for one in new if one.name not in frame.columns]
        frame = frame.with_columns(added).update(new, on="key", include_nulls=True)
    return exclude, frame


def _batch(
    root: loader.Root,
    version: loader.Version,
    record: StageRecord,
    columns: Mapping[str, Sequence[str]],
    live: pa.Array,
) -> Batch:
    table, start, tables, whole = get_table(root.store, record.files[record.stage]), 0, [], True
    there = set(version.parts.ids.to_pylist())
    for part, kind, n_rows in record.body["taken"]:
        told = [name for name in columns[kind] if name in table.column_names]
        mine = table.slice(start, n_rows)
        mine = mine.filter(pc.is_in(mine["key"], value_set=live)) if n_rows else mine
        start += n_rows
        if n_rows:
            tables.append(mine.select([*_TOLD, *told]))
        if part in there:
            whole &= int(version.parts.n_live[version.parts.position(part)]) == mine.num_rows
    return Batch(record=record, tables=tuple(tables), whole=whole)


def _left_out(filters: Sequence[Filter], batch: Batch) -> Iterator[tuple[str, str]]:
    """Yield (key, why), as the samples of a new batch are left out."""
    featurizer = batch.record.body["featurizer"]
    for table in batch.tables:
        mine = [one for one in filters if one.column in table.column_names]
        for row in table.to_pylist():
            if row["code"]:
                yield row["key"], f"{featurizer}: {row['code']}: {row['reason']}"
            for one in mine:
                if reason := one.reason(row[one.column]):
                    yield row["key"], reason


def _extension(version: loader.Version, batches: Sequence[Batch], exclude: Mapping[str, str]) -> Extension:
    there = set(version.parts.ids.to_pylist())
    shards = [ShardFile(**shard) for batch in batches for shard in batch.record.body["shards"]]
    by_column: dict[tuple[str, str, tuple[str, ...]], list[pa.Table]] = {}
    for batch in batches:
        body = batch.record.body
        for table in batch.tables:
            told = table.filter(pc.equal(table["code"], "")).drop_columns(["code", "reason"])
            known = version.manifest["columns"]
            names = [one for one in told.column_names if one in known or told[one].null_count < told.num_rows]
            if len(names) > 1 and told.num_rows:
                what = (str(body["featurizer"]), str(body["version"]), tuple(sorted(names)))
                by_column.setdefault(what, []).append(told.select(names))
    rows = [
        (
            Annotating(name=f"refresh-{name}"[:64], author=f"{name} {made_by}", nulls="remove"),
            pa.concat_tables(tables, promote_options="permissive"),
        )
        for (name, made_by, _), tables in sorted(by_column.items(), key=lambda item: item[0])
    ]
    mine = [one for one in shards if one.part in there]
    facts = facts_told(mine, *(batch.record.body.get("facts", {}) for batch in batches))
    return Extension(shards=mine, rows=rows, exclude=exclude, facts=facts)


def _producer(
    root: loader.Root, spec: DatasetSpec, records: Sequence[StageRecord], verdict: StageRecord, run_id: str
) -> dict[str, Any]:
    listed: dict[str, dict[str, int]] = {}
    for one in records:
        listed.setdefault(one.stage, {})[one.partition] = one.r
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
    read = [[one.stage, one.partition, one.r] for one in records]
    record = StageRecord(
        dataset=spec.name,
        stage=REFRESH,
        partition=txn,
        verdict="failed" if reason else "published",
        reason=reason[:2000],
        run_id=run_id,
        code_version=CODE_VERSION,
        fingerprint=fingerprint(CODE_VERSION, read, spec.gate.fingerprint()),
        upstream=tuple(Upstream(stage=one.stage, partition=one.partition, r=one.r) for one in records),
        counts={"batches": len(records), "checks": len(results)},
        body={"checks": [result.to_json() for result in results]},
    )
    return append_record(root.store, record)
