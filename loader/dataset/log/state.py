"""The state of the log (transactions, versions, refs, takedowns), and the fold of entries into it.

The fold rejects an entry that breaks a rule, so every reader detects an edited or truncated history.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NoReturn

from ...errors import Corrupt
from .entries import Entry, entry_key

Status = Literal["open", "committed", "aborted"]
RefKind = Literal["tag", "alias"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Txn:
    txn: str
    """Transaction name."""
    dataset: str
    """Dataset that it adds a version to."""
    parent: str | None
    """Id of the pinned parent version, or None."""
    status: Status
    """State of the transaction."""
    number: int | None = None
    """Number of its version, once committed."""
    reason: str | None = None
    """Reason for its abort, or None."""
    n: int
    """Number of its begin entry."""
    gated: bool = False
    """True if its commit has to name a verdict (`dataset/publication_gate.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    """A committed version, as recorded in the log."""

    dataset: str
    """Dataset name."""
    number: int
    """Number of the version, from 1."""
    id: str
    """"v-" and 64 hex."""
    manifest: str
    """Path of the manifest in the root."""
    sha256: str
    """Manifest SHA-256, hex."""
    parent: str | None
    """Id of the parent version, or None."""
    txn: str
    """Transaction that committed it."""
    denies: int
    """Last deny entry applied to it, or 0."""
    n: int
    """Number of its commit entry."""
    retired: str | None = None
    """Reason for its retirement, or None."""

    @property
    def name(self) -> str:
        """Reference such as 'photos@3'."""
        return f"{self.dataset}@{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """A tag (never moves) or an alias (moves) of a dataset."""

    dataset: str
    """Dataset name."""
    name: str
    """Name of the tag or alias."""
    ref_kind: RefKind
    """"tag" or "alias"."""
    number: int
    """Number of the version that it names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deny:
    """A takedown: keyed hashes that every later commit redacts (`denies.py`)."""

    n: int
    """Number of its entry."""
    hashes: tuple[str, ...]
    """The keyed hashes."""
    scope: str
    """Kinds of the hashed values, separated by spaces."""
    salt: str = ""
    """Key of the hashes, hex."""
    reason: str = ""
    """Reason of the takedown."""
    by: str = ""
    """Person who asked for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A request to keep a version's bytes."""

    n: int
    """Number of the entry that placed it."""
    dataset: str
    """Dataset name."""
    number: int
    """Number of the version."""
    by: str
    """Holder: a person, a job or a case."""
    why: str
    """Human-readable reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Primary:
    """A move of the root: after entry `n` its history continues elsewhere."""

    n: int
    """Number of the last entry before the move."""
    url: str
    """URL of the root where the history continues."""
    was: str
    """URL of the former primary."""
    token: str
    """Token in the marker of the root at `url`."""
    gone: bool = False
    """True if the former root was unreachable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The whole history up to entry n. Immutable, mappings included."""

    n: int = 0
    """Number of the last entry; 0 for an empty history."""
    prev: str = ""
    """Sha256 hex of entry n's bytes; "" at n = 0."""
    txns: Mapping[str, Txn] = field(default_factory=dict)
    """Name -> transaction."""
    datasets: Mapping[str, tuple[VersionRecord, ...]] = field(default_factory=dict)
    """Name -> versions by number; number i is at index i - 1."""
    ids: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Version id -> (dataset, number)."""
    refs: Mapping[tuple[str, str], Ref] = field(default_factory=dict)
    """(dataset, name) -> tag or alias."""
    denies: tuple[Deny, ...] = ()
    """Takedowns, in entry order."""
    holds: tuple[Hold, ...] = ()
    """Holds that were not released, oldest first."""
    mirrors: tuple[Mapping[str, object], ...] = ()
    """Bodies of the mirror entries, with "n"."""
    primary: Primary | None = None
    """Last move of the root, or None."""
    vouched: int = field(default=0, compare=False)
    """Last entry whose state's checksum is in the next entry, or 0."""

    @property
    def last_deny(self) -> int:
        return self.denies[-1].n if self.denies else 0

    def versions(self, dataset: str) -> tuple[VersionRecord, ...]:
        return self.datasets.get(dataset, ())

    def version(self, dataset: str, number: int) -> VersionRecord | None:
        versions = self.versions(dataset)
        return versions[number - 1] if 1 <= number <= len(versions) else None

    def newest(self, dataset: str) -> VersionRecord | None:
        """Return the newest version that is not retired, the only parent a commit may have."""
        return next((v for v in reversed(self.versions(dataset)) if v.retired is None), None)

    def by_id(self, version_id: str) -> VersionRecord | None:
        return self.version(*self.ids[version_id]) if version_id in self.ids else None

    def holds_of(self, dataset: str, number: int) -> tuple[Hold, ...]:
        return tuple(one for one in self.holds if (one.dataset, one.number) == (dataset, number))

    def committed(self, txn: str) -> VersionRecord | None:
        known = self.txns.get(txn)
        return None if known is None or known.number is None else self.version(known.dataset, known.number)


def fold(state: State, entry: Entry) -> State:
    """Return the state after `entry`. Raises: Corrupt if it breaks the chain or a rule."""
    return fold_all(state, (entry,))


def fold_all(state: State, entries: Iterable[Entry]) -> State:
    """Return the state after all of `entries`; copies the mappings once per call."""
    draft = _Draft(state)
    for entry in entries:
        draft.add(entry)
    return state if draft.n == state.n else draft.state()


class _Draft:
    """A state while entries are being folded into it."""

    def __init__(self, state: State) -> None:
        self.n, self.prev = state.n, state.prev
        self.txns, self.ids, self.refs = dict(state.txns), dict(state.ids), dict(state.refs)
        self.datasets: dict[str, tuple[VersionRecord, ...]] = dict(state.datasets)
        self.lists: dict[str, list[VersionRecord]] = {}  # changed datasets, as growing lists
        self.denies, self.holds, self.mirrors = list(state.denies), list(state.holds), list(state.mirrors)
        self.primary, self.vouched = state.primary, state.vouched

    def state(self) -> State:
        # A lookup creates an empty list: a dataset exists once it has a version.
        changed = {name: tuple(versions) for name, versions in self.lists.items() if versions}
        return State(
            n=self.n,
            prev=self.prev,
            txns=self.txns,
            datasets={**self.datasets, **changed},
            ids=self.ids,
            refs=self.refs,
            denies=tuple(self.denies),
            holds=tuple(self.holds),
            mirrors=tuple(self.mirrors),
            primary=self.primary,
            vouched=self.vouched,
        )

    def versions(self, dataset: str) -> list[VersionRecord]:
        if dataset not in self.lists:
            self.lists[dataset] = list(self.datasets.get(dataset, ()))
        return self.lists[dataset]

    def add(self, entry: Entry) -> None:
        if entry.n != self.n + 1:
            raise Corrupt(f"log entry {entry_key(entry.n)} was folded after entry {self.n}: one is missing")
        if entry.follows != self.prev:
            raise Corrupt(
                f"log entry {entry_key(entry.n)} was written after an entry with sha256 "
                f"{entry.prev or 'none'}, but entry {self.n} has {self.prev or 'none'}: one of the two was "
                "edited, or damaged on its way; `penstock verify` names it, `penstock repair` mends it"
            )
        _FOLDS[entry.kind](self, entry)
        if entry.state:
            self.vouched = self.n
        self.n, self.prev = entry.n, entry.sha256


def _text(e: Entry, name: str) -> str:
    value = e.body.get(name)
    if not isinstance(value, str):
        raise Corrupt(f"log entry {entry_key(e.n)} ({e.kind}) has {name} {value!r}, expected text")
    return value


def _optional_text(e: Entry, name: str) -> str | None:
    return None if e.body.get(name) is None else _text(e, name)


def _integer(e: Entry, name: str) -> int:
    value = e.body.get(name)
    if type(value) is not int or value < 0:
        raise Corrupt(f"log entry {entry_key(e.n)} ({e.kind}) has {name} {value!r}, expected an integer >= 0")
    return value


def _refuse(e: Entry, why: str) -> NoReturn:
    raise Corrupt(f"log entry {entry_key(e.n)} ({e.kind}) breaks a rule of the log: {why}")


def _begin(d: _Draft, e: Entry) -> None:
    txn, dataset, parent = _text(e, "txn"), _text(e, "dataset"), _optional_text(e, "parent")
    if txn in d.txns:
        _refuse(e, f"transaction {txn} was begun before, at entry {d.txns[txn].n}")
    if parent is not None:
        of, number = d.ids.get(parent, ("", 0))
        if of != dataset:
            _refuse(e, f"parent {parent} is no version of {dataset}")
        if d.versions(of)[number - 1].retired is not None:
            _refuse(e, f"parent {of}@{number} was retired")
    gated = e.kind == "gated"
    d.txns[txn] = Txn(txn=txn, dataset=dataset, parent=parent, status="open", n=e.n, gated=gated)


def _check_commit(d: _Draft, e: Entry, record: VersionRecord) -> None:
    txn = d.txns[record.txn]
    newest = next((v for v in reversed(d.versions(record.dataset)) if v.retired is None), None)
    newest_id = newest.id if newest else None
    last_deny = d.denies[-1].n if d.denies else 0
    if txn.status != "open":
        _refuse(e, f"transaction {txn.txn} is {txn.status}, not open")
    if txn.gated and not _optional_text(e, "verdict"):
        _refuse(e, f"transaction {txn.txn} is gated, and it names no verdict")
    if txn.dataset != record.dataset:
        _refuse(e, f"transaction {txn.txn} belongs to {txn.dataset}, not {record.dataset}")
    if record.number != len(d.versions(record.dataset)) + 1:
        _refuse(e, f"number {record.number}, expected {len(d.versions(record.dataset)) + 1}")
    if record.parent != newest_id:
        _refuse(e, f"parent {record.parent}, but the newest version was {newest_id}")
    if record.denies != last_deny:
        _refuse(e, f"applied takedowns up to entry {record.denies}, expected {last_deny}")
    if record.id != f"v-{record.sha256}":
        _refuse(e, f"id {record.id} does not belong to a manifest with sha256 {record.sha256}")
    if record.id in d.ids:
        _refuse(e, f"id {record.id} belongs to {'@'.join(map(str, d.ids[record.id]))}")


def _commit(d: _Draft, e: Entry) -> None:
    record = VersionRecord(
        dataset=_text(e, "dataset"),
        number=_integer(e, "number"),
        id=_text(e, "id"),
        manifest=_text(e, "manifest"),
        sha256=_text(e, "sha256"),
        parent=_optional_text(e, "parent"),
        txn=_text(e, "txn"),
        denies=_integer(e, "denies"),
        n=e.n,
    )
    if record.txn not in d.txns:
        _refuse(e, f"transaction {record.txn} was never begun")
    _check_commit(d, e, record)
    d.versions(record.dataset).append(record)
    d.ids[record.id] = (record.dataset, record.number)
    d.txns[record.txn] = replace(d.txns[record.txn], status="committed", number=record.number)


def _abort(d: _Draft, e: Entry) -> None:
    txn = d.txns.get(_text(e, "txn"))
    if txn is None or txn.status != "open":
        status = "never begun" if txn is None else txn.status
        _refuse(e, f"transaction {_text(e, 'txn')} is {status}, not open")
    d.txns[txn.txn] = replace(txn, status="aborted", reason=_text(e, "reason"))


def _target(d: _Draft, e: Entry) -> VersionRecord | None:
    number, versions = _integer(e, "number"), d.versions(_text(e, "dataset"))
    return versions[number - 1] if 1 <= number <= len(versions) else None


def _retire(d: _Draft, e: Entry) -> None:
    record = _target(d, e)
    if record is None or record.id != _text(e, "id"):
        _refuse(e, f"{e.body['dataset']} has no version {e.body['number']} with that id")
    if record.retired is not None:
        _refuse(e, f"{record.name} was retired before")
    d.versions(record.dataset)[record.number - 1] = replace(record, retired=_text(e, "reason"))


def _ref(d: _Draft, e: Entry) -> None:
    record, name, kind = _target(d, e), _text(e, "name"), _text(e, "ref_kind")
    if record is None or record.retired is not None:
        _refuse(e, f"{e.body['dataset']} has no live version {e.body['number']} to name")
    if kind not in ("tag", "alias"):
        _refuse(e, f"ref_kind {kind!r}, expected 'tag' or 'alias'")
    before = d.refs.get((record.dataset, name))
    if before is not None and (before.ref_kind == "tag" or kind == "tag"):
        _refuse(e, f"{before.ref_kind} {name} of {before.dataset}@{before.number} cannot become a {kind}")
    if e.body.get("was") != (before.number if before else None):
        _refuse(e, f"{name} named {before.number if before else None}, not {e.body.get('was')!r}")
    ref_kind: RefKind = "tag" if kind == "tag" else "alias"
    d.refs[record.dataset, name] = Ref(
        dataset=record.dataset, name=name, ref_kind=ref_kind, number=record.number
    )


def _deny(d: _Draft, e: Entry) -> None:
    hashes = e.body.get("hashes")
    if not (isinstance(hashes, list) and hashes and all(isinstance(h, str) for h in hashes)):
        _refuse(e, "hashes is not a list of text with at least one item")
    texts = {name: _optional_text(e, name) or "" for name in ("salt", "reason", "by")}
    d.denies.append(Deny(n=e.n, hashes=tuple(hashes), scope=_text(e, "scope"), **texts))


def _hold(d: _Draft, e: Entry) -> None:
    record, by, action = _target(d, e), _text(e, "by"), _text(e, "action")
    if record is None or record.id != _text(e, "id"):
        _refuse(e, f"{e.body['dataset']} has no version {e.body['number']} with that id")
    if action == "place":
        if record.retired is not None:
            _refuse(e, f"{record.name} was retired: a collector may be deleting it")
        hold = Hold(n=e.n, dataset=record.dataset, number=record.number, by=by, why=_text(e, "why"))
        d.holds.append(hold)
    elif action == "release":
        kept = [
            one for one in d.holds if (one.dataset, one.number, one.by) != (record.dataset, record.number, by)
        ]
        if len(kept) == len(d.holds):
            _refuse(e, f"{by!r} does not hold {record.name}")
        d.holds = kept
    else:
        _refuse(e, f"action {action!r}, expected 'place' or 'release'")


def _mirror(d: _Draft, e: Entry) -> None:
    _text(e, "url")
    if _integer(e, "upto") >= e.n:
        _refuse(e, f"it reports a copy up to entry {e.body['upto']}, which comes later")
    d.mirrors.append({**e.body, "n": e.n})


def _primary(d: _Draft, e: Entry) -> None:
    url, was, token, gone = _text(e, "url"), _text(e, "was"), _text(e, "token"), e.body.get("gone", False)
    if not (url and token and type(gone) is bool):
        _refuse(e, f"url {url!r}, token {token!r}, gone {gone!r}: text that is not empty, and true or false")
    if d.primary is not None and d.primary.token == token:
        _refuse(e, f"its token belongs to entry {d.primary.n}")
    d.primary = Primary(n=e.n, url=url, was=was, token=token, gone=gone)
    # From now on the former primary is a mirror, and the new primary is not.
    others = [one for one in d.mirrors if one["url"] != url]
    d.mirrors = others if gone else [*others, {"kind": "mirror", "url": was, "upto": e.n - 1, "n": e.n}]


_FOLDS: dict[str, Callable[[_Draft, Entry], None]] = {
    "begin": _begin,
    "gated": _begin,
    "commit": _commit,
    "abort": _abort,
    "retire": _retire,
    "ref": _ref,
    "deny": _deny,
    "hold": _hold,
    "mirror": _mirror,
    "primary": _primary,
}
