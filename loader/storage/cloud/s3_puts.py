"""Copy another store's object to S3, where equal ETags replace a second hash.

A signature covers the payload's SHA-256, which client (0.6 s of processor per GiB) and server both compute. The ETag of
an object put by one request is its MD5. If source and target have the same MD5, the signature need not cover the
payload. Everything else uses `put`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any

from ...errors import Forbidden, ObjectNotFound, StoreError
from ..options import Runtime
from ..spec import StoreSpec
from ..store import check_key
from .http_connection import Broken, HttpConnection
from .listing import etag_of
from .range_requests import Direct
from .raw_listing import PageOf
from .store import RemoteStore

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

_MD5 = re.compile(r'"[0-9a-f]{32}"')
_THROTTLED = {429, 503}
_REFUSED = {400, 401, 403, 501}
_TOO_SLOW = b"<Code>RequestTimeout</Code>"


def is_md5(etag: str) -> bool:
    """Return whether an ETag could be its object's MD5."""
    return bool(_MD5.fullmatch(etag))


def differ(first: str, other: str) -> bool:
    """Return whether two ETags prove that two objects differ: both could be MD5 and are unequal."""
    return first != other and is_md5(first) and is_md5(other)


class Sending:
    """One object being uploaded, used and closed by one thread. is_refused: True if the store rejects such uploads."""

    def __init__(
        self, direct: Direct, connection: HttpConnection, nbytes: int, ended: Callable[[bool], None]
    ) -> None:
        """nbytes: size of the object. ended: called once, with True if the store throttled."""
        self._direct, self._wire, self._remaining = direct, connection, nbytes
        self._ended: Callable[[bool], None] | None = ended
        self.is_refused = False

    def send(self, piece: memoryview) -> bool:
        """Send the next bytes, and return whether the store still accepts them."""
        try:
            self._wire.send(piece)
        except Broken:
            self._direct.refused()
            return False
        self._remaining -= len(piece)
        return True

    def finish(self) -> str:
        """Return the ETag of the stored object; "" if unknown or missing."""
        if self._remaining:
            return ""
        try:
            status, etag, text = self._direct.end(self._wire)
        except Broken:
            self._direct.refused()
            return ""
        self.is_refused = status in _REFUSED and _TOO_SLOW not in text
        self._end(throttled=status in _THROTTLED)
        return etag

    def close(self) -> None:
        """Stop sending: the store drops an incomplete object."""
        if self._remaining:
            self._wire.close()
        self._end(throttled=False)

    def _end(self, *, throttled: bool) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(throttled)


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
        sends: bool = True,
    ) -> None:
        """connect, unsigned: create clients that sign payloads, or do not. pages_of: as for `RemoteStore`.

        sends: True if a signed URL may put an object.
        """
        super().__init__(
            connect, prefix, spec, url, runtime, pages_of=pages_of, delete_keys=delete_keys, direct=direct
        )
        self._unsigned, self._twins, self._reading_back = unsigned, Lock(), Lock()
        self._twin_client: Client | None = None
        self._vouches, self._sends = True, sends

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

    def sends(self, etag: str) -> bool:
        """Return whether `send_twin` may put an object with this ETag ("" if not known yet)."""
        return (
            self._sends
            and self._vouches
            and self._direct is not None
            and self._direct.is_on
            and (not etag or is_md5(etag))
        )

    def send_twin(self, key: str, nbytes: int, etag: str, *, replace: bool) -> Sending | None:
        """Start a streamed `put_same`; call `finish_twin` and close the `Sending` afterwards. None: use `put_same`."""
        path, direct = self._prefix + check_key(key), self._direct
        if direct is None or not etag or not self.sends(etag):
            return None

        def attempt(obstore: Any, client: Client) -> HttpConnection | None:
            return direct.begin(obstore, client, path, nbytes, create=not replace)

        held = self._connection.hold(attempt)
        return None if held is None else Sending(direct, held[0], nbytes, held[1])

    def finish_twin(self, sending: Sending, etag: str) -> bool | None:
        """Return whether the store has the sent bytes; None if its ETag differs."""
        stored_etag = sending.finish()
        if sending.is_refused:
            self._sends = False
        if not stored_etag:
            return False
        if stored_etag != etag:
            self._vouches = False
            return None
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
