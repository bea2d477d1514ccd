"""Stages: names, published records (`penstock.stages`), open transactions, and requests to cut a batch again (recuts).

tables/<dataset>/cut_again/<batch>/<transaction>.json      recut request, until the batch is cut again
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import loader
from loader.dataset.shards.part import Part
from loader.dataset.tables.parquet import TableFile
from loader.errors import AlreadyExists, Corrupt, StageNotPublished
from loader.storage import RangeReader, Store
from penstock.stages import (
    StageRecord,
    Upstream,
    Verdict,
    append_record,
    check_partition,
    current_record,
)

from .tables import write_table

if TYPE_CHECKING:
    from penstock.compute.job import Job
    from penstock.compute.pool import Compute

    from ..spec import DatasetSpec

Row = dict[str, Any]

# The pipeline. A stage recomputes only if its fingerprint changed. Its record is `published` or `failed`.
#
# stage           requires              fingerprint covers              computes                       appends
# raw_objects     the batch's manifest  manifest, content of objects    SHA-256, type and origin       raw_objects
# media           raw_objects           raw_objects, limits, options    facts of decoded objects       media, refusals
# units           media, raw_objects    media, cut policy, splits       parts of an open transaction   units, refusals
# feature_<name>  units                 units, featurizer               fields and columns of samples  their table
# samples         all of these          records, filters, exclusions    samples added and left out     objects, lineage
# version         samples               samples, gate                   verdict, then a publication    the checks
#
# Not per batch:
# refresh         feature_<name>        their records, gate             verdict on new features        the checks
# quarantine      ledgers of trainings  names of the ledgers            verdict on reported samples    quarantine
# generations     nothing               nothing                         version that owns a name       its generation
# reconciliation  the sources, batches  - (compares them in each run)   objects that discovery missed  no record

# Names of the stages in records and asset keys.
RAW_OBJECTS = "raw_objects"
MEDIA = "media"
UNITS = "units"
SAMPLES = "samples"
VERSION = "version"
SEARCH = "search"
QUARANTINE = "quarantine"
RECONCILIATION = "reconciliation"
REFRESH = "refresh"
GENERATIONS = "generations"

_TRANSACTION_CHARS = 32  # of a SHA-256 in hex: names are unique without its second half
_RELATIVE_NAMES = frozenset({"", ".", ".."})
_FORGERY_REMEDY = "Find out who may write to jobs/, then run penstock jobs clear, and run the stage again"


def require_published(
    store: Store,
    dataset: str,
    stage: str,
    partition: str,
) -> StageRecord:
    """Return the current record. Raises: StageNotPublished, with the remedy, if it is not published."""
    record = current_record(store, dataset, stage, partition)
    description = f"stage {stage} of {dataset}, partition {partition}"
    if record is None:
        raise StageNotPublished(
            f"{description}, has published nothing: materialize [{dataset}, {stage}] first",
            what=stage,
            where=f"{dataset}, partition {partition}",
        )
    if record.verdict != "published":
        raise StageNotPublished(
            f"{description}, failed its check (attempt {record.r}, run {record.run_id}): {record.reason}. Repair "
            f"what it names, then materialize [{dataset}, {stage}] again",
            what=stage,
            where=f"{dataset}, partition {partition}",
            given=record.reason,
            accepted="published",
        )
    return record


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """A stage at work on one partition.

    Every stage does the same: `require` its inputs, compare its fingerprint with the `current` record's, compute, and
    `append` the result.
    """

    store: Store
    """Root's store."""
    dataset: str
    name: str
    partition: str
    """Partition key; a batch's in most stages."""
    _: KW_ONLY  # `store`, `dataset`, `name` and `partition` come first, as in `current_record`
    run_id: str
    """Dagster's run id; "" outside runs."""
    code_version: str
    """Version of the code that computes the result."""

    def require(self, stage: str) -> StageRecord:
        """Return another stage's published record of this partition. Raises: StageNotPublished."""
        return require_published(self.store, self.dataset, stage, self.partition)

    def current(self) -> StageRecord | None:
        """Return the stage's newest record, or None. Raises: Corrupt."""
        return current_record(self.store, self.dataset, self.name, self.partition)

    def write_table(
        self,
        table: str,
        rows: Sequence[Mapping[str, Any]],
    ) -> TableFile:
        """Write rows as a new file, which the record makes current."""
        return write_table(self.store, self.dataset, table, self.partition, rows)

    def append(
        self,
        fingerprint: str,
        *,
        verdict: Verdict | None = None,
        reason: str = "",
        approved_by: str = "",
        files: Mapping[str, TableFile] | None = None,
        reads: Iterable[StageRecord] = (),
        counts: Mapping[str, int] | None = None,
        body: Mapping[str, Any] | None = None,
        after: int | None = None,
    ) -> StageRecord:
        """Append the stage's record and return it as stored.

        verdict: None: `failed` if there is a reason. reads: records that the stage read. after: number of the stage's
        newest record when the work started. If another run has appended the same fingerprint since, its record is
        returned, and nothing is appended.
        """
        if verdict is None and reason:
            verdict = "failed"
        elif verdict is None:
            verdict = "published"
        upstream = list[Upstream]()
        for read in reads:
            reference = Upstream(stage=read.stage, partition=read.partition, r=read.r)
            upstream.append(reference)
        record = StageRecord(
            dataset=self.dataset,
            stage=self.name,
            partition=self.partition,
            verdict=verdict,
            run_id=self.run_id,
            code_version=self.code_version,
            fingerprint=fingerprint,
            reason=reason,
            approved_by=approved_by,
            files=files or {},
            upstream=tuple(upstream),
            counts=counts or {},
            body=body or {},
        )
        return append_record(self.store, record, after=after)


