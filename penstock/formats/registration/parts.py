"""Write registered parts: one index per group, and rows of the samples table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import pyarrow as pa

from loader.dataset.columnar.parquet_chunks import Chunks
from loader.dataset.shards.address import UNKNOWN_CRC
from loader.dataset.shards.index import IndexPlace, index_bytes
from loader.dataset.shards.part import Part, ShardFile
from loader.dataset.shards.seals import put_seal, seal_bytes, seal_path
from loader.dataset.tables import columns
from loader.dataset.tables.foreign_objects import ForeignObject, change_token
from loader.dataset.tables.parquet import footer_sha256
from loader.storage import Store
from loader.storage.external_shards import FOREIGN
from loader.storage.threads import DaemonPool

from ..reading.sample import NO_METADATA, ForeignShard, NumberedKeys, Repeated
from .shard_rows import Int64s, Rows, text_array

AT_ONCE = 16
"""Indexes written concurrently."""


def put_parts(
    store: Store,
    txn: str,
    prefix: str,
    place: str,
    walked: Sequence[tuple[ForeignShard, Rows]],
    keys: Sequence[Sequence[str]],
    group_of: Mapping[str, str],
    *,
    seals: bool,
) -> list[Part]:
    """Write the indexes under `prefix`; return the parts.

    walked: each part's shard and rows, whose places, checksums and indexes are freed. seals: write checksums to seals.
    """

    def put(number: int) -> Part:
        (shard, rows), own = walked[number], text_array(keys[number])
        part = _id(txn, number)
        groups: dict[str, list[str]] = {}
        for name in rows.fields:
            groups.setdefault(group_of[name], []).append(name)
        path = shard_path(place, shard)
        # The walk built it in advance, for one group and unchanged keys.
        index = rows.index if len(groups) == 1 and keys[number] is rows.source_keys else None
        shards = [
            (index or index_files(rows, names, path, own, seals)).put(
                store,
                f"{prefix}/{group}-{number:05d}",
                part=part,
                group=group,
                path=path,
                nbytes=shard.nbytes,
                n_rows=len(own),
            )
            for group, names in sorted(groups.items())
        ]
        rows.index = None
        rows.places = rows.crcs = None  # now in the indexes and seals
        return Part(id=part, txn=txn, n_rows=len(own), shards=tuple(shards), samples=None)

    with DaemonPool(AT_ONCE, "penstock-register") as pool:
        return list(pool.map(put, range(len(walked))))


@dataclass(frozen=True, slots=True)
class SampleTables(Sequence[pa.Table]):
    """Each part's rows of the samples table, built on demand."""

    txn: str
    """Transaction id."""
    rows: Sequence[Rows]
    """Rows by part."""
    keys: Sequence[Sequence[str]]
    """Sample keys by part."""

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> pa.Table: ...
    @overload
    def __getitem__(self, at: slice) -> list[pa.Table]: ...
    def __getitem__(self, at: int | slice) -> pa.Table | list[pa.Table]:
        if isinstance(at, slice):
            return [self[number] for number in range(len(self))[at]]
        own = self.keys[at]
        return _samples(self.rows[at], _id(self.txn, at), own, text_array(own))


def _id(txn: str, number: int) -> str:
    return f"{txn}-{number:05d}"


def object_rows(
    store: Store, place: str, shards: Sequence[ForeignShard], chunks: Mapping[str, Chunks] = NO_METADATA
) -> list[ForeignObject]:
    """Return the shards' rows for the table of objects. chunks: `FoundObjects.chunks`."""
    return [
        ForeignObject(
            shard=shard_path(place, shard),
            offset=offset,
            path=f"{FOREIGN}{place}/{info.key}",
            nbytes=info.nbytes,
            etag=change_token(store, info),
            modified_us=info.modified_us or 0,
            chunks=chunks[info.key].to_row() if info.key in chunks else None,
        )
        for shard in shards
        for info, offset in zip(shard.infos, shard.offsets, strict=True)
    ]


def shard_path(place: str, shard: ForeignShard) -> str:
    """Return a shard's path. place: id of its source."""
    return f"{FOREIGN}{place}/{shard.name}"


