"""The asset `feature_<name>`: one featurizer's features of a batch, as a new shard per part and columns."""

from collections.abc import Sequence
from typing import Any

import dagster as dg

import loader
from loader.dataset.shards.part import ShardFile, part_rows
from loader.errors import Conflict, FeaturizerFailed, InvalidWeights, ModelFailed, StageNotPublished
from loader.storage import Store
from penstock.compute.pool import Compute
from penstock.stages import StageRecord, current_record, fingerprint
from resources.compute import ComputeResource
from resources.storage import RootResource

from ..featurizers import Featurizer
from ..featurizers.featurizer import check_new_names
from ..featurizers.models import ModelFeaturizer, pin_featurizer
from ..ingest.stored_faults import has_feature_faults
from ..pages.report import (
    as_failures,
    dagster_name,
    data_version,
    features_metadata,
)
from ..pages.table_columns import feature_texts
from ..pipeline.stages import record_reader, require_published
from ..pipeline.tables import CUT_FACTS, facts_of_fields, read_table
from ..spec import DatasetSpec, Feature, stage_name
from .compute import feature_kind, part_inputs
from .names import batch_feature_names
from .part_work import CODE_VERSION, BatchFeatures, FeatureInput, FeaturesOf
from .refresh import is_published, refresh_stage


def feature_stage(
    root: loader.Root,
    compute: Compute,
    featurizer: Featurizer,
    *,
    dataset: str,
    partition: str,
    run_id: str,
    timeout_s: float,
    max_reject_rate: float = 1.0,
) -> tuple[StageRecord, list[dict[str, Any]]]:
    """Compute and publish one featurizer's group and columns for a batch; return the record and its rows.

    An unchanged batch is not recomputed, unless code or machine caused a stored refusal. A refused sample has empty
    fields, and the samples stage leaves it out. The verdict is "failed" if the featurizer refuses a larger share of the
    samples than max_reject_rate, 0 to 1.

    Raises: StageNotPublished; InvalidWeights; ModelFailed; FeaturizerFailed; Conflict if the units have this group,
    field or column; StoreError.
    """
    stage = stage_name(featurizer.name)
    upstream = require_published(root.store, dataset, "units", partition)
    if isinstance(featurizer, ModelFeaturizer):
        # Before the fingerprint: other weights at the same URL must count as another version.
        featurizer = pin_featurizer(featurizer)
    digest = fingerprint(CODE_VERSION, featurizer.version, upstream.fingerprint, upstream.body["txn"])
    newest = current_record(root.store, dataset, stage, partition)
    if newest is not None and (newest.verdict, newest.fingerprint) == ("published", digest):
        stored_rows = read_table(root.store, newest.files[stage])
        # A crash or a missing package may be gone by now; a refusal of the bytes will not.
        if not has_feature_faults(stored_rows):
            return newest, stored_rows
    units = [(entry["kind"], loader.Part.from_json(entry["part"])) for entry in upstream.body["parts"]]
    shards: list[ShardFile] = []
    for _, part in units:
        shards += part.shards
    facts = facts_of_fields(shards, CUT_FACTS, upstream.body.get("facts", {}))
    featurizer = featurizer.of_fields(facts)
    inputs = []
    for unit_kind, part in units:
        kind = feature_kind(featurizer, unit_kind, part)
        if part_inputs(featurizer, kind, part):
            inputs.append(FeatureInput(kind=kind, part=part))
    _check_names(root.store, featurizer, inputs)
    of = FeaturesOf(
        store=root.store,
        reader=record_reader(root.store, upstream),
        featurizer=featurizer,
        names=batch_feature_names(root, dataset, stage, featurizer, partition),
        stage=stage,
        units=upstream,
        digest=digest,
        # A repeated batch is another job: the blocks of the last one have its faults.
        attempt=(newest.r if newest else 0,),
        timeout_s=timeout_s,
    )
    return BatchFeatures(compute, of).publish(root, inputs, run_id, max_reject_rate)


def _check_names(store: Store, featurizer: Featurizer, inputs: Sequence[FeatureInput]) -> None:
    for item in inputs:
        check_new_names(
            featurizer,
            item.kind,
            groups={shard.group for shard in item.part.shards},
            fields={field for shard in item.part.shards for field in shard.field_nbytes},
            columns={name for row in part_rows(store, item.part) for name in row},
        )


def features_of_batch(
    root: loader.Root,
    compute: Compute,
    spec: DatasetSpec,
    featurizer: Featurizer,
    *,
    partition: str,
    run_id: str,
) -> tuple[StageRecord, list[dict[str, Any]]]:
    """Compute a batch's features: by `refresh_stage` if the batch is published, else by `feature_stage`."""
    units = require_published(root.store, spec.name, "units", partition)
    if is_published(root.state, units):
        return refresh_stage(root, compute, spec, featurizer, units, run_id=run_id)
    return feature_stage(
        root,
        compute,
        featurizer,
        dataset=spec.name,
        partition=partition,
        run_id=run_id,
        timeout_s=spec.work_timeout_s,
        max_reject_rate=spec.max_reject_rate,
    )


def feature_asset(
    spec: DatasetSpec, feature: Feature, batches: dg.PartitionsDefinition[str]
) -> dg.AssetsDefinition:
    """Return the asset [dataset, feature_<name>]; reads nothing.

    A new featurizer version, or new weights with a stated sha256, make the asset stale; other weights are noticed by a
    run.
    """
    featurizer = feature.build()
    if isinstance(featurizer, ModelFeaturizer):
        # Dagster asks for this at each load of the code, which must not read weights from a store.
        version = featurizer.declared_version
    else:
        version = featurizer.version
    texts = feature_texts(featurizer)

    @dg.asset(
        key=[spec.name, feature.stage],
        deps=[dg.AssetKey([spec.name, "units"])],
        partitions_def=batches,
        code_version=f"{CODE_VERSION}/{version}",
        pool=dagster_name(spec.name),
        kinds={"python"},
        description=f"{featurizer.name} of every {' and '.join(sorted(featurizer.kinds))} of a batch.",
    )
    def features(
        context: dg.AssetExecutionContext, root: RootResource, compute: ComputeResource
    ) -> dg.MaterializeResult[None]:
        with root.opened() as opened, compute.opened(context) as engine:
            with as_failures(StageNotPublished, Conflict, InvalidWeights, ModelFailed, FeaturizerFailed):
                record, rows = features_of_batch(
                    opened,
                    engine,
                    spec,
                    featurizer,
                    partition=context.partition_key,
                    run_id=context.run.run_id,
                )
            if record.verdict != "published":
                shown = features_metadata(record, rows, texts)
                raise dg.Failure(record.reason, metadata=shown, allow_retries=False)
        return dg.MaterializeResult(
            metadata=features_metadata(record, rows, texts), data_version=data_version(record)
        )

    return features
