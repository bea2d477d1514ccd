"""Copy plain prefixes between stores, and report the progress, by journal, sizes and ETags.

.penstock-migration/source.json             {"format", "source"}: the source's URL
.penstock-migration/manifest-<n>.parquet    key, nbytes, sha256, crc32c, etag of every copied object
.penstock-migration/<run>-<k>.jsonl         the same (key as "path"), from unfinished runs
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from loader.dataset.log.entries import DAMAGED, canonical
from loader.dataset.log.marker import MARKER
from loader.errors import (
    AlreadyExists,
    Changed,
    Conflict,
    Corrupt,
    InvalidStore,
    ObjectNotFound,
    PenstockError,
)
from loader.json_text import DamagedJson, parse_json_object
from loader.storage import ObjectInfo, Store
from loader.storage.cloud.listing import differ
from loader.storage.disk.store import LocalStore
from loader.storage.disk.unlisted_files import skipped_files
from loader.storage.store import Refuse, check_recordable, list_place
from loader.storage.threads import in_background

from ...places import check_apart
from ...units import size
from ..copying.copy_all import copy_all
from ..copying.copy_many import Copies, Migration
from ..copying.items import Copied, Item, Pace
from ..copying.journal import Journal

if TYPE_CHECKING:
    from ...compute.cluster import Cluster

FOLDER = ".penstock-migration/"
"""Hidden, so that listings of media skip it."""
SOURCE = f"{FOLDER}source.json"


def check_places(source: Store, target: Store) -> None:
    """Check that a plain prefix may be copied from source to target.

    Raises: Conflict if one is a root, or the target has another source; InvalidStore if one contains the other, or the
    source is empty and was never copied; Corrupt if `SOURCE` was edited.
    """
    for url in (source.url, target.url):
        check_recordable(url)
    check_apart(source, target, "Copies would be copied again: choose another place")
    # The first page of the listing comes while the markers are read.
    with in_background(next, objects(source), None) as first:
        for store in (source, target):
            if read(store, MARKER) is not None:
                message = (
                    f"{store.url} is a root, whose log is copied last: penstock migrate run without --from, and its "
                    "URL as --root, makes a mirror of it; give other places here"
                )
                raise Conflict(message, what="log", where=store.url, accepted="a location that is not a root")
        note = read(target, SOURCE)
        if note is None and first.result() is None:  # a source emptied since an earlier copy is accepted
            raise InvalidStore(
                f"{source.url}: nothing lies there; check the URL, whose last part is a folder"
            )
    if note is not None:
        noted = _note_source(target, note)
        if noted != source.url:
            message = (
                f"{target.url} was filled from {noted} (by its {SOURCE}), not from {source.url}: keys of both "
                "would lie on each other; give another place"
            )
            raise Conflict(message, what=SOURCE, where=target.url, given=source.url, accepted=noted)


def objects(store: Store, refuse: Refuse | None = None) -> Iterator[ObjectInfo]:
    """Return a store's objects, except migration files."""
    infos = list_place(store, refuse=refuse, outside=True)
    return (info for info in infos if not info.key.startswith(FOLDER))


def read(store: Store, key: str) -> bytes | None:
    """Return an object's bytes, or None if there is no object."""
    try:
        return store.get(key).data
    except ObjectNotFound:
        return None


def _note_source(target: Store, note: bytes) -> str:
    try:
        return str(parse_json_object(note)["source"])
    except DAMAGED as error:
        message = (
            f"{target.url}/{SOURCE} is not what a migration wrote: it was edited; delete it, and give the source "
            "that the target was filled from"
        )
        raise Corrupt(message, what=SOURCE, where=target.url, accepted="what a migration wrote") from error


UNREAD = "unknown"
"""Placeholder for an unread object's digest."""
FORMAT = 1


@dataclass(slots=True, kw_only=True)
class PrefixReport(Copies):
    source: str
    """Source URL."""
    markers: int = 0
    """Keys that are only a console's folder markers."""
    unhashed: int = 0
    """Earlier objects accepted by size."""

    def failed(self, path: str, error: PenstockError, nbytes: int | None = None) -> None:
        if nbytes == 0 and isinstance(error, ObjectNotFound):
            self.markers += 1  # 'sub/' is listed as an empty 'sub', and there is no such object
        else:
            Copies.failed(self, path, error)

    def to_text(self) -> str:
        head, *lines = self.lines()
        more = ""
        if self.unhashed:
            more = f"; {self.unhashed} were accepted by size"
        more += f"; {self.markers} folder markers left out" if self.markers else ""
        return "\n".join([f"{self.source} -> {head}{more}", *lines])


