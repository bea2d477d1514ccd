"""The checks of the drift gate, and the facts of batches that they compare."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import loader
from loader.dataset.tables.columns import is_annotation
from loader.dataset.tables.manifest import read_manifest
from loader.dataset.tables.parquet import TableFile, get_table, get_table_bytes, get_tables
from loader.dataset.tables.stats import merge
from loader.errors import ObjectNotFound
from loader.storage import Store
from loader.storage.threads import DaemonPool
from penstock.card.history import lineage
from penstock.stages import StageRecord, current_record, find_record, record_path

from ..checks.outcome import CheckResult
from .captions import Texts, caption_findings, object_texts
from .columns import column_findings, with_source
from .contamination import BatchTexts, column_contaminations, compared_names, text_contaminations
from .findings import (
    CHECK_NAMES,
    DriftFinding,
    Thresholds,
    as_check,
    featurizer_findings,
    non_finite_findings,
    schema_findings,
    turned_findings,
)
from .split_leaks import IDENTITIES, live, split_leaks
from .yields import Outcomes, outcome_findings, size_findings, units_findings

if TYPE_CHECKING:
    import polars as pl


_PARTS, _TESTS = 3, 64
"""Divisors of alpha: a third each for sample columns, media columns, and at most 64 other comparisons."""


MAX_BATCHES, MAX_ROWS = 16, 50_000
"""Most batches, and most samples, in a baseline."""
_FEATURE = "feature_"
UNKNOWN = Outcomes()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts:
    """Facts of a batch."""

    samples: "pl.DataFrame"
    """Rows of the samples table."""
    media: "pl.DataFrame"
    """Rows of the media table."""
    outcomes: Outcomes = UNKNOWN
    """Outcomes of the batch's objects."""
    texts: Texts | None = None
    """Texts of the batch's objects."""
    features: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Featurizer -> body of its record in the batch."""
    features_now: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Featurizer -> body of its current record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The version that a batch is compared with."""

    version: loader.Version
    """Version compared with."""
    batches: tuple[BatchFacts, ...]
    """Batches, newest first."""
    types: Mapping[str, str]
    """Column -> Arrow type."""
    categories: Mapping[str, frozenset[str]]
    """Column -> every value, if the statistics list all."""


def version_baseline(root: loader.Root, version: loader.Version) -> Baseline:
    """Return the newest batches of a version: 1 to 16, and about 50,000 samples."""
    recent = recent_rows(version, MAX_ROWS)
    tables = dict(_by_batch(recent))
    records = published_records(root, version, MAX_BATCHES)
    with DaemonPool(8, "penstock-baseline") as pool:
        batches = list(
            pool.map(lambda item: _published_facts(root.store, records, *item), list(tables.items()))
        )
    files = [TableFile.from_json(dict(entry)) for entry in version.manifest["stats"]]
    rows = [row for table in get_tables(root.store, files) for row in table.to_pylist()]
    stats = merge(rows)
    return Baseline(
        version=version,
        batches=tuple(batches),
        types={name: str(body["type"]) for name, body in version.manifest["columns"].items()},
        categories={
            name: frozenset(row["categories"]) for name, row in stats.items() if row["categories"] is not None
        },
    )


def batch_facts(
    store: Store,
    record: StageRecord,
    samples: "pl.DataFrame",
    *,
    latest: bool = False,
) -> BatchFacts:
    """Return a batch's facts from its samples record. latest: also read its featurizers' current records."""
    import polars as pl

    upstream = {
        one.stage: record_path(record.dataset, one.stage, one.partition, one.r) for one in record.upstream
    }
    features = {
        stage: find_record(store, path) for stage, path in upstream.items() if stage.startswith(_FEATURE)
    }
    media: Any = pl.DataFrame()
    if (audited := find_record(store, upstream.get("media", ""))) and "media" in audited.files:
        media = pl.from_arrow(get_table(store, audited.files["media"]))
    raws: list[Mapping[str, Any]] = []
    if (landed := find_record(store, upstream.get("raw_objects", ""))) and landed.files:
        raws = get_table(store, next(iter(landed.files.values()))).to_pylist()
    if "duration_s" in media.columns:
        lasting = media.drop_nulls("duration_s")
    else:
        lasting = media.clear()
    if len(lasting):
        durations = dict(zip(lasting["key"], lasting["duration_s"], strict=True))
    else:
        durations = {}
    now = {
        stage: current_record(store, record.dataset, stage, record.partition)
        for stage in (features if latest else ())
    }
    return BatchFacts(
        samples=samples,
        media=media,
        outcomes=Outcomes(
            landed=record.counts.get("landed", 0),
            used=record.counts.get("used", 0),
            rejected=record.counts.get("rejected", 0) + record.counts.get("not_media", 0),
        ),
        texts=object_texts(raws, durations),
        features=_identities(features),
        features_now=_identities(now),
    )


