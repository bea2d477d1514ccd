"""Samples of a batch whose raw objects are of another format: they are walked, not cut.

With `keep="copy"` their bytes are copied into parts. With `keep="in place"` a part is an index of them, and the table
of the objects goes with it to publication. Keys begin with the object's hash: batches are published one by one, and an
object may land again with other samples of the same keys.
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
from loader.foreign.parts import objects_of, put_parts, text_of
from loader.foreign.shard_rows import Rows, Shard, key_of, rows_of, shards_of
from loader.storage import ObjectInfo, Store
from penstock.card.counting.classes import modality_of
from penstock.sources.importing.span_blocks import read_rows
from penstock.sources.importing.span_units import rows_in
from penstock.stages import fingerprint

from ..media.media_table import media_row
from ..media.objects import refusal_row
from ..media.unit import Unusable, dropped, rejected
from ..sources import INDEX, INDEXED
from ..spec import DatasetSpec

_AT_ONCE = 8
"""Objects that are walked together."""
_NOT_THE_OBJECTS_FAULT = (Throttled, Transient)
_HASH_LETTERS = 12
"""Number of letters of an object's SHA-256 in front of the keys of its samples."""

Row = dict[str, Any]


class Place:
    """Raw objects of one format where they landed."""

    def __init__(self, landing: Store, format: str) -> None:
        """Costs a listing where an index tells of all objects. Raises: StoreError."""
        self.landing = landing
        self._format = format_named(format)
        self._all: Found | PenstockError | None = None
        if format in INDEXED:
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

    def info(self, row: Mapping[str, Any]) -> ObjectInfo:
        """Return what the store says of a landed object. Raises: Unusable where it is another by now; StoreError."""
        try:
            info = self.landing.head(row["key"])
        except ObjectNotFound as error:
            raise dropped("fetch", type(error).__name__, error) from error
        if (info.nbytes, info.etag) != (row["nbytes"], row["etag"]):
            raise dropped("fetch", Changed.__name__, "the object is not the one that landed; it lands again")
        return info

    def found(self, info: ObjectInfo) -> Found:
        """Return the reader of an object. Raises: as the format; Unusable where it is not of the format."""
        if isinstance(self._all, PenstockError):
            raise self._all
        found = self._all or self._format.look(self.landing, [info])
        if info.key not in {one.key for one in found.infos}:
            what = f"{INDEX} does not list it" if self._all else "it is not of the format"
            raise dropped("probe", "type_not_taken", what)
        return found


def audit_walked(landing: Store, spec: DatasetSpec, landed: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Walk every object once, and return (media rows, refusal rows), in landing order. Raises: StoreError."""
    place = Place(landing, spec.format)

    def one(row: Row) -> Row | Unusable:
        try:
            info = place.info(row)
            (shard,) = shards_of([info], 1)
            if not rows_of(shard, [place.found(info).samples(info)], ()):
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
) -> tuple[list[tuple[str, loader.Part]], list[Row], list[Row], dict[str, Any] | None]:
    """Write the parts of the admitted objects: (kind and part of each, rows of samples, of refusals, objects' table).

    published: sha256 -> where these bytes are in the dataset. The table is of objects that stay in place, plain JSON.

    Raises: FieldMismatch for samples without a field that all of the dataset have; as the format; StoreError.
    """
    place, infos, refusals = Place(landing, spec.format), list[ObjectInfo](), list[Row]()
    for row in audits:
        try:
            if row["sha256"] in published:
                raise dropped("dedup", "duplicate", f"the same bytes as {published[row['sha256']]}")
            infos.append(place.info(raws[row["key"]]))
        except Unusable as unusable:
            refusals.append(refusal_row(row["key"], row["sha256"], unusable))
    if not infos:
        return [], [], refusals, None
    shards = shards_of(sorted(infos, key=lambda info: info.key), place.objects_per_shard)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="penstock-walk") as pool:
        done = list(
            pool.map(
                lambda shard: rows_of(shard, [place.found(one).samples(one) for one in shard.infos], ()),
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
        {
            "key": one.key,
            "unit_id": one.source["unit_id"],
            "kind": kind,
            "part": part.id,
            "raw_key": one.source["raw_key"],
            "raw_sha256": one.source["raw_sha256"],
            "start": one.source.get("raw_start", ""),
            "end": one.source.get("raw_end", ""),
        }
        for kind, part, some in zip(kinds, parts, samples, strict=True)
        for one in some
    ]
    return list(zip(kinds, parts, strict=True)), rows, refusals, foreign


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
    for source_key, of, told, spans in zip(
        rows.source_keys, rows.objects, rows.each_metadata(), rows.spans(), strict=True
    ):
        raw = raws[of]
        identity = raw["label"] if spec.split_by == "subject" else raw["sha256"]
        source = {
            "source_key": text_of(source_key),
            "unit_id": fingerprint(raw["sha256"], source_key),
            "raw_uri": raw["uri"],
            "raw_key": raw["key"],
            "raw_etag": raw["etag"],
            "raw_sha256": raw["sha256"],
            "split": spec.split_of(identity),
            **provenance,
        }
        if spec.split_by == "subject" and raw["label"]:
            source["subject"] = raw["label"]
        if spec.format != "files":  # one of many of its object
            source["raw_start"] = f"byte {int(spans[:, 0].min()) - starts[of]}"
            source["raw_end"] = f"byte {int(spans.sum(axis=1).max()) - starts[of]}"
        metadata = {
            "label": raw["label"],
            "mime": raw["mime"],
            **told,
            "kind": kind,
            "licence": raw["licence"],
        }
        yield _Sample(key_of(f"{raw['sha256'][:_HASH_LETTERS]}/{source_key}", longest), metadata, source)


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
    for number, (run, some) in enumerate(zip(rows_in(walked, keys), samples, strict=True)):
        read = zip(read_rows(landing, run), some, strict=True)
        given = ((one.key, fields, one.metadata, one.source) for (_, fields), one in read)
        groups = {name: group_of[name] for name in run[0].fields}
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
