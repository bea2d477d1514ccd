"""The asset `samples`: units and features assembled, filtered, accounted for and audited."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import dagster as dg

import loader
from loader.errors import StageNotPublished
from loader.storage import Store
from penstock.stages import StageRecord, fingerprint
from resources.storage import RootResource

from ..dedup.near_duplicates import NONE, BatchCopies, find_copies
from ..dedup.policy import NearDuplicates
from ..ingest.limits import limit_texts
from ..media.unit import OUTCOMES
from ..pages.report import (
    as_failures,
    check_and_materialize,
    check_metadata,
    samples_metadata,
)
from ..pages.table_columns import samples_columns
from ..pipeline.stages import MEDIA, RAW_OBJECTS, SAMPLES, UNITS, PipelineStage, require_read
from ..pipeline.tables import CUT_FACTS, facts_of_fields, read_table
from ..spec import DatasetSpec, Filter
from .assembly import Assembled, assemble, audit, candidate
from .excluded_units import excluded_units
from .quarantine import quarantined_units

CODE_VERSION = "4"
CHECK = "accounted_for"

Row = dict[str, Any]


def samples_stage(
    root: loader.Root,
    spec: DatasetSpec,
    *,
    partition: str,
    run_id: str,
) -> tuple[StageRecord, list[Row]]:
    """Assemble a batch and store the verdict; return the record, and a row per landed object.

    A failed audit aborts the batch's transaction for good. Until it is published, a batch is reassembled if an input
    changed, or if it waits and was compared with an older version. A batch of only duplicates is given up.

    Raises: StageNotPublished if an earlier stage has not published.
    """
    store = root.store
    stage = PipelineStage(store, spec.name, SAMPLES, partition, run_id=run_id, code_version=CODE_VERSION)
    landed = stage.require(RAW_OBJECTS)
    media = stage.require(MEDIA)
    units = stage.require(UNITS)
    features = [stage.require(feature.stage) for feature in spec.features]
    # A stage that ran again while this batch waited invalidates what later ones read from it.
    require_read(media, landed)
    require_read(units, media)
    upstream = [landed, media, units, *features]
    read = [[one.stage, one.r] for one in upstream]
    filters = [one.identity() for one in spec.filters]
    if spec.near_duplicates:
        policy = spec.near_duplicates.identity()
    else:
        policy = []
    decides: list[object] = [read, filters, limit_texts(spec), policy]
    left_out = _left_out(store, spec, units)
    if left_out:  # without exclusions the fingerprints of earlier releases stay
        decides.append(sorted(left_out))
    data_version = fingerprint(CODE_VERSION, *decides)
    newest = stage.current()
    committed = _is_committed(root, units)
    if newest is not None and (
        (newest.fingerprint == data_version and not is_outdated(root, newest))
        # A published batch is final: other inputs reach it by a rebuild or a refresh only.
        or (committed and newest.verdict == "published")
    ):
        return newest, read_table(store, newest.files["objects"])
    refusals = [row for one in (media, units) for row in read_table(store, one.files["refusals"])]
    raws = read_table(store, landed.files[RAW_OBJECTS])
    assembled = assemble(
        store,
        spec,
        landed=raws,
        refusals=refusals,
        units=units,
        features=features,
        find_copies=partial(_find_copies, root, units, _policy(spec, features), raws),
        left_out=left_out,
    )
    replaced = _replacements(units, assembled)
    reason = audit(spec, assembled)
    if committed:
        # The batch's own samples are in the version, so each would look like a duplicate.
        nothing_new = ""
    else:
        nothing_new = assembled.nothing_new()
    if reason:
        given_up = f"{CHECK}: {reason}"
    else:
        given_up = nothing_new
    if given_up and units.body["parts"]:
        # Before the record: a release that reads the record must find the transaction closed.
        root.abort(units.body["txn"], given_up[:500])
    files = {
        "objects": stage.write_table("objects", assembled.objects),
        "lineage": stage.write_table("lineage", lineage(assembled, upstream, data_version, run_id)),
    }
    body = _body(spec, units, features, assembled)
    # A changed raw object replaces its samples, whatever duplicates say.
    body["supersede"] |= replaced
    if nothing_new:
        # The release publishes what this lists; the aborted transaction has nothing to publish.
        body["parts"] = []
    record = stage.append(
        fingerprint=data_version,
        reason=reason,
        files=files,
        reads=upstream,
        counts=_counts(assembled) | {"replaced": len(replaced)},
        body=body,
    )
    return record, list(assembled.objects)


def _body(
    spec: DatasetSpec,
    units: StageRecord,
    features: Sequence[StageRecord],
    assembled: Assembled,
) -> dict[str, Any]:
    """Return the body of the batch's stage record, from which a release publishes the batch."""
    body: dict[str, Any] = {"txn": units.body["txn"], "labels": units.body["labels"]}
    for name in ("foreign", "replaces", "keyed_by_place", "columns"):
        if name in units.body:
            body[name] = units.body[name]
    shards = [shard for part in assembled.parts for shard in part.shards]
    facts_of_features = [record.body.get("facts", {}) for record in features]
    facts = facts_of_fields(shards, CUT_FACTS, units.body.get("facts", {}), *facts_of_features)
    return body | {
        "parts": [part.to_json() for part in assembled.parts],
        "facts": facts,
        "exclude": dict(assembled.exclude),
        "supersede": dict(assembled.copies.supersede),
        "compared_with": assembled.copies.compared_with,
        "made_of": batch_provenance(spec, units, features, assembled.objects),
    }


