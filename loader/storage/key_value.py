"""Base class of stores of whole values: implement five methods, inherit the others."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Unpack

from ..errors import Changed, Corrupt
from .disk.folder_files import upload_size
from .ranges import plan_reads
from .spec import Opened
from .store import Blob, ByteRange, ObjectInfo, ReadLimits, check_key, check_prefix, check_span
from .stream import open_reader

__all__ = ["KeyValueStore", "check_key", "check_prefix"]


class KeyValueStore(Opened, ABC):
    """A store built on its `get`, `put`, `put_if_absent`, `list` and `delete_many`.

    Implementations call `check_key` and `check_prefix`. A range costs the whole value; a store that can read parts
    overrides `get_range`.
    """

    @abstractmethod
    def get(self, key: str) -> Blob:
        """Return the whole object, as `Store.get`."""

    @abstractmethod
    def put(self, key: str, data: bytes | memoryview) -> None:
        """Create or replace the object, as `Store.put`."""

    @abstractmethod
    def put_if_absent(self, key: str, data: bytes | memoryview) -> None:
        """Create the object, as `Store.put_if_absent`."""

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        check_span(key, offset, nbytes)
        blob = self.get(key)
        self._check(key, blob, etag)
        data = blob.data[offset : offset + nbytes]
        if len(data) != nbytes or offset > len(blob.data):
            raise Corrupt(
                f"{self.url}/{key}[{offset}:{offset + nbytes}]: the object ends at byte {len(blob.data)}"
            )
        return Blob(data, blob.etag)

    def get_ranges(
        self, key: str, spans: Sequence[ByteRange], *, etag: str | None = None, **limits: Unpack[ReadLimits]
    ) -> list[Blob]:
        plan_reads(spans, **limits)  # raises the same errors as other stores; each span is one read
        pinned = etag if etag is not None else self.get(key).etag
        return [self.get_range(key, span.offset, span.nbytes, pinned) for span in spans]

    def put_file(self, key: str, path: str) -> None:
        check_key(key)
        upload_size(path, f"{self.url}/{key}")
        self.put(key, Path(path).read_bytes())

    def head(self, key: str) -> ObjectInfo:
        blob = self.get(key)
        return ObjectInfo(key=key, nbytes=len(blob.data), etag=blob.etag)

    def copy(self, src: str, dst: str) -> None:
        check_key(dst)
        self.put(dst, self.get(src).data)

    def open_stream(self, key: str) -> BinaryIO:
        return open_reader(self, key)

    def close(self) -> None:
        """Do nothing, unless a store overrides it."""

    @abstractmethod
    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """List, as `Store.list`."""

    @abstractmethod
    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete, as `Store.delete_many`."""

    def _check(self, key: str, blob: Blob, etag: str | None) -> None:
        if etag is not None and etag != blob.etag:
            raise Changed(
                f"{self.url}/{key}: the object was replaced since it was first read "
                f"(etag {etag}, now {blob.etag}); open the version again"
            )
