"""Cache of settled batches, which have nothing left to publish: tables/<dataset>/version/settled.parquet.

It holds path and etag of their samples records. Losing it costs only reads. A takedown rewrites a record: the new etag
invalidates its entry.
"""

import logging
from collections.abc import Mapping

import pyarrow as pa

from loader.dataset.tables.parquet import parse_table, table_bytes
from loader.errors import Corrupt, FormatTooNew, ObjectNotFound, StoreError
from loader.storage import Store
from penstock.stages import settled_path

MIN_NEW_ENTRIES = 64
"""Fewest new entries worth a write, which uploads the whole table: a release may read fewer records again instead."""
_KIND = "settled-batches"
_SCHEMA = pa.schema([("path", pa.string()), ("etag", pa.string())])
_log = logging.getLogger(__name__)


def read_settled(store: Store, dataset: str) -> dict[str, str]:
    """Return record path -> etag; {} if no readable table exists."""
    path = settled_path(dataset)
    try:
        data = store.get(path).data
        table = parse_table(data, path)
        table = table.select(_SCHEMA.names).cast(_SCHEMA)
        # A path that is not UTF-8 raises ValueError here.
        paths = table["path"].to_pylist()
        etags = table["etag"].to_pylist()
    except ObjectNotFound:
        return {}
    except (Corrupt, FormatTooNew, KeyError, ValueError, pa.ArrowException) as error:
        _log.warning("%s/%s is unreadable; records are read again: %s", store.url, path, error)
        return {}
    return dict(zip(paths, etags, strict=True))


def add_settled(
    store: Store,
    dataset: str,
    known: Mapping[str, str],
    settled: Mapping[str, str],
) -> None:
    """Add newly settled records to the cache, if there are enough.

    Concurrent writers overwrite each other. A lost entry costs only another read.

    known: entries of the cache. settled: new ones. Both map the record's path to its etag.
    """
    if len(settled) < MIN_NEW_ENTRIES:
        return
    etags = {**known, **settled}
    columns = [list(etags.keys()), list(etags.values())]
    table = pa.table(columns, schema=_SCHEMA)
    data = table_bytes(table, _KIND)
    try:
        store.put(settled_path(dataset), data)
    except StoreError as error:
        _log.warning("settled batches were not saved; the next run reads them again: %s", error)