def _replacements(units: StageRecord, assembled: Assembled) -> dict[str, str]:
    """Return key of a sample to supersede -> reason, from the units record: key of a new sample -> keys before."""
    reasons: dict[str, str] = {}
    for new, before in units.body.get("replaces", {}).items():
        if new in assembled.exclude:  # a sample that is left out replaces none
            continue
        for old in before:
            reasons[old] = f"its raw object has {new} now"
    return reasons


def is_outdated(root: loader.Root, record: StageRecord) -> bool:
    """Return whether a batch waits for a version and was compared with one that is not the newest."""
    compared_with: str | None = record.body.get("compared_with")
    # A batch without near-duplicate rules depends on no version.
    if compared_with is None or root.state.txns[record.body["txn"]].status != "open":
        return False
    newest = root.state.newest(record.dataset)
    newest_id = ""
    if newest is not None:
        newest_id = newest.id
    return compared_with != newest_id


def _left_out(store: Store, spec: DatasetSpec, units: StageRecord) -> dict[str, str]:
    """Return unit_id -> reason, for the batch's units that a person excluded or a training found corrupt."""
    rows = read_table(store, units.files[UNITS])
    known = quarantined_units(store, spec.name)
    # Only this batch's units count for the fingerprint, so that others do not make it stale.
    unit_ids = {row["unit_id"] for row in rows}
    quarantined = {unit: reason for unit, reason in known.items() if unit in unit_ids}
    return excluded_units(store, spec.name, spec.rebuild_of, rows) | quarantined


def _is_committed(root: loader.Root, units: StageRecord) -> bool:
    return root.state.txns[units.body["txn"]].status == "committed"


def _policy(spec: DatasetSpec, features: Sequence[StageRecord]) -> NearDuplicates | None:
    """Return the policy with the stored names of the fields that it compares."""
    policy = spec.near_duplicates
    if policy is None:
        return None
    stored: dict[str, str] = {}
    for record in features:
        stored |= record.body.get("fields", {})
    if policy.embedding is not None:
        name = policy.embedding.field
        policy = replace(policy, embedding=replace(policy.embedding, field=stored.get(name, name)))
    if policy.text is not None:
        name = policy.text.field
        policy = replace(policy, text=replace(policy.text, field=stored.get(name, name)))
    return policy


def _find_copies(
    root: loader.Root,
    units: StageRecord,
    policy: NearDuplicates | None,
    landed: Sequence[Row],
    samples: Sequence[Row],
    parts: Sequence[loader.Part],
) -> BatchCopies:
    if policy is None:
        return NONE
    # A sample that the batch replaces is its own near-duplicate.
    replaced = {old for before in units.body.get("replaces", {}).values() for old in before}
    return find_copies(root, units.dataset, policy, samples, parts, landed, replaced)


def lineage(
    assembled: Assembled,
    upstream: Sequence[StageRecord],
    data_version: str,
    run_id: str,
) -> list[Row]:
    """Return a batch's lineage: sample <- unit <- raw object, and stage <- stage, in O(samples + stages) rows.

    upstream: the records that the batch read. data_version: the samples' fingerprint.
    """
    units = next(record for record in upstream if record.stage == UNITS)
    own = {
        "run_id": run_id,
        "asset_key": f"{units.dataset}/{SAMPLES}",
        "partition": units.partition,
        "code_version": CODE_VERSION,
        # A fingerprint covers both: the settings of a stage, and the data that it reads.
        "config_hash": data_version,
        "data_version": data_version,
        "record": "",
    }
    rows = [_step(out=("stage", SAMPLES), source=("stage", record.stage)) | own for record in upstream]
    for record in upstream:
        read = [item.stage for item in record.upstream] or ["manifest"]  # raw_objects reads no stage
        for name in read:
            step = _step(out=("stage", record.stage), source=("stage", name))
            rows.append(step | _producer(record))
    units_run = _producer(units)
    for sample in assembled.samples:
        unit = ("unit", sample["unit_id"])
        rows.append(_step(out=("sample", sample["key"]), source=unit) | own)
        rows.append(_step(out=unit, source=("raw_object", sample["raw_sha256"])) | units_run)
    return rows