def open_transaction(
    root: "loader.Root",
    dataset: str,
    *words: str,
    gated: bool = False,
) -> str:
    """Return the open transaction for this work, begun if needed.

    Its name derives from `words`, so repeated and concurrent runs share it. Tries one name per finished transaction of
    this work. Costs one refresh of the log, and an append for a new transaction. Raises: as `Root.begin`.
    """
    root.create()
    transactions = root.log.refresh().txns
    for number in count(1):
        identity = "\0".join([dataset, *words, str(number)])
        digest = hashlib.sha256(identity.encode()).hexdigest()
        name = digest[:_TRANSACTION_CHARS]
        transaction = transactions.get(name)
        if transaction is None or transaction.status == "open":
            return root.begin(dataset, txn=name, gated=gated)
    raise AssertionError("count() has no end")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBatch:
    """A batch to write as parts of an open transaction. Writing it returns `BatchSamples`."""

    root: "loader.Root"
    landing: Store
    """Store of the raw objects, as they landed."""
    files: Store
    """Store of the objects' files; differs from `landing` if an object has several, which workers then join."""
    compute: "Compute"
    spec: "DatasetSpec"
    txn: str
    """Transaction of the parts."""
    raws: Mapping[str, Row]
    """Key of each raw object -> its row of `raw_objects`."""
    audits: Sequence[Row]
    """Rows of `media`, one per admitted object."""
    published: Mapping[str, str]
    """SHA-256 of a raw object -> "<its key> in <version>", for objects with samples in the newest version."""
    labels: Sequence[str]
    """Class names of the newest version, by number."""
    provenance: Mapping[str, str]
    """Provenance of all its samples."""

    @property
    def partition(self) -> str:
        return self.provenance["partition"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSamples:
    """Samples of one batch, cut from media or read from a format."""

    parts: Sequence[tuple[str, Part]] = ()
    """(kind, part)."""
    rows: list[Row] = field(default_factory=list)
    """Rows of `units`."""
    refusals: list[Row]
    labels: Sequence[str] = ()
    """Class names of the dataset, by class number."""
    foreign: Mapping[str, Any] | None = None
    """Table of the objects in place, as JSON."""
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Field -> facts from the format."""
    replaces: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Key -> published keys that it replaces."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Column from JSON documents -> type."""
    notes: Sequence[str] = ()
    """JSON values that became no column."""
    n_known: int = 0
    """Number of samples left out because they were published before, even if excluded since."""
    jobs: Sequence["Job[Any, Any]"] = ()
    """Cluster jobs, discarded once the batch is recorded."""
    short_shots: int = 0
    """Shots, and ends of shots, too short for a clip."""


def parse_written_part(body: dict[str, Any], txn: str) -> Part:
    """Return a part that a node reports. Raises: as `check_written`; InvalidSample for an invalid part."""
    part = Part.from_json(body)
    # Both name files: the part its samples table, a shard its data and its index.
    entries = [part.to_json(), *body["shards"]]
    check_written(entries, txn, part.id)
    return part


def check_written(entries: Iterable[Mapping[str, Any]], txn: str, part: str) -> None:
    """Raise Corrupt unless a node's files are in the transaction's folder: its report may be forged.

    entries: a part or its shards, as JSON. part: id of the part.
    """
    folder = f"data/{txn}/"
    for entry in entries:
        samples = entry.get("samples") or {}
        files = [
            entry.get("path"),
            entry.get("index_path"),
            samples.get("path"),
        ]
        for path in files:
            if path and not _is_inside(folder, path):
                raise Corrupt(
                    f"a node reports the file {path!r} of part {part}; accepted are files below {folder}. "
                    f"{_FORGERY_REMEDY}",
                    what=path,
                    where=part,
                    accepted=folder,
                )
        stated_txn = entry.get("txn", txn)
        stated_part = entry.get("part", part)
        if stated_txn != txn or stated_part != part:
            raise Corrupt(
                f"a node reports part {stated_part!r} of transaction {stated_txn!r}; accepted is {part} of {txn}. "
                f"{_FORGERY_REMEDY}",
                what="part",
                where=part,
                given=(stated_txn, stated_part),
                accepted=(txn, part),
            )


def _is_inside(folder: str, path: str) -> bool:
    if not path.startswith(folder):
        return False
    # A path with one of these names may lead out of the folder.
    return _RELATIVE_NAMES.isdisjoint(path.split("/"))


def record_reader(store: Store, record: StageRecord) -> RangeReader:
    """Return a reader for a record's shards, which may be the source's own objects, left in place.

    Raises: as `registered_shard_store.open_shard_store`.
    """
    objects_in_place = record.body.get("foreign")
    if not objects_in_place:
        return store
    from loader.dataset.reading.registered_shard_store import open_shard_store  # most batches do not need it

    owner = f"batch {record.partition} of {record.dataset}"
    return open_shard_store(store, [objects_in_place], owner)


def require_read(record: StageRecord, upstream: StageRecord) -> None:
    """Raise StageNotPublished unless `record` was computed from `upstream`, a record of the same partition."""
    for read in record.upstream:
        if read.stage == upstream.stage and read.r == upstream.r:
            return
    raise StageNotPublished(
        f"stage {record.stage} of {record.dataset}, partition {record.partition}, read an earlier record of "
        f"{upstream.stage}; materialize [{record.dataset}, {record.stage}] again",
        what=record.stage,
        where=f"{record.dataset}, partition {record.partition}",
        given=upstream.stage,
    )


def request_recut(store: Store, dataset: str, batch: str, txn: str) -> None:
    """Request a recut of the batch whose parts are in this transaction; repeats count as one."""
    key = _recut_key(dataset, batch, txn)
    try:
        store.put_if_absent(key, b"{}\n")
    except AlreadyExists:
        return


class RecutRequest(NamedTuple):
    """A request to cut a batch again."""

    batch: str
    txn: str
    """Transaction of the batch's parts."""


def recut_requests(store: Store, dataset: str) -> Iterator[RecutRequest]:
    """Yield every recut request. Costs one listing."""
    folder = _recut_folder(dataset)
    for info in store.list(folder):
        path = info.key.removeprefix(folder)
        batch, _, name = path.partition("/")
        yield RecutRequest(batch=batch, txn=name.removesuffix(".json"))


def clear_recut(store: Store, dataset: str, batch: str, txn: str) -> None:
    """Delete the recut request."""
    key = _recut_key(dataset, batch, txn)
    store.delete_many([key])


def _recut_folder(dataset: str) -> str:
    return f"tables/{dataset}/cut_again/"


def _recut_key(dataset: str, batch: str, txn: str) -> str:
    folder = _recut_folder(dataset)
    name = check_partition(batch)
    return f"{folder}{name}/{txn}.json"
