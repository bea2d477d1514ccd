"""Read an unpublished part's samples back, and add fields and columns to them.

Shards are never rewritten; each stage returns a `Part` that names more shards.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from ...errors import Conflict, FieldMismatch, FieldNotFound, InvalidField, PenstockError, TransformFailed
from ...modalities import decoder_for
from ...modalities.fields import PACKETS_SUFFIX, last_word
from ...storage import RangeReader, Store
from ..names import check_field, check_group
from ..reading.verified_bucket_reads import read_fields
from ..shards.address import SampleAddress
from ..shards.index import ROW_GROUP_ROWS, IndexFile, IndexPlace
from ..shards.index_rows import IndexRows
from ..shards.part import Part, ShardFile
from ..tables.columns import check_metadata, metadata_table
from ..tables.parquet import get_table, put_table
from ..versions.version import Version
from .part_writer import PartWriter, check_case, group_chooser, make_sample
from .spill import Sample

BLOCK_ROWS = 64  # samples whose fields are in memory together


def read_part(
    store: RangeReader,
    part: Part,
    fields: Sequence[str],
    rows: range | None = None,
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield (key, field -> bytes) of every sample, or of consecutive `rows`, in order, verified.

    Raises: FieldNotFound; Corrupt; ObjectNotFound.
    """
    shards = {field: _shard_with(part, field) for field in fields}
    keyed = _keyed_shard(part, shards)
    index_files = _index_files(store, [keyed, *shards.values()])
    pins: dict[str, str] = {}
    if rows is None:
        rows = range(part.n_rows)
    # Shards of a part have row groups of the same rows, so one group of each index covers the same samples.
    first_group_row = rows.start - rows.start % ROW_GROUP_ROWS
    for group_row in range(first_group_row, rows.stop, ROW_GROUP_ROWS):
        indexes = _read_groups(index_files, group_row)
        start = max(rows.start, group_row)
        stop = min(rows.stop, group_row + ROW_GROUP_ROWS)
        for block_start in range(start, stop, BLOCK_ROWS):
            block_stop = min(block_start + BLOCK_ROWS, stop)
            local_rows = range(block_start - group_row, block_stop - group_row)
            addresses = [_address(part, indexes, keyed, shards, local) for local in local_rows]
            keys = [address.key for address in addresses]
            yield from zip(keys, read_fields(store, addresses, pins=pins), strict=True)


def part_address(
    store: RangeReader,
    part: Part,
    row: int,
    fields: Sequence[str],
) -> SampleAddress:
    """Return the address of a row's fields, for unpublished parts too. Reads one row group per index.

    Raises: FieldNotFound; Corrupt; ObjectNotFound.
    """
    shards = {field: _shard_with(part, field) for field in fields}
    keyed = _keyed_shard(part, shards)
    index_files = _index_files(store, [keyed, *shards.values()])
    indexes = _read_groups(index_files, row)
    return _address(
        part,
        indexes,
        keyed,
        shards,
        row - indexes[keyed.path].first_row,
    )


def _keyed_shard(part: Part, shards: Mapping[str, ShardFile]) -> ShardFile:
    """Return the shard whose index gives the keys: one that is read anyway, if there is one."""
    return next(iter(shards.values()), part.shards[0])


def _index_files(store: RangeReader, shards: Iterable[ShardFile]) -> dict[str, IndexFile]:
    """Return path of each shard -> its index."""
    index_files = {}
    for shard in shards:
        index_files[shard.path] = IndexFile(cast(Store, store), _place(shard))
    return index_files


def _read_groups(index_files: Mapping[str, IndexFile], row: int) -> dict[str, IndexRows]:
    """Return path of each shard -> the row group of its index that has `row`."""
    indexes = {}
    for path, file in index_files.items():
        indexes[path] = file.read_group(file.row_group_of(row))
    return indexes


