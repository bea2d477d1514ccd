"""`penstock takedown prove`: check everything that had, or may have, denied samples.

If one check is not clean, the proof is "incomplete". Names are keyed hashes, as in the log.
`examples/recheck_takedown.py` repeats the checks without penstock.
"""

import hashlib
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from loader import Root
from loader.errors import InvalidRuntime, ObjectNotFound, PenstockError
from loader.storage import Store, is_there

from ...denied.denied_bytes import check_registered
from ...denied.find import Findings, all_datasets, find
from ...denied.record import Place, TakedownRecord, read_record
from ...progress import progress
from .mirrors import mirror_places
from .near_saves import near_places
from .peer_pages import peer_places
from .raw_objects import shared_marks
from .remains import cache_places, noncurrent
from .scan import scan_objects
from .takedown_run import deny_entry, keys_tables

if TYPE_CHECKING:
    from ...compute.cluster import Cluster

FORMAT = 1
NOT_LOOKED_AT = ("retired", "replaced", "remade", "trained")
"""Recorded checks that the version check, the scan and the search for checkpoints cover."""
Proof = dict[str, Any]


def prove(
    root: Root,
    n: int,
    *,
    mirrors: Sequence[str] = (),
    caches: Sequence[str] = (),
    cache_peers: Sequence[str] = (),
    known: Sequence[str] = (),
    keeps_nothing: Sequence[str] = (),
    s3: Any = None,
    cluster: "Cluster | None" = None,
) -> Proof:
    """Check everything that a takedown recorded; return the proof as JSON.

    Costs a check per recorded object, and a read of every table and JSON object under the root.

    mirrors: URLs of reachable mirrors. caches: folders of node caches.
    cache_peers: lists of servers of a cluster's cache.
    known: copies outside penstock, such as "backups until 2026-12-24".
    keeps_nothing: URLs of stores whose operators state that they keep nothing of deleted objects.
    s3: boto3 client for the root's bucket; None: default credentials.
    cluster: reads tables and JSON objects; None: this process.

    Raises: TakedownNotFound; InvalidRuntime if `keeps_nothing` names an unchecked store.
    """
    if other := sorted(set(keeps_nothing) - {root.url, *mirrors}):
        stores = ", ".join([root.url, *mirrors])
        message = f"--keeps-nothing {other[0]} is none of the checked stores: {stores}"
        raise InvalidRuntime(message, what="--keeps-nothing", given=other[0], accepted=[root.url, *mirrors])
    deny = deny_entry(root, n)
    record = read_record(root.store, n)
    tables = keys_tables(root, deny, cluster)
    findings = [find(tables, name, record.marks.get(name, ())) for name in all_datasets(root)]
    marks = {one.dataset: one.marks for one in findings}
    verdicts = None
    if cluster is not None:
        from .scan_job import scan_on_cluster

        verdicts = partial(scan_on_cluster, cluster, root, record, findings)
    shared = shared_marks(root, deny, [one for one in record.having("raw") if not one["deleted"]])
    places = [
        *_versions(root, record, findings),
        *(
            _examine(root.store, place, shared)
            for place in progress(record.places, f"prove {n}")
            if place["check"] not in NOT_LOOKED_AT
        ),
        *scan_objects(root, record, marks, verdicts),
        *cache_places(record, caches, root),
        *peer_places(record, cache_peers),
        *mirror_places(root, record, mirrors, keeps_nothing),
        *noncurrent(root.store, record.paths, s3, stated=root.url in keeps_nothing),
        *_checkpoints(root.store, record),
        *near_places(record, caches, cache_peers),
        *(
            # No check of penstock reaches these copies, so they keep the proof incomplete.
            {"check": "told", "what": what, "clean": False, "why": "named by the author of this proof"}
            for what in known
        ),
    ]
    return {
        "format": FORMAT,
        "takedown": n,
        "root": root.url,
        "at_us": time.time_ns() // 1000,
        # With the salt, the recheck hashes names as the log does, without penstock.
        "salt": deny.salt,
        "scope": deny.scope,
        "hashes": sorted(deny.hashes),
        "marks": {name: list(hashes) for name, hashes in record.marks.items()},
        "shared": {name: sorted(one.others) for name, one in marks.items()},
        "datasets": list(marks),
        "txns": {one.txn: one.dataset for one in root.state.txns.values()},
        "places": places,
        "result": "complete" if all(place["clean"] for place in places) else "incomplete",
    }


def _versions(root: Root, record: TakedownRecord, findings: Iterable[Findings]) -> Iterator[Place]:
    ids = record.versions().union(version.id for one in findings for version in one.versions)
    for id in sorted(ids):
        version = root.record(id, retired=True)
        place = {"check": "retired", "what": f"version {version.name}", "of": version.dataset, "id": id}
        if version.retired is None:
            yield {**place, "clean": False, "why": "it is not retired: penstock takedown run --apply"}
        else:
            yield {
                **place,
                "clean": True,
                "evidence": "retired in the log; its objects are places of their own",
            }


def _examine(store: Store, place: Place, shared: Collection[str]) -> Place:
    try:
        if place["check"] == "absent":
            return _absent(store, place)
        if place["check"] == "zeros":
            return _zeros(store, place)
    except PenstockError as error:
        return {**place, "clean": False, "why": f"it could not be checked: {type(error).__name__}"}
    if place["check"] == "registered":
        return check_registered(store, place)
    if place["deleted"]:
        return {**place, "clean": True, "evidence": "deleted by the takedown (--delete-raw)"}
    if place["mark"] in shared:
        evidence = "left at its source: samples that no takedown denies were cut from it, or will be"
        return {**place, "clean": True, "evidence": evidence}
    why = "left at its source, which penstock does not own: delete it there"
    return {**place, "clean": False, "why": why}


def _absent(store: Store, place: Place) -> Place:
    if is_there(store, place["path"]):
        return {
            **place,
            "clean": False,
            "why": "still there: penstock gc deletes it after its grace, unless a hold, lease or object lock keeps it",
        }
    return {**place, "clean": True, "evidence": "no object at this path"}


def _zeros(store: Store, place: Place) -> Place:
    digest = hashlib.sha256()
    try:
        for offset, nbytes in place["ranges"]:
            for start in range(offset, offset + nbytes, _BLOCK):
                data = store.get_range(place["path"], start, min(_BLOCK, offset + nbytes - start)).data
                if data.count(0) != len(data):
                    return {**place, "clean": False, "why": f"bytes from {start} on are not zeros"}
                # Evidence that another person can compute again.
                digest.update(data)
    except ObjectNotFound:
        return {**place, "clean": True, "evidence": "no object at this path"}
    return {
        **place,
        "clean": True,
        "evidence": f"sha256 of the ranges' bytes, all zeros: {digest.hexdigest()}",
    }


# A range may be a whole shard: its bytes are read in blocks, to bound the memory.
_BLOCK = 2**24


def _checkpoints(store: Store, record: TakedownRecord) -> Iterator[Place]:
    ids = [one.encode() for one in sorted(record.versions())]
    for info in store.list("checkpoints/") if ids else ():
        if "/steps/" in info.key and any(one in store.get(info.key).data for one in ids):
            yield {
                "check": "told",
                "what": "a checkpoint of a model that was trained on a version with the samples",
                "path": info.key,
                "clean": False,
                "why": "models are not changed: delete it, or train again, where that is asked for",
            }
