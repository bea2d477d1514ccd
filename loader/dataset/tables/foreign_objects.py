"""Table of objects registered in place.

    foreign-<16 hex>.parquet   shard, offset, path, nbytes, etag, modified_us, sha256: a row per object, shard by shard.
                               Objects of tables have `chunks` too

The table has no URL, so that a bucket may move: `place_records.py` has the URL of each location.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ...errors import Corrupt
from ...storage import ObjectInfo, Store
from ...storage.external_shards import FOREIGN
from ...storage.store import as_disk
from ..log.entries import canonical
from .parquet import TableFile, get_tables, table_facts

_PATH = re.compile(rf"{FOREIGN}([0-9a-f]{{32}})/(.+)", re.DOTALL)
CHUNKS_FIELD = pa.field(
    "chunks",
    pa.struct(
        [
            ("footer_nbytes", pa.int64()),
            ("footer_crc32c", pa.int64()),
            ("columns", pa.list_(pa.string())),
            ("starts", pa.list_(pa.int64())),
        ]
    ),
)
"""Column for objects that are tables: the fields of `columnar.parquet_chunks.Chunks`."""
FOREIGN_SCHEMA = pa.schema(
    [
        ("shard", pa.string()),
        ("offset", pa.int64()),
        ("path", pa.string()),
        ("nbytes", pa.int64()),
        ("etag", pa.string()),
        ("modified_us", pa.int64()),
        ("sha256", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignObject:
    """One registered object: a row of the table."""

    shard: str
    """Path of the shard that contains the object: `foreign/<place>/...`."""
    offset: int
    """First byte in the shard."""
    path: str
    """`foreign/<place>/` followed by the object's key in its location."""
    nbytes: int
    """Size in bytes."""
    etag: str
    """Change token; "" in a folder, which uses `modified_us` instead."""
    modified_us: int
    """Last write, microseconds since 1970, or 0."""
    sha256: str = ""
    """Sha256 hex of the bytes; "" if unknown."""
    chunks: Mapping[str, Any] | None = None
    """Facts of the decoded chunks, or None."""

    @staticmethod
    def of_row(row: Mapping[str, Any], table: str) -> "ForeignObject":
        """Return the object in an untrusted stored row. table: the table's name, for errors.

        Raises: Corrupt if a value is missing, or the path leaves its location.
        """
        record = ForeignObject(**row)
        missing = [name for name in FOREIGN_SCHEMA.names if getattr(record, name) is None]
        if missing:
            raise Corrupt(
                f"{table} has no {', '.join(missing)} for {record.path!r}, which every registration writes: it was "
                "damaged or forged. Register the place again"
            )
        has_valid_size = record.nbytes >= 0 and record.offset >= 0
        if not has_valid_size or not _is_in_shard_location(record.path, record.shard):
            raise Corrupt(
                f"{table} has {record.path!r} for {record.shard!r}: a path is {FOREIGN}, the id of the shard's place "
                "and a key in it, and sizes are 0 or more. It was damaged or forged; register the place again"
            )
        return record

    @property
    def place(self) -> str:
        """Id of the location."""
        return foreign_place(self.path)

    @property
    def key(self) -> str:
        """Key in the location."""
        return self.path.split("/", 2)[2]

    def is_unchanged(self, info: ObjectInfo, etag: str) -> bool:
        """Return whether the object is as registered. info: as listed now. etag: from `change_token`."""
        if self.nbytes != info.nbytes or self.etag != etag:
            return False
        if etag:  # equal, as compared above
            return True
        return self.modified_us == (info.modified_us or 0)


def _is_in_shard_location(path: str, shard: str) -> bool:
    """Return whether an object's path is in its shard's location, and does not leave it."""
    path_parts = _PATH.fullmatch(path)
    shard_parts = _PATH.fullmatch(shard)
    if path_parts is None or shard_parts is None:
        return False
    place, key = path_parts.groups()
    # On a disk such a segment would lead to files that were not registered.
    stays_inside = {"", ".", ".."}.isdisjoint(key.split("/"))
    shard_place = shard_parts[1]
    return stays_inside and place == shard_place


def change_token(store: Store, info: ObjectInfo) -> str:
    """Return an object's change token for the table; "" in a folder, where the token contains the inode number."""
    if as_disk(store) is not None:
        return ""
    return info.etag


def place_id(
    store: Store,
    infos: Iterable[ObjectInfo],
    decoded: Mapping[str, Any] | None = None,
) -> str:
    """Return a location's id: a hash over its objects' keys, sizes and change tokens, in order.

    decoded: format and options for tables, which determine their decoded bytes.
    """
    digest = hashlib.sha256()
    if decoded is not None:
        digest.update(canonical(dict(decoded)) + b"\n")
    for info in infos:
        token = change_token(store, info)
        if not token:  # a folder
            token = str(info.modified_us or 0)
        line = json.dumps([info.key, info.nbytes, token])
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()[:32]


def foreign_table(objects: Sequence[ForeignObject]) -> pa.Table:
    schema = FOREIGN_SCHEMA
    has_chunks = any(item.chunks is not None for item in objects)
    if has_chunks:  # otherwise older readers still read the table
        schema = schema.append(CHUNKS_FIELD)
    columns = {}
    for field in schema:
        values = [getattr(item, field.name) for item in objects]
        columns[field.name] = pa.array(values, field.type)
    return pa.table(columns, schema=schema)


def foreign_objects(
    store: Store,
    files: Sequence[dict[str, Any]],
) -> tuple[list[ForeignObject], dict[str, str]]:
    """Return (objects in a manifest's list `foreign`, in order, without chunks; facts of its last table)."""
    facts: dict[str, str] = {}
    objects: list[ForeignObject] = []
    table_files = [TableFile.from_json(file) for file in files]
    tables = get_tables(store, table_files, FOREIGN_SCHEMA.names)
    for file, table in zip(table_files, tables, strict=True):
        name = f"{store.url}/{file.path}"
        objects += [ForeignObject.of_row(row, name) for row in table.to_pylist()]
        facts = table_facts(table)
    return objects, facts


def foreign_place(path: str) -> str:
    """Return the id of the location in a path `foreign/<place>/...`."""
    return path.split("/", 2)[1]


def is_foreign(path: str) -> bool:
    return path.startswith(FOREIGN)
