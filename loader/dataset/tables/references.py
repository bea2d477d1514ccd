"""Objects of a version beside its manifest, to collect, copy, rewrite and verify."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...storage import Store
from .parquet import TableFile, get_tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One object that a manifest needs."""

    path: str
    """Path relative to the root."""
    nbytes: int
    """Size in bytes."""
    sha256: str | None
    """Sha256 hex; None for an index, whose CRC-32C is in the shards table."""
    kind: str
    """Manifest list that names it (`shards`, `samples`, ...), or `shard` or `index` from a shards table."""


def table_references(manifest: Mapping[str, Any]) -> Iterator[Reference]:
    """Yield the tables that a manifest names, in order, also of newer releases' lists. No request."""
    for kind, files in manifest.items():
        for file in files if isinstance(files, list) else ():
            if isinstance(file, dict) and "path" in file:
                yield Reference(path=file["path"], nbytes=file["nbytes"], sha256=file["sha256"], kind=kind)


def references(store: Store, manifest: Mapping[str, Any]) -> Iterator[Reference]:
    """Yield the tables that a manifest names, then the shards and indexes of its shards tables, each once per row.

    Costs a request per shards table.
    """
    yield from table_references(manifest)
    files = [TableFile.from_json(file) for file in manifest["shards"]]
    for table in get_tables(store, files, ["path", "nbytes", "sha256", "index_path", "index_nbytes"]):
        for batch in table.to_batches(max_chunksize=4096):
            for row in batch.to_pylist():
                yield Reference(path=row["path"], nbytes=row["nbytes"], sha256=row["sha256"], kind="shard")
                yield Reference(path=row["index_path"], nbytes=row["index_nbytes"], sha256=None, kind="index")
