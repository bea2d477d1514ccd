"""Lifecycle tables: columns and files. Also the facts about fields that versions keep."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from loader.dataset.shards.part import ShardFile
from loader.dataset.tables.columns import arrow_column
from loader.dataset.tables.parquet import TableFile, get_table, put_table
from loader.storage import Store
from penstock.stages import check_partition

from ..media.media_table import MEDIA, MEDIA_TEXTS
from ..media.segments import SEGMENTS

_RAW_OBJECTS = [
    ("uri", pa.string(), "address of the object where it landed"),
    ("key", pa.string(), "name of the object in its source"),
    ("etag", pa.string(), "the store's mark of the bytes that were read"),
    ("nbytes", pa.int64(), "size of the object in bytes"),
    ("sha256", pa.string(), "SHA-256 of its bytes, in hex"),
    ("mime", pa.string(), "type, by content"),
    ("label", pa.string(), "label that its source gives"),
    ("licence", pa.string(), "licence that its source gives; unknown without one"),
    ("author", pa.string(), "author that its source names"),
    ("title", pa.string(), "title that its source gives"),
    ("origin", pa.string(), "where its source has it from"),
    ("text", pa.string(), "caption or transcript that its source gives"),
    ("segments", SEGMENTS, "segments that a table beside the media gives"),
    ("error_code", pa.string(), "why it could not be read; empty for an object that was"),
    ("error_reason", pa.string(), "the same in words"),
]
RAW_OBJECTS = pa.schema([(name, kind) for name, kind, _ in _RAW_OBJECTS])
REFUSALS = pa.schema(
    [
        ("key", pa.string()),
        ("sha256", pa.string()),
        ("outcome", pa.string()),  # rejected: damaged; not_supported; not_media; dropped: intact but unwanted
        ("stage", pa.string()),
        ("code", pa.string()),
        ("reason", pa.string()),
        ("decode_error_at_frame", pa.int64()),  # index of a video's first damaged frame, from 0
    ]
)
_UNITS = [
    ("key", pa.string(), "key of the sample"),
    ("unit_id", pa.string(), "SHA-256 of everything that the unit was cut from and by"),
    ("kind", pa.string(), "image, video, audio, text or other"),
    ("part", pa.string(), "part of the transaction that holds it"),
    ("raw_key", pa.string(), "name of the raw object in its source"),
    ("raw_sha256", pa.string(), "SHA-256 of the raw object's bytes, in hex"),
    ("start", pa.string(), "start in the source: ticks@numerator/denominator, empty for the whole object"),
    ("end", pa.string(), "end in the source, exclusive, as start"),
    ("content", pa.string(), "hash of fields and metadata, of samples that are read; else empty or null"),
]
UNITS = pa.schema([(name, kind) for name, kind, _ in _UNITS])
TEXTS: Mapping[str, Mapping[str, str]] = {
    "raw_objects": {name: text for name, _, text in _RAW_OBJECTS},
    "media": MEDIA_TEXTS,
    "units": {name: text for name, _, text in _UNITS},
}
"""Table -> column -> description for Dagster's pages."""
OBJECTS = pa.schema(
    [
        ("key", pa.string()),
        ("sha256", pa.string()),
        ("outcome", pa.string()),  # used, or an outcome of REFUSALS: every landed object has one
        ("stage", pa.string()),
        ("code", pa.string()),
        ("reason", pa.string()),
    ]
)
LINEAGE = pa.schema(
    [
        ("out_kind", pa.string()),
        ("out_id", pa.string()),
        ("in_kind", pa.string()),
        ("in_id", pa.string()),
        ("run_id", pa.string()),
        ("asset_key", pa.string()),
        ("partition", pa.string()),
        ("code_version", pa.string()),
        ("config_hash", pa.string()),
        ("data_version", pa.string()),  # as in Dagster: the fingerprint of the stage's record
        ("record", pa.string()),  # the stage's record; "" for samples, whose record names this table
    ]
)
QUARANTINE = pa.schema(
    [
        ("ledger", pa.string()),  # key of the ledger object; `line` counts its lines from 0
        ("line", pa.int64()),
        ("key", pa.string()),
        ("unit_id", pa.string()),
        ("source", pa.string()),  # source in the training run's plan
        ("step", pa.int64()),
        ("error", pa.string()),  # as the training run raised it
        (
            "verdict",
            pa.string(),
        ),  # on the sample; elsewhere: another dataset's sample; unreadable: not a ledger
        ("code", pa.string()),
        ("reason", pa.string()),
        ("version", pa.string()),  # version in which it was judged; part and row locate it there
        ("part", pa.string()),
        ("row", pa.int64()),
        ("run_id", pa.string()),
        ("at_us", pa.int64()),
    ]
)
SCHEMAS: Mapping[str, pa.Schema] = {
    "raw_objects": RAW_OBJECTS,
    "refusals": REFUSALS,
    "media": MEDIA,
    "units": UNITS,
    "objects": OBJECTS,
    "lineage": LINEAGE,
    "quarantine": QUARANTINE,
}


def write_table(
    store: Store,
    dataset: str,
    table: str,
    partition: str,
    rows: Sequence[Mapping[str, Any]],
) -> TableFile:
    """Write rows as a new file of a lifecycle table, which a stage record makes current."""
    path = f"tables/{dataset}/{table}/{check_partition(partition)}/{secrets.token_hex(8)}.parquet"
    return put_table(store, path, pa.Table.from_pylist(list(rows), schema=SCHEMAS[table]), table)


def read_table(store: Store, file: TableFile) -> list[dict[str, Any]]:
    """Return a file's rows after checking its SHA-256. Raises: Corrupt; ObjectNotFound; FormatTooNew."""
    rows: list[dict[str, Any]] = get_table(store, file).to_pylist()
    return rows


def write_wide_table(
    store: Store,
    dataset: str,
    table: str,
    partition: str,
    rows: Sequence[Mapping[str, Any]],
) -> TableFile:
    """Write rows with arbitrary columns, such as a featurizer's scores. Missing values are null.

    Types follow from the values. A column with both int and float becomes float. Raises: FieldMismatch.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    # For the message of a FieldMismatch, which names the samples whose values differ in type.
    keys = [str(row.get("key", position)) for position, row in enumerate(rows)]
    columns = {name: arrow_column(name, [row.get(name) for row in rows], keys) for name in names}
    path = f"tables/{dataset}/{table}/{check_partition(partition)}/{secrets.token_hex(8)}.parquet"
    return put_table(store, path, pa.table(columns), table)


CUT_FACTS: Mapping[str, Mapping[str, Any]] = {
    "jpg": {"dims": ["row", "column", "channel"]},
    "img": {"dims": ["row", "column", "channel"]},
    "mp4": {"dims": ["frame", "row", "column", "channel"]},
    "flac": {"dims": ["channel", "sample"], "unit": "full scale"},
    "sound.flac": {"dims": ["channel", "sample"], "unit": "full scale"},
}
"""Field of a unit -> facts about its decoded values, the same under every policy (docs/format.md)."""


def facts_of_fields(
    shards: Iterable[ShardFile], *known: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the facts for the fields of these shards; a publish refuses others."""
    fields = {field for shard in shards for field in shard.field_nbytes}
    return {field: dict(facts) for group in known for field, facts in group.items() if field in fields}
