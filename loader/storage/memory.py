"""memory://name/prefix: a store in this process, for tests and examples.

Every store of one name shares its objects. It pickles by name and opens only in the process that made it:
in another one it would silently be empty.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Lock
from typing import BinaryIO
from urllib.parse import urlsplit

from ..errors import AlreadyExists, Changed, Corrupt, InvalidStore, ObjectNotFound
from .disk.errors import upload_size
from .ranges import plan_reads
from .shared.requests import count_request
from .spec import Opened, StoreSpec
from .store import Blob, ObjectInfo, Span, Store, check_key, check_prefix, check_span
from .stream import open_reader


@dataclass(slots=True)
class _Space:
    lock: Lock = field(default_factory=Lock)
    objects: dict[str, Blob] = field(default_factory=dict)
    versions: Iterator[int] = field(default_factory=lambda: count(1))


_spaces: dict[str, _Space] = {}
_spaces_lock = Lock()


def open_memory(url: str, options: Mapping[str, object], spec: StoreSpec) -> Store:
    """Raises: InvalidStore for a URL without a name, or an option."""
    parts = urlsplit(url)
    if not parts.netloc:
        raise InvalidStore(f"{url!r} has no name; write memory://name or memory://name/prefix")
    if options:
        raise InvalidStore(f"memory:// takes no options, got {sorted(options)}; leave them out")
    prefix = parts.path.strip("/")
    if prefix:
        check_key(prefix)
    with _spaces_lock:
        space = _spaces.setdefault(parts.netloc, _Space())
    return MemoryStore(space, prefix, spec, f"memory://{parts.netloc}/{prefix}".rstrip("/"))


class MemoryStore(Opened):
    """Objects in a dictionary under a lock; an etag is the number of the write."""

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
        self,
        key: str,
        spans: Sequence[Span],
        *,
        etag: str | None = None,
        max_gap: int = 64 * 2**10,
        max_span: int = 16 * 2**20,
    ) -> list[Blob]:
        plan_reads(spans, max_gap, max_span)  # the same complaints as elsewhere; nothing to save in memory
        pinned = etag if etag is not None else self.get(key).etag
        return [self.get_range(key, span.offset, span.nbytes, pinned) for span in spans]

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

    def put_file(self, key: str, path: str) -> None:
        check_key(key)
        upload_size(path, f"{self.url}/{key}")
        self.put(key, Path(path).read_bytes())

    def head(self, key: str) -> ObjectInfo:
        blob = self.get(key)
        return ObjectInfo(key=key, nbytes=len(blob.data), etag=blob.etag)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        full = self._prefix + check_prefix(prefix)
        with self._space.lock:
            found = sorted(
                (name, blob) for name, blob in self._space.objects.items() if name.startswith(full)
            )
        for name, blob in found:
            key = name[len(self._prefix) :]
            if start_after is None or key > start_after:
                yield ObjectInfo(key=key, nbytes=len(blob.data), etag=blob.etag)

    def delete_many(self, keys: Iterable[str]) -> None:
        names = [self._prefix + check_key(key) for key in keys]
        with self._space.lock:
            for name in names:
                self._space.objects.pop(name, None)

    def copy(self, src: str, dst: str) -> None:
        check_key(dst)
        self.put(dst, self.get(src).data)

    def open_stream(self, key: str) -> BinaryIO:
        return open_reader(self, key)

    def close(self) -> None:
        """Nothing to release; the objects stay until the process ends."""

    def _check(self, key: str, blob: Blob, etag: str | None) -> None:
        if etag is not None and etag != blob.etag:
            raise Changed(
                f"{self.url}/{key}: the object was replaced since it was first read "
                f"(etag {etag}, now {blob.etag}); open the version again"
            )


def _reopen_here(spec: StoreSpec, pid: int) -> Store:
    if pid != os.getpid():
        raise InvalidStore(
            f"{spec.url} lives in the memory of process {pid}, and this is process {os.getpid()}; "
            "use a path or a bucket when several processes read it"
        )
    return spec.open()
