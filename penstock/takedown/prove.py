"""`penstock takedown prove`: every place that had, or may have, what is taken down, looked at now: clean, with what
shows it, or out of reach, with the reason. One place out of reach makes it "incomplete".

Nothing in a proof is plain text: names are keyed hashes, as in the log. `examples/recheck_takedown.py` looks at the
same places again without a line of penstock.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from loader import Root
from loader.dataset.history import Deny
from loader.dataset.parquet import parse_table
from loader.errors import Corrupt, ObjectNotFound, PenstockError, StoreError
from loader.storage import Store, open_store

from ..progress import progress
from .caches import cache_places
from .cells import cell_texts, texts
from .find import all_datasets, find
from .marks import Marks, marks_of
from .noncurrent import noncurrent
from .record import Place, Record, read_record
from .run import deny_entry, is_there

FORMAT = 1
SCANNED = ("data/", "tables/", "stages/", "plans/", "packs/", "ledgers/", "cards/", "takedowns/", "log/")
"""Every table and text under these is held against the hashes, whatever it is."""
Proof = dict[str, Any]


def prove(
    root: Root,
    n: int,
    *,
    mirrors: Sequence[str] = (),
    caches: Sequence[str] = (),
    known: Sequence[str] = (),
    s3: Any = None,
) -> Proof:
    """Look at every place of a takedown. mirrors: URLs of mirrors that can be reached; caches: folders of node caches;
    known: places that somebody knows of and penstock does not, such as "backups until 2026-12-24"; s3: boto3's client
    of the root's bucket (None: one with the environment's credentials).

    Costs a look per place, and a read of every table and JSON object under the root. Raises: VersionNotFound for a
    takedown that was not requested; StoreError.
    """
    deny = deny_entry(root, n)
    record = read_record(root.store, n)
    places = [
        *_versions(root, deny, record),
        *(
            _looked_at(root.store, place)
            for place in progress(record.places, f"prove {n}")
            if place["check"] not in ("retired", "replaced")
        ),
        *_scan(root, deny, record),
        *cache_places(record, caches),
        *_mirrors(root, record, mirrors),
        *noncurrent(root.store, record.paths, s3),
        *_checkpoints(root.store, record),
        *(
            {"check": "told", "what": what, "clean": False, "why": "named by whoever proved this"}
            for what in known
        ),
    ]
    return {
        "format": FORMAT,
        "takedown": n,
        "root": root.url,
        "at_us": time.time_ns() // 1000,
        "salt": deny.salt,
        "scope": deny.scope,
        "hashes": sorted(deny.hashes),
        "marks": {name: list(some) for name, some in record.marks.items()},
        "datasets": list(all_datasets(root)),
        "txns": {one.txn: one.dataset for one in root.state.txns.values()},
        "places": places,
        "result": "complete" if all(place["clean"] for place in places) else "incomplete",
    }


def marks_on_record(deny: Deny, record: Record, dataset: str) -> Marks:
    """What a dataset's tables are held against."""
    return marks_of(deny.salt, dataset, (), deny.hashes, record.marks.get(dataset, ()))


def _versions(root: Root, deny: Deny, record: Record) -> Iterator[Place]:
    """Every version that has, or had, what is taken down: retired, or not."""
    ids = set(record.versions())
    for dataset in sorted(root.state.datasets):
        ids |= {one.id for one in find(root, dataset, deny).versions}
    for one in sorted(ids):
        version = root.record(one, retired=True)
        place = {"check": "retired", "what": f"version {version.name}", "of": version.dataset, "id": one}
        if version.retired is None:
            yield {**place, "clean": False, "why": "it is not retired: penstock takedown run --apply"}
        else:
            yield {
                **place,
                "clean": True,
                "evidence": "retired in the log; its objects are places of their own",
            }


def _looked_at(store: Store, place: Place) -> Place:
    """The place with `clean`, and `evidence` or `why`."""
    try:
        if place["check"] == "absent":
            return _absent(store, place)
        if place["check"] == "zeros":
            return _zeros(store, place)
    except PenstockError as error:
        return {**place, "clean": False, "why": f"it could not be looked at: {type(error).__name__}"}
    if place["deleted"]:
        return {**place, "clean": True, "evidence": "deleted by the takedown (--delete-raw)"}
    return {**place, "clean": False, "why": "left at its source, which is not penstock's: delete it there"}


def _absent(store: Store, place: Place) -> Place:
    if is_there(store, place["path"]):
        return {
            **place,
            "clean": False,
            "why": "still there: penstock gc deletes it after its grace, unless a hold, lease or object lock keeps it",
        }
    return {**place, "clean": True, "evidence": "no object at this path"}


