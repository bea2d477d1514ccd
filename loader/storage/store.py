"""The verbs every store has, and the small values they exchange.

One `Store` is one URL prefix (a bucket and a folder in it). Keys are relative to it, `/`-separated UTF-8,
without a leading `/`. Stores are thread-safe; they are opened by `loader.storage.open_store(url)` and
pickle as a spec (URL and non-secret options), never as a live client.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple, Protocol, cast


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One object as a listing or a head reports it."""

    key: str
    """Key, relative to the store."""
    nbytes: int
    """Size in bytes."""
    etag: str
    """Change token of the store: ETag, GCS generation, or mtime+inode+size on a disk. It is opaque and differs
    between mirrors: compare it, never store it."""
    modified_us: int | None = field(default=None, compare=False)
    """Time of the last write by the store's clock, in microseconds since 1970; None where the store does not tell."""


class Blob(NamedTuple):
    """Bytes read, and the change token of their object."""

    data: bytes
    """The bytes."""
    etag: str
    """Change token of the object (`ObjectInfo.etag`)."""


class Span(NamedTuple):
    """A byte range of one object."""

    offset: int
    """First byte."""
    nbytes: int
    """Number of bytes."""


class RangeReader(Protocol):
    """What reading samples needs of a store, or of a cache before one."""

    @property
    def url(self) -> str:
        """Where it is, without secrets: what messages and manifests may show."""

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        """Exactly `nbytes` bytes from `offset`. Raises: ObjectNotFound; Changed when `etag` is given and the
        object has another; Corrupt when the object is shorter than the range."""

    def get_ranges(
        self,
        key: str,
        spans: Sequence[Span],
        *,
        etag: str | None = None,
        max_gap: int = 64 * 2**10,
        max_span: int = 16 * 2**20,
    ) -> list[Blob]:
        """One blob per span, in the order given. Spans closer than `max_gap` bytes share a request of at most
        `max_span` bytes (a single larger span is cut into several requests and joined)."""


class Store(RangeReader, Protocol):
    """Sync and thread-safe. Every verb raises the `StoreError` leaves of `loader.errors`, nothing else."""

    def get(self, key: str) -> Blob:
        """The whole object. Raises: ObjectNotFound."""

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Create or replace the object, whole or not at all."""

    def put_if_absent(self, key: str, data: bytes | memoryview) -> None:
        """Create the object. Succeeds too when the key already holds exactly these bytes (our own write whose
        answer was lost). Raises: AlreadyExists when it holds others."""

    def put_file(self, key: str, path: str) -> None:
        """Upload a local file, in parts where the store wants that; visible whole or not at all."""

    def head(self, key: str) -> ObjectInfo:
        """Size and change token. Raises: ObjectNotFound."""

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix` and sorts after `start_after`, in key order."""

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete; a key that is not there is no error."""

    def copy(self, src: str, dst: str) -> None:
        """Copy inside the store. Raises: ObjectNotFound."""

    def open_stream(self, key: str) -> BinaryIO:
        """A sequential binary reader of bounded ranges: at most 16 MiB, or 64 of one of many objects on S3."""

    def close(self) -> None:
        """Release connections; the store can be used again afterwards."""


def list_from(store: Store, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
    """As `Store.list`, but a bucket is asked to begin behind `start_after`: O(what is listed), not O(all before).

    Servers differ in that, so it is for callers who begin anew later or only look for what should not be there, and for
    nothing that has to be complete. Stores that have no such request list from the beginning. Raises: as `Store.list`.
    """
    seeking = cast(Callable[[str, str], Iterator[ObjectInfo]], getattr(store, "list_from", store.list))
    return seeking(prefix, start_after)
