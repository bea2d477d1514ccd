"""Update a mirror and its marker: data first, the log last, so that the log never names missing objects."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loader import Root
from loader.dataset.log.append import read_tail
from loader.dataset.log.dataset_starts import write_dataset_start
from loader.dataset.log.entries import canonical, entry_key, parse
from loader.dataset.log.log import Log
from loader.dataset.log.marker import (
    MARKER,
    MIRROR_OF,
    PRIMARY,
    check_root,
    check_root_twice,
    is_primary,
    parse_marker,
)
from loader.dataset.log.state import State
from loader.dataset.tables.place_records import PLACES
from loader.errors import AlreadyExists, Conflict, Forbidden, NotARoot, ObjectNotFound
from loader.storage import Store, is_local
from loader.storage.store import check_recordable
from loader.storage.threads import DaemonPool

from ...places import check_apart
from ..copying.copy_all import copy_all
from ..copying.copy_many import Copies, Migration
from ..copying.copy_one import copy_entries, put_compared, read_twice
from ..copying.items import Item, Pace
from ..copying.journal import Journal
from .contents import FOLLOWS, OWN, SMALL_FOLDERS, missing_records, new_items, new_versions, stale_derived

if TYPE_CHECKING:
    from ...compute.cluster import Cluster


COPIED = ("data/", "starts/", PLACES, FOLLOWS, *SMALL_FOLDERS)
"""Folders of objects that another tool may have copied."""


def last_copied_entry(source: Store, target: Store) -> int:
    """Return the number of the last log entry in a mirror of `source`; 0 if the target is empty.

    Raises: Conflict if the target is another root, accepts writes, or has a different history; NotARoot if it has other
    objects.
    """
    marker = check_root(source)
    try:
        stored = parse_marker(target, target.get(MARKER).data)
    except ObjectNotFound:
        # Data that another tool copied first may be there; anything else suggests a mistyped URL.
        there = next((info for info in target.list("") if not info.key.startswith(COPIED)), None)
        if there is not None:
            raise NotARoot(
                f"{target.url} is not a mirror and not empty ({there.key} ...): give an empty place",
                what="target",
                where=target.url,
                given=there.key,
                accepted="an empty location",
            ) from None
        return 0
    if stored.get("id") != marker["id"] or MIRROR_OF not in stored:
        written = "" if MIRROR_OF in stored else ", which is written to"
        raise Conflict(
            f"{target.url} is root {stored.get('id')}{written}; a mirror of {source.url} has id {marker['id']} and "
            f"{MIRROR_OF}: give another place",
            what="id",
            where=target.url,
            given=stored.get("id"),
            accepted=marker["id"],
        )
    return _common_entries(source, target)


def _common_entries(source: Store, target: Store) -> int:
    last = 0
    for info in target.list("log/"):  # entries are listed in order, hints after them
        if info.key != entry_key(last + 1):
            break
        last += 1
    for entry in read_tail(target, last):  # the listing may be incomplete
        last = entry.n
    # Each entry has its predecessor's hash, so comparing the last one suffices. Either copy may be misread once.
    if last and not any(target.get(entry_key(last)).data == _entry(source, last) for _ in range(3)):
        message = (
            f"{target.url}/{entry_key(last)} is not the entry of {source.url}: the mirror was written to, or the "
            "primary was restored from an older copy; make a new mirror in another place"
        )
        raise Conflict(message, what=entry_key(last), where=target.url, accepted=source.url)
    return last


def lags(source: Store, after: int, upto: int) -> bool:
    """Return whether the source's log entries after `after`, up to `upto`, do more than name mirrors."""
    behind = (entry for entry in read_tail(source, after) if entry.n <= upto)
    return after < upto and any(entry.kind != "mirror" for entry in behind)


def _entry(store: Store, n: int) -> bytes | None:
    try:
        return store.get(entry_key(n)).data
    except ObjectNotFound:
        return None


