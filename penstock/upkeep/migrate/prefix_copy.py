"""Plain prefixes: any objects from one place to another, told apart by what earlier runs have noted, sizes and ETags.

Objects at the target beside the copies:

    .penstock-migration/source.json             {"format", "source"}: its source
    .penstock-migration/manifest-<n>.parquet    key, nbytes, sha256, crc32c, etag of every object there
    .penstock-migration/<run>-<k>.jsonl         the same (key as "path"), of unfinished runs

sha256 and crc32c are "" for objects that another tool copied, until `verify --full` has read them; else one is not.
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
from loader.storage.shared.threads import in_background
from loader.storage.store import Refuse

from ..copying.copy_all import copy_all
from ..copying.copy_many import Copies, Migration
from ..copying.items import Copied, Item
from ..copying.journal import Journal
from ..copying.rate_limit import Pace
from .prefix_places import FOLDER, SOURCE, check_places, objects, read

if TYPE_CHECKING:
    from ...compute.cluster import Cluster

UNREAD = "unknown"
"""In place of the digest of an unread object."""
FORMAT = 1


@dataclass(slots=True, kw_only=True)
class PrefixReport(Copies):
    """The result of a copy of a plain prefix."""

    source: str
    """URL of the source."""
    markers: int = 0
    """Keys that stores list for a folder that a console made."""
    unhashed: int = 0
    """Objects that were there before, accepted by their size."""

    def failed(self, path: str, error: PenstockError, nbytes: int | None = None) -> None:
        if nbytes == 0 and isinstance(error, ObjectNotFound):
            self.markers += 1  # 'sub/' is listed as an empty 'sub', and there is no such object
        else:
            Copies.failed(self, path, error)

    def to_text(self) -> str:
        head, *lines = self.lines()
        more = f"; {self.unhashed} were taken by their size" if self.unhashed else ""
        more += f"; {self.markers} folder markers left out" if self.markers else ""
        return "\n".join([f"{self.source} -> {head}{more}", *lines])


@dataclass(slots=True, kw_only=True)
class Sides:
    """One key, seen from both sides, and what was noted of it."""

    key: str
    """The key."""
    source: ObjectInfo | None = None
    """The source's object; None where there is none."""
    target: ObjectInfo | None = None
    """The target's object; None where there is none."""
    noted: Copied | None = None
    """The journal's note; None where there is none."""


def both_sides(
    source: Store, target: Store, journal: Journal, refuse: Refuse | None = None
) -> Iterator[Sides]:
    """Yield every key of either side, in order.

    refuse: receives what a listing of the source cannot hand out.

    Costs two listings, and a look into the journal for each key; memory of a page each.

    Raises: Conflict for a root inside the source, before its marker is given.
    """
    here, there = _without_roots(source, refuse), objects(target)
    with in_background(next, there, None) as first:  # both wait for their first page
        left, right = next(here, None), first.result()
    while left or right:
        key = min(one.key for one in (left, right) if one)
        sides = Sides(key=key, noted=journal.find(key))
        if left and left.key == key:
            sides.source, left = left, next(here, None)
        if right and right.key == key:
            sides.target, right = right, next(there, None)
        yield sides


def item_of(sides: Sides, *, replace: bool = False) -> Item | None:
    """Return the item to copy of a key that the source has; None where it is there.

    Raises: Changed where the target's object is not the one that was copied; AlreadyExists where another object lies
    there.
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
            f"it has {there.nbytes} bytes at the target, and {noted.nbytes} were copied: somebody else wrote there; "
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
    """Copy what the target lacks, and name what can be no object there.

    Objects that changed at the source since they were copied are named, or replaced with `replace`; nothing is
    deleted. Memory: 228 MiB of objects at most, whatever their number.

    hash: one of `digest.KINDS`, taken of every byte that is copied, and noted.
    cluster: as `migrate` takes it.

    Raises: as `check_places`; Corrupt for an edited journal; what listing raises; with a cluster as
    `attach`.
    """
    check_places(source, target)
    report = PrefixReport(source=source.url, target=target.url)
    target.put_if_absent(SOURCE, canonical({"format": FORMAT, "source": source.url}))
    with Journal(target, FOLDER, scratch) as journal:

        def items() -> Iterator[Item]:
            return _items(source, target, journal, report, replace)

        def total() -> int:
            return sum(item.nbytes or 0 for item in wanted(source, target, journal))

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
    """Yield the items to copy; count, note or name the other keys of the source."""
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


def wanted(source: Store, target: Store, journal: Journal) -> Iterator[Item]:
    """Yield the items that a run would copy, or look at again, without the failures."""
    for sides in both_sides(source, target, journal):
        if sides.source is not None:
            try:
                item = item_of(sides)
            except PenstockError:
                continue
            if item is not None:
                yield item


def left_out(source: Store) -> Iterator[tuple[str, str]]:
    """Yield (path, reason) of what lies in a folder and cannot be copied, as no listing names it.

    Raises: Forbidden; Transient.
    """
    return unlisted(source.url) if isinstance(source, LocalStore) else iter(())


def is_marker(source: Store, info: ObjectInfo) -> bool:
    """Return whether a listed key stands for a folder that a console made. Costs a request, if empty."""
    if info.nbytes:
        return False
    try:
        source.head(info.key)
    except ObjectNotFound:
        return True
    return False


def _without_roots(store: Store, refuse: Refuse | None) -> Iterator[ObjectInfo]:
    """Yield the objects of a place that has no root in it.

    A root that is copied as it lies there would be written to at both places. Raises: Conflict.
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