def _step(*, out: tuple[str, str], source: tuple[str, str]) -> Row:
    """Return the part of a lineage row that names a result, and what it was made from: each by kind and id."""
    out_kind, out_id = out
    in_kind, in_id = source
    return {"out_kind": out_kind, "out_id": out_id, "in_kind": in_kind, "in_id": in_id}


def _producer(record: StageRecord) -> Row:
    """Return the part of a lineage row that names the run of a stage."""
    return {
        "run_id": record.run_id,
        "asset_key": f"{record.dataset}/{record.stage}",
        "partition": record.partition,
        "code_version": record.code_version,
        "config_hash": record.fingerprint,
        "data_version": record.fingerprint,
        "record": record.path,
    }


def _counts(assembled: Assembled) -> dict[str, int]:
    """Return the counts of the batch's stage record."""
    outcomes = assembled.outcomes()
    kinds: dict[str, int] = {}
    for sample in assembled.samples:
        if not sample["left_out"]:
            kinds[sample["kind"]] = kinds.get(sample["kind"], 0) + 1
    return {
        "landed": len(assembled.objects),
        **{name: outcomes[name] for name in ("used", *OUTCOMES)},
        "samples": sum(kinds.values()),
        "left_out": len(assembled.exclude),
        **assembled.copies.counts,
        "nbytes": sum(shard.nbytes for part in assembled.parts for shard in part.shards),
        # Zeros keep the counts of every batch comparable in Dagster's plots.
        **dict.fromkeys(("image", "video", "audio", "text"), 0),
        **kinds,
    }


_CHECK_SAYS = (
    "Every landed object is used, or refused with a reason, and no more are refused than the dataset allows. A batch "
    "that fails is not published, now or later, until it is made again."
)
SamplesEvent = dg.AssetCheckResult | dg.MaterializeResult[None]


def samples_asset(spec: DatasetSpec, batches: dg.PartitionsDefinition[str]) -> dg.AssetsDefinition:
    key = dg.AssetKey([spec.name, SAMPLES])
    stages: Sequence[str] = [UNITS, *(feature.stage for feature in spec.features)]

    @dg.asset(
        key=key,
        deps=[dg.AssetKey([spec.name, stage]) for stage in stages],
        partitions_def=batches,
        code_version=CODE_VERSION,
        kinds={"parquet"},
        check_specs=[
            dg.AssetCheckSpec(
                CHECK,
                asset=key,
                blocking=True,
                description=_CHECK_SAYS,
            )
        ],
        description="Parts, features and score columns together; filtered, with every object accounted for.",
    )
    def samples(context: dg.AssetExecutionContext, root: RootResource) -> Iterator[SamplesEvent]:
        with root.opened() as opened:
            with as_failures(StageNotPublished):
                record, objects = samples_stage(
                    opened, spec, partition=context.partition_key, run_id=context.run.run_id
                )
            table = None
            if record.verdict == "published":
                table = candidate(opened, record)
            if table is None:
                shown = {}
            else:
                shown = samples_metadata(record, objects, table) | samples_columns(spec, table)
        yield from check_and_materialize(record, CHECK, check_metadata(record, objects), shown)

    return samples


def filter_words(rule: Filter) -> str:
    """Return a filter in words: 'luma_mean_ratio at least 0.05 and at most 0.9, unknown not allowed'."""
    bounds = []
    if rule.minimum is not None:
        bounds.append(f"at least {rule.minimum}")
    if rule.maximum is not None:
        bounds.append(f"at most {rule.maximum}")
    if rule.allowed is not None:
        bounds.append(f"one of {', '.join(sorted(map(str, rule.allowed)))}")
    text = f"{rule.column} {' and '.join(bounds)}".rstrip()
    if rule.required:
        return f"{text}, unknown not allowed"
    return text


def batch_provenance(
    spec: DatasetSpec,
    units: StageRecord,
    features: Sequence[StageRecord],
    objects: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return a batch's provenance as plain JSON without floats.

    - policy: kind -> how it was cut
    - features: name, version and parameters of featurizers with samples
    - filters: in words
    - refused: [outcome, stage, code, number of objects] for objects without a sample
    """
    parameters = {feature.build().name: feature.parameters for feature in spec.features}
    refused = Counter(
        (str(row["outcome"]), str(row["stage"]), str(row["code"]))
        for row in objects
        if row["outcome"] != "used"
    )
    return {
        "policy": dict(units.body.get("policy", {})),
        "features": [
            {
                "name": record.body["featurizer"],
                "version": record.body["version"],
                "parameters": {
                    name: str(value) for name, value in parameters.get(record.body["featurizer"], {}).items()
                },
            }
            for record in features
            if record.counts.get("samples")
        ],
        "filters": [filter_words(one) for one in spec.filters],
        "refused": [[*names, n] for names, n in sorted(refused.items())],
    }
