"""The target of a migration, which is or becomes a mirror: its marker, and the length of its log."""

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
"""Folders of objects that another tool may have copied."""


def copied_entries(source: Store, target: Store) -> int:
    """Return the number of the last log entry in a mirror of `source`; 0 if the target is empty.

    Raises: Conflict if the target is another root, accepts writes, or has a different history; NotARoot if it has
    other objects.
    """
    marker = check_root(source)
    try:
        stored = parse_marker(target, target.get(MARKER).data)
    except ObjectNotFound:
        there = next((info for info in target.list("") if not info.key.startswith(COPIED)), None)
        if there is not None:
            raise NotARoot(
                f"{target.url} is no mirror and not empty ({there.key} ...): give an empty place"
            ) from None
        return 0
    if stored.get("id") != marker["id"] or MIRROR_OF not in stored:
        written = "" if MIRROR_OF in stored else ", which is written to"
        raise Conflict(
            f"{target.url} is root {stored.get('id')}{written}; a mirror of {source.url} has id {marker['id']} and "
            f"{MIRROR_OF}: give another place"
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
        raise Conflict(
            f"{target.url}/{entry_key(last)} is not the entry of {source.url}: the mirror was written to, or the "
            "primary was restored from an older copy; make a new mirror in another place"
        )
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
    """Write the marker that names this mirror's primary. Idempotent.

    A target that became the primary meanwhile stays the primary.
    """
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
            or _moved_here(target)
        ):
            return
        target.put(MARKER, canonical(marker))  # its primary was moved
        # It may have been promoted between the get and the put. Its log gets the entry before its marker: check again.
        if token := _moved_here(target):
            make_primary(target, token)


def _moved_here(store: Store) -> str | None:
    moved = Log(store).state.primary
    return moved.token if moved is not None and moved.url == store.url else None


def make_primary(store: Store, token: str) -> None:
    """Write the marker that makes this root the primary, with the token from its log entry. Idempotent.

    A late write has no longer the latest token, and changes nothing.
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
    """Turn a former primary that missed its own move into a mirror.

    Its log is a prefix of the source's. Any other target stays unchanged. Raises: Conflict if it was written to since
    the move.
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
    moves = [entry.body["token"] for entry in read_tail(target, 0, coming=1) if entry.kind == "primary"]
    if not moves or moves[-1] == stored.get(PRIMARY):  # by its own log, it accepts writes
        data = read_twice(source, entry_key(last + 1))
        if parse(last + 1, data).kind != "primary":
            raise Conflict(
                f"{target.url} has the log of {source.url} up to entry {last}, and its marker makes it writable; the "
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
