"""Batches with nothing left to publish, remembered: a release reads only the records of the others.

    tables/<dataset>/version/settled.parquet      path, etag of samples records; replaced by releases

They are in a version, or hold nothing but copies. All of it may be lost: both are for ever, so what stands there is
true, and what does not is read again. A record that a takedown has replaced is listed with another etag, and is too.
"""

import logging
from collections.abc import Mapping

import pyarrow as pa

from loader.dataset.tables.parquet import parse_table, table_bytes
from loader.errors import Corrupt, FormatTooNew, ObjectNotFound, StoreError
from loader.storage import Store
from penstock.stages import settled_path

NOTED_AT_ONCE = 64
"""Fewer new ones are read again by the next release."""
_KIND = "settled-batches"
_SCHEMA = pa.schema([("path", pa.string()), ("etag", pa.string())])
_log = logging.getLogger(__name__)


def read_settled(store: Store, dataset: str) -> dict[str, str]:
    """Return path of a record -> the etag under which it was read; {} where nothing is kept, or it makes no sense."""
    path = settled_path(dataset)
    try:
        table = parse_table(store.get(path).data, path).select(_SCHEMA.names).cast(_SCHEMA)
        return dict(zip(*(column.to_pylist() for column in table.columns), strict=True))
    except ObjectNotFound:
        return {}
    except (Corrupt, FormatTooNew, KeyError, ValueError, pa.ArrowException) as error:
        _log.warning("%s/%s is no use, records are read again: %s", store.url, path, error)
        return {}


def note_settled(store: Store, dataset: str, known: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Remember `found` beside `known`, once it is worth a write. Of two at once one is forgotten."""
    if len(found) >= NOTED_AT_ONCE:
        rows = {**known, **found}
        table = pa.table([list(rows), list(rows.values())], schema=_SCHEMA)
        try:
            store.put(settled_path(dataset), table_bytes(table, _KIND))
        except StoreError as error:
            _log.warning("what is settled was not noted, and is read again: %s", error)
