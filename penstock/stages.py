"""Records of stages: what a stage of the pipeline published for a partition, and with which verdict.

    stages/<dataset>/<stage>/<partition>/<r>.json     r has 12 digits, from 1

A record is created once and never changed; the one with the highest r counts.
"""

import hashlib
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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

Verdict = Literal["published", "failed"]
_DIGITS = 12
_AT_ONCE = 16  # requests
_NAME = re.compile(r"/(\d{12,})\.json$")
_PARTITION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The exact record that a stage read."""

    stage: str
    """Its stage."""
    partition: str
    """Its partition."""
    r: int
    """Its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """One attempt of a stage at a partition."""

    dataset: str
    """Name of the dataset."""
    stage: str
    """Name of the stage."""
    partition: str
    """The partition, a path segment."""
    verdict: Verdict
    """Outcome of the attempt."""
    run_id: str
    """Id of the run in Dagster."""
    code_version: str
    """Version of the stage's code."""
    fingerprint: str
    """SHA-256 (hex) of what the result depends on; two published attempts that share it hold the same."""
    reason: str = ""
    """Reason of the verdict; "" for none."""
    approved_by: str = ""
    """Name of the person who approved; "" for none."""
    files: Mapping[str, TableFile] = field(default_factory=dict)
    """Name -> table that the stage wrote."""
    upstream: tuple[Upstream, ...] = ()
    """Records that the stage read."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Name -> number of what went in or came out."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """Further values that downstream needs, plain JSON without floats."""
    r: int = 0
    """Number of the record in its partition, from 1; 0 until it is appended."""
    at_us: int = 0
    """Time of the append, UTC microseconds; 0 before."""
    nonce: str = ""
    """Random hex of the append; "" before."""

    @property
    def path(self) -> str:
        """Its path in the root."""
        return record_path(self.dataset, self.stage, self.partition, self.r)


def check_partition(partition: str) -> str:
    """Return a partition key, if it is a path segment. Raises: InvalidName."""
    if not _PARTITION.fullmatch(partition):
        raise InvalidName(
            f"partition {partition!r}: use 1 to 100 letters, digits, '.', '_' or '-', e.g. '2026-11-20.001'"
        )
    return partition


def append_record(store: Store, record: StageRecord, after: int | None = None) -> StageRecord:
    """Append it as the partition's next record. Two writers at once get two numbers; none is lost.

    after: number of the newest record when the work began. Who did the same work beside it, and was first, has the
    record: it is returned, and nothing is appended.
    """
    number = after
    if number is None:
        newest = current_record(store, record.dataset, record.stage, record.partition)
        number = newest.r if newest else 0
    written = replace(record, nonce=secrets.token_hex(8), at_us=time.time_ns() // 1000)
    while True:
        number += 1
        written = replace(written, r=number)
        try:
            store.put_if_absent(written.path, _to_json(written))
        except AlreadyExists:
            first = None if after is None else find_record(store, written.path)
            if first is not None and first.fingerprint == record.fingerprint:
                return first
            continue
        return written


def current_record(store: Store, dataset: str, stage: str, partition: str) -> StageRecord | None:
    """Return the record with the highest number, whatever its verdict; None before the first. Raises: Corrupt."""
    names = [info.key for info in store.list(f"{_folder(dataset, stage)}{check_partition(partition)}/")]
    number = max((int(match[1]) for name in names if (match := _NAME.search(name))), default=0)
    record = find_record(store, record_path(dataset, stage, partition, number)) if number else None
    while later := find_record(
        store, record_path(dataset, stage, partition, number + 1)
    ):  # a listing may lag behind
        record, number = later, number + 1
    return record


def current_records(store: Store, dataset: str, stage: str) -> dict[str, StageRecord]:
    """Return the current record of every partition that has one, by partition, sorted.

    Costs one listing of the stage and a GET per partition, sixteen at a time. Raises: Corrupt.
    """
    return found_records(store, newest_listed(store, dataset, stage))


def newest_listed(store: Store, dataset: str, stage: str) -> dict[str, ObjectInfo]:
    """Return the newest listed record of every partition, by partition, sorted. Costs a request per 1,000 records."""
    folder = _folder(dataset, stage)
    newest: dict[str, ObjectInfo] = {}
    for info in store.list(folder):  # in key order: the last one is the newest
        if _NAME.search(info.key):  # other files in the folder are no records
            newest[info.key[len(folder) :].partition("/")[0]] = info
    return dict(sorted(newest.items()))


def found_records(store: Store, listed: Mapping[str, ObjectInfo]) -> dict[str, StageRecord]:
    """Return partition -> record, of the records that still exist; a GET each, sixteen at a time. Raises: Corrupt."""
    paths = [info.key for info in listed.values()]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        records = zip(listed, pool.map(partial(find_record, store), paths), strict=True)
        return {name: record for name, record in records if record is not None}


def partitions(store: Store, dataset: str, stage: str) -> list[str]:
    """Return every partition for which the stage has a record, sorted."""
    folder = _folder(dataset, stage)
    return sorted({info.key[len(folder) :].split("/", 1)[0] for info in store.list(folder)})


def read_record(store: Store, path: str) -> StageRecord:
    """Return the record at a listed path. Raises: ObjectNotFound; Corrupt."""
    record = find_record(store, path)
    if record is None:
        raise ObjectNotFound(f"{store.url}/{path} is gone; restore it from a mirror")
    return record


def record_json(store: Store, path: str, field: str) -> Mapping[str, Any]:
    """Return a record as JSON that has `field`, whichever release wrote it. Raises: ObjectNotFound; Corrupt."""
    try:
        body = parse_json_object(store.get(path).data)
    except ValueError as error:
        raise Corrupt(
            f"{store.url}/{path} is not a stage record ({error}); restore it from a mirror"
        ) from error
    if not isinstance(body.get(field), dict | list):
        raise Corrupt(f"{store.url}/{path} is not a stage record; restore it from a mirror")
    return body


def read_records(store: Store, paths: Sequence[str]) -> Iterator[StageRecord]:
    """Yield the records at listed paths, in their order, sixteen at a time. Raises: as `read_record`."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(partial(read_record, store), paths)


