"""The asset `raw_objects`: SHA-256, type and origin of a batch's objects, which stay in their source."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import Any

import dagster as dg

from loader.dataset.names import check_dataset_name
from loader.errors import Corrupt, InvalidName, ObjectNotFound, StageNotPublished, StoreError
from loader.json_text import DamagedJson, is_text, parse_json_object
from loader.storage import Store
from loader.storage.threads import DaemonPool
from penstock.compute.job import Job, store_url
from penstock.compute.local_blocks import Jobs, discard, job_blocks
from penstock.compute.pool import Compute
from penstock.stages import StageRecord, fingerprint
from resources.compute import ComputeResource
from resources.storage import LandingResource, RootResource

from ..arrivals.batch_manifests import Manifest, RawObject, place_of_batch, read_manifest
from ..arrivals.joined_objects import JoinedObjects
from ..media.segments import GivenSegments, read_segments
from ..pages.report import as_failures, data_version, raw_objects_metadata
from ..pipeline.stages import RAW_OBJECTS, PipelineStage
from ..sources import LANDING, ORIGINS, Source
from .hash_work import HASH, Hashed, HashTask, read_content

CODE_VERSION = "4"

_AT_ONCE = 8  # objects read at the same time, each with one chunk in memory
_ORIGINS_BYTES = 128 * 2**20
_FACT_BYTES = 2**20
_REASON_CHARS = 500
_SEGMENTED_MIMES = ("video/", "audio/")
_FACTS = ("licence", "author", "title", "origin", "text")
_NON_FINITE = ("inf", "-inf", "nan")  # Python's words for floats that JSON has no text for


def read_origins(landing: Store) -> Mapping[str, object]:
    """Return the entry of each object in `_origins.json`, unchecked; empty without this file.

    Raises: Corrupt if it is not a JSON object or exceeds 128 MiB: every licence is unknown then.
    """
    place = f"{landing.url}/{ORIGINS}"
    try:
        info = landing.head(ORIGINS)
        if info.nbytes > _ORIGINS_BYTES:
            raise Corrupt(
                f"{place} has {info.nbytes} bytes, accepted are {_ORIGINS_BYTES}; use several sources",
                what="origins",
                where=place,
                given=info.nbytes,
                accepted=_ORIGINS_BYTES,
            )
        data = landing.get(ORIGINS).data
        return parse_json_object(data, lenient=True)
    except ObjectNotFound:
        return {}
    except DamagedJson as error:
        raise Corrupt(
            f'{place} is not JSON ({error}); expected {{"<key>": {{"licence": "...", ...}}, ...}}: repair or delete it',
            what="origins",
            where=place,
            given=str(error),
        ) from error


def _facts(origin: object) -> dict[str, str]:
    """Return an object's facts from its entry in `_origins.json`, "" for missing ones and null. Raises: Corrupt."""
    if not isinstance(origin, dict):
        accepted = ", ".join(_FACTS)
        raise Corrupt(f"its entry in {ORIGINS} is {origin!r:.100}; expected an object with {accepted}")
    facts: dict[str, str] = {}
    for name in _FACTS:
        value = origin.get(name)
        facts[name] = "" if value is None else str(value)  # None: JSON's null
    for name, value in facts.items():
        if not is_text(value) or value in _NON_FINITE:
            raise Corrupt(f"its {name} in {ORIGINS} is {value!r:.100}; accepted is UTF-8 text")
        if len(value.encode()) > _FACT_BYTES:
            raise Corrupt(f"its {name} in {ORIGINS} is larger than the accepted {_FACT_BYTES} bytes")
    return facts


Hashes = Callable[[Sequence[RawObject]], Iterator[Hashed]]
"""Objects -> their contents, in the same order."""


