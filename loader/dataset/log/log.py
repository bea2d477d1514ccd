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
from .entries import Entry, edited, entry_key
from .marker import check_primary
from .rules import CommitBody, Done
from .snapshots import HINT_EVERY, belongs, listed, newest_hint, write_hint
from .state import Deny, Primary, Ref, RefKind, State, Txn, VersionRecord, fold_all

_CHUNK = 16 * HINT_EVERY  # entries folded at a time: bounds memory and the number of mapping copies


class Log:
    """The log of the root in `store`. Thread-safe; keeps its state and reads only new entries.

    check: called when the log is opened, during its listing; its error is raised first. writable: called before an
    append.
    """

    def __init__(
        self,
        store: Store,
        check: Callable[[], None] = lambda: None,
        writable: Callable[[], None] = lambda: None,
    ) -> None:
        self._store, self._check, self._writable = store, check, writable
        self._lock = lock()
        self._known: State | None = None
        self._earlier: State | None = None

    @property
    def known(self) -> State | None:
        """The last state read; None before the first read. No request."""
        return self._known

    def resume(self, earlier: State) -> None:
        """Continue from the `known` state of an earlier `Log` of this root.

        The state is used only if the stored last entry still has the bytes that it was folded from.
        """
        self._earlier = earlier

    @property
    def state(self) -> State:
        """The state after the newest entry; one request if nothing is new. Raises: as `refresh`."""
        return self.refresh()

    def refresh(self) -> State:
        """Read new entries, and return the state.

        Raises: Corrupt if the history is damaged or edited; FormatTooNew; StoreError.
        """
        with self._lock:
            try:
                if self._known is None:
                    self._known, missing = retry_corrupt(self._open)
                else:
                    missing, known = None, self._known
                    self._known, _ = retry_corrupt(lambda: _catch_up(known, self._behind(known)))
            except Corrupt as error:
                raise CorruptLog(f"{self._store.url}: {error}; {_to_do(self._store.url)}") from error
            state = self._known
        if missing is not None:
            write_hint(self._store, missing)  # the hint is damaged, or its writer died before writing it
        return state

    def _open(self) -> tuple[State, State | None]:
        earlier, self._earlier = self._earlier, None
        if earlier is not None and earlier.n:
            self._check()
            if belongs(self._store, earlier):
                return _catch_up(earlier, self._behind(earlier))[0], None
        with in_background(listed, self._store) as listing:
            self._check()
            listing_result = listing.result()
        with Together(self._store, listing_result.keys) as store:
            start, kept = newest_hint(store, listing_result.hints)
            coming = listing_result.coming if start.n == listing_result.after else 1
            state, at_hint = _catch_up(start, read_tail(store, start.n, coming, prev=start.prev))
        if state.n < listing_result.last or is_local(self._store):  # a disk's listing omits entries
            check_end(self._store, state.n)
        return state, at_hint if at_hint is not None and at_hint.n > kept else None

    def verify(self) -> State:
        """Read the whole log without hints.

        Raises: Corrupt, which names every edited or missing entry; else as `refresh`.
        """
        try:
            state = _catch_up(State(), read_tail(self._store, 0, prev=""))[0]
        except Corrupt as e:
            links: list[Entry] = []
            with suppress(Corrupt):  # an unparsable entry ends the chain
                for entry in read_tail(self._store, 0, prev=""):
                    links.append(replace(entry, body={}, data=b""))  # noqa: PERF401 - kept up to the error
            if names := [entry_key(n) for n in edited(links)]:
                e.add_note(f"edited after they were written, by the chain of hashes: {', '.join(names)}")
            raise
        check_end(self._store, state.n)
        return state

    def append(self, decide: Decide) -> AppendResult:
        """Append the entry that `decide` asks for: {"kind": ..., its fields}.

        `decide(state)` gets the newest state. It is called again if another writer's entry came first. It returns a
        body, returns `Done(value)` if there is nothing to append, or raises.

        Raises: Conflict if the root was moved; as `refresh` and `append.append`.
        """
        self._writable()

        def decide_here(state: State) -> Mapping[str, object] | Done[object]:
            check_primary(self._store, state)  # on each call: the root may just have been moved
            return decide(state)

        outcome = append(self._store, self.refresh(), decide_here)
        state = outcome.state
        with self._lock:
            if self._known is None or state.n > self._known.n:
                self._known = state
        if outcome.entry is not None and outcome.entry.state and outcome.before is not None:
            write_hint(self._store, outcome.before)
        return outcome

    def _behind(self, state: State) -> Iterator[Entry]:
        return read_tail(self._store, state.n, prev=state.prev)

    def begin(
        self, dataset: str, parent: str | None = LATEST, txn: str | None = None, *, gated: bool = False
    ) -> Txn:
        """Begin a transaction on a parent version.

        parent: a version id; None for no parent; "latest" for the newest version, if any. txn: name; a retry returns
        the same transaction. gated: the commit must name a verdict.

        Raises: InvalidName; VersionNotFound; VersionRetired; Fenced; Conflict; as `append`.
        """
        name = txn or secrets.token_hex(16)

        def decide(state: State) -> Mapping[str, object] | Done[object]:
            newest = state.newest(dataset) if parent == LATEST else None
            pinned = (newest.id if newest else None) if parent == LATEST else parent
            return rules.decide_begin(state, name, dataset, pinned, gated=gated)

        return self.append(decide).state.txns[name]

    def commit(self, txn: str, build: Callable[[State], CommitBody]) -> VersionRecord:
        """Commit `txn` and return its version. A committed transaction returns the version that it has.

        `build(state)` adds the parts to `state.newest(dataset)`, applies `state.denies` and uploads the manifest. It is
        called again if another version or takedown came first, and raises Conflict if the changes clash.

        Raises: TransactionNotFound; Fenced; Conflict; as `build` and `append`.
        """
        body: CommitBody | None = None

        def decide(state: State) -> Mapping[str, object] | Done[object]:
            nonlocal body
            decision, body = rules.commit_or_build(state, txn, body, build)
            return decision

        record = self.append(decide).state.committed(txn)
        if record is None:
            raise Corrupt(f"the log holds the commit of transaction {txn} and no version of it")
        return record

    def abort(self, txn: str, reason: str) -> Txn:
        """Abort `txn`. Repeating it changes nothing.

        Raises: TransactionNotFound; Conflict if it was committed; as `append`.
        """
        return self.append(lambda state: rules.decide_abort(state, txn, reason)).state.txns[txn]

    def retire(self, dataset: str, number: int, reason: str) -> VersionRecord:
        """Retire a version. Repeating it changes nothing. Raises: VersionNotFound; as `append`."""
        state = self.append(lambda state: rules.decide_retire(state, dataset, number, reason)).state
        return state.versions(dataset)[number - 1]

    def deny(self, targets: Sequence[Target], reason: str, by: str) -> Deny:
        """Take down the samples of `targets` for good: every later commit applies it.

        Raises: InvalidName; as `append`.
        """
        outcome = self.append(lambda state: rules.decide_deny(state, targets, reason, by))
        return outcome.value if isinstance(outcome.value, Deny) else outcome.state.denies[-1]

    def mirror(self, url: str, upto: int) -> int:
        """Record that a mirror has the log up to entry `upto`; return the newest entry's number.

        Raises: as `append`.
        """
        return self.append(lambda state: rules.decide_mirror(state, url, upto)).state.n

    def move(self, url: str) -> Primary:
        """Close this root: its history continues only at `url` (`upkeep.migrate.promote`).

        Later appends to this root fail.

        Raises: as `append`.
        """
        moved = self.append(lambda _: rules.decide_primary(url, self._store.url)).state.primary
        assert moved is not None
        return moved

    def hold(self, dataset: str, number: int, by: str, why: str) -> None:
        """Keep a version's bytes until `release`. Repeating it changes nothing.

        Raises: VersionNotFound; VersionRetired; InvalidName; as `append`.
        """
        self.append(lambda state: rules.decide_hold(state, dataset, number, by, why))

    def release(self, dataset: str, number: int, by: str) -> bool:
        """Release a hold; False if `by` holds none. Raises: VersionNotFound; as `append`."""
        return self.append(lambda state: rules.decide_release(state, dataset, number, by)).entry is not None

    def ref(self, dataset: str, name: str, ref_kind: RefKind, number: int, was: int | None = None) -> Ref:
        """Make `name` refer to version `number`. A tag never moves; an alias moves if it still names version `was`.

        Raises: InvalidName; VersionNotFound; VersionRetired; Conflict; as `append`.
        """
        state = self.append(lambda s: rules.decide_ref(s, dataset, name, ref_kind, number, was)).state
        return state.refs[dataset, name]


def _to_do(url: str) -> str:
    return (
        f"run penstock verify --root {url}, which names what was edited or is missing; restore that object from a "
        "mirror, or its former version where the bucket keeps versions"
    )


def _catch_up(state: State, entries: Iterator[Entry]) -> tuple[State, State | None]:
    """Return (state after all entries, state before the last entry that has a state checksum)."""
    at_hint = None
    while chunk := list(islice(entries, _CHUNK)):
        whole = max((i for i, entry in enumerate(chunk) if entry.state), default=-1)
        if whole >= 0:
            state = at_hint = fold_all(state, chunk[:whole])
        state = fold_all(state, chunk[max(whole, 0) :])
    return state, at_hint
