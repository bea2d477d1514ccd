"""Reading the log forward: probe n+1, n+2 ... until there is no such entry; no listing decides that.

A listing may only forbid: entries that it shows behind that end mean that one was lost, and not that the log ends.
"""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from itertools import takewhile

from ..errors import Corrupt, Forbidden, ObjectNotFound, StoreError
from ..storage.seek import list_from
from ..storage.store import Store
from ..storage.together import Objects
from .entries import FOLDER, Entry, entry_key, entry_number, gaps, missing, parse

# The first probe asks for one entry, so that a reader who is up to date pays one request; each full batch
# doubles the next, so that a reader 10,000 entries behind waits for 630 round trips and not for 10,000.
READ_AHEAD = 16
_BEHIND_ENTRIES = f"{FOLDER}:"  # sorts behind every digit, and before hints
_log = logging.getLogger(__name__)


def read_tail(store: Objects, after: int, coming: int = 1) -> Iterator[Entry]:
    """Entries after+1, after+2 ... in order, up to the first that does not exist. coming: how many are on their way, if
    more than one (`storage.together`).

    Raises: Corrupt when an entry is missing in the middle or is not one; FormatTooNew; StoreError.
    """
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
                later_exists = any(isinstance(later, bytes) for later in found[n - after :])
                if got is None and later_exists:
                    got = _get(store, n)  # created between our read of n and our read of the later one?
                    if got is None:
                        raise Corrupt(missing(n, n))
                if got is None:
                    return
                if isinstance(got, StoreError):
                    raise got
                yield parse(n, got)
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


def _get(store: Objects, n: int) -> bytes | StoreError | None:
    """The entry's bytes, None when there is none; an error only counts when its turn comes."""
    try:
        return store.get(entry_key(n)).data
    except ObjectNotFound:
        return None
    except StoreError as e:
        return e
