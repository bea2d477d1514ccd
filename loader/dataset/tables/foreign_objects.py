"""Table of objects registered in place, and the records of their locations.

    foreign-<16 hex>.parquet   shard, offset, path, nbytes, etag, modified_us, sha256: a row per object, shard by shard.
                               Objects of tables have `chunks` too
    places/<place>/<n>.json    {"format", "url", "at_us"}: created once, the highest n applies

The table has no URL, so that a bucket may move.
"""

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from ...errors import AlreadyExists, Corrupt, FormatTooNew, NotARoot, ObjectNotFound
from ...json_text import DamagedJson, parse_json_object
from ...storage import ObjectInfo, Store, open_store
from ...storage.external_shards import FOREIGN
from ...storage.mirror import primary_of
from ...storage.requests import retry_corrupt
from ...storage.store import disk_of
from ..log.entries import canonical
from ..log.marker import MIRROR_OF, PRIMARY, check_root
from .parquet import TableFile, get_tables, table_facts

PLACES = "places/"
_PATH = re.compile(rf"{FOREIGN}([0-9a-f]{{32}})/(.+)", re.DOTALL)
_RECORD = re.compile(r"[0-9]{12}\.json")
LAST_RECORD = 10**12 - 1
"""Highest number of a location's record: a later one would not be read."""
PLACE_FORMAT = 1
"""Format of a record of a location with a URL."""
HERE_FORMAT = 2
"""Format of a record of a location in the root."""
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
        if not has_valid_size or not _is_in_place_of(record.path, record.shard):
            raise Corrupt(
                f"{table} has {record.path!r} for {record.shard!r}: a path is {FOREIGN}, the id of the shard's place "
                "and a key in it, and sizes are 0 or more. It was damaged or forged; register the place again"
            )
        return record

    @property
    def place(self) -> str:
        return place_of(self.path)

    @property
    def key(self) -> str:
        return self.path.split("/", 2)[2]

    def is_still(self, info: ObjectInfo, etag: str) -> bool:
        """Return whether a listed object is unchanged. etag: from `etag_to_keep`."""
        if self.nbytes != info.nbytes or self.etag != etag:
            return False
        if etag:  # equal, as compared above
            return True
        return self.modified_us == (info.modified_us or 0)


def _is_in_place_of(path: str, shard: str) -> bool:
    """Return whether an object's path is in its shard's location, and does not leave it."""
    path_parts = _PATH.fullmatch(path)
    shard_parts = _PATH.fullmatch(shard)
    if path_parts is None or shard_parts is None:
        return False
    place, key = path_parts.groups()
    # On a disk such a key would lead to files that were not registered.
    strays = not {"", ".", ".."}.isdisjoint(key.split("/"))
    return not strays and place == shard_parts[1]


def etag_to_keep(store: Store, info: ObjectInfo) -> str:
    """Return an object's change token for the table; "" in a folder, where the token contains the inode number."""
    if disk_of(store) is not None:
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
        token = etag_to_keep(store, info)
        if not token:
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


def put_place(
    store: Store,
    place: str,
    url: str | None,
) -> None:
    """Record a location, unless the newest record agrees. url: None if the objects are in the root.

    After another user's record it adds this user's, which vouches for the location (`is_own_record`). Raises:
    StoreError; Corrupt.
    """
    while True:
        n, record = _newest(store, place)
        key = _key(place, n)
        agrees = record is not None and record["url"] == url
        if agrees and (url is None or is_own_record(store, key, url) is not False):
            return
        # The number of a forged record may leave no room for another.
        if n >= LAST_RECORD:
            raise Corrupt(
                f"{store.url}/{key} has the last number that a record of a place may have: it was forged. "
                "Find out who may write there, delete it, then run this again"
            )
        body = {
            "format": PLACE_FORMAT,
            "url": url,
            "at_us": time.time_ns() // 1000,
        }
        if url is None:
            body["format"] = HERE_FORMAT
        next_key = _key(place, n + 1)
        try:
            # Of two writers one gets the number; the other reads what it wrote, and decides again.
            store.put_if_absent(next_key, canonical(body))
        except AlreadyExists:
            continue
        return


def is_adopted(store: Store, place: str) -> bool:
    _, record = _newest(store, place)
    return record is not None and record["url"] is None


class PlaceRecord(NamedTuple):
    key: str
    """Store key of the record."""
    url: str
    """URL of the location, untrusted: see `is_vouched`."""


def place_record(store: Store, place: str) -> PlaceRecord | None:
    """Return a location's newest record; None if its objects are in the root."""
    n, record = _newest(store, place)
    if record is None:
        raise ObjectNotFound(
            f"{store.url} has no {PLACES}{place}/: the location of these bytes is unknown. Register them again, from "
            "where they are now"
        )
    url = record["url"]
    if url is None:
        return None
    return PlaceRecord(_key(place, n), url)


def owners_record(store: Store, place: str) -> PlaceRecord:
    """Return a location's record; if it was adopted, the record from before the adoption."""
    for key in sorted(_records(store, place), reverse=True):
        record = retry_corrupt(partial(_record, store, key))
        if record["url"] is not None:
            return PlaceRecord(key, record["url"])
    raise ObjectNotFound(f"{store.url} has no {PLACES}{place}/ with the location of these bytes")


def _key(place: str, n: int) -> str:
    return f"{PLACES}{place}/{n:012d}.json"