def raw_rows(
    landing: Store,
    objects: Sequence[RawObject],
    hashes: Hashes | None = None,
) -> Iterator[dict[str, Any]]:
    """Read every object once and yield its row, in order: SHA-256, type by content, licence and origin.

    A row has an error if its object was replaced, vanished or is forbidden, or its entry in `_origins.json` or the
    segments is invalid. `hashes` reads the objects; None: threads of this process.

    Raises: Corrupt for an invalid `_origins.json`; Throttled and Transient; as `hashes`.
    """
    origins = read_origins(landing)
    segments_error = ""  # why no segments are readable: an error of every video and audio
    try:
        segments = read_segments(landing, {item.key for item in objects})
    except Corrupt as error:
        segments = GivenSegments()
        segments_error = str(error)
    rows = list[dict[str, Any]]()
    readable = list[RawObject]()
    for item in objects:
        origin = origins.get(item.key, {})
        row = _row(item, origin, segments)
        rows.append(row)
        if not row["error_code"]:
            readable.append(item)
    if hashes is None:
        hashes = partial(_hash_in_threads, landing)
    # Closed so that a caller who stops early ends the reading too.
    with closing(hashes(readable)) as contents:  # type: ignore[type-var]
        for row in rows:
            if not row["error_code"]:
                content = next(contents)
                row.update(_content(content, segments_error))
            yield row


def _hash_in_threads(landing: Store, objects: Sequence[RawObject]) -> Iterator[Hashed]:
    """Yield the objects' contents, read by threads of this process. Raises: as `read_content`."""
    with DaemonPool(_AT_ONCE, "penstock-raw") as pool:
        futures = list[Future[Hashed]]()
        for item in objects:
            task = _task(landing, item)
            future = pool.submit(read_content, landing, task)
            futures.append(future)
        try:
            for future in futures:
                yield future.result()
        finally:
            # If the caller stops early, objects that no thread has begun are not read.
            pool.shutdown(wait=True, cancel_futures=True)


def _hash_on_nodes(
    compute: Compute,
    job: Job[HashTask, Hashed],
    landing: Store,
    objects: Sequence[RawObject],
) -> Iterator[Hashed]:
    """Yield the objects' contents, once nodes have read all of them. Raises: StoreError if one could not be read."""
    tasks = [_task(landing, item) for item in objects]
    contents = list[Hashed]()
    for block in job_blocks(compute, job, lambda: tasks):
        for number, outcome in enumerate(block.outcomes, block.first):
            if outcome.value is None:
                discard(compute, job)  # otherwise the next run would find the same failure
                reason = ""
                if outcome.error is not None:
                    reason = outcome.error.summary
                uri = tasks[number].uri
                raise StoreError(
                    f"{uri} could not be read to its end: {reason}", what="content", where=uri, given=reason
                )
            contents.append(outcome.value)
    yield from contents


def _task(landing: Store, item: RawObject) -> HashTask:
    return HashTask(
        landing=store_url(landing),
        key=item.key,
        uri=item.uri,
        etag=item.etag,
        nbytes=item.nbytes,
    )


def _row(
    item: RawObject,
    origin: object,
    segments: GivenSegments,
) -> dict[str, Any]:
    """Return an object's row without its content; with an error if its origin or its segments are invalid."""
    own_segments = segments.by_key.get(item.key, ())
    row: dict[str, Any] = {
        "uri": item.uri,
        "key": item.key,
        "etag": item.etag,
        "nbytes": item.nbytes,
        "sha256": "",
        "mime": "",
        "label": item.folder,
        "segments": [segment.plain() for segment in own_segments],
        "error_code": "",
        "error_reason": "",
    }
    for name in _FACTS:
        row[name] = ""
    row["licence"] = "unknown"
    try:
        row.update(_facts(origin))
        row["licence"] = row["licence"] or "unknown"
        problem = segments.problems.get(item.key)
        if problem:
            raise Corrupt(problem)
    except Corrupt as error:
        row.update(_error(str(error)))
    return row


def _content(content: Hashed, segments_error: str) -> dict[str, str]:
    """Return the columns of an object's content. segments_error: why no segments are readable, or ""."""
    if segments_error and content.mime.startswith(_SEGMENTED_MIMES):
        return _error(segments_error)
    return asdict(content)


def _error(reason: str) -> dict[str, str]:
    return {"error_code": Corrupt.__name__, "error_reason": reason[:_REASON_CHARS]}


