"""Write redacted copies of shards, without the content of given samples.

A redacted sample keeps its row, and its fields keep their offsets and lengths. The bytes become zeros, and the key a
placeholder. `redact_tables.py` does the same to the samples table.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from operator import attrgetter
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
from google_crc32c import extend

from ...errors import Corrupt
from ...storage import ByteRange, Store
from ...storage.disk.scratch import on_scratch, scratch_file
from ...storage.external_shards import PlacedStore
from ..names import member_name
from ..shards.address import UNKNOWN_CRC
from ..shards.index import IndexFile, IndexPlace, Int64s, index_bytes
from ..shards.part import SHARDS_ROW_GROUP_ROWS, SHARDS_SCHEMA
from ..shards.shard import ShardWriter, crc32c, hash_pages
from ..shards.tar_headers import member_header
from ..tables.foreign_objects import is_foreign
from ..tables.parquet import TableFile, get_table, put_named_table
from .redact_tables import KeysAfterRedaction

Shard = Mapping[str, Any]
"""Row of a shards table."""


class Patch(NamedTuple):
    """Bytes of a shard to replace by as many others."""

    offset: int
    """First byte in the shard."""
    nbytes: int
    """Number of bytes."""
    data: bytes | None
    """New bytes; None for zeros."""


_BLOCK = bytes(2**20)


def redact_shard(
    store: Store,
    prefix: str,
    shard: Shard,
    rows: Mapping[int, str],
) -> dict[str, Any]:
    """Write a redacted copy of a shard under `prefix`, and return its row; the shard's own row if nothing changes.

    rows: row -> new key, of as many bytes.

    Raises: Corrupt if the shard's bytes do not match the shards table; StoreError.
    """
    keys, places = shard_index(store, shard)
    patches = _patch_index(keys, places, rows)
    if not patches:
        return dict(shard)
    if is_foreign(shard["path"]):
        # The bytes are not the root's own: only the index changes, without the patches.
        return _redact_index_only(
            store,
            prefix,
            shard,
            rows,
            keys,
            places,
        )

    stem = f"{prefix}/{shard['group']}-{shard['part']}"
    path = f"{stem}.tar"
    sha256, pages = _copy(
        store,
        shard,
        path,
        patches,
    )
    index_row = _put_index(
        store,
        stem,
        index_bytes(keys, places, pages),
        len(pages),
    )
    return {
        **shard,
        "path": path,
        "sha256": sha256,
        **index_row,
    }


def _patch_index(
    keys: list[str],
    places: Mapping[str, Int64s],
    rows: Mapping[int, str],
) -> list[Patch]:
    """Redact `keys` and `places` for the new index; return the patches that turn the old tar into the new one."""
    patches: list[Patch] = []
    for row, new_key in sorted(rows.items()):
        for field, table in places.items():
            offset, nbytes, crc = table[row].tolist()
            if keys[row] != new_key:
                # The header names the key. The new one is as long, so every offset stays.
                header = member_header(member_name(new_key, field), nbytes)
                patches.append(Patch(offset - len(header), len(header), header))
            if crc != crc_of_zeros(nbytes):  # else an earlier takedown zeroed the field
                patches.append(Patch(offset, nbytes, None))
                table[row, 2] = crc_of_zeros(nbytes)
        keys[row] = new_key
    patches.sort(key=attrgetter("offset"))  # the copy is one pass over the source
    return patches


def _redact_index_only(
    store: Store,
    prefix: str,
    shard: Shard,
    rows: Mapping[int, str],
    keys: list[str],
    places: dict[str, Int64s],
) -> dict[str, Any]:
    """Write an index that leads to no byte of these rows; return the shard's row with it. Changes `places`."""
    for table in places.values():
        table[list(rows)] = 0
    stem = f"{prefix}/{shard['group']}-{shard['part']}"
    index_row = _put_index(store, stem, index_bytes(keys, places))
    return {**shard, **index_row}


def _put_index(
    store: Store,
    stem: str,
    index: bytes,
    pages_nbytes: int = 0,
) -> dict[str, Any]:
    """Upload a shard's index; return its columns of the shards table."""
    place = IndexPlace.measure(f"{stem}.index.parquet", index, pages_nbytes)
    store.put_if_absent(place.path, index)
    return place.row()


