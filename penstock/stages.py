"""Stage records: a pipeline stage's result and verdict for a partition. Never changed; the highest r is current.

stages/<dataset>/<stage>/<partition>/<r>.json     r has 12 digits, from 1
"""

import hashlib
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from threading import Lock
from typing import Any, Literal

from loader.dataset.log.entries import DAMAGED, canonical
from loader.dataset.names import check_dataset_name
from loader.dataset.tables.parquet import TableFile
from loader.errors import AlreadyExists, Corrupt, InvalidName, ObjectNotFound
from loader.json_text import parse_json_object
from loader.storage import ObjectInfo, Store
from loader.storage.threads import DaemonPool

Verdict = Literal["published", "failed"]
VERDICTS = "version"
"""Stage whose records are the gate's verdicts."""
_DIGITS = 12
_AT_ONCE = 16  # concurrent requests
_NAME = re.compile(r"/(\d{12,})\.json$")
_PARTITION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """A record that a stage read."""

    stage: str
    """Stage name."""
    partition: str
    """Partition key."""
    r: int
    """Record number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """One run of a stage for a partition."""

    dataset: str
    stage: str
    partition: str
    """Partition key."""
    verdict: Verdict
    """Outcome."""
    run_id: str
    """Dagster's run id."""
    code_version: str
    fingerprint: str
    """SHA-256 (hex) of the inputs; equal values mean equal results."""
    reason: str = ""
    """Reason for the verdict, or ""."""
    approved_by: str = ""
    """Approver, or ""."""
    files: Mapping[str, TableFile] = field(default_factory=dict)
    """Name -> table that the stage wrote."""
    upstream: tuple[Upstream, ...] = ()
    """Records that the stage read."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Name -> number of inputs or outputs."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """Values for later stages: plain JSON without floats."""
    r: int = 0
    """Number, from 1; 0 before the append."""
    at_us: int = 0
    """UTC microseconds of the append; 0 before it."""
    nonce: str = ""
    """Random hex; makes it unique."""

    @property
    def path(self) -> str:
        return record_path(self.dataset, self.stage, self.partition, self.r)


def check_partition(partition: str) -> str:
    """Return a valid partition key. Raises: InvalidName."""
    if not _PARTITION.fullmatch(partition):
        raise InvalidName(
            f"partition {partition!r}: use 1 to 100 letters, digits, '.', '_' or '-', e.g. '2026-11-20.001'"
        )
    return partition


def append_record(store: Store, record: StageRecord, after: int | None = None) -> StageRecord:
    """Append a record to its partition. Concurrent writers get different numbers.

    after: newest record's number when the work started. If another writer has since appended the same fingerprint,
    returns that record and appends nothing.
    """
    number = after
    if number is None:
        newest = current_record(store, record.dataset, record.stage, record.partition)
        number = 0
        if newest:
            number = newest.r
    # Two writers' records always differ: `put_if_absent` takes equal bytes for its own write whose response was lost.
    written = replace(record, nonce=secrets.token_hex(8), at_us=time.time_ns() // 1000)
    while True:
        number += 1
        written = replace(written, r=number)
        try:
            store.put_if_absent(written.path, _to_json(written))
        except AlreadyExists:
            first = None
            if after is not None:
                # None if the record was deleted since: its number stays used.
                first = find_record(store, written.path)
            if first is not None and first.fingerprint == record.fingerprint:
                return first
            continue
        return written


def current_record(store: Store, dataset: str, stage: str, partition: str) -> StageRecord | None:
    """Return the highest-numbered record, or None. Raises: Corrupt."""
    names = [info.key for info in store.list(f"{_folder(dataset, stage)}{check_partition(partition)}/")]
    number = max((int(match[1]) for name in names if (match := _NAME.search(name))), default=0)
    record = None
    if number:
        record = find_record(store, record_path(dataset, stage, partition, number))
    while later := find_record(
        store, record_path(dataset, stage, partition, number + 1)
    ):  # a listing may lag behind
        record = later
        number = number + 1
    return record


def current_records(store: Store, dataset: str, stage: str) -> dict[str, StageRecord]:
    """Return partition -> current record, sorted. Costs a listing, and a GET per partition. Raises: Corrupt."""
    return existing_records(store, newest_listed(store, dataset, stage))


def newest_listed(store: Store, dataset: str, stage: str) -> dict[str, ObjectInfo]:
    """Return partition -> newest record, sorted."""
    folder = _folder(dataset, stage)
    newest: dict[str, ObjectInfo] = {}
    for info in store.list(folder):  # in key order, so the last is the newest
        if _NAME.search(info.key):  # other files in the folder are not records
            newest[info.key[len(folder) :].partition("/")[0]] = info
    return dict(sorted(newest.items()))


def existing_records(store: Store, listed: Mapping[str, ObjectInfo]) -> dict[str, StageRecord]:
    """Return partition -> record, without deleted ones. Costs a GET each. Raises: Corrupt."""
    paths = [info.key for info in listed.values()]
    with DaemonPool(_AT_ONCE, "penstock-stages") as pool:
        records = zip(listed, pool.map(partial(find_record, store), paths), strict=True)
        return {name: record for name, record in records if record is not None}


def partitions(store: Store, dataset: str, stage: str) -> list[str]:
    folder = _folder(dataset, stage)
    return sorted({info.key[len(folder) :].split("/", 1)[0] for info in store.list(folder)})


def read_record(store: Store, path: str) -> StageRecord:
    """Return a record. Raises: ObjectNotFound; Corrupt."""
    record = find_record(store, path)
    if record is None:
        raise ObjectNotFound(
            f"{store.url}/{path} is gone; restore it from a mirror", where=f"{store.url}/{path}"
        )
    return record


def record_json(store: Store, path: str, field: str) -> Mapping[str, Any]:
    """Return a record of any release as JSON with `field`. Raises: ObjectNotFound; Corrupt."""
    try:
        body = parse_json_object(store.get(path).data)
    except ValueError as error:
        raise Corrupt(
            f"{store.url}/{path} is not a stage record ({error}); restore it from a mirror",
            what="stage record",
            where=f"{store.url}/{path}",
            given=type(error).__name__,
        ) from error
    if not isinstance(body.get(field), dict | list):
        raise Corrupt(
            f"{store.url}/{path} is not a stage record; restore it from a mirror",
            what=field,
            where=f"{store.url}/{path}",
            accepted="a stage record",
        )
    return body


def read_records(store: Store, paths: Sequence[str]) -> Iterator[StageRecord]:
    """Yield records in order. Raises: ObjectNotFound; Corrupt."""
    with DaemonPool(_AT_ONCE, "penstock-stages") as pool:
        yield from pool.map(partial(read_record, store), paths)


class KnownRecords:
    """Thread-safe cache of some stages' newest records.

    A refresh costs a listing of the dataset's stages, and a GET per new record. A takedown changes a record's etag: it
    counts as new.
    """

    def __init__(self, dataset: str, stages: Sequence[str]) -> None:
        self._dataset = dataset
        self._stages = frozenset(stages)
        self._read: dict[str, tuple[str, StageRecord]] = {}  # path -> (etag, record)
        self._lock = Lock()

    def newest(self, store: Store) -> dict[str, dict[str, StageRecord]]:
        """Return partition -> stage -> newest record. Raises: Corrupt; ObjectNotFound; StoreError."""
        with self._lock:
            listed = self._listed(store)
            current = {info.key: info.etag for stages in listed.values() for info in stages.values()}
            self._read = {
                path: record for path, record in self._read.items() if current.get(path) == record[0]
            }
            for new in read_records(store, sorted(current.keys() - self._read.keys())):
                # One by one: an interrupted refresh keeps what it has read.
                self._read[new.path] = current[new.path], new
            return {
                partition: {stage: self._read[info.key][1] for stage, info in stages.items()}
                for partition, stages in listed.items()
            }

    def _listed(self, store: Store) -> dict[str, dict[str, ObjectInfo]]:
        """Return partition -> stage -> newest record's object."""
        folder = f"stages/{self._dataset}/"
        infos = dict[str, dict[str, ObjectInfo]]()
        for info in store.list(folder):
            stage, _, name = info.key.removeprefix(folder).partition("/")
            if stage in self._stages and _NAME.search(name):
                partition, _, _ = name.partition("/")
                # A listing is in key order, and record numbers rise: the last one of a stage is the newest.
                infos.setdefault(partition, {})[stage] = info
        return infos


