"""S3, GCS and Azure through obstore: the parts common to all providers.

The sync API from many threads is as fast as the async one. Its listings are filtered here, because offsets and prefixes
differ between providers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from ...errors import AlreadyExists, ObjectNotFound, Transient
from ..disk.folder_files import upload_size
from ..files import put_held
from ..spec import Runtime, StoreSpec
from ..store import ObjectInfo, Refuse, check_key, check_prefix, log_refusals
from ..stream import open_reader
from .connection import Connection, client_errors
from .errors import is_conflict
from .listing import PageOf, list_objects
from .range_requests import Direct
from .reads import BOUNDED_BYTES, ReadStore

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

T = TypeVar("T")

SINGLE_PUT_BYTES = 64 * 2**20  # a larger file is uploaded in parts
MAX_PARTS = 9_000  # S3 allows 10,000


class RemoteStore(ReadStore):
    """Reads and writes one bucket and prefix."""

    def __init__(
        self,
        connect: Callable[[int], Client],
        prefix: str,
        spec: StoreSpec,
        url: str,
        runtime: Runtime,
        *,
        pages_of: PageOf,
        delete_keys: int,
        direct: Direct | None = None,
    ) -> None:
        """Connect. pages_of: as for `list_objects`. delete_keys: keys per delete request. direct: as for `ReadStore`.

        Raises: ForkedStore; InvalidStore if the client rejects its configuration.
        """
        super().__init__(connect, prefix, spec, url, runtime, direct)
        self._pages_of = pages_of
        self._delete_keys = delete_keys

    def put(self, key: str, data: bytes | memoryview) -> None:
        path = self._prefix + check_key(key)
        self._call("write", key, lambda obs, client: obs.put(client, path, data, use_multipart=False))

    def put_if_absent(self, key: str, data: bytes | memoryview) -> None:
        """Create an object. After a failed create, the content under the key decides the outcome."""
        path = self._prefix + check_key(key)

        def attempt(obstore: Any, client: Client) -> None:
            def put() -> object:
                return obstore.put(client, path, data, mode="create", use_multipart=False)

            self._created(obstore, client, key, data, put)

        self._call("create", key, attempt)

    def put_file(self, key: str, path: str) -> None:
        target = self._prefix + check_key(key)
        nbytes = upload_size(path, f"{self.url}/{key}")
        if nbytes <= SINGLE_PUT_BYTES:
            return put_held(self, key, path, nbytes)
        uploader = self._connection.uploader()
        chunk = max(BOUNDED_BYTES, -(-nbytes // MAX_PARTS))  # rounded up: S3 accepts at most MAX_PARTS parts

        def attempt(obstore: Any, _: Client) -> None:
            obstore.put(uploader, target, Path(path), use_multipart=True, chunk_size=chunk, max_concurrency=4)

        return self._call("upload", key, attempt)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """List as `Store.list`; a console's empty folder marker ('sub/') is listed as 'sub'."""
        return self.list_place(prefix, start_after or "", log_refusals(self.url))

    def list_from(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        return self.list_place(prefix, start_after, log_refusals(self.url), seek=True)

    def list_place(
        self, prefix: str, start_after: str, refuse: Refuse, *, seek: bool = False, outside: bool = False
    ) -> Iterator[ObjectInfo]:
        return list_objects(
            self._connection,
            self._prefix,
            check_prefix(prefix),
            start_after,
            pages_of=self._pages_of,
            refuse=refuse,
            seek=seek,
        )

    def delete_many(self, keys: Iterable[str]) -> None:
        _delete_objects(self._connection, self._prefix, [check_key(key) for key in keys], self._delete_keys)

    def copy(self, src: str, dst: str) -> None:
        source = self._prefix + check_key(src)
        target = self._prefix + check_key(dst)
        self._call("copy", src, lambda obs, client: obs.copy(client, source, target))

    def open_stream(self, key: str) -> BinaryIO:
        return open_reader(self, key)

    def close(self) -> None:
        self._connection.close()
        if self._direct is not None:
            self._direct.close()

    def _created(
        self, obstore: Any, client: Client, key: str, data: bytes | memoryview, put: Callable[[], T]
    ) -> T | None:
        """Return the result of `put`; None if it failed and the key holds `data` anyway."""
        try:
            return put()
        except client_errors() as error:
            refused = error
        if self._holds(obstore, client, key, data):
            return None
        if is_conflict(refused):  # 409: rejected because of a concurrent request; nothing is stored
            raise Transient(f"cannot create {self.url}/{key}: the store reports a conflict")
        raise refused

    def _holds(self, obstore: Any, client: Client, key: str, data: bytes | memoryview) -> bool:
        try:
            held = obstore.get(client, self._prefix + key).bytes().to_bytes()
        except FileNotFoundError:
            return False
        if held != data:
            raise AlreadyExists(
                f"{self.url}/{key}: the key already holds another object; choose another key",
                what="key",
                where=f"{self.url}/{key}",
                given="another object",
            )
        return True


def _delete_objects(connection: Connection, base: str, keys: Sequence[str], batch_keys: int) -> None:
    # obstore returns at the first failing request while others continue. A late delete could remove a newer object, so
    # each obstore call makes one request.
    batches = [keys[start : start + batch_keys] for start in range(0, len(keys), batch_keys)]
    refused = [batch for batch in _delete_batches(connection, base, batches) if batch]
    # Azure reports one missing key among many as an error
    _delete_batches(connection, base, [[key] for batch in refused if len(batch) > 1 for key in batch])


def _delete_batches(
    connection: Connection, base: str, batches: Sequence[Sequence[str]]
) -> list[Sequence[str]]:
    if len(batches) < 2:
        return [_delete_batch(connection, base, batch) for batch in batches]
    pool = connection.workers()
    futures = [
        pool.submit(copy_context().run, partial(_delete_batch, connection, base, batch)) for batch in batches
    ]
    for future in futures:
        future.exception()  # wait for all of them, even if one fails
    return [future.result() for future in futures]


def _delete_batch(connection: Connection, base: str, batch: Sequence[str]) -> Sequence[str]:
    """Delete keys by one request; return them if one is missing, so that others may remain."""
    paths = [base + key for key in batch]

    def attempt(obstore: Any, client: Client) -> None:
        obstore.delete(client, paths)

    shown = f"({len(batch)} keys)"
    if len(batch) == 1:
        shown = batch[0]
    try:
        connection.call("delete", shown, attempt)
    except ObjectNotFound:
        return batch
    return ()
