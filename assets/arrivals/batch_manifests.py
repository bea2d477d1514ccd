"""Batch manifests list the raw objects of each batch and the store that holds them. They never change.

    tables/<dataset>/manifests/<n>.json               n has at least 6 digits and counts from 1 without gaps
    tables/<dataset>/manifests/state-<n>.parquet      (uri, etag) of batches 1 to n: a hint

A batch's key, '000042-1f0c99ab', is its number plus the start of a SHA-256 over its objects.
"""

import contextlib
import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from loader.dataset.log.denies import DenyList, file_names
from loader.dataset.log.entries import DAMAGED, canonical
from loader.dataset.log.state import Deny
from loader.dataset.names import check_dataset_name
from loader.dataset.tables.parquet import parse_table, table_bytes
from loader.errors import Corrupt, Forbidden, FormatTooNew, InvalidName, ObjectNotFound, StageNotPublished
from loader.json_text import parse_json_object
from loader.storage import Store
from loader.storage.threads import DaemonPool
from resources.storage import LandingResource

from ..sources import Source
from .joined_objects import raw_store

Identity = tuple[str, str]
"""(uri, etag): objects with an equal pair are the same object."""

_FORMAT = 1
_KEY = re.compile(r"(\d{6,})-[0-9a-f]{8}")
_FILE = re.compile(r"(\d{6,})\.json")
_STATE = re.compile(r"state-(\d{6,})\.parquet")
_SEEN = pa.schema([("uri", pa.string()), ("etag", pa.string())])
_HINT_EVERY = 16  # batches, or an eighth of the last hint's: all hints stay O(objects)
_AT_ONCE = 16  # parallel requests
_MOST_PIECES = 64
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawObject:
    """One raw object as listed."""

    key: str
    """Key, relative to the source's location."""
    uri: str
    """Full URI."""
    nbytes: int
    """Size in bytes."""
    etag: str
    """Store's change token, over all `files`."""
    arrived_us: int = field(default=0, compare=False)
    """Last write by the store's clock, in microseconds since 1970; 0 if unknown."""
    files: tuple[str, ...] = field(default=(), compare=False)
    """Keys of the object's other files."""

    @property
    def names(self) -> list[str]:
        """Keys and URIs of all the object's files, as a takedown may name them."""
        return file_names(self.key, self.uri, (self.key, *self.files))

    @property
    def identity(self) -> Identity:
        return self.uri, self.etag

    @property
    def folder(self) -> str:
        """Name of the object's folder (a label or a subject) or ""."""
        if "/" in self.key:
            return self.key.rsplit("/", 2)[-2]
        return ""

    def identified(self) -> dict[str, str | int]:
        """Return the facts that a batch's key is hashed from."""
        # Without the time, which two listings may give differently.
        return {"key": self.key, "uri": self.uri, "nbytes": self.nbytes, "etag": self.etag}

    def to_json(self) -> dict[str, str | int | list[str]]:
        facts = {"arrived_us": self.arrived_us or None, "files": [*self.files]}
        return self.identified() | {name: value for name, value in facts.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The manifest of one batch."""

    dataset: str
    """Name of the dataset."""
    number: int
    """Batch number, from 1."""
    landing: str
    """URL of the source, without secrets."""
    objects: tuple[RawObject, ...]
    """Raw objects of the batch."""
    named: str = ""
    """Original key of a batch that a takedown redacted, else ""."""

    @property
    def batch(self) -> str:
        """The batch's key. The same dataset, number and objects always give the same key."""
        if self.named:
            return self.named
        body = [self.dataset, self.landing, [item.identified() for item in self.objects]]
        digest = hashlib.sha256(canonical(body)).hexdigest()
        return f"{self.number:06d}-{digest[:8]}"

    @property
    def path(self) -> str:
        return f"{_folder(self.dataset)}{self.number:06d}.json"

    @property
    def nbytes(self) -> int:
        return sum(item.nbytes for item in self.objects)

    def to_json(self) -> bytes:
        body = {"format": _FORMAT, "batch": self.batch, "dataset": self.dataset, "landing": self.landing}
        return canonical(body | {"number": self.number, "objects": [item.to_json() for item in self.objects]})


class Book:
    """Every manifest of a dataset, read once; `read_new_manifests` adds later ones.

    before: an earlier book of this process, reused unless a file that it read changed.

    Costs one listing (a request per 1,000 manifests), a GET for the newest hint and one per later batch. Memory: 0.15
    kB per object.
    """

    def __init__(self, store: Store, dataset: str, before: "Book | None" = None) -> None:
        """Read the newest hint, then every manifest after it."""
        self._store = store
        self._dataset = check_dataset_name(dataset)
        etags = {info.key.rsplit("/", 1)[-1]: info.etag for info in store.list(_folder(dataset))}
        self.newest = max((int(match[1]) for name in etags if (match := _FILE.fullmatch(name))), default=0)
        self._hints = [int(match[1]) for name in etags if (match := _STATE.fullmatch(name))]
        self._hint = max((n for n in self._hints if n <= self.newest), default=0)
        # A takedown rewrites manifests, and then what the earlier book read is not reused.
        if before is not None and before._listed.items() <= etags.items():
            self._hinted = before._batched
            read = before._upto
        else:
            self._hint, self._hinted = self._read_hint(self._hint)
            read = self._hint
        coming = _read_all(store, dataset, range(read + 1, self.newest + 1))
        self._added = [item.identity for manifest in coming for item in manifest.objects]
        self._seen = self._hinted
        self._seen_n = 0
        self._listed: dict[str, str] = etags
        self._upto: int = self.newest
        self._batched: pa.Table = _in_few_pieces(self.seen())
        self.read_new_manifests()  # a listing may lag behind

    def read_new_manifests(self) -> set[Identity]:
        """Read the manifests that other writers have appended; return the identities of their objects."""
        added: set[Identity] = set()
        while manifest := _read_manifest(self._store, self._dataset, self.newest + 1):
            added.update(item.identity for item in manifest.objects)
            self.newest += 1
        self._added += added
        return added

    def append(self, landing: str, objects: Sequence[RawObject]) -> Manifest:
        """Write the next batch.

        Raises: AlreadyExists if another writer was faster; call `read_new_manifests`, then retry.
        """
        manifest = Manifest(
            dataset=self._dataset,
            number=self.newest + 1,
            landing=landing,
            objects=tuple(objects),
        )
        self._store.put_if_absent(manifest.path, manifest.to_json())
        self.newest += 1
        self._added += [item.identity for item in objects]
        return manifest

    def seen(self) -> pa.Table:
        """Return the uri and etag of every batched object."""
        if self._seen_n != len(self._added):
            added = {"uri": [uri for uri, _ in self._added], "etag": [etag for _, etag in self._added]}
            self._seen = pa.concat_tables([self._hinted, pa.table(added, schema=_SEEN)])
            self._seen_n = len(self._added)
        return self._seen

    def leave_hint(self) -> None:
        """Write a new hint if there are enough new batches; keep only the previous one."""
        if self.newest - self._hint >= max(_HINT_EVERY, self._hint // 8):
            path = f"{_folder(self._dataset)}state-{self.newest:06d}.parquet"
            self._store.put(path, table_bytes(self.seen(), "seen-objects"))
            older = [hint for hint in self._hints if hint != self._hint]  # readers may need that one
            with contextlib.suppress(Forbidden):  # the root may allow no deletes
                self._store.delete_many(f"{_folder(self._dataset)}state-{hint:06d}.parquet" for hint in older)

    def _read_hint(self, number: int) -> tuple[int, pa.Table]:
        if number:
            path = f"{_folder(self._dataset)}state-{number:06d}.parquet"
            try:
                return number, parse_table(self._store.get(path).data, path).select(_SEEN.names).cast(_SEEN)
            except (Corrupt, FormatTooNew, ObjectNotFound, KeyError, pa.ArrowException) as error:
                _log.warning(
                    "ignoring the hint %s/%s, reading every manifest: %s", self._store.url, path, error
                )
        return 0, _SEEN.empty_table()


def _in_few_pieces(table: pa.Table) -> pa.Table:
    # Every tick adds a piece, and each search visits all of them.
    if table.column(0).num_chunks > _MOST_PIECES:
        return table.combine_chunks()
    return table


def read_manifest(store: Store, dataset: str, batch: str) -> Manifest:
    """Return the manifest of the batch with this key. Raises: InvalidName; ObjectNotFound; Corrupt."""
    number = batch_number(batch)
    manifest = _read_manifest(store, check_dataset_name(dataset), number)
    if manifest is None or manifest.batch != batch:
        if manifest:
            reason = f"batch {number} of {dataset} is {manifest.batch}"
        else:
            reason = f"{dataset} has no batch {number}"
        raise ObjectNotFound(
            f"there is no batch {batch!r} in {store.url}: {reason}. Batches are made by discovery; take a key "
            "that discovery gave for this root",
            what="batch",
            where=store.url,
            given=batch,
            accepted=manifest and manifest.batch,
        )
    return manifest


def batch_number(batch: str) -> int:
    """Return the number in a batch's key. Raises: InvalidName."""
    match = _KEY.fullmatch(batch)
    if match is None:
        raise InvalidName(
            f"{batch!r} is not a batch key; discovery makes them, e.g. '000042-1f0c99ab'",
            what="batch",
            given=batch,
            accepted="a key such as '000042-1f0c99ab'",
        )
    return int(match[1])


def is_batch(partition: str) -> bool:
    return _KEY.fullmatch(partition) is not None


def manifests(store: Store, dataset: str, numbers: Iterable[int] | None = None) -> list[Manifest]:
    """Return all manifests, or only the numbered ones, oldest first. Raises: Corrupt; ObjectNotFound."""
    return _read_all(store, dataset, numbers if numbers is not None else batch_numbers(store, dataset))


def batch_numbers(store: Store, dataset: str) -> list[int]:
    """Return all batch numbers of the dataset. Costs one listing."""
    names = (info.key.rsplit("/", 1)[-1] for info in store.list(_folder(check_dataset_name(dataset))))
    return sorted(int(match[1]) for name in names if (match := _FILE.fullmatch(name)))


def _folder(dataset: str) -> str:
    return f"tables/{dataset}/manifests/"


def _read_all(store: Store, dataset: str, numbers: Iterable[int]) -> list[Manifest]:
    def read(number: int) -> Manifest:
        manifest = _read_manifest(store, dataset, number)
        if manifest is None:
            raise ObjectNotFound(
                f"{store.url}/{_folder(dataset)}{number:06d}.json is missing; restore it from a mirror"
            )
        return manifest

    ordered = sorted(numbers)
    if len(ordered) <= 1:
        return [read(number) for number in ordered]
    with DaemonPool(_AT_ONCE, "penstock-batches") as pool:
        return list(pool.map(read, ordered))


def _read_manifest(store: Store, dataset: str, number: int) -> Manifest | None:
    """Return a batch's manifest; None if there is no batch of this number. Raises: Corrupt; FormatTooNew."""
    path = f"{_folder(dataset)}{number:06d}.json"
    try:
        data = store.get(path).data
    except ObjectNotFound:
        return None
    try:
        body = parse_json_object(data)
        if body["format"] > _FORMAT:
            raise FormatTooNew(
                f"{store.url}/{path} has format {body['format']}; this penstock reads {_FORMAT}. Upgrade it"
            )
        objects = tuple(_object(item) for item in body["objects"])
        original_key = ""
        if body.get("redacted") is True:
            # A takedown replaced some objects, so the key no longer follows from them.
            original_key = str(body["batch"])
        manifest = Manifest(
            dataset=dataset,
            number=number,
            landing=str(body["landing"]),
            objects=objects,
            named=original_key,
        )
    except DAMAGED as error:
        if isinstance(error, FormatTooNew):
            raise
        raise Corrupt(
            f"{store.url}/{path} is not a manifest ({error}); restore it from a mirror",
            what="manifest",
            where=f"{store.url}/{path}",
            given=type(error).__name__,
        ) from error
    if manifest.batch != body.get("batch"):
        raise Corrupt(
            f"{store.url}/{path} names batch {body.get('batch')!r}, but its objects give {manifest.batch!r}: "
            "it was changed; restore it from a mirror",
            what="batch",
            where=f"{store.url}/{path}",
            given=body.get("batch"),
            accepted=manifest.batch,
        )
    return manifest


def _object(item: Mapping[str, Any]) -> RawObject:
    obj = RawObject(**{**item, "files": tuple(item.get("files", ()))})
    if not all(isinstance(value, str) for value in (obj.key, obj.uri, obj.etag, *obj.files)):
        raise TypeError(f"key, uri, etag and files are text, got {item!r:.200}")
    if not all(type(value) is int for value in (obj.nbytes, obj.arrived_us)):
        raise TypeError(f"nbytes and arrived_us are integers, got {item!r:.200}")
    return obj


class DeniedObjects:
    """Takedowns that exclude objects of a dataset: by key, by URI, or by folder if each folder is a subject."""

    def __init__(self, denies: Sequence[Deny], dataset: str, *, by_subject: bool = False) -> None:
        self._denied = DenyList(denies, dataset)
        self._by_subject = by_subject

    def has(self, item: RawObject) -> bool:
        if self._by_subject and self._denied.denying_entry("subject", item.folder):
            return True
        return any(self._denied.denying_entry("raw", name) for name in item.names)


def opener(landing: LandingResource) -> Callable[[Source], AbstractContextManager[Store]]:
    """Return a function that opens a source's own store, or the landing resource's if it has none."""

    @contextmanager
    def open_landing(source: Source) -> Iterator[Store]:
        with landing.opened(source.url, source.options) as place:
            yield raw_store(place, source)

    return open_landing


@contextmanager
def place_of_batch(
    landing: LandingResource,
    sources: Sequence[Source],
    store: Store,
    dataset: str,
    batch: str,
) -> Iterator[Store]:
    """Yield the store in which a batch was discovered. store: the root's store.

    Raises: InvalidName or ObjectNotFound for an unknown batch; StageNotPublished if no source has the batch's URL.
    """
    opened = opener(landing)
    urls = []
    if len(sources) == 1:  # the stages compare its URL with the manifest's
        with opened(sources[0]) as place:
            yield place
            return
    manifest = read_manifest(store, dataset, batch)
    for source in sources:
        with opened(source) as place:
            if place.url == manifest.landing:
                yield place
                return
            urls.append(f"{source.name}: {place.url}")
    raise StageNotPublished(
        f"batch {batch} of {dataset} was discovered in {manifest.landing}, and the sources land in "
        f"{', '.join(urls)}: point the landing resource, or a source of the dataset, to those objects",
        what="landing",
        where=f"batch {batch} of {dataset}",
        given=urls,
        accepted=manifest.landing,
    )
