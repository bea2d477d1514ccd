"""feature_<name>: what one featurizer makes of each sample of a batch, as a group of its own and score columns.

The media are not written again: fields become one more shard per part.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import dagster as dg

import loader
from loader.dataset.part_extension import add_part_group, part_rows
from loader.errors import Conflict, FieldMismatch, InvalidWeights, ModelFailed, StageNotPublished
from loader.storage import Store
from resources.compute import Compute, ComputeResource, Progress
from resources.storage import RootResource

from .featurizers import Featurizer
from .featurizers.clashes import check_beside
from .featurizers.models import ModelFeaturizer, pinned, tried_out
from .featurizing import Row, compute_part, inputs_of
from .report import dagster_name, features_metadata
from .spec import DatasetSpec, Feature, stage_name
from .stages import StageRecord, Upstream, append_record, current_record, fingerprint, require_published
from .tables import read_table, write_wide_table

CODE_VERSION = "1"


def feature_stage(
    root: loader.Root,
    compute: Compute,
    featurizer: Featurizer,
    *,
    dataset: str,
    partition: str,
    run_id: str,
    timeout_s: float,
    progress: Progress | None = None,
) -> tuple[StageRecord, list[dict[str, Any]]]:
    """Compute and publish one featurizer's groups and columns for a batch: the record, and its rows.

    A batch whose units and featurizer are those of the published record is not computed again. A sample that the
    featurizer refuses has empty fields; the samples stage leaves it out. A model is loaded once before any sample is
    touched. Raises: StageNotPublished; InvalidWeights; ModelFailed; Conflict, before anything is computed, when the
    units have such a group, field or column already; StoreError.
    """
    stage = stage_name(featurizer.name)
    upstream = require_published(root.store, dataset, "units", partition)
    if isinstance(featurizer, ModelFeaturizer):
        featurizer = pinned(featurizer)
    wanted = fingerprint(CODE_VERSION, featurizer.version, upstream.fingerprint, upstream.body["txn"])
    newest = current_record(root.store, dataset, stage, partition)
    if newest is not None and (newest.verdict, newest.fingerprint) == ("published", wanted):
        return newest, read_table(root.store, newest.files[stage])
    parts = [(entry["kind"], loader.Part.from_json(entry["part"])) for entry in upstream.body["parts"]]
    taken = [(kind, part) for kind, part in parts if inputs_of(featurizer, kind, part)]
    for kind, part in taken:
        _check_names(root.store, featurizer, kind, part)
    body = {"featurizer": featurizer.name, "version": featurizer.version}
    shards: list[dict[str, Any]] = []
    table: list[dict[str, Any]] = []
    with root.heartbeat(upstream.body["txn"]):
        if isinstance(featurizer, ModelFeaturizer) and taken:
            body |= _model_facts(compute, featurizer, timeout_s)
        for kind, part in taken:
            rows = compute_part(root.store, compute, featurizer, kind, part, timeout_s, progress)
            shards += _added_shard(root.store, featurizer, kind, part, rows, table)
    refused = sum(1 for row in table if row["code"])
    record = StageRecord(
        dataset=dataset,
        stage=stage,
        partition=partition,
        verdict="published",
        run_id=run_id,
        code_version=f"{CODE_VERSION}/{featurizer.version}",
        fingerprint=wanted,
        files={stage: write_wide_table(root.store, dataset, stage, partition, table)},
        upstream=(Upstream(stage=upstream.stage, partition=partition, r=upstream.r),),
        counts={
            "samples": len(table),
            "refused": refused,
            "nbytes": sum(shard["nbytes"] for shard in shards),
        },
        body=body | {"shards": shards},
    )
    return append_record(root.store, record), table


def _check_names(store: Store, featurizer: Featurizer, kind: str, part: loader.Part) -> None:
    """Raises: Conflict."""
    check_beside(
        featurizer,
        kind,
        groups={shard.group for shard in part.shards},
        fields={field for shard in part.shards for field in shard.field_nbytes},
        columns={name for row in part_rows(store, part) for name in row},
    )


def _model_facts(compute: Compute, featurizer: ModelFeaturizer, timeout_s: float) -> dict[str, Any]:
    """What the record says of a model and what it ran on. Raises: ModelFailed when it cannot be loaded."""
    (outcome,) = compute.map(tried_out, [featurizer], timeout_s=timeout_s)
    if outcome.value is None:
        reason = outcome.error.summary if outcome.error else ""
        raise ModelFailed(f"featurizer {featurizer.name!r} cannot be loaded: {reason}")
    stated = {
        "weights": featurizer.weights,
        "weights_sha256": featurizer.sha256,
        "batch_size": featurizer.batch_size,
    }
    return stated | {"device": featurizer.device, "dtype": featurizer.dtype, **outcome.value}


def _added_shard(
    store: Store,
    featurizer: Featurizer,
    kind: str,
    part: loader.Part,
    rows: Iterator[Row],
    table: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """The new shard of the part as JSON, none for a featurizer that gives columns only, or takes no sample; what the
    table says of each row is appended to `table`. Rows are written as they come: the fields of one are in memory."""
    told = _told(featurizer, kind, rows, table)
    first: list[Row] = []
    for row in told:
        first.append(row)
        if row.features and featurizer.outputs[kind]:
            break
    else:
        return []
    empty: dict[str, Any] = dict.fromkeys(featurizer.outputs[kind], b"")
    values = (row.features.fields if row.features else empty for row in chain(first, told))
    extended = add_part_group(store, part, featurizer.name, values)
    body: dict[str, Any] = extended.to_json()["shards"][-1]
    return [body]


def _told(
    featurizer: Featurizer, kind: str, rows: Iterator[Row], table: list[dict[str, Any]]
) -> Iterator[Row]:
    """The rows as they are, noted in the table. Raises: FieldMismatch when one has other names than declared."""
    for row in rows:
        if row.features is not None:
            for what, made, declared in (
                ("fields", row.features.fields, featurizer.outputs[kind]),
                ("columns", row.features.columns, featurizer.columns[kind]),
            ):
                if set(made) != set(declared):
                    raise FieldMismatch(
                        f"sample {row.key!r}: featurizer {featurizer.name!r} made the {what} {sorted(made)} and "
                        f"declares {sorted(declared)}; make it declare what it makes"
                    )
        table.append(_table_row(row))
        yield row


def _table_row(row: Row) -> dict[str, Any]:
    columns = dict(row.features.columns) if row.features else {}
    return {"key": row.key, "code": row.code, "reason": row.reason, **columns}


def feature_asset(
    spec: DatasetSpec, feature: Feature, batches: dg.PartitionsDefinition[str]
) -> dg.AssetsDefinition:
    """The asset [dataset, feature_<name>]. Its code version follows the featurizer's: a new one makes it stale.

    Nothing is read here: other weights under the same path make a model's features stale for Dagster if their sha256
    is stated; if it is not, the next run finds out.
    """
    featurizer = feature.made()
    version = featurizer.declared_version if isinstance(featurizer, ModelFeaturizer) else featurizer.version

    @dg.asset(
        key=[spec.name, feature.stage],
        deps=[dg.AssetKey([spec.name, "units"])],
        partitions_def=batches,
        code_version=f"{CODE_VERSION}/{version}",
        group_name=dagster_name(spec.name),
        kinds={"python"},
        description=f"{featurizer.name} of every {' and '.join(sorted(featurizer.kinds))} of a batch.",
    )
    def features(
        context: dg.AssetExecutionContext, root: RootResource, compute: ComputeResource
    ) -> dg.MaterializeResult[None]:
        with root.opened() as opened, compute.opened() as engine:
            try:
                record, rows = feature_stage(
                    opened,
                    engine,
                    featurizer,
                    dataset=spec.name,
                    partition=context.partition_key,
                    run_id=context.run.run_id,
                    timeout_s=spec.work_timeout_s,
                )
            except (StageNotPublished, Conflict, InvalidWeights, ModelFailed) as error:
                raise dg.Failure(str(error), allow_retries=False) from error
        return dg.MaterializeResult(metadata=features_metadata(record, rows))

    return features
