"""Deletion of many objects of a bucket: none of it is still under way when it returns or raises.

obstore spreads a longer list over requests and returns at the first that fails, while others are on their way. A
delete that arrives later would take an object that was written meanwhile. So no call of obstore makes more than one
request.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors import ObjectNotFound
from .connection import Connection

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client


def delete_objects(connection: Connection, base: str, keys: Sequence[str], batch_keys: int) -> None:
    """Delete objects; a key that is not there is no error.

    Requests: one per `batch_keys` keys, several at once.

    base: the folder of the keys in the bucket, '' or ends in '/'.
    batch_keys: keys that the store deletes in one request: 1000 (S3), 256 (Azure), 1 (GCS).

    Raises: StoreError, once nothing is under way.
    """
    batches = [keys[start : start + batch_keys] for start in range(0, len(keys), batch_keys)]
    refused = [batch for batch in _each(connection, base, batches) if batch]
    # Azure complains of one missing key among many
    _each(connection, base, [[key] for batch in refused if len(batch) > 1 for key in batch])


def _each(connection: Connection, base: str, batches: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return the batches in which a key was missing, others empty."""
    if len(batches) < 2:
        return [_delete(connection, base, batch) for batch in batches]
    pool = connection.workers()
    asked = [pool.submit(copy_context().run, partial(_delete, connection, base, batch)) for batch in batches]
    for future in asked:
        future.exception()  # wait for all of them, also when one fails
    return [future.result() for future in asked]


def _delete(connection: Connection, base: str, batch: Sequence[str]) -> Sequence[str]:
    paths = [base + key for key in batch]

    def attempt(obstore: Any, client: Client) -> None:
        obstore.delete(client, paths)

    try:
        connection.call("delete", batch[0] if len(batch) == 1 else f"({len(batch)} keys)", attempt)
    except ObjectNotFound:
        return batch
    return ()
