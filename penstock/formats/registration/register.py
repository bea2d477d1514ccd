"""Register a dataset in place: list the samples in its objects, and publish a version with their index.

The id follows from dataset name, format, options, and the objects' keys, sizes and change tokens, so everyone gets the
same version, and a killed registration can be repeated.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from typing import Any, NamedTuple

from loader.dataset.columnar.choices import WIDTHS, ColumnarOptions
from loader.dataset.columnar.column_names import text_columns
from loader.dataset.log.entries import canonical
from loader.dataset.names import check_dataset_name
from loader.dataset.publishing.publish import ObjectsTable, publish_registered, publish_without
from loader.dataset.root import Root
from loader.dataset.tables.foreign_objects import ForeignObject, foreign_table, place_id
from loader.dataset.tables.place_records import is_adopted, put_place
from loader.dataset.versions.version import Version
from loader.errors import Conflict, EmptyVersion
from loader.order.random.lanes import choose_shape
from loader.storage import ObjectInfo, Store, open_store
from loader.storage.store import Refusals, check_recordable
from loader.storage.threads import DaemonPool

from ...exclusion_records import exclusion_line, standing_exclusions
from ...places import check_apart
from ...units import size
from ..reading.sample import NO_METADATA, ForeignShard, FoundObjects, object_shards
from ..reading.stated_counts import StatedCounts
from ..registry import FORMATS, TABLES, check_allow_missing, find_registered
from .file_labels import (
    NO_LABELS,
    FileLabels,
    LabelOptions,
    read_labels,
    relabel,
    without_labels,
    without_table,
)
from .parts import SampleTables, index_files, object_rows, put_parts, shard_path
from .selection import EVERYTHING, ListedObjects, Selection, list_selected
from .shard_rows import Rows, agree, field_groups, own_keys, part_keys, shard_rows, text_array
from .source_difference import PlaceDifference, difference
from .taken_down import TakenDown
from .unread_files import unread_files

APART = "Choose a place beside the root"
"""Remedy if source and root contain one another."""
AT_ONCE = 16
"""Shards read concurrently."""
LARGE_CHUNK_BYTES = 8 * 2**20
"""Decoded chunk size in bytes above which a shuffle mixes few samples, so the report recommends an import."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationReport:
    version: Version
    """Published version."""
    new: int
    """New objects."""
    replaced: int
    """Changed objects; their old samples are excluded."""
    missing: int
    """Removed objects; their samples are excluded."""
    same: int
    """Unchanged objects."""
    taken_down: int = 0
    """New and changed objects that a takedown names, which are skipped."""
    others: int
    """Objects in another format, or not selected."""
    refusals: Refusals = field(default_factory=Refusals)
    """Objects that were not listed, with reasons."""
    notes: Sequence[str] = ()
    """Left out data: unread files, parts of samples, JSON values that could not become columns; unlabelled files."""
    missing_parts: Sequence[str] = ()
    """Stated things that the source lacks, if that was allowed; also in the version's record."""
    relabelled: int = 0
    """Samples of unchanged objects whose labels changed."""
    sealed: int = 0
    """New shards already sealed, because all their bytes were read."""


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
    allow_missing: bool = False,
    label_options: LabelOptions = NO_LABELS,
) -> RegistrationReport:
    """Publish a version of the dataset at a URL, or its next version.

    Readers open the URL with the credentials in their environment. Excluded samples stay out. Objects that a takedown
    names are skipped.

    options: for the URL's store; not stored. without: fields to leave out; in tables, also columns.
    key: table column with the sample keys. fields: table column that becomes a field -> extension, or "".
    allow_missing: take what is there of a source that states more, and record what is missing.
    label_options: labels of plain files. An annotation changes the labels of unchanged files.

    Raises: InvalidKey for rows of labels that no file has; InvalidStore if the format or source cannot be registered;
    InvalidRuntime for invalid table options; Conflict if `dataset` has another source or changed meanwhile;
    EmptyVersion; Denied if takedowns name all objects of a new dataset; Corrupt; InvalidSample.
    """
    check_dataset_name(dataset)
    store = _open_source(root, url, options)
    columns = ColumnarOptions(key, fields, frozenset(without))
    root.create()
    newest = root.state.newest(dataset)
    parent = root.open(newest.id) if newest else None
    taken_down = TakenDown(root, dataset, store)
    source = _find(store, format, columns, selection, parent, taken_down, allow_missing, label_options)
    objects, labels = source.objects, source.labels
    chosen = _choose_options(format, columns, selection, objects)
    changes = taken_down.without_objects(difference(parent, chosen, store, objects.infos))
    version, n_sealed = _publish_changes(root, dataset, format, store, parent, source, changes, chosen)
    # The source may have moved: earlier objects are then read from its new place.
    for known_place in sorted(changes.places):
        put_place(root.store, known_place, store.url)
    report = RegistrationReport(
        version=version,
        new=len(changes.fresh) - len(changes.replaced),
        replaced=len(changes.replaced),
        missing=len(changes.missing),
        same=changes.same,
        taken_down=len(changes.taken_down),
        others=source.listed.n - len(objects.infos),
        refusals=source.listed.refusals,
        notes=[*_notes(format, source.listed, objects), *exclusion_line(version, parent)],
        missing_parts=objects.stated.lines() if objects.stated else (),
        sealed=n_sealed,
    )
    if labels is None:
        return report
    # An annotation, in a further version, changes the labels of unchanged objects.
    return _relabel(root, report, labels, objects.infos, changes)