def _places(rows: Rows, name: str) -> Int64s:
    """Return int64 [rows, 3]: offset, nbytes and CRC-32C of a field."""
    column = rows.fields.index(name)
    if len(rows.crcs):
        crcs = rows.crcs[:, column]
    else:  # the format gives none
        crcs = np.full(len(rows.source_keys), UNKNOWN_CRC, np.int64)
    spans = rows.spans()[:, column]  # [rows, 2]
    return np.concatenate([spans, crcs[:, None]], axis=1)


@dataclass(frozen=True, slots=True)
class IndexFiles:
    """Index and seal of a group in a registered shard, in memory."""

    index: bytes
    seal_path: str
    """Relative to the root; "" if none."""
    seal: bytes
    """b"" without a path."""
    field_nbytes: dict[str, int]
    """Field -> total bytes."""

    @staticmethod
    def of(path: str, keys: pa.Array, fields: dict[str, Int64s], seals: bool = False) -> "IndexFiles":
        """Return one group's files.

        fields: field name -> int64 [rows, 3]: offset in the shard, nbytes, CRC-32C. seals: move the checksums to a
        seal.
        """
        # Only in the seal: an index must not depend on which bytes a registration read.
        crcs: dict[str, Int64s] = {}
        if seals:
            for name, table in fields.items():
                crcs[name] = table[:, 2].copy()
                table[:, 2] = UNKNOWN_CRC
        index = index_bytes(keys, fields)
        nbytes = {name: int(table[:, 1].sum()) for name, table in fields.items()}
        if not seals:
            return IndexFiles(index, "", b"", nbytes)
        sealed = seal_path(path, footer_sha256(index))
        return IndexFiles(index, sealed, seal_bytes(sealed, crcs), nbytes)

    def put(
        self, store: Store, stem: str, *, part: str, group: str, path: str, nbytes: int, n_rows: int
    ) -> ShardFile:
        """Write the files; return the shard's row of the shards table.

        stem: index path without ".index.parquet". path, nbytes: of the shard.
        """
        at = IndexPlace.measure(f"{stem}.index.parquet", self.index)
        store.put_if_absent(at.path, self.index)
        if self.seal_path:
            put_seal(store, self.seal_path, self.seal)
        return ShardFile(
            part=part,
            group=group,
            path=path,
            nbytes=nbytes,
            sha256="",
            n_rows=n_rows,
            field_nbytes=self.field_nbytes,
            **at.row(),
        )


def index_files(rows: Rows, names: Iterable[str], path: str, keys: pa.Array, seals: bool) -> IndexFiles:
    """Return a group's files in a part. names: its fields. Otherwise like `IndexFiles.of`."""
    return IndexFiles.of(
        path, keys, {name: _places(rows, name) for name in names}, seals and len(rows.crcs) > 0
    )


def _samples(rows: Rows, part: str, own: Sequence[str], keys: pa.Array) -> pa.Table:
    n = len(keys)
    sources = rows.sources
    if isinstance(sources, Repeated):
        known = {name: pa.repeat(value, n) for name, value in sources.value.items()}
    else:
        known = columns.source_arrays(sources)
    if own != rows.source_keys:
        known["source_key"] = _source_keys(rows, own)
    known |= {
        "part": pa.repeat(part, n),
        "row": pa.array(np.arange(n)),
        "key": keys,
        "raw_key": text_array(rows.objects),
    }
    arrays = [known.get(field.name, pa.nulls(n, field.type)) for field in columns.KEYS_SCHEMA]
    table = pa.table(arrays, schema=columns.KEYS_SCHEMA)
    more = rows.metadata
    if not isinstance(more, pa.Table):
        has_metadata = not isinstance(more, Repeated) and any(more)
        more = columns.metadata_table(more, part, own).drop_columns(["part", "row"]) if has_metadata else None
    for name in more.column_names if more is not None else ():
        table = table.append_column(name, more[name])
    return table


def _source_keys(rows: Rows, own: Sequence[str]) -> pa.Array:
    theirs = rows.source_keys
    if isinstance(theirs, NumberedKeys) and isinstance(own, NumberedKeys):  # their prefixes differ
        return text_array(NumberedKeys(key_text(theirs.prefix), theirs.first, theirs.n))
    triples = zip(theirs, own, rows.sources, strict=True)
    source_keys = [
        key_text(key) if key != own_key else one.get("source_key") for key, own_key, one in triples
    ]
    return pa.array(source_keys, pa.string())


def key_text(key: str) -> str:
    r"""Return a key as text; bytes that are not UTF-8 become \xNN."""
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
