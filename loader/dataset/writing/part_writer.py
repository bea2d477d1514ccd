"""Write one part: a shard and its index per group, and the part's rows of the samples table."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import FieldMismatch, InvalidField, InvalidSample
from ...modalities import encode
from ...native import IN_MEMORY, UNKNOWN_CRC, OpenFile, gather
from ...storage import Store
from ...storage.disk.scratch import OnScratch
from ...storage.store import new_in_place
from ..names import check_field, check_group, check_key, member_name, member_names
from ..shards.bitmap import Int64s
from ..shards.index import IndexPlace, index_bytes
from ..shards.part import Part, ShardFile
from ..shards.shard import (
    MAX_FIELD_BYTES,
    Payload,
    ShardWriter,
    check_field_bytes,
    load_payload,
    payload_bytes,
)
from ..tables import columns
from ..tables.any_columns import table_of_any
from ..tables.parquet import put_table
from .spill import Sample

Uint8s = np.ndarray[Any, np.dtype[np.uint8]]
GroupChooser = Callable[[str], str]
"""Field -> its group."""
FieldGroups = dict[str, tuple[str, ...]]
"""Group -> its fields; both in ascending order."""


def group_chooser(default: str, groups: Mapping[str, str] | None) -> GroupChooser:
    """Return a function from field to group: as in `groups`, or `default` for other fields."""
    group_by_field = {}
    for field, group in (groups or {}).items():
        group_by_field[check_field(field)] = check_group(group)
    check_group(default)
    return lambda field: group_by_field.get(field, default)


def make_sample(
    key: str,
    fields: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    source: Mapping[str, Any] | None = None,
) -> Sample:
    """Return a checked sample with encoded fields. Raises: subclasses of InvalidSample, which name key and field."""
    check_key(key)
    if not isinstance(fields, Mapping) or not fields:
        raise InvalidSample(
            f"sample {key!r} has no fields; pass a dict such as {{'jpg': bytes, 'cls': 3}}",
            what="fields",
            where=f"sample {key!r}",
            given=fields,
            accepted="a dict of one field or more",
        )
    for field in fields:
        check_field(field)
        member_name(key, field)  # raises if the member's name is too long, or hidden
    check_case(fields, f"sample {key!r}")

    encoded: dict[str, bytes] = {}
    for field, value in fields.items():
        if isinstance(value, memoryview | np.ndarray):
            check_field_bytes(key, field, value.nbytes)  # before any of it is copied
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


def check_case(fields: Iterable[str], owner: str) -> None:
    """Raise InvalidField if two fields differ only in case. owner: what has the fields, for the message."""
    by_lower_case: dict[str, str] = {}
    for field in fields:
        other = by_lower_case.setdefault(field.lower(), field)
        if other != field:
            message = (
                f"{owner} has fields {other!r} and {field!r}, which differ in case only: webdataset and many disks "
                "take them for one; rename one of them"
            )
            raise InvalidField(message, what="field", where=owner, given=[other, field])


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


def sample_block(samples: Sequence[Sample]) -> SampleBlock:
    """Return a block of samples that have the same fields. Do not change their buffers until it is written."""
    fields = sorted(samples[0].fields)
    # Nested comprehensions here and in `fill`: loops with named steps took 5 % more of a block's whole time.
    sizes = np.array([[payload_bytes(one.fields[name]) for name in fields] for one in samples], np.int64)

    def fill(
        columns: Sequence[int],
        memory: Uint8s,
        at: Int64s,
    ) -> Int64s:
        # One call of C copies and checksums all fields, sample by sample: [samples * columns].
        names = [fields[number] for number in columns]
        sources: list[OpenFile] = [
            (IN_MEMORY, load_payload(one.fields[name])) for one in samples for name in names
        ]
        n_sources = len(sources)
        crcs = np.full(n_sources, UNKNOWN_CRC)
        gather(
            sources,
            np.arange(n_sources),  # one item of each source
            np.zeros(n_sources, np.int64),  # from its first byte on
            np.ascontiguousarray(sizes[:, columns]).reshape(-1),
            b"",  # without a header
            memory,
            np.ascontiguousarray(at).reshape(-1),
            crcs,  # unknown: the checksums of the bytes replace them
            np.empty(n_sources, np.uint8),  # status: memory can always be read
        )
        return crcs.reshape(at.shape)

    return SampleBlock(
        keys=[sample.key for sample in samples],
        fields=fields,
        sizes=sizes,
        metadata=[sample.metadata for sample in samples],
        sources=[sample.source for sample in samples],
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
        group_of: GroupChooser,
        any_values: bool = False,
    ) -> None:
        """any_values: metadata types are undeclared; `table_of_any` unifies them."""
        self.id = f"{txn}-{name}"
        self._store = store
        self._txn = txn
        self._name = name
        # A retry writes into a folder of its own: it never meets the files of an earlier attempt.
        self._prefix = f"data/{txn}/{attempt}"
        self._group_of = group_of
        self._any_values = any_values
        self._shards: dict[str, _OpenShard] = {}
        self._layout: FieldGroups | None = None
        self._keys: list[str] = []
        self._metadata: list[Mapping[str, Any]] = []
        self._sources: list[Mapping[str, str]] = []

    @property
    def n_rows(self) -> int:
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        """Size of the largest shard so far."""
        return max((shard.tar.nbytes for shard in self._shards.values()), default=0)

    def add(self, sample: Sample) -> None:
        """Append a sample. Raises: FieldMismatch; FieldTooLarge."""
        # First, for all groups: a refused sample has no bytes in any of the shards.
        layout = self._open_shards(sample.key, sample.fields)
        for group, shard in self._shards.items():
            shard.add(sample.key, [(field, sample.fields[field]) for field in layout[group]])
        self._keys.append(sample.key)
        self._metadata.append(sample.metadata)
        self._sources.append(sample.source)

    def add_block(self, block: SampleBlock) -> None:
        """Append the block's samples. Raises: FieldMismatch; FieldTooLarge."""
        layout = self._open_shards(block.keys[0], block.fields)
        for group, shard in self._shards.items():
            shard.add_block(block, [block.fields.index(field) for field in layout[group]])
        self._keys += block.keys
        self._metadata += block.metadata
        self._sources += block.sources

    def finish(self, with_samples: bool = True) -> Part:
        """Upload shards, indexes and, unless `with_samples` is False, the samples table; return the part."""
        # A crash between these uploads leaves files that no version names: the collector deletes them.
        try:
            shards = [self._upload(group, shard) for group, shard in self._shards.items()]
        finally:
            self.close()
        samples = None
        if with_samples:
            path = f"{self._prefix}/{self._name}.samples.parquet"
            samples = put_table(
                self._store,
                path,
                self._samples_table(),
                "part-samples",
            )
        return Part(
            id=self.id,
            txn=self._txn,
            n_rows=self.n_rows,
            shards=tuple(shards),
            samples=samples,
        )

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()

    def _samples_table(self) -> pa.Table:
        if self._any_values:
            metadata = table_of_any(self._metadata)
        else:
            metadata = columns.metadata_table(self._metadata, self.id, self._keys)
            metadata = metadata.drop_columns(["part", "row"])  # the keys table has them
        table = columns.keys_table(self._keys, self._sources, self.id)
        for name in metadata.column_names:
            table = table.append_column(name, metadata[name])
        return table

    def _open_shards(self, key: str, fields: Collection[str]) -> FieldGroups:
        """Return the part's layout, with its shards open: the first sample determines it.

        key: of the sample, for the message. Raises: FieldMismatch if a later sample has other fields.
        """
        layout = self._group_fields(fields)
        if self._layout is None:
            for group, names in layout.items():
                path = f"{self._prefix}/{group}-{self._name}.tar"
                self._shards[group] = _OpenShard(self._store, path, names)
            self._layout = layout
        elif layout != self._layout:
            raise field_mismatch_error(
                key,
                layout,
                self._layout,
                f"sample {self._keys[0]!r}",
            )
        return layout

    def _group_fields(self, fields: Collection[str]) -> FieldGroups:
        """Return these fields by their groups."""
        fields_by_group: dict[str, list[str]] = {}
        # Sorted, so the same samples give the same bytes whatever the order of their dicts.
        for field in sorted(fields):
            fields_by_group.setdefault(self._group_of(field), []).append(field)
        return {group: tuple(names) for group, names in sorted(fields_by_group.items())}

    def _upload(self, group: str, shard: "_OpenShard") -> ShardFile:
        """Finish a shard and upload it with its index; return its row of the shards table."""
        sha256 = shard.finish()  # completes its upload
        # The index has the hashes of the shard's pages, so it follows the shard's last byte.
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

    def __init__(
        self,
        store: Store,
        path: str,
        fields: Sequence[str],
    ) -> None:
        self.path = path
        self.fields = fields
        # Directly in the store where that is possible; else on a local disk first, to upload at the end.
        self._new = new_in_place(store, path) or OnScratch(store, path)
        self.tar = ShardWriter(self._new.write)
        self._spans: list[Int64s] = []
        """int64 [rows, fields, 3] of each block: offset, nbytes, crc32c."""
        self._rows: list[list[tuple[int, int, int]]] = []
        """The same of single samples, which `_flush_rows` appends to `_spans`."""

    def add(self, key: str, fields: Sequence[tuple[str, Payload]]) -> None:
        self._rows.append([self.tar.add(key, field, data) for field, data in fields])

    def add_block(self, block: SampleBlock, columns: Sequence[int]) -> None:
        names = [block.fields[number] for number in columns]
        sizes = block.sizes[:, columns]
        # One comparison for a block: each field is checked in Python only to name the one that is too large.
        if int(sizes.max()) > MAX_FIELD_BYTES:
            _refuse_large_field(block.keys, names, sizes)
        members = member_names(block.keys, names)

        def fill(memory: Uint8s, at: Int64s) -> Int64s:
            return block.fill(columns, memory, at.reshape(sizes.shape)).reshape(-1)

        self._flush_rows()  # `_spans` is in the order of the rows
        spans = self.tar.add_many(members, sizes.reshape(-1), fill)
        self._spans.append(spans.reshape(*sizes.shape, 3))

    def finish(self) -> str:
        """Write the shard's end; return its SHA-256."""
        sha256 = self.tar.finish()
        self._new.finish()
        return sha256

    def spans(self) -> dict[str, Int64s]:
        """Return field -> int64 [rows, 3]: offset, nbytes, crc32c."""
        self._flush_rows()
        spans = np.concatenate(self._spans)
        return {field: spans[:, position] for position, field in enumerate(self.fields)}

    @property
    def field_nbytes(self) -> dict[str, int]:
        nbytes_by_field = {}
        for field, spans in self.spans().items():
            nbytes = spans[:, 1].sum()
            nbytes_by_field[field] = int(nbytes)
        return nbytes_by_field

    def close(self) -> None:
        self._new.close()

    def _flush_rows(self) -> None:
        if not self._rows:
            return
        shape = (len(self._rows), len(self.fields), 3)
        spans = np.array(self._rows, np.int64)
        self._spans.append(spans.reshape(shape))
        self._rows = []


