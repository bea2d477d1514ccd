"""Find condemned objects outside `data/`, and delete condemned objects piece by piece, after a final check of each.

Objects under a hold or lock, in another user's folder, or behind a link are skipped.
"""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loader import Root
from loader.dataset.log.leases import Leases
from loader.dataset.log.marker import PROBES
from loader.dataset.log.snapshots import old_hints
from loader.dataset.log.state import State, VersionRecord
from loader.dataset.shards.seals import SEALS
from loader.errors import Forbidden, StoreError, Throttled, Transient
from loader.storage import Store
from loader.storage.disk.unlisted_files import delete_in_place, is_unfinished, list_in_place
from loader.storage.external_shards import FOREIGN
from loader.storage.store import ObjectInfo
from loader.storage.threads import DaemonPool

from ...progress import progress
from ...search.overlap.protected_texts import FOLDER
from ...units import size
from .clients import JOBS, Clients, job_folder
from .condemned_jobs import DESCRIPTION, CondemnedJobs
from .deleted_record import DeletedRecord, PrimaryRecord
from .derived_segments import condemn_segments, is_record, segment_kind
from .needed import References, Tally, Unreadable, protected, references
from .plan import LISTED_ROWS, CollectionPlan

_CARD = re.compile(r"cards/([^/]+)/[0-9]{6}-(v-[0-9a-f]{64})/[^/]+")
_PROTECTED = re.compile(r"protected/(v-[0-9a-f]{64})\.parquet")
_SEAL = re.compile(rf"{SEALS}[0-9a-f]{{64}}\.parquet")
_ADOPTED = re.compile(rf"{FOREIGN}[0-9a-f]{{32}}/.+", re.DOTALL)
_HEARTBEAT = re.compile(r"heartbeats/[^/]+\.json")


class SideObject(NamedTuple):
    """A condemned object outside `data/`. dataset, txn: "" if it has none, or it is not known."""

    info: ObjectInfo
    why: str
    dataset: str = ""
    txn: str = ""


def cards(store: Store, state: State, kept: Mapping[str, object], tally: Tally) -> Iterator[SideObject]:
    """Yield cards of deleted versions. Costs a listing."""
    for info in _in_place(store, "cards/", tally):
        match = _CARD.fullmatch(info.key)
        record = None
        if match:
            record = state.by_id(match[2])
        if record is None:
            tally.add_foreign([info.key], info.nbytes)
        elif record.id not in kept:
            yield SideObject(info, "card of a retired version", record.dataset, record.txn)


def orphan_shingle_tables(
    store: Store,
    state: State,
    kept: Mapping[str, object],
    tally: Tally,
) -> Iterator[SideObject]:
    """Yield tables of deleted versions' shingles. Costs a listing."""
    for info in _in_place(store, FOLDER, tally):
        match = _PROTECTED.fullmatch(info.key)
        record = None
        if match:
            record = state.by_id(match[1])
        if record is None:
            tally.add_foreign([info.key], info.nbytes)
        elif record.id not in kept:
            yield SideObject(info, "shingles of a retired version", record.dataset, record.txn)


def orphan_adopted(store: Store, live: References, tally: Tally) -> Iterator[SideObject]:
    """Yield adopted objects that no kept version needs. Costs a listing."""
    return _orphans(store, FOREIGN, _ADOPTED, "adopted object of no version", live, tally)


def seals(store: Store, live: References, tally: Tally) -> Iterator[SideObject]:
    """Yield seals that no kept version needs. Costs a listing."""
    return _orphans(store, SEALS, _SEAL, "seal of no version", live, tally)


def segments(store: Store, prefix: str, live: References, tally: Tally) -> Iterator[SideObject]:
    """Yield segments that no kept version needs. Costs a listing, and a range or two per segment."""
    infos = []
    for info in _in_place(store, prefix, tally):
        if segment_kind(info.key) is None and not is_record(info.key):
            tally.add_foreign([info.key], info.nbytes)
        else:
            infos.append(info)
    for info, why in condemn_segments(store, infos, live):
        yield SideObject(info, why)


