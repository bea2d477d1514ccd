"""Objects of a version, besides its manifest: one list for collecting, copying, rewriting and verifying."""

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
    """Sha256 hex of its bytes; None for an index, which has a CRC-32C in its row of the shards table."""
    kind: str
    """List of the manifest that names it (`shards`, `samples`, ...), or `shard` or `index` for an object that a
    shards table names."""


def table_references(manifest: Mapping[str, Any]) -> Iterator[Reference]:
    """Yield the tables that a manifest names, in its order; no request.

    Lists that this release does not know are among them: the content of a newer one is not to be lost.
    """
    for kind, files in manifest.items():
        for file in files if isinstance(files, list) else ():
            if isinstance(file, dict) and "path" in file:
                yield Reference(path=file["path"], nbytes=file["nbytes"], sha256=file["sha256"], kind=kind)


def references(store: Store, manifest: Mapping[str, Any]) -> Iterator[Reference]:
    """Yield the tables that a manifest names, then the shards and indexes of its shards tables, each once per row.

    Costs a request per shards table and the memory of a few of them.

    Raises: Corrupt; ObjectNotFound; FormatTooNew, for a shards table.
    """
    yield from table_references(manifest)
    files = [TableFile.from_json(file) for file in manifest["shards"]]
    for table in get_tables(store, files, ["path", "nbytes", "sha256", "index_path", "index_nbytes"]):
        for batch in table.to_batches(max_chunksize=4096):
            for row in batch.to_pylist():
                yield Reference(path=row["path"], nbytes=row["nbytes"], sha256=row["sha256"], kind="shard")
                yield Reference(path=row["index_path"], nbytes=row["index_nbytes"], sha256=None, kind="index")
