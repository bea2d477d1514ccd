"""Batches that may have something left to publish, and a cache of the others: tables/<dataset>/version/settled.parquet.

The cache holds path and etag of samples records. Losing it costs only reads. A takedown rewrites a record: the new
etag invalidates its entry.
"""

import logging
from collections.abc import Mapping

import pyarrow as pa

import loader
from loader.dataset.log.state import State
from loader.dataset.tables.parquet import parse_table, table_bytes
from loader.errors import Corrupt, FormatTooNew, ObjectNotFound, StoreError
from loader.storage import ObjectInfo, Store
from penstock.stages import StageRecord, current_record, existing_records, newest_listed, settlement_path

from ..pipeline.stages import SAMPLES

MIN_NEW_ENTRIES = 64
"""Fewest new entries worth a write, which uploads the whole table: a release may read fewer records again instead."""
_KIND = "settled-batches"
_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("etag", pa.string()),
    ]
)
_log = logging.getLogger(__name__)


def unsettled_records(root: loader.Root, dataset: str) -> dict[str, StageRecord]:
    """Return batch -> newest samples record, without settled batches.

    Batches that are settled by now are among them once more, and are added to the cache of settled ones.
    """
    store = root.store
    state = root.state
    listed = newest_listed(store, dataset, SAMPLES)
    known = _read_settled(store, dataset)
    infos = _without_settled(listed, known)
    records = existing_records(store, infos)

    settled: dict[str, str] = {}  # path of a record -> its etag
    for name, record in records.items():
        if _is_settled(state, record):
            etag = infos[name].etag
            if etag:
                settled[record.path] = etag
            continue
        # Read once more: a listing may lag, and a failure may have replaced the record.
        newest = current_record(store, dataset, SAMPLES, name)
        if newest is not None:
            records[name] = newest
    _add_settled(store, dataset, known, settled)
    return records


def _is_settled(state: State, record: StageRecord) -> bool:
    """Return whether a samples record has nothing left to publish."""
    if record.verdict == "published" and not record.body["parts"]:
        return True
    return is_published(state, record)


def _without_settled(
    listed: Mapping[str, ObjectInfo],
    known: Mapping[str, str],
) -> dict[str, ObjectInfo]:
    """Return the listed records of batches that are not settled. known: path of each settled record -> etag."""
    infos: dict[str, ObjectInfo] = {}
    for name, info in listed.items():
        # A store without etags cannot show that a record is the same: such records are always read.
        settled_etag = known.get(info.key)
        if not info.etag or settled_etag != info.etag:
            infos[name] = info
    return infos


def is_published(state: State, record: StageRecord) -> bool:
    """Return whether a samples record is part of a version."""
    if record.verdict != "published":
        return False
    txn = record.body.get("txn", "")
    transaction = state.txns.get(txn)
    if transaction is None:
        return False
    return transaction.status == "committed"


def _read_settled(store: Store, dataset: str) -> dict[str, str]:
    """Return record path -> etag; {} if no readable table exists."""
    path = settlement_path(dataset)
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


def _add_settled(
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
        store.put(settlement_path(dataset), data)
    except StoreError as error:
        _log.warning("settled batches were not saved; the next run reads them again: %s", error)