def _orphans(
    store: Store, prefix: str, ours: re.Pattern[str], why: str, live: References, tally: Tally
) -> Iterator[SideObject]:
    """Yield objects under a prefix that nothing references. ours: matches paths that penstock writes there."""
    infos = _in_place(store, prefix, tally)
    # In batches: `within` searches the sorted stretch of paths between two keys, not all paths.
    while batch := list(islice(infos, LISTED_ROWS)):
        keys = pa.array([info.key for info in batch], pa.large_string())
        needed = live.within(keys).to_pylist()
        for info, is_needed in zip(batch, needed, strict=True):
            if not ours.fullmatch(info.key):
                tally.add_foreign([info.key], info.nbytes)
            elif not is_needed:
                yield SideObject(info, why)


def heartbeats(store: Store, state: State, tally: Tally) -> Iterator[SideObject]:
    """Yield heartbeats of finished transactions, and objects left by the doctor's probes. Costs a listing."""
    for info in _in_place(store, "heartbeats/", tally):
        txn = state.txns.get(info.key.removeprefix("heartbeats/").removesuffix(".json"))
        if txn is not None and txn.status != "open":
            yield SideObject(info, "heartbeat of a transaction that is over", txn.dataset, txn.txn)
        elif txn is None and info.key.startswith(PROBES) and not _HEARTBEAT.fullmatch(info.key):
            yield SideObject(info, "probe")
        elif txn is None:
            tally.add_foreign([info.key], info.nbytes)


def jobs(store: Store, clients: Clients, tally: Tally) -> Iterator[SideObject]:
    """Yield objects in dead data jobs' folders. Costs a listing."""
    dead = clients.dead_jobs()
    for info in _in_place(store, JOBS, tally):
        folder = job_folder(info.key)
        if not folder:
            tally.add_foreign([info.key], info.nbytes)
        elif folder in dead:
            yield SideObject(info, "job without a live process")


def leases(store: Store, clients: Clients, tally: Tally) -> Iterator[SideObject]:
    """Yield leases of dead readers. Costs a listing."""
    dead = {one.key for one in clients.dead()}
    for info in _in_place(store, "leases/", tally):
        if info.key in dead:
            yield SideObject(info, "lease of a silent reader")


def hints(store: Store, tally: Tally) -> Iterator[SideObject]:
    """Yield all hints except the newest few. Costs one listing, or two if there are old hints."""
    old = old_hints(store)
    if not old:
        return
    # Without links and unfinished files, which others decide about.
    keys_in_place = {info.key for info in _in_place(store, "log/state-", tally)}
    yield from (SideObject(info, "old hint") for info in old if info.key in keys_in_place)


def abandoned_files(clients: Clients, folder: str) -> Iterator[SideObject]:
    """Yield unfinished files that killed writers left in a folder. Costs no request."""
    for info in clients.files_of_dead():
        if info.key.startswith(folder):
            yield SideObject(info, "file that a killed writer had not finished")


def _in_place(store: Store, prefix: str, tally: Tally) -> Iterator[ObjectInfo]:
    for info, link in list_in_place(store, prefix):
        if link:
            tally.add_foreign([info.key])
        elif not is_unfinished(info.key):
            yield info


def as_table(objects: Iterable[SideObject]) -> pa.Table:
    """Return a table with columns key, nbytes, dataset, txn, why."""
    listed = list(objects)
    text = pa.large_string()
    return pa.table(
        {
            "key": pa.array([item.info.key for item in listed], text),
            "nbytes": pa.array([item.info.nbytes for item in listed], pa.int64()),
            "dataset": pa.array([item.dataset for item in listed], text),
            "txn": pa.array([item.txn for item in listed], text),
            "why": pa.array([item.why for item in listed], text),
        }
    )


AT_ONCE = 16


