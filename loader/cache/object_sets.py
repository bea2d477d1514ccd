"""The objects that the loaders of a node read: what the pages of its cache are for.

`wanted/<id>`: a set of objects, 16 bytes each: the 16 hex digits that begin the names of its pages, as 8 bytes, and its
size, little-endian; ascending. The id is a hash of the file, so that a forged or cut file does not count. Loaders touch
it. A set of millions of objects is in memory only while its bytes are summed or the folder's files are counted.
"""

import errno
import hashlib
import os
import stat
import struct
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import suppress

import numpy as np

from .pages import file_mode, object_prefix, write_whole

FOLDER = "wanted"
EXPIRES_S = 3600.0
"""Age in seconds from which no loader reads a set."""
SUPERSEDED_S = 150.0
"""Age in seconds, against another set of the same objects, from which a set does not count: the nodes changed."""
SET_BYTES_MAX = 2**26
"""Most bytes of a file in `wanted/`: 4 million objects."""
OBJECT_BYTES_MAX = 2**53
READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
"""Flags that open no link, and wait for no writer of a pipe."""
NO_FILE_OF_OURS = frozenset({errno.EACCES, errno.ELOOP, errno.ENXIO, errno.EPERM})
"""Errors of opening another user's file, a link or a socket: they do not pass."""
_ROW = struct.Struct("<8sQ")
_ROWS = np.dtype([("prefix", ">u8"), ("nbytes", "<u8")])
_KEY_BYTES = 8
PREFIXES = 2**64
"""Number of possible prefixes."""
_AT_ONCE = 2**16
"""Most rows that are summed at once, for bounded memory."""