def _records(store: Store, place: str) -> list[str]:
    """Return the keys of a location's records; other files in their folder are ignored."""
    keys = []
    for info in store.list(f"{PLACES}{place}/"):
        name = info.key.rpartition("/")[2]
        if _RECORD.fullmatch(name):
            keys.append(info.key)
    return keys


def _newest(store: Store, place: str) -> tuple[int, dict[str, Any] | None]:
    """Return (number, record) of a location's newest record; (0, None) if it has none."""
    keys = _records(store, place)
    if not keys:
        return 0, None
    key = max(keys)  # numbers have leading zeros
    body = retry_corrupt(partial(_record, store, key))
    if body["format"] > HERE_FORMAT:
        raise FormatTooNew(
            f"{store.url}/{key} has format {body['format']}; this penstock reads up to {HERE_FORMAT}. "
            "Upgrade penstock-data (docs/install.md)"
        )
    _, _, name = key.rpartition("/")
    return int(name.removesuffix(".json")), body


def _record(store: Store, key: str) -> dict[str, Any]:
    try:
        body = parse_json_object(store.get(key).data)
        has_url = isinstance(body["url"], str | None)
        has_format = isinstance(body["format"], int)
        if not has_url or not has_format:
            raise TypeError("url is a text or null, format a number")
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"{store.url}/{key} is no record of a place ({error}); register the bytes again"
        ) from error
    return body


def place_of(path: str) -> str:
    return path.split("/", 2)[1]


def is_foreign(path: str) -> bool:
    return path.startswith(FOREIGN)


VARIABLE = "PENSTOCK_PLACES"
MAX_RECORD_BYTES = 2**20
_BUCKETS = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "abfs": "az",
    "abfss": "az",
}
"""Bucket scheme -> canonical scheme. Buckets grant access only by credentials."""


def is_vouched(
    store: Store,
    key: str,
    url: str,
) -> bool:
    """Return whether the caller vouches for a location. key: store key of its record."""
    location = _canonical_location(url)
    trusted = os.environ.get(VARIABLE, "").split()
    if any(_lies_in(location, _canonical_location(place)) for place in trusted):
        return True
    return is_own_record(store, key, url) is True


def is_bucket(url: str) -> bool:
    if "::" in url:  # fsspec reads one file system through another
        return False
    scheme, _, rest = url.partition("://")
    return bool(rest) and scheme.lower() in _BUCKETS


def is_own_record(
    store: Store,
    key: str,
    url: str,
) -> bool | None:
    """Return whether the caller wrote the record that names `url`; None in a bucket, which has no owner.

    A link on the path is treated as another user's.
    """
    primary = primary_of(store)
    if "://" in primary.url:
        return primary.url.startswith("memory://") or None  # exists only in this process
    path = f"{primary.url}/{key}"
    path_without_links = f"{os.path.realpath(primary.url)}/{key}"
    if os.path.realpath(path) != path_without_links:
        return False
    if not _is_own_file(path, url):
        return False
    marker = check_root(primary)
    if MIRROR_OF in marker:
        return _is_of_primary(primary, str(marker[MIRROR_OF]), key, url)
    return PRIMARY not in marker


def _is_own_file(path: str, url: str) -> bool:
    # Without waiting for the writer of a pipe, and without following a link.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags)
        with open(descriptor, "rb") as file:
            # Owner and content of one open file: between two opens the path may get another file.
            about = os.fstat(file.fileno())
            is_own = about.st_uid in (os.geteuid(), 0)
            if not stat.S_ISREG(about.st_mode) or not is_own:
                return False
            data = file.read(MAX_RECORD_BYTES)
        record = parse_json_object(data)
    except (OSError, DamagedJson):
        return False
    return bool(record.get("url") == url)


def _is_of_primary(
    mirror: Store,
    primary: str,
    key: str,
    url: str,
) -> bool:
    """Return whether the mirror's record is a copy of the primary's, which the caller wrote."""
    if "://" in primary or os.path.realpath(primary) == os.path.realpath(mirror.url):
        return False
    source = open_store(primary)
    try:
        # Both bytes, not only the URL: a writer of the mirror may have forged a record under the primary's number.
        source_record = bytes(source.get(key).data)
        mirror_record = bytes(mirror.get(key).data)
        if source_record != mirror_record or MIRROR_OF in check_root(source):
            return False
        return is_own_record(source, key, url) is True
    except (ObjectNotFound, NotARoot):
        return False


def refusal(
    store: Store,
    key: str,
    url: str,
    what: str,
) -> str:
    return (
        f"{store.url}/{key} names {url}, which is not {what}: any writer of the root may have written that record. If "
        f"you trust the place, run the same again with {VARIABLE}={url}"
    )


def _canonical_location(url: str) -> str:
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    if not rest or scheme in ("file", "local"):
        return os.path.realpath(open_store(url).url)
    bucket_scheme = _BUCKETS.get(scheme, scheme)
    path = rest.rstrip("/")
    return f"{bucket_scheme}://{path}"


def _lies_in(place: str, trusted: str) -> bool:
    r"""Return whether a location is the trusted one or below it. Servers read %2e as ".", some "\\" as "/"."""
    folder = trusted.rstrip("/") + "/"
    # With the final slash, so that /data2 is not in /data.
    if not f"{place}/".startswith(folder):
        return False
    path = f"{place}/".removeprefix(folder)
    if "://" in place:
        path = unquote(path)
    parts = path.replace("\\", "/").split("/")
    return {".", ".."}.isdisjoint(parts)