def add_part_group(
    store: Store,
    part: Part,
    group: str,
    samples: Iterable[Mapping[str, Any]],
    *,
    txn: str | None = None,
) -> Part:
    """Return the part with one more shard. samples: new fields of each sample of the part, in order.

    txn: the transaction that writes the shard, if the part's own is committed.

    Raises: Conflict if the part already has the group or a field; FieldMismatch if the number of samples differs;
    InvalidSample.
    """
    if any(shard.group == group for shard in part.shards):
        raise Conflict(f"part {part.id} has group {group!r} already; choose another name")
    part_fields = _fields_of(part)
    writer = PartWriter(
        store,
        txn=txn or part.txn,
        attempt=secrets.token_hex(8),
        name=part.id.removeprefix(f"{part.txn}-"),
        group_of=group_chooser(group, None),
    )
    # The shard belongs to the part that exists, not to a part of this transaction.
    writer.id = part.id
    try:
        keys = (key for key, _ in read_part(store, part, []))
        for key, fields in _paired(part, keys, samples):
            for field in fields:
                if field in part_fields:
                    raise Conflict(
                        f"part {part.id} has field {field!r} already, in another group; choose another name"
                    )
            check_case([*part_fields, *fields], f"part {part.id}")
            writer.add(make_sample(key, fields))
        new_shards = writer.finish(with_samples=False).shards
        return replace(part, shards=(*part.shards, *new_shards))
    finally:
        writer.close()


def add_part_columns(
    store: Store,
    part: Part,
    columns: Iterable[Mapping[str, Any]],
) -> Part:
    """Return the part with more metadata columns. columns: one mapping name -> value per sample, in order.

    Raises: Conflict if the part already has such a column; FieldMismatch if the number of samples differs;
    InvalidField.
    """
    if part.samples is None:
        raise FieldMismatch(
            f"part {part.id} has no samples table; columns are added to parts made by write_part"
        )
    table = get_table(store, part.samples)
    keys: list[str] = table["key"].to_pylist()
    rows = [check_metadata(key, row) for key, row in _paired(part, keys, columns)]
    added = metadata_table(rows, part.id, keys)
    added = added.drop_columns(["part", "row"])
    for name in added.column_names:
        if name in table.column_names:
            raise Conflict(f"part {part.id} has column {name!r} already; choose another name")
        table = table.append_column(name, added[name])
    folder, _, _ = part.samples.path.rpartition("/")
    path = f"{folder}/{secrets.token_hex(8)}.samples.parquet"
    return replace(
        part,
        samples=put_table(
            store,
            path,
            table,
            "part-samples",
        ),
    )


def _paired(
    part: Part,
    keys: Iterable[str],
    rows: Iterable[Any],
) -> Iterator[tuple[str, Any]]:
    try:
        yield from zip(keys, rows, strict=True)
    except ValueError as error:
        raise FieldMismatch(
            f"part {part.id} has {part.n_rows} samples, {error}; give exactly one row per sample, in the part's order"
        ) from error


def _shard_with(part: Part, field: str) -> ShardFile:
    for shard in part.shards:
        if field in shard.field_nbytes:
            return shard
    part_fields = ", ".join(sorted(_fields_of(part)))
    raise FieldNotFound(f"part {part.id} has no field {field!r}; it has {part_fields}")


def _fields_of(part: Part) -> list[str]:
    fields: list[str] = []
    for shard in part.shards:
        fields += shard.field_nbytes
    return fields


def _place(shard: ShardFile) -> IndexPlace:
    return IndexPlace(
        path=shard.index_path,
        nbytes=shard.index_nbytes,
        crc32c=shard.index_crc32c,
        footer_crc32c=shard.index_footer_crc32c,
        footer_sha256=shard.index_footer_sha256 or "",
        pages_nbytes=shard.index_pages_nbytes or 0,
    )