class ObjectSet:
    """The objects of a version's groups that a loader reads.

    id: hash of the file, 32 hex digits. body: the file.
    """

    def __init__(
        self,
        id: str,
        body: bytes,
    ) -> None:
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

    def load(self) -> bytes:
        """Return the file."""
        return self.body

    @staticmethod
    def of_shares(
        objects: "ObjectSet",
        nodes: int,
    ) -> "ObjectSet":
        """Return a set with an n-th of each object's bytes."""
        whole = np.frombuffer(objects.body, _ROWS)  # [objects]
        rows = whole.copy()
        sizes = whole["nbytes"].astype(np.int64)
        rows["nbytes"] = -(-sizes // nodes)
        body = rows.tobytes()
        return ObjectSet(_set_id(body), body)


class StoredSet:
    """A set's file, whose bytes were checked. objects_id: hash of the objects without their sizes."""

    def __init__(
        self,
        path: str,
        objects_id: str,
    ) -> None:
        self._path = path
        self.objects_id = objects_id

    def load(self) -> bytes:
        """Return the file; empty if it is gone. Raises: OSError."""
        with suppress(FileNotFoundError), open(self._path, "rb") as file:
            return file.read()
        return b""


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
        self._checked: dict[str, StoredSet | None] = {}  # id -> set; None if its file is damaged
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

    def read(self) -> dict[str, StoredSet]:
        """Return id -> set, of each set that some loader reads. O(sets), not of their objects."""
        current: dict[str, StoredSet] = {}
        touched_s: dict[str, float] = {}
        newest_s: dict[str, float] = {}  # hash of objects -> last touch of a set of them
        now_s = time.time()
        for name in sorted(os.listdir(self._folder)):
            path = os.path.join(self._folder, name)
            try:
                age_s = self._age_s(path, now_s)
            except FileNotFoundError:
                continue
            if age_s is None:
                continue
            if name not in self._checked:
                # After a disk fault the next call reads the file again: one bad file must not hide the others.
                with suppress(OSError):
                    self._checked[name] = self._check(path, name)
            stored = self._checked.get(name)
            if stored is None:
                continue
            objects_id = stored.objects_id
            current[name] = stored
            touched_s[name] = now_s - age_s
            newest_s[objects_id] = max(
                touched_s[name],
                newest_s.get(objects_id, 0.0),
            )
        for name, stored in list(current.items()):
            behind_s = newest_s[stored.objects_id] - touched_s[name]
            if behind_s > SUPERSEDED_S:
                del current[name]
        for name, checked in list(self._checked.items()):
            # A damaged one stays, so that it is reported once.
            is_gone = name not in touched_s
            if is_gone and checked is not None:
                del self._checked[name]
        return current

    def _age_s(
        self,
        path: str,
        now_s: float,
    ) -> float | None:
        """Return the seconds since a set was touched; None if it has expired. Raises: FileNotFoundError."""
        status = os.lstat(path)
        age_s = now_s - status.st_mtime
        if age_s < 0:  # the clock was set back: its age begins now
            with suppress(PermissionError):
                os.utime(path, follow_symlinks=False)
        if age_s <= EXPIRES_S:
            return max(0.0, age_s)
        with suppress(OSError):
            os.unlink(path)
        return None

    def _check(
        self,
        path: str,
        name: str,
    ) -> StoredSet | None:
        """Return the set in a file; None if its bytes do not fit its name. Raises: OSError for a disk fault."""
        body = b""
        try:
            body = self._read(path)
        except OSError as error:
            if error.errno not in NO_FILE_OF_OURS:
                raise
        is_whole = len(body) % _ROW.size == 0
        if body and is_whole and _set_id(body) == name:
            rows = np.frombuffer(body, _ROWS)  # [objects]
            prefixes = rows["prefix"].astype(np.uint64)
            ascents = prefixes[1:] > prefixes[:-1]
            is_ascending = ascents.all()
            largest = int(rows["nbytes"].max())
            if is_ascending and 0 < largest <= OBJECT_BYTES_MAX:
                objects_id = _set_id(prefixes.tobytes())
                return StoredSet(path, objects_id)
        self.damaged.append(name)
        return None

    def _read(self, path: str) -> bytes:
        """Return the file; empty if it is no file, or of a user that is not trusted."""
        descriptor = os.open(path, READ_FLAGS)
        try:
            status = os.fstat(descriptor)
            is_trusted = self._user in (None, status.st_uid)
            if not is_trusted or not stat.S_ISREG(status.st_mode):
                return b""
            nbytes = min(status.st_size, SET_BYTES_MAX)
            return os.read(descriptor, nbytes)
        finally:
            os.close(descriptor)


class ObjectEpochs:
    """Looks up the epoch in which an object is read.

    sets: (rows of a set, start of the epoch of its readers in ns since 1970).
    """

    def __init__(self, sets: Sequence[tuple[bytes, int]]) -> None:
        self._sets = sets

    def get(self, prefix: str) -> int | None:
        """Return the start of the earliest epoch that reads an object; None if none does. O(log objects).

        prefix: of the names of the object's pages.
        """
        key = bytes.fromhex(prefix)
        begins: list[int] = []
        for body, epoch_ns in self._sets:
            row = _row_number(body, key)
            if _key(body, row) == key:
                begins.append(epoch_ns)
        return min(begins, default=None)


def pages_bytes(
    sets: Sequence[bytes],
    page_bytes: int,
    header_bytes: int,
) -> int:
    """Return the size of all pages of the objects of some sets, with their headers.

    Counts an object of several sets once, by its largest size. sets: the rows of each.
    """
    set_bytes = sum(len(body) for body in sets)
    n_rows = set_bytes // _ROW.size
    parts = -(-n_rows // _AT_ONCE)
    begins = [0] * len(sets)
    total = 0.0  # exact below 2**53
    for part in range(parts):
        # Prefixes are hashes: equal ranges of them have about equally many rows.
        stop = (part + 1) * PREFIXES // parts
        pieces: list[np.ndarray] = []
        for number, body in enumerate(sets):
            begin = begins[number]
            end = len(body) // _ROW.size
            if stop < PREFIXES:
                key = stop.to_bytes(_KEY_BYTES, "big")
                end = _row_number(body, key)
            piece = np.frombuffer(
                body,
                _ROWS,
                count=end - begin,
                offset=begin * _ROW.size,
            )
            pieces.append(piece)
            begins[number] = end
        rows = np.concatenate(pieces)  # [rows of the range]
        sizes = _largest_sizes(rows)
        n_pages = -(-sizes // page_bytes)
        sizes_sum = sizes.sum(dtype=np.float64)
        pages_sum = n_pages.sum(dtype=np.float64)
        total += float(sizes_sum)
        total += header_bytes * float(pages_sum)
    return int(total)


def _largest_sizes(rows: np.ndarray) -> np.ndarray:
    """Return int64 [objects]: the largest size of each object in some rows."""
    order = np.argsort(
        rows["prefix"],
        kind="stable",
    )
    prefixes = rows["prefix"][order]
    is_first = np.ones(len(rows), bool)
    is_first[1:] = prefixes[1:] != prefixes[:-1]
    starts = np.flatnonzero(is_first)  # [objects]
    ordered = rows["nbytes"][order]
    sizes = ordered.astype(np.int64)
    if not len(starts):
        return sizes
    largest: np.ndarray = np.maximum.reduceat(sizes, starts)
    return largest


def _row_number(
    body: bytes,
    key: bytes,
) -> int:
    """Return the number of the first row whose prefix is not below a key."""
    n_rows = len(body) // _ROW.size

    def row_key(row: int) -> bytes:
        return _key(body, row)

    return bisect_left(range(n_rows), key, key=row_key)


def _key(
    body: bytes,
    row: int,
) -> bytes:
    """Return the prefix of a row, as bytes; empty after the last row."""
    start = row * _ROW.size
    return body[start : start + _KEY_BYTES]


def _set_id(body: bytes) -> str:
    digest = hashlib.blake2b(body, digest_size=16)
    return digest.hexdigest()