def redact_shards(
    store: Store,
    prefix: str,
    file: TableFile,
    rows: KeysAfterRedaction,
    placed: PlacedStore | None = None,
    adopted: Collection[str] = (),
) -> TableFile:
    """Return a shards table in which these rows are redacted; the same file if no shard changes.

    A registered shard may be adopted: the root has a copy of its objects, as their owner wrote them. Such a copy would
    keep the denied bytes. So each shard with that object becomes one of the root's own, also the shards of other
    parts.

    Args:
        store: Store of the root.
        prefix: Folder of the new files.
        file: The shards table.
        rows: Rows to redact by part, with their new keys.
        placed: Reader of registered bytes; None if no shard of the table can be adopted.
        adopted: Paths of adopted shards that become the root's own whether or not `rows` has one of their parts.
    """
    shards = get_table(store, file).to_pylist()
    redacted_positions = [position for position, shard in enumerate(shards) if rows.get(shard["part"])]
    redacted_paths = {shards[position]["path"] for position in redacted_positions}
    adopted_paths = _find_adopted_paths(redacted_paths, placed)
    adopted_paths.update(adopted)
    adopted_positions = [position for position, shard in enumerate(shards) if shard["path"] in adopted_paths]
    changed_positions = sorted({*redacted_positions, *adopted_positions})
    if not changed_positions:
        return file

    for position in changed_positions:
        shard = shards[position]
        part_rows = rows.get(shard["part"], {})  # none if the part only shares an adopted object
        if placed is not None and shard["path"] in adopted_paths:
            shards[position] = _write_own_shard(
                store,
                placed,
                prefix,
                shard,
                part_rows,
            )
        else:
            shards[position] = redact_shard(
                store,
                prefix,
                shard,
                part_rows,
            )
    table = pa.Table.from_pylist(shards, SHARDS_SCHEMA)
    return put_named_table(
        store,
        prefix,
        table,
        "shards",
        SHARDS_ROW_GROUP_ROWS,
    )


def _find_adopted_paths(paths: Iterable[str], placed: PlacedStore | None) -> set[str]:
    """Return the registered shards among these, whose objects were adopted into the root."""
    if placed is None:
        return set()
    return {path for path in paths if is_foreign(path) and placed.is_adopted(path)}


def _write_own_shard(
    store: Store,
    placed: PlacedStore,
    prefix: str,
    shard: Shard,
    rows: Mapping[int, str],
) -> dict[str, Any]:
    """Write an adopted shard as one of the root's own, without the content of these rows; return its new row."""
    keys, places = shard_index(store, shard)
    stem = f"{prefix}/{shard['group']}-{shard['part']}"
    path = f"{stem}.tar"
    new_keys = [rows.get(row, key) for row, key in enumerate(keys)]
    with _scratch_file() as out:
        writer = ShardWriter(out.write)
        for row, new_key in enumerate(new_keys):
            # Fields in the order in which a part's writer stores them.
            for field, table in sorted(places.items()):
                offset, nbytes, crc = table[row].tolist()
                if row in rows:
                    data = bytes(nbytes)
                else:
                    data = _read_adopted(
                        placed,
                        shard,
                        offset,
                        nbytes,
                        crc,
                    )
                table[row] = writer.add(new_key, field, data)
        sha256 = writer.finish()
        out.flush()
        store.put_file(path, out.name)
    index = index_bytes(new_keys, places, writer.pages)
    index_row = _put_index(
        store,
        stem,
        index,
        len(writer.pages),
    )
    return {
        **shard,
        "path": path,
        "nbytes": writer.nbytes,
        "sha256": sha256,
        **index_row,
    }


def _read_adopted(
    placed: PlacedStore,
    shard: Shard,
    offset: int,
    nbytes: int,
    crc: int,
) -> bytes:
    """Return the bytes of an adopted shard's field; empty if it was left out before sealing."""
    if crc == UNKNOWN_CRC or not nbytes:
        return b""
    (piece,) = placed.get_ranges(shard["path"], [ByteRange(offset, nbytes)])
    actual_crc = crc32c(piece.data)
    if actual_crc != crc:
        url, start = placed.place(shard["path"], offset)
        raise Corrupt(
            f"{url}, bytes [{start}:{start + nbytes}] have the CRC-32C {actual_crc:08x}, {crc:08x} is known of them: "
            "they were damaged. Restore the object from a mirror; nothing was redacted"
        )
    return piece.data