def delete(store: Store, keys: Sequence[str]) -> dict[str, StoreError]:
    """Delete objects; return key -> error for objects that the store refuses to delete.

    After a refusal each key is deleted by its own request. Raises: Throttled or Transient, which concern the whole
    store.
    """
    # All keys in one bulk request first: refusals are rare.
    if _first_refusal(store, keys) is None:
        return {}
    refused: dict[str, StoreError] = {}
    with DaemonPool(AT_ONCE, "penstock-collect") as pool:
        for start in range(0, len(keys), AT_ONCE):
            batch = keys[start : start + AT_ONCE]
            answers = pool.map(partial(_first_refusal, store), ([key] for key in batch))
            refused |= {key: error for key, error in zip(batch, answers, strict=True) if error is not None}
    return refused


def _first_refusal(store: Store, keys: Sequence[str]) -> StoreError | None:
    try:
        delete_in_place(store, keys)
    # No fault of a key: the next sweep goes on.
    except (Throttled, Transient):
        raise
    except StoreError as error:
        return error
    return None


logger = logging.getLogger(__name__)

Check = Callable[[pa.Table], pa.Table]
NAMED = 10
"""Most too-large or undeletable objects that are named; the rest are counted."""
GIVE_UP = 10_000
"""A sweep that has deleted nothing stops after this many failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Limits on one sweep's deletions."""

    max_objects: int
    """Most objects deleted."""
    max_bytes: int
    """Most bytes deleted; a larger object is skipped."""
    dataset: str | None = None
    """Only dataset to delete from; None: all."""


@dataclass(slots=True)
class SweepResult:
    """The result of a sweep, or of a dry run."""

    objects: int = 0
    """Deleted objects."""
    nbytes: int = 0
    """Bytes of the deleted objects."""
    why: dict[str, int] = field(default_factory=dict)
    """Reason -> number of deleted objects."""
    records: list[str] = field(default_factory=list)
    """Keys of the deletion records."""
    spared: int = 0
    """Objects that the final check found to be needed."""
    capped: bool = False
    """True if more was due than the caps allow."""
    too_large: dict[str, int] = field(default_factory=dict)
    """Key -> bytes, for the first `NAMED` objects larger than `max_bytes`."""
    n_too_large: int = 0
    """Objects larger than `max_bytes`."""
    refused: dict[str, str] = field(default_factory=dict)
    """Key -> error, for the first `NAMED` undeletable objects."""
    n_refused: int = 0
    """Undeletable objects."""


def sweep(
    root: Root,
    plan: CollectionPlan,
    caps: Caps,
    grace_us: int,
    check: Check,
    record: DeletedRecord | PrimaryRecord | None,
    at_us: int,
) -> SweepResult:
    """Delete the objects that are due. Each batch of `ROWS` is rechecked, recorded, then deleted.

    record: None for a dry run. The next sweep finishes a killed one; undeletable objects are skipped. Raises: Forbidden
    if nothing may be deleted; Conflict if the root moved meanwhile.
    """
    done = SweepResult()
    for ripe in progress(plan.due(grace_us), "sweep", lambda table: table.num_rows, caps.max_objects):
        if caps.dataset is not None:
            ripe = ripe.filter(pc.equal(ripe["dataset"], caps.dataset))
        remaining = _small_enough(ripe, caps, done)
        while (piece := _limit_batch(remaining, caps, done)).num_rows:
            remaining = remaining.slice(piece.num_rows)
            # Just before the deletion: a reader or a hold may need it since the plan.
            checked = check(piece)
            done.spared += piece.num_rows - checked.num_rows
            if record is not None and checked.num_rows:
                # The record comes first: a sweep that is killed leaves no deletion without one.
                if key := record.append(checked, at_us):
                    done.records.append(key)
                checked = _delete(root, checked, done)
            done.objects += checked.num_rows
            done.nbytes += pc.sum(checked["nbytes"]).as_py() or 0
            for count in pc.value_counts(checked["why"]).to_pylist():
                done.why[count["values"]] = done.why.get(count["values"], 0) + count["counts"]
        if done.capped:
            break
    if done.n_too_large:
        named = ", ".join(f"{key} ({size(nbytes)})" for key, nbytes in done.too_large.items())
        logger.warning(
            "%s: %d objects that are due were passed over, as each is larger than max_bytes, %s: %s%s; a sweep with a "
            "larger --max-bytes deletes them",
            root.url,
            done.n_too_large,
            size(caps.max_bytes),
            named,
            " ..." if done.n_too_large > len(done.too_large) else "",
        )
    if done.n_refused:
        logger.warning(
            "%s: %d objects that are due could not be deleted, and were passed over: %s%s",
            root.url,
            done.n_refused,
            "; ".join(done.refused.values()),
            "; ..." if done.n_refused > len(done.refused) else "",
        )
    return done


