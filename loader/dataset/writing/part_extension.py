"""An unpublished part: its samples read back, and fields and columns added to them.

A pipeline's stages build a part in turn: the first writes the media, later ones add groups of features or columns.
Shards are never rewritten; each stage returns a `Part` that names more of them.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from ...errors import Conflict, FieldMismatch, FieldNotFound
from ...storage import RangeReader, Store
from ..reading.verified_bucket_reads import read_fields
from ..shards.address import SampleAddress
from ..shards.index import ROW_GROUP_ROWS, IndexFile, IndexPlace, IndexRows
from ..shards.part import Part, ShardFile
from ..tables.columns import check_metadata, metadata_table
from ..tables.parquet import get_table, put_table
from .part_writer import PartWriter, check_case, group_chooser, make_sample

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
    """Return the place of a row's fields, also of an unpublished part, from a row group of each index.

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
    """Return the part with one more shard. samples: the new fields of each of its samples, in order.

    txn: the transaction that writes the shard, if the part's own is committed.

    Raises: Conflict if the part has the group or one of the fields; FieldMismatch for another number of samples;
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
    """Return the part with more metadata columns. columns: name -> value of each sample, in order.

    Raises: Conflict if the part has such a column; FieldMismatch for another number of samples; InvalidField.
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
