"""Fold a log's entries into its state.

The fold checks the chain and each rule again, so that every reader detects an edited or truncated history, whatever
wrote it. The rules here are the readers' side of `rules.py`: a commit that a writer may not append is a log that no
reader accepts.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NoReturn

from ...errors import Corrupt
from .entries import Entry, entry_key
from .state import Deny, Hold, Primary, Ref, RefKind, State, Txn, VersionRecord, newest_live


def fold(state: State, entry: Entry) -> State:
    """Return the state after `entry`. Raises: Corrupt if it breaks the chain or a rule."""
    return fold_all(state, (entry,))


def fold_all(state: State, entries: Iterable[Entry]) -> State:
    """Return the state after all of `entries`; copies the mappings once per call."""
    draft = _Draft(state)
    for entry in entries:
        draft.add(entry)
    if draft.n == state.n:
        return state
    return draft.state()


class _Draft:
    """A state while entries are being folded into it. Its mappings and lists are copies: `State` is immutable."""

    def __init__(self, state: State) -> None:
        self.n = state.n
        self.prev = state.prev
        self.txns = dict(state.txns)
        self.ids = dict(state.ids)
        self.refs = dict(state.refs)
        self.denies = list(state.denies)
        self.holds = list(state.holds)
        self.mirrors = list(state.mirrors)
        self.primary = state.primary
        self.last_checksum_n = state.last_checksum_n
        # A dataset's versions become a list with its first new entry: appending to a tuple would copy all of them.
        self._unchanged = state.datasets
        self._changed: dict[str, list[VersionRecord]] = {}

    def state(self) -> State:
        datasets = dict(self._unchanged)
        for name, versions in self._changed.items():
            # `versions` below creates an empty list, but a dataset exists only once it has a version.
            if versions:
                datasets[name] = tuple(versions)
        return State(
            n=self.n,
            prev=self.prev,
            txns=self.txns,
            datasets=datasets,
            ids=self.ids,
            refs=self.refs,
            denies=tuple(self.denies),
            holds=tuple(self.holds),
            mirrors=tuple(self.mirrors),
            primary=self.primary,
            last_checksum_n=self.last_checksum_n,
        )

    def versions(self, dataset: str) -> list[VersionRecord]:
        """Return the draft's own list of a dataset's versions, which the caller may change."""
        if dataset not in self._changed:
            self._changed[dataset] = list(self._unchanged.get(dataset, ()))
        return self._changed[dataset]

    def add(self, entry: Entry) -> None:
        # The chain comes first: the rules hold for this history only, not for an entry that follows another one.
        if entry.n != self.n + 1:
            key = entry_key(entry.n)
            message = f"log entry {key} was folded after entry {self.n}: one is missing"
            raise Corrupt(message, what="n", where=f"log entry {key}", given=entry.n, accepted=self.n + 1)
        if entry.follows != self.prev:
            key = entry_key(entry.n)
            expected = entry.follows or "none"
            actual = self.prev or "none"
            message = (
                f"log entry {key} was written after an entry with sha256 "
                f"{expected}, but entry {self.n} has {actual}: one of the two was "
                "edited, or damaged on its way; `penstock verify` names it, `penstock repair` mends it"
            )
            raise Corrupt(message, what="prev", where=f"log entry {key}", given=expected, accepted=actual)

        fold_kind = _FOLDS[entry.kind]
        fold_kind(self, entry)

        # `entry.state` is the checksum of the state before this entry.
        if entry.state:
            self.last_checksum_n = self.n
        self.n = entry.n
        self.prev = entry.sha256


def _refuse(entry: Entry, field: str, why: str, accepted: object = None) -> NoReturn:
    """Raise Corrupt. field: the field of the entry's body that breaks the rule."""
    where = entry.title
    message = f"{where} breaks a rule of the log: {why}"
    raise Corrupt(message, what=field, where=where, given=entry.body.get(field), accepted=accepted)


# Each `_fold_...` below checks one kind of entry, and adds it to the draft. Raises: Corrupt.


def _fold_begin(draft: _Draft, entry: Entry) -> None:
    txn = entry.text("txn")
    dataset = entry.text("dataset")
    parent = entry.optional_text("parent")
    if txn in draft.txns:
        earlier = draft.txns[txn]
        _refuse(entry, "txn", f"transaction {txn} was begun before, at entry {earlier.n}")
    if parent is not None:
        parent_dataset, number = draft.ids.get(parent, ("", 0))  # no dataset has the name ""
        if parent_dataset != dataset:
            _refuse(entry, "parent", f"parent {parent} is not a version of {dataset}")
        record = draft.versions(dataset)[number - 1]
        if record.retired is not None:
            _refuse(entry, "parent", f"parent {record.name} was retired")
    draft.txns[txn] = Txn(
        txn=txn,
        dataset=dataset,
        parent=parent,
        status="open",
        n=entry.n,
        gated=entry.kind == "gated",
    )