def _open_source(root: Root, url: str | PathLike[str], options: Mapping[str, Any] | None) -> Store:
    """Open the store at a URL; refuse a source that contains the root, or lies in it."""
    store = open_store(fspath(url), options)
    check_apart(root.store, store, APART)
    check_recordable(store.url)
    return store


def _relabel(
    root: Root,
    report: RegistrationReport,
    labels: FileLabels,
    infos: Sequence[ObjectInfo],
    changes: PlaceDifference,
) -> RegistrationReport:
    version, n_relabelled = relabel(root, report.version, labels, infos, changes.fresh)
    notes = [*report.notes, *labels.notes]
    return replace(report, version=version, relabelled=n_relabelled, notes=notes)


def _choose_options(
    format: str, columns: ColumnarOptions, selection: Selection, objects: FoundObjects
) -> dict[str, Any]:
    """Return the format and options that a later registration must repeat."""
    chosen: dict[str, Any] = {
        "format": format,
        "without": sorted(columns.without),
        **selection.to_json(),
    }
    if format in TABLES:
        chosen |= _table_options(objects, columns)
    return chosen


def _table_options(objects: FoundObjects, columns: ColumnarOptions) -> dict[str, Any]:
    chosen = {**columns.to_json(), "labels": objects.labels and list(objects.labels)}
    if objects.declared_widths:
        chosen[WIDTHS] = "declared"
    return chosen


def _notes(format: str, listed: ListedObjects, objects: FoundObjects) -> list[str]:
    of_members = objects.members.lines() if objects.members is not None else []
    return [*of_members, *unread_files(format, listed.infos, objects.infos)]


class _SourceObjects(NamedTuple):
    """A source's selected objects, and how a registration reads them."""

    objects: FoundObjects
    objects_per_shard: int
    """Most objects of one index."""
    listed: ListedObjects
    labels: FileLabels | None
    """Labels of plain files, or None."""


def _find(
    store: Store,
    format: str,
    columns: ColumnarOptions,
    selection: Selection,
    parent: Version | None,
    taken_down: TakenDown,
    allow_missing: bool,
    label_options: LabelOptions,
) -> _SourceObjects:
    listed = without_table(store, list_selected(store, format, selection), label_options)
    texts = text_columns(parent.manifest["columns"]) if parent else ()
    objects, objects_per_shard = find_registered(format, store, listed.infos, columns, texts)
    check_allow_missing(format, allow_missing)
    stated = objects.stated or StatedCounts()

    def is_left_out(key: str) -> bool:
        return bool(listed.why_left_out(key)) or taken_down.has_object(key)

    keys = [info.key for info in objects.infos] if FORMATS[format].is_sharded else []
    stated.settle(store.url, keys, is_left_out)
    if allow_missing:
        stated.allow()
    else:
        stated.refuse()
    objects = objects._replace(stated=stated)
    if not objects.infos:
        raise EmptyVersion(
            f"{listed.why_none(store.url, format)}; nothing was registered", what=format, where=store.url
        )
    objects = objects.reading(columns.without)
    labels = read_labels(format, label_options, objects.infos, parent, columns.without)
    if labels is not None:
        objects = objects.with_columns(labels)
    return _SourceObjects(objects, objects_per_shard, listed, labels)


