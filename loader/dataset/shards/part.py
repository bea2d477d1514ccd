"""A part: a fixed run of samples, one shard per group of fields. What one writer hands to the publisher."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ...errors import InvalidSample
from ..tables.parquet import TableFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """One row of the `shards` table. `field_nbytes`: the payload bytes of each field, over all rows. What has a default
    was not there in earlier releases."""

    part: str
    group: str
    path: str
    nbytes: int
    sha256: str
    n_rows: int
    index_path: str
    index_nbytes: int
    index_crc32c: int
    index_footer_crc32c: int
    field_nbytes: Mapping[str, int]
    index_footer_sha256: str | None = None
    index_pages_nbytes: int | None = None


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
"""Tables of earlier releases end with `index_footer_crc32c`."""

SHARDS_ROW_GROUP_ROWS = 4096
"""Rows of a shards table that are decoded together when one of them is asked for: some 2 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Shards of one part and the table of its samples. Plain data: it pickles, and `to_json` goes anywhere.

    samples: the per-part samples table, or None for a group added to a part that already has one.
    """

    id: str
    txn: str
    n_rows: int
    shards: tuple[ShardFile, ...]
    samples: TableFile | None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready, for handing parts between processes; what an earlier release's shards lack is left out."""
        shards = [
            {name: value for name in ShardFile.__slots__ if (value := getattr(shard, name)) is not None}
            for shard in self.shards
        ]
        samples = self.samples.to_json() if self.samples else None
        return {"id": self.id, "txn": self.txn, "n_rows": self.n_rows, "shards": shards, "samples": samples}

    @staticmethod
    def from_json(body: dict[str, Any]) -> "Part":
        """The inverse of `to_json`. Raises: InvalidSample when the body is not a part."""
        try:
            shards = tuple(ShardFile(**shard) for shard in body["shards"])
            samples = TableFile.from_json(body["samples"]) if body["samples"] else None
            return Part(id=body["id"], txn=body["txn"], n_rows=body["n_rows"], shards=shards, samples=samples)
        except (KeyError, TypeError) as error:
            raise InvalidSample(f"not a part: {error}; pass what Part.to_json() gave") from error


def shards_table(shards: list[ShardFile]) -> pa.Table:
    """The `shards` table of these shards, in the order given."""
    columns = [
        pa.array([getattr(s, name) for s in shards], SHARDS_SCHEMA.field(name).type)
        for name in SHARDS_SCHEMA.names
    ]
    return pa.table(columns, schema=SHARDS_SCHEMA)
