"""Read from S3, GCS and Azure through obstore: ranges, and whole objects in bounded requests.

S3 and Google also answer 403 for a missing object if the credentials may not list. A reader of a root's log must
distinguish the two, so errors name the missing permission.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from ...errors import Changed, Corrupt, Forbidden, StoreError, Transient
from ..spec import Opened, Runtime, StoreSpec
from ..store import Blob, ByteRange, ObjectInfo, ReadLimits, check_key, check_span
from ..stream import Answer, RangeSeries, plan_reads, slice_reads
from .connection import Connection, client_errors
from .errors import is_past_end
from .http_connection import Broken
from .listing import metadata_etag, object_info
from .range_requests import Direct

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client


_RIGHTS = {  # scheme -> (permission to list, permission to read)
    "s3": ("s3:ListBucket", "s3:GetObject (and kms:Decrypt, where a key of KMS encrypts)"),
    "gs": ("storage.objects.list", "storage.objects.get"),
}


def explain_refusal(connection: Connection, scheme: str, path: str, refused: Forbidden) -> Forbidden:
    """Return the error `refused` of a read of `path`, naming the missing permission. Costs at most one listing page."""
    if scheme not in _RIGHTS or "AccessDenied" not in str(refused):
        return refused
    to_list, to_read = _RIGHTS[scheme]
    folder = path.rpartition("/")[0] or None

    def attempt(obstore: Any, client: Client) -> object:
        return next(obstore.list(client, folder, chunk_size=1), None)

    try:
        connection.call("list", path, attempt)
    except Forbidden:
        return refused.with_message(
            f"{refused}; these credentials may not list the bucket, so that a missing object looks forbidden: grant "
            f"{to_list} on it, and {to_read} if reading is refused then"
        )
    except StoreError:
        return refused
    return refused.with_message(f"{refused}; these credentials may list and not read: grant {to_read}")


T = TypeVar("T")

BOUNDED_BYTES = 16 * 2**20  # body of one request; larger objects are read and uploaded in pieces of this size
WHOLE_READ_TRIES = 5
CHUNK_BYTES = 2**18  # read size for obstore bodies: the process keeps memory of this size

Fill = Callable[[int, memoryview], object]
"""(offset, view): read from `offset` into `view`."""


class ReadStore(Opened):
    """Reads one bucket and prefix. `connect(max_retries)` creates a client."""

    def __init__(
        self,
        connect: Callable[[int], Client],
        prefix: str,
        spec: StoreSpec,
        url: str,
        runtime: Runtime,
        direct: Direct | None = None,
    ) -> None:
        super().__init__(spec, url)
        self._direct = direct
        self._prefix = f"{prefix}/" if prefix else ""
        self._connection = Connection(connect, url, spec, runtime)
        self._call = self._connection.call

    def get(self, key: str) -> Blob:
        """Read the whole object: requests of up to BOUNDED_BYTES, several at once."""
        for _ in range(WHOLE_READ_TRIES):
            try:
                first, nbytes = self._beginning(key)
                if nbytes == len(first.data):
                    return first
                pool = self._connection.workers()

                def rest(offset: int, view: memoryview, etag: str = first.etag) -> str:
                    return self.fill(key, offset, view, etag)

                return Blob(read_whole(first.data, nbytes, BOUNDED_BYTES, rest, pool), first.etag)
            except Changed:
                continue  # replaced meanwhile; `get` pins nothing
        raise Transient(f"cannot read {self.url}/{key}: it is replaced faster than it can be read; try later")

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        check_span(key, offset, nbytes)
        if nbytes == 0:
            return self._empty(key, offset, etag)
        path = self._prefix + check_key(key)

        def attempt(obstore: Any, client: Client) -> Blob:
            answer, current = self._request(obstore, client, key, path, offset, nbytes, etag)
            data = answer.all()
            self._whole(key, len(data), nbytes)
            return Blob(data, current)

        return self._reading(key, attempt)

    def get_ranges(
        self, key: str, spans: Sequence[ByteRange], *, etag: str | None = None, **limits: Unpack[ReadLimits]
    ) -> list[Blob]:
        reads = plan_reads(spans, **limits)
        if not reads:
            # An empty read reports an object that is missing or was replaced, and has the etag.
            reads = [ByteRange(0, 0)]
        if len(reads) == 1:
            blobs = [self.get_range(key, *reads[0], etag)]
        else:
            blobs = self._get_concurrently(key, reads, etag)
        current = blobs[0].etag
        for blob in blobs:
            self._check_pin(key, blob.etag, current)  # even without a pin, no result mixes two objects
        pieces = slice_reads(spans, reads, [blob.data for blob in blobs])
        return [Blob(piece, current) for piece in pieces]

    def _get_concurrently(self, key: str, reads: Sequence[ByteRange], etag: str | None) -> list[Blob]:
        """Read several ranges at once, the first in this thread."""
        first, *others = reads
        pool = self._connection.workers()
        futures = []
        for read in others:
            get = partial(self.get_range, key, *read, etag)
            futures.append(pool.submit(copy_context().run, get))
        try:
            blobs = [self.get_range(key, *first, etag)]
            blobs.extend(future.result() for future in futures)
        finally:
            for future in futures:
                future.cancel()
        return blobs

    @property
    def follows(self) -> bool:
        return self._direct is not None and self._direct.is_on

    def fill(
        self,
        key: str,
        offset: int,
        view: memoryview,
        etag: str | None = None,
        series: RangeSeries | None = None,
    ) -> str:
        """Read into `view`, and return the etag. A broken response is resumed where it ended.

        series: the sequence of reads of this object, with one etag, that includes this read.

        Raises: as `get_range`; also Changed if the object is replaced between responses.
        """
        check_span(key, offset, len(view))
        if not view:
            return self._empty(key, offset, etag).etag
        path = self._prefix + check_key(key)
        done = 0  # bytes of `view` that are filled
        current = etag
        end = offset + len(view)
        stop = end  # of the response, which may serve the series' next reads too
        if series is not None:
            stop = max(end, series.stop)
        if series is not None and series.etag:
            current = self._check_pin(key, series.etag, etag)
            with suppress(Broken):  # not a new request: the budget is for the next one
                for count in series.into(offset, view):
                    done += count
            if done == len(view):
                return current

        def attempt(obstore: Any, client: Client) -> str:
            nonlocal done, current
            if done < len(view):
                at = offset + done
                answer, current = self._request(obstore, client, key, path, at, end - at, current, stop - end)
                rest = view[done:]
                if series is None:
                    counts = answer.into(rest)
                else:
                    series.begin(answer, at, current)
                    counts = series.into(at, rest)
                for count in counts:
                    done += count
            self._whole(key, done, len(view))
            return str(current)

        return self._reading(key, attempt)

    def head(self, key: str) -> ObjectInfo:
        path = self._prefix + check_key(key)
        meta = self._call("look up", key, lambda obs, client: obs.head(client, path))
        return object_info(key, meta)

    def _beginning(self, key: str) -> tuple[Blob, int]:
        """Return (first BOUNDED_BYTES of an object, or fewer, the size of the object)."""
        path = self._prefix + check_key(key)

        def attempt(obstore: Any, client: Client) -> tuple[Blob, int] | None:
            try:
                answer = self._answer(obstore, client, path, 0, BOUNDED_BYTES)
            except client_errors() as error:
                if is_past_end(error, path):
                    return None  # there are no bytes to request
                raise
            # Before the body: once it is read to its end, another thread may use the connection.
            etag = answer.etag
            nbytes = answer.size
            data = answer.all()
            self._whole(key, len(data), min(nbytes, BOUNDED_BYTES))
            return Blob(data, etag), nbytes

        beginning = self._reading(key, attempt)
        if beginning is None:
            info = self.head(key)
            if info.nbytes:
                raise Changed(f"{self.url}/{key}: it was empty, and has {info.nbytes} bytes now")
            beginning = Blob(b"", info.etag), 0
        return beginning

    def _request(
        self,
        obstore: Any,
        client: Client,
        key: str,
        path: str,
        offset: int,
        nbytes: int,
        etag: str | None,
        beyond: int = 0,
    ) -> tuple[Answer, str]:
        """Return (response with bytes from `offset` on, the object's etag). etag: a pin, or None.

        beyond: bytes after the range that the response may have too.
        """
        try:
            answer = self._answer(obstore, client, path, offset, offset + nbytes, beyond)
        except client_errors() as error:
            if is_past_end(error, path):
                raise self._short(key, offset, nbytes) from None
            raise
        try:
            current = self._check_pin(key, answer.etag, etag)
            if answer.size < offset + nbytes:
                raise self._short(key, offset, nbytes, answer.size)
        except (Changed, Corrupt):
            del answer  # the error keeps this frame alive, which must not keep the connection
            raise
        return answer, current

    def _answer(
        self, obstore: Any, client: Client, path: str, start: int, stop: int, beyond: int = 0
    ) -> Answer:
        if self._direct is not None:
            answer = self._direct.request(obstore, client, path, start, stop + beyond)
            if answer is not None:
                return answer
        return NativeAnswer(obstore.get(client, path, options={"range": (start, stop)}))

    def _reading(self, key: str, attempt: Callable[[Any, Client], T]) -> T:
        try:
            return self._call("read", key, attempt)
        except Forbidden as refused:
            scheme = self.url.partition("://")[0]
            path = self._prefix + key
            raise explain_refusal(self._connection, scheme, path, refused) from None

    def _empty(self, key: str, offset: int, etag: str | None) -> Blob:
        info = self.head(key)
        current = self._check_pin(key, info.etag, etag)
        if offset > info.nbytes:
            raise self._short(key, offset, 0, info.nbytes)
        return Blob(b"", current)

    def _check_pin(self, key: str, current: str, etag: str | None) -> str:
        if etag is not None and etag != current:
            raise Changed(
                f"{self.url}/{key}: the object was replaced since it was first read "
                f"(etag {etag}, now {current}); open the version again"
            )
        return current

    def _whole(self, key: str, n_read: int, nbytes: int) -> None:
        if n_read != nbytes:
            raise Transient(f"cannot read {self.url}/{key}: got {n_read} of {nbytes} bytes")

    def _short(self, key: str, offset: int, nbytes: int, size: int | None = None) -> Corrupt:
        end = "before that range" if size is None else f"at byte {size}"
        message = f"{self.url}/{key}[{offset}:{offset + nbytes}]: the object ends {end}"
        return Corrupt(
            message, what="range", where=f"{self.url}/{key}", given=[offset, offset + nbytes], accepted=size
        )


class NativeAnswer:
    def __init__(self, answer: Any) -> None:
        meta = answer.meta
        self._answer = answer
        self.etag = metadata_etag(meta)
        self.size = int(meta["size"])

    def all(self) -> bytes:
        data: bytes = self._answer.bytes().to_bytes()
        return data

    def into(self, view: memoryview) -> Iterator[int]:
        for piece in self._answer.stream(min_chunk_size=CHUNK_BYTES):
            if len(piece) > len(view):
                raise Broken("more bytes came than were asked for")
            view[: len(piece)] = piece
            view = view[len(piece) :]
            yield len(piece)


def read_whole(beginning: bytes, nbytes: int, most: int, fill: Fill, threads: Executor) -> bytes:
    """Return all `nbytes` of an object that starts with `beginning`, by concurrent reads of at most `most` bytes.

    A BytesIO hands over its memory as bytes; joining the pieces would use twice the memory.
    """
    buffer = BytesIO()
    buffer.seek(nbytes - 1)
    buffer.write(b"\0")
    memory = buffer.getbuffer()
    rest = [
        threads.submit(copy_context().run, _fill_part, fill, offset, memory, min(offset + most, nbytes))
        for offset in range(len(beginning), nbytes, most)
    ]
    try:
        memory[: len(beginning)] = beginning
        for part_read in rest:
            part_read.result()
    except BaseException:
        for part_read in rest:
            part_read.cancel()
        raise
    memory.release()
    return buffer.getvalue()


def _fill_part(fill: Fill, offset: int, memory: memoryview, stop: int) -> None:
    with memory[offset:stop] as part:  # released before the future is done
        fill(offset, part)
