"""Write redacted copies of files, without the content of given samples.

A redacted sample keeps its row, and its fields keep their offsets and lengths. The bytes become zeros, table values
null, and the key a placeholder.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from google_crc32c import extend

from ...errors import Corrupt
from ...storage import ByteRange, Store
from ...storage.disk.scratch import held_file, on_scratch
from ...storage.external_shards import PlacedStore
from ..names import member_name
from ..shards.address import UNKNOWN_CRC
from ..shards.index import IndexFile, IndexPlace, Int64s, index_bytes
from ..shards.part import SHARDS_ROW_GROUP_ROWS, SHARDS_SCHEMA
from ..shards.shard import ShardWriter, crc32c, hash_pages, member_header
from ..tables.foreign_objects import is_foreign
from ..tables.manifest import SamplesFile
from ..tables.parquet import TableFile, get_table, get_tables, put_named_table, table_facts
from ..tables.stats import column_stats

Redacted = Mapping[str, Mapping[int, str]]
"""Part id -> row -> new key."""
Shard = Mapping[str, Any]

_BLOCK = bytes(2**20)


def redact_shard(store: Store, prefix: str, shard: Shard, rows: Mapping[int, str]) -> dict[str, Any]:
    """Write a redacted copy of a shard under `prefix`, and return its row; the shard's own row if nothing changes.

    rows: row -> new key, of as many bytes.

    Raises: Corrupt if the shard's bytes do not match the shards table; StoreError.
    """
    keys, places = shard_index(store, shard)
    patches: list[tuple[int, bytes | int]] = []
    for row, key in sorted(rows.items()):
        for field, table in places.items():
            offset, nbytes, crc = table[row].tolist()
            if keys[row] != key:
                header = member_header(member_name(key, field), nbytes)
                patches.append((offset - len(header), header))
            if crc != crc_of_zeros(nbytes):
                patches.append((offset, nbytes))
                table[row, 2] = crc_of_zeros(nbytes)
        keys[row] = key
    if not patches:
        return dict(shard)
    if is_foreign(shard["path"]):
        return _redact_index(store, prefix, shard, rows, keys, places)
    stem = f"{prefix}/{shard['group']}-{shard['part']}"
    sha256, pages = _copy(store, shard, f"{stem}.tar", sorted(patches, key=lambda patch: patch[0]))
    index = index_bytes(keys, places, pages)
    place = IndexPlace.measure(f"{stem}.index.parquet", index, len(pages))
    store.put_if_absent(place.path, index)
    return {
        **shard,
        "path": f"{stem}.tar",
        "sha256": sha256,
        **place.row(),
    }


def _redact_index(
    store: Store,
    prefix: str,
    shard: Shard,
    rows: Mapping[int, str],
    keys: list[str],
    places: dict[str, Int64s],
) -> dict[str, Any]:
    for table in places.values():
        table[list(rows)] = 0
    index = index_bytes(keys, places)
    place = IndexPlace.measure(f"{prefix}/{shard['group']}-{shard['part']}.index.parquet", index)
    store.put_if_absent(place.path, index)
    return {**shard, **place.row()}


def redact_shards(
    store: Store,
    prefix: str,
    file: TableFile,
    rows: Redacted,
    placed: PlacedStore | None = None,
    own: Collection[str] = (),
) -> TableFile:
    """Return a shards table with these parts' shards redacted; the same file if it has none of them.

    Adopted registered shards become the root's own, together with all parts that share their objects.

        placed: reader of registered bytes; None if none can be adopted.
        own: paths of other adopted shards that become the root's own.
    """
    table = get_table(store, file)
    shards = table.to_pylist()
    affected = {at for at, shard in enumerate(shards) if rows.get(shard["part"])}
    adopted = {
        shards[at]["path"]
        for at in affected
        if placed is not None and is_foreign(shards[at]["path"]) and placed.is_adopted(shards[at]["path"])
    }
    adopted |= {shard["path"] for shard in shards if shard["path"] in own}
    affected |= {at for at, shard in enumerate(shards) if shard["path"] in adopted}
    for at in sorted(affected):
        redacted = rows.get(shards[at]["part"], {})
        if placed is not None and shards[at]["path"] in adopted:
            shards[at] = _own_shard(store, placed, prefix, shards[at], redacted)
        else:
            shards[at] = redact_shard(store, prefix, shards[at], redacted)
    if not affected:
        return file
    return put_named_table(
        store, prefix, pa.Table.from_pylist(shards, SHARDS_SCHEMA), "shards", SHARDS_ROW_GROUP_ROWS
    )


def _own_shard(
    store: Store, placed: PlacedStore, prefix: str, shard: Shard, rows: Mapping[int, str]
) -> dict[str, Any]:
    keys, places = shard_index(store, shard)
    stem = f"{prefix}/{shard['group']}-{shard['part']}"
    again, meanwhile = "redact again", "while a shard was redacted; nothing was published"
    with (
        on_scratch(None, meanwhile, room_for="the largest shard", again=again),
        held_file("redact") as out,
    ):
        writer = ShardWriter(out.write)
        for row, key in enumerate(keys):
            for field, table in sorted(places.items()):
                offset, nbytes, crc = table[row].tolist()
                data = bytes(nbytes) if row in rows else _adopted(placed, shard, offset, nbytes, crc)
                table[row] = writer.add(rows.get(row, key), field, data)
        sha256 = writer.finish()
        out.flush()
        store.put_file(f"{stem}.tar", out.name)
    index = index_bytes([rows.get(row, key) for row, key in enumerate(keys)], places, writer.pages)
    place = IndexPlace.measure(f"{stem}.index.parquet", index, len(writer.pages))
    store.put_if_absent(place.path, index)
    return {**shard, "path": f"{stem}.tar", "nbytes": writer.nbytes, "sha256": sha256, **place.row()}


def _adopted(placed: PlacedStore, shard: Shard, offset: int, nbytes: int, crc: int) -> bytes:
    """Return the bytes of an adopted shard's field; empty if it was left out before sealing."""
    if crc == UNKNOWN_CRC or not nbytes:
        return b""
    data = placed.get_ranges(shard["path"], [ByteRange(offset, nbytes)])[0].data
    if crc32c(data) != crc:
        url, at = placed.place(shard["path"], offset)
        raise Corrupt(
            f"{url}, bytes [{at}:{at + nbytes}] have the CRC-32C {crc32c(data):08x}, {crc:08x} is known of them: they "
            "were damaged. Restore the object from a mirror; nothing was redacted"
        )
    return data