def _publish_changes(
    root: Root,
    dataset: str,
    format: str,
    store: Store,
    parent: Version | None,
    source: _SourceObjects,
    changes: PlaceDifference,
    chosen: Mapping[str, Any],
) -> tuple[Version, int]:
    """Publish new and changed objects, or else exclude missing ones. Return (version, newly sealed shards)."""
    if not changes.fresh:
        assert parent is not None  # otherwise all objects are new
        stands = standing_exclusions(root.store, dataset)
        return publish_without(root, parent, changes.left_out(parent), exclusions=stands), 0
    recorded = dict(chosen)
    if source.labels is not None:
        recorded |= source.labels.to_json()
    place = place_id(store, source.objects.infos, chosen if format in TABLES else None)
    return _publish(root, dataset, source, store, parent, changes, place, recorded)


def _publish(
    root: Root,
    dataset: str,
    source: _SourceObjects,
    store: Store,
    parent: Version | None,
    changes: PlaceDifference,
    place: str,
    recorded: Mapping[str, Any],
) -> tuple[Version, int]:
    objects = source.objects
    shards = object_shards(changes.fresh, source.objects_per_shard)
    walked = _walk(objects, shards, recorded["without"], place)
    if objects.chunks:
        sized = {shard: replace(shard, nbytes=objects.chunks[shard.name].nbytes) for shard in shards}
        shards, walked = list(sized.values()), [(sized[shard], rows) for shard, rows in walked]
    rows = [one for _, one in walked]
    if objects.members is not None:
        agree(rows, objects.members, parent.manifest["columns"] if parent else {})
    if not rows:
        message = f"the {len(changes.fresh)} objects of {store.url} hold no samples; nothing was registered"
        raise EmptyVersion(message, what="samples", where=store.url, given=len(changes.fresh))
    keys = part_keys(rows, changes.keys)
    known = parent.manifest["groups"] if parent else {}
    if objects.columns is not None and parent is not None:
        objects.columns.check_known(
            {name for one in known.values() for name in one["field_nbytes"]}, parent.name
        )
    group_of = field_groups(rows, known)
    if is_adopted(root.store, place):
        message = (
            f"these objects of {store.url} were copied into {root.url} for another dataset, and may not all be there: "
            "penstock import makes a copy for this one"
        )
        raise Conflict(message, what="copies", where=store.url, given=dataset, accepted="another dataset")
    txn = transaction(root, dataset, place, recorded, parent)
    prefix = f"data/{txn}/registered"
    sealed = 0
    if objects.seals:
        sealed = len({shard.name for shard, one in walked if len(one.crcs)})
    put_place(root.store, place, store.url)
    producer = {"registered": dict(recorded), "place": place} | _facts(objects, store.url)
    with root.heartbeat(txn):
        parts = put_parts(root.store, txn, prefix, place, walked, keys, group_of, seals=objects.seals)
        foreign_objects = object_rows(store, place, shards, objects.chunks)
        version = publish_registered(
            root,
            dataset,
            txn,
            prefix,
            parts,
            SampleTables(txn, rows, keys),
            _objects_table(foreign_objects, recorded, _chunk_rows(objects, rows)),
            parent=parent,
            to_exclude=changes.left_out(parent),
            producer=producer,
            created_us=max(info.modified_us or 0 for info in changes.fresh),
            exclusions=standing_exclusions(root.store, dataset),
        )
    return version, sealed


def _objects_table(
    objects: Sequence[ForeignObject],
    recorded: Mapping[str, Any],
    chunk_rows: int,
) -> ObjectsTable:
    # Labels may change from one registration to the next, so `difference` does not compare them.
    registered = canonical(without_labels(recorded)).decode()
    return ObjectsTable(
        table=foreign_table(objects),
        facts={"registered": registered},
        chunk_rows=chunk_rows,
    )


def _facts(objects: FoundObjects, url: str) -> dict[str, Any]:
    """Return what the version records of its objects: stated things that they lack, and class names."""
    facts: dict[str, Any] = {}
    if objects.stated is not None:
        facts.update(objects.stated.to_json(url))
    if objects.labels is not None:
        facts["labels"] = list(objects.labels)
    return facts