@dataclass(slots=True, kw_only=True)
class Sides:
    """One key's objects on both sides, and its journal record."""

    key: str
    source: ObjectInfo | None = None
    """Source's object, or None."""
    target: ObjectInfo | None = None
    """Target's object, or None."""
    noted: Copied | None = None
    """Journal's record, or None."""


def both_sides(
    source: Store, target: Store, journal: Journal, refuse: Refuse | None = None
) -> Iterator[Sides]:
    """Yield every key on either side, in order. Costs two listings, and a journal look-up per key.

    refuse: receives source keys that a listing cannot return. Raises: Conflict if the source contains a root, before
    its marker is yielded.
    """
    here = _without_roots(source, refuse)
    there = objects(target)
    with in_background(next, there, None) as first:  # both first pages are fetched at once
        ours = next(here, None)
        theirs = first.result()
    while ours or theirs:
        key = min(one.key for one in (ours, theirs) if one)
        sides = Sides(key=key, noted=journal.find(key))
        if ours and ours.key == key:
            sides.source = ours
            ours = next(here, None)
        if theirs and theirs.key == key:
            sides.target = theirs
            theirs = next(there, None)
        yield sides


def copy_item(sides: Sides, *, replace: bool = False) -> Item | None:
    """Return the item to copy, or None if the target has it.

    Raises: Changed if the target's object is not the recorded copy; AlreadyExists if it is another object.
    """
    info = sides.source
    there = sides.target
    noted = sides.noted
    assert info is not None
    if there is None:
        return Item(path=info.key, nbytes=info.nbytes, etag=info.etag)
    if noted is None:
        if there.nbytes == info.nbytes:
            # If the ETags differ, the target's object is read: a killed run may have left no record.
            other = differ(info.etag, there.etag)
            if other:
                return Item(path=info.key, nbytes=info.nbytes, etag=info.etag)
            return None
        raise AlreadyExists(
            f"it has {there.nbytes} bytes at the target and {info.nbytes} at the source: another tool wrote there, or "
            "not all of it; move that object away, then run this again"
        )
    if there.nbytes != noted.nbytes:
        raise Changed(
            f"it has {there.nbytes} bytes at the target, and {noted.nbytes} were copied: another tool wrote there; "
            "move that object away, then run this again"
        )
    if noted.etag == info.etag and noted.nbytes == info.nbytes:
        return None
    was = noted.digest or UNREAD
    return Item(path=info.key, nbytes=info.nbytes, etag=info.etag, replace=replace, was=was)


def migrate_prefix(
    source: Store,
    target: Store,
    pace: Pace,
    *,
    at_once: int = 16,
    scratch: str | None = None,
    replace: bool = False,
    hash: str = "sha256",
    cluster: "Cluster | None" = None,
) -> PrefixReport:
    """Copy what the target lacks, and report keys that cannot be copied. Deletes nothing.

    An object that changed at the source is reported, or replaced with `replace`. Memory: at most 228 MiB of objects.
    hash: digest kind recorded, one of `items.KINDS`. cluster: as for `migrate`.

    Raises: as `check_places`; Corrupt if the journal was edited; as listing; with a cluster, as `attach`.
    """
    check_places(source, target)
    report = PrefixReport(source=source.url, target=target.url)
    # Before any object: another source is refused then, even after a kill.
    target.put_if_absent(SOURCE, canonical({"format": FORMAT, "source": source.url}))
    with Journal(target, FOLDER, scratch) as journal:

        def items() -> Iterator[Item]:
            return _items(source, target, journal, report, replace)

        def total() -> int:
            return sum(item.nbytes or 0 for item in missing_items(source, target, journal))

        journal.begin()
        journal.will_keep()
        migration = Migration(
            source=source,
            target=target,
            pace=pace,
            at_once=at_once,
            scratch=scratch,
            hash=hash,
            notes=FOLDER,
            since=[journal.newest_manifest, str(replace)],
        )
        copy_all(migration, items, journal, report, total, cluster)
        journal.keep()
    report.failures.update(omitted_files(source))
    return report


