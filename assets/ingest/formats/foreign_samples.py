"""Samples of a batch whose raw objects are of another format: they are walked, not cut.

With `keep="copy"` their bytes are copied into parts. With `keep="in place"` a part is an index of them, and the table
of the objects goes with it to publication.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import loader
from loader.dataset.tables import columns
from loader.dataset.tables.foreign_objects import foreign_table, place_id, put_place
from loader.dataset.tables.parquet import put_named, put_table, table_bytes
from loader.errors import Changed, ObjectNotFound, PenstockError, Throttled, Transient
from loader.foreign import format_named
from loader.foreign.formats.sample import Found
from loader.foreign.groups import COMMON, groups_of
from loader.foreign.parts import objects_of, put_parts
from loader.foreign.shard_rows import Rows, Shard, rows_of, shards_of
from loader.storage import ObjectInfo, Store
from penstock.card.counting.classes import modality_of
from penstock.sources.importing.span_blocks import read_fields
from penstock.sources.importing.span_units import samples_in

from ...media.media_table import media_row
from ...media.objects import refusal_row
from ...media.unit import Unusable, dropped, rejected
from ...source_formats import companions
from ...spec import DatasetSpec
from .sample_facts import Row, Taken, key_in_dataset, metadata_of, source_of, unit_row

_AT_ONCE = 8
"""Objects that are walked together."""
_NOT_THE_OBJECTS_FAULT = (Throttled, Transient)


def landed_info(landing: Store, row: Mapping[str, Any]) -> ObjectInfo:
    """Return what the store says of a landed object. Raises: Unusable where it is another by now; StoreError."""
    try:
        info = landing.head(row["key"])
    except ObjectNotFound as error:
        raise dropped("fetch", type(error).__name__, error) from error
    if (info.nbytes, info.etag) != (row["nbytes"], row["etag"]):
        raise dropped("fetch", Changed.__name__, "the object is not the one that landed; it lands again")
    return info


def fresh_objects(
    landing: Store, audits: Sequence[Row], raws: Mapping[str, Row], published: Mapping[str, str]
) -> tuple[list[ObjectInfo], list[Row]]:
    """Return the admitted objects that the dataset does not have, by key, and the refusals of the others.

    published: sha256 -> where these bytes are in the dataset. Raises: StoreError.
    """
    infos, refusals = list[ObjectInfo](), list[Row]()
    for row in audits:
        try:
            if row["sha256"] in published:
                raise dropped("dedup", "duplicate", f"the same bytes as {published[row['sha256']]}")
            infos.append(landed_info(landing, raws[row["key"]]))
        except Unusable as unusable:
            refusals.append(refusal_row(row["key"], row["sha256"], unusable))
    return sorted(infos, key=lambda info: info.key), refusals


def not_of(format: str) -> Unusable:
    """Return the refusal of an object that is not of the format."""
    return dropped(
        "probe", "type_not_taken", f"it is not of the format {format}, or nothing beside it tells of it"
    )


class Place:
    """Raw objects of one format where they landed."""

    def __init__(self, landing: Store, format: str) -> None:
        """Costs a listing where an index tells of all objects. Raises: StoreError."""
        self.landing = landing
        self._name, self._format = format, format_named(format)
        self._all: Found | PenstockError | None = None
        if companions(format):
            try:
                self._all = self._format.look(landing, list(landing.list()))
            except _NOT_THE_OBJECTS_FAULT:
                raise
            except PenstockError as error:
                self._all = error

    @property
    def objects_per_shard(self) -> int:
        """Objects that one index describes, at most."""
        return self._format.OBJECTS_PER_SHARD

    def found(self, info: ObjectInfo) -> Found:
        """Return the reader of an object. Raises: as the format; Unusable where it is not of the format."""
        if isinstance(self._all, PenstockError):
            raise self._all
        found = self._all or self._format.look(self.landing, [info])
        if info.key not in {one.key for one in found.infos}:
            raise dropped(
                "probe",
                "type_not_taken",
                f"it is not of the format {self._name}, or nothing beside it tells of it",
            )
        return found


def audit_walked(landing: Store, spec: DatasetSpec, landed: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Walk every object once, and return (media rows, refusal rows), in landing order. Raises: StoreError."""
    place = Place(landing, spec.format)

    def one(row: Row) -> Row | Unusable:
        try:
            info = landed_info(landing, row)
            (shard,) = shards_of([info], 1)
            if not rows_of(shard, [place.found(info).samples(info)], spec.sources[0].choices.without):
                raise dropped("probe", "no_samples", "it holds no sample")
        except _NOT_THE_OBJECTS_FAULT:
            raise
        except Unusable as unusable:
            return unusable
        except PenstockError as error:
            return rejected("probe", type(error).__name__, error)
        facts = {"mime": row["mime"], "kind": spec.format, "nbytes": row["nbytes"], "container": spec.format}
        return media_row(facts) | {"key": row["key"], "sha256": row["sha256"]}

    admitted, refusals = list[Row](), list[Row]()
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="penstock-walk") as pool:
        for row, found in zip(landed, pool.map(one, landed), strict=True):
            if isinstance(found, Unusable):
                refusals.append(refusal_row(row["key"], row["sha256"], found))
            else:
                admitted.append(found)
    return admitted, refusals


