"""`penstock index`: code the parts of a version that have no segment yet, and merge small segments.

Parts are coded whole, excluded rows too: a later version, an earlier one and one with other exclusions share their
segments. Equal parts have equal codes, and a segment is named by its content. So several makers, and killed ones, leave
the same index. A segment is never replaced or deleted here; a collector deletes a segment if a larger one covers it.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from loader import Root, Version
from loader.dataset.log.marker import check_primary
from loader.dataset.search.embedding_codes import code_kind, code_ranges, encode
from loader.dataset.search.index_record import (
    SQ8,
    TEXTS,
    IndexRecord,
    field_index_record,
    read_index_record,
    similarity_field,
    text_fields,
)
from loader.dataset.search.segments import (
    SegmentKind,
    VersionPart,
)
from loader.dataset.search.text_reads import TextReader, text_kind
from loader.dataset.search.vectors import UnitVectors, VectorReader, field_ordinals
from loader.dataset.tables.arrow_values import booleans
from loader.dataset.versions.sample_search import forget_searches
from loader.errors import AlreadyExists, FieldMismatch, FieldNotFound

from ..progress import progress
from .missing_parts import PartValues, put_missing

RANGE_SAMPLES = 50_000
"""Embeddings, evenly spread, whose values decide the ranges of codes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldIndex:
    """An indexed field."""

    field: str
    folder: str
    """Folder of its segments in the root."""
    n_samples: int
    """Samples of the version with this field."""
    n_new: int
    """Rows that were coded now."""
    n_segments: int
    """Segments that the version reads."""
    nbytes: int
    """Bytes of all segments of the folder."""
    damaged: dict[str, str]
    """Path of a segment that is left out -> what is wrong with it."""

    def to_json(self) -> dict[str, Any]:
        return {
            "field": self.field,
            "folder": self.folder,
            "n_samples": self.n_samples,
            "n_new": self.n_new,
            "n_segments": self.n_segments,
            "nbytes": self.nbytes,
            "damaged": self.damaged,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexReport:
    """An index of a version's fields."""

    version: str
    """Version name, such as `photos@7`."""
    fields: tuple[FieldIndex, ...]
    seconds: float
    """Seconds that it took."""

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "fields": [each.to_json() for each in self.fields],
            "seconds": round(self.seconds, 3),
        }


def record_kind(record: IndexRecord) -> SegmentKind:
    """Return the kind of segments that a record's folder has."""
    if record.code == TEXTS:
        return text_kind(record)
    return code_kind(record)


def check_writable(root: Root) -> None:
    """Raise Conflict for a mirror, or a former primary: `penstock migrate run` copies indexes and maps to a mirror."""
    root.create()  # refuses a mirror
    check_primary(root.store, root.state)


def make_index(root: Root, ref: str, field: str | None = None) -> IndexReport:
    """Index a field of a version, or its embedding and all of its texts.

    Reads the field of the parts that no segment has. Raises: FieldNotFound; FieldMismatch for a field without readable
    embeddings; Conflict in a mirror.
    """
    started_s = time.monotonic()
    version = root.open(ref)
    check_writable(root)
    indexes = []
    for name in index_fields(version, field):
        if name in _texts(version):
            indexes.append(_index_texts(version, name))
        else:
            indexes.append(_index_embeddings(version, name))
    forget_searches(version)
    return IndexReport(
        version=version.name,
        fields=tuple(indexes),
        seconds=time.monotonic() - started_s,
    )


def index_fields(version: Version, field: str | None) -> list[str]:
    """Return the fields that `penstock index` indexes. Raises: FieldNotFound if there are none."""
    if field is not None:
        version.group_of(field)
        return [field]
    names = list(_texts(version))
    # A dataset of texts has no embedding, and one of photos may have no texts: either is enough.
    try:
        names.insert(0, similarity_field(version, None))
    except FieldNotFound:
        if not names:
            raise
    return names


def _texts(version: Version) -> tuple[str, ...]:
    try:
        return text_fields(version, None)
    except FieldNotFound:
        return ()


def drop_index(root: Root, ref: str, field: str | None = None) -> list[str]:
    """Delete the index of a field, or of all fields that `make_index` takes; return the deleted paths.

    Searches of other versions of the dataset lose it too. Raises: FieldNotFound; Forbidden without the right to delete.
    """
    version = root.open(ref)
    check_writable(root)
    deleted = []
    for name in index_fields(version, field):
        record = stored_record(version, name)
        if record is None:
            continue
        paths = [info.key for info in root.store.list(record.folder)]
        # The record last: after a kill, a new record must not find segments of the old one.
        if record.path in paths:
            paths.remove(record.path)
            paths.append(record.path)
        root.store.delete_many(paths)
        deleted += paths
    forget_searches(version)
    return deleted


def stored_record(version: Version, field: str) -> IndexRecord | None:
    """Return the record of a field's index; None without one, or without a readable embedding."""
    if field in _texts(version):
        return read_index_record(version.store, field_index_record(version, field, TEXTS))
    reader = VectorReader(version, field)
    try:
        numbers = _width(version, reader, field)
    finally:
        reader.close()
    if not numbers:
        return None
    record = field_index_record(
        version,
        field,
        SQ8,
        numbers,
    )
    return read_index_record(version.store, record)


