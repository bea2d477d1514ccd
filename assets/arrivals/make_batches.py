"""Group new raw objects into batches: every object version (uri, etag) is in exactly one.

Costs a listing and a `Book`. Memory: 0.3 kB per object ever batched, 0.5 kB per new one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from loader.dataset.log.state import Deny
from loader.errors import AlreadyExists, Forbidden, InvalidStore, ObjectNotFound
from loader.storage import ObjectInfo, Store
from loader.storage.store import list_place
from penstock.stages import partitions
from penstock.units import utc_us

from ..sources import DEFAULT_LIMITS, LANDING, BatchLimits, Source
from ..spec import DatasetSpec
from .batch_manifests import (
    Book,
    DeniedObjects,
    Identity,
    RawObject,
    batch_number,
    batch_numbers,
    is_batch,
    manifests,
)
from .joined_objects import JoinedObjects

if TYPE_CHECKING:
    import polars as pl

_CHUNK = 65_536  # objects compared at a time


def discover(
    store: Store,
    landing: Store,
    dataset: str,
    limits: BatchLimits = DEFAULT_LIMITS,
    denies: Sequence[Deny] = (),
    source: Source = LANDING,
    *,
    by_subject: bool = False,
) -> list[str]:
    """Write manifests for all new objects, even for incomplete batches; return the new keys, oldest first.

    The same listing and manifests give the same batches. Several processes may run at once.
    """
    book = Book(store, dataset)
    if limits.max_batches is None:
        limit = None
    else:
        limit = limits.max_batches * limits.max_objects
    denied = DeniedObjects(denies, dataset, by_subject=by_subject)
    fresh = list(islice(_new_objects(landing, book, source, denied, utc_us()), limit))
    batches, _ = make_batches(book, landing.url, fresh, limits, rest=True)
    return batches


def make_batches(
    book: Book,
    landing: str,
    objects: Sequence[RawObject],
    limits: BatchLimits,
    *,
    rest: bool,
) -> tuple[list[str], list[RawObject]]:
    """Write manifests for objects, in order; return (keys of the new batches, objects left over).

    landing: URL of the source. rest: also write a batch that is not full. Leaves out objects that another
    writer batched.
    """
    batches: list[str] = []
    fresh = list(objects)
    while fresh and len(batches) != limits.max_batches:
        n_taken, full = _first_batch(fresh, limits)
        if not full and not rest:
            break
        try:
            batches.append(book.append(landing, fresh[:n_taken]).batch)
        except AlreadyExists:  # another process runs discovery too: leave out the objects of its batches
            if not (theirs := book.read_new_manifests()):
                raise
            fresh = [item for item in fresh if item.identity not in theirs]
        else:
            fresh = fresh[n_taken:]
    if batches:
        book.leave_hint()
    return batches, fresh


def pending(store: Store, dataset: str, stage: str) -> list[str]:
    """Return the keys of batches without a record of `stage`, published or failed, oldest first."""
    numbers = pending_numbers(store, dataset, stage_batches(store, dataset, stage))
    return [manifest.batch for manifest in manifests(store, dataset, numbers)]


def pending_numbers(store: Store, dataset: str, begun: Sequence[str]) -> list[int]:
    """Return the numbers of batches whose keys are not in `begun`, oldest first. Costs one listing."""
    known = {batch_number(name) for name in begun}
    return [number for number in batch_numbers(store, dataset) if number not in known]


def stage_batches(store: Store, dataset: str, stage: str) -> list[str]:
    """Return the keys of batches with a record of the stage, oldest first. Costs one listing."""
    return [name for name in partitions(store, dataset, stage) if is_batch(name)]


def raw_object(landing: Store, info: ObjectInfo, now_us: int) -> RawObject:
    """Return a listed object as a `RawObject` with its full URI. now_us: time of the listing."""
    # A store's clock, or a tool that copies dates, may date an object in the future. It had arrived when it was listed.
    modified_us = info.modified_us or 0  # 0: the store gives no time
    arrived_us = min(modified_us, now_us)
    uri = f"{landing.url.rstrip('/')}/{info.key}"
    if isinstance(landing, JoinedObjects):
        files = landing.files(info.key)
    else:
        files = ()
    return RawObject(
        key=info.key,
        uri=uri,
        nbytes=info.nbytes,
        etag=info.etag,
        arrived_us=arrived_us,
        files=files,
    )


def unseen(identities: Sequence[Identity], seen: "pl.DataFrame") -> list[int]:
    """Return the positions of objects that are in no batch. seen: table of batched objects, with uri and etag."""
    import polars as pl  # slow to import, and not needed to load the definitions

    schema = {"uri": pl.String, "etag": pl.String}
    table = pl.DataFrame(
        {"uri": [uri for uri, _ in identities], "etag": [etag for _, etag in identities]}, schema
    )
    fresh = table.with_row_index("position").join(
        seen,
        on=["uri", "etag"],
        how="anti",
        maintain_order="left",
    )
    return fresh["position"].to_list()


def is_there(landing: Store, info: ObjectInfo) -> bool:
    """Return whether the object can be opened. The empty object by which a console marks a folder cannot."""
    if info.nbytes:
        return True
    try:
        landing.head(info.key)
    except ObjectNotFound:
        return False
    except (Forbidden, InvalidStore):
        return True  # it exists but cannot be read: raw_objects records that in its row
    return True


def _new_objects(
    landing: Store,
    book: Book,
    source: Source,
    denied: DeniedObjects,
    now_us: int,
) -> Iterator[RawObject]:
    import polars as pl

    seen = pl.DataFrame(book.seen())
    sieve = source.sieve()
    infos = (info for info in list_place(landing, source.prefix) if not sieve(info))
    while chunk := list(islice(infos, _CHUNK)):
        objects = [raw_object(landing, info, now_us) for info in chunk]
        for position in unseen([item.identity for item in objects], seen):
            # An empty object may be a console's mark of a folder, which cannot be opened.
            if is_there(landing, chunk[position]) and not denied.has(objects[position]):
                yield objects[position]


def _first_batch(objects: Sequence[RawObject], limits: BatchLimits) -> tuple[int, bool]:
    nbytes = 0
    for count, item in enumerate(objects):
        nbytes += item.nbytes
        if count and (count >= limits.max_objects or nbytes > limits.max_bytes):
            return count, True
    return len(objects), len(objects) >= limits.max_objects or nbytes >= limits.max_bytes


def rebuild_of(spec: DatasetSpec, name: str, **changes: Any) -> DatasetSpec:
    """Return the spec of a dataset `name` that rebuilds `spec` from the same batches, with `changes` applied.

        SPEC_720 = rebuild_of(SPEC, "demo_720", policy=CutPolicy(video=VideoPolicy(short_side_px=720)))

    The job `<dataset>_take_over` copies the batches. Raises: as `DatasetSpec`.
    """
    return replace(spec, name=name, rebuild_of=spec.rebuild_of or spec.name, **changes)


def copy_batches(
    store: Store,
    of: str,
    name: str,
    denies: Sequence[Deny] = (),
    *,
    by_subject: bool = False,
) -> list[str]:
    """Copy the batches of dataset `of` to dataset `name`, in order; return the new keys, oldest first.

    Leaves out objects that `name` has or a takedown names. Costs a GET per manifest of both, and a PUT per batch.
    """
    book = Book(store, name)
    denied = DeniedObjects(denies, of, by_subject=by_subject)
    batches = list[str]()
    seen: set[Identity] = {(row["uri"], row["etag"]) for row in book.seen().to_pylist()}
    for manifest in manifests(store, of):
        fresh = [item for item in manifest.objects if item.identity not in seen and not denied.has(item)]
        while fresh:
            try:
                batches.append(book.append(manifest.landing, fresh).batch)
            except AlreadyExists:  # another process takes over or discovers too
                if not (theirs := book.read_new_manifests()):
                    raise
                seen |= theirs
                fresh = [item for item in fresh if item.identity not in seen]
            else:
                seen.update(item.identity for item in fresh)
                break
    if batches:
        book.leave_hint()
    return batches
