"""The log's content as values: transactions, versions, refs, takedowns, and the `State` that holds them.

`fold.py` makes a state of the log's entries, `rules.py` says what may be appended to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["open", "committed", "aborted"]
RefKind = Literal["tag", "alias"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Txn:
    """A transaction of the log."""

    txn: str
    """Name of the transaction."""
    dataset: str
    """Dataset that it adds a version to."""
    parent: str | None
    """Id of the version that it pinned as its parent; None for none."""
    status: Status
    """State of the transaction."""
    number: int | None = None
    """Number of the version that it committed; None for none."""
    reason: str | None = None
    """Reason of its abort; None for none."""
    n: int
    """Number of its begin entry."""
    gated: bool = False
    """True where its commit has to name a verdict (`publishing/gate.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    """A committed version, as the log knows it."""

    dataset: str
    """Name of the dataset."""
    number: int
    """Number of the version, from 1."""
    id: str
    """"v-" and 64 hex."""
    manifest: str
    """Path of the manifest in the root."""
    sha256: str
    """Sha256 hex of the manifest's bytes."""
    parent: str | None
    """Id of the version that it goes on from; None for none."""
    txn: str
    """Transaction that committed it."""
    denies: int
    """Number of the last deny entry that was applied to it; 0 for none."""
    n: int
    """Number of its commit entry."""
    retired: str | None = None
    """Reason of its retirement; None while it lives."""

    @property
    def name(self) -> str:
        """Reference as a person types it: 'photos@3'."""
        return f"{self.dataset}@{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """A tag (never moves) or an alias (moves) of a dataset."""

    dataset: str
    """Name of the dataset."""
    name: str
    """Name of the tag or alias."""
    ref_kind: RefKind
    """"tag" or "alias"."""
    number: int
    """Number of the version that it names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deny:
    """A takedown: keyed hashes that every later commit has to redact (`denies.py` makes and tests them)."""

    n: int
    """Number of its entry."""
    hashes: tuple[str, ...]
    """The keyed hashes."""
    scope: str
    """Kinds of the hashed values, with a space between."""
    salt: str = ""
    """Key of the hashes, hex."""
    reason: str = ""
    """Reason of the takedown."""
    by: str = ""
    """Person who asked for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Somebody's wish that a version's bytes stay."""

    n: int
    """Number of the entry that placed it."""
    dataset: str
    """Name of the dataset."""
    number: int
    """Number of the version."""
    by: str
    """A person, a job or a matter."""
    why: str
    """Reason, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Primary:
    """A move of the root: the history goes on in another root behind an entry."""

    n: int
    """Number of the last entry before the move."""
    url: str
    """URL of the root where the history goes on."""
    was: str
    """URL where the history was written before."""
    token: str
    """Token in the marker of the root at `url`."""
    gone: bool = False
    """True where the former root could not be asked: it may have had entries that are not here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The whole history up to entry n. It is treated as immutable: its mappings are never changed after it is made."""

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
    """Takedowns, by entry."""
    holds: tuple[Hold, ...] = ()
    """Holds that were not released, oldest first."""
    mirrors: tuple[Mapping[str, object], ...] = ()
    """Bodies of the mirror entries, with "n"."""
    primary: Primary | None = None
    """Last move of the root; None where it was never moved."""
    vouched: int = field(default=0, compare=False)
    """The last entry behind which the next one says the checksum of the state; 0 without any."""

    @property
    def last_deny(self) -> int:
        """The number of the newest deny entry, 0 without one: what a commit has to have applied."""
        return self.denies[-1].n if self.denies else 0

    def versions(self, dataset: str) -> tuple[VersionRecord, ...]:
        """Return every version of the dataset, retired ones too; empty for a dataset that has none."""
        return self.datasets.get(dataset, ())

    def version(self, dataset: str, number: int) -> VersionRecord | None:
        """Return version `number` of the dataset, retired or not, or None."""
        versions = self.versions(dataset)
        return versions[number - 1] if 1 <= number <= len(versions) else None

    def newest(self, dataset: str) -> VersionRecord | None:
        """Return the newest version that is not retired: `latest`, and the only parent a commit may have."""
        return next((v for v in reversed(self.versions(dataset)) if v.retired is None), None)

    def by_id(self, version_id: str) -> VersionRecord | None:
        """Return the version with exactly this id, or None."""
        return self.version(*self.ids[version_id]) if version_id in self.ids else None

    def holds_of(self, dataset: str, number: int) -> tuple[Hold, ...]:
        """Return the holds of a version, oldest first; empty for none."""
        return tuple(one for one in self.holds if (one.dataset, one.number) == (dataset, number))

    def committed(self, txn: str) -> VersionRecord | None:
        """Return the version that the transaction committed, or None."""
        known = self.txns.get(txn)
        return None if known is None or known.number is None else self.version(known.dataset, known.number)
