"""Rules for appending to a log in `state`: the writer's side, as pure functions.

Each function returns the body of the entry to append, returns `Done(value)` if the log already has it, or raises.
`append` calls it again on each newer state, so that no decision rests on an old state. `fold.py` checks the same rules
for readers.
"""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...errors import (
    Conflict,
    Fenced,
    InvalidName,
    StageNotPublished,
    TransactionNotFound,
    VersionNotFound,
    VersionRetired,
)
from ..names import check_dataset_name, check_ref_name, check_stated, check_transaction_name, check_words
from .denies import Target, hashes
from .refs import existing_names
from .state import Deny, Hold, Ref, RefKind, State, Txn, VersionRecord

Body = Mapping[str, object]
T_co = TypeVar("T_co", covariant=True)
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Done(Generic[T_co]):
    """Nothing to append: the log already has the entry."""

    value: T_co
    """The result from the log."""


@dataclass(frozen=True, slots=True)
class Rebase:
    """The manifest must be built on the dataset's newest version."""

    newest: VersionRecord | None
    """Newest version that is not retired, or None."""


@dataclass(frozen=True, slots=True)
class ApplyDenies:
    """The manifest must be rebuilt with takedowns applied."""

    denies: tuple[Deny, ...]
    """The takedowns to apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitBody:
    """An uploaded manifest. Raises: InvalidName."""

    id: str
    """"v-" and 64 hex."""
    manifest: str
    """Path of the manifest in the root."""
    sha256: str
    """Manifest SHA-256, hex."""
    parent: str | None
    """Id of the version that it was built on, or None."""
    denies: int
    """Last deny entry applied to the manifest (`state.last_deny`)."""
    verdict: str = ""
    """Path of a gated transaction's verdict, or ""."""

    def __post_init__(self) -> None:
        is_sha256 = _SHA256.fullmatch(self.sha256) is not None
        if not is_sha256 or self.id != f"v-{self.sha256}":
            raise InvalidName(
                f"a commit of id {self.id!r}, sha256 {self.sha256!r}; expected 64 hex, and 'v-' with the same 64 hex",
                what="id",
                given=self.id,
                accepted=f"v-{self.sha256}",
            )


def decide_begin(
    state: State,
    txn: str,
    dataset: str,
    parent: str | None,
    *,
    gated: bool = False,
) -> Body | Done[Txn]:
    """Begin `txn` on the version id `parent`. Repeating it returns the same transaction.

    Raises: InvalidName; VersionNotFound; VersionRetired; Fenced if aborted; Conflict if it belongs to another dataset,
    or began without a gate and now requires one.
    """
    check_dataset_name(dataset)
    earlier = state.txns.get(txn)
    if earlier is not None:
        _check_same_begin(earlier, dataset, gated=gated)
        return Done(earlier)
    check_transaction_name(txn)
    if parent is not None:
        record = state.by_id(parent)
        if record is None or record.dataset != dataset:
            message = f"{parent} is not a version of {dataset}: {existing_names(state, dataset)}"
            raise VersionNotFound(message, what="parent", where=dataset, given=parent)
        _refuse_retired(state, record)
    kind = "begin"
    if gated:
        kind = "gated"  # a separate kind, so that packages without gates refuse to read it instead of bypassing it
    return {"kind": kind, "txn": txn, "dataset": dataset, "parent": parent}


def _check_same_begin(earlier: Txn, dataset: str, *, gated: bool) -> None:
    if earlier.dataset != dataset:
        raise Conflict(
            f"transaction {earlier.txn} was begun for {earlier.dataset}, not for {dataset}: use another",
            what="dataset",
            where=f"transaction {earlier.txn}",
            given=dataset,
            accepted=earlier.dataset,
        )
    if earlier.status == "aborted":
        raise _fencing_error(earlier)
    if gated and not earlier.gated:
        message = f"transaction {earlier.txn} was begun without a gate; begin another transaction"
        raise Conflict(message, what="gated", where=f"transaction {earlier.txn}", given=gated)


def decide_commit(
    state: State,
    txn: str,
    body: CommitBody | None,
) -> Body | Done[VersionRecord] | Rebase | ApplyDenies:
    """Commit `txn` with the manifest `body`; None asks for the base to build on. Repeating it returns the version.

    Raises: TransactionNotFound; Fenced if aborted; StageNotPublished if gated without a verdict; Conflict if the id is
    another version's.
    """
    transaction = require_not_aborted(state, txn)  # after an abort the collector deletes its files
    committed = state.committed(txn)
    if committed is not None:
        return Done(committed)

    # A manifest fits one state. If another version, a retirement or a takedown precedes this commit, the caller builds
    # the manifest again.
    newest = state.newest(transaction.dataset)
    newest_id = None
    if newest is not None:
        newest_id = newest.id
    if body is None or body.parent != newest_id:
        return Rebase(newest)
    if body.denies != state.last_deny:
        newer = [deny for deny in state.denies if deny.n > body.denies]
        return ApplyDenies(tuple(newer))

    refuse_ungated(transaction, body.verdict)
    same = state.by_id(body.id)
    if same is not None:
        message = f"{body.id} is already {same.name}: a manifest names its transaction and parent"
        raise Conflict(message, what="id", where=same.name, given=body.id)
    entry: dict[str, object] = {
        "kind": "commit",
        "txn": txn,
        "dataset": transaction.dataset,
        "number": len(state.versions(transaction.dataset)) + 1,
        "id": body.id,
        "manifest": body.manifest,
        "sha256": body.sha256,
        "parent": body.parent,
        "denies": body.denies,
    }
    if body.verdict:
        entry["verdict"] = body.verdict
    return entry


