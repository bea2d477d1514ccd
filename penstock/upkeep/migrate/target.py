"""The place that is, or becomes, a mirror: its marker, and how far its log goes."""

from typing import Any

from loader.dataset.log.append import read_tail
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
from loader.dataset.tables.foreign_objects import PLACES
from loader.errors import AlreadyExists, Conflict, NotARoot, ObjectNotFound
from loader.storage import Store

from ..copying.compare import put_compared, read_twice
from .contents import SMALL_FOLDERS

COPIED = ("data/", PLACES, *SMALL_FOLDERS)
"""Folders of objects that another tool may have copied before."""


def copied_entries(source: Store, target: Store) -> int:
    """Return the number of the last log entry in a mirror of `source`; 0 for a place that is empty.

    Raises: Conflict where the target is another root, or one that is written to, or its history is another; NotARoot
    where it holds other things.
    """
    marker = check_root(source)
    try:
        found = parse_marker(target, target.get(MARKER).data)
    except ObjectNotFound:
        there = next((info for info in target.list("") if not info.key.startswith(COPIED)), None)
        if there is not None:
            raise NotARoot(
                f"{target.url} is no mirror and not empty ({there.key} ...): give an empty place"
            ) from None
        return 0
    if found.get("id") != marker["id"] or MIRROR_OF not in found:
        written = "" if MIRROR_OF in found else ", which is written to"
        raise Conflict(
            f"{target.url} is root {found.get('id')}{written}; a mirror of {source.url} has id {marker['id']} and says "
            f"{MIRROR_OF}: give another place"
        )
    return _common_entries(source, target)


def _common_entries(source: Store, target: Store) -> int:
    """Return how many entries the target has, all of them the source's.

    Costs one listing, and three requests. Raises: Conflict.
    """
    last = 0
    for info in target.list("log/"):  # in their order; hints come after them
        if info.key != entry_key(last + 1):
            break
        last += 1
    for entry in read_tail(target, last):  # no listing decides
        last = entry.n
    # Each entry has the hash of the one before it. Either may be read wrong once.
    if last and not any(target.get(entry_key(last)).data == _entry(source, last) for _ in range(3)):
        raise Conflict(
            f"{target.url}/{entry_key(last)} is not the entry of {source.url}: somebody wrote to the mirror, or the "
            "primary was restored from an older copy; make a new mirror in another place"
        )
    return last


def lags(source: Store, after: int, upto: int) -> bool:
    """Return whether the source's entries behind `after`, up to `upto`, say more than which mirrors it has."""
    behind = (entry for entry in read_tail(source, after) if entry.n <= upto)
    return after < upto and any(entry.kind != "mirror" for entry in behind)


def _entry(store: Store, n: int) -> bytes | None:
    try:
        return store.get(entry_key(n)).data
    except ObjectNotFound:
        return None


def make_mirror(source: Store, target: Store) -> None:
    """Write the marker that names the primary of this mirror.

    Again is no change. A place that was made the primary since it was looked at stays one.
    """
    marker = {MIRROR_OF: source.url, **check_root_twice(source)}  # a mirror's mirror is one of the primary
    marker.pop(PRIMARY, None)  # which would make it another primary
    try:
        found = target.get(MARKER).data
    except ObjectNotFound:
        put_compared(target, MARKER, canonical(marker))
    else:
        if found == canonical(marker) or MIRROR_OF not in parse_marker(target, found) or _moved_here(target):
            return
        target.put(MARKER, canonical(marker))  # its primary was moved
        # Promoted between the look and the put: its log got the entry before its marker was written, so it is seen now.
        if token := _moved_here(target):
            make_primary(target, token)


def _moved_here(store: Store) -> str | None:
    """Return the token of the entry that moved the root here, where it is the last such entry of the log here."""
    moved = Log(store).state.primary
    return moved.token if moved is not None and moved.url == store.url else None


def make_primary(store: Store, token: str) -> None:
    """Write the marker of the root behind the log entry with that token. Again is no change.

    A marker that comes too late, because the root was moved on meanwhile, changes nothing: its token is not the last.
    """
    store.put(MARKER, canonical({**_plain_marker(store), PRIMARY: token}))


def make_mirror_of(store: Store, url: str) -> None:
    """Write the marker of a root that was closed by its log. Again is no change."""
    wanted = canonical({**_plain_marker(store), MIRROR_OF: url})
    if store.get(MARKER).data != wanted:
        store.put(MARKER, wanted)


def _plain_marker(store: Store) -> dict[str, Any]:
    return {
        name: value for name, value in check_root_twice(store).items() if name not in (PRIMARY, MIRROR_OF)
    }


def close_former(source: Store, state: State, target: Store) -> None:
    """Make a mirror of a former primary that does not know that the source became the primary.

    Its log ends where the source's log ends. A target of any other kind is left as it is.

    Raises: Conflict where it was written to since.
    """
    try:
        found = check_root(target)
    except NotARoot:
        return
    if found.get("id") != check_root(source).get("id") or MIRROR_OF in found or not is_primary(source, state):
        return
    if state.primary is None or found.get(PRIMARY) == state.primary.token:
        return  # it is the source itself, or the source was made a primary by hand
    last = _common_entries(source, target)
    moves = [entry.body["token"] for entry in read_tail(target, 0, coming=1) if entry.kind == "primary"]
    if not moves or moves[-1] == found.get(PRIMARY):  # its own log lets it be written to
        data = read_twice(source, entry_key(last + 1))
        if parse(last + 1, data).kind != "primary":
            raise Conflict(
                f"{target.url} has the log of {source.url} up to entry {last}, and says that it is written to; the "
                "root was not moved behind that entry, so it was restored from an older copy: make a mirror in "
                "another place"
            )
        try:
            put_compared(target, entry_key(last + 1), data)  # from now on no writer appends there
        except AlreadyExists:
            raise Conflict(
                f"{target.url} was written to a moment ago, behind the entry that moved the root to {source.url}: what "
                "was published there is in no other place; look at both logs"
            ) from None
    make_mirror_of(target, source.url)
