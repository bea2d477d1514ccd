"""A version over bytes that stay where they are: the objects of a place are walked, an index of them is published.

The version's id follows from the dataset's name, the format, its options and the objects' keys, sizes and change
tokens: whoever registers the same bucket has the same version. A killed registration is finished by doing it again.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from typing import Any

from loader.dataset.columnar.choices import WIDTHS, Options
from loader.dataset.columnar.partitions import text_columns
from loader.dataset.log.entries import canonical
from loader.dataset.names import check_dataset_name
from loader.dataset.root import Root
from loader.dataset.tables.foreign_objects import foreign_table, is_adopted, place_id, put_place
from loader.dataset.versions.version import Version
from loader.dataset.writer import publish_exclusions, publish_registered
from loader.errors import Conflict, Corrupt, EmptyVersion, InvalidStore
from loader.storage import Store, open_store
from loader.storage.refusals import Refusals

from ..reading.sample import NO_METADATA, Found
from . import TABLES, look_at
from .earlier import Difference, difference
from .groups import groups_of
from .numbered_keys import text_array
from .parts import SampleTables, index_of, objects_of, path_of, put_parts
from .selection import EVERYTHING, Listed, Selection, list_selected
from .shard_rows import Rows, Shard, agree, keys_of, own_keys, rows_of, shards_of

AT_ONCE = 16
"""Shards that are walked together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """The result of a registration."""

    version: Version
    """The version."""
    new: int
    """Objects that no earlier version had."""
    replaced: int
    """Objects that were written again since: their earlier samples are left out."""
    gone: int
    """Objects that are not there any more: their samples are left out."""
    same: int
    """Objects that are as they were."""
    others: int
    """Objects of the place that are not of the format, or not selected."""
    refusals: Refusals = field(default_factory=Refusals)
    """Objects that the listing of the place could not hand out."""
    left_out: Sequence[str] = ()
    """Features of the place that are not read yet."""
    notes: Sequence[str] = ()
    """Notes on values of JSON documents that became no column, in words."""
    sealed: int = 0
    """New shards whose checksums are sealed, since all their bytes were read; see `penstock seal`."""


def register(
    root: Root,
    format: str,
    url: str | PathLike[str],
    dataset: str,
    *,
    options: Mapping[str, Any] | None = None,
    without: Sequence[str] = (),
    key: str | None = None,
    fields: Mapping[str, str] = NO_METADATA,
    selection: Selection = EVERYTHING,
) -> Registered:
    """Publish a version of the samples at a URL, or the next one where the dataset was registered from there before.

    Nothing is written at the URL. Readers open it with the credentials of their environment.

    options: of the URL's store; they are not kept. without: fields that are left out, of tables columns too.
    key: column of a table that holds the keys. fields: column of a table that becomes a field -> its extension, "" for
    the format's choice.
    selection: objects that are looked at.

    Raises: InvalidStore for a format or place that cannot be registered; InvalidRuntime for options of tables; Conflict
    where the dataset is not of this place, or somebody published meanwhile; EmptyVersion; Corrupt, InvalidSample for
    objects that are not of the format, by name and byte; StoreError.
    """
    check_dataset_name(dataset)
    store, columns = open_store(fspath(url), options), Options(key, fields, frozenset(without))
    check_apart(root.url, store.url)
    root.create()
    newest = root.state.newest(dataset)
    parent = root.open(newest.id) if newest else None
    chosen: dict[str, Any] = {"format": format, "without": sorted(set(without)), **selection.to_json()}
    found, each, listed = _found(store, format, columns, selection, parent)
    if format in TABLES:
        chosen |= {**columns.to_json(), "labels": found.labels and list(found.labels)}
        if found.declared_widths:
            chosen[WIDTHS] = "declared"
    infos = found.infos
    since = difference(parent, chosen, store, infos)
    place = place_id(store, infos, chosen if format in TABLES else None)
    version, sealed = parent, 0
    if since.fresh:
        version, sealed = _publish(root, dataset, found, each, store, parent, since, place, chosen)
    elif since.gone and parent is not None:
        keys = [key for rows in (since.live or {}).values() for key, of in rows.values() if of in since.gone]
        version = publish_exclusions(root, parent.name, keys, "registered again: the object is gone", None)
    for known in sorted(since.places):
        put_place(root.store, known, store.url)
    assert version is not None
    return Registered(
        version=version,
        new=len(since.fresh) - len(since.replaced),
        replaced=len(since.replaced),
        gone=len(since.gone),
        same=since.same,
        others=listed.n - len(infos),
        refusals=listed.refusals,
        notes=found.members.lines() if found.members else (),
        sealed=sealed,
    )


