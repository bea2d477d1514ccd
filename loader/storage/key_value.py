"""Stores of whole values: a base class with five methods to implement, and the store in memory.

memory://name/prefix is for tests and examples. Stores with one name share objects. A store pickles by name, and opens
only in the process that created it.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Unpack
from urllib.parse import urlsplit

from ..errors import AlreadyExists, Changed, Corrupt, InvalidStore, ObjectNotFound
from .disk.folder_files import upload_size
from .requests import count_request
from .spec import Opened, StoreSpec
from .store import Blob, ByteRange, ObjectInfo, ReadLimits, Store, check_key, check_prefix, check_span
from .stream import open_reader, plan_reads

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
        # A slice after the end is shorter, and raises nothing.
        # The second condition is for an empty range, which has its length wherever it lies.
        if len(data) != nbytes or offset > len(blob.data):
            raise Corrupt(
                f"{self.url}/{key}[{offset}:{offset + nbytes}]: the object ends at byte {len(blob.data)}",
                what="range",
                where=f"{self.url}/{key}",
                given=[offset, offset + nbytes],
                accepted=len(blob.data),
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
                f"(etag {etag}, now {blob.etag}); open the version again",
                what="etag",
                where=f"{self.url}/{key}",
                given=blob.etag,
                accepted=etag,
            )


@dataclass(slots=True)
class _Space:
    lock: Lock = field(default_factory=Lock)
    objects: dict[str, Blob] = field(default_factory=dict)
    versions: Iterator[int] = field(default_factory=lambda: count(1))


_spaces: dict[str, _Space] = {}
_spaces_lock = Lock()


def open_memory(url: str, options: Mapping[str, object], spec: StoreSpec) -> Store:
    """Open the store with a name in this process. Raises: InvalidStore if there is no name, or an option."""
    parts = urlsplit(url)
    if not parts.netloc:
        raise InvalidStore(
            f"{url!r} has no name; write memory://name or memory://name/prefix", what="URL", given=url
        )
    if options:
        raise InvalidStore(
            f"memory:// takes no options, got {sorted(options)}; leave them out",
            what="options",
            where=url,
            given=sorted(options),
            accepted="none",
        )
    prefix = parts.path.strip("/")
    if prefix:
        check_key(prefix)
    with _spaces_lock:
        space = _spaces.setdefault(parts.netloc, _Space())
    return MemoryStore(space, prefix, spec, f"memory://{parts.netloc}/{prefix}".rstrip("/"))


class MemoryStore(KeyValueStore):
    """Objects in a dictionary; an etag is the number of the write."""

    def __init__(self, space: _Space, prefix: str, spec: StoreSpec, url: str) -> None:
        super().__init__(spec, url)
        self._space = space
        self._prefix = f"{prefix}/" if prefix else ""

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen_here, (self.spec, os.getpid())

    def get(self, key: str) -> Blob:
        name = self._prefix + check_key(key)
        count_request()
        with self._space.lock:
            blob = self._space.objects.get(name)
        if blob is None:
            raise ObjectNotFound(f"{self.url}/{key}: there is no such object")
        return blob

    def put(self, key: str, data: bytes | memoryview) -> None:
        name = self._prefix + check_key(key)
        with self._space.lock:
            self._space.objects[name] = Blob(bytes(data), str(next(self._space.versions)))

    def put_if_absent(self, key: str, data: bytes | memoryview) -> None:
        name = self._prefix + check_key(key)
        blob = Blob(bytes(data), str(next(self._space.versions)))
        with self._space.lock:
            holder = self._space.objects.setdefault(name, blob)
        if holder.data != blob.data:
            raise AlreadyExists(f"{self.url}/{key}: the key already holds another object; choose another key")

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        full = self._prefix + check_prefix(prefix)
        with self._space.lock:
            listed = sorted(
                (name, blob) for name, blob in self._space.objects.items() if name.startswith(full)
            )
        for name, blob in listed:
            key = name[len(self._prefix) :]
            if start_after is None or key > start_after:
                yield ObjectInfo(key=key, nbytes=len(blob.data), etag=blob.etag)

    def delete_many(self, keys: Iterable[str]) -> None:
        names = [self._prefix + check_key(key) for key in keys]
        with self._space.lock:
            for name in names:
                self._space.objects.pop(name, None)


def _reopen_here(spec: StoreSpec, pid: int) -> Store:
    if pid != os.getpid():
        raise InvalidStore(
            f"{spec.url} lives in the memory of process {pid}, and this is process {os.getpid()}; "
            "use a path or a bucket when several processes read it"
        )
    return spec.open()