def redact_samples(
    store: Store, prefix: str, files: Sequence[SamplesFile], rows: Redacted
) -> tuple[SamplesFile, ...]:
    """Return samples files in which these rows are null except for the key. Files without such rows are unchanged."""
    out = []
    for file in files:
        table = get_table(store, file.file)
        redacted = rows_of(table, rows)
        new = redact_rows(table, redacted)
        if new is not table:
            file = replace(file, file=put_named_table(store, prefix, new, table_facts(table)["table"]))
        out.append(file)
    return tuple(out)


def rows_of(table: pa.Table, rows: Redacted) -> dict[int, str]:
    if not rows:
        return {}
    places = zip(table["part"].to_pylist(), table["row"].to_pylist(), strict=True)
    return {at: rows[part][row] for at, (part, row) in enumerate(places) if row in rows.get(part, ())}


def redact_rows(table: pa.Table, redacted: Mapping[int, str]) -> pa.Table:
    """Return the table with nulls in these rows, except part, row and the new key."""
    mask = np.zeros(table.num_rows, bool)
    mask[list(redacted)] = True
    for position, name in enumerate(table.column_names) if redacted else ():
        if name in ("part", "row"):
            continue
        values = table[name].to_pylist() if name == "key" else _without(table[name], mask)
        for at, key in redacted.items() if name == "key" else ():
            values[at] = key
        field = table.schema.field(name)
        table = table.set_column(position, field, pa.chunked_array([pa.array(values, field.type)]))
    return table


