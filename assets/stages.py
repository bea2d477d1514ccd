"""What a stage published for a partition, and with which verdict: the gate between stages.

    stages/<dataset>/<stage>/<partition>/<r>.json     r has 12 digits, from 1

A record is created once and never changed; the one with the highest r counts. A stage writes its files,
audits them and appends `published` or `failed`. Whoever reads a stage asks `require_published`, so data that
failed an audit, or never had one, are not read by mistake: neither in the same run nor in a later one.
"""

import hashlib
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from loader.dataset.entries import canonical
from loader.dataset.parquet import TableFile
from loader.errors import AlreadyExists, Corrupt, ObjectNotFound, StageNotPublished
from loader.storage import Store

from .tables import check_partition

Verdict = Literal["published", "failed"]
_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The exact record that a stage read."""

    stage: str
    partition: str
    r: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """One attempt of a stage at a partition.

    fingerprint: sha256 hex of what the result depends on; two published attempts that share it hold the same.
    counts: what went in and came out; body: what else downstream needs, plain JSON without floats; r: 0 until
    it is appended.
    """

    dataset: str
    stage: str
    partition: str
    verdict: Verdict
    run_id: str
    code_version: str
    fingerprint: str
    reason: str = ""
    approved_by: str = ""
    files: Mapping[str, TableFile] = field(default_factory=dict)
    upstream: tuple[Upstream, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    r: int = 0
    at_us: int = 0
    nonce: str = ""

    @property
    def path(self) -> str:
        """Where it lies in the root."""
        return _path(self.dataset, self.stage, self.partition, self.r)


def append_record(store: Store, record: StageRecord) -> StageRecord:
    """Append it as the partition's next record. Two writers at once get two numbers; none is lost."""
    newest = current_record(store, record.dataset, record.stage, record.partition)
    number = newest.r if newest else 0
    mine = replace(record, nonce=secrets.token_hex(8), at_us=time.time_ns() // 1000)
    while True:
        number += 1
        mine = replace(mine, r=number)
        try:
            store.put_if_absent(mine.path, _to_json(mine))
        except AlreadyExists:
            continue
        return mine


def current_record(store: Store, dataset: str, stage: str, partition: str) -> StageRecord | None:
    """The record with the highest number, whatever its verdict; None before the first. Raises: Corrupt."""
    keys = [info.key for info in store.list(f"{_folder(dataset, stage)}{check_partition(partition)}/")]
    number = max((int(key.rsplit("/", 1)[-1].removesuffix(".json")) for key in keys), default=0)
    found = _read(store, _path(dataset, stage, partition, number)) if number else None
    while later := _read(store, _path(dataset, stage, partition, number + 1)):  # a listing may lag behind
        found, number = later, number + 1
    return found


def require_published(store: Store, dataset: str, stage: str, partition: str) -> StageRecord:
    """The current record, if it may be read. Raises: StageNotPublished, saying why and what to do."""
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


def require_read(record: StageRecord, upstream: StageRecord) -> None:
    """Raises: StageNotPublished unless the record was made of exactly that upstream record."""
    if not any((read.stage, read.r) == (upstream.stage, upstream.r) for read in record.upstream):
        raise StageNotPublished(
            f"stage {record.stage} of {record.dataset}, partition {record.partition}, was made of other "
            f"{upstream.stage} than the current ones; materialize [{record.dataset}, {record.stage}] again"
        )


def partitions(store: Store, dataset: str, stage: str) -> list[str]:
    """Every partition for which the stage has a record, sorted."""
    folder = _folder(dataset, stage)
    return sorted({info.key[len(folder) :].split("/", 1)[0] for info in store.list(folder)})


def fingerprint(*parts: object) -> str:
    """sha256 hex of plain values without floats, in this order."""
    return hashlib.sha256(canonical(list(parts))).hexdigest()


def _folder(dataset: str, stage: str) -> str:
    return f"stages/{dataset}/{stage}/"


def _path(dataset: str, stage: str, partition: str, r: int) -> str:
    return f"{_folder(dataset, stage)}{check_partition(partition)}/{r:0{_DIGITS}d}.json"


def _to_json(record: StageRecord) -> bytes:
    body = {name: getattr(record, name) for name in StageRecord.__slots__}
    body["files"] = {name: file.to_json() for name, file in record.files.items()}
    body["upstream"] = [asdict(item) for item in record.upstream]
    return canonical(body | {"counts": dict(record.counts), "body": dict(record.body)})


def _read(store: Store, path: str) -> StageRecord | None:
    try:
        data = store.get(path).data
    except ObjectNotFound:
        return None
    try:
        body = json.loads(data)
        body["files"] = {name: TableFile.from_json(file) for name, file in body["files"].items()}
        body["upstream"] = tuple(Upstream(**item) for item in body["upstream"])
        return StageRecord(**body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(
            f"{store.url}/{path} is not a stage record ({error}); restore it from a mirror"
        ) from error