def _found(
    store: Store, format: str, columns: Options, selection: Selection, parent: Version | None
) -> tuple[Found, int, Listed]:
    """Return what a place has of a format, how many objects share a shard, and the objects there are.

    Raises: Corrupt where an index lists an object that is not there; EmptyVersion; as `look_at`.
    """
    listed = list_selected(store, format, selection)
    texts = text_columns(parent.manifest["columns"]) if parent else ()
    found, each = look_at(format, store, listed.infos, columns, texts)
    if found.lacking:
        raise Corrupt(
            f"{found.lacking[0]} ({len(found.lacking)} such); fetch them, or take them out of the index"
        )
    if not found.infos:
        raise EmptyVersion(f"{listed.why_none(store.url, format)}; nothing was registered")
    return found.reading(columns.without), each, listed


def _publish(
    root: Root,
    dataset: str,
    found: Found,
    each: int,
    store: Store,
    parent: Version | None,
    since: Difference,
    place: str,
    chosen: Mapping[str, Any],
) -> tuple[Version, int]:
    """Publish the samples of fresh objects; return the version, and how many of its new shards are sealed."""
    shards = shards_of(since.fresh, each)
    walked = _walk(found, shards, chosen["without"], place)
    if found.chunks:
        sized = {shard: replace(shard, nbytes=found.chunks[shard.name].nbytes) for shard in shards}
        shards, walked = list(sized.values()), [(sized[shard], rows) for shard, rows in walked]
    rows = [one for _, one in walked]
    if found.members is not None:
        agree(rows, found.members, parent.manifest["columns"] if parent else {})
    if not rows:
        raise EmptyVersion(
            f"the {len(since.fresh)} objects of {store.url} hold no samples; nothing was registered"
        )
    keys = keys_of(rows, since.keys)
    known = parent.manifest["groups"] if parent else {}
    if found.columns is not None and parent is not None:
        found.columns.check_known(
            {name for one in known.values() for name in one["field_nbytes"]}, parent.name
        )
    group_of = groups_of(rows, known)
    if is_adopted(root.store, place):
        raise Conflict(
            f"these objects of {store.url} were copied into {root.url} for another dataset, and may not all be there: "
            "penstock import makes a copy for this one"
        )
    txn = transaction(root, dataset, place, chosen, parent)
    prefix = f"data/{txn}/registered"
    sealed = len({shard.name for shard, one in walked if len(one.crcs)}) if found.seals else 0
    put_place(root.store, place, store.url)
    producer = {"registered": dict(chosen), "place": place}
    with root.heartbeat(txn):
        parts = put_parts(root.store, txn, prefix, place, walked, keys, group_of, seals=found.seals)
        version = publish_registered(
            root,
            dataset,
            txn,
            prefix,
            parts,
            SampleTables(txn, rows, keys),
            foreign_table(objects_of(store, place, shards, found.chunks)),
            chunk_rows=_chunk_rows(found, rows),
            facts={"registered": canonical(dict(chosen)).decode()},
            parent=parent,
            left_out=since.left_out(parent),
            producer=producer | ({"labels": list(found.labels)} if found.labels is not None else {}),
            created_us=max(info.modified_us or 0 for info in since.fresh),
        )
    return version, sealed


def _chunk_rows(found: Found, rows: Sequence[Rows]) -> int:
    """Return the rows of a table's row group, on the average and at least 1; 0 of other formats."""
    groups = sum(chunks.row_groups for chunks in found.chunks.values())
    return max(1, sum(len(one.source_keys) for one in rows) // max(1, groups)) if found.chunks else 0


def _walk(
    found: Found, shards: Sequence[Shard], without: Sequence[str], place: str
) -> list[tuple[Shard, Rows]]:
    """Return the rows of the shards, in order, each with its shard. Raises: as the format.

    Indexes of rows that may keep their keys are made as well, for as long as a bucket is waited for.
    """

    def walk(shard: Shard) -> list[Rows]:
        some = rows_of(shard, [found.samples(info) for info in shard.infos], without)
        for rows in some:
            if isinstance(rows.source_keys, list) and own_keys(rows) is rows.source_keys:
                path, keys = path_of(place, shard), text_array(rows.source_keys)
                rows.index = index_of(rows, rows.fields, path, keys, found.seals)
        return some

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="penstock-walk") as pool:
        return [
            (shard, rows) for shard, some in zip(shards, pool.map(walk, shards), strict=True) for rows in some
        ]


def transaction(
    root: Root, dataset: str, place: str, chosen: Mapping[str, Any], parent: Version | None
) -> str:
    """Begin the transaction that follows from what is registered; the one that was begun before, if it is still open.

    Raises: as `Root.begin`.
    """
    said = [dataset, place, dict(chosen), parent.id if parent else ""]
    name, n = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:32], 0
    txn = name
    while (known := root.state.txns.get(txn)) is not None and known.status != "open":
        n += 1  # a collector gave it up, or its version was retired
        txn = f"{name}-{n}"
    return root.begin(dataset, parent.id if parent else None, txn=txn)


def check_apart(root: str, place: str) -> None:
    """Raise InvalidStore where the place is in the root, or the root in the place."""
    inner, outer = f"{root.rstrip('/')}/", f"{place.rstrip('/')}/"
    if inner.startswith(outer) or outer.startswith(inner):
        raise InvalidStore(
            f"{place} and the root {root} lie in one another; register bytes that lie beside the root"
        )
