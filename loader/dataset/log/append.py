"""Append: the one primitive that changes a root.

A writer that has read the log up to entry n creates entry n+1, create-only, by one PUT with a nonce. If the key is
taken, it reads that entry, decides again and tries the next. After any error it reads again; its own nonce there means
success. Nothing else needs concurrency control: no swap, no listing for truth, no clock. The log is read by probing
n+1, n+2 ... until an entry is missing. A listing may only veto that: entries behind the end prove that one was lost. An
entry written in a lost one's place would cut off its continuation for good, so a writer lists before its create.
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
from ...storage.shared.requests import retry_corrupt
from ...storage.store import Objects, Store, list_from
from .entries import FOLDER, Entry, entry_key, entry_number, gaps, linked, missing, parse, seal
from .rules import Done
from .snapshots import HINT_EVERY, state_checksum
from .state import State, fold, fold_all

# The first probe asks for one entry, so that a reader who is up to date pays one request; each full batch
# doubles the next, so that a reader 10,000 entries behind waits for 630 round trips and not for 10,000.
READ_AHEAD = 16
_BEHIND_ENTRIES = f"{FOLDER}:"  # sorts behind every digit, and before hints
_log = logging.getLogger(__name__)


def read_tail(store: Objects, after: int, coming: int = 1, *, prev: str | None = None) -> Iterator[Entry]:
    """Yield entries after+1, after+2 ... in order, up to the first that does not exist.

    A damaged entry is read twice. So is the last one if nothing vouches for it: later entries rest on its bytes. If an
    entry does not follow the one before it, a repair record may link the two.

        coming: entries on their way, if more than one (`threads.Together`).
        prev: sha256 of entry `after`; None skips the check of the first entry.

    Raises: Corrupt for a missing or damaged entry, or one that changed between reads; FormatTooNew; StoreError.
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
    """Check by a listing that a log without entry n + 1 ends with entry n. Credentials may lack the right to list.

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
        # Listings are no snapshots: they may show a concurrent writer's second entry and not its first.
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
TRIES = 6  # of one append whose writes fail without another writer's entry in the way
_BACKOFF_S, _BACKOFF_MAX_S = 0.004, 1.0
# The operating system's randomness: a training script may seed `random` alike in every process, and then
# all of them would back off by the same times.
_jitter = random.SystemRandom()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of an append."""

    state: State
    """State right after `entry`; without an entry, the state that was decided on."""
    entry: Entry | None
    """The appended entry; None if nothing had to be appended."""
    value: object = None
    """Value of `Done`; None with an entry."""
    before: State | None = None
    """State before `entry`, if the entry holds its checksum (`snapshots.py`); else None."""


def settle(ours: Entry, tail: Sequence[Entry]) -> Verdict:
    """Return the verdict on a write of `ours` that did not plainly succeed. tail: the entries from its number on.

    A store may keep a write that it answered with an error: only the nonce identifies it. While the key is free, a
    delayed write may still land, so the writer waits until an entry has the key.
    """
    if not tail:
        return "absent"
    return "won" if tail[0].nonce == ours.nonce else "lost"


def append(store: Store, state: State, decide: Decide) -> Outcome:
    """Append the entry that `decide` asks for to a log last read as `state`.

    Raises: as `decide` and `read_tail`; Corrupt for a body that readers would refuse, before anything is written;
    StoreError, with a note of what is certain.
    """
    nonce = secrets.token_hex(16)  # one for all tries: whichever of them lands is ours, and only one can
    lost = absent = 0
    while True:
        decision = decide(state)
        if isinstance(decision, Done):
            return Outcome(state=state, entry=None, value=decision.value)
        due = state_checksum(state) if state.n - state.vouched >= HINT_EVERY else ""
        ours = seal(state.n + 1, state.prev, nonce, time.time_ns() // 1000, decision, state=due)
        after = fold(state, ours)
        if lost == absent == 0:
            _check_end(store, state.n)
        failure = _create(store, ours)
        if failure is None:
            return Outcome(state=after, entry=ours, before=state)
        tail, after = _read_again(store, state, ours, failure)
        verdict = settle(ours, tail)
        if verdict == "won":
            return Outcome(state=fold(state, tail[0]), entry=tail[0], before=state)
        if isinstance(failure, Forbidden | InvalidStore | ForkedStore):
            raise failure
        state = after
        # Losing to others is progress of the whole, and unbounded; a place that stays empty is not.
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
    if isinstance(failure, AlreadyExists):  # a store that answers 'conflict' while nothing is there
        return Transient(f"the store refused log entry {entry_key(ours.n)} {TRIES} times: {failure}")
    failure.add_note(f"log entry {entry_key(ours.n)} ({ours.kind}) was not there after {TRIES} tries")
    return failure


def _pause(times: int) -> None:
    time.sleep(_jitter.uniform(0, min(_BACKOFF_MAX_S, _BACKOFF_S * 2 ** min(times, 20))))
