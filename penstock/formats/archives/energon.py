"""Energon datasets: WebDataset archives whose field names keep their case.

The index is used if its samples fill the archive and the last header is where expected; otherwise headers are read. An
export is each split's archives, their offsets, and `.nv-meta`.
"""

import sqlite3
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from loader.dataset.columnar.json_members import FIELD, JsonMembers
from loader.json_text import canonical_json
from loader.storage import ByteRange, ObjectInfo, Store

from ..exporter import ADDRESSES, ExportSelection, Loss, Outbox, WorkUnit, metadata_json
from ..reading.exported import Exported, SampleColumns, find_export, metadata_member
from ..reading.object_file import ForwardReader, Neighbours
from ..reading.sample import ForeignSample, FoundObjects
from ..reading.stated_counts import StatedCounts
from .energon_index import (
    FOLDER,
    INDEX,
    INFO,
    SPLIT,
    IndexedMember,
    IndexedTar,
    NvMeta,
    read_index,
    read_meta,
)
from .field_names import FieldNames
from .tar_headers import BLOCK_BYTES, is_header
from .webdataset import (
    JsonDocuments,
    MemberPlace,
    archive_samples,
    members_end,
    metadata_loss,
    places,
    put_archive,
    read_metadata,
)

OBJECTS_PER_SHARD = 1


def find_objects(store: Store, infos: list[ObjectInfo]) -> FoundObjects:
    objects = {info.key: info for info in infos}
    meta = read_meta(store, objects)
    index: Mapping[int, IndexedTar] = {}
    if INDEX in objects:
        index = read_index(store, objects[INDEX], len(meta.counts))
    indexed = {key: index[number] for number, key in enumerate(meta.counts) if number in index}
    exported = find_export(store, infos, "energon")
    members = None
    if not exported:
        members = JsonMembers()
    stated = StatedCounts()
    for key in meta.counts:
        if key not in objects:
            stated.lacks(f"{store.url}/{FOLDER} lists {key!r}, which is not there", key)
    dataset = _EnergonDataset(store, meta, indexed, exported, Neighbours(), members, stated, FieldNames())
    listed = [info for info in infos if info.key in meta.counts and info.key not in meta.excluded]
    return FoundObjects(listed, dataset.samples, members=members, stated=stated, seals=True)


class _EnergonDataset(NamedTuple):
    store: Store
    meta: NvMeta
    indexed: Mapping[str, IndexedTar]
    exported: Exported | None
    neighbours: Neighbours
    members: JsonMembers | None
    stated: StatedCounts
    field_names: FieldNames

    def samples(self, info: ObjectInfo) -> Iterator[ForeignSample]:
        """Yield an archive's samples, except excluded ones."""
        split = self.meta.splits.get(info.key)
        reader = ForwardReader(self.store, info, neighbours=self.neighbours)
        n_samples = 0
        try:
            samples = self._by_index(reader, info)
            if samples is None:
                samples = archive_samples(reader, self.exported, self.members, self.field_names, lower=False)
            for sample in samples:
                n_samples += 1
                if self._is_excluded(info, sample.key):
                    continue
                if split is not None and self.exported is None:
                    sample = sample._replace(source={"split": split})
                yield sample
        finally:
            reader.close()
        what = f"{self.store.url}/{FOLDER}{INFO[0]}, of {info.key!r},"
        self.stated.compare(what, "samples", self.meta.counts[info.key], n_samples)

    def _is_excluded(self, info: ObjectInfo, key: str) -> bool:
        # `tar` of a folder writes ./key, which the list of exclusions keeps.
        names = (f"{info.key}/{key}", f"{info.key}/./{key}")
        return not self.meta.excluded.isdisjoint(names)

    def _by_index(self, reader: ForwardReader, info: ObjectInfo) -> Iterator[ForeignSample] | None:
        if info.key not in self.indexed:
            return None
        indexed_samples = self.indexed[info.key].samples(info.nbytes, self.meta.counts[info.key])
        # A header where the index has the last member shows that it describes this archive.
        if indexed_samples is None or not _has_header(reader, *indexed_samples[-1]):
            return None
        return self._each(reader, indexed_samples)

    def _each(
        self, reader: ForwardReader, indexed_samples: list[tuple[str, list[IndexedMember]]]
    ) -> Iterator[ForeignSample]:
        metadata_name = None
        if self.exported:
            metadata_name = metadata_member(self.exported.fields)
        documents = JsonDocuments(reader, self.members, lower=False)
        # First all documents, which are read together, then the samples.
        for _, members in indexed_samples:
            for member in members:
                if member.name == FIELD:
                    documents.add(ByteRange(member.offset, member.nbytes), reader.read)
        rows = documents.rows()
        for key, members in indexed_samples:
            fields = {member.name: ByteRange(member.offset, member.nbytes) for member in members}
            for name in fields:
                self.field_names.add(name, f"{key}.{name}")
            columns: SampleColumns | tuple[()] | tuple[dict[str, Any]] = ()
            if rows and FIELD in fields:
                columns = (rows[fields[FIELD].offset],)
            if self.exported and metadata_name in fields:
                document = fields.pop(metadata_name)
                columns = read_metadata(reader, self.exported, document, key)
            yield ForeignSample(key.removeprefix("./"), fields, *columns)


