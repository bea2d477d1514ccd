"""Append: the one primitive that changes a root.

Only one store operation has to be atomic: the create-only PUT of entry n+1, by a writer that has read the log up to n.
A version, a takedown or a move exists from that PUT on, and not before. Everything that a change needs (shards, tables,
manifest) is stored under names of its own before, and nothing reads it until an entry names it. So a writer may die at
any request: it leaves unnamed objects, which the collector deletes, or a whole entry. `append` lists its steps.
"""

import hashlib
import logging
import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from itertools import repeat
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
from ...storage.threads import DaemonPool
from .entries import FOLDER, Entry, entry_key, entry_number, gaps, missing_error, parse, seal, with_repair
from .fold import fold, fold_all
from .rules import Done
from .snapshots import HINT_EVERY, state_checksum
from .state import State

# A reader asks for one entry first: if it is up to date, it pays one request. Each full batch doubles the next, up to
# READ_AHEAD: a reader 10,000 entries behind waits for 630 round trips and not for 10,000.
READ_AHEAD = 16
_BEHIND_ENTRIES = f"{FOLDER}:"  # sorts after every digit, and before hints
_log = logging.getLogger(__name__)


def read_tail(
    store: Objects,
    after: int,
    n_ahead: int = 1,
    *,
    prev: str | None = None,
) -> Iterator[Entry]:
    """Yield entries after+1, after+2 ... in order, up to the first that does not exist.

    A damaged or unverified last entry is read twice, because later entries hash its bytes.

    n_ahead: number of entries already requested (`threads.Together`). prev: sha256 of entry `after`; None skips the
    check of the first entry.

    Raises: Corrupt if an entry is missing, damaged, or changed between reads; FormatTooNew; StoreError.
    """
    # One entry behind: only the end of the log shows which entry is the last.
    last: Entry | None = None
    try:
        for entry in _entries(store, after, n_ahead):
            if last is not None:
                yield last
            last = with_repair(store, entry, prev)
            prev = entry.sha256
    except PenstockError:
        # The entries before an unreadable one are good, and the caller may keep them.
        if last is not None:
            yield last
        raise
    if last is not None and not last.checksum:
        # Neither a checksum nor a later entry's `prev` covers it: a bit that flipped on the way would be sealed into
        # the chain by the next append.
        _check_same_bytes(store, last)
    if last is not None:
        yield last


def _check_same_bytes(store: Objects, entry: Entry) -> None:
    """Read an entry again. Raises: Corrupt if its bytes differ."""
    key = entry_key(entry.n)
    data = store.get(key).data
    sha256 = hashlib.sha256(data).hexdigest()
    if sha256 != entry.sha256:
        raise Corrupt(
            f"log entry {key} was read twice, with sha256 {entry.sha256} and then {sha256}: it was "
            "damaged on its way; do the same again"
        )


EntryResult = Entry | PenstockError | None
"""An entry, an error to raise when the entry's turn comes, or None if the entry does not exist."""


def _entries(store: Objects, after: int, n_ahead: int) -> Iterator[Entry]:
    """Yield entries after+1, after+2 ... up to the first that does not exist; raise an entry's error at its turn."""
    # The first batch is read by this thread: its entries are requested already, or there is only one.
    numbers = range(after + 1, after + 1 + n_ahead)
    results = [_get(store, n) for n in numbers]
    with DaemonPool(READ_AHEAD, "penstock-log") as threads:  # started on demand
        while True:
            for index, n in enumerate(numbers):
                result = results[index]
                if result is None and _any_exists(results[index + 1 :]):
                    result = _get(store, n)  # perhaps created between our reads of n and of the later entry
                    if result is None:
                        raise missing_error(n, n)
                if result is None:
                    return  # the end of the log
                if not isinstance(result, Entry):
                    raise result
                yield result

            # The whole batch exists, so more entries may follow.
            batch_size = min(2 * len(numbers), READ_AHEAD)
            numbers = range(numbers.stop, numbers.stop + batch_size)
            # A copy of the context for each thread: counts and limits of requests are context variables.
            contexts = [copy_context() for _ in numbers]
            results = list(threads.map(_get_with_context, contexts, repeat(store), numbers))


def _any_exists(results: Sequence[EntryResult]) -> bool:
    # A damaged entry exists too; a StoreError proves nothing.
    return any(result is not None and not isinstance(result, StoreError) for result in results)


def _get_with_context(context: Context, store: Objects, n: int) -> EntryResult:
    return context.run(_get, store, n)


def _get(store: Objects, n: int) -> EntryResult:
    key = entry_key(n)
    try:
        return retry_corrupt(lambda: parse(n, store.get(key).data))
    except ObjectNotFound:
        return None
    except PenstockError as error:
        return error


def check_end(store: Store, n: int) -> None:
    """List the log to check that entry n is its last. Skipped if the credentials cannot list.

    Raises: Corrupt, naming the missing entries; StoreError.
    """
    later: list[int] = []
    try:
        for info in list_from(store, FOLDER, entry_key(n)):
            if info.key >= _BEHIND_ENTRIES:
                break
            number = entry_number(info.key)
            if number is not None:
                later.append(number)
    except Forbidden as error:
        _log.warning(
            "the log of %s cannot be listed (%s): a missing entry may look like its end", store.url, error
        )
        return
    for first, last in gaps([n, *later]):
        # Listings are not snapshots: they may show a concurrent writer's second entry but not its first. A writer of an
        # entry has read all those before it, so the first one of a gap decides.
        if _get(store, first) is None:
            raise missing_error(first, last)


