"""Arrivals that belong to no batch yet become batches: every object version is in exactly one.

A manifest is written before anything else is, and the listing is compared with all manifests. So a key that arrives
late, or sorts below others, is found. An object that was overwritten (another etag) lands again. Whether its bytes are
new is decided later, by SHA-256. Killed anywhere, it can be run again: a manifest is there, or it is not.

`discover` lists a whole place and waits for nothing; `tick` does the same in bounded steps, for a sensor.

Cost of a call: one listing of the landing place, and what `batch_manifests.Book` costs. Memory: about 0.3 kB per object
ever seen and 0.5 kB per new one; `BatchLimits.max_batches` bounds the latter.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from loader.dataset.log.state import Deny
from loader.errors import AlreadyExists, Forbidden, InvalidStore, ObjectNotFound
from loader.storage import ObjectInfo, Store
from loader.storage.store import list_place
from penstock.stages import partitions

from ..joined_objects import JoinedObjects
from ..sources import DEFAULT_LIMITS, LANDING, BatchLimits, Source
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
    """Write the manifests of all that has arrived, also of batches that are not full; return their keys, oldest first.

    denies: takedowns of the root; an object that one names is in no batch, see `DeniedObjects`.

    Deterministic: the same listing over the same manifests makes the same batches. Several may run at once.

    Raises: InvalidName; Corrupt for a manifest that cannot be read; StoreError when a place cannot be listed.
    """
    book = Book(store, dataset)
    wanted = None if limits.max_batches is None else limits.max_batches * limits.max_objects
    denied = DeniedObjects(denies, dataset, by_subject=by_subject)
    fresh = list(islice(_undiscovered(landing, book, source, denied), wanted))
    made, _ = make_batches(book, landing.url, fresh, limits, rest=True)
    return made


def undiscovered(store: Store, landing: Store, dataset: str, source: Source = LANDING) -> list[RawObject]:
    """Return the objects that `discover` would put into batches now, and write nothing. Raises: as `discover`."""
    return list(_undiscovered(landing, Book(store, dataset), source, DeniedObjects((), dataset)))


def make_batches(
    book: Book, landing: str, objects: Sequence[RawObject], limits: BatchLimits, *, rest: bool
) -> tuple[list[str], list[RawObject]]:
    """Write manifests over objects, in their order, and return (keys of the batches, objects that are in none).

    landing: the URL of their place; rest: also one over the objects that do not fill a batch. Objects that somebody
    else has put into a batch meanwhile are left out. Raises: StoreError; Corrupt.
    """
    made: list[str] = []
    fresh = list(objects)
    while fresh and len(made) != limits.max_batches:
        n_taken, full = _first_batch(fresh, limits)
        if not full and not rest:
            break
        try:
            made.append(book.append(landing, fresh[:n_taken]).batch)
        except AlreadyExists:  # somebody else discovers too: leave out what is in their batches, go on behind
            theirs = book.read_on()
            fresh = [item for item in fresh if item.identity not in theirs]
        else:
            fresh = fresh[n_taken:]
    if made:
        book.leave_hint()
    return made, fresh


def pending(store: Store, dataset: str, stage: str) -> list[str]:
    """Return the keys of the batches that have no record of `stage` yet, neither published nor failed, oldest first."""
    numbers = pending_numbers(store, dataset, begun_batches(store, dataset, stage))
    return [found.batch for found in manifests(store, dataset, numbers)]


def pending_numbers(store: Store, dataset: str, begun: Sequence[str]) -> list[int]:
    """Return the numbers of the batches that are not among `begun`, oldest first. Costs one listing, no manifest."""
    known = {batch_number(name) for name in begun}
    return [number for number in batch_numbers(store, dataset) if number not in known]


def begun_batches(store: Store, dataset: str, stage: str) -> list[str]:
    """Return the keys of the batches for which the stage has a record, oldest first: one listing."""
    return [name for name in partitions(store, dataset, stage) if is_batch(name)]


def raw_object(landing: Store, info: ObjectInfo) -> RawObject:
    """Return an object of a listing, with its full address."""
    uri = f"{landing.url.rstrip('/')}/{info.key}"
    files = landing.files(info.key) if isinstance(landing, JoinedObjects) else ()
    return RawObject(
        key=info.key,
        uri=uri,
        nbytes=info.nbytes,
        etag=info.etag,
        arrived_us=info.modified_us or 0,
        files=files,
    )


def unseen(found: Sequence[Identity], seen: "pl.DataFrame") -> list[int]:
    """Return the positions of the objects that no batch names. seen: columns uri and etag."""
    import polars as pl  # loading the definitions must not cost it

    schema = {"uri": pl.String, "etag": pl.String}
    table = pl.DataFrame({"uri": [uri for uri, _ in found], "etag": [etag for _, etag in found]}, schema)
    fresh = table.with_row_index("position").join(seen, on=["uri", "etag"], how="anti", maintain_order="left")
    return fresh["position"].to_list()


def is_there(landing: Store, info: ObjectInfo) -> bool:
    """Return whether an object can be opened; the empty one that a console makes of an empty folder cannot."""
    if info.nbytes:
        return True
    try:
        landing.head(info.key)
    except ObjectNotFound:
        return False
    except (Forbidden, InvalidStore):
        return True  # it is there and cannot be had: landing says so in its row
    return True


def _undiscovered(landing: Store, book: Book, source: Source, denied: DeniedObjects) -> Iterator[RawObject]:
    import polars as pl

    seen, why = pl.DataFrame(book.seen()), source.sieve()
    infos = (info for info in list_place(landing, source.prefix) if not why(info))
    while chunk := list(islice(infos, _CHUNK)):
        objects = [raw_object(landing, info) for info in chunk]
        for position in unseen([item.identity for item in objects], seen):
            if is_there(landing, chunk[position]) and not denied.has(objects[position]):
                yield objects[position]


def _first_batch(objects: Sequence[RawObject], limits: BatchLimits) -> tuple[int, bool]:
    """Return the number of objects, from the first on, that make a batch, and whether no more would go into it."""
    nbytes = 0
    for count, item in enumerate(objects):
        nbytes += item.nbytes
        if count and (count >= limits.max_objects or nbytes > limits.max_bytes):
            return count, True
    return len(objects), len(objects) >= limits.max_objects or nbytes >= limits.max_bytes
