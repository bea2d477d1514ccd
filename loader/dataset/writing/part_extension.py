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

BLOCK_ROWS = 64


def read_part(
    store: RangeReader, part: Part, fields: Sequence[str], rows: range | None = None
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield (key, field -> bytes) of every sample, or of consecutive `rows`, in order, verified.

    Raises: FieldNotFound; Corrupt; ObjectNotFound.
    """
    shards = {field: _shard_with(part, field) for field in fields}
    keyed = next(iter(shards.values()), part.shards[0])
    indexes = {s.path: IndexFile(cast(Store, store), _place(s)) for s in [keyed, *shards.values()]}
    pins: dict[str, str] = {}
    row_numbers = range(part.n_rows) if rows is None else rows
    for first in range(
        row_numbers.start // ROW_GROUP_ROWS * ROW_GROUP_ROWS, row_numbers.stop, ROW_GROUP_ROWS
    ):
        index = {path: file.read_group(file.row_group_of(first)) for path, file in indexes.items()}
        low, high = max(row_numbers.start - first, 0), min(row_numbers.stop - first, ROW_GROUP_ROWS)
        for start in range(low, high, BLOCK_ROWS):
            block = range(start, min(start + BLOCK_ROWS, high))
            addresses = [_address(part, index, keyed, shards, local) for local in block]
            fields_read = read_fields(store, addresses, pins=pins)
            yield from zip((address.key for address in addresses), fields_read, strict=True)


def part_address(store: RangeReader, part: Part, row: int, fields: Sequence[str]) -> SampleAddress:
    """Return the address of a row's fields, for unpublished parts too. Reads one row group per index.

    Raises: FieldNotFound; Corrupt; ObjectNotFound.
    """
    shards = {field: _shard_with(part, field) for field in fields}
    keyed = next(iter(shards.values()), part.shards[0])
    files = {shard.path: IndexFile(cast(Store, store), _place(shard)) for shard in (keyed, *shards.values())}
    index = {path: file.read_group(file.row_group_of(row)) for path, file in files.items()}
    return _address(part, index, keyed, shards, row - index[keyed.path].first_row)


def add_part_group(
    store: Store, part: Part, group: str, samples: Iterable[Mapping[str, Any]], *, txn: str | None = None
) -> Part:
    """Return the part with one more shard. samples: new fields of each sample of the part, in order.

    txn: the transaction that writes the shard, if the part's own is committed.

    Raises: Conflict if the part already has the group or a field; FieldMismatch if the number of samples differs;
    InvalidSample.
    """
    if any(shard.group == group for shard in part.shards):
        raise Conflict(f"part {part.id} has group {group!r} already; choose another name")
    name = part.id.removeprefix(f"{part.txn}-")
    writer = PartWriter(
        store,
        txn=txn or part.txn,
        attempt=secrets.token_hex(8),
        name=name,
        group_of=group_chooser(group, None),
    )
    writer.id = part.id
    try:
        keys = (key for key, _ in read_part(store, part, []))
        for key, fields in _paired(part, keys, samples):
            own_fields = [field for field in fields for shard in part.shards if field in shard.field_nbytes]
            if own_fields:
                raise Conflict(
                    f"part {part.id} has field {own_fields[0]!r} already, in another group; choose another name"
                )
            check_case(
                [*(field for shard in part.shards for field in shard.field_nbytes), *fields],
                f"part {part.id}",
            )
            writer.add(make_sample(key, fields))
        return replace(part, shards=(*part.shards, *writer.finish(with_samples=False).shards))
    finally:
        writer.close()


def add_part_columns(store: Store, part: Part, columns: Iterable[Mapping[str, Any]]) -> Part:
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
    for name in added.column_names[2:]:
        if name in table.column_names:
            raise Conflict(f"part {part.id} has column {name!r} already; choose another name")
        table = table.append_column(name, added[name])
    path = f"{part.samples.path.rpartition('/')[0]}/{secrets.token_hex(8)}.samples.parquet"
    return replace(part, samples=put_table(store, path, table, "part-samples"))


def _paired(part: Part, keys: Iterable[str], rows: Iterable[Any]) -> Iterator[tuple[str, Any]]:
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
    there = sorted(field for shard in part.shards for field in shard.field_nbytes)
    raise FieldNotFound(f"part {part.id} has no field {field!r}; it has {', '.join(there)}")


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
    part: Part, rows: Mapping[str, IndexRows], keyed: ShardFile, shards: Mapping[str, ShardFile], local: int
) -> SampleAddress:
    places = {
        field: rows[shard.path].address(field, shard.group, shard.path, local)
        for field, shard in shards.items()
    }
    index = rows[keyed.path]
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
        self._block, self._row = block, row

    def __getitem__(self, field: str) -> Any:
        if field == "__key__":
            return self._block.addresses[self._row].key
        decoder, data = decoder_for(field), self._block.bytes_of(field)[self._row]
        if last_word(field) == "run":  # packets without a container
            return cast(Any, decoder).of_run(data, self._block.bytes_of(field + PACKETS_SUFFIX)[self._row])
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
        return self[field] if field in self else default  # noqa: SIM401 - this is `get`


class _Block:
    def __init__(self, version: Version, position: int, rows: range, fields: Sequence[str]) -> None:
        self._version, self.fields = version, fields
        self.addresses = row_addresses(version, position, rows, fields)
        self._held: dict[str, list[bytes]] = {}

    def bytes_of(self, field: str) -> list[bytes]:
        if field not in self.fields:
            raise FieldNotFound(f"these samples have {', '.join(self.fields)}; {field!r} was asked for")
        if field not in self._held:
            narrowed = [only(address, field) for address in self.addresses]
            self._held[field] = [fields[field] for fields in read_fields(self._version.shard_store, narrowed)]
        return self._held[field]


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


def row_addresses(version: Version, position: int, rows: range, fields: Sequence[str]) -> list[SampleAddress]:
    """Return the addresses of a part's rows; excluded rows have ordinal -1."""
    parts = version.parts
    shards = {
        group: parts.shard(group, position)
        for group in parts.groups
        if bool(parts.has_group(group)[position])
    }
    chosen = {field: version.group_of(field) for field in fields}
    out = []
    for row in rows:
        index = {}
        for group, shard in shards.items():
            index_rows = version.indexes.rows(IndexPlace.of(shard), row)
            index[group] = (index_rows, row - index_rows.first_row)
        first, at = next(iter(index.values()))
        places = {}
        for field, group in chosen.items():
            index_rows, local = index[group]
            places[field] = index_rows.address(field, group, shards[group]["path"], local)
        out.append(
            SampleAddress(
                key=first.keys[at],
                version=version.name,
                version_id=version.id,
                part=parts.id(position),
                row=row,
                ordinal=-1,
                fields=places,
            )
        )
    return out


def write_group(
    version: Version, txn: str, group: str, compute: Compute, inputs: Sequence[str] | None
) -> list[Part]:
    """Write a shard of `group` for every part that lacks one. Raises: Conflict if no part does; TransformFailed."""
    check_group(group)
    if not compute:
        raise InvalidField("add_group was given no fields; pass {'latent.npy': function} or the like")
    there = version.manifest["groups"].get(group, {}).get("field_nbytes", compute)
    if set(there) != set(compute):
        raise FieldMismatch(
            f"group {group!r} of {version.name} has fields {sorted(there)}, not {sorted(compute)}; all parts of a "
            "group have the same fields: choose another group name"
        )
    for field in compute:
        check_field(field)
        if field in version.fields and version.group_of(field) != group:
            raise Conflict(
                f"{version.name} has a field {field!r} in group {version.group_of(field)!r}; choose another"
            )
    check_case([*version.fields, *compute], f"{version.name} with group {group!r}")
    missing = ~version.parts.has_group(group)
    for field in inputs or ():
        missing &= version.parts.has_group(version.group_of(field))
    positions = np.flatnonzero(missing).tolist()
    if not positions:
        raise Conflict(
            f"every part of {version.name} that has {inputs or 'samples'} already has group {group!r}"
        )
    attempt = secrets.token_hex(8)
    return [_write_part(version, position, txn, attempt, group, compute, inputs) for position in positions]


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
    part_id = parts.id(position)
    fields = list(inputs or ()) or [
        field for field in version.fields if bool(parts.has_group(version.group_of(field))[position])
    ]
    live = parts.live_members(position)
    writer = PartWriter(
        version.store, txn=txn, attempt=attempt, name=f"{position:05d}", group_of=group_chooser(group, None)
    )
    writer.id = part_id
    try:
        for start in range(0, len(live), BLOCK_ROWS):
            rows = range(start, min(start + BLOCK_ROWS, len(live)))
            block = _Block(version, position, rows, fields)
            for local, row in enumerate(rows):
                writer.add(_computed(block, local, bool(live[row]), compute))
        return writer.finish(with_samples=False)
    finally:
        writer.close()


def _computed(block: _Block, local: int, live: bool, compute: Compute) -> Sample:
    address = block.addresses[local]
    if not live:
        return Sample(key=address.key, fields=dict.fromkeys(compute, b""), metadata={}, source={})
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
