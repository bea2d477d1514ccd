"""The state of a log: transactions, versions, refs, takedowns and holds, as `fold.py` derives them from its entries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["open", "committed", "aborted"]
RefKind = Literal["tag", "alias"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Txn:
    """A transaction, as recorded in the log."""

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
    """True if its commit has to name a verdict (`publishing/publication_gate.py`)."""


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
    """Number of its entry. Later entries are only in the root at `url`."""
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
    last_checksum_n: int = field(default=0, compare=False)
    """Last entry after which the next one holds the state's checksum, or 0: a hint of that state is possible."""

    @property
    def last_deny(self) -> int:
        if not self.denies:
            return 0
        return self.denies[-1].n

    def versions(self, dataset: str) -> tuple[VersionRecord, ...]:
        return self.datasets.get(dataset, ())

    def version(self, dataset: str, number: int) -> VersionRecord | None:
        versions = self.versions(dataset)
        if not 1 <= number <= len(versions):
            return None
        return versions[number - 1]

    def newest(self, dataset: str) -> VersionRecord | None:
        """Return the newest version that is not retired, the only parent a commit may have."""
        return newest_live(self.versions(dataset))

    def by_id(self, version_id: str) -> VersionRecord | None:
        if version_id not in self.ids:
            return None
        dataset, number = self.ids[version_id]
        return self.version(dataset, number)

    def version_holds(self, dataset: str, number: int) -> tuple[Hold, ...]:
        """Return the holds on a version, oldest first."""
        version = (dataset, number)
        return tuple(hold for hold in self.holds if (hold.dataset, hold.number) == version)

    def committed(self, txn: str) -> VersionRecord | None:
        """Return the version that a transaction committed; None for an open, aborted or unknown one."""
        transaction = self.txns.get(txn)
        if transaction is None or transaction.number is None:
            return None
        return self.version(transaction.dataset, transaction.number)


def newest_live(versions: Sequence[VersionRecord]) -> VersionRecord | None:
    """Return the newest version that is not retired. versions: ascending by number."""
    for version in reversed(versions):
        if version.retired is None:
            return version
    return None
