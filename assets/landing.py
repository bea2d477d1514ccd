"""raw_objects: what lies in the landing place, by content. Raw objects stay where they are."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from loader.dataset.names import check_dataset_name
from loader.errors import Corrupt, EmptyVersion, StoreError
from loader.storage import ObjectInfo, Store
from resources.storage import LandingResource, RootResource

from .media.sniff import HEAD_BYTES, sniff
from .report import raw_objects_metadata
from .stages import StageRecord, append_record, current_record, fingerprint
from .tables import write_table

STAGE = "raw_objects"
CODE_VERSION = "1"
ORIGINS = "_origins.json"
"""Beside the media, not one of them: {"<key>": {"licence": "...", "author", "title", "origin", "text"}}."""

_CHUNK_BYTES = 2**20
_FACTS = ("licence", "author", "title", "origin", "text")
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """One look at the landing place: a row per object in key order, and the hash of what was seen."""

    rows: list[dict[str, Any]]
    fingerprint: str


def no_progress(done: int, total: int, name: str) -> None:
    """Tells nobody."""


def look(landing: Store, progress: Progress = no_progress) -> Landed:
    """Read every object once: SHA-256, size, type by content; licence and origin from `_origins.json`.

    An object that cannot be read is a row with its error. Raises: EmptyVersion when there is none; StoreError
    when the place itself cannot be listed.
    """
    origins = read_origins(landing)
    found = list(_objects(landing))
    rows = []
    for position, info in enumerate(found):
        progress(position, len(found), info.key)
        rows.append(_row(landing, info, origins.get(info.key, {})))
    if not rows:
        raise EmptyVersion(
            f"nothing has landed: {landing.url} holds no objects; put files there, or name another"
        )
    seen = [[row[name] for name in ("key", "sha256", "error_code", "label", *_FACTS)] for row in rows]
    return Landed(rows=rows, fingerprint=fingerprint(CODE_VERSION, landing.url, seen))


def read_origins(landing: Store) -> Mapping[str, Mapping[str, str]]:
    """What `_origins.json` says; empty without it. Raises: Corrupt when it is no JSON object of objects."""
    if not any(info.key == ORIGINS for info in landing.list(ORIGINS)):
        return {}
    try:
        body = json.loads(landing.get(ORIGINS).data)
    except ValueError as error:
        raise Corrupt(f"{landing.url}/{ORIGINS} is not JSON ({error}); repair it, or take it away") from error
    if not isinstance(body, dict) or not all(isinstance(value, dict) for value in body.values()):
        raise Corrupt(f'{landing.url}/{ORIGINS}: expected {{"<key>": {{"licence": "...", ...}}, ...}}')
    return body


def _objects(landing: Store) -> Iterator[ObjectInfo]:
    for info in landing.list():
        name = info.key.rsplit("/", 1)[-1]
        if info.key != ORIGINS and not name.startswith(".") and not info.key.endswith("/"):
            yield info


def _row(landing: Store, info: ObjectInfo, origin: Mapping[str, str]) -> dict[str, Any]:
    folder = info.key.rsplit("/", 2)[-2] if "/" in info.key else ""
    row: dict[str, Any] = {
        "uri": f"{landing.url.rstrip('/')}/{info.key}",
        "key": info.key,
        "etag": info.etag,
        "nbytes": info.nbytes,
        "sha256": "",
        "mime": "",
        "label": folder,
        "error_code": "",
        "error_reason": "",
    }
    row |= {name: str(origin.get(name, "")) for name in _FACTS}
    row["licence"] = row["licence"] or "unknown"
    try:
        digest, head = hashlib.sha256(), b""
        with landing.open_stream(info.key) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                head = head or chunk[:HEAD_BYTES]
                digest.update(chunk)
    except StoreError as error:  # gone since the listing, changed while it was read, or not ours to read
        return row | {"error_code": type(error).__name__, "error_reason": str(error)[:500]}
    return row | {"sha256": digest.hexdigest(), "mime": sniff(head)}


def land(
    store: Store,
    landing: Store,
    *,
    dataset: str,
    partition: str,
    run_id: str,
    progress: Progress = no_progress,
) -> tuple[StageRecord, list[dict[str, Any]]]:
    """Publish what the place holds as the batch; nothing is written when it looks as it did before."""
    seen = look(landing, progress)
    newest = current_record(store, check_dataset_name(dataset), STAGE, partition)
    if newest is not None and (newest.verdict, newest.fingerprint) == ("published", seen.fingerprint):
        return newest, seen.rows
    record = StageRecord(
        dataset=dataset,
        stage=STAGE,
        partition=partition,
        verdict="published",
        run_id=run_id,
        code_version=CODE_VERSION,
        fingerprint=seen.fingerprint,
        files={STAGE: write_table(store, dataset, STAGE, partition, seen.rows)},
        counts={"landed": len(seen.rows), "nbytes": sum(row["nbytes"] for row in seen.rows)},
        body={"landing": landing.url},
    )
    return append_record(store, record), seen.rows


def raw_objects_asset(dataset: str, batches: dg.PartitionsDefinition[str]) -> dg.AssetsDefinition:
    """The asset [dataset, raw_objects]."""

    @dg.asset(
        key=[dataset, STAGE],
        partitions_def=batches,
        code_version=CODE_VERSION,
        group_name=dataset,
        kinds={"parquet"},
        description="Every object of a batch, where it landed: address, SHA-256, type by content, licence.",
    )
    def raw_objects(
        context: dg.AssetExecutionContext, root: RootResource, landing: LandingResource
    ) -> dg.MaterializeResult[None]:
        with root.opened() as opened, landing.opened() as place:
            record, rows = land(
                opened.store,
                place,
                dataset=dataset,
                partition=context.partition_key,
                run_id=context.run.run_id,
            )
        return dg.MaterializeResult(metadata=raw_objects_metadata(record, rows))

    return raw_objects