def _chunk_rows(objects: FoundObjects, rows: Sequence[Rows]) -> int:
    """Return the average rows of a row group; 0 for a format without them."""
    if not objects.chunks:
        return 0
    n_groups = sum(chunks.row_groups for chunks in objects.chunks.values())
    n_rows = sum(len(run.source_keys) for run in rows)
    return max(1, n_rows // max(1, n_groups))


def _walk(
    objects: FoundObjects, shards: Sequence[ForeignShard], without: Sequence[str], place: str
) -> list[tuple[ForeignShard, Rows]]:
    def walk(shard: ForeignShard) -> list[Rows]:
        runs = shard_rows(shard, [objects.samples(info) for info in shard.infos], without)
        for rows in runs:
            # Keys without a prefix are final, so their index is built here, in parallel.
            if isinstance(rows.source_keys, list) and own_keys(rows) is rows.source_keys:
                path = shard_path(place, shard)
                keys = text_array(rows.source_keys)
                rows.index = index_files(rows, rows.fields, path, keys, objects.seals)
        return runs

    with DaemonPool(AT_ONCE, "penstock-walk") as pool:
        return [
            (shard, rows) for shard, runs in zip(shards, pool.map(walk, shards), strict=True) for rows in runs
        ]


def transaction(
    root: Root, dataset: str, place: str, chosen: Mapping[str, Any], parent: Version | None
) -> str:
    """Start or resume these arguments' transaction; return its id."""
    parent_id = None
    if parent is not None:
        parent_id = parent.id
    inputs = [dataset, place, dict(chosen), parent_id or ""]
    inputs_json = json.dumps(inputs, sort_keys=True)
    name = hashlib.sha256(inputs_json.encode()).hexdigest()[:32]
    txn = name
    n = 0
    while (known := root.state.txns.get(txn)) is not None and known.status != "open":
        n += 1  # the collector ended it, or its version was retired
        txn = f"{name}-{n}"
    return root.begin(dataset, parent_id, txn=txn)


class ShuffleChunks(NamedTuple):
    """Effect of a version's chunks on shuffles."""

    samples: int
    """Live samples."""
    chunk_rows: int
    """Mean samples per chunk."""
    chunk_nbytes: int
    """Mean decoded bytes of a row group's chunks."""
    shuffled_samples: int
    """Samples that a shuffle mixes at a time."""
    nbytes: int
    """Bytes that an import would copy."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields without `samples`."""
        return {name: value for name, value in self._asdict().items() if name != "samples"}

    def to_text(self) -> str:
        text = (
            f"row groups of {self.chunk_rows:,} samples, {size(self.chunk_nbytes)} decoded: a shuffle mixes "
            f"{self.shuffled_samples:,} of {self.samples:,} samples at a time"
        )
        if self.chunk_nbytes <= LARGE_CHUNK_BYTES or self.shuffled_samples == self.samples:
            return text
        return f"{text}; penstock import copies {size(self.nbytes)}, and its shuffles mix all"


def shuffle_chunks(version: Version) -> ShuffleChunks | None:
    """Return how registered tables' chunks limit shuffles; None without such tables."""
    tables = [one for one in version.manifest.get("foreign", ()) if "chunk_rows" in one]
    if not tables:
        return None
    fields = {name for table in tables for name in table["chunk_fields"]}
    nbytes = 0
    for group in version.manifest["groups"].values():
        for name, field_nbytes in group["field_nbytes"].items():
            if name in fields:
                nbytes += field_nbytes
    # A reader decodes a whole chunk for one of its rows, so the largest chunks bound the shuffle.
    chunk_rows = max(table["chunk_rows"] for table in tables)
    mean_nbytes = -(-nbytes // version.manifest["n_rows"])  # of a sample, rounded up
    chunk_nbytes = chunk_rows * mean_nbytes
    shape = choose_shape(len(version), mean_nbytes, decoded=(chunk_rows, max(1, chunk_nbytes)))
    mixed = len(version)
    if shape.chunk > 1:
        mixed = min(len(version), shape.live_samples)
    return ShuffleChunks(len(version), chunk_rows, chunk_nbytes, mixed, nbytes)
