"""raw_objects: the objects of a batch's manifest, by content. Raw objects stay where they are."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dagster as dg

from loader.dataset.names import check_dataset_name
from loader.errors import (
    Changed,
    Corrupt,
    ForkedStore,
    InvalidName,
    ObjectNotFound,
    StageNotPublished,
    StoreError,
    Throttled,
    Transient,
)
from loader.json_text import DamagedJson, is_text, parse_json_object
from loader.storage import Store
from penstock.stages import StageRecord, append_record, current_record, fingerprint
from resources.storage import LandingResource, RootResource

from ..arrivals.batch_manifests import Manifest, RawObject, read_manifest
from ..arrivals.open_source import place_of_batch
from ..media.segments.read import GivenSegments, read_segments
from ..media.sniff import HEAD_BYTES, sniff
from ..pages.report import dagster_name, data_version, raw_objects_metadata
from ..pages.stage_events import as_failures
from ..sources import LANDING, ORIGINS, Source
from ..stages import RAW_OBJECTS
from ..tables import write_table

CODE_VERSION = "3"

_CHUNK_BYTES = 8 * 2**20
_AT_ONCE = 8  # objects read at the same time; each holds one chunk
_ORIGINS_BYTES = 128 * 2**20
_FACT_BYTES = 2**20
_REASON_CHARS = 500
_OF_SEGMENTS = ("video/", "audio/")
_FACTS = ("licence", "author", "title", "origin", "text")
_NOT_THE_OBJECTS_FAULT = (Throttled, Transient, ForkedStore)
"""Wrong for all objects, and the next attempt may succeed: no reason to reject one."""
Progress = Callable[[int, int, str], None]


def no_progress(done: int, total: int, name: str) -> None:
    """Ignore the progress."""


def read_origins(landing: Store) -> Mapping[str, object]:
    """Return the entry of each object in `_origins.json`, as it stands there; empty without the file.

    Raises: Corrupt when it is no JSON object, or larger than 128 MiB: nobody knows then what any object may be used
    for.
    """
    place = f"{landing.url}/{ORIGINS}"
    try:
        info = landing.head(ORIGINS)
        if info.nbytes > _ORIGINS_BYTES:
            raise Corrupt(
                f"{place} has {info.nbytes} bytes; accepted are {_ORIGINS_BYTES}: use several sources"
            )
        return parse_json_object(landing.get(ORIGINS).data, lenient=True)
    except ObjectNotFound:
        return {}
    except DamagedJson as error:
        raise Corrupt(
            f'{place} is not JSON ({error}); expected {{"<key>": {{"licence": "...", ...}}, ...}}: repair it, or take '
            "it away"
        ) from error


def _facts(origin: object) -> dict[str, str]:
    """Return the facts that are kept of an entry. Raises: Corrupt for values that are no text, or not in an object."""
    if not isinstance(origin, dict):
        raise Corrupt(f"{ORIGINS} says {origin!r:.100} of it; expected an object with {', '.join(_FACTS)}")
    told = {name: str(origin.get(name, "")) for name in _FACTS}
    for name, value in told.items():
        if not is_text(value) or value in ("inf", "-inf", "nan"):
            raise Corrupt(f"{ORIGINS} says {name} {value!r:.100}; accepted is UTF-8 text")
        if len(value.encode()) > _FACT_BYTES:
            raise Corrupt(f"{ORIGINS} says {name} of more than {_FACT_BYTES} bytes, which are accepted")
    return told


def raw_rows(
    landing: Store, objects: Sequence[RawObject], progress: Progress = no_progress
) -> Iterator[dict[str, Any]]:
    """Read every object once, and yield a row each, in their order: SHA-256, type by content, licence and origin.

    A row has an error where the object is not the discovered one, has gone, or may not be read. So it has where the
    object's entry in `_origins.json`, or in the table of segments, makes no sense. Every video and sound has one where
    that table cannot be read.

    Raises: Corrupt for an `_origins.json` that is none; Throttled and Transient when the store does not answer.
    """
    origins, unread = read_origins(landing), ""
    try:
        given = read_segments(landing, {item.key for item in objects})
    except Corrupt as error:
        given, unread = GivenSegments(), str(error)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        ahead = [
            pool.submit(_row, landing, item, origins.get(item.key, {}), given, unread) for item in objects
        ]
        try:
            for position, (item, row) in enumerate(zip(objects, ahead, strict=True)):
                progress(position, len(objects), item.key)
                yield row.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _row(
    landing: Store, item: RawObject, origin: object, given: GivenSegments, unread: str
) -> dict[str, Any]:
    """Return the row of an object. unread: why nobody knows the segments of any object."""
    row: dict[str, Any] = {
        "uri": item.uri,
        "key": item.key,
        "etag": item.etag,
        "nbytes": item.nbytes,
        "sha256": "",
        "mime": "",
        "label": item.folder,
        "segments": [segment.plain() for segment in given.by_key.get(item.key, ())],
        "error_code": "",
        "error_reason": "",
    }
    row |= dict.fromkeys(_FACTS, "") | {"licence": "unknown"}
    try:
        row |= _facts(origin)
        row["licence"] = row["licence"] or "unknown"
        if problem := given.problems.get(item.key):
            raise Corrupt(problem)
        digest, head = hashlib.sha256(), b""
        for chunk in _chunks(landing, item):
            head = head or chunk[:HEAD_BYTES]
            digest.update(chunk)
    except _NOT_THE_OBJECTS_FAULT:
        raise
    except (StoreError, Corrupt) as error:
        return row | {"error_code": type(error).__name__, "error_reason": str(error)[:_REASON_CHARS]}
    mime = sniff(head)
    if unread and mime.startswith(_OF_SEGMENTS):
        return row | {"error_code": Corrupt.__name__, "error_reason": unread[:_REASON_CHARS]}
    return row | {"sha256": digest.hexdigest(), "mime": mime}


def _chunks(landing: Store, item: RawObject) -> Iterator[bytes]:
    """Yield the bytes of exactly that object version. Raises: Changed; ObjectNotFound; StoreError leaves."""
    if not item.nbytes and (now := landing.head(item.key)).etag != item.etag:
        raise Changed(
            f"{item.uri}: it was replaced since it was discovered (etag {item.etag}, now {now.etag}); it lands again "
            "in a later batch"
        )
    for offset in range(0, item.nbytes, _CHUNK_BYTES):
        nbytes = min(_CHUNK_BYTES, item.nbytes - offset)
        yield landing.get_range(item.key, offset, nbytes, item.etag).data


def land(
    store: Store,
    landing: Store,
    *,
    dataset: str,
    partition: str,
    run_id: str,
    progress: Progress = no_progress,
) -> tuple[StageRecord, list[dict[str, Any]]]:
    """Publish a row for every object of the batch's manifest; nothing is written when they are as before.

    Raises: InvalidName and ObjectNotFound for a batch that was not discovered; StageNotPublished when it was
    discovered in another place than `landing`; and as `raw_rows`.
    """
    manifest = read_manifest(store, check_dataset_name(dataset), partition)
    _check_place(manifest, landing)
    rows = list(raw_rows(landing, manifest.objects, progress))
    seen = [
        [*(row[name] for name in ("key", "sha256", "error_code", "label", *_FACTS)), _plain(row["segments"])]
        for row in rows
    ]
    wanted = fingerprint(CODE_VERSION, manifest.batch, manifest.landing, seen)
    newest = current_record(store, dataset, RAW_OBJECTS, partition)
    if newest is not None and (newest.verdict, newest.fingerprint) == ("published", wanted):
        return newest, rows
    record = StageRecord(
        dataset=dataset,
        stage=RAW_OBJECTS,
        partition=partition,
        verdict="published",
        run_id=run_id,
        code_version=CODE_VERSION,
        fingerprint=wanted,
        files={RAW_OBJECTS: write_table(store, dataset, RAW_OBJECTS, partition, rows)},
        counts={"landed": len(rows), "nbytes": sum(row["nbytes"] for row in rows)},
        body={"landing": landing.url, "manifest": manifest.path},
    )
    return append_record(store, record), rows


def _plain(segments: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return segments without floats: a fingerprint takes none."""
    return [[str(value) for value in segment.values()] for segment in segments]