def commit_or_build(
    state: State,
    txn: str,
    body: CommitBody | None,
    build: Callable[[State], CommitBody],
) -> tuple[Body | Done[VersionRecord], CommitBody | None]:
    """Return (decision of `decide_commit`, its manifest). Calls `build(state)` if `body` does not fit this state.

    Raises: as `decide_commit`; as `build`; Conflict if `build` used another state.
    """
    decision = decide_commit(state, txn, body)
    if isinstance(decision, Rebase | ApplyDenies):
        # `build` applies both: the newest version and the takedowns are in `state`.
        body = build(state)
        decision = decide_commit(state, txn, body)
        if isinstance(decision, Rebase | ApplyDenies):
            raise Conflict(
                f"the manifest of transaction {txn} was not built on the state given: {decision}",
                what="manifest",
                where=f"transaction {txn}",
                given=type(decision).__name__,
            )
    return decision, body


def decide_abort(state: State, txn: str, reason: str) -> Body | Done[Txn]:
    transaction = _require_txn(state, txn)
    if transaction.status == "committed":
        version = f"{transaction.dataset}@{transaction.number}"
        raise Conflict(
            f"transaction {txn} was committed as {version}: there is nothing to abort; retire the version instead",
            what="transaction",
            where=version,
            given=txn,
        )
    if transaction.status == "aborted":
        return Done(transaction)
    check_words("reason", reason)
    return {"kind": "abort", "txn": txn, "reason": reason}


def decide_retire(
    state: State,
    dataset: str,
    number: int,
    reason: str,
) -> Body | Done[VersionRecord]:
    """Retire a version. Repeating it keeps the first reason.

    Raises: VersionNotFound; InvalidName for an invalid reason.
    """
    record = _require_version(state, dataset, number)
    if record.retired is not None:
        return Done(record)
    check_stated("reason", reason)
    return {"kind": "retire", **_identity(record), "reason": reason}


def decide_ref(
    state: State,
    dataset: str,
    name: str,
    ref_kind: RefKind,
    number: int,
    expected_number: int | None,
) -> Body | Done[Ref]:
    """Let `name` refer to version `number`.

    A tag never moves. An alias moves if it still names version `expected_number` (None if it does not exist yet).

    Raises: InvalidName; VersionNotFound; VersionRetired; Conflict, with the version that the name refers to.
    """
    check_ref_name(name)
    address = f"{dataset}@{name}"
    if ref_kind not in ("tag", "alias"):
        message = f"{name!r} as {ref_kind!r}: a name is a 'tag' (never moves) or an 'alias' (moves)"
        raise InvalidName(message, what="ref_kind", where=address, given=ref_kind, accepted=["tag", "alias"])
    record = _require_version(state, dataset, number)

    # If the name exists: repeating its entry changes nothing, and only an alias may move.
    ref = state.refs.get((dataset, name))
    number_now = None
    if ref is not None:
        number_now = ref.number
        if ref.ref_kind == ref_kind and ref.number == number:
            return Done(ref)
        if "tag" in (ref.ref_kind, ref_kind):
            message = (
                f"{address} is a {ref.ref_kind} of version {ref.number}; tags cannot move and a name "
                "keeps its kind: choose another name"
            )
            raise Conflict(message, what="name", where=address, given=ref_kind, accepted=ref.ref_kind)

    # If two writers move an alias at once, only one succeeds.
    if expected_number != number_now:
        raise _move_conflict(address, number, number_now, expected_number)
    _refuse_retired(state, record)
    return {
        "kind": "ref",
        "dataset": dataset,
        "name": name,
        "ref_kind": ref_kind,
        "number": number,
        "was": expected_number,
    }


def decide_hold(
    state: State,
    dataset: str,
    number: int,
    by: str,
    why: str,
) -> Body | Done[Hold]:
    """Hold a version that is not retired. Repeating it keeps the first reason.

    Raises: VersionNotFound; VersionRetired; InvalidName if `by` or `why` is missing.
    """
    record = _require_version(state, dataset, number)
    check_stated("holder's name", by)
    check_stated("reason", why)
    earlier = _find_hold(state, record, by)
    if earlier is not None:
        return Done(earlier)
    _refuse_retired(state, record)  # a collector may be deleting it
    return {"kind": "hold", "action": "place", **_identity(record), "by": by, "why": why}


