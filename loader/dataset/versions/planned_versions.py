"""Open versions whose ids are known or guessed in two rounds of requests. A stored plan has ids; a name has a guess.

    1. the log's entries; the lease; the manifests, at the paths of the start notes
    2. the log's end; the tables of shards, at the paths in the manifests

Round 2 reads the log after the lease is stored, as `Root.open` does. A version that this log has and does not retire is
opened from the path in its record, and the id is the hash of those bytes. So the notes only decide what comes early.
Rejected: reading indexes beside round 2. It would save one more round, but could open a retired version.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import PenstockError
from ...storage.threads import DaemonPool, Together, in_background
from ..log.dataset_starts import Guess, read_dataset_start
from ..log.refs import ParsedRef, explain_mirror_lag, parse_ref, resolve
from ..log.start_notes import plan_version_ids, read_start
from ..log.state import State
from ..tables.manifest import read_record_manifest
from .version import Version

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ...storage import Store
    from ..log.leases import Lease
    from ..log.log import Log
    from ..log.marker import Marker
    from ..log.state import VersionRecord


class OpeningRoot(Protocol):
    """The parts of a root by which `planned_versions` opens versions early."""

    _marker: "Marker"
    _log: "Log"
    _lease: "Lease"

    @property
    def store(self) -> "Store": ...

    @property
    def state(self) -> State: ...

    def record(self, ref: str, *, retired: bool = False) -> "VersionRecord": ...

    def _open(self, record: "VersionRecord", *, retired: bool = False) -> Version: ...

    def _read(self, record: "VersionRecord", manifest: dict[str, Any] | None = None) -> Version: ...


@contextmanager
def ahead_of_plan(root: "OpeningRoot", plan: str) -> Iterator[Callable[[object], dict[str, Version]]]:
    """Request the marker, the log's listing and the start notes; yield a function that opens a plan's versions.

    It returns version id -> version, as `root.open` returns it, for the plan's JSON; an id that `root.open` refuses is
    left out. It raises errors of the whole root: as `root.state`.
    """
    with (
        in_background(root._log.list_ahead) as listing,
        in_background(read_start, root.store, plan) as notes,
    ):

        def open_planned(body: object) -> dict[str, Version]:
            ids = plan_version_ids(body)
            if not ids:  # a plan of other data may lie in a location that is not a root
                return {}
            listing.result()  # before the lease: only a root gets one
            return _open_together(root, ids, notes.result())

        yield open_planned


def open_guessed(root: "OpeningRoot", ref: str) -> Version:
    """Return the version that a ref names, read early if the dataset's start has it.

    A wrong guess costs an object that is read in vain. Raises: as `Root.open`.
    """
    parsed = parse_ref(ref)
    if parsed.dataset is None:
        return root._open(root.record(ref))
    with (
        in_background(root._log.list_ahead) as listing,
        in_background(read_dataset_start, root.store, parsed.dataset) as start,
    ):
        listing.result()  # before the lease: only a root gets one
        name = parsed.name or str(parsed.number)
        guess = start.result().get(name)
    if guess is None:
        return root._open(root.record(ref))
    return _open_guess(root, parsed, guess)


def _open_guess(
    root: "OpeningRoot",
    ref: ParsedRef,
    guess: Guess,
) -> Version:
    id, path = guess
    lease = root._lease
    version = None
    with Together(root.store, [path]) as store, in_background(lease.propose, [id]) as claim:
        try:
            state = root.state
            is_new = claim.result()
            with explain_mirror_lag(root.store, root._marker, state):
                record = resolve(state, ref)
            if record.id == id:
                with in_background(_read, root, store, state, id) as reading:
                    if is_new:
                        # A lease protects only from later retirements: read the log again.
                        resolve(root.state, id)
                    version = reading.result()
        except Exception:  # not Ctrl-C, as in `_open_together`
            claim.exception()
            lease.withdraw([id])
            raise
    if version is None:
        lease.drop([id])
        return root._open(record)
    lease.confirm([id])
    version.reader = root  # keeps the lease while the root or the version is alive
    return version


def _open_together(
    root: "OpeningRoot",
    ids: Sequence[str],
    paths: Mapping[str, str],
) -> dict[str, Version]:
    """Return id -> version, without ids that cannot be opened. paths: id -> path of its manifest; may be wrong."""
    lease = root._lease
    manifest_paths = [paths[id] for id in ids if id in paths]
    opened: dict[str, Version] = {}
    with Together(root.store, manifest_paths) as store, in_background(lease.propose, ids) as claim:
        try:
            state = root.state
            is_new = claim.result()
            with _reads(root, store, state, ids) as reading:
                if is_new:
                    # A lease protects only from later retirements: read the log again.
                    state = root.state
                for id, future in reading.items():
                    with suppress(PenstockError):  # `root.open` raises it
                        resolve(state, id)
                        opened[id] = future.result()
        except Exception:  # not Ctrl-C, which waits for no request: closing the root releases the claim
            claim.exception()  # a claim that is being written is withdrawn after that
            lease.withdraw(ids)
            raise
        lease.confirm(opened)
        lease.withdraw(ids)  # only ids that were not opened: `confirm` has ended the other proposals
    for version in opened.values():
        version.reader = root  # keeps the lease while the root or a version is alive
    return opened


@contextmanager
def _reads(
    root: "OpeningRoot",
    store: Together,
    state: State,
    ids: Sequence[str],
) -> "Iterator[dict[str, Future[Version]]]":
    """Yield id -> future of the version with its small tables. Leaving the block does not wait."""
    pool = DaemonPool(len(ids), "penstock-planned")
    try:
        yield {id: pool.submit(copy_context().run, _read, root, store, state, id) for id in ids}
    finally:
        pool.dismiss()


def _read(
    root: "OpeningRoot",
    store: Together,
    state: State,
    id: str,
) -> Version:
    """Return a version of the log with its small tables. store: has some manifests already."""
    record = resolve(state, id)
    manifest = read_record_manifest(store, record)
    return root._read(record, manifest)
