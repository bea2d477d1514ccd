"""Append: the one primitive that changes a root.

A writer that has read the log up to entry n creates entry n+1 by one create-only PUT with a nonce. If the key exists,
it reads that entry, decides again and tries the next number. After any error it rereads the key; its own nonce there
means success. It lists before it creates: entries after the end prove that one was lost, and a new one would cut off
the later ones.
"""

import hashlib
import logging
import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from ...errors import (
    AlreadyExists,
    Corrupt,
    CorruptLog,
    Forbidden,
    ForkedStore,
    InvalidStore,
    ObjectNotFound,
    PenstockError,
    StoreError,
    Transient,
)
from ...storage.requests import retry_corrupt
from ...storage.store import Objects, Store, list_from
from .entries import FOLDER, Entry, entry_key, entry_number, gaps, linked, missing, parse, seal
from .rules import Done
from .snapshots import HINT_EVERY, state_checksum
from .state import State, fold, fold_all

# The first probe asks for one entry, so that a reader who is up to date pays one request; each full batch
# doubles the next, so that a reader 10,000 entries behind waits for 630 round trips and not for 10,000.
READ_AHEAD = 16
_BEHIND_ENTRIES = f"{FOLDER}:"  # sorts after every digit, and before hints
_log = logging.getLogger(__name__)


def read_tail(store: Objects, after: int, coming: int = 1, *, prev: str | None = None) -> Iterator[Entry]:
    """Yield entries after+1, after+2 ... in order, up to the first that does not exist.

    A damaged or unverified last entry is read twice, because later entries hash its bytes.

        coming: number of entries already requested (`threads.Together`).
        prev: sha256 of entry `after`; None skips the check of the first entry.

    Raises: Corrupt if an entry is missing, damaged, or changed between reads; FormatTooNew; StoreError.
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
                entries = [_get(store, n) for n in numbers]
            else:
                contexts = [copy_context() for _ in numbers]
                entries = list(threads.map(lambda n, own: own.run(_get, store, n), numbers, contexts))
            for n, got in zip(numbers, entries, strict=True):
                later_exists = any(
                    later is not None and not isinstance(later, StoreError) for later in entries[n - after :]
                )
                if got is None and later_exists:
                    got = _get(store, n)  # perhaps created between our reads of n and of the later entry
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
    """List the log to check that entry n is its last. Skipped if the credentials cannot list.

    Raises: Corrupt, naming the missing entries; StoreError.
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
        # Listings are not snapshots: they may show a concurrent writer's second entry but not its first.
        if _get(store, first) is None:
            raise Corrupt(missing(first, last))


def _get(store: Objects, n: int) -> Entry | PenstockError | None:
    """Return the entry, None if it is missing, or an error, raised when its turn comes."""
    try:
        return retry_corrupt(lambda: parse(n, store.get(entry_key(n)).data))
    except ObjectNotFound:
        return None
    except PenstockError as e:
        return e


Verdict = Literal["won", "lost", "absent"]
Decide = Callable[[State], Mapping[str, object] | Done[object]]
TRIES = 6  # per append, for writes that fail although no other writer has the key
_BACKOFF_S, _BACKOFF_MAX_S = 0.004, 1.0
# The operating system's randomness: a training script may seed `random` alike in every process, and then
# all of them would back off by the same times.
_jitter = random.SystemRandom()


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    state: State
    """State after `entry`; without an entry, the state that `decide` received."""
    entry: Entry | None
    """The appended entry, or None."""
    value: object = None
    """Value of `Done`; None with an entry."""
    before: State | None = None
    """State before `entry`, if the entry holds that state's checksum; else None."""


def settle(ours: Entry, tail: Sequence[Entry]) -> Verdict:
    """Return whether an uncertain write of `ours` succeeded. tail: the log's entries from the number of `ours` on.

    While the key is free, a delayed write may still arrive, so the writer retries until an entry has the key.
    """
    if not tail:
        return "absent"
    return "won" if tail[0].nonce == ours.nonce else "lost"


def append(store: Store, state: State, decide: Decide) -> AppendResult:
    """Append the entry that `decide` asks for to a log last read as `state`.

    Raises: as `decide` and `read_tail`; Corrupt, before anything is written, if readers would reject the body;
    StoreError, with a note about what is certain.
    """
    nonce = secrets.token_hex(16)  # the same for all tries: only one of them can succeed
    lost = absent = 0
    while True:
        decision = decide(state)
        if isinstance(decision, Done):
            return AppendResult(state=state, entry=None, value=decision.value)
        due = state_checksum(state) if state.n - state.vouched >= HINT_EVERY else ""
        ours = seal(state.n + 1, state.prev, nonce, time.time_ns() // 1000, decision, state=due)
        after = fold(state, ours)
        if lost == absent == 0:
            _check_end(store, state.n)
        failure = _create(store, ours)
        if failure is None:
            return AppendResult(state=after, entry=ours, before=state)
        tail, after = _read_again(store, state, ours, failure)
        verdict = settle(ours, tail)
        if verdict == "won":
            return AppendResult(state=fold(state, tail[0]), entry=tail[0], before=state)
        if isinstance(failure, Forbidden | InvalidStore | ForkedStore):
            raise failure
        state = after
        # Losing to other writers is progress and unlimited; failing while the key stays free is limited.
        lost, absent = (lost + 1, 0) if verdict == "lost" else (lost, absent + 1)
        if absent >= TRIES:
            raise _gave_up(ours, failure)
        _pause(lost + absent)


def _check_end(store: Store, n: int) -> None:
    try:
        check_end(store, n)
    except Corrupt as error:
        raise CorruptLog(f"{store.url}: {error}; until then nothing is appended") from error


def _create(store: Store, entry: Entry) -> StoreError | None:
    try:
        store.put_if_absent(entry_key(entry.n), entry.data)
    except StoreError as e:
        return e
    return None


def _read_again(store: Store, state: State, ours: Entry, failure: StoreError) -> tuple[list[Entry], State]:
    def read() -> tuple[list[Entry], State]:
        tail = list(read_tail(store, state.n, prev=state.prev))
        return tail, fold_all(state, tail)

    for attempt in range(TRIES):
        try:
            return retry_corrupt(read)
        except StoreError as e:
            unknown = e
        _pause(attempt)
    unknown.add_note(
        f"it is not known whether log entry {entry_key(ours.n)} ({ours.kind}) was written, after: {failure}; "
        "do the same again: a transaction is committed once"
    )
    raise unknown


def _gave_up(ours: Entry, failure: StoreError) -> StoreError:
    if isinstance(failure, AlreadyExists):  # a store that reports a conflict although the key is free
        return Transient(f"the store refused log entry {entry_key(ours.n)} {TRIES} times: {failure}")
    failure.add_note(f"log entry {entry_key(ours.n)} ({ours.kind}) was not there after {TRIES} tries")
    return failure


def _pause(times: int) -> None:
    time.sleep(_jitter.uniform(0, min(_BACKOFF_MAX_S, _BACKOFF_S * 2 ** min(times, 20))))