def decide_release(
    state: State,
    dataset: str,
    number: int,
    by: str,
) -> Body | Done[None]:
    """Release the hold of `by` on a version, retired or not; `Done` if there is none. Raises: VersionNotFound."""
    record = _require_version(state, dataset, number)
    if _find_hold(state, record, by) is None:
        return Done(None)
    return {"kind": "hold", "action": "release", **_identity(record), "by": by}


def _move_conflict(
    address: str, number: int, number_now: int | None, expected_number: int | None
) -> Conflict:
    """Return the error for a name that another writer moved."""
    current = "does not exist"
    if number_now is not None:
        current = f"names version {number_now}"
    expected = "a new name"
    if expected_number is not None:
        expected = f"version {expected_number}"
    message = (
        f"{address} {current}; the move to {number} expected {expected}. "
        "Read the name again and repeat the move"
    )
    return Conflict(
        message, what="expected_number", where=address, given=expected_number, accepted=number_now
    )


def decide_deny(
    state: State,
    targets: Sequence[Target],
    reason: str,
    by: str,
) -> Body | Done[Deny]:
    """Take down the samples of `targets` for good. An existing entry that denies them all is returned.

    Raises: InvalidName if targets, reason or author are missing, or if reason or author contains a denied name.
    """
    if not targets:
        raise InvalidName(
            "a takedown needs at least one target: name what it takes down", what="targets", given=0
        )
    check_stated("reason", reason)
    check_stated("requester's name", by)
    for target in targets:
        is_named = target.value in reason or target.value in by
        # One or two characters stand in any text by chance.
        if is_named and len(target.value) > 2:
            message = (
                f"the reason or name given holds the {target.kind} itself, and the log is never rewritten; use a "
                "ticket's number"
            )
            raise InvalidName(message, what="reason or name", given=f"the {target.kind}")

    # One salt for the whole log: each further one costs every writer one more hash per value.
    salt = ""
    if state.denies:
        salt = state.denies[-1].salt
    if not salt:
        salt = secrets.token_hex(16)
    target_hashes = hashes(salt, targets)
    for deny in state.denies:
        if deny.salt == salt and set(target_hashes) <= set(deny.hashes):
            return Done(deny)
    kinds = sorted({target.kind for target in targets})
    return {
        "kind": "deny",
        "salt": salt,
        "hashes": target_hashes,
        "scope": " ".join(kinds),
        "reason": reason,
        "by": by,
    }


def _find_hold(state: State, record: VersionRecord, by: str) -> Hold | None:
    for hold in state.version_holds(record.dataset, record.number):
        if hold.by == by:
            return hold
    return None


def _identity(record: VersionRecord) -> dict[str, object]:
    return {"dataset": record.dataset, "number": record.number, "id": record.id}


def _require_txn(state: State, txn: str) -> Txn:
    transaction = state.txns.get(txn)
    if transaction is None:
        raise TransactionNotFound(
            f"transaction {txn!r} was never begun in this root; begin it first", what="transaction", given=txn
        )
    return transaction


def _require_version(state: State, dataset: str, number: int) -> VersionRecord:
    record = state.version(dataset, number)
    if record is None:
        message = f"no {dataset}@{number}: {existing_names(state, dataset)}"
        raise VersionNotFound(message, dataset=dataset, what="version", given=f"{dataset}@{number}")
    return record


def require_not_aborted(state: State, txn: str) -> Txn:
    """Return a transaction that is open or committed. Raises: TransactionNotFound; Fenced."""
    transaction = _require_txn(state, txn)
    if transaction.status == "aborted":
        raise _fencing_error(transaction)
    return transaction


def _fencing_error(txn: Txn) -> Fenced:
    message = (
        f"transaction {txn.txn} for {txn.dataset} was aborted ({txn.reason}); begin a new one and write again"
    )
    return Fenced(message, what="transaction", where=txn.dataset, given=txn.txn)


def refuse_ungated(txn: Txn, verdict: str) -> None:
    """Raise StageNotPublished if a gated transaction names no verdict."""
    if txn.gated and not verdict:
        raise ungated_error(txn.txn, "no verdict was given", given=verdict)


def ungated_error(txn: str, why: str, **fields: object) -> StageNotPublished:
    """Return the error for a commit of a gated transaction without its verdict."""
    message = (
        f"the parts of transaction {txn} wait for their gate: {why}. The dataset's release job judges and "
        "publishes them; `penstock approve` overrides a rejection"
    )
    return StageNotPublished(message, **{"what": "verdict", "where": f"transaction {txn}", **fields})


def _refuse_retired(state: State, record: VersionRecord) -> None:
    if record.retired is not None:
        message = f"{record.name} was retired: {record.retired}; {existing_names(state, record.dataset)}"
        raise VersionRetired(
            message, dataset=record.dataset, what="version", where=record.name, given=record.retired
        )
