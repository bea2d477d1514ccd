"""The objects that the loaders of a node read: what the pages of its cache are for.

`wanted/<id>`: a set of objects, 16 bytes each: the 16 hex digits that begin the names of its pages, as 8 bytes, and its
size, little-endian. The id is a hash of the file, so that a forged or cut file does not count. Loaders touch it.
"""

import hashlib
import os
import stat
import struct
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from .pages import file_mode, object_prefix, write_whole

FOLDER = "wanted"
EXPIRES_S = 3600.0
"""Age in seconds from which no loader reads a set."""
SET_BYTES_MAX = 2**26
"""Most bytes of a file in `wanted/`: 4 million objects."""
OBJECT_BYTES_MAX = 2**53
READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
"""Flags that open no link, and wait for no writer of a pipe."""
_ROW = struct.Struct("<8sQ")


class ObjectSet:
    """The objects of a version's groups that a loader reads.

    id: hash of the file, 32 hex digits. body: the file.
    """

    def __init__(self, id: str, body: bytes) -> None:
        self.id = id
        self.body = body

    @staticmethod
    def of(objects: Iterable[tuple[str, int]]) -> "ObjectSet":
        """Return the set of (identity, bytes) of objects."""
        sizes: dict[bytes, int] = {}
        for identity, nbytes in objects:
            if nbytes > 0:  # else it has no pages
                prefix = object_prefix(identity)
                sizes[bytes.fromhex(prefix)] = nbytes
        rows = []
        for prefix_bytes, nbytes in sorted(sizes.items()):
            rows.append(_ROW.pack(prefix_bytes, nbytes))
        body = b"".join(rows)
        return ObjectSet(_set_id(body), body)

    @staticmethod
    def of_shares(sizes: Mapping[str, int], nodes: int) -> "ObjectSet":
        """Return a set with an n-th of each object's bytes. sizes: prefix of the page names -> bytes."""
        rows: list[bytes] = []
        for prefix, nbytes in sorted(sizes.items()):
            share = -(-nbytes // nodes)
            row = _ROW.pack(
                bytes.fromhex(prefix),
                share,
            )
            rows.append(row)
        body = b"".join(rows)
        return ObjectSet(_set_id(body), body)

    def sizes(self) -> dict[str, int]:
        """Return prefix of the page names -> bytes of the object."""
        sizes: dict[str, int] = {}
        for prefix, nbytes in _ROW.iter_unpack(self.body):
            name = prefix.hex()
            sizes[name] = nbytes
        return sizes


class ObjectSets:
    """The sets in one cache folder. Methods raise OSError."""

    def __init__(
        self,
        folder: str,
        *,
        shared: bool = False,
    ) -> None:
        self._folder = os.path.join(folder, FOLDER)
        self._writing = os.path.join(folder, "writing")
        self._mode = file_mode(shared)
        self._user = None
        if not shared:
            self._user = os.geteuid()
        self._sizes: dict[str, Mapping[str, int]] = {}  # id -> sizes, of files that were read
        self.damaged: list[str] = []
        """Files that do not count, each once."""

    def touch(self, objects: ObjectSet) -> None:
        """Show that a loader reads the set."""
        path = os.path.join(self._folder, objects.id)
        try:
            os.utime(path)
        except PermissionError:
            return  # another user's file: its loaders touch it
        except FileNotFoundError:
            write_whole(self._writing, path, self._mode, objects.body)

    def read(self) -> dict[str, Mapping[str, int]]:
        """Return id -> sizes of the objects, of each set that some loader reads."""
        current: dict[str, Mapping[str, int]] = {}
        now_s = time.time()
        for name in sorted(os.listdir(self._folder)):
            path = os.path.join(self._folder, name)
            try:
                is_expired = self._is_expired(path, now_s)
            except FileNotFoundError:
                continue
            if is_expired:
                continue
            sizes = self._sizes.get(name)
            if sizes is None:
                sizes = self._read(path, name)
            if sizes:
                current[name] = sizes
            else:
                # It stays among the sizes, so that it is reported once.
                self._sizes[name] = sizes
        for name in list(self._sizes):
            if self._sizes[name] and name not in current:
                del self._sizes[name]
        self._sizes.update(current)
        return current

    def _is_expired(self, path: str, now_s: float) -> bool:
        status = os.lstat(path)
        age_s = now_s - status.st_mtime
        if age_s < 0:  # the clock was set back: its age begins now
            with suppress(PermissionError):
                os.utime(path, follow_symlinks=False)
        if age_s <= EXPIRES_S:
            return False
        with suppress(OSError):
            os.unlink(path)
        return True

    def _read(self, path: str, name: str) -> Mapping[str, int]:
        """Return the sizes in a file; none if its bytes do not fit its name."""
        body = b""
        with suppress(OSError):
            descriptor = os.open(path, READ_FLAGS)
            try:
                status = os.fstat(descriptor)
                is_trusted = self._user in (None, status.st_uid)
                is_file = stat.S_ISREG(status.st_mode)
                if is_trusted and is_file:
                    nbytes = min(status.st_size, SET_BYTES_MAX)
                    body = os.read(descriptor, nbytes)
            finally:
                os.close(descriptor)
        sizes: dict[str, int] = {}
        is_whole = len(body) % _ROW.size == 0
        has_name = _set_id(body) == name
        if is_whole and has_name:
            objects = ObjectSet(name, body)
            sizes = objects.sizes()
        largest = max(sizes.values(), default=0)
        if 0 < largest <= OBJECT_BYTES_MAX:
            return sizes
        self.damaged.append(name)
        return {}


def union(sets: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return prefix -> bytes of the objects of all sets, each object once."""
    objects: dict[str, int] = {}
    for sizes in sets:
        objects.update(sizes)
    return objects


def pages_bytes(
    objects: Mapping[str, int],
    page_bytes: int,
    header_bytes: int,
) -> int:
    """Return the size of all pages of these objects, with their headers."""
    total = 0
    for nbytes in objects.values():
        n_pages = -(-nbytes // page_bytes)
        total += nbytes + n_pages * header_bytes
    return total


def _set_id(body: bytes) -> str:
    digest = hashlib.blake2b(body, digest_size=16)
    return digest.hexdigest()
