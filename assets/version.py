"""version: batches whose verdict is `published` become versions of the dataset. Reads nothing else."""

from dataclasses import dataclass
from typing import Any

import dagster as dg

import loader
from loader.errors import StageNotPublished
from resources.storage import RootResource

from . import samples as samples_stage
from .report import version_metadata
from .samples import published_labels
from .stages import StageRecord, current_record, partitions, require_published

STAGE = "version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What a publish came to. version: the newest; published: batches taken; held_back: batches left out."""

    version: loader.Version
    published: tuple[str, ...]
    held_back: tuple[str, ...]


def publish_batches(root: loader.Root, dataset: str, run_id: str) -> Release:
    """Publish every batch with a published verdict that no version has yet, one version per batch.

    Publishing again changes nothing: a transaction is committed once. Raises: StageNotPublished when there is
    nothing new and a batch failed its check, or no batch was cut at all; Fenced; Conflict.
    """
    records = {
        name: current_record(root.store, dataset, samples_stage.STAGE, name)
        for name in partitions(root.store, dataset, samples_stage.STAGE)
    }
    held_back = tuple(name for name, record in records.items() if record and record.verdict != "published")
    waiting = [record for record in records.values() if record and _is_waiting(root, record)]
    if not waiting and held_back:
        raise StageNotPublished(_refusal(root, dataset, held_back[0]))
    for record in waiting:
        _publish(root, record, run_id)
    newest = root.state.newest(dataset)
    if newest is None:
        raise StageNotPublished(f"no batch of {dataset} was cut: materialize [{dataset}, samples] first")
    taken = tuple(record.partition for record in waiting)
    return Release(version=root.open(newest.id), published=taken, held_back=held_back)


def _is_waiting(root: loader.Root, record: StageRecord) -> bool:
    if record.verdict != "published" or not record.body["parts"]:
        return False
    transaction = root.state.txns.get(record.body["txn"])
    return transaction is None or transaction.status != "committed"


def _refusal(root: loader.Root, dataset: str, partition: str) -> str:
    try:
        require_published(root.store, dataset, samples_stage.STAGE, partition)
    except StageNotPublished as error:
        return f"nothing was published: {error}"
    return f"nothing was published: the record of {partition} changed meanwhile; run this again"


def _publish(root: loader.Root, record: StageRecord, run_id: str) -> loader.Version:
    """Raises: StageNotPublished when the record's class numbers are not those of the newest version."""
    known, labels = published_labels(root, record.dataset), list(record.body["labels"])
    if labels[: len(known)] != known:
        raise StageNotPublished(
            f"batch {record.partition} was cut with the classes {labels}, the newest version has {known}: "
            "another batch was published meanwhile; "
            f"materialize [{record.dataset}, samples] for this batch again"
        )
    producer: dict[str, Any] = {
        "dagster_run_id": run_id,
        "asset_key": f"{record.dataset}/{STAGE}",
        "stage_record": record.path,
        "batch": record.partition,
        "cut_by_run_id": record.run_id,
        "labels": labels,
    }
    parts = [loader.Part.from_json(body) for body in record.body["parts"]]
    return root.publish(record.dataset, parts, producer=producer)


def version_asset(dataset: str) -> dg.AssetsDefinition:
    """The asset [dataset, version]."""

    @dg.asset(
        key=[dataset, STAGE],
        deps=[dg.AssetKey([dataset, samples_stage.STAGE])],
        group_name=dataset,
        kinds={"webdataset", "parquet"},
        description="An immutable version of the dataset, from batches that passed their check.",
    )
    def version(context: dg.AssetExecutionContext, root: RootResource) -> dg.MaterializeResult[None]:
        with root.opened() as opened:
            try:
                release = publish_batches(opened, dataset, context.run.run_id)
            except StageNotPublished as error:
                raise dg.Failure(str(error), allow_retries=False) from error
            return dg.MaterializeResult(metadata=version_metadata(release))

    return version