def _address(
    part: Part,
    indexes: Mapping[str, IndexRows],
    keyed: ShardFile,
    shards: Mapping[str, ShardFile],
    local: int,
) -> SampleAddress:
    """Return a row's address. indexes: row group of each shard. local: row within these groups."""
    places = {}
    for field, shard in shards.items():
        places[field] = indexes[shard.path].address(
            field,
            shard.group,
            shard.path,
            local,
        )
    index = indexes[keyed.path]
    return SampleAddress(
        key=index.keys[local],
        version="(unpublished)",
        version_id="",
        part=part.id,
        row=index.first_row + local,
        ordinal=-1,
        fields=places,
    )


Compute = Mapping[str, Callable[[Mapping[str, Any]], Any]]


class LazySample(Mapping[str, Any]):
    """One sample as a mapping: field -> decoded value, and `__key__`. Fields are read on request."""

    def __init__(self, block: "_Block", row: int) -> None:
        self._block = block
        self._row = row

    def __getitem__(self, field: str) -> Any:
        if field == "__key__":
            return self._block.addresses[self._row].key
        decoder = decoder_for(field)
        data = self.bytes_of(field)
        if last_word(field) == "run":  # packets without a container
            packet_table = self.bytes_of(field + PACKETS_SUFFIX)
            return cast(Any, decoder).of_run(data, packet_table)
        return decoder(data, None)

    def bytes_of(self, field: str) -> bytes:
        return self._block.bytes_of(field)[self._row]

    def __iter__(self) -> Iterator[str]:
        return iter(self._block.fields)

    def __len__(self) -> int:
        return len(self._block.fields)

    def __contains__(self, field: object) -> bool:
        return field == "__key__" or field in self._block.fields

    def get(self, field: str, default: Any = None) -> Any:
        # `Mapping.get` would take a decoder's KeyError for a missing field.
        if field not in self:
            return default
        return self[field]


class _Block:
    """Neighbouring rows of a part; a field is read for all of them when it is first used."""

    def __init__(
        self,
        version: Version,
        position: int,
        rows: range,
        fields: Sequence[str],
    ) -> None:
        self._version = version
        self.fields = fields
        self.addresses = row_addresses(
            version,
            position,
            rows,
            fields,
        )
        self._values: dict[str, list[bytes]] = {}

    def bytes_of(self, field: str) -> list[bytes]:
        if field not in self.fields:
            raise FieldNotFound(f"these samples have {', '.join(self.fields)}; {field!r} was asked for")
        if field not in self._values:
            addresses = [only(address, field) for address in self.addresses]
            fields_of_rows = read_fields(self._version.shard_store, addresses)
            self._values[field] = [fields[field] for fields in fields_of_rows]
        return self._values[field]


def only(address: SampleAddress, field: str) -> SampleAddress:
    return SampleAddress(
        key=address.key,
        version=address.version,
        version_id=address.version_id,
        part=address.part,
        row=address.row,
        ordinal=address.ordinal,
        fields={field: address.fields[field]},
    )


def row_addresses(
    version: Version,
    position: int,
    rows: range,
    fields: Sequence[str],
) -> list[SampleAddress]:
    """Return the addresses of a part's rows; excluded rows have ordinal -1."""
    parts = version.parts
    shards = {}
    for group in parts.groups:
        if bool(parts.has_group(group)[position]):
            shards[group] = parts.shard(group, position)
    group_by_field = {field: version.group_of(field) for field in fields}

    addresses = []
    for row in rows:
        indexes = {}
        for group, shard in shards.items():
            indexes[group] = version.indexes.rows(IndexPlace.of(shard), row)
        places = {}
        for field, group in group_by_field.items():
            index = indexes[group]
            places[field] = index.address(
                field,
                group,
                shards[group]["path"],
                row - index.first_row,
            )
        keyed = next(iter(indexes.values()))  # every group's index has the same keys
        addresses.append(
            SampleAddress(
                key=keyed.keys[row - keyed.first_row],
                version=version.name,
                version_id=version.id,
                part=parts.id(position),
                row=row,
                ordinal=-1,
                fields=places,
            )
        )
    return addresses