def _fold_commit(draft: _Draft, entry: Entry) -> None:
    record = VersionRecord(
        dataset=entry.text("dataset"),
        number=entry.integer("number"),
        id=entry.text("id"),
        manifest=entry.text("manifest"),
        sha256=entry.text("sha256"),
        parent=entry.optional_text("parent"),
        txn=entry.text("txn"),
        denies=entry.integer("denies"),
        n=entry.n,
    )
    if record.txn not in draft.txns:
        _refuse(entry, "txn", f"transaction {record.txn} was never begun")
    _check_commit(draft, entry, record)

    versions = draft.versions(record.dataset)
    versions.append(record)
    draft.ids[record.id] = (record.dataset, record.number)
    txn = draft.txns[record.txn]
    draft.txns[record.txn] = replace(
        txn,
        status="committed",
        number=record.number,
    )


def _check_commit(draft: _Draft, entry: Entry, record: VersionRecord) -> None:
    """Check a commit against the state before it. The draft has the record's transaction."""
    # The transaction may commit to this dataset.
    txn = draft.txns[record.txn]
    if txn.status != "open":
        _refuse(entry, "txn", f"transaction {txn.txn} is {txn.status}, not open")
    if txn.gated and not entry.optional_text("verdict"):
        _refuse(entry, "verdict", f"transaction {txn.txn} is gated, and it names no verdict")
    if txn.dataset != record.dataset:
        _refuse(
            entry,
            "dataset",
            f"transaction {txn.txn} belongs to {txn.dataset}, not {record.dataset}",
            txn.dataset,
        )

    versions = draft.versions(record.dataset)
    next_number = len(versions) + 1
    if record.number != next_number:
        _refuse(
            entry,
            "number",
            f"number {record.number}, expected {next_number}",
            next_number,
        )

    # The parent must be the newest version: otherwise the samples of a concurrent commit would be missing in this one.
    newest = newest_live(versions)
    newest_id = None
    if newest is not None:
        newest_id = newest.id
    if record.parent != newest_id:
        _refuse(
            entry,
            "parent",
            f"parent {record.parent}, but the newest version was {newest_id}",
            newest_id,
        )

    # Every takedown must be applied: otherwise a change that was written before one would bring its samples back.
    last_deny = 0
    if draft.denies:
        last_deny = draft.denies[-1].n
    if record.denies != last_deny:
        _refuse(
            entry, "denies", f"applied takedowns up to entry {record.denies}, expected {last_deny}", last_deny
        )

    # The id is the manifest's hash, and of no other version.
    if record.id != f"v-{record.sha256}":
        _refuse(
            entry,
            "id",
            f"id {record.id} does not belong to a manifest with sha256 {record.sha256}",
            f"v-{record.sha256}",
        )
    if record.id in draft.ids:
        dataset, number = draft.ids[record.id]
        _refuse(entry, "id", f"id {record.id} belongs to {dataset}@{number}")


def _fold_abort(draft: _Draft, entry: Entry) -> None:
    name = entry.text("txn")
    txn = draft.txns.get(name)
    if txn is None:
        _refuse(entry, "txn", f"transaction {name} is never begun, not open")
    if txn.status != "open":
        _refuse(entry, "txn", f"transaction {name} is {txn.status}, not open")
    draft.txns[name] = replace(
        txn,
        status="aborted",
        reason=entry.text("reason"),
    )


def _version_by_number(draft: _Draft, entry: Entry) -> VersionRecord | None:
    """Return the version with the entry's `dataset` and `number`; None if there is none."""
    number = entry.integer("number")
    dataset = entry.text("dataset")
    versions = draft.versions(dataset)
    if not 1 <= number <= len(versions):
        return None
    return versions[number - 1]


def _version_by_id(draft: _Draft, entry: Entry) -> VersionRecord:
    """Return the version with the entry's `dataset`, `number` and `id`. Raises: Corrupt if there is none."""
    record = _version_by_number(draft, entry)
    if record is None or record.id != entry.text("id"):
        dataset = entry.body["dataset"]
        number = entry.body["number"]
        field = "id"
        if record is None:
            field = "number"
        _refuse(entry, field, f"{dataset} has no version {number} with that id")
    return record


def _fold_retire(draft: _Draft, entry: Entry) -> None:
    record = _version_by_id(draft, entry)
    if record.retired is not None:
        _refuse(entry, "number", f"{record.name} was retired before")
    reason = entry.text("reason")
    versions = draft.versions(record.dataset)
    versions[record.number - 1] = replace(record, retired=reason)


