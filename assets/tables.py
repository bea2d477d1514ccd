"""Every lifecycle table: its columns, and the place of its files."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from loader.dataset.tables.columns import column_of
from loader.dataset.tables.parquet import TableFile, get_table, put_table
from loader.storage import Store
from penstock.stages import check_partition

from .media.media_table import MEDIA
from .media.segments.read import SEGMENTS

RAW_OBJECTS = pa.schema(
    [
        ("uri", pa.string()),
        ("key", pa.string()),
        ("etag", pa.string()),
        ("nbytes", pa.int64()),
        ("sha256", pa.string()),
        ("mime", pa.string()),
        ("label", pa.string()),
        ("licence", pa.string()),
        ("author", pa.string()),
        ("title", pa.string()),
        ("origin", pa.string()),
        ("text", pa.string()),
        ("segments", SEGMENTS),  # those that a table beside the media gives
        ("error_code", pa.string()),  # why it could not be read; empty for an object that was
        ("error_reason", pa.string()),
    ]
)
REFUSALS = pa.schema(
    [
        ("key", pa.string()),
        ("sha256", pa.string()),
        ("outcome", pa.string()),  # rejected: damaged; not_supported; not_media; dropped: sound, not taken
        ("stage", pa.string()),
        ("code", pa.string()),
        ("reason", pa.string()),
        ("decode_error_at_frame", pa.int64()),  # of a video, from 0: the first that could not be had whole
    ]
)
UNITS = pa.schema(
    [
        ("key", pa.string()),
        ("unit_id", pa.string()),
        ("kind", pa.string()),
        ("part", pa.string()),
        ("raw_key", pa.string()),
        ("raw_sha256", pa.string()),
        ("start", pa.string()),  # ticks@numerator/denominator, empty for the whole object
        ("end", pa.string()),
        ("content", pa.string()),  # hash of fields and metadata, of samples that are read; else empty or null
    ]
)
OBJECTS = pa.schema(
    [
        ("key", pa.string()),
        ("sha256", pa.string()),
        ("outcome", pa.string()),  # used, or as in refusals: every landed object has one
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
        ("data_version", pa.string()),  # as Dagster has it: the fingerprint of the stage's record
        ("record", pa.string()),  # of the stage; "" for that of the samples, which names this table
    ]
)
QUARANTINE = pa.schema(
    [
        ("ledger", pa.string()),  # the object that said so, and which line of it, from 0
        ("line", pa.int64()),
        ("key", pa.string()),
        ("unit_id", pa.string()),
        ("source", pa.string()),  # of the training's plan
        ("step", pa.int64()),
        ("error", pa.string()),  # as the training met it
        (
            "verdict",
            pa.string(),
        ),  # corrupt, sound, gone; elsewhere: of another dataset; unreadable: no ledger
        ("code", pa.string()),
        ("reason", pa.string()),
        ("version", pa.string()),  # that it was judged in, and where it lay there
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
    store: Store, dataset: str, table: str, partition: str, rows: Sequence[Mapping[str, Any]]
) -> TableFile:
    """Write rows as a new file of a lifecycle table; a stage record then says that it is the current one."""
    path = f"tables/{dataset}/{table}/{check_partition(partition)}/{secrets.token_hex(8)}.parquet"
    return put_table(store, path, pa.Table.from_pylist(list(rows), schema=SCHEMAS[table]), table)


def read_table(store: Store, file: TableFile) -> list[dict[str, Any]]:
    """Return the rows of one file, its SHA-256 checked. Raises: Corrupt; ObjectNotFound; FormatTooNew."""
    rows: list[dict[str, Any]] = get_table(store, file).to_pylist()
    return rows


def write_wide_table(
    store: Store, dataset: str, table: str, partition: str, rows: Sequence[Mapping[str, Any]]
) -> TableFile:
    """Write rows whose columns are not known beforehand, such as the scores of a featurizer.

    Types come from the values: int and float together are float. A column that a row does not have is null there.

    Raises: FieldMismatch.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    keys = [str(row.get("key", position)) for position, row in enumerate(rows)]
    columns = {name: column_of(name, [row.get(name) for row in rows], keys) for name in names}
    path = f"tables/{dataset}/{table}/{check_partition(partition)}/{secrets.token_hex(8)}.parquet"
    return put_table(store, path, pa.table(columns), table)