def _width(version: Version, reader: VectorReader, field: str) -> int:
    """Return the numbers of a field's embeddings; 0 if none is readable."""
    ordinals = field_ordinals(version, field)
    for _ in reader.blocks(ordinals):
        if reader.width:
            break
    return reader.width


def _index_embeddings(version: Version, field: str) -> FieldIndex:
    reader = VectorReader(version, field)
    try:
        record = _embedding_record(version, reader, field)
        kind = code_kind(record)

        def values(part: VersionPart, is_coded: np.ndarray) -> pa.Table:
            # Block by block: a part's embeddings take four times the memory of its codes.
            return _code_table(reader.part(part.position), record, is_coded)

        return _index(version, record, kind, values)
    finally:
        reader.close()


def _embedding_record(version: Version, reader: VectorReader, field: str) -> IndexRecord:
    """Return the stored record of a field, or store one. Raises: FieldMismatch."""
    ordinals = field_ordinals(version, field)
    numbers = _width(version, reader, field)
    if not numbers:
        raise FieldMismatch(
            f"{version.name} has no readable embedding in {field!r}: arrays of floats with one dimension are needed",
            what=field,
            where=version.name,
            accepted="arrays of floats with one dimension",
        )
    record = field_index_record(
        version,
        field,
        SQ8,
        numbers,
    )
    stored = read_index_record(version.store, record)
    if stored is not None:
        return stored
    # Evenly spread: neighbours often come from one source, and have similar embeddings.
    step = max(1, len(ordinals) // RANGE_SAMPLES)
    low = np.full(numbers, np.inf, np.float32)
    high = np.full(numbers, -np.inf, np.float32)
    sample = ordinals[::step]
    for _, vectors in progress(reader.blocks(sample), "ranges", _block_size, len(sample)):
        valid = vectors.rows[vectors.is_valid]
        if len(valid):
            low = np.minimum(low, valid.min(axis=0))
            high = np.maximum(high, valid.max(axis=0))
    if not np.isfinite(low).all():
        raise FieldMismatch(
            f"{version.name} has no usable embedding in {field!r}: all are zero or not finite",
            what=field,
            where=version.name,
            accepted="vectors that are finite and not zero",
        )
    # The ranges of both ends are the ranges of all vectors between them.
    low, high = code_ranges(np.stack([low, high]))
    return _put_record(
        version,
        replace(
            record,
            low=tuple(low.astype(float).tolist()),
            high=tuple(high.astype(float).tolist()),
            version=version.id,
        ),
    )


def _block_size(block: tuple[np.ndarray, UnitVectors]) -> int:
    return len(block[0])


def _put_record(version: Version, record: IndexRecord) -> IndexRecord:
    """Store a record, and return the stored one."""
    with suppress(AlreadyExists):  # of another maker: its ranges count
        version.store.put_if_absent(record.path, record.to_bytes())
    stored = read_index_record(version.store, record)
    if stored is None:
        raise FieldNotFound(f"{record.path} was deleted while {version.name} was indexed: index it again")
    return stored


def _code_table(
    blocks: Iterable[UnitVectors],
    record: IndexRecord,
    is_coded: np.ndarray,
) -> pa.Table:
    """Return the codes of a part's rows, null where `is_coded`, bool [rows], is False or an embedding is unusable."""
    n = len(is_coded)
    codes = np.zeros((n, record.numbers), np.uint8)
    is_valid = np.zeros(n, bool)
    start = 0
    for vectors in blocks:
        rows = slice(start, start + len(vectors.rows))
        start = rows.stop
        # A block has another width if none of its embeddings is readable.
        if vectors.rows.shape[1] == record.numbers:
            codes[rows] = encode(vectors.rows, record)
            is_valid[rows] = vectors.is_valid
    is_valid &= is_coded
    codes[~is_valid] = 0  # equal bytes for equal codes, whatever an unusable embedding had
    bits = np.packbits(is_valid, bitorder="little")
    array = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(record.numbers),
        n,
        [pa.py_buffer(bits), pa.py_buffer(codes)],
    )
    return pa.table({"code": array})


def _index_texts(version: Version, field: str) -> FieldIndex:
    # Texts have no ranges: the record only names the folder's field.
    record = _put_record(version, field_index_record(version, field, TEXTS))
    reader = TextReader(version, field)
    try:

        def values(part: VersionPart, is_coded: np.ndarray) -> pa.Table:
            texts = reader.part(part.position).combine_chunks()
            (nothing,) = pa.nulls(1, pa.string())
            return pa.table({"text": pa.compute.if_else(booleans(is_coded), texts, nothing)})

        return _index(version, record, text_kind(record), values)
    finally:
        reader.close()


def _index(version: Version, record: IndexRecord, kind: SegmentKind, values: PartValues) -> FieldIndex:
    """Store segments of the missing parts."""
    n_new, covered = put_missing(
        version,
        record.field,
        record.folder,
        kind,
        values,
        f"index {record.field}",
    )
    nbytes = sum(info.nbytes for info in version.store.list(record.folder))
    return FieldIndex(
        field=record.field,
        folder=record.folder,
        n_samples=len(field_ordinals(version, record.field)),
        n_new=n_new,
        n_segments=len(covered.segments),
        nbytes=nbytes,
        damaged=covered.damaged,
    )