def make_mirror(source: Store, target: Store) -> None:
    """Write the marker that names this mirror's primary, unless it became the primary. Idempotent."""
    marker = {MIRROR_OF: source.url, **check_root_twice(source)}  # a mirror's mirror names the primary
    marker.pop(PRIMARY, None)  # would make it a second primary
    try:
        stored = target.get(MARKER).data
    except ObjectNotFound:
        put_compared(target, MARKER, canonical(marker))
    else:
        if (
            stored == canonical(marker)
            or MIRROR_OF not in parse_marker(target, stored)
            or _move_token(target)
        ):
            return
        target.put(MARKER, canonical(marker))  # its primary was moved
        # It may have been promoted between the get and the put. Its log gets the entry before its marker: check again.
        if token := _move_token(target):
            make_primary(target, token)


def _move_token(store: Store) -> str | None:
    moved = Log(store).state.primary
    if moved is not None and moved.url == store.url:
        return moved.token
    return None


def make_primary(store: Store, token: str) -> None:
    """Write the marker that makes this root the primary, with its log entry's token. Idempotent.

    A late write no longer has the latest token, and changes nothing.
    """
    store.put(MARKER, canonical({**_plain_marker(store), PRIMARY: token}))


def make_mirror_of(store: Store, url: str) -> None:
    """Write the marker that makes a closed root the mirror of `url`. Idempotent."""
    marker = canonical({**_plain_marker(store), MIRROR_OF: url})
    if store.get(MARKER).data != marker:
        store.put(MARKER, marker)


def _plain_marker(store: Store) -> dict[str, Any]:
    return {
        name: value for name, value in check_root_twice(store).items() if name not in (PRIMARY, MIRROR_OF)
    }


def close_former(source: Store, state: State, target: Store) -> None:
    """Turn a former primary that missed its own move into a mirror; its log is a prefix of the source's.

    Raises: Conflict if it was written to since the move.
    """
    try:
        stored = check_root(target)
    except NotARoot:
        return
    if (
        stored.get("id") != check_root(source).get("id")
        or MIRROR_OF in stored
        or not is_primary(source, state)
    ):
        return
    if state.primary is None or stored.get(PRIMARY) == state.primary.token:
        return  # it is the source itself, or the source was made a primary by hand
    last = _common_entries(source, target)
    moves = [entry.body["token"] for entry in read_tail(target, 0) if entry.kind == "primary"]
    if not moves or moves[-1] == stored.get(PRIMARY):  # by its own log, it accepts writes
        data = read_twice(source, entry_key(last + 1))
        if parse(last + 1, data).kind != "primary":
            raise Conflict(
                f"{target.url} has the log of {source.url} up to entry {last}, and its marker makes it writable; the "
                "root was not moved after that entry, so it was restored from an older copy: make a mirror in "
                "another place"
            )
        try:
            put_compared(target, entry_key(last + 1), data)  # from now on no writer appends there
        except AlreadyExists:
            raise Conflict(
                f"{target.url} was written to a moment ago, after the entry that moved the root to {source.url}: what "
                "was published there is in no other place; look at both logs"
            ) from None
    make_mirror_of(target, source.url)


@dataclass(slots=True, kw_only=True)
class MigrationReport(Copies):
    versions: list[str] = field(default_factory=list)
    """Names of versions that the mirror lacked."""
    entries: int = 0
    """Log entries in the mirror."""
    recorded: bool = False
    """True if the primary's log names the mirror."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Version name -> path of its first object outside `data/`, which is not copied."""

    @property
    def is_whole(self) -> bool:
        return not (self.failures or self.left_out)

    def to_text(self) -> str:
        head, *lines = self.lines()
        lines += [
            f"  {name}: {path!r} was not copied, because the objects of a version lie under {OWN}: publish its samples "
            f"anew, or penstock retire {name}"
            for name, path in self.left_out.items()
        ]
        if self.failures:
            lines.append("the log was not copied: the mirror shows what it had; run this again")
        return "\n".join([f"{head}; log up to entry {self.entries}", *lines])