def _delete(root: Root, checked: pa.Table, done: SweepResult) -> pa.Table:
    # Delete descriptions last: without one, results could seem to be another job's.
    last = pc.ends_with(checked["key"], f"/{DESCRIPTION}")
    refused: dict[str, StoreError] = {}
    for piece in (checked.filter(pc.invert(last)), checked.filter(last)):
        if piece.num_rows:
            refused |= delete(root.store, piece["key"].to_pylist())
    if not refused:
        return checked
    done.n_refused += len(refused)
    done.refused |= {key: str(refused[key]) for key in list(refused)[: NAMED - len(done.refused)]}
    deleted = checked.filter(
        pc.invert(pc.is_in(checked["key"], value_set=pa.array(list(refused), pa.large_string())))
    )
    n = done.n_refused
    errors = list(refused.values())
    nothing = not done.objects and not deleted.num_rows
    if nothing and n >= GIVE_UP and all(isinstance(error, Forbidden) for error in errors):
        errors[-1].add_note(
            f"none of the first {n} objects that are due could be deleted; no more were tried"
        )
        raise errors[-1]
    return deleted


def _small_enough(ripe: pa.Table, caps: Caps, done: SweepResult) -> pa.Table:
    too_large = pc.greater(ripe["nbytes"], caps.max_bytes)
    for row in ripe.filter(too_large).select(["key", "nbytes"]).to_pylist():
        done.n_too_large += 1
        if len(done.too_large) < NAMED:
            done.too_large[row["key"]] = row["nbytes"]
    return ripe.filter(pc.invert(too_large))


def _limit_batch(ripe: pa.Table, caps: Caps, done: SweepResult) -> pa.Table:
    # [rows]: bytes that are deleted once this row is, too.
    total = np.cumsum(ripe["nbytes"].to_numpy()) + done.nbytes
    fits = min(int(np.searchsorted(total, caps.max_bytes, "right")), caps.max_objects - done.objects)
    done.capped = fits < ripe.num_rows
    return ripe.slice(0, fits)


def last_look(
    root: Root,
    clients: Clients,
    leases: Leases,
    kept: Mapping[str, VersionRecord],
    condemned: Collection[str],
    *,
    mirror: bool,
) -> Check:
    """Return a filter for objects that are still not needed; it rereads log and leases for each piece.

    kept: versions that stayed when the plan was made. condemned, mirror: as for `Unreadable`. Costs a listing and a
    request if nothing changed, and a listing of jobs if one is condemned.
    """
    jobs = CondemnedJobs(root.store, clients)

    def check(ripe: pa.Table) -> pa.Table:
        state = root.log.refresh()
        living = clients.living(leases.read())
        now = protected(state, living, condemned)
        # A tag, a hold or a lease may have claimed a version since the plan was made.
        back = [record for id, record in now.items() if id not in kept]
        of_versions = (
            key
            for key in ripe["key"].to_pylist()
            if key.startswith(("cards/", FOLDER)) and not is_unfinished(key)
        )
        needed = [one.key for one in living] + [key for key in of_versions if _key_version(key) in now]
        kept_keys = pa.array([*needed, *jobs.active_keys(ripe["key"].to_pylist())], pa.large_string())
        if back:
            lost = Unreadable(root.store, state, condemned, mirror=mirror)
            kept_keys = pa.concat_arrays([kept_keys, references(root.store, back, lost).paths])
        return ripe.filter(pc.invert(pc.is_in(ripe["key"], value_set=kept_keys)))

    return check


def _key_version(key: str) -> str:
    """Return the id of the version that a card or a table of shingles belongs to."""
    match = _CARD.fullmatch(key) or _PROTECTED.fullmatch(key)
    if match is None:
        return ""
    return match.groups()[-1]