def _items(
    source: Store, target: Store, journal: Journal, report: PrefixReport, replace: bool
) -> Iterator[Item]:
    for sides in both_sides(source, target, journal, report.failures.__setitem__):
        if sides.source is None:
            continue
        try:
            item = copy_item(sides, replace=replace)
        except PenstockError as error:
            report.failed(sides.key, error)
            continue
        if item is not None:
            yield item
            continue
        report.skipped += 1
        # Recorded by size and ETag: the next run then notices a change at the source.
        if sides.noted is None:
            noted = Copied(path=sides.key, nbytes=sides.source.nbytes, digest="", etag=sides.source.etag)
            journal.add(noted)
        report.unhashed += sides.noted is None or not sides.noted.digest


def missing_items(source: Store, target: Store, journal: Journal) -> Iterator[Item]:
    """Yield the items that a run would copy or check, except failures."""
    for sides in both_sides(source, target, journal):
        if sides.source is not None:
            try:
                item = copy_item(sides)
            except PenstockError:
                continue
            if item is not None:
                yield item


def omitted_files(source: Store) -> Iterator[tuple[str, str]]:
    """Yield (path, reason) for files that no listing returns. Raises: Forbidden; Transient."""
    if isinstance(source, LocalStore):
        return skipped_files(source.url)
    return iter(())


def is_marker(source: Store, info: ObjectInfo) -> bool:
    """Return whether a listed key is a console's folder marker. Costs a request if its size is 0."""
    if info.nbytes:
        return False
    try:
        source.head(info.key)
    except ObjectNotFound:
        return True
    return False


def _without_roots(store: Store, refuse: Refuse | None) -> Iterator[ObjectInfo]:
    # Raises: Conflict at a root, which would get a second writable copy
    for info in objects(store, refuse):
        if info.key.endswith(f"/{MARKER}") and _is_root(store, info.key):
            message = (
                f"{store.url}/{info.key} makes a root of what lies beside it, and a copy of that would be a second "
                "primary: copy the other folders each by itself, and that one by penstock migrate run without --from, "
                "with its URL as --root"
            )
            raise Conflict(message, what=info.key, where=store.url, accepted="no root inside")
        yield info


def _is_root(store: Store, key: str) -> bool:
    try:
        # By its content: a file of that name may be another program's.
        return {"format", "id"} <= parse_json_object(read(store, key) or b"").keys()
    except DamagedJson:
        return False


@dataclass(slots=True, kw_only=True)
class PrefixStatus:
    """Object counts of a plain prefix's copy."""

    missing: int = 0
    """Objects that the target lacks."""
    missing_nbytes: int = 0
    """Bytes of the missing objects."""
    changed: int = 0
    """Objects that changed at the source since they were copied."""
    refused: int = 0
    """Objects that a run would report instead of copying."""
    uncopied: int = 0
    """Files in the source's folder that cannot be objects."""
    there: int = 0
    """Objects that the target has."""
    unhashed: int = 0
    """Objects in `there` that were accepted by size."""
    unfinished: bool = False
    """True if a run was killed or is still running."""

    @property
    def lags(self) -> bool:
        return bool(self.missing or self.changed or self.refused or self.uncopied)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        return (
            f"{self.there} objects are there ({self.unhashed} accepted by size), {self.missing} missing "
            f"({size(self.missing_nbytes)}), {self.changed} changed at the source, {self.refused} are others at "
            + "the target"
            + (
                f"; {self.uncopied} can never be copied: penstock migrate verify names them"
                if self.uncopied
                else ""
            )
            + ("; a run was not finished, or is at work" if self.unfinished else "")
        )


def prefix_status(source: Store, target: Store, scratch: str | None = None) -> PrefixStatus:
    """Return a plain prefix's progress, from two listings. Raises: as `check_places`; as listing."""
    check_places(source, target)
    status = PrefixStatus()
    refused = dict[str, str]()
    with Journal(target, FOLDER, scratch) as journal:
        status.unfinished = journal.is_resumed
        for sides in both_sides(source, target, journal, refused.__setitem__):
            if sides.source is None:
                continue
            try:
                item = copy_item(sides)
            except PenstockError:
                status.refused += 1
                continue
            if item is None:
                status.there += 1
                status.unhashed += sides.noted is None or not sides.noted.digest
            elif item.was:
                status.changed += 1
            # Last, since it costs a request per empty object.
            elif not is_marker(source, sides.source):
                status.missing += 1
                status.missing_nbytes += item.nbytes or 0
    status.uncopied = len(refused | dict(omitted_files(source)))
    return status