def _has_header(reader: ForwardReader, key: str, members: list[IndexedMember]) -> bool:
    last = members[-1]
    block = reader.read(last.offset - BLOCK_BYTES, BLOCK_BYTES)
    return is_header(block, f"{key}.{last.name}", last.nbytes)


ALL = "train"
"""Split for all samples if the version has no column `split`."""
DATASET = {"__class__": "CrudeWebdataset", "__module__": "megatron.energon"}
"""Energon class that yields a sample as field -> bytes."""
_TABLES = """
CREATE TABLE samples (
    tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, sample_index INTEGER NOT NULL,
    byte_offset INTEGER, byte_size INTEGER);
CREATE TABLE sample_parts (
    tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, content_byte_offset INTEGER, content_byte_size INTEGER);
"""
_INDEXES = """
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full
    ON sample_parts(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size);
"""


def losses(selection: ExportSelection) -> list[Loss]:
    """Return the metadata's losses, and how many samples have no split."""
    out = metadata_loss(selection)
    if "split" in selection.columns:
        splits = selection.frame.filter(selection.members)["split"]
        n = splits.null_count()
        if n:
            why = "Energon reads only samples of a split: their archives are written, but no split has them"
            out.append(Loss(f"{n} samples without a split", why))
    return out


def units(selection: ExportSelection) -> list[WorkUnit]:
    """Return a unit per part and split; samples without a split come in units of their own."""
    out: list[WorkUnit] = []
    for unit in selection.by_part():
        names = [_split(selection, ordinal) or "" for ordinal in unit.ordinals.tolist()]
        splits = np.array(names, object)  # [samples of the unit]
        for split in dict.fromkeys(names):
            ordinals = unit.ordinals[splits == split]
            out.append(replace(unit, number=len(out), ordinals=ordinals))
    return out


def write(selection: ExportSelection, unit: WorkUnit, outbox: Outbox) -> dict[str, Any]:
    starts = put_archive(selection, unit, outbox, _name(unit))
    outbox.put(f"{_name(unit)}.idx", np.array(starts, "<u8").tobytes())
    return {}


def finish(selection: ExportSelection, facts: Sequence[dict[str, Any]], outbox: Outbox) -> None:
    """Write `.nv-meta`, its list of archives last."""
    units_written = units(selection)
    splits: dict[str, list[str]] = {}
    for unit in units_written:
        split: str | None = ALL
        if "split" in selection.columns:
            split = _split(selection, int(unit.ordinals[0]))
        if split:
            splits.setdefault(split, []).append(_name(unit))
    with outbox.path(INDEX) as path:
        _write_index(path, selection, units_written)
    outbox.put(f"{FOLDER}{SPLIT[0]}", canonical_json({"exclude": [], "split_parts": splits}))
    outbox.put(f"{FOLDER}dataset.yaml", canonical_json(DATASET))
    # Not random: two exports of a version have equal bytes.
    identity = f"{selection.version.id} {selection.n_samples} {' '.join(selection.fields)}"
    outbox.put(f"{FOLDER}index.uuid", str(uuid.uuid5(uuid.NAMESPACE_URL, identity)).encode())
    counts = {_name(unit): len(unit.ordinals) for unit in units_written}
    outbox.put(f"{FOLDER}{INFO[0]}", canonical_json({"shard_counts": counts}))


def _name(unit: WorkUnit) -> str:
    return f"{unit.number:06d}.tar"


def _split(selection: ExportSelection, ordinal: int) -> str | None:
    if "split" not in selection.columns:
        return None
    split: str | None = selection.frame["split"][ordinal]
    return split


def _write_index(path: str, selection: ExportSelection, units_written: Sequence[WorkUnit]) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.executescript(
            "PRAGMA page_size=4096; PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + _TABLES
        )
        database.execute("BEGIN")
        for unit in units_written:
            start = 0
            for number, (key, members) in enumerate(_layout(selection, unit)):
                end = members_end(members, start)
                database.execute(
                    "INSERT INTO samples VALUES (?, ?, ?, ?, ?)",
                    (unit.number, key, number, start, end - start),
                )
                rows = [
                    (unit.number, number, member.name, member.offset, member.nbytes) for member in members
                ]
                database.executemany("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", rows)
                start = end
        database.execute("COMMIT")
        # After the rows: an index that grows with each row takes longer.
        database.executescript(_INDEXES)


def _layout(selection: ExportSelection, unit: WorkUnit) -> Iterator[tuple[str, list[MemberPlace]]]:
    """Yield each sample's key and where `put_archive` writes its members."""
    metadata_name = metadata_member(selection.fields)
    end = 0
    for start in range(0, len(unit.ordinals), ADDRESSES):
        ordinals = unit.ordinals[start : start + ADDRESSES]
        addresses = selection.version.address(ordinals, unit.fields)
        for address, columns in zip(addresses, selection.rows(ordinals), strict=True):
            sizes = {name: place.nbytes for name, place in address.fields.items()}
            if metadata_name and columns:
                sizes[metadata_name] = len(metadata_json(columns))
            members = places(address.key, sizes, end)
            end = members_end(members, end)
            yield address.key, members
