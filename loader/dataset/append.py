"""The one primitive that changes a root: append.

A writer that has read every entry up to n creates entry n+1, create-only, one PUT, with a nonce. Taken: it
reads what came first, decides again, tries the next. Any error: it reads again; its own nonce there means
success. Nothing else in penstock needs concurrency control: no swap, no listing for truth, no clock.

Before its first create it lists what lies behind entry n. An entry there that n+1 does not lead to says that n+1 was
lost: one written in its place would part the history from what followed, for good.
"""

import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import AlreadyExists, Corrupt, Forbidden, ForkedStore, InvalidStore, StoreError, Transient
from ..storage.doubt import sound
from ..storage.store import Store
from .decide import Done
from .entries import Entry, entry_key, seal
from .fold import fold, fold_all
from .hints import HINT_EVERY, state_checksum
from .history import State
from .tail import check_end, read_tail

Verdict = Literal["won", "lost", "absent"]
Decide = Callable[[State], Mapping[str, object] | Done[object]]
TRIES = 6  # of one append whose writes fail without anybody else's entry in the way
_BACKOFF_S, _BACKOFF_MAX_S = 0.004, 1.0
# The operating system's randomness: a training script may seed `random` alike in every process, and then
# all of them would back off by the same times.
_jitter = random.SystemRandom()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an append came to. state: right after `entry`; entry None: nothing had to be appended, `value` is
    what `Done` carried and `state` is what was decided on."""

    state: State
    entry: Entry | None
    value: object = None
    before: State | None = None
    """What the log said before `entry`, where the entry says the checksum of that (`hints.py`)."""


def settle(mine: Entry, tail: Sequence[Entry]) -> Verdict:
    """What became of a write of `mine` that did not plainly succeed. tail: the entries from its place on.

    A write may be stored although its answer was an error, or a conflict: only the nonce tells. While the
    place is empty a delayed write may still land there, so the place is never left before it is taken.
    """
    if not tail:
        return "absent"
    return "won" if tail[0].nonce == mine.nonce else "lost"


def append(store: Store, state: State, decide: Decide) -> Outcome:
    """Append the entry that `decide` asks for to a log that said `state` when it was last read.

    Raises: what `decide` raises; Corrupt for a body that readers would refuse or a log with a missing entry (nothing is
    written), or as `read_tail`; StoreError when the store fails for good - its note says what is known.
    """
    nonce = secrets.token_hex(16)  # one for all tries: whichever of them lands is ours, and only one can
    lost = absent = 0
    while True:
        decision = decide(state)
        if isinstance(decision, Done):
            return Outcome(state=state, entry=None, value=decision.value)
        due = state_checksum(state) if state.n - state.vouched >= HINT_EVERY else ""
        mine = seal(state.n + 1, state.prev, nonce, time.time_ns() // 1000, decision, state=due)
        after = fold(state, mine)
        if lost == absent == 0:
            _check_end(store, state.n)
        failure = _create(store, mine)
        if failure is None:
            return Outcome(state=after, entry=mine, before=state)
        tail, after = _read_again(store, state, mine, failure)
        verdict = settle(mine, tail)
        if verdict == "won":
            return Outcome(state=fold(state, tail[0]), entry=tail[0], before=state)
        if isinstance(failure, Forbidden | InvalidStore | ForkedStore):
            raise failure
        state = after
        # Losing to others is progress of the whole, and unbounded; a place that stays empty is not.
        lost, absent = (lost + 1, 0) if verdict == "lost" else (lost, absent + 1)
        if absent >= TRIES:
            raise _gave_up(mine, failure)
        _pause(lost + absent)


def _check_end(store: Store, n: int) -> None:
    try:
        check_end(store, n)
    except Corrupt as error:
        raise Corrupt(f"{store.url}: {error}; until then nothing is appended") from error


def _create(store: Store, entry: Entry) -> StoreError | None:
    try:
        store.put_if_absent(entry_key(entry.n), entry.data)
    except StoreError as e:
        return e
    return None


def _read_again(store: Store, state: State, mine: Entry, failure: StoreError) -> tuple[list[Entry], State]:
    """The entries from the place of `mine` on, and the state after them."""

    def read() -> tuple[list[Entry], State]:
        tail = list(read_tail(store, state.n, prev=state.prev))
        return tail, fold_all(state, tail)

    for attempt in range(TRIES):
        try:
            return sound(read)
        except StoreError as e:
            unknown = e
        _pause(attempt)
    unknown.add_note(
        f"it is not known whether log entry {entry_key(mine.n)} ({mine.kind}) was written, after: {failure}; "
        "do the same again: a transaction is committed once"
    )
    raise unknown


def _gave_up(mine: Entry, failure: StoreError) -> StoreError:
    if isinstance(failure, AlreadyExists):  # a store that answers 'conflict' while nothing is there
        return Transient(f"the store refused log entry {entry_key(mine.n)} {TRIES} times: {failure}")
    failure.add_note(f"log entry {entry_key(mine.n)} ({mine.kind}) was not there after {TRIES} tries")
    return failure


def _pause(times: int) -> None:
    time.sleep(_jitter.uniform(0, min(_BACKOFF_MAX_S, _BACKOFF_S * 2 ** min(times, 20))))
