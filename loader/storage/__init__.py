"""Stores: one small set of operations over disks, memory and buckets.

    store = open_store("s3://bucket/datasets", {"endpoint_url": "http://127.0.0.1:9000"})
    store.put_if_absent("log/000001.json", b"{}")

A backend is one file here plus one line in `spec.BACKENDS`, or an entry point in the group `penstock.stores`: scheme ->
opener.
"""

from .spec import StoreSpec, open_store
from .store import (
    Blob,
    ByteRange,
    ObjectInfo,
    RangeReader,
    ReadLimits,
    Store,
    is_local,
    is_on_network,
    is_there,
)

__all__ = [
    "Blob",
    "ByteRange",
    "ObjectInfo",
    "RangeReader",
    "ReadLimits",
    "Store",
    "StoreSpec",
    "is_local",
    "is_on_network",
    "is_there",
    "open_store",
]