@lru_cache(maxsize=4096)
def crc_of_zeros(nbytes: int) -> int:
    """Return the CRC-32C of `nbytes` zeros, cached. O(nbytes)."""
    crc = 0
    for start in range(0, nbytes, len(_BLOCK)):
        crc = extend(crc, _BLOCK[: nbytes - start])
    return int(crc)


def shard_index(store: Store, shard: Shard) -> tuple[list[str], dict[str, Int64s]]:
    """Return (all keys of a shard, field -> writable int64 [rows, 3]: offset, nbytes, crc32c)."""
    index = IndexFile(store, IndexPlace.of(shard))
    keys: list[str] = []
    group_places: list[Int64s] = []
    fields: list[str] = []
    while len(keys) < index.n_rows:
        next_row = len(keys)
        rows = index.read_group(index.row_group_number(next_row))
        keys += rows.keys
        group_places.append(rows.places)
        fields = list(rows.offset)  # the same in each row group
    places = np.concatenate(group_places)  # int64 [rows, fields, 3]
    places_by_field = {}
    for number, field in enumerate(fields):
        places_by_field[field] = places[:, number].copy()
    return keys, places_by_field


@contextmanager
def _scratch_file() -> Iterator[BinaryIO]:
    """Yield a temporary file for a whole shard. Raises: StoreError if there is no room."""
    meanwhile = "while a shard was redacted; nothing was published"
    with (
        on_scratch(
            None,
            meanwhile,
            room_for="the largest shard",
            again="redact again",
        ),
        scratch_file("redact") as out,
    ):
        yield out


def _copy(
    store: Store,
    shard: Shard,
    path: str,
    patches: Sequence[Patch],
) -> tuple[str, bytes]:
    """Copy a shard to `path` with patches in ascending order; return the copy's (SHA-256, page hashes)."""
    with _scratch_file() as out:
        with store.open_stream(shard["path"]) as source:
            name = f"{store.url}/{shard['path']}"
            # A damaged source raises here, before the copy is uploaded.
            sha256 = _patch_stream(
                source,
                out.write,
                patches,
                shard,
                name,
            )
        out.flush()
        store.put_file(path, out.name)
        return sha256, hash_pages(out.name)


def _patch_stream(
    source: BinaryIO,
    out: Callable[[bytes], object],
    patches: Sequence[Patch],
    shard: Shard,
    name: str,
) -> str:
    """Write the source with its patches to `out`; return the SHA-256 of the result.

    Raises: Corrupt if the source is damaged.
    """
    source_digest = hashlib.sha256()
    new_digest = hashlib.sha256()

    def write(data: bytes) -> None:
        new_digest.update(data)
        out(data)

    position = 0  # in the source
    for patch in patches:
        n_unchanged = patch.offset - position
        for block in _read_blocks(source, n_unchanged, source_digest.update):
            write(block)
        # The replaced bytes are read too: the source's hash covers them.
        for block in _read_blocks(source, patch.nbytes, source_digest.update):
            if patch.data is None:
                write(_BLOCK[: len(block)])
        if patch.data is not None:
            write(patch.data)
        position = patch.offset + patch.nbytes
    n_rest = int(shard["nbytes"]) - position
    for block in _read_blocks(source, n_rest, source_digest.update):
        write(block)

    if source_digest.hexdigest() != shard["sha256"]:
        raise Corrupt(
            f"{name} has sha256 {source_digest.hexdigest()}, in the shards table {shard['sha256']}: it was damaged. "
            "Restore it from a mirror; nothing was redacted"
        )
    return new_digest.hexdigest()


def _read_blocks(
    source: BinaryIO,
    nbytes: int,
    update: Callable[[bytes], None],
) -> Iterator[bytes]:
    """Yield the next bytes in blocks of at most 1 MiB, each after `update(block)`. Ends early with the source."""
    while nbytes > 0:
        block = source.read(min(nbytes, len(_BLOCK)))
        if not block:
            return  # too short: the hash check reports it
        update(block)
        nbytes -= len(block)
        yield block
