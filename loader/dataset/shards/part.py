"""A part: a fixed run of samples, one shard per group of fields."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ...errors import InvalidSample
from ...storage import Store
from ..tables.parquet import TableFile, get_table


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """One row of the `shards` table."""

    part: str
    """Part id."""
    group: str
    """Name of the group of fields."""
    path: str
    """Path of the shard in the root."""
    nbytes: int
    """Shard size."""
    sha256: str
    """Shard SHA-256, hex."""
    n_rows: int
    """Number of samples."""
    index_path: str
    """Path of the shard's index in the root."""
    index_nbytes: int
    """Index size."""
    index_crc32c: int
    """CRC-32C of the index."""
    index_footer_crc32c: int
    """CRC-32C of the index's Parquet footer."""
    field_nbytes: Mapping[str, int]
    """Field -> payload bytes over all rows."""
    index_footer_sha256: str | None = None
    """SHA-256 hex of the index's Parquet footer; None in earlier releases."""
    index_pages_nbytes: int | None = None
    """Bytes of page hashes in the index; None in earlier releases."""


SHARDS_SCHEMA = pa.schema(
    [
        ("part", pa.string()),
        ("group", pa.string()),
        ("path", pa.string()),
        ("nbytes", pa.int64()),
        ("sha256", pa.string()),
        ("n_rows", pa.int64()),
        ("index_path", pa.string()),
        ("index_nbytes", pa.int64()),
        ("index_crc32c", pa.int64()),
        ("index_footer_crc32c", pa.int64()),
        ("index_footer_sha256", pa.string()),
        ("index_pages_nbytes", pa.int64()),
    ]
)
"""Schema of the shards table. Tables of earlier releases end with `index_footer_crc32c`."""

SHARDS_ROW_GROUP_ROWS = 4096
"""Rows of a shards table that are decoded together, in about 2 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Shards of one part and the table of its samples. Picklable; `to_json` returns plain JSON."""

    id: str
    """Part id."""
    txn: str
    """Transaction that the part was written in."""
    n_rows: int
    """Number of samples."""
    shards: tuple[ShardFile, ...]
    """One shard per group of fields."""
    samples: TableFile | None
    """Samples table; None for a group added to an existing part."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, without columns that an earlier release's shards lack."""
        samples = None
        if self.samples is not None:
            samples = self.samples.to_json()
        return {
            "id": self.id,
            "txn": self.txn,
            "n_rows": self.n_rows,
            "shards": [_shard_json(shard) for shard in self.shards],
            "samples": samples,
        }

    @staticmethod
    def from_json(body: dict[str, Any]) -> "Part":
        """Return the part that `to_json` wrote. Raises: InvalidSample if the body is not a part."""
        try:
            samples = None
            if body["samples"]:
                samples = TableFile.from_json(body["samples"])
            return Part(
                id=body["id"],
                txn=body["txn"],
                n_rows=body["n_rows"],
                shards=tuple(ShardFile(**shard) for shard in body["shards"]),
                samples=samples,
            )
        except (KeyError, TypeError) as error:
            raise InvalidSample(
                f"not a part: {error}; pass what Part.to_json() gave", what="part", given=str(error)
            ) from error


def _shard_json(shard: ShardFile) -> dict[str, Any]:
    """Return the shard's fields, without None."""
    body: dict[str, Any] = {}
    for name in ShardFile.__slots__:
        value = getattr(shard, name)
        if value is not None:
            body[name] = value
    return body


def part_rows(store: Store, part: Part) -> list[dict[str, Any]]:
    """Return the rows of a part's samples table; none if it has no table."""
    if part.samples is None:
        return []
    rows: list[dict[str, Any]] = get_table(store, part.samples).to_pylist()
    return rows
