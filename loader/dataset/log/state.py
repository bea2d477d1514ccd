"""What the log says, as values: transactions, versions, refs, takedowns, and the `State` that holds them.

`fold.py` makes a state of the log's entries, `decide.py` says what may be appended to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["open", "committed", "aborted"]
RefKind = Literal["tag", "alias"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Txn:
    """A transaction: the dataset it will add a version to and the version id it pinned as its parent.

    number: of the version it committed, else None; reason: why it was aborted, else None; n: its begin entry;
    gated: its commit has to name a verdict (`gated.py`).
    """

    txn: str
    dataset: str
    parent: str | None
    status: Status
    number: int | None = None
    reason: str | None = None
    n: int
    gated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    """A committed version, as the log knows it.

    id: 'v-' + 64 hex; manifest: its path in the root, sha256: of its bytes; denies: number of the last deny
    entry that was applied to it (0: none); n: its commit entry; retired: the reason, None while it lives.
    """

    dataset: str
    number: int
    id: str
    manifest: str
    sha256: str
    parent: str | None
    txn: str
    denies: int
    n: int
    retired: str | None = None

    @property
    def name(self) -> str:
        """What a person types: 'photos@3'."""
        return f"{self.dataset}@{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """A tag (never moves) or an alias (moves) of a dataset, and the version number it names."""

    dataset: str
    name: str
    ref_kind: RefKind
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Deny:
    """A takedown, entry n: keyed hashes that every later commit has to redact (`denied.py` makes and tests them).

    scope: the kinds of what was hashed, with a space between; salt: the key of the hashes, hex; reason, by: why, and
    who asked.
    """

    n: int
    hashes: tuple[str, ...]
    scope: str
    salt: str = ""
    reason: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Somebody's wish that a version's bytes stay. n: the entry that placed it; by: a person, a job, a matter."""

    n: int
    dataset: str
    number: int
    by: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Primary:
    """Where the history goes on behind entry n: in the root at `url`, whose marker says `token`. was: where it was
    written before; gone: whether that could not be asked, and may have had entries that are not here."""

    n: int
    url: str
    was: str
    token: str
    gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The whole history up to entry n. Treated as immutable: its mappings are never changed after it is made.

    prev: sha256 hex of entry n's bytes ("" at n = 0); datasets: versions by number, number i at index i - 1;
    ids: version id -> (dataset, number); holds: those that were not released, oldest first; mirrors: the bodies of
    those entries, with "n"; primary: the last move of the root, None where it was never moved.
    """

    n: int = 0
    prev: str = ""
    txns: Mapping[str, Txn] = field(default_factory=dict)
    datasets: Mapping[str, tuple[VersionRecord, ...]] = field(default_factory=dict)
    ids: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    refs: Mapping[tuple[str, str], Ref] = field(default_factory=dict)
    denies: tuple[Deny, ...] = ()
    holds: tuple[Hold, ...] = ()
    mirrors: tuple[Mapping[str, object], ...] = ()
    primary: Primary | None = None
    vouched: int = field(default=0, compare=False)
    """The last entry behind which the next one says the checksum of the state; 0 without any."""

    @property
    def last_deny(self) -> int:
        """The number of the newest deny entry, 0 without one: what a commit has to have applied."""
        return self.denies[-1].n if self.denies else 0

    def versions(self, dataset: str) -> tuple[VersionRecord, ...]:
        """Every version of the dataset, retired ones too; empty for a dataset that has none."""
        return self.datasets.get(dataset, ())

    def version(self, dataset: str, number: int) -> VersionRecord | None:
        """Version `number` of the dataset, retired or not, or None."""
        versions = self.versions(dataset)
        return versions[number - 1] if 1 <= number <= len(versions) else None

    def newest(self, dataset: str) -> VersionRecord | None:
        """The newest version that is not retired: `latest`, and the only parent a commit may have."""
        return next((v for v in reversed(self.versions(dataset)) if v.retired is None), None)

    def by_id(self, version_id: str) -> VersionRecord | None:
        """The version with exactly this id, or None."""
        return self.version(*self.ids[version_id]) if version_id in self.ids else None

    def holds_of(self, dataset: str, number: int) -> tuple[Hold, ...]:
        """Who holds the version, oldest first; empty for nobody."""
        return tuple(one for one in self.holds if (one.dataset, one.number) == (dataset, number))

    def committed(self, txn: str) -> VersionRecord | None:
        """The version that the transaction committed, or None."""
        known = self.txns.get(txn)
        return None if known is None or known.number is None else self.version(known.dataset, known.number)
