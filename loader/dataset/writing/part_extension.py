"""Read an unpublished part's samples back, and add fields and columns to them.

Shards are never rewritten; each stage returns a `Part` that names more shards.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, Final, cast

from ...errors import Conflict, FieldMismatch, FieldNotFound
from ...storage import RangeReader, Store
from ..reading.verified_bucket_reads import read_fields
from ..shards.address import SampleAddress
from ..shards.index import ROW_GROUP_ROWS, IndexFile, IndexPlace
from ..shards.index_rows import IndexRows
from ..shards.part import Part, ShardFile
from ..tables.columns import check_metadata, metadata_table
from ..tables.parquet import get_table, put_table
from .group_computation import BLOCK_ROWS
from .part_writer import PartWriter, check_case, group_chooser, make_sample

_NOTHING: Final = cast(Any, object())
"""Stands for the missing row, or key, after the end of the shorter iterable."""


def read_part(
    store: RangeReader,
    part: Part,
    fields: Sequence[str],
    rows: range | None = None,
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield (key, field -> bytes) of every sample, or of consecutive `rows`, in order, verified.

    Raises: FieldNotFound; Corrupt; ObjectNotFound.
    """
    shards = {field: _find_shard(part, field) for field in fields}
    key_shard = _choose_key_shard(part, shards)
    index_files = _index_files(store, [key_shard, *shards.values()])
    pins: dict[str, str] = {}  # shard path -> ETag: every block reads the same object
    if rows is None:
        rows = range(part.n_rows)
    # Shards of a part have row groups of the same rows, so one row group of each index covers the same samples.
    first_row_group_start = rows.start - rows.start % ROW_GROUP_ROWS
    for row_group_start in range(first_row_group_start, rows.stop, ROW_GROUP_ROWS):
        row_groups = _read_row_groups(index_files, row_group_start)
        start = max(rows.start, row_group_start)
        stop = min(rows.stop, row_group_start + ROW_GROUP_ROWS)
        # A block at a time: the fields of a whole row group may not fit in memory.
        for block_start in range(start, stop, BLOCK_ROWS):
            block = range(block_start, min(block_start + BLOCK_ROWS, stop))
            addresses = [
                _address(part, row_groups, key_shard, shards, row - row_group_start) for row in block
            ]
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
    shards = {field: _find_shard(part, field) for field in fields}
    key_shard = _choose_key_shard(part, shards)
    index_files = _index_files(store, [key_shard, *shards.values()])
    row_groups = _read_row_groups(index_files, row)
    return _address(
        part,
        row_groups,
        key_shard,
        shards,
        row - row_groups[key_shard.path].first_row,
    )


def _choose_key_shard(part: Part, shards: Mapping[str, ShardFile]) -> ShardFile:
    """Return the shard whose index gives the keys: one that is read anyway, if there is one."""
    return next(iter(shards.values()), part.shards[0])


def _index_files(store: RangeReader, shards: Iterable[ShardFile]) -> dict[str, IndexFile]:
    """Return path of each shard -> its index."""
    index_files = {}
    for shard in shards:
        # An index file only reads ranges.
        index_files[shard.path] = IndexFile(cast(Store, store), _index_place(shard))
    return index_files


def _read_row_groups(index_files: Mapping[str, IndexFile], row: int) -> dict[str, IndexRows]:
    """Return path of each shard -> the row group of its index that has `row`."""
    row_groups = {}
    for path, file in index_files.items():
        row_groups[path] = file.read_group(file.row_group_number(row))
    return row_groups


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
        raise Conflict(
            f"part {part.id} already has group {group!r}; choose another name",
            what="group",
            where=f"part {part.id}",
            given=group,
        )
    part_fields = _part_fields(part)
    writer = PartWriter(
        store,
        txn=txn or part.txn,
        attempt=secrets.token_hex(8),
        name=part.id.removeprefix(f"{part.txn}-"),
        group_of=group_chooser(group, None),
    )
    # The new shard joins the existing part, whose id it repeats.
    writer.id = part.id
    try:
        # A generator: the keys of one row group are in memory, however large the part is.
        keys = (key for key, _ in read_part(store, part, []))
        for key, fields in _pair_rows(part, keys, samples):
            for field in fields:
                if field in part_fields:
                    raise Conflict(
                        f"part {part.id} already has field {field!r}, in another group; choose another name",
                        what="field",
                        where=f"part {part.id}",
                        given=field,
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
    rows = [check_metadata(key, row) for key, row in _pair_rows(part, keys, columns)]
    added = metadata_table(rows, part.id, keys)
    added = added.drop_columns(["part", "row"])
    for name in added.column_names:
        if name in table.column_names:
            raise Conflict(
                f"part {part.id} already has column {name!r}; choose another name",
                what="column",
                where=f"part {part.id}",
                given=name,
            )
        table = table.append_column(name, added[name])
    # A name of its own: the earlier table stays, for the part without the new columns.
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


def _pair_rows(
    part: Part,
    keys: Iterable[str],
    rows: Iterable[Any],
) -> Iterator[tuple[str, Any]]:
    """Yield (key of each sample, the caller's row for it). Raises: FieldMismatch for fewer or more rows than samples.

    An error of the caller's iterable passes unchanged.
    """
    # Not `zip(strict=True)`: its ValueError looks like one that the caller's iterable raises.
    for number, (key, row) in enumerate(zip_longest(keys, rows, fillvalue=_NOTHING)):
        problem = ""
        if row is _NOTHING:
            problem = f"only {number} rows were given"
        elif key is _NOTHING:
            problem = "more rows were given"
        if problem:
            raise FieldMismatch(
                f"part {part.id} has {part.n_rows} samples, and {problem}; give exactly one row per sample, in the "
                "part's order",
                what="rows",
                where=f"part {part.id}",
                given=problem,
                accepted=part.n_rows,
            )
        yield key, row


def _find_shard(part: Part, field: str) -> ShardFile:
    for shard in part.shards:
        if field in shard.field_nbytes:
            return shard
    part_fields = ", ".join(sorted(_part_fields(part)))
    raise FieldNotFound(
        f"part {part.id} has no field {field!r}; it has {part_fields}",
        what="field",
        where=f"part {part.id}",
        given=field,
        accepted=part_fields,
    )


def _part_fields(part: Part) -> list[str]:
    fields: list[str] = []
    for shard in part.shards:
        fields.extend(shard.field_nbytes)  # its keys
    return fields


def _index_place(shard: ShardFile) -> IndexPlace:
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
    row_groups: Mapping[str, IndexRows],
    key_shard: ShardFile,
    shards: Mapping[str, ShardFile],
    local: int,
) -> SampleAddress:
    """Return a row's address. row_groups: row group of each shard. local: row within these groups."""
    places = {}
    for field, shard in shards.items():
        places[field] = row_groups[shard.path].address(
            field,
            shard.group,
            shard.path,
            local,
        )
    index = row_groups[key_shard.path]
    return SampleAddress(
        key=index.keys[local],
        version="(unpublished)",
        version_id="",
        part=part.id,
        row=index.first_row + local,
        ordinal=-1,
        fields=places,
    )
