"""Writing of one part: a shard and its index per group, and the part's rows of the samples table."""

import contextlib
import os
import secrets
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import EmptyVersion, FieldMismatch, InvalidField, InvalidSample
from ...modalities import encode
from ...storage import Store
from ...storage.disk.scratch import default_place
from ...storage.shared.threads import beside
from ..names import check_field, check_group, check_key, member_name
from ..shards.index import IndexPlace, index_bytes
from ..shards.part import Part, ShardFile
from ..shards.shard import ShardWriter, check_field_bytes, hash_pages
from ..tables import columns
from ..tables.parquet import put_table
from .spill import Sample, Spill, scratch_error

Groups = Callable[[str], str]
"""Field -> the group that it belongs to."""


def group_chooser(default: str, groups: Mapping[str, str] | None) -> Groups:
    """Return a chooser: fields named in `groups` go there, all others into `default`."""
    chosen = {check_field(field): check_group(group) for field, group in (groups or {}).items()}
    check_group(default)
    return lambda field: chosen.get(field, default)


def make_sample(
    key: str,
    fields: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    source: Mapping[str, Any] | None = None,
) -> Sample:
    """Return a checked sample with encoded fields. Raises: InvalidSample leaves, each naming key and field."""
    check_key(key)
    if not isinstance(fields, Mapping) or not fields:
        raise InvalidSample(f"sample {key!r} has no fields; pass a dict such as {{'jpg': bytes, 'cls': 3}}")
    encoded: dict[str, bytes] = {}
    for field in fields:
        member_name(key, check_field(field))
    check_case(fields, f"sample {key!r}")
    for field, value in fields.items():
        nbytes = value.nbytes if isinstance(value, memoryview | np.ndarray) else 0
        check_field_bytes(key, field, nbytes)  # before anything of it is copied
        try:
            data = encode(field, value)
        except InvalidSample as error:
            error.add_note(f"in sample {key!r}")
            raise
        check_field_bytes(key, field, memoryview(data).nbytes)
        encoded[field] = bytes(data)  # a copy of what the caller may change later; bytes are not copied
    return Sample(
        key=key,
        fields=encoded,
        metadata=columns.check_metadata(key, metadata or {}),
        source=columns.check_source(key, source or {}),
    )


def check_case(fields: Iterable[str], whose: str) -> None:
    """Raise InvalidField for two that differ in case only."""
    folded: dict[str, str] = {}
    for field in fields:
        if (other := folded.setdefault(field.lower(), field)) != field:
            raise InvalidField(
                f"{whose} has fields {other!r} and {field!r}, which differ in case only: webdataset and many disks "
                "take them for one; rename one of them"
            )