def write_walked(
    root: loader.Root,
    landing: Store,
    spec: DatasetSpec,
    txn: str,
    audits: Sequence[Row],
    raws: Mapping[str, Row],
    published: Mapping[str, str],
    provenance: Mapping[str, str],
    labels: Sequence[str],
) -> Taken:
    """Write the parts of the admitted objects.

    published: sha256 -> where these bytes are in the dataset. labels: class names of the dataset.

    Raises: FieldMismatch for samples without a field that all of the dataset have; as the format; StoreError.
    """
    infos, refusals = fresh_objects(landing, audits, raws, published)
    if not infos:
        return Taken(refusals=refusals, labels=labels)
    place = Place(landing, spec.format)
    shards = shards_of(infos, place.objects_per_shard)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="penstock-walk") as pool:
        done = list(
            pool.map(
                lambda shard: rows_of(
                    shard,
                    [place.found(one).samples(one) for one in shard.infos],
                    spec.sources[0].choices.without,
                ),
                shards,
            )
        )
    walked = [(shard, rows) for shard, some in zip(shards, done, strict=True) for rows in some]
    newest = root.state.newest(spec.name)
    group_of = groups_of(
        [rows for _, rows in walked], root.open(newest.id).manifest["groups"] if newest else {}
    )
    samples = [list(_samples(spec, shard, rows, raws, provenance)) for shard, rows in walked]
    write = _put_in_place if spec.in_place else _copy
    parts, foreign = write(root, landing, txn, walked, samples, group_of, raws)
    kinds = [modality_of(set(rows.fields)) for _, rows in walked]
    rows = [
        unit_row(one.key, kind, part.id, one.source)
        for kind, part, some in zip(kinds, parts, samples, strict=True)
        for one in some
    ]
    taken = list(zip(kinds, parts, strict=True))
    return Taken(parts=taken, rows=rows, refusals=refusals, labels=labels, foreign=foreign)


@dataclass(frozen=True, slots=True)
class _Sample:
    """Key, metadata and provenance of a sample."""

    key: str
    metadata: Mapping[str, Any]
    source: Mapping[str, str]


def _samples(
    spec: DatasetSpec, shard: Shard, rows: Rows, raws: Mapping[str, Row], provenance: Mapping[str, str]
) -> Iterator[_Sample]:
    """Yield what is known of each row."""
    kind, longest = modality_of(set(rows.fields)), max(map(len, rows.fields))
    starts = {info.key: start for info, start in zip(shard.infos, shard.offsets, strict=True)}
    for source_key, of, told, known, spans in zip(
        rows.source_keys, rows.objects, rows.each_metadata(), rows.sources, rows.spans(), strict=True
    ):
        raw = raws[of]
        source = source_of(spec, raw, source_key, known, provenance)
        if spec.format != "files":  # one of many of its object
            source["raw_start"] = f"byte {int(spans[:, 0].min()) - starts[of]}"
            source["raw_end"] = f"byte {int(spans.sum(axis=1).max()) - starts[of]}"
        key = key_in_dataset(raw, source_key, longest)
        yield _Sample(key, metadata_of(raw, told, kind), source)


def _copy(
    root: loader.Root,
    landing: Store,
    txn: str,
    walked: Sequence[tuple[Shard, Rows]],
    samples: Sequence[Sequence[_Sample]],
    group_of: Mapping[str, str],
    raws: Mapping[str, Row],
) -> tuple[list[loader.Part], None]:
    """Write parts with bytes of their own."""
    parts = []
    keys = [[one.key for one in some] for some in samples]
    for number, (run, some) in enumerate(zip(samples_in(walked, keys), samples, strict=True)):
        read = zip(read_fields(landing, run), some, strict=True)
        given = ((one.key, fields, one.metadata, one.source) for fields, one in read)
        groups = {name: group_of[name] for name in run.fields}
        parts.append(loader.write_part(root, txn, given, group=COMMON, groups=groups, name=f"{number:05d}"))
    return parts, None


def _put_in_place(
    root: loader.Root,
    landing: Store,
    txn: str,
    walked: Sequence[tuple[Shard, Rows]],
    samples: Sequence[Sequence[_Sample]],
    group_of: Mapping[str, str],
    raws: Mapping[str, Row],
) -> tuple[list[loader.Part], dict[str, Any]]:
    """Write an index for each run, the samples tables, and the table of the objects."""
    store, prefix = root.store, f"data/{txn}/{secrets.token_hex(8)}"
    shards = list(dict.fromkeys(shard for shard, _ in walked))
    place = place_id(landing, [info for shard in shards for info in shard.infos])
    put_place(store, place, landing.url)
    keys = [[one.key for one in some] for some in samples]
    bare = put_parts(store, txn, prefix, place, walked, keys, group_of)
    parts = []
    for part, own, some in zip(bare, keys, samples, strict=True):
        table = columns.keys_table(own, [one.source for one in some], part.id)
        more = columns.metadata_table([one.metadata for one in some], part.id, own)
        for name in more.column_names[2:]:
            table = table.append_column(name, more[name])
        path = f"{prefix}/{part.id.removeprefix(f'{txn}-')}.samples.parquet"
        parts.append(replace(part, samples=put_table(store, path, table, "part-samples")))
    objects = [replace(one, sha256=raws[one.key]["sha256"]) for one in objects_of(landing, place, shards)]
    data = table_bytes(foreign_table(objects), "foreign")
    return parts, put_named(store, prefix, "foreign", data, len(objects)).to_json()
