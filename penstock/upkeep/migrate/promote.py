"""Cut over: a mirror becomes the primary, and the primary its mirror.

A killed run is continued by the next. Two roots never accept appends at the same time:

1. Update and verify the mirror, and prove that its store never creates an object twice.
2. Close the primary's log with a `primary` entry. A later writer must find the entry's token in its root's marker.
3. Update the mirror again; the log with that entry comes last.
4. Write the token into the mirror's marker, which makes it the primary.
5. Write `mirror_of` into the former primary's marker.
"""

from dataclasses import dataclass

from loader import Root
from loader.dataset.log.append import append
from loader.dataset.log.entries import entry_key
from loader.dataset.log.log import Log
from loader.dataset.log.marker import MIRROR_OF, check_root, is_primary, prove_create_only
from loader.dataset.log.mirror_rules import decide_primary
from loader.dataset.root import root_in_store
from loader.errors import Conflict, Corrupt
from loader.storage import Store

from ..copying.copy_many import Copies
from ..copying.items import Pace
from ..verify.log import check_log
from ..verify.root import verify_root
from .mirror_update import MigrationReport, last_copied_entry, make_mirror_of, make_primary, migrate

HINTS = "log/state-"


@dataclass(slots=True, kw_only=True)
class Promotion(Copies):
    """Result of a promotion."""

    former: str
    """URL of the former primary; the target's own if that is lost."""
    closed: int = 0
    """Number of the log entry that closed the former primary, or 0."""
    promoted: bool = False
    """True once the target is the primary."""
    entries: int = 0
    """Entries in the target's log."""
    open_txns: tuple[str, ...] = ()
    """Ids of uncommitted transactions, which must be started again."""

    def to_text(self) -> str:
        lines = self.lines()
        if self.promoted:
            lines.append(f"{self.target} is the primary from log entry {self.closed} on: write there")
            lines.append(
                f"{self.former} is a mirror of it now"
                if self.former != self.target
                else "the former primary was not asked: its later entries are lost, and if it comes back, run "
                "`penstock migrate run` to make a mirror of it before anyone writes there"
            )
        elif self.closed:
            lines.append(
                f"{self.former} is closed (log entry {self.closed}) and no writer can publish yet: run this again"
            )
        else:
            lines.append(f"{self.former} is still the primary: nothing was moved")
        if self.open_txns:
            lines.append(f"{len(self.open_txns)} transactions were not committed: begin them again there")
        return "\n".join(lines)


def promote(
    root: Root, target: Store, pace: Pace, *, at_once: int = 16, scratch: str | None = None
) -> Promotion:
    """Make the mirror at `target` the primary, and the former primary its mirror.

    Raises: Conflict if the root is a mirror or is moving elsewhere, or the target is not its mirror; InvalidStore,
    before anything is closed, if the target's creates are not exclusive; as `migrate` and `verify_root`.
    """
    source = root.store
    state = root.state
    done = Promotion(target=target.url, former=source.url)
    moved = state.primary
    if is_verified := is_primary(source, state):
        if not last_copied_entry(source, target):  # a mistyped URL would close the primary for good
            message = (
                f"{target.url} is not a mirror of {source.url} yet: check the URL, or run penstock migrate run "
                f"{target.url} first; nothing was moved"
            )
            raise Conflict(message, what="target", where=target.url, accepted=f"a mirror of {source.url}")
        if not _copy(done, migrate(root, target, pace, at_once=at_once, scratch=scratch)):
            return done
        if not _verify(done, target):
            return done
        prove_create_only(target)  # as at a root's first publish; the next line cannot be undone
        moved = root.log.move(target.url)
    elif moved is None:
        message = (
            f"{source.url} is a mirror of {root.mirror_of}: give the primary as --root; where it is gone for good, "
            "--primary-is-gone"
        )
        raise Conflict(message, what="root", where=source.url, given=root.mirror_of, accepted="the primary")
    done.closed = moved.n
    if not _is_promoted(target):
        if moved.url != target.url:
            message = (
                f"{source.url} is on its way to {moved.url} (log entry {moved.n}) and not to {target.url}: run "
                f"penstock migrate promote {moved.url}"
            )
            raise Conflict(message, what="target", where=source.url, given=target.url, accepted=moved.url)
        if not _copy(done, migrate(root, target, pace, at_once=at_once, scratch=scratch)):
            return done
        # The mirror must have the very entry that closed the primary.
        if target.get(entry_key(moved.n)).data != source.get(entry_key(moved.n)).data:
            raise Conflict(f"{target.url}/{entry_key(moved.n)} is not the entry of {source.url}")
        if not is_verified and not _verify(done, target):
            return done
        make_primary(target, moved.token)
    # Last: until now, its log has kept writers away from the former primary.
    make_mirror_of(source, target.url)
    return _promote(done, target)


def promote_alone(target: Store) -> Promotion:
    """Make a mirror the primary after its primary is lost for good, with all versions that were not copied.

    A former primary that comes back must become a mirror (`migrate`) before a writer uses it.

    Raises: Conflict if the target is not a mirror; Corrupt if its log is damaged; NotARoot; InvalidStore if its creates
    are not exclusive.
    """
    marker = check_root(target)
    state = Log(target).state
    done = Promotion(target=target.url, former=target.url)
    moved = state.primary
    if MIRROR_OF not in marker and not (moved is not None and is_primary(target, state)):
        message = f"{target.url} is not a mirror: its marker names no primary"
        raise Conflict(message, what="marker", where=target.url, accepted="a mirror")
    if MIRROR_OF in marker:
        if moved is None or moved.url != target.url:  # otherwise it was already moving here
            for problem in check_log(target, set(), set())[1]:  # other lost objects stay lost
                raise Corrupt(f"{target.url}/{problem.address}: {problem.what}")
            prove_create_only(target)
            was = str(marker[MIRROR_OF])
            state = append(target, state, lambda _: decide_primary(target.url, was, unreachable=True)).state
            moved = state.primary
        assert moved is not None
        make_primary(target, moved.token)
    assert moved is not None
    done.closed = moved.n
    return _promote(done, target)


def _is_promoted(target: Store) -> bool:
    try:
        there = Log(target).state
    except Corrupt:
        return False
    return there.primary is not None and is_primary(target, there)


def _copy(done: Promotion, report: MigrationReport) -> bool:
    done.copied += report.copied
    done.nbytes += report.nbytes
    done.skipped += report.skipped
    done.failures = report.failures
    done.entries = report.entries
    return not report.failures


def _verify(done: Promotion, target: Store) -> bool:
    with root_in_store(target) as mirror:
        problems = verify_root(mirror).problems
    # A damaged hint must not stop a promotion: hints only save reads.
    done.failures = {one.address: one.what for one in problems if not one.address.startswith(HINTS)}
    return not done.failures


def _promote(done: Promotion, target: Store) -> Promotion:
    state = Log(target).state
    done.promoted = is_primary(target, state)
    done.entries = state.n
    done.open_txns = tuple(txn.txn for txn in state.txns.values() if txn.status == "open")
    return done
