"""Write one part: a shard and its index per group, and the part's rows of the samples table."""

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import EmptyVersion, FieldMismatch, InvalidField, InvalidSample
from ...modalities import encode
from ...native import IN_MEMORY, UNKNOWN_CRC, OpenFile, gather
from ...storage import Store
from ...storage.disk.scratch import OnScratch
from ...storage.store import new_in_place
from ..names import check_field, check_group, check_key, member_name, member_names
from ..shards.index import IndexPlace, index_bytes
from ..shards.part import Part, ShardFile
from ..shards.shard import (
    MAX_FIELD_BYTES,
    Int64s,
    Payload,
    ShardWriter,
    check_field_bytes,
    loaded,
    payload_bytes,
)
from ..tables import columns
from ..tables.columns import table_of_any
from ..tables.parquet import put_table
from .spill import Sample, Spill

Uint8s = np.ndarray[Any, np.dtype[np.uint8]]
Groups = Callable[[str], str]


def group_chooser(default: str, groups: Mapping[str, str] | None) -> Groups:
    """Return a function from field to group: as in `groups`, or `default` for other fields."""
    chosen = {check_field(field): check_group(group) for field, group in (groups or {}).items()}
    check_group(default)
    return lambda field: chosen.get(field, default)


def make_sample(
    key: str,
    fields: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    source: Mapping[str, Any] | None = None,
) -> Sample:
    """Return a checked sample with encoded fields. Raises: subclasses of InvalidSample, which name key and field."""
    check_key(key)
    if not isinstance(fields, Mapping) or not fields:
        raise InvalidSample(f"sample {key!r} has no fields; pass a dict such as {{'jpg': bytes, 'cls': 3}}")
    encoded: dict[str, bytes] = {}
    for field in fields:
        member_name(key, check_field(field))
    check_case(fields, f"sample {key!r}")
    for field, value in fields.items():
        nbytes = value.nbytes if isinstance(value, memoryview | np.ndarray) else 0
        check_field_bytes(key, field, nbytes)  # before any of it is copied
        try:
            data = encode(field, value)
        except InvalidSample as error:
            error.add_note(f"in sample {key!r}")
            raise
        check_field_bytes(key, field, memoryview(data).nbytes)
        encoded[field] = bytes(data)  # bytes are not copied; other buffers may change later
    return Sample(
        key=key,
        fields=encoded,
        metadata=columns.check_metadata(key, metadata or {}),
        source=columns.check_source(key, source or {}),
    )