def fingerprint(*parts: object) -> str:
    """Return the SHA-256 (hex) of plain values without floats."""
    return hashlib.sha256(canonical(list(parts))).hexdigest()


def _folder(dataset: str, stage: str) -> str:
    return f"stages/{dataset}/{stage}/"


def record_path(dataset: str, stage: str, partition: str, r: int) -> str:
    """Return a record's key. Raises: InvalidName."""
    return f"{_folder(dataset, stage)}{check_partition(partition)}/{r:0{_DIGITS}d}.json"


def settlement_path(dataset: str) -> str:
    """Return the key of the table of settled batches, a cache without sample names."""
    return f"tables/{check_dataset_name(dataset)}/version/settled.parquet"


def _to_json(record: StageRecord) -> bytes:
    body = {name: getattr(record, name) for name in StageRecord.__slots__}
    body["files"] = {name: file.to_json() for name, file in record.files.items()}
    body["upstream"] = [asdict(item) for item in record.upstream]
    return canonical(body | {"counts": dict(record.counts), "body": dict(record.body)})


def find_record(store: Store, path: str) -> StageRecord | None:
    """Return the record at `path`; None if missing or "". Raises: Corrupt."""
    if not path:
        return None
    try:
        data = store.get(path).data
    except ObjectNotFound:
        return None
    try:
        body = parse_json_object(data)
        body["files"] = {name: TableFile.from_json(file) for name, file in body["files"].items()}
        body["upstream"] = tuple(Upstream(**item) for item in body["upstream"])
        record = StageRecord(**body)
        # A copy under another name would pass for the verdict on another batch.
        if record.path != path:
            raise ValueError(f"its own path is {record.path}: it was copied or renamed")
        return record
    except DAMAGED as error:
        raise Corrupt(
            f"{store.url}/{path} is not a stage record ({error}); restore it from a mirror",
            what="stage record",
            where=f"{store.url}/{path}",
            given=type(error).__name__,
        ) from error