class PartWriter:
    """Takes samples in their final order; `finish` uploads everything, an exception before it leaves nothing."""

    def __init__(self, store: Store, *, txn: str, attempt: str, name: str, group_of: Groups) -> None:
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
        """Bytes of the largest shard so far, which the target size is compared with."""
        return max((shard.tar.nbytes for shard in self._shards.values()), default=0)

    def add(self, sample: Sample) -> None:
        """Append one sample. Raises: FieldMismatch when its fields are not those of the samples before it."""
        layout = self._layout_of(sample)
        if self._layout is None:
            self._layout = layout
            self._shards = {group: _OpenShard(fields) for group, fields in layout.items()}
        elif layout != self._layout:
            raise mismatch(sample.key, layout, self._layout, f"sample {self._keys[0]!r}")
        for group, shard in self._shards.items():
            shard.add(sample.key, [(field, sample.fields[field]) for field in layout[group]])
        self._keys.append(sample.key)
        self._metadata.append(sample.metadata)
        self._sources.append(sample.source)

    def finish(self, with_samples: bool = True) -> Part:
        """Upload shards, indexes and (unless a group is added to existing samples) the samples table."""
        try:
            shards = tuple(self._upload(group, shard) for group, shard in self._shards.items())
        finally:
            self.close()
        samples = None
        if with_samples:
            keys = columns.keys_table(self._keys, self._sources, self.id)
            table = columns.metadata_table(self._metadata, self.id, self._keys)
            for name in table.column_names[2:]:
                keys = keys.append_column(name, table[name])
            samples = put_table(
                self._store, f"{self._prefix}/{self._name}.samples.parquet", keys, "part-samples"
            )
        return Part(id=self.id, txn=self._txn, n_rows=self.n_rows, shards=shards, samples=samples)

    def close(self) -> None:
        """Delete the local temporary files."""
        for shard in self._shards.values():
            shard.close()

    def _layout_of(self, sample: Sample) -> dict[str, tuple[str, ...]]:
        layout: dict[str, list[str]] = {}
        for field in sorted(sample.fields):
            layout.setdefault(self._group_of(field), []).append(field)
        return {group: tuple(fields) for group, fields in sorted(layout.items())}

    def _upload(self, group: str, shard: "_OpenShard") -> ShardFile:
        sha256 = shard.finish()
        stem = f"{self._prefix}/{group}-{self._name}"
        with beside(shard.hash_pages) as hashing:
            self._store.put_file(f"{stem}.tar", shard.path)
            pages = hashing.result()
        index = index_bytes(self._keys, shard.spans(), pages)
        place = IndexPlace.measure(f"{stem}.index.parquet", index, len(pages))
        self._store.put_if_absent(place.path, index)
        return ShardFile(
            part=self.id,
            group=group,
            path=f"{stem}.tar",
            nbytes=shard.tar.nbytes,
            sha256=sha256,
            n_rows=self.n_rows,
            field_nbytes=shard.field_nbytes,
            **place.row(),
        )


class _OpenShard:
    """A shard being written to a local temporary file."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        try:
            descriptor, self.path = tempfile.mkstemp(prefix="penstock-shard-", suffix=".tar")
        except OSError as error:
            raise scratch_error("a shard was begun", default_place(), error) from error
        self._file = os.fdopen(descriptor, "wb")
        self.fields = fields
        self.tar = ShardWriter(self._file)
        self.field_nbytes = dict.fromkeys(fields, 0)
        self._spans: list[list[tuple[int, int, int]]] = []

    def add(self, key: str, fields: Sequence[tuple[str, Any]]) -> None:
        try:
            row = [self.tar.add(key, field, data) for field, data in fields]
        except OSError as error:
            raise scratch_error(f"sample {key!r} was added to a shard", self.path, error) from error
        for (field, _), (_, nbytes, _) in zip(fields, row, strict=True):
            self.field_nbytes[field] += nbytes
        self._spans.append(row)

    def finish(self) -> str:
        """End the archive, and return its SHA-256, hex."""
        try:
            return self.tar.finish()
        except OSError as error:
            raise scratch_error("a shard was finished", self.path, error) from error

    def hash_pages(self) -> bytes:
        """Return the digests as `shard.hash_pages`, once it is finished."""
        try:
            return hash_pages(self.path)
        except OSError as error:
            raise scratch_error("a shard was hashed", self.path, error) from error

    def spans(self) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
        """Return field -> int64 [rows, 3] of offset, nbytes, crc32c."""
        table = np.array(self._spans, np.int64).reshape(len(self._spans), len(self.fields), 3)
        return {field: table[:, position] for position, field in enumerate(self.fields)}

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()  # a full disk fails the last flush; the file is deleted just below
        if os.path.exists(self.path):
            os.unlink(self.path)


def mismatch(
    key: str, got: Mapping[str, Sequence[str]], expected: Mapping[str, Sequence[str]], where: str
) -> FieldMismatch:
    """Return the error for a sample whose fields are not those of its group."""
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

    name: the part's number inside its transaction; give it where a worker may be retried (two attempts of one name
    are one part, and publishing both is a Conflict).

    Raises: EmptyVersion without samples; InvalidSample.
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
    """Return the name. Raises: InvalidSample for a name that is not lower-case letters, digits or '_'."""
    if not name.replace("_", "").isalnum() or not name.isascii() or name != name.lower() or len(name) > 64:
        raise InvalidSample(
            f"part name {name!r} is not accepted; use lower-case letters, digits and '_', e.g. '00042'"
        )
    return name
