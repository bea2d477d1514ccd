"""Files of a disk of this machine, mapped into memory: small pieces of them cost a copy, and no call of the system.

A file that is cut short while it is mapped ends the process with a signal, where a read would be an error. So only
files of file systems that no other machine writes to are mapped, and a file is looked at before each use. Bytes
outside the page cache are read: a thread that waits for a page of a map may hold up all others.
"""

import mmap
import os
import resource
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..shared.threads import lock
from ..store import Disk

KEPT_FILES = 4096 if sys.version_info >= (3, 13) else 128
"""Maps at most; before Python 3.13 each holds a descriptor."""
_NO_DESCRIPTOR: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
UNUSED = 16
"""A map gives way to another file's when it was not used for UNUSED * KEPT_FILES uses of others."""
RESTS = 64
"""Uses that are refused after one that had to wait for a disk more than FEW_WAITS times."""
FEW_WAITS = 8
LOCAL_TYPES = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}
)
"""File systems of one machine, as /proc/self/mountinfo names them."""


class Mapped(NamedTuple):
    """A file's bytes, twice."""

    data: mmap.mmap
    """Map that slices into bytes."""
    array: np.ndarray
    """The same map as uint8 [nbytes]."""


class _Kept(NamedTuple):
    etag: str
    mapped: Mapped
    used: int


class MappedFiles:
    """Maps of the files of one store; thread-safe."""

    def __init__(self, store: Disk) -> None:
        self._store = store
        self._lock = lock()
        self._files: OrderedDict[str, _Kept] = OrderedDict()  # those used last in the end
        self._most = _most_files()
        self._uses = 0
        self._rests = 0

    def close(self) -> None:
        """Give all maps up that nobody is using."""
        with self._lock:
            self._files.clear()

    @contextmanager
    def using(self, key: str, etag: str | None) -> Iterator[tuple[Mapped, str] | None]:
        """Yield a file as it is now, and its etag, for the time of the block; None where it is better read.

        A file is better read:

        - on a file system that is not known to be this machine's alone;
        - where it is empty;
        - for a while after a block that had to wait for the disk often;
        - where there are more files than maps.

        Raises: ObjectNotFound; Changed; as reads do.
        """
        if self._rests:
            self._rests = max(0, self._rests - 1)  # (threads may do so at once: it is a rough measure)
            yield None
            return
        found = self._get(key, etag)
        before = _major_faults()
        yield found
        if _major_faults() > before + FEW_WAITS:
            self._rests = RESTS

    def _get(self, key: str, etag: str | None) -> tuple[Mapped, str] | None:
        seen = self._store.state(key, etag)
        if seen is None:
            return None
        found, status = seen
        with self._lock:
            self._uses += 1
            held = self._files.get(key)
            if held is not None and held.etag == found:
                self._files.move_to_end(key)
                self._files[key] = held._replace(used=self._uses)
                return held.mapped, found
            if held is None and not self._has_room():
                return None
        if not status.st_size or not is_of_this_machine(status.st_dev):
            return None
        mapped = self._mapped(key, found)
        if mapped is None:
            return None
        with self._lock:
            self._files[key] = _Kept(found, mapped, self._uses)
        return mapped, found

    def _has_room(self) -> bool:
        """Return whether another file may be mapped.

        With more files than maps it is better to keep maps of some than to map each for one use.
        """
        if len(self._files) >= self._most:
            oldest = next(iter(self._files))
            if self._files[oldest].used > self._uses - UNUSED * self._most:
                return False
            del self._files[oldest]
        return True

    def _mapped(self, key: str, etag: str) -> Mapped | None:
        """Return the map of a file; None where the file was replaced a moment ago: its reader will say so.

        None also where the process may have no further map, or no descriptor for one: those that there are give way,
        for reading needs some too.
        """
        file = self._store.open_same(key, etag)
        if file is None:
            return None
        with file:
            try:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, **_NO_DESCRIPTOR)
            except OSError:
                self.close()
                return None
        return Mapped(data, np.frombuffer(data, np.uint8))


def _most_files() -> int:
    """Return the most maps to keep: where each holds a descriptor, a quarter of those that the process may have."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if _NO_DESCRIPTOR or limit == resource.RLIM_INFINITY:
        return KEPT_FILES
    return max(1, min(KEPT_FILES, limit // 4))


def _major_faults() -> int:
    """Return the number of pages that this thread has waited for a disk for."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


@lru_cache(maxsize=256)
def is_of_this_machine(device: int) -> bool:
    """Return whether a device number (`st_dev`) is of a file system that no other machine writes to.

    False where nobody tells, as beyond Linux.
    """
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo") as mounts:
            lines = [line.split(" - ") for line in mounts]
    except OSError:
        return False
    types = {after.split()[0] for before, after in lines if before.split()[2] == wanted}
    return bool(types) and types <= LOCAL_TYPES