class KnownRecords:
    """The newest records of some stages of a dataset, looked at again and again. Thread-safe.

    A look costs one listing of the dataset's stages (a request per 1,000 records) and a GET per record that is new,
    sixteen at a time. A record that a takedown has replaced is listed with another etag, and is new.
    """

    def __init__(self, dataset: str, stages: Sequence[str]) -> None:
        self._dataset, self._stages = dataset, frozenset(stages)
        self._read: dict[str, tuple[str, StageRecord]] = {}
        self._lock = Lock()

    def newest(self, store: Store) -> dict[str, dict[str, StageRecord]]:
        """Return partition -> stage -> its newest listed record. Raises: Corrupt; ObjectNotFound; StoreError."""
        with self._lock:
            listed = self._listed(store)
            current = {info.key: info.etag for stages in listed.values() for info in stages.values()}
            self._read = {path: kept for path, kept in self._read.items() if current.get(path) == kept[0]}
            for record in read_records(store, sorted(current.keys() - self._read.keys())):
                # One by one: a look that is broken off was not for nothing.
                self._read[record.path] = current[record.path], record
            return {
                partition: {stage: self._read[info.key][1] for stage, info in stages.items()}
                for partition, stages in listed.items()
            }

    def _listed(self, store: Store) -> dict[str, dict[str, ObjectInfo]]:
        folder, files = f"stages/{self._dataset}/", dict[str, dict[str, ObjectInfo]]()
        for info in store.list(folder):
            stage, _, rest = info.key[len(folder) :].partition("/")
            if stage in self._stages and _NAME.search(rest):  # in key order: the last one is the newest
                files.setdefault(rest.split("/", 1)[0], {})[stage] = info
        return files


def fingerprint(*parts: object) -> str:
    """Return the SHA-256 (hex) of plain values without floats, in this order."""
    return hashlib.sha256(canonical(list(parts))).hexdigest()


def _folder(dataset: str, stage: str) -> str:
    return f"stages/{dataset}/{stage}/"


def record_path(dataset: str, stage: str, partition: str, r: int) -> str:
    """Return the path of a record in the root. Raises: InvalidName."""
    return f"{_folder(dataset, stage)}{check_partition(partition)}/{r:0{_DIGITS}d}.json"


def settled_path(dataset: str) -> str:
    """Return the path of the table of records that have nothing left to publish: a hint, which names no sample."""
    return f"tables/{check_dataset_name(dataset)}/version/settled.parquet"


def _to_json(record: StageRecord) -> bytes:
    body = {name: getattr(record, name) for name in StageRecord.__slots__}
    body["files"] = {name: file.to_json() for name, file in record.files.items()}
    body["upstream"] = [asdict(item) for item in record.upstream]
    return canonical(body | {"counts": dict(record.counts), "body": dict(record.body)})


def find_record(store: Store, path: str) -> StageRecord | None:
    """Return the record that lies there; None where there is none, or the path is empty. Raises: Corrupt."""
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
        if record.path != path:
            raise ValueError(f"its own path is {record.path}: it was copied or renamed")
        return record
    except DAMAGED as error:
        raise Corrupt(
            f"{store.url}/{path} is not a stage record ({error}); restore it from a mirror"
        ) from error
