"""What has arrived and belongs to no batch yet becomes batches: every object version in exactly one.

There is no cursor: the whole listing is compared with the manifests, so a key that arrives late, or sorts
below others, is found, and an object that was overwritten (another etag) lands again. Whether its bytes are
new is decided later, by SHA-256. Killed anywhere, it can be run again: a manifest is there, or it is not.

Cost of a call: one listing of the landing place, and what `manifests.Book` costs. Memory: about 0.3 kB per
object ever seen and 0.5 kB per new one; `BatchLimits.max_batches` bounds the latter.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from loader.dataset.denied import DenyList
from loader.dataset.history import Deny
from loader.errors import AlreadyExists, Forbidden, InvalidStore, ObjectNotFound
from loader.storage import ObjectInfo, Store

from .manifests import Book, RawObject, batch_number, batch_numbers, is_batch, manifests
from .media.segments import TABLES
from .stages import partitions

ORIGINS = "_origins.json"
"""Beside the media, not one of them: {"<key>": {"licence": "...", "author", "title", "origin", "text"}}."""

_CHUNK = 65_536  # objects compared at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """How large a batch may be; an object larger than max_bytes is a batch by itself.

    max_batches: at most about so many batches from one call, what is left comes with the next; None: no limit.
    """

    max_objects: int = 4096
    max_bytes: int = 64 * 2**30
    max_batches: int | None = None

    def __post_init__(self) -> None:
        if min(self.max_objects, self.max_bytes, self.max_batches or 1) < 1:
            raise ValueError(f"limits of a batch are 1 or more, got {self}")


DEFAULT_LIMITS = BatchLimits()


def discover(
    store: Store,
    landing: Store,
    dataset: str,
    limits: BatchLimits = DEFAULT_LIMITS,
    denies: Sequence[Deny] = (),
) -> list[str]:
    """Write the manifests of what has arrived, and give the keys of those batches, oldest first.

    denies: takedowns of the root; an object that one names, by its key or URI, is in no batch.
    Deterministic: the same listing over the same manifests makes the same batches. Several may run at once.
    Raises: InvalidName; Corrupt for a manifest that cannot be read; StoreError when a place cannot be listed.
    """
    book = Book(store, dataset)
    denied = DenyList(denies, dataset)
    wanted = None if limits.max_batches is None else limits.max_batches * limits.max_objects
    allowed = (item for item in _undiscovered(landing, book) if not _is_denied(denied, item))
    fresh = list(islice(allowed, wanted))
    made: list[str] = []
    while fresh and len(made) != limits.max_batches:
        n_taken = _first_batch(fresh, limits)
        try:
            made.append(book.append(landing.url, fresh[:n_taken]).batch)
        except AlreadyExists:  # somebody else discovers too: leave out what is in their batches, go on behind
            theirs = book.read_on()
            fresh = [item for item in fresh if item.identity not in theirs]
        else:
            fresh = fresh[n_taken:]
    if made:
        book.leave_hint()
    return made


def _is_denied(denied: DenyList, item: RawObject) -> bool:
    """Whether a takedown names the object: it lands no more."""
    return any(denied.entry_of("raw", name) for name in (item.key, item.uri))


def undiscovered(store: Store, landing: Store, dataset: str) -> list[RawObject]:
    """What `discover` would put into batches now. Nothing is written. Raises: as `discover`."""
    return list(_undiscovered(landing, Book(store, dataset)))


def pending(store: Store, dataset: str, stage: str) -> list[str]:
    """Keys of the batches, oldest first, for which `stage` has no record yet, neither published nor failed."""
    begun = {batch_number(name) for name in partitions(store, dataset, stage) if is_batch(name)}
    waiting = [number for number in batch_numbers(store, dataset) if number not in begun]
    return [manifest.batch for manifest in manifests(store, dataset, waiting)]


def listed(landing: Store) -> Iterator[ObjectInfo]:
    """The objects of a landing place in key order, without hidden files, folder markers, `_origins.json` and a
    `_segments` table."""
    for info in landing.list():
        hidden = info.key.startswith(".") or "/." in info.key
        if not hidden and info.key not in (ORIGINS, *TABLES) and not info.key.endswith("/"):
            yield info


def raw_object(landing: Store, info: ObjectInfo) -> RawObject:
    """An object of a listing, with its full address."""
    uri = f"{landing.url.rstrip('/')}/{info.key}"
    return RawObject(key=info.key, uri=uri, nbytes=info.nbytes, etag=info.etag)


def _undiscovered(landing: Store, book: Book) -> Iterator[RawObject]:
    import polars as pl  # loading the definitions must not cost it

    seen, place = pl.DataFrame(book.seen()), landing.url.rstrip("/")
    infos = listed(landing)
    while chunk := list(islice(infos, _CHUNK)):
        found = pl.DataFrame(
            {"uri": [f"{place}/{info.key}" for info in chunk], "etag": [info.etag for info in chunk]},
            schema={"uri": pl.String, "etag": pl.String},
        )
        fresh = found.with_row_index("position").join(
            seen, on=["uri", "etag"], how="anti", maintain_order="left"
        )
        for position in fresh["position"]:
            info = chunk[position]
            if info.nbytes or _is_there(landing, info.key):
                yield raw_object(landing, info)


def _is_there(landing: Store, key: str) -> bool:
    """Whether an empty object can be opened; what a console makes of an empty folder is listed, and cannot."""
    try:
        landing.head(key)
    except ObjectNotFound:
        return False
    except (Forbidden, InvalidStore):
        return True  # it is there and cannot be had: landing says so in its row
    return True


def _first_batch(objects: Sequence[RawObject], limits: BatchLimits) -> int:
    """How many objects, from the first on, make a batch."""
    nbytes = 0
    for count, item in enumerate(objects):
        nbytes += item.nbytes
        if count and (count >= limits.max_objects or nbytes > limits.max_bytes):
            return count
    return len(objects)