WriteOutcome = Literal["won", "lost", "absent"]
"""Whose entry has the number: ours, another writer's, or none."""
Decide = Callable[[State], Mapping[str, object] | Done[object]]
TRIES = 6  # per append, for writes that fail although no other writer has the key
_BACKOFF_S = 0.004
_BACKOFF_MAX_S = 1.0
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


def settle(ours: Entry, tail: Sequence[Entry]) -> WriteOutcome:
    """Return the outcome of an uncertain write of `ours`. tail: the log's entries from the number of `ours` on.

    "absent" is not final: while the key is free, a delayed write may still arrive. So the writer retries until an entry
    has the key.
    """
    if not tail:
        return "absent"
    if tail[0].nonce == ours.nonce:
        return "won"
    return "lost"


def append(store: Store, state: State, decide: Decide) -> AppendResult:
    """Append the entry that `decide` asks for to a log last read as `state`.

    Raises: as `decide` and `read_tail`; Corrupt, before anything is written, if readers would reject the body;
    StoreError, with a note about what is certain.
    """
    # One nonce for all tries. Two tries never both succeed: a try for the next number follows only if another writer
    # has this number, and a create-only write that arrives late finds the key in use.
    nonce = secrets.token_hex(16)
    n_lost = 0  # tries that another writer's entry won
    n_absent = 0  # failures since then, with the key still free
    while True:
        # 1. Decide on the state that was read. A repeated change ends here: the log already has it.
        decision = decide(state)
        if isinstance(decision, Done):
            return AppendResult(state=state, entry=None, value=decision.value)

        # 2. Fold our own entry as every reader will. An error up to here leaves nothing in the log.
        ours = _next_entry(state, nonce, decision)
        state_after = fold(state, ours)

        # 3. List what comes after n, once. If entry n+1 was lost, a new one in its place would cut off all later ones,
        #    and the lost one could not be restored.
        is_first_try = n_lost == n_absent == 0
        if is_first_try:
            _refuse_gap(store, state.n)

        # 4. Create entry n+1: from here on the change is history, whatever becomes of this process.
        failure = _create(store, ours)
        if failure is None:
            return AppendResult(state=state_after, entry=ours, before=state)

        # 5. After any error, read the key: only the log shows whose entry has it. Even AlreadyExists may come from our
        #    own write, if its response was lost and the client sent the request again.
        tail, state_read = _read_again(store, state, ours, failure)
        outcome = settle(ours, tail)
        if outcome == "won":
            return AppendResult(state=fold(state, tail[0]), entry=tail[0], before=state)
        if isinstance(failure, Forbidden | InvalidStore | ForkedStore):
            raise failure  # no further try can succeed

        # 6. Decide again on the newer state. Losing to other writers is progress, and unlimited; failing while the key
        #    stays free is limited.
        if outcome == "lost":
            n_lost += 1
            n_absent = 0
        else:
            n_absent += 1
        if n_absent >= TRIES:
            raise _exhausted_error(ours, failure)
        _pause(n_lost + n_absent)
        state = state_read


def _next_entry(state: State, nonce: str, body: Mapping[str, object]) -> Entry:
    """Return the entry that follows `state`."""
    checksum = ""
    if state.n - state.last_checksum_n >= HINT_EVERY:
        checksum = state_checksum(state)  # O(transactions), so only with every 256th entry
    return seal(
        state.n + 1,
        state.prev,
        nonce,
        at_us=time.time_ns() // 1000,
        body=body,
        state=checksum,
    )


def _refuse_gap(store: Store, n: int) -> None:
    """Raise CorruptLog if there are entries after n + 1, so that one is missing."""
    try:
        check_end(store, n)
    except Corrupt as error:
        raise CorruptLog(f"{store.url}: {error}; until then nothing is appended", **error.fields) from error


def _create(store: Store, entry: Entry) -> StoreError | None:
    """Create the entry's object. Return the error of a failed or uncertain write."""
    try:
        store.put_if_absent(entry_key(entry.n), entry.data)
    except StoreError as error:
        return error
    return None


def _read_again(
    store: Store,
    state: State,
    ours: Entry,
    failure: StoreError,
) -> tuple[list[Entry], State]:
    """Return (entries after `state`, state after them), after `failure` of a write of `ours`."""

    def read() -> tuple[list[Entry], State]:
        tail = list(read_tail(store, state.n, prev=state.prev))
        return tail, fold_all(state, tail)

    for attempt in range(TRIES):
        try:
            return retry_corrupt(read)
        except StoreError as error:
            last_error = error
        _pause(attempt)
    # The entry may be there or not. The caller may repeat the change: the log names each transaction once.
    last_error.add_note(
        f"it is not known whether log entry {entry_key(ours.n)} ({ours.kind}) was written, after: {failure}; "
        "do the same again: a transaction is committed once"
    )
    raise last_error


def _exhausted_error(ours: Entry, failure: StoreError) -> StoreError:
    """Return the error to raise after TRIES failures with the key still free."""
    key = entry_key(ours.n)
    if isinstance(failure, AlreadyExists):  # a store that reports a conflict although the key is free
        return Transient(f"the store refused log entry {key} {TRIES} times: {failure}")
    failure.add_note(f"log entry {key} ({ours.kind}) was not there after {TRIES} tries")
    return failure


def _pause(n_tries: int) -> None:
    """Sleep for a random time. The longest one doubles with each try, up to a second."""
    doublings = min(n_tries, 20)  # beyond, the power only grows
    longest_s = min(_BACKOFF_MAX_S, _BACKOFF_S * 2**doublings)
    time.sleep(_jitter.uniform(0, longest_s))