def migrate(
    root: Root,
    target: Store,
    pace: Pace,
    *,
    at_once: int = 16,
    scratch: str | None = None,
    cluster: "Cluster | None" = None,
) -> MigrationReport:
    """Copy what the mirror at `target` lacks. A former primary that came back becomes a mirror.

    If an object cannot be copied, the report names it, and the mirror's log stays. Memory: at most 228 MiB of objects.

    cluster: copies the objects, `at_once` per process, within the shared rate limits; None: this process copies.

    Raises: Conflict and NotARoot as `last_copied_entry`; InvalidStore; with a cluster, as `attach`.
    """
    source = root.store
    records = missing_records(source, target)  # before the log is read
    state = root.state
    for url in (source.url, target.url):
        check_recordable(url)
    check_apart(source, target, "Choose a target beside the root")
    close_former(source, state, target)
    after = last_copied_entry(source, target)
    report = MigrationReport(target=target.url)
    report.entries = after
    report.versions = [one.name for one in new_versions(state, after)]
    with Journal(target, scratch=scratch) as journal:
        # Another tool may have copied data first.
        resumed = journal.is_resumed or (not after and any(True for _ in target.list("data/")))
        _prepare(source, target)

        def items() -> Iterator[Item]:
            coming = new_items(source, target, state, after, report.failed, report.left_out.setdefault)
            return _items(coming, journal, report)

        def total() -> int:
            items = new_items(source, target, state, after, lambda *_: None, lambda *_: None)
            return sum(item.nbytes or 0 for item in items if not journal.find(item.path))

        if new_versions(state, after):
            journal.begin()
        migration = Migration(
            source=source,
            target=target,
            pace=pace,
            at_once=at_once,
            scratch=scratch,
            may_exist=resumed,
            compared=True,
            since=[str(after)],
        )
        copy_all(migration, items, journal, report, total, cluster)
        if report.failures:
            return report
        report.entries = _copy_last(root, target, state, after, records, at_once)
        report.recorded = any(one.get("url") == target.url for one in root.state.mirrors)
        journal.finish()
    return report


def _prepare(source: Store, target: Store) -> None:
    make_mirror(source, target)
    stale = stale_derived(source, target)
    if stale:
        target.delete_many(stale)


def _items(items: Iterator[Item], journal: Journal, report: MigrationReport) -> Iterator[Item]:
    for item in items:
        if journal.find(item.path):
            report.skipped += 1
        else:
            yield item


def _copy_last(
    root: Root,
    target: Store,
    state: State,
    after: int,
    records: Sequence[Item],
    at_once: int,
) -> int:
    """Copy what names other objects: places, the log, and records of runs. Return the number of the last entry."""
    _copy_places(root.store, target)
    last = _copy_log(root, target, state, after)
    if not is_local(target):
        _write_starts(target, state, after)
    _copy_records(root.store, target, records, at_once)
    return last


def _write_starts(target: Store, state: State, after: int) -> None:
    """Write the starts of datasets with new versions. The primary's may name versions that the mirror lacks."""
    datasets = {record.dataset for record in new_versions(state, after)}
    for dataset in sorted(datasets):
        write_dataset_start(target, state, dataset)


def _copy_places(source: Store, target: Store) -> None:
    """Copy records of registered folders and buckets last: a record may state that the root has their objects."""
    there = {info.key for info in target.list(PLACES)}
    for info in source.list(PLACES):
        if info.key not in there:
            put_compared(target, info.key, read_twice(source, info.key))


def _copy_records(
    source: Store,
    target: Store,
    records: Sequence[Item],
    at_once: int,
) -> None:
    """Copy records of runs after their plans and the log. A killed copy leaves out some, which the next one copies."""

    def copy(record: Item) -> None:
        put_compared(target, record.path, read_twice(source, record.path))

    with DaemonPool(at_once, "penstock-migrate") as pool:
        for first in range(0, len(records), at_once):
            block = records[first : first + at_once]
            list(pool.map(copy, block))


def _copy_log(root: Root, target: Store, state: State, after: int) -> int:
    copy_entries(root.store, target, after, state.n, state.prev)
    try:
        recorded = root.log.mirror(target.url, state.n)
    except (Forbidden, Conflict):  # the source is itself a mirror, or read-only here
        return state.n
    if recorded == state.n + 1:  # otherwise the next run copies what others wrote meanwhile
        copy_entries(root.store, target, state.n, recorded, "")
        return recorded
    return state.n
