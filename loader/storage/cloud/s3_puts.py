"""Copy another store's object to S3, where equal ETags replace a second hash.

A signature covers the payload's SHA-256, which client (0.6 s of processor per GiB) and server both compute. The ETag of
an object put by one request is its MD5. If source and target have the same MD5, the signature need not cover the
payload. Everything else uses `put`.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any

from ...errors import Forbidden, ObjectNotFound, StoreError
from ..options import Runtime
from ..spec import StoreSpec
from ..store import check_key
from .listing import etag_of, is_md5
from .range_requests import Direct
from .raw_listing import PageOf
from .store import RemoteStore

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client


class S3PutStore(RemoteStore):
    """One S3 bucket and prefix.

    Unsigned payloads are disabled for good once an ETag is not an MD5 (a bucket with KMS) or one is rejected.
    """

    def __init__(
        self,
        connect: Callable[[int], Client],
        unsigned: Callable[[int], Client],
        prefix: str,
        spec: StoreSpec,
        url: str,
        runtime: Runtime,
        *,
        pages_of: PageOf,
        delete_keys: int,
        direct: Direct | None = None,
    ) -> None:
        """connect, unsigned: create clients that sign payloads, or do not. The rest: as for `RemoteStore`."""
        super().__init__(
            connect, prefix, spec, url, runtime, pages_of=pages_of, delete_keys=delete_keys, direct=direct
        )
        self._unsigned, self._twins, self._reading_back = unsigned, Lock(), Lock()
        self._twin_client: Client | None = None
        self._vouches = True

    def put_same(self, key: str, data: bytes | memoryview, etag: str, *, replace: bool) -> None:
        """Put an object that another store has with `etag`, like `put` (if `replace`) or `put_if_absent`.

        If the store returns another ETag, the object is read back, and put again if it differs from `data`.
        """
        is_put = self._vouches and is_md5(etag) and self._put_unsigned(key, data, etag, replace)
        if not is_put:
            (self.put if replace else self.put_if_absent)(key, data)

    def _put_unsigned(self, key: str, data: bytes | memoryview, etag: str, replace: bool) -> bool:
        path, mode = self._prefix + check_key(key), "overwrite" if replace else "create"

        def attempt(obstore: Any, _: Client) -> str | None:
            client = self._twin()  # here, so that a forked child fails before creating one

            def put() -> str:
                return etag_of(obstore.put(client, path, data, mode=mode, use_multipart=False))

            return put() if replace else self._created(obstore, client, key, data, put)

        try:
            stored_etag = self._call("write", key, attempt)
        except StoreError as error:
            if type(error) not in (StoreError, Forbidden):
                raise
            # A server may reject it with any status: a signed put shows the reason.
            self._vouches = False
            return False
        if stored_etag in (None, etag):
            return True
        self._vouches = False
        try:
            with self._reading_back:  # at most one object at a time is in memory twice
                is_there = self.get(key).data == data
        except ObjectNotFound:
            return False
        except Forbidden:  # write permission without read permission
            is_there = False
        if not is_there:
            self.put(key, data)
        return True

    def close(self) -> None:
        with self._twins:
            self._twin_client = None
        super().close()

    def _twin(self) -> Client:
        with self._twins:
            if self._twin_client is None:
                self._twin_client = self._unsigned(0)
            return self._twin_client
