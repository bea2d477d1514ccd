"""The place that is, or becomes, a mirror: its marker, and how far its log goes."""

import json

from loader.dataset.entries import canonical, entry_key
from loader.dataset.marker import MARKER, MIRROR_OF, check_root
from loader.dataset.tail import read_tail
from loader.errors import Conflict, NotARoot, ObjectNotFound
from loader.storage import Store

from .contents import SMALL_FOLDERS

COPIED = ("data/", *SMALL_FOLDERS)
"""What another tool may have copied before."""


def copied_entries(source: Store, target: Store) -> int:
    """The number of the last log entry in a mirror of `source`; 0 for a place that is empty.

    Raises: Conflict where the target is another root, or one that is written to, or its history is another; NotARoot
    where it holds other things.
    """
    marker = check_root(source)
    try:
        found = json.loads(target.get(MARKER).data)
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
    last = 0
    for entry in read_tail(target, 0, coming=1):
        last = entry.n
    if last and target.get(entry_key(last)).data != source.get(entry_key(last)).data:
        raise Conflict(
            f"{target.url}/{entry_key(last)} is not the entry of {source.url}: somebody wrote to the mirror, or the "
            "primary was restored from an older copy; make a new mirror in another place"
        )
    return last


def make_mirror(source: Store, target: Store) -> None:
    """The marker that says whose mirror this is. Again is no change."""
    marker = {MIRROR_OF: source.url, **check_root(source)}  # a mirror's mirror is one of the primary
    try:
        target.get(MARKER)
    except ObjectNotFound:
        target.put_if_absent(MARKER, canonical(marker))


def copy_entries(source: Store, target: Store, after: int, upto: int) -> None:
    """Log entries in their order, so that a reader of the mirror never sees one without those before it."""
    for n in range(after + 1, upto + 1):
        target.put_if_absent(entry_key(n), source.get(entry_key(n)).data)
