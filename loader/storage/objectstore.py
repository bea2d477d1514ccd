"""S3, GCS and Azure through obstore: everything that does not depend on the provider.

The sync API from many threads is as fast as its async one, and needs no event loop. obstore's own retries
are switched off (`retry.py` rules), its change tokens are compared here (Ceph refuses a quoted If-Match),
and its listings are filtered here (their offset and prefix semantics differ between providers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from ..errors import AlreadyExists, Changed, Corrupt, Forbidden, Transient
from .connection import Connection, client_errors
from .disk_errors import upload_size
from .keys import check_key, check_prefix, check_span
from .missing_rights import explained
from .object_deletes import delete_objects
from .object_errors import is_conflict, is_past_end
from .object_listing import etag_of, list_objects
from .options import Runtime
from .ranges import plan_reads, slice_reads
from .spec import Opened, StoreSpec
from .store import Blob, ObjectInfo, Span
from .stream import open_reader

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

T = TypeVar("T")

BOUNDED_BYTES = 16 * 2**20  # one request's body; a larger object is read and uploaded in such pieces
SINGLE_PUT_BYTES = 64 * 2**20  # a larger file is uploaded in parts
MAX_PARTS = 9_000  # S3 takes 10 000
WHOLE_READ_TRIES = 5


class RemoteStore(Opened):
    """One bucket and prefix. `connect(max_retries)` makes a client; its errors are mapped here."""

    def __init__(
        self,
        connect: Callable[[int], Client],
        prefix: str,
        spec: StoreSpec,
        url: str,
        runtime: Runtime,
        *,
        delete_keys: int,
    ) -> None:
        """delete_keys: how many keys the provider deletes in one request.

        Raises: ForkedStore; InvalidStore when the client refuses its configuration.
        """
        super().__init__(spec, url)
        self._prefix = f"{prefix}/" if prefix else ""
        self._connection = Connection(connect, url, spec, runtime)
        self._call = self._connection.call
        self._delete_keys = delete_keys

    def get(self, key: str) -> Blob:
        path = self._prefix + check_key(key)

        def attempt(obstore: Any, client: Client) -> Blob | ObjectInfo:
            answer = obstore.get(client, path)
            size, etag = answer.meta["size"], etag_of(answer.meta)
            if size > BOUNDED_BYTES:
                return ObjectInfo(key=key, nbytes=size, etag=etag)  # the body is abandoned
            return Blob(self._whole(key, answer.bytes().to_bytes(), size), etag)

        for _ in range(WHOLE_READ_TRIES):
            found = self._reading(key, attempt)
            if isinstance(found, Blob):
                return found
            try:
                return self.get_ranges(key, [Span(0, found.nbytes)], etag=found.etag)[0]
            except Changed:
                continue  # replaced meanwhile; a `get` pins nothing
        raise Transient(
            f"cannot read {self._url}/{key}: it is replaced faster than it can be read; try later"
        )

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        check_span(key, offset, nbytes)
        if nbytes == 0:
            return self._empty(key, offset, etag)
        path = self._prefix + check_key(key)

        def attempt(obstore: Any, client: Client) -> Blob:
            try:
                answer = obstore.get(client, path, options={"range": (offset, offset + nbytes)})
            except client_errors() as error:
                if is_past_end(error):
                    raise self._short(key, offset, nbytes) from None
                raise
            meta = answer.meta
            found = self._pinned(key, etag_of(meta), etag)
            if meta["size"] < offset + nbytes:
                raise self._short(key, offset, nbytes, meta["size"])
            return Blob(self._whole(key, answer.bytes().to_bytes(), nbytes), found)

        return self._reading(key, attempt)

    def get_ranges(
        self,
        key: str,
        spans: Sequence[Span],
        *,
        etag: str | None = None,
        max_gap: int = 64 * 2**10,
        max_span: int = BOUNDED_BYTES,
    ) -> list[Blob]:
        reads = plan_reads(spans, max_gap, max_span)
        if len(reads) > 1:
            pool = self._connection.workers()
            rest = [
                pool.submit(copy_context().run, partial(self.get_range, key, *read, etag=etag))
                for read in reads[1:]
            ]
            try:
                blobs = [self.get_range(key, *reads[0], etag), *(future.result() for future in rest)]
            finally:
                for future in rest:
                    future.cancel()
        else:
            blobs = [self.get_range(key, *(reads[0] if reads else Span(0, 0)), etag)]
        found = blobs[0].etag
        for blob in blobs:
            self._pinned(key, blob.etag, found)  # without a pin too, no answer mixes two objects
        pieces = slice_reads(spans, reads, [blob.data for blob in blobs])
        return [Blob(piece, found) for piece in pieces]

    def put(self, key: str, data: bytes) -> None:
        path = self._prefix + check_key(key)
        self._call("write", key, lambda obs, client: obs.put(client, path, data, use_multipart=False))

    def put_if_absent(self, key: str, data: bytes) -> None:
        """A failed create says nothing of what is stored: the key is read again, and that decides."""
        path = self._prefix + check_key(key)

        def attempt(obstore: Any, client: Client) -> None:
            try:
                obstore.put(client, path, data, mode="create", use_multipart=False)
                return
            except client_errors() as error:
                refused = error
            if self._holds(obstore, client, key, data):
                return
            if is_conflict(refused):  # 409: refused because of another request, and nothing is stored
                raise Transient(f"cannot create {self._url}/{key}: the store reports a conflict")
            raise refused

        self._call("create", key, attempt)

    def put_file(self, key: str, path: str) -> None:
        target = self._prefix + check_key(key)
        nbytes = upload_size(path, f"{self._url}/{key}")
        if nbytes <= SINGLE_PUT_BYTES:
            return self.put(key, Path(path).read_bytes())
        uploader = self._connection.uploader()
        chunk = max(BOUNDED_BYTES, -(-nbytes // MAX_PARTS))

        def attempt(obstore: Any, _: Client) -> None:
            obstore.put(uploader, target, Path(path), use_multipart=True, chunk_size=chunk, max_concurrency=4)

        return self._call("upload", key, attempt)

    def head(self, key: str) -> ObjectInfo:
        path = self._prefix + check_key(key)
        meta = self._call("look up", key, lambda obs, client: obs.head(client, path))
        return ObjectInfo(key=key, nbytes=meta["size"], etag=etag_of(meta))

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """As everywhere; an empty folder marker ('sub/') that a console made is listed as an empty 'sub'."""
        return list_objects(self._connection, self._prefix, check_prefix(prefix), start_after or "")

    def delete_many(self, keys: Iterable[str]) -> None:
        delete_objects(self._connection, [self._prefix + check_key(key) for key in keys], self._delete_keys)

    def copy(self, src: str, dst: str) -> None:
        from_, to = self._prefix + check_key(src), self._prefix + check_key(dst)
        self._call("copy", src, lambda obs, client: obs.copy(client, from_, to))

    def open_stream(self, key: str) -> BinaryIO:
        return open_reader(self, key)

    def close(self) -> None:
        self._connection.close()

    def _holds(self, obstore: Any, client: Client, key: str, data: bytes) -> bool:
        """Whether `key` holds `data`; False when it holds nothing. Raises: AlreadyExists."""
        try:
            held = obstore.get(client, self._prefix + key).bytes().to_bytes()
        except FileNotFoundError:
            return False
        if held != data:
            raise AlreadyExists(
                f"{self._url}/{key}: the key already holds another object; choose another key"
            )
        return True

    def _reading(self, key: str, attempt: Callable[[Any, Client], T]) -> T:
        try:
            return self._call("read", key, attempt)
        except Forbidden as refused:
            scheme, path = self._url.partition("://")[0], self._prefix + key
            raise explained(self._connection, scheme, path, refused) from None

    def _empty(self, key: str, offset: int, etag: str | None) -> Blob:
        info = self.head(key)
        found = self._pinned(key, info.etag, etag)
        if offset > info.nbytes:
            raise self._short(key, offset, 0, info.nbytes)
        return Blob(b"", found)

    def _pinned(self, key: str, found: str, etag: str | None) -> str:
        if etag is not None and etag != found:
            raise Changed(
                f"{self._url}/{key}: the object was replaced since it was first read "
                f"(etag {etag}, now {found}); open the version again"
            )
        return found

    def _whole(self, key: str, data: bytes, nbytes: int) -> bytes:
        if len(data) != nbytes:
            raise Transient(f"cannot read {self._url}/{key}: got {len(data)} of {nbytes} bytes")
        return data

    def _short(self, key: str, offset: int, nbytes: int, size: int | None = None) -> Corrupt:
        end = "before that range" if size is None else f"at byte {size}"
        return Corrupt(f"{self._url}/{key}[{offset}:{offset + nbytes}]: the object ends {end}")