def write_group(
    version: Version,
    txn: str,
    group: str,
    compute: Compute,
    inputs: Sequence[str] | None,
) -> list[Part]:
    """Write a shard of `group` for every part that lacks one. Raises: Conflict if no part does; TransformFailed."""
    _check_new_group(version, group, compute)
    is_missing = ~version.parts.has_group(group)  # bool [parts]
    for field in inputs or ():
        is_missing &= version.parts.has_group(version.group_of(field))
    positions = np.flatnonzero(is_missing).tolist()
    if not positions:
        raise Conflict(
            f"every part of {version.name} that has {inputs or 'samples'} already has group {group!r}"
        )
    attempt = secrets.token_hex(8)
    return [
        _write_part(
            version,
            position,
            txn,
            attempt,
            group,
            compute,
            inputs,
        )
        for position in positions
    ]


def _check_new_group(
    version: Version,
    group: str,
    compute: Compute,
) -> None:
    """Refuse fields that other parts of the group lack, or that another group of the version has."""
    check_group(group)
    if not compute:
        raise InvalidField("add_group was given no fields; pass {'latent.npy': function} or the like")
    known_group = version.manifest["groups"].get(group)
    if known_group is not None and set(known_group["field_nbytes"]) != set(compute):
        raise FieldMismatch(
            f"group {group!r} of {version.name} has fields {sorted(known_group['field_nbytes'])}, "
            f"not {sorted(compute)}; all parts of a group have the same fields: choose another group name"
        )
    for field in compute:
        check_field(field)
        if field in version.fields and version.group_of(field) != group:
            raise Conflict(
                f"{version.name} has a field {field!r} in group {version.group_of(field)!r}; choose another"
            )
    check_case([*version.fields, *compute], f"{version.name} with group {group!r}")


def _write_part(
    version: Version,
    position: int,
    txn: str,
    attempt: str,
    group: str,
    compute: Compute,
    inputs: Sequence[str] | None,
) -> Part:
    parts = version.parts
    fields = list(inputs or ())
    if not fields:
        fields = [name for name in version.fields if parts.has_group(version.group_of(name))[position]]
    is_live = parts.live_members(position)  # bool [rows of the part]
    n_rows = len(is_live)
    writer = PartWriter(
        version.store,
        txn=txn,
        attempt=attempt,
        name=f"{position:05d}",
        group_of=group_chooser(group, None),
    )
    # The shard belongs to the published part, not to a part of this transaction.
    writer.id = parts.id(position)
    try:
        for start in range(0, n_rows, BLOCK_ROWS):
            rows = range(start, min(start + BLOCK_ROWS, n_rows))
            block = _Block(
                version,
                position,
                rows,
                fields,
            )
            for local, row in enumerate(rows):
                writer.add(
                    _compute_sample(
                        block,
                        local,
                        bool(is_live[row]),
                        compute,
                    )
                )
        return writer.finish(with_samples=False)
    finally:
        writer.close()


def _compute_sample(
    block: _Block,
    local: int,
    is_live: bool,
    compute: Compute,
) -> Sample:
    address = block.addresses[local]
    if not is_live:
        # Each shard of a part has a row for each sample: an excluded one has empty fields.
        empty_fields = dict.fromkeys(compute, b"")
        return Sample(
            key=address.key,
            fields=empty_fields,
            metadata={},
            source={},
        )
    values = {}
    for field, function in compute.items():
        try:
            values[field] = function(LazySample(block, local))
        except PenstockError as error:
            # A damaged input or missing field: that error is more precise than a wrapped one.
            error.add_note(f"while computing {field!r} of {address.describe()}")
            raise
        except Exception as error:
            raise TransformFailed(
                f"computing {field!r} of {address.describe()} raised {type(error).__name__}: {error}"
            ) from error
    return make_sample(address.key, values)