def _refuse_large_field(
    keys: Sequence[str],
    names: Sequence[str],
    sizes: Int64s,
) -> None:
    """Raise InvalidSample for the first field that is too large. sizes: int64 [keys, names]."""
    for key, row in zip(keys, sizes.tolist(), strict=True):
        for name, nbytes in zip(names, row, strict=True):
            check_field_bytes(key, name, nbytes)


def field_mismatch_error(
    key: str,
    own: Mapping[str, Sequence[str]],
    expected: Mapping[str, Sequence[str]],
    example: str,
) -> FieldMismatch:
    """Return the error for a sample with other fields than `example` has. own, expected: group -> fields."""
    own_fields = set[str]().union(*own.values())
    expected_fields = set[str]().union(*expected.values())
    missing = sorted(expected_fields - own_fields)
    extra = sorted(own_fields - expected_fields)
    return FieldMismatch(
        f"sample {key!r} has fields {sorted(own_fields)}, {example} has {sorted(expected_fields)}: "
        f"missing {missing}, extra {extra}. "
        "All samples of a group have the same fields: write other kinds of samples "
        "as parts with a group of their own, or into another dataset",
        what="fields",
        where=f"sample {key!r}",
        given=sorted(own_fields),
        accepted=sorted(expected_fields),
    )