def _identities(records: Mapping[str, StageRecord | None]) -> dict[str, Mapping[str, Any]]:
    return {
        # Shards differ in every batch; only settings are compared.
        str(one.body["featurizer"]): {name: value for name, value in one.body.items() if name != "shards"}
        for one in records.values()
        if one is not None and one.counts.get("samples")
    }


def _published_facts(
    store: Store,
    records: Mapping[str, StageRecord],
    batch: str,
    samples: "pl.DataFrame",
) -> BatchFacts:
    import polars as pl

    if batch not in records:  # published by hand, or before the records that were read
        return BatchFacts(samples=samples, media=pl.DataFrame())
    return batch_facts(store, records[batch], samples, latest=batch == next(iter(records)))


def published_records(root: loader.Root, version: loader.Version, most: int) -> dict[str, StageRecord]:
    """Return batch -> its samples record, of at most so many batches: the newest that a version has.

    Goes from the version back through its ancestors, so the newest batch is first.
    """
    records: dict[str, StageRecord] = {}
    for ancestor in lineage(root, version):
        if len(records) == most:
            break
        try:
            producer = read_manifest(root.store, ancestor.manifest, ancestor.sha256)["producer"]
        except ObjectNotFound:  # garbage-collected
            continue
        if "batch" not in producer:  # a refresh, a quarantine or a manual exclusion
            continue
        record = find_record(root.store, str(producer.get("stage_record", "")))
        if record is not None:
            # A batch that was published again: its newest record counts.
            records.setdefault(str(producer["batch"]), record)
    return records


def _by_batch(rows: "pl.DataFrame") -> Iterator[tuple[str, "pl.DataFrame"]]:
    if "partition" not in rows.columns:
        yield "", rows
        return
    parts = rows.partition_by("partition", maintain_order=True)
    # Rows are in the order of publication, so the last batches are the newest.
    for table in list(reversed(parts))[:MAX_BATCHES]:
        yield str(table["partition"][0] or ""), table


def recent_rows(version: loader.Version, most: int) -> "pl.DataFrame":
    """Return the newest live rows of the samples table, without annotations."""
    import polars as pl

    by_group: dict[str, list[dict[str, Any]]] = {"keys": []}
    for entry in version.manifest["samples"]:
        if not is_annotation(entry):
            by_group.setdefault(entry["group"], []).append(dict(entry))
    keys = _newest(version.store, by_group.pop("keys"), most)
    if not len(keys):
        return keys
    # A join needs equal types, in which tables may differ.
    place_types = (pl.col("part").cast(pl.String), pl.col("row").cast(pl.Int64))
    frame = keys.with_columns(place_types)
    for _, entries in sorted(by_group.items()):
        others = _newest(version.store, entries, most)
        names = [name for name in others.columns if name in ("part", "row") or name not in frame.columns]
        typed = others.select(names).with_columns(place_types)
        frame = frame.join(typed, on=["part", "row"], how="left", maintain_order="left")
    return frame.filter(pl.Series(live(version, frame)))


def _newest(store: Store, entries: Sequence[dict[str, Any]], most: int) -> "pl.DataFrame":
    import polars as pl

    frames: list[pl.DataFrame] = []
    for entry in reversed(entries):
        rows = pl.read_parquet(io.BytesIO(get_table_bytes(store, TableFile.from_json(entry))))
        frames.insert(0, rows)
        if sum(map(len, frames)) >= most:
            break
    if frames:
        # Batches may differ in columns, and in types such as int32 and int64.
        return pl.concat(frames, how="diagonal_relaxed").tail(most)
    return pl.DataFrame()


@dataclass(frozen=True, slots=True, kw_only=True)
class GateInputs:
    """Inputs of the drift gate."""

    now: BatchFacts
    baseline: Baseline | None
    """Batches of the newest version; None before the first."""
    newest: loader.Version | None
    """Version to join; None before the first."""
    protected: tuple[loader.Version, ...]
    """Versions whose samples must not appear."""
    thresholds: Thresholds
    """Thresholds of the dataset."""
    documents: BatchTexts | None = None
    """Parts of the batch; None compares no texts with protected versions."""