def land(
    store: Store,
    landing: Store,
    *,
    dataset: str,
    partition: str,
    run_id: str,
    compute: Compute | None = None,
) -> tuple[StageRecord, list[dict[str, Any]]]:
    """Publish a row for every object of the batch's manifest; return the record and the rows.

    An unchanged batch keeps its record, though its objects are read again.

    compute: if it is a cluster, its nodes read the objects, except those with several files; otherwise threads of this
    process do.

    Raises: InvalidName and ObjectNotFound for an unknown batch; StageNotPublished if `landing` is another source; as
    `raw_rows`.
    """
    manifest = read_manifest(store, check_dataset_name(dataset), partition)
    _check_place(manifest, landing)
    stage = PipelineStage(store, dataset, RAW_OBJECTS, partition, run_id=run_id, code_version=CODE_VERSION)
    newest = stage.current()
    # A stage that runs again reads the objects again. Only a run that died before its record resumes from its results.
    attempt = 0
    if newest is not None:
        attempt = newest.r
    job = Job(
        store=store,
        work=HASH,
        about=f"{dataset}/{RAW_OBJECTS}/{partition}",
        fingerprint=fingerprint(manifest.batch, manifest.landing, attempt),
        stores=[landing],
    )
    hashes: Hashes | None = None
    # A node would open only the first file of a joined object, so this process reads those itself.
    may_use_nodes = not isinstance(landing, JoinedObjects)
    if may_use_nodes and compute is not None and isinstance(compute, Jobs):
        hashes = partial(_hash_on_nodes, compute, job, landing)

    rows = list(raw_rows(landing, manifest.objects, hashes))
    # The fingerprint covers content, so it is compared after the reading.
    facts = [_content_facts(row) for row in rows]
    digest = fingerprint(CODE_VERSION, manifest.batch, manifest.landing, facts)
    if newest is not None and newest.verdict == "published" and newest.fingerprint == digest:
        discard(compute, job)
        return newest, rows

    nbytes = sum(row["nbytes"] for row in rows)
    record = stage.append(
        fingerprint=digest,
        files={RAW_OBJECTS: stage.write_table(RAW_OBJECTS, rows)},
        counts={"landed": len(rows), "nbytes": nbytes},
        body={"landing": landing.url, "manifest": manifest.path},
    )
    discard(compute, job)
    return record, rows


def _content_facts(row: Mapping[str, Any]) -> list[object]:
    """Return what the stage's fingerprint covers of an object's row."""
    names = ("key", "sha256", "error_code", "label", *_FACTS)
    facts: list[object] = [row[name] for name in names]
    segments = list[list[str]]()
    for segment in row["segments"]:
        # As text, because a fingerprint takes no floats.
        texts = [str(value) for value in segment.values()]
        segments.append(texts)
    facts.append(segments)
    return facts


def _check_place(manifest: Manifest, landing: Store) -> None:
    """Raise StageNotPublished unless the store is the source in which the batch was discovered."""
    if manifest.landing != landing.url:
        raise StageNotPublished(
            f"batch {manifest.batch} of {manifest.dataset} was discovered in {manifest.landing}, but the landing "
            f"resource opens {landing.url}: point it to the objects",
            what="landing",
            where=f"batch {manifest.batch} of {manifest.dataset}",
            given=landing.url,
            accepted=manifest.landing,
        )


def raw_objects_asset(
    dataset: str,
    batches: dg.PartitionsDefinition[str],
    sources: Sequence[Source] = (LANDING,),
) -> dg.AssetsDefinition:
    """Return the asset [dataset, raw_objects]."""

    @dg.asset(
        key=[dataset, RAW_OBJECTS],
        partitions_def=batches,
        code_version=CODE_VERSION,
        kinds={"parquet"},
        description="Every object of a batch: URI, SHA-256, type by content, licence.",
    )
    def raw_objects(
        context: dg.AssetExecutionContext,
        root: RootResource,
        landing: LandingResource,
        compute: ComputeResource,
    ) -> dg.MaterializeResult[None]:
        batch = context.partition_key
        failures = as_failures(InvalidName, ObjectNotFound, StageNotPublished, Corrupt)
        with root.opened() as opened, compute.opened(context) as engine:
            place = place_of_batch(landing, sources, opened.store, dataset, batch)
            with failures, place as source:
                record, rows = land(
                    opened.store,
                    source,
                    dataset=dataset,
                    partition=batch,
                    run_id=context.run.run_id,
                    compute=engine,
                )
        return dg.MaterializeResult(
            metadata=raw_objects_metadata(record, rows),
            data_version=data_version(record),
        )

    return raw_objects
