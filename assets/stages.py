"""The gate between stages: a stage reads only the published record of another one.

A stage writes its files, audits them and appends `published` or `failed` (`penstock.stages`). Data that failed an
audit, or never had one, are not read by mistake: neither in the same run nor in a later one.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any

import loader
from loader.dataset.shards.part import Part
from loader.errors import AlreadyExists, Corrupt, StageNotPublished
from loader.storage import RangeReader, Store
from penstock.stages import StageRecord, check_partition, current_record

RAW_OBJECTS = "raw_objects"
MEDIA = "media"
UNITS = "units"
SAMPLES = "samples"
VERSION = "version"
QUARANTINE = "quarantine"
RECONCILIATION = "reconciliation"
REFRESH = "refresh"
GENERATIONS = "generations"
"""Names of the stages, as records and asset keys have them."""


def require_published(store: Store, dataset: str, stage: str, partition: str) -> StageRecord:
    """Return the current record, if it may be read. Raises: StageNotPublished, saying why and what to do."""
    record = current_record(store, dataset, stage, partition)
    what = f"stage {stage} of {dataset}, partition {partition}"
    if record is None:
        raise StageNotPublished(f"{what}, has published nothing: materialize [{dataset}, {stage}] first")
    if record.verdict != "published":
        raise StageNotPublished(
            f"{what}, failed its check (attempt {record.r}, run {record.run_id}): {record.reason}. Repair "
            f"what it names, then materialize [{dataset}, {stage}] again"
        )
    return record


def open_transaction(root: "loader.Root", dataset: str, *words: str, gated: bool = False) -> str:
    """Return the open transaction of this work, begun where there is none.

    Its name follows from the words, so whoever does the work again, or beside another one, finds it. One that was
    published or given up is followed by the next: O(those that are over), no request for them.

    Raises: as `Root.begin`.
    """
    root.create()
    txns = root.log.refresh().txns
    for number in count(1):
        name = hashlib.sha256("\0".join((dataset, *words, str(number))).encode()).hexdigest()[:32]
        if name not in txns or txns[name].status == "open":
            return root.begin(dataset, txn=name, gated=gated)
    raise AssertionError("count() has no end")


def written_part(body: dict[str, Any], txn: str) -> Part:
    """Return a part that a node says it wrote. Raises: as `check_written`; InvalidSample for what is no part."""
    part = Part.from_json(body)
    check_written([part.to_json(), *body["shards"]], txn, part.id)
    return part


def check_written(facts: Iterable[Mapping[str, Any]], txn: str, part: str) -> None:
    """Check that what a node says it wrote lies where the transaction writes: its answer lies in a bucket.

    facts: of a part and its shards, as JSON. Raises: Corrupt.
    """
    for one in facts:
        files = [one.get("path"), one.get("index_path"), (one.get("samples") or {}).get("path")]
        for path in filter(None, files):
            if not path.startswith(f"data/{txn}/") or not {"", ".", ".."}.isdisjoint(path.split("/")):
                raise Corrupt(
                    f"a node says that it wrote {path!r} for part {part}; accepted are files below data/{txn}/. Find "
                    "out who may write to jobs/, then run penstock jobs clear, and the stage again"
                )
        if one.get("txn", txn) != txn or one.get("part", part) != part:
            raise Corrupt(f"a node names another part or transaction than {part} of {txn}")


def reader_of(store: Store, record: StageRecord) -> RangeReader:
    """Return the reader of the shards of a record's parts: the root's store, or one that also finds those in place.

    Raises: as `shard_reader.shard_reader`.
    """
    if not (foreign := record.body.get("foreign")):
        return store
    from loader.dataset.reading.shard_reader import shard_reader

    return shard_reader(store, [foreign], f"batch {record.partition} of {record.dataset}")


def require_read(record: StageRecord, upstream: StageRecord) -> None:
    """Check that the record was made of exactly that upstream record. Raises: StageNotPublished."""
    if not any((read.stage, read.r) == (upstream.stage, upstream.r) for read in record.upstream):
        raise StageNotPublished(
            f"stage {record.stage} of {record.dataset}, partition {record.partition}, was made of other "
            f"{upstream.stage} than the current ones; materialize [{record.dataset}, {record.stage}] again"
        )


def request_recut(store: Store, dataset: str, batch: str, txn: str) -> None:
    """Request a recut of the batch with this transaction; repeated requests count once."""
    try:
        store.put_if_absent(_recut_key(dataset, batch, txn), b"{}\n")
    except AlreadyExists:
        return


def recut_requests(store: Store, dataset: str) -> Iterator[tuple[str, str]]:
    """Yield (batch, transaction) of every request. Costs one listing."""
    for info in store.list(_recut_folder(dataset)):
        batch, _, name = info.key.removeprefix(_recut_folder(dataset)).partition("/")
        yield batch, name.removesuffix(".json")


def clear_recut(store: Store, dataset: str, batch: str, txn: str) -> None:
    """Delete the request."""
    store.delete_many([_recut_key(dataset, batch, txn)])


def _recut_folder(dataset: str) -> str:
    return f"tables/{dataset}/cut_again/"


def _recut_key(dataset: str, batch: str, txn: str) -> str:
    return f"{_recut_folder(dataset)}{check_partition(batch)}/{txn}.json"