def drift(compared: GateInputs) -> CheckResult:
    """Check columns, media, outcomes and counts against the baseline's batches."""
    baseline = compared.baseline
    thresholds = compared.thresholds
    if baseline is None or not baseline.batches:
        return CheckResult(
            name="drift",
            passed=True,
            explanation="there is no version to compare with",
        )
    batches = [with_source(one.samples) for one in baseline.batches]
    now = with_source(compared.now.samples)
    share = thresholds.alpha / _PARTS
    findings, n_compared = column_findings(now, batches, thresholds, baseline.categories, share)
    objects = [with_source(one.media, "key") for one in baseline.batches if len(one.media)]
    if len(compared.now.media) and objects:
        more, n_more = column_findings(with_source(compared.now.media, "key"), objects, thresholds, {}, share)
        # The comparison of samples finds such a source already.
        findings += [one for one in _of_media(more) if one.what != "source stopped delivering"]
        n_compared += n_more
    alpha = share / _TESTS
    outcomes = [one.outcomes for one in baseline.batches]
    findings += outcome_findings(compared.now.outcomes, outcomes, thresholds, alpha)
    tables = [(one.samples, one.media) for one in baseline.batches]
    findings += units_findings((now, compared.now.media), tables, thresholds, alpha)
    findings += size_findings(now, batches, thresholds)
    findings += schema_findings(_types(compared.now.samples), baseline.types)
    findings += non_finite_findings(
        compared.now.samples, [batch.samples for batch in baseline.batches], baseline.types
    )
    summary = f"{len(now)} samples against {len(batches)} batches of {baseline.version.name}, {n_compared} comparisons"
    return as_check("drift", findings, summary, usual_known=len(batches) >= thresholds.min_batches)


def splits(compared: GateInputs) -> CheckResult:
    """Check for raw objects and subjects in two splits."""
    findings = split_leaks(compared.now.samples, compared.newest)
    against = "each other"
    if compared.newest:
        against = compared.newest.name
    return as_check("splits", findings, f"{len(compared.now.samples)} samples against {against}")


def protected(compared: GateInputs) -> CheckResult:
    """Check for samples of protected evaluation sets.

    A person may approve alike images and texts, but no raw object or subject of a protected version.
    """
    samples = compared.now.samples
    findings: list[DriftFinding] = []
    names: list[str] = []
    for version in compared.protected:
        findings += column_contaminations(samples, version, compared.thresholds.near_bits)
        names.append(compared_names(samples, compared.documents, version))
    if compared.documents is not None:
        findings += text_contaminations(samples, compared.documents, compared.protected)
    named = ", ".join(names) or "no protected version"
    has_identity = any(finding.column in IDENTITIES for finding in findings)
    return as_check(
        "protected",
        findings,
        f"{len(samples)} samples against {named}",
        approvable=not has_identity,
    )


def agreement(compared: GateInputs) -> CheckResult:
    """Compare samples with their media, texts with objects, and featurizers with the newest batch's."""
    now = compared.now
    baseline = compared.baseline
    thresholds = compared.thresholds
    findings = turned_findings(now.samples, now.media)
    if baseline:
        batches = baseline.batches
    else:
        batches = ()
    if now.texts is not None and len(now.texts.keys):
        texts = [one.texts for one in batches if one.texts is not None and len(one.texts.keys)]
        findings += caption_findings(now.texts, texts, thresholds, thresholds.alpha / _PARTS / _TESTS)
    if batches:
        findings += featurizer_findings(now.features, batches[0].features, batches[0].features_now)
    known = len(batches) >= thresholds.min_batches
    return as_check("agreement", findings, f"{len(now.samples)} samples and their sources", usual_known=known)


DRIFT_CHECKS: Mapping[str, Callable[[GateInputs], CheckResult]] = dict(
    zip(CHECK_NAMES, (drift, agreement, splits, protected), strict=True)
)


def _of_media(findings: list[DriftFinding]) -> list[DriftFinding]:
    return [replace(one, of=f"objects: {one.of}") for one in findings]


def _types(table: "pl.DataFrame") -> dict[str, str]:
    schema: Any = table.head(0).to_arrow().schema
    # polars exports texts as large or view types, where a manifest has `string`.
    named = {"large_string": "string", "string_view": "string"}
    return {
        # A column without values fits any type.
        field.name: "null"
        if table[field.name].null_count() == len(table)
        else named.get(str(field.type), str(field.type))
        for field in schema
    }
