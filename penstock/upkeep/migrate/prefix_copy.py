"""Copy plain prefixes between places, compared by earlier notes, sizes and ETags.

Objects at the target besides the copies:

    .penstock-migration/source.json             {"format", "source"}: its source
    .penstock-migration/manifest-<n>.parquet    key, nbytes, sha256, crc32c, etag of every object there
    .penstock-migration/<run>-<k>.jsonl         the same (key as "path"), of unfinished runs

Both hashes are "" for objects of another tool, until `verify --full` has read them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loader.dataset.log.entries import canonical
from loader.dataset.log.marker import MARKER
from loader.errors import AlreadyExists, Changed, Conflict, ObjectNotFound, PenstockError
from loader.json_text import DamagedJson, parse_json_object
from loader.storage import ObjectInfo, Store
from loader.storage.cloud.s3_puts import differ
from loader.storage.disk.store import LocalStore
from loader.storage.disk.unlisted_files import unlisted
from loader.storage.refusals import Refuse
from loader.storage.shared.threads import in_background

from ..copying.copy_all import copy_all
from ..copying.copy_many import Copies, Migration
from ..copying.items import Copied, Item
from ..copying.journal import Journal
from ..copying.rate_limit import Pace
from .prefix_places import FOLDER, SOURCE, check_places, objects, read

if TYPE_CHECKING:
    from ...compute.cluster import Cluster

UNREAD = "unknown"
"""Stands for the digest of an unread object."""
FORMAT = 1


@dataclass(slots=True, kw_only=True)
class PrefixReport(Copies):
    """The result of a copy of a plain prefix."""

    source: str
    """URL of the source."""
    markers: int = 0
    """Keys that stand for folders made by a console."""
    unhashed: int = 0
    """Earlier objects, accepted by size."""

    def failed(self, path: str, error: PenstockError, nbytes: int | None = None) -> None:
        if nbytes == 0 and isinstance(error, ObjectNotFound):
            self.markers += 1  # 'sub/' is listed as an empty 'sub', and there is no such object
        else:
            Copies.failed(self, path, error)

    def to_text(self) -> str:
        head, *lines = self.lines()
        more = f"; {self.unhashed} were accepted by size" if self.unhashed else ""
        more += f"; {self.markers} folder markers left out" if self.markers else ""
        return "\n".join([f"{self.source} -> {head}{more}", *lines])


@dataclass(slots=True, kw_only=True)
class Sides:
    """One key on both sides, with its note."""

    key: str
    """The key."""
    source: ObjectInfo | None = None
    """The source's object, or None."""
    target: ObjectInfo | None = None
    """The target's object, or None."""
    noted: Copied | None = None
    """The journal's note, or None."""


def both_sides(
    source: Store, target: Store, journal: Journal, refuse: Refuse | None = None
) -> Iterator[Sides]:
    """Yield every key of either side, in order. Costs two listings, and a journal look-up per key.

    refuse: receives keys that a listing of the source cannot return.

    Raises: Conflict for a root inside the source, before its marker is yielded.
    """
    here, there = _without_roots(source, refuse), objects(target)
    with in_background(next, there, None) as first:  # both wait for their first page
        ours, theirs = next(here, None), first.result()
    while ours or theirs:
        key = min(one.key for one in (ours, theirs) if one)
        sides = Sides(key=key, noted=journal.find(key))
        if ours and ours.key == key:
            sides.source, ours = ours, next(here, None)
        if theirs and theirs.key == key:
            sides.target, theirs = theirs, next(there, None)
        yield sides


def item_of(sides: Sides, *, replace: bool = False) -> Item | None:
    """Return the item to copy, or None if the target has it.

    Raises: Changed if the target's object is not the copied one; AlreadyExists for another object there.
    """
    info, there, noted = sides.source, sides.target, sides.noted
    assert info is not None
    if there is None:
        return Item(path=info.key, nbytes=info.nbytes, etag=info.etag)
    if noted is None:
        if there.nbytes == info.nbytes:
            # If they differ, the object there is read: a killed run left no note.
            other = differ(info.etag, there.etag)
            return Item(path=info.key, nbytes=info.nbytes, etag=info.etag) if other else None
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
    """Copy what the target lacks, and name keys that cannot be copied.

    Objects that changed at the source since their copy are named, or replaced with `replace`; nothing is deleted.
    Memory: at most 228 MiB of objects.

    hash: one of `digest.KINDS`, computed and noted for every copied object. cluster: as for `migrate`.

    Raises: as `check_places`; Corrupt for an edited journal; as listing; with a cluster as `attach`.
    """
    check_places(source, target)
    report = PrefixReport(source=source.url, target=target.url)
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
    report.failures.update(left_out(source))
    return report


def _items(
    source: Store, target: Store, journal: Journal, report: PrefixReport, replace: bool
) -> Iterator[Item]:
    """Yield the items to copy; count, note or name the other keys."""
    for sides in both_sides(source, target, journal, report.failures.__setitem__):
        if sides.source is None:
            continue
        try:
            item = item_of(sides, replace=replace)
        except PenstockError as error:
            report.failed(sides.key, error)
            continue
        if item is not None:
            yield item
            continue
        report.skipped += 1
        if sides.noted is None:
            noted = Copied(path=sides.key, nbytes=sides.source.nbytes, digest="", etag=sides.source.etag)
            journal.add(noted)
        report.unhashed += sides.noted is None or not sides.noted.digest


def missing_items(source: Store, target: Store, journal: Journal) -> Iterator[Item]:
    """Yield the items that a run would copy or check, without the failures."""
    for sides in both_sides(source, target, journal):
        if sides.source is not None:
            try:
                item = item_of(sides)
            except PenstockError:
                continue
            if item is not None:
                yield item


def left_out(source: Store) -> Iterator[tuple[str, str]]:
    """Yield (path, reason) of files that no listing names. Raises: Forbidden; Transient."""
    return unlisted(source.url) if isinstance(source, LocalStore) else iter(())


def is_marker(source: Store, info: ObjectInfo) -> bool:
    """Return whether a listed key stands for a folder made by a console. Costs a request, if empty."""
    if info.nbytes:
        return False
    try:
        source.head(info.key)
    except ObjectNotFound:
        return True
    return False


def _without_roots(store: Store, refuse: Refuse | None) -> Iterator[ObjectInfo]:
    """Yield the objects of a place without a root.

    A root copied as files would be written to at both places. Raises: Conflict.
    """
    for info in objects(store, refuse):
        if info.key.endswith(f"/{MARKER}") and _is_root(store, info.key):
            raise Conflict(
                f"{store.url}/{info.key} makes a root of what lies beside it, and a copy of that would be a second "
                "primary: copy the other folders each by itself, and that one by penstock migrate run without --from, "
                "with its URL as --root"
            )
        yield info


def _is_root(store: Store, key: str) -> bool:
    try:
        return {"format", "id"} <= parse_json_object(read(store, key) or b"").keys()
    except DamagedJson:
        return False