def _zeros(store: Store, place: Place) -> Place:
    """Each range read. A version is collected some day, and this with it."""
    found = hashlib.sha256()
    try:
        for offset, nbytes in place["ranges"]:
            for start in range(offset, offset + nbytes, _BLOCK):
                data = store.get_range(place["path"], start, min(_BLOCK, offset + nbytes - start)).data
                if data.count(0) != len(data):
                    return {**place, "clean": False, "why": f"bytes from {start} on are not zeros"}
                found.update(data)
    except ObjectNotFound:
        return {**place, "clean": True, "evidence": "no object at this path"}
    return {
        **place,
        "clean": True,
        "evidence": f"sha256 of the ranges' bytes, all zeros: {found.hexdigest()}",
    }


_BLOCK = 2**24


def _scan(root: Root, deny: Deny, record: Record) -> Iterator[Place]:
    """Every table and text under the root, but those that are places of their own."""
    known = {place["path"] for place in record.having("absent")}
    marks = {dataset: marks_on_record(deny, record, dataset) for dataset in all_datasets(root)}
    txns = {one.txn: one.dataset for one in root.state.txns.values()}
    looked = 0
    for prefix in SCANNED:
        for info in root.store.list(prefix):
            if info.key in known or not info.key.endswith((".parquet", ".json", ".jsonl", ".md", ".html")):
                continue
            looked += 1
            of = dataset_of(info.key, txns)
            mine = marks.values() if of is None else [marks[of]]
            place = {"check": "scan", "what": "a table or text", "path": info.key}
            try:
                hit = any(one.names(text) for text in object_texts(root.store, info.key) for one in mine)
            except (Corrupt, StoreError, ValueError) as error:
                yield {**place, "clean": False, "why": f"it could not be read: {type(error).__name__}"}
                continue
            if hit:
                why = (
                    "the log is never rewritten"
                    if prefix == "log/"
                    else "penstock takedown run --apply rewrites it"
                )
                yield {**place, "clean": False, "why": f"it holds a name that is taken down: {why}"}
    yield {
        "check": "scan",
        "what": f"{looked} tables and texts under {', '.join(SCANNED)}",
        "clean": True,
        "evidence": "no cell or word of the others has one of the hashes",
    }


def dataset_of(path: str, txns: Mapping[str, str]) -> str | None:
    """Whose object it is, where it is one dataset's: others have samples of the same keys."""
    place, _, rest = path.partition("/")
    name = rest.partition("/")[0]
    return txns.get(name) if place == "data" else name if place in ("tables", "stages", "cards") else None


def object_texts(store: Store, path: str) -> Iterator[str]:
    """Every text in a table or JSON object; of others the whole."""
    data = store.get(path).data
    if path.endswith(".parquet"):
        yield from cell_texts(parse_table(data, path))
    elif path.endswith(".json"):
        yield from texts(json.loads(data))
    elif path.endswith(".jsonl"):
        yield from (text for line in data.splitlines() for text in texts(json.loads(line)))
    else:
        yield data.decode(errors="replace")


def _mirrors(root: Root, record: Record, urls: Sequence[str]) -> Iterator[Place]:
    """Each mirror that the log names, and each URL given: the same paths have to be absent there."""
    named = {str(body.get("url", body.get("name", body["n"]))) for body in root.state.mirrors}
    for url in sorted(named | set(urls)):
        place = {"check": "mirror", "what": "a mirror", "url": url}
        if url not in urls:
            yield {**place, "clean": False, "why": "not looked at: pass --mirror with its URL"}
            continue
        try:
            there = _there(open_store(url, None), record.having("absent"))
        except PenstockError as error:
            yield {**place, "clean": False, "why": f"unreachable: {type(error).__name__}"}
            continue
        if there:
            yield {
                **place,
                "clean": False,
                "why": f"{len(there)} objects are still there, such as {there[0]}",
            }
        else:
            yield {**place, "clean": True, "evidence": "none of the objects that had to go is there"}


def _there(store: Store, places: Iterable[Place]) -> list[str]:
    return [place["path"] for place in places if is_there(store, place["path"])]


def _checkpoints(store: Store, record: Record) -> Iterator[Place]:
    """Models that were trained on the samples: what they learnt is not to be taken out."""
    if record.versions() and next(iter(store.list("checkpoints/")), None) is not None:
        yield {
            "check": "told",
            "what": "checkpoints of models",
            "clean": False,
            "why": "models that were trained on the samples are not changed; train again where that is asked for",
        }
