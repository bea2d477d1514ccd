"""What it means that a file cannot be read which says what a version is made of: that nothing may be deleted, or that a
collector took it.

Only what a collector may have taken is passed over: files that are missing, of a retired version that leases alone
keep, which may have come back to life in the middle of a sweep. What the log keeps no collector takes, unless its files
are on the record of what was swept, as those of a version that was given up.
"""

import logging
from collections import defaultdict
from collections.abc import Collection

from loader.dataset.history import State, VersionRecord
from loader.errors import Corrupt, ObjectNotFound
from loader.storage import Store

from .swept import read_swept

logger = logging.getLogger(__name__)


def claims(state: State, condemned: Collection[str] = ()) -> dict[str, list[str]]:
    """id -> who keeps it, in words, of the versions that the log keeps though they be retired: those with a tag, an
    alias or a hold, and the parents of open transactions. condemned: as for `protected`."""
    found: dict[str, list[str]] = defaultdict(list)
    for ref in state.refs.values():
        record = state.version(ref.dataset, ref.number)
        if record is not None and record.id not in condemned:
            found[record.id].append(f"{ref.ref_kind} {ref.name!r}")
    for hold in state.holds:
        record = state.version(hold.dataset, hold.number)
        if record is not None:
            found[record.id].append(f"a hold by {hold.by!r}")
    for txn in state.txns.values():
        if txn.status == "open" and txn.parent:
            found[txn.parent].append(f"open transaction {txn.txn}, as its parent")
    return dict(found)


class Lost:
    """Of the versions that stay, by this state. condemned: as for `protected`; mirror: whether the store is one, to
    which what was retired first may never have been copied, as to a root that became the primary later."""

    def __init__(self, store: Store, state: State, condemned: Collection[str], *, mirror: bool) -> None:
        self._store, self._claims = store, claims(state, condemned)
        moved = 0 if state.primary is None else state.primary.n
        self._copied = state.n if mirror else moved

    def rank(self, record: VersionRecord) -> int:
        """Of two versions that share a file, the one with the higher rank decides what is to be done without it: 2 for
        one that can be opened, 1 for one that is retired and the log keeps, 0 for one that leases alone do."""
        return 2 if record.retired is None else int(record.id in self._claims)

    def without(self, record: VersionRecord, path: str, error: ObjectNotFound | Corrupt) -> None:
        """The file of this version cannot be read: log that it is done without, or raise the error, with what to do."""
        if (
            isinstance(error, ObjectNotFound)
            and record.retired is not None
            and self._may_be_gone(record, path)
        ):
            logger.warning("%s is retired and %s is gone; what that names is not kept", record.name, path)
            return
        error.add_note(self._what_to_do(record))
        raise error

    def _may_be_gone(self, record: VersionRecord, path: str) -> bool:
        if record.id not in self._claims or record.n <= self._copied:
            return True
        return any(path in table["key"].to_pylist() for table in read_swept(self._store))

    def _what_to_do(self, record: VersionRecord) -> str:
        who = self._claims.get(record.id, [])
        if record.retired is None:
            is_kept, end = "can be opened", "retire the version"
        else:
            is_kept = f"is retired and kept by {', '.join(who or ['a lease'])}"
            end = f"release its holds, abort its transactions, and penstock gc sweep --give-up {record.name}"
        return (
            f"{record.name} {is_kept}, and what it is made of cannot be told, so nothing is collected: restore the "
            f"file from a mirror or a versioned bucket; where it is nowhere, {end}"
        )
