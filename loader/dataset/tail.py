"""Reading the log forward: probe n+1, n+2 ... until there is no such entry; no listing decides that.

A listing may only forbid: entries that it shows behind that end mean that one was lost, and not that the log ends.
"""

import hashlib
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from itertools import takewhile

from ..errors import Corrupt, Forbidden, ObjectNotFound, PenstockError, StoreError
from ..storage.doubt import sound
from ..storage.seek import list_from
from ..storage.store import Store
from ..storage.together import Objects
from .entries import FOLDER, Entry, entry_key, entry_number, gaps, missing, parse
from .repair import linked

# The first probe asks for one entry, so that a reader who is up to date pays one request; each full batch
# doubles the next, so that a reader 10,000 entries behind waits for 630 round trips and not for 10,000.
READ_AHEAD = 16
_BEHIND_ENTRIES = f"{FOLDER}:"  # sorts behind every digit, and before hints
_log = logging.getLogger(__name__)


def read_tail(store: Objects, after: int, coming: int = 1, *, prev: str | None = None) -> Iterator[Entry]:
    """Entries after+1, after+2 ... in order, up to the first that does not exist. coming: how many are on their way, if
    more than one (`storage.together`); prev: sha256 of entry `after`, None where the caller does not hold the first
    entry against it.

    An entry that is damaged is read once more. So is the last one, where it has no checksum and nothing follows it that
    would say what it was: what is appended rests on its bytes. Where an entry does not follow the one before it,
    a repair record may say which one is meant (`repair.py`).

    Raises: Corrupt when an entry is missing in the middle or is not one, or gave other bytes when it was read again;
    FormatTooNew; StoreError.
    """
    last: Entry | None = None
    try:
        for entry in _entries(store, after, coming):
            if last is not None:
                yield last
            last = linked(store, entry, prev)
            prev = entry.sha256
    except PenstockError:
        if last is not None:
            yield last
        raise
    if last is not None:
        yield last if last.checksum else _the_same_again(store, last)


def _the_same_again(store: Objects, entry: Entry) -> Entry:
    again = hashlib.sha256(store.get(entry_key(entry.n)).data).hexdigest()
    if again != entry.sha256:
        raise Corrupt(
            f"log entry {entry_key(entry.n)} was read twice, with sha256 {entry.sha256} and then {again}: it was "
            "damaged on its way; do the same again"
        )
    return entry


def _entries(store: Objects, after: int, coming: int) -> Iterator[Entry]:
    batch = coming
    with ThreadPoolExecutor(READ_AHEAD, thread_name_prefix="penstock-log") as threads:  # started on demand
        while True:
            numbers = range(after + 1, after + 1 + batch)
            if batch == coming:
                found = [_get(store, n) for n in numbers]
            else:
                contexts = [copy_context() for _ in numbers]
                found = list(threads.map(lambda n, own: own.run(_get, store, n), numbers, contexts))
            for n, got in zip(numbers, found, strict=True):
                later_exists = any(
                    later is not None and not isinstance(later, StoreError) for later in found[n - after :]
                )
                if got is None and later_exists:
                    got = _get(store, n)  # created between our read of n and our read of the later one?
                    if got is None:
                        raise Corrupt(missing(n, n))
                if got is None:
                    return
                if not isinstance(got, Entry):
                    raise got
                yield got
            after += batch
            batch, coming = min(2 * batch, READ_AHEAD), 0


def check_end(store: Store, n: int) -> None:
    """That a log whose entry n + 1 is not there ends with entry n. One listing from there on, where the store has such
    a request, else of the log. Credentials that may not list do without.

    Raises: Corrupt, naming the entries that are missing before the first later one; StoreError.
    """
    try:
        behind = list_from(store, FOLDER, entry_key(n))
        keys = [info.key for info in takewhile(lambda info: info.key < _BEHIND_ENTRIES, behind)]
    except Forbidden as error:
        _log.warning(
            "the log of %s cannot be listed (%s): a missing entry may look like its end", store.url, error
        )
        return
    later = [number for number in map(entry_number, keys) if number is not None]
    for first, last in gaps([n, *later]):
        # Listings are no snapshots: whoever appended meanwhile may have his second entry shown and not his first.
        if _get(store, first) is None:
            raise Corrupt(missing(first, last))


def _get(store: Objects, n: int) -> Entry | PenstockError | None:
    """The entry, None when there is none; an error only counts when its turn comes."""
    try:
        return sound(lambda: parse(n, store.get(entry_key(n)).data))
    except ObjectNotFound:
        return None
    except PenstockError as e:
        return e
