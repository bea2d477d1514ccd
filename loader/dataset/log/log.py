"""The history of a root: read and checked, and extended by typed methods."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from ...errors import Corrupt, CorruptLog
from ...storage import is_local
from ...storage.requests import retry_corrupt
from ...storage.store import Store
from ...storage.threads import Together, in_background, lock
from ..names import LATEST
from . import rules
from .append import AppendResult, Decide, append, check_end, read_tail
from .denies import Target
from .entries import Entry, entry_key, find_edited
from .fold import fold_all
from .marker import check_primary
from .rules import CommitBody, Done
from .snapshots import HINT_EVERY, LogListing, list_log, load_newest_hint, matches_log, write_hint
from .state import Deny, Primary, Ref, RefKind, State, Txn, VersionRecord

_CHUNK = 16 * HINT_EVERY  # entries folded at a time: bounds memory and the number of mapping copies


class Log:
    """The log of the root in `store`. Thread-safe; keeps its state and reads only new entries.

    check_readable: runs while the log is listed; its error takes precedence. check_writable: runs before an append.
    """

    def __init__(
        self,
        store: Store,
        check_readable: Callable[[], None] = lambda: None,
        check_writable: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._check_readable = check_readable
        self._check_writable = check_writable
        self._lock = lock()
        self._known: State | None = None  # the newest state folded so far
        self._earlier: State | None = None  # from `resume`, tried once
        self._listing: LogListing | None = None  # from `list_ahead`, used once

    @property
    def known(self) -> State | None:
        """The last state read; None before the first read. No request."""
        return self._known

    @property
    def is_unread(self) -> bool:
        """True if the first read begins with a listing: nothing was read, and `resume` gave no state."""
        return self._known is None and self._earlier is None

    def resume(self, earlier: State) -> None:
        """Continue from the `known` state of an earlier `Log` of this root.

        The state is used only if the stored last entry still has the bytes that it was folded from.
        """
        self._earlier = earlier

    def list_ahead(self) -> None:
        """Check and list the log now: the first `refresh` then begins with the entries. No request after that.

        Raises: as `check_readable`.
        """
        if self._known is not None or self._listing is not None:
            return
        with in_background(list_log, self._store) as future:
            self._check_readable()
            self._listing = future.result()

    @property
    def state(self) -> State:
        """The state after the newest entry; one request if nothing is new. Raises: as `refresh`."""
        return self.refresh()

    def refresh(self) -> State:
        """Read new entries, and return the state.

        Raises: Corrupt if the history is damaged or edited; FormatTooNew; StoreError.
        """
        missing_hint: State | None = None
        with self._lock:
            try:
                if self._known is None:
                    state, missing_hint = retry_corrupt(self._open)
                else:
                    known = self._known
                    state, _ = retry_corrupt(lambda: self._follow(known))
            except Corrupt as error:
                raise CorruptLog(
                    f"{self._store.url}: {error}; {_to_do(self._store.url)}", **error.fields
                ) from error
            self._known = state
        if missing_hint is not None:
            # The stored hint is damaged, or its writer died between the entry and the hint. Written outside the lock:
            # it may be large, and no reader waits for it.
            write_hint(self._store, missing_hint)
        return state

    def _open(self) -> tuple[State, State | None]:
        """Return (state, state of a hint to write or None)."""
        # `_earlier` is tried once: after a Corrupt, `retry_corrupt` opens the log without it.
        earlier = self._earlier
        self._earlier = None
        if earlier is not None and earlier.n:
            self._check_readable()
            if matches_log(self._store, earlier):
                state, _ = self._follow(earlier)
                return state, None

        # 1. List. Only an estimate of what to request at once: a listing may be incomplete or old, so it proves no end.
        self.list_ahead()
        listing = self._listing
        self._listing = None  # a second try lists again
        assert listing is not None

        # 2. Request the newest hint and all entries after it together, and fold them from the newest valid hint on.
        with Together(self._store, listing.keys) as store:
            start, newest_useful = load_newest_hint(store, listing.hints)
            n_ahead = 1  # after an older hint, the entries that were requested together do not come next
            if start.n == listing.newest_hint:
                n_ahead = listing.n_ahead
            entries = read_tail(store, start.n, n_ahead, prev=start.prev)
            state, at_hint = _fold_chunks(start, entries)

        # 3. The tail ends at the first number without an entry. If an entry was lost there, later ones still exist. So
        #    list again if the listing shows any, or is a disk's, which has hints only.
        if state.n < listing.last or is_local(self._store):
            check_end(self._store, state.n)

        # 4. Let the caller write the newest possible hint, unless the root has one as new.
        if at_hint is None or at_hint.n <= newest_useful:
            return state, None
        return state, at_hint

    def _follow(self, state: State) -> tuple[State, State | None]:
        """Read the entries after `state`. Returns the same as `_fold_chunks`."""
        entries = read_tail(self._store, state.n, prev=state.prev)
        return _fold_chunks(state, entries)

    def verify(self) -> State:
        """Read the whole log without hints.

        Raises: Corrupt, which names every edited or missing entry; else as `refresh`.
        """
        entries = read_tail(self._store, 0, prev="")
        try:
            state, _ = _fold_chunks(State(), entries)
        except Corrupt as error:
            links = self._readable_links()
            keys = [entry_key(n) for n in find_edited(links)]
            if keys:
                names = ", ".join(keys)
                error.add_note(f"edited after they were written, by the chain of hashes: {names}")
            raise
        check_end(self._store, state.n)
        return state

    def _readable_links(self) -> list[Entry]:
        """Return the entries up to the first that cannot be parsed, without their bodies."""
        links: list[Entry] = []
        with suppress(Corrupt):
            for entry in read_tail(self._store, 0, prev=""):
                link = replace(entry, body={}, data=b"")
                links.append(link)
        return links

    def append(self, decide: Decide) -> AppendResult:
        """Append the entry that `decide` asks for: {"kind": ..., its fields}.

        `decide(state)` gets the newest state. It is called again if another writer's entry came first. It returns a
        body, returns `Done(value)` if there is nothing to append, or raises.

        Raises: Conflict if the root was moved; as `refresh` and `append.append`.
        """
        self._check_writable()

        def decide_here(state: State) -> Mapping[str, object] | Done[object]:
            check_primary(self._store, state)  # on each call: the root may just have been moved
            return decide(state)

        outcome = append(self._store, self.refresh(), decide_here)
        with self._lock:
            # Another thread may have read further meanwhile: the known state never goes back.
            if self._known is None or outcome.state.n > self._known.n:
                self._known = outcome.state

        # An entry with a checksum of the state before it vouches for that state's hint (`snapshots`). The entry comes
        # first: a hint without it is ignored. If the writer dies here, the next one to open the log writes the hint.
        has_checksum = outcome.entry is not None and bool(outcome.entry.state)
        if has_checksum and outcome.before is not None:
            write_hint(self._store, outcome.before)
        return outcome

    def begin(
        self,
        dataset: str,
        parent: str | None = LATEST,
        txn: str | None = None,
        *,
        gated: bool = False,
    ) -> Txn:
        """Begin a transaction on a parent version.

        parent: a version id; None for no parent; "latest" for the newest version, if any. txn: name; a retry returns
        the same transaction. gated: the commit must name a verdict.

        Raises: InvalidName; VersionNotFound; VersionRetired; Fenced; Conflict; as `append`.
        """
        # One name for all tries: a begin that is decided again is the same transaction.
        name = txn or secrets.token_hex(16)

        def decide(state: State) -> Mapping[str, object] | Done[object]:
            pinned = parent
            if parent == LATEST:
                newest = state.newest(dataset)
                pinned = newest.id if newest else None
            return rules.decide_begin(
                state,
                name,
                dataset,
                pinned,
                gated=gated,
            )

        outcome = self.append(decide)
        return outcome.state.txns[name]

    def commit(self, txn: str, build: Callable[[State], CommitBody]) -> VersionRecord:
        """Commit `txn` and return its version. A committed transaction returns the version that it has.

        `build(state)` adds the parts to `state.newest(dataset)`, applies `state.denies` and uploads the manifest. It is
        called again if another version or takedown came first, and raises Conflict if the changes clash.

        Raises: TransactionNotFound; Fenced; Conflict; as `build` and `append`.
        """
        # Kept between tries: a manifest stays valid if the entry that came first is neither a version of the dataset
        # nor a takedown. No entry names a manifest that was uploaded in vain.
        body: CommitBody | None = None

        def decide(state: State) -> Mapping[str, object] | Done[object]:
            nonlocal body
            decision, body = rules.commit_or_build(state, txn, body, build)
            return decision

        outcome = self.append(decide)
        record = outcome.state.committed(txn)
        if record is None:
            raise Corrupt(f"the log holds the commit of transaction {txn} and no version of it")
        self._write_start(outcome, record.dataset)
        return record

    def abort(self, txn: str, reason: str) -> Txn:
        """Abort `txn`. Repeating it changes nothing.

        Raises: TransactionNotFound; Conflict if it was committed; as `append`.
        """
        outcome = self.append(lambda state: rules.decide_abort(state, txn, reason))
        return outcome.state.txns[txn]

    def retire(self, dataset: str, number: int, reason: str) -> VersionRecord:
        """Retire a version. Repeating it changes nothing. Raises: VersionNotFound; as `append`."""
        outcome = self.append(lambda state: rules.decide_retire(state, dataset, number, reason))
        self._write_start(outcome, dataset)
        versions = outcome.state.versions(dataset)
        return versions[number - 1]

    def deny(self, targets: Sequence[Target], reason: str, by: str) -> Deny:
        """Take down the samples of `targets` for good: every later commit applies it.

        Raises: InvalidName; as `append`.
        """
        outcome = self.append(lambda state: rules.decide_deny(state, targets, reason, by))
        if isinstance(outcome.value, Deny):  # an existing entry denies all of them
            return outcome.value
        return outcome.state.denies[-1]

    def mirror(self, url: str, upto: int) -> int:
        """Record that a mirror has the log up to entry `upto`; return the newest entry's number.

        Raises: as `append`.
        """
        from .mirror_rules import decide_mirror  # trainings append no such entry

        outcome = self.append(lambda state: decide_mirror(state, url, upto))
        return outcome.state.n

    def move(self, url: str) -> Primary:
        """Close this root: its history continues only at `url` (`upkeep.migrate.promote`).

        Later appends to this root fail.

        Raises: as `append`.
        """
        from .mirror_rules import decide_primary  # trainings append no such entry

        outcome = self.append(lambda _: decide_primary(url, self._store.url))
        moved = outcome.state.primary
        assert moved is not None
        return moved

    def hold(self, dataset: str, number: int, by: str, why: str) -> None:
        """Keep a version's bytes until `release`. Repeating it changes nothing.

        Raises: VersionNotFound; VersionRetired; InvalidName; as `append`.
        """
        self.append(lambda state: rules.decide_hold(state, dataset, number, by, why))

    def release(self, dataset: str, number: int, by: str) -> bool:
        """Release a hold; False if `by` holds none. Raises: VersionNotFound; as `append`."""
        outcome = self.append(lambda state: rules.decide_release(state, dataset, number, by))
        return outcome.entry is not None

    def ref(
        self,
        dataset: str,
        name: str,
        ref_kind: RefKind,
        number: int,
        was: int | None = None,
    ) -> Ref:
        """Make `name` refer to version `number`. A tag never moves; an alias moves if it still names version `was`.

        Raises: InvalidName; VersionNotFound; VersionRetired; Conflict; as `append`.
        """

        def decide(state: State) -> Mapping[str, object] | Done[object]:
            return rules.decide_ref(
                state,
                dataset,
                name,
                ref_kind,
                number,
                was,
            )

        outcome = self.append(decide)
        self._write_start(outcome, dataset)
        return outcome.state.refs[dataset, name]

    def _write_start(self, outcome: AppendResult, dataset: str) -> None:
        """Replace the dataset's start if an entry was appended. A disk has none."""
        if outcome.entry is None or is_local(self._store):
            return
        from .dataset_starts import write_dataset_start  # readers of a log do without

        write_dataset_start(self._store, outcome.state, dataset)


def _to_do(url: str) -> str:
    return (
        f"run penstock verify --root {url}, which names what was edited or is missing; restore that object from a "
        "mirror, or its former version where the bucket keeps versions"
    )


def _fold_chunks(state: State, entries: Iterator[Entry]) -> tuple[State, State | None]:
    """Return (state after all entries, state before the last entry that has a state checksum, or None).

    A hint may be written of the second: the entry vouches for it.
    """
    at_hint: State | None = None
    while chunk := list(islice(entries, _CHUNK)):
        last_checksum = -1  # index of the chunk's last entry that has one
        for i, entry in enumerate(chunk):
            if entry.state:
                last_checksum = i
        if last_checksum >= 0:
            # Fold up to that entry, and keep the state there. The rest of the chunk follows below.
            state = fold_all(state, chunk[:last_checksum])
            at_hint = state
            chunk = chunk[last_checksum:]
        state = fold_all(state, chunk)
    return state, at_hint