def _fold_ref(draft: _Draft, entry: Entry) -> None:
    record = _version_by_number(draft, entry)
    name = entry.text("name")
    kind = entry.text("ref_kind")
    if record is None or record.retired is not None:
        dataset = entry.body["dataset"]
        number = entry.body["number"]
        _refuse(entry, "number", f"{dataset} has no live version {number} to name")
    if kind not in ("tag", "alias"):
        _refuse(entry, "ref_kind", f"ref_kind {kind!r}, expected 'tag' or 'alias'")

    before = draft.refs.get((record.dataset, name))
    number_before = None
    if before is not None:
        number_before = before.number
        # A tag never moves, and a name keeps its kind.
        if before.ref_kind == "tag" or kind == "tag":
            _refuse(
                entry,
                "name",
                f"{before.ref_kind} {name} of {before.dataset}@{before.number} cannot become a {kind}",
            )

    # `was` makes the move conditional: if two writers move an alias at once, the second one's entry is refused.
    was = entry.body.get("was")
    if was != number_before:
        _refuse(
            entry,
            "was",
            f"{name} named {number_before}, not {was!r}",
            number_before,
        )
    ref_kind: RefKind = "tag" if kind == "tag" else "alias"  # mypy does not narrow `kind` by `in`
    draft.refs[record.dataset, name] = Ref(
        dataset=record.dataset,
        name=name,
        ref_kind=ref_kind,
        number=record.number,
    )


def _fold_deny(draft: _Draft, entry: Entry) -> None:
    hashes = entry.body.get("hashes")
    if not isinstance(hashes, list) or not hashes:
        _refuse(entry, "hashes", "hashes is not a list of text with at least one item")
    if not all(isinstance(item, str) for item in hashes):
        _refuse(entry, "hashes", "hashes is not a list of text with at least one item")
    deny = Deny(
        n=entry.n,
        hashes=tuple(hashes),
        scope=entry.text("scope"),
        # Earlier releases wrote none of these.
        salt=entry.optional_text("salt") or "",
        reason=entry.optional_text("reason") or "",
        by=entry.optional_text("by") or "",
    )
    draft.denies.append(deny)


def _fold_hold(draft: _Draft, entry: Entry) -> None:
    record = _version_by_id(draft, entry)
    by = entry.text("by")
    action = entry.text("action")
    if action == "place":
        _place_hold(draft, entry, record, by)
    elif action == "release":
        _release_hold(draft, entry, record, by)
    else:
        _refuse(entry, "action", f"action {action!r}, expected 'place' or 'release'")


def _place_hold(draft: _Draft, entry: Entry, record: VersionRecord, by: str) -> None:
    """Keep a version's bytes for a holder. by: a person, a job or a case."""
    if record.retired is not None:
        _refuse(entry, "number", f"{record.name} was retired: a collector may be deleting it")
    hold = Hold(
        n=entry.n,
        dataset=record.dataset,
        number=record.number,
        by=by,
        why=entry.text("why"),
    )
    draft.holds.append(hold)


def _release_hold(draft: _Draft, entry: Entry, record: VersionRecord, by: str) -> None:
    others: list[Hold] = []
    for hold in draft.holds:
        is_of_version = hold.dataset == record.dataset and hold.number == record.number
        is_released = is_of_version and hold.by == by
        if not is_released:
            others.append(hold)
    if len(others) == len(draft.holds):
        _refuse(entry, "by", f"{by!r} does not hold {record.name}")
    draft.holds = others


def _fold_mirror(draft: _Draft, entry: Entry) -> None:
    entry.text("url")
    upto = entry.integer("upto")
    if upto >= entry.n:
        _refuse(entry, "upto", f"it reports a copy up to entry {upto}, which comes later")
    mirror = {**entry.body, "n": entry.n}
    draft.mirrors.append(mirror)


def _fold_primary(draft: _Draft, entry: Entry) -> None:
    url = entry.text("url")
    was = entry.text("was")
    token = entry.text("token")
    is_gone = entry.body.get("gone", False)
    if not url or not token or type(is_gone) is not bool:
        _refuse(
            entry,
            "url",
            f"url {url!r}, token {token!r}, gone {is_gone!r}: text that is not empty, and true or false",
        )
    # Each move has a token of its own: only the root at `url` has it in its marker.
    if draft.primary is not None and draft.primary.token == token:
        _refuse(entry, "token", f"its token belongs to entry {draft.primary.n}")
    draft.primary = Primary(
        n=entry.n,
        url=url,
        was=was,
        token=token,
        gone=is_gone,
    )

    # From now on the new primary is not a mirror, and the former primary is one, unless it is unreachable.
    draft.mirrors = [mirror for mirror in draft.mirrors if mirror["url"] != url]
    if not is_gone:
        former = {
            "kind": "mirror",
            "url": was,
            "upto": entry.n - 1,
            "n": entry.n,
        }
        draft.mirrors.append(former)


_FOLDS: dict[str, Callable[[_Draft, Entry], None]] = {
    "begin": _fold_begin,
    "gated": _fold_begin,
    "commit": _fold_commit,
    "abort": _fold_abort,
    "retire": _fold_retire,
    "ref": _fold_ref,
    "deny": _fold_deny,
    "hold": _fold_hold,
    "mirror": _fold_mirror,
    "primary": _fold_primary,
}