def redact_stats(store: Store, prefix: str, samples: Sequence[TableFile]) -> TableFile:
    statistics = [column_stats(table) for table in get_tables(store, samples)]
    return put_named_table(store, prefix, pa.concat_tables(statistics), "stats")


@lru_cache(maxsize=4096)
def crc_of_zeros(nbytes: int) -> int:
    """Return the CRC-32C of `nbytes` zeros, cached. O(nbytes)."""
    crc = 0
    for start in range(0, nbytes, len(_BLOCK)):
        crc = extend(crc, _BLOCK[: nbytes - start])
    return int(crc)


def _without(column: pa.ChunkedArray, mask: "np.ndarray[Any, np.dtype[np.bool_]]") -> pa.Array:
    # Taking with a null index gives null, for every type.
    at = pa.array(np.arange(len(mask)), mask=mask)
    return column.combine_chunks().take(at)


def shard_index(store: Store, shard: Shard) -> tuple[list[str], dict[str, Int64s]]:
    """Return (all keys of a shard, field -> writable int64 [rows, 3]: offset, nbytes, crc32c)."""
    index = IndexFile(store, IndexPlace.of(shard))
    keys: list[str] = []
    places: list[Int64s] = []
    fields: list[str] = []
    while len(keys) < index.n_rows:
        rows = index.read_group(index.row_group_of(len(keys)))
        keys += rows.keys
        places.append(rows.places)
        fields = list(rows.offset)
    whole = np.concatenate(places)
    return keys, {field: whole[:, number].copy() for number, field in enumerate(fields)}


def _copy(
    store: Store, shard: Shard, path: str, patches: Sequence[tuple[int, bytes | int]]
) -> tuple[str, bytes]:
    """Copy a shard with patches; return (SHA-256, page hashes). patches: (offset, bytes or number of zeros)."""
    again, meanwhile = "redact again", "while a shard was redacted; nothing was published"
    with (
        on_scratch(None, meanwhile, room_for="the largest shard", again=again),
        held_file("redact") as out,
    ):
        with store.open_stream(shard["path"]) as source:
            sha256 = _patched(source, out.write, patches, shard, f"{store.url}/{shard['path']}")
        out.flush()
        store.put_file(path, out.name)
        return sha256, hash_pages(out.name)


def _patched(
    source: BinaryIO,
    out: Callable[[bytes], object],
    patches: Sequence[tuple[int, bytes | int]],
    shard: Shard,
    name: str,
) -> str:
    was, now = hashlib.sha256(), hashlib.sha256()

    def write(data: bytes) -> None:
        now.update(data)
        out(data)

    at = 0
    for offset, what in patches:
        for block in _blocks(source, offset - at, was.update):
            write(block)
        nbytes = what if isinstance(what, int) else len(what)
        for block in _blocks(source, nbytes, was.update):
            if isinstance(what, int):
                write(_BLOCK[: len(block)])
        if not isinstance(what, int):
            write(what)
        at = offset + nbytes
    for block in _blocks(source, int(shard["nbytes"]) - at, was.update):
        write(block)
    if was.hexdigest() != shard["sha256"]:
        raise Corrupt(
            f"{name} has sha256 {was.hexdigest()}, in the shards table {shard['sha256']}: it was damaged. Restore it "
            "from a mirror; nothing was redacted"
        )
    return now.hexdigest()


def _blocks(source: BinaryIO, nbytes: int, seen: Callable[[bytes], None]) -> Iterator[bytes]:
    while nbytes > 0:
        block = source.read(min(nbytes, len(_BLOCK)))
        if not block:
            return  # too short: the hash check reports it
        seen(block)
        nbytes -= len(block)
        yield block