def _check_place(manifest: Manifest, landing: Store) -> None:
    if manifest.landing != landing.url:
        raise StageNotPublished(
            f"batch {manifest.batch} of {manifest.dataset} was discovered in {manifest.landing}, and the landing "
            f"place here is {landing.url}: point the landing resource to where the objects are"
        )


def raw_objects_asset(
    dataset: str, batches: dg.PartitionsDefinition[str], sources: Sequence[Source] = (LANDING,)
) -> dg.AssetsDefinition:
    """Return the asset [dataset, raw_objects]."""

    @dg.asset(
        key=[dataset, RAW_OBJECTS],
        partitions_def=batches,
        code_version=CODE_VERSION,
        group_name=dagster_name(dataset),
        kinds={"parquet"},
        description="Every object of a batch, where it landed: address, SHA-256, type by content, licence.",
    )
    def raw_objects(
        context: dg.AssetExecutionContext, root: RootResource, landing: LandingResource
    ) -> dg.MaterializeResult[None]:
        batch = context.partition_key
        with root.opened() as opened:
            place = place_of_batch(landing, sources, opened.store, dataset, batch)
            with as_failures(InvalidName, ObjectNotFound, StageNotPublished, Corrupt), place as source:
                told: Any = {"dataset": dataset, "partition": batch, "run_id": context.run.run_id}
                record, rows = land(opened.store, source, **told)
        return dg.MaterializeResult(
            metadata=raw_objects_metadata(record, rows), data_version=data_version(record)
        )

    return raw_objects