def check_case(fields: Iterable[str], whose: str) -> None:
    """Raise InvalidField if two fields differ only in case."""
    folded: dict[str, str] = {}
    for field in fields:
        if (other := folded.setdefault(field.lower(), field)) != field:
            raise InvalidField(
                f"{whose} has fields {other!r} and {field!r}, which differ in case only: webdataset and many disks "
                "take them for one; rename one of them"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBlock:
    """Neighbouring samples with the same fields, whose bytes are written directly into a shard."""

    keys: Sequence[str]
    """Key per sample; at least one."""
    fields: Sequence[str]
    """Field names, sorted."""
    sizes: Int64s
    """int64 [samples, fields]: sizes in bytes."""
    metadata: Sequence[Mapping[str, Any]]
    """Checked metadata per sample."""
    sources: Sequence[Mapping[str, str]]
    """Checked provenance per sample."""
    fill: Callable[[Sequence[int], Uint8s, Int64s], Int64s]
    """(columns, memory, at) -> int64 [samples, columns], CRC-32Cs: writes sample i, column j at offset `at[i, j]`.
    """

    @property
    def nbytes(self) -> int:
        return int(self.sizes.sum())


def block_of(samples: Sequence[Sample]) -> SampleBlock:
    """Return samples with the same fields as a block. Do not change their buffers until it is written."""
    fields = sorted(samples[0].fields)
    sizes = np.array([[payload_bytes(one.fields[name]) for name in fields] for one in samples], np.int64)

    def fill(columns: Sequence[int], memory: Uint8s, at: Int64s) -> Int64s:
        names = [fields[number] for number in columns]
        data: list[OpenFile] = [(IN_MEMORY, loaded(one.fields[name])) for one in samples for name in names]
        which, begin = np.arange(len(data)), np.zeros(len(data), np.int64)
        crcs, status = np.full(len(data), UNKNOWN_CRC), np.empty(len(data), np.uint8)
        nbytes = np.ascontiguousarray(sizes[:, columns]).reshape(-1)
        gather(data, which, begin, nbytes, b"", memory, np.ascontiguousarray(at).reshape(-1), crcs, status)
        return crcs.reshape(at.shape)

    return SampleBlock(
        keys=[one.key for one in samples],
        fields=fields,
        sizes=sizes,
        metadata=[one.metadata for one in samples],
        sources=[one.source for one in samples],
        fill=fill,
    )


class PartWriter:
    """Takes samples in final order. `finish` uploads everything; an exception before it leaves nothing behind."""

    def __init__(
        self,
        store: Store,
        *,
        txn: str,
        attempt: str,
        name: str,
        group_of: Groups,
        any_values: bool = False,
    ) -> None:
        """any_values: metadata types are undeclared; `table_of_any` unifies them."""
        self._any_values = any_values
        self.id = f"{txn}-{name}"
        self._store, self._txn, self._name = store, txn, name
        self._prefix = f"data/{txn}/{attempt}"
        self._group_of = group_of
        self._shards: dict[str, _OpenShard] = {}
        self._layout: dict[str, tuple[str, ...]] | None = None
        self._keys: list[str] = []
        self._metadata: list[Mapping[str, Any]] = []
        self._sources: list[Mapping[str, str]] = []

    @property
    def n_rows(self) -> int:
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        return max((shard.tar.nbytes for shard in self._shards.values()), default=0)

    def add(self, sample: Sample) -> None:
        layout = self._opened(sample.key, sample.fields)
        for group, shard in self._shards.items():
            shard.add(sample.key, [(field, sample.fields[field]) for field in layout[group]])
        self._keys.append(sample.key)
        self._metadata.append(sample.metadata)
        self._sources.append(sample.source)

    def add_block(self, block: SampleBlock) -> None:
        layout = self._opened(block.keys[0], block.fields)
        for group, shard in self._shards.items():
            shard.add_block(block, [block.fields.index(field) for field in layout[group]])
        self._keys += block.keys
        self._metadata += block.metadata
        self._sources += block.sources

    def finish(self, with_samples: bool = True) -> Part:
        """Upload shards, indexes and, unless `with_samples` is False, the samples table."""
        try:
            shards = tuple(self._upload(group, shard) for group, shard in self._shards.items())
        finally:
            self.close()
        samples = None
        if with_samples:
            keys = columns.keys_table(self._keys, self._sources, self.id)
            if self._any_values:
                table = table_of_any(self._metadata)
            else:
                table = columns.metadata_table(self._metadata, self.id, self._keys).drop_columns(
                    ["part", "row"]
                )
            for name in table.column_names:
                keys = keys.append_column(name, table[name])
            samples = put_table(
                self._store, f"{self._prefix}/{self._name}.samples.parquet", keys, "part-samples"
            )
        return Part(id=self.id, txn=self._txn, n_rows=self.n_rows, shards=shards, samples=samples)

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()

    def _opened(self, key: str, fields: Collection[str]) -> dict[str, tuple[str, ...]]:
        layout = self._layout_of(fields)
        if self._layout is None:
            self._layout = layout
            self._shards = {
                group: _OpenShard(self._store, f"{self._prefix}/{group}-{self._name}.tar", names)
                for group, names in layout.items()
            }
        elif layout != self._layout:
            raise mismatch(key, layout, self._layout, f"sample {self._keys[0]!r}")
        return layout

    def _layout_of(self, fields: Collection[str]) -> dict[str, tuple[str, ...]]:
        layout: dict[str, list[str]] = {}
        for field in sorted(fields):
            layout.setdefault(self._group_of(field), []).append(field)
        return {group: tuple(fields) for group, fields in sorted(layout.items())}

    def _upload(self, group: str, shard: "_OpenShard") -> ShardFile:
        sha256 = shard.finish()
        index = index_bytes(self._keys, shard.spans(), shard.tar.pages)
        stem = shard.path.removesuffix(".tar")
        place = IndexPlace.measure(f"{stem}.index.parquet", index, len(shard.tar.pages))
        self._store.put_if_absent(place.path, index)
        return ShardFile(
            part=self.id,
            group=group,
            path=shard.path,
            nbytes=shard.tar.nbytes,
            sha256=sha256,
            n_rows=self.n_rows,
            field_nbytes=shard.field_nbytes,
            **place.row(),
        )


class _OpenShard:
    """An unfinished shard."""

    def __init__(self, store: Store, path: str, fields: Sequence[str]) -> None:
        self.path, self.fields = path, fields
        self._new = new_in_place(store, path) or OnScratch(store, path)
        self.tar = ShardWriter(self._new.write)
        self._spans: list[Int64s] = []
        self._rows: list[list[tuple[int, int, int]]] = []

    def add(self, key: str, fields: Sequence[tuple[str, Payload]]) -> None:
        self._rows.append([self.tar.add(key, field, data) for field, data in fields])

    def add_block(self, block: SampleBlock, columns: Sequence[int]) -> None:
        names, sizes = [block.fields[number] for number in columns], block.sizes[:, columns]
        if int(sizes.max()) > MAX_FIELD_BYTES:
            for key, row in zip(block.keys, sizes.tolist(), strict=True):
                for name, nbytes in zip(names, row, strict=True):
                    check_field_bytes(key, name, nbytes)
        members = member_names(block.keys, names)

        def fill(memory: Uint8s, at: Int64s) -> Int64s:
            return block.fill(columns, memory, at.reshape(sizes.shape)).reshape(-1)

        self._settle()
        self._spans.append(self.tar.add_many(members, sizes.reshape(-1), fill).reshape(*sizes.shape, 3))

    def finish(self) -> str:
        sha256 = self.tar.finish()
        self._new.finish()
        return sha256

    def spans(self) -> dict[str, Int64s]:
        self._settle()
        table = np.concatenate(self._spans)
        return {field: table[:, position] for position, field in enumerate(self.fields)}

    @property
    def field_nbytes(self) -> dict[str, int]:
        return {field: int(spans[:, 1].sum()) for field, spans in self.spans().items()}

    def close(self) -> None:
        self._new.close()

    def _settle(self) -> None:
        if self._rows:
            self._spans.append(np.array(self._rows, np.int64).reshape(len(self._rows), len(self.fields), 3))
            self._rows = []


def mismatch(
    key: str, got: Mapping[str, Sequence[str]], expected: Mapping[str, Sequence[str]], where: str
) -> FieldMismatch:
    have = {field for fields in got.values() for field in fields}
    want = {field for fields in expected.values() for field in fields}
    return FieldMismatch(
        f"sample {key!r} has fields {sorted(have)}, {where} has {sorted(want)}: missing {sorted(want - have)}, "
        f"extra {sorted(have - want)}. All samples of a group have the same fields: write other kinds of samples "
        "as parts with a group of their own, or into another dataset"
    )


def write_part(
    store: Store,
    txn: str,
    samples: Iterable[Sequence[Any]],
    group: str = "media",
    *,
    groups: Mapping[str, str] | None = None,
    name: str | None = None,
) -> Part:
    """Write one part from (key, fields[, metadata[, source]]) tuples, in hash order of their keys.

    name: identifies the part within its transaction, for workers that may be retried. Attempts with one name are one
    part; publishing two of them raises Conflict.

    Raises: EmptyVersion if there are no samples; InvalidSample.
    """
    name = check_part_name(name or secrets.token_hex(8))
    spill = Spill()
    writer = PartWriter(
        store, txn=txn, attempt=secrets.token_hex(8), name=name, group_of=group_chooser(group, groups)
    )
    try:
        for sample in samples:
            if not isinstance(sample, tuple | list) or not 2 <= len(sample) <= 4:
                raise InvalidSample(
                    f"a sample is a tuple (key, fields), (key, fields, metadata) or (key, fields, metadata, source); "
                    f"got {_shown(sample)}"
                )
            spill.add(make_sample(*sample))
        if not spill.n_samples:
            raise EmptyVersion("a part needs at least one sample; the iterable given was empty")
        for ready in spill.drain():
            writer.add(ready)
        return writer.finish()
    finally:
        writer.close()
        spill.close()


def _shown(sample: object) -> str:
    length = f" of length {len(sample)}" if isinstance(sample, tuple | list) else ""
    return f"a {type(sample).__name__}{length}"


def check_part_name(name: str) -> str:
    """Return the name. Raises: InvalidSample unless it is lower-case letters, digits or '_'."""
    if not name.replace("_", "").isalnum() or not name.isascii() or name != name.lower() or len(name) > 64:
        raise InvalidSample(
            f"part name {name!r} is not accepted; use lower-case letters, digits and '_', e.g. '00042'"
        )
    return name
