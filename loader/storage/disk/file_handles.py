"""Cache open files, so that a read costs no name lookup and a replaced file stays readable."""

import mmap
import os
import resource
import sys
from functools import lru_cache
from typing import Any

from ...errors import StoreError
from ..store import Disk
from ..threads import SizedLru

KEPT_FILES = 1024
"""Most open files; fewer if that exceeds a quarter of the descriptors."""
_NO_DESCRIPTOR: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
LOCAL_TYPES = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs"})
"""Local file systems to map, as named in /proc/self/mountinfo. zfs keeps a second copy of mapped pages, so it is read.
"""


class FileHandle:
    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        if hasattr(os, "posix_fadvise"):  # samples are read in random order: disable read-ahead
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        self.map = _map_file(descriptor) if is_local_filesystem(os.fstat(descriptor).st_dev) else None

    def __del__(self) -> None:
        os.close(self.descriptor)


def _map_file(descriptor: int) -> mmap.mmap | None:
    """Return a read-only map of a file; None for an empty file, and where it cannot be mapped."""
    try:
        data = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ, **_NO_DESCRIPTOR)
    except (OSError, ValueError):
        return None
    if hasattr(mmap, "MADV_RANDOM"):
        data.madvise(mmap.MADV_RANDOM)
    return data


@lru_cache(maxsize=256)
def is_local_filesystem(device: int) -> bool:
    """Return whether only this machine writes to a device's (`st_dev`) file system; False if unknown.

    A page fault on a network file may take minutes, so such files are read, not mapped.
    """
    device_name = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo") as mounts:
            lines = [line.split(" - ") for line in mounts]
    except OSError:
        return False
    types = {after.split()[0] for before, after in lines if before.split()[2] == device_name}
    return bool(types) and types <= LOCAL_TYPES


class FileHandles:
    """Least-recently-used cache of one store's open files. Thread-safe."""

    def __init__(self, store: Disk) -> None:
        self._store = store
        self._files = SizedLru(_most_files())

    def close(self) -> None:
        self._files.clear()

    def get(self, key: str, etag: str | None) -> tuple[FileHandle, str] | None:
        """Return (current file, etag); None if a read must report the error.

        Raises: ObjectNotFound; Changed; as reads do.
        """
        current = self._store.etag_of(key, etag)
        if current is None:
            return None
        # A plain tuple: a named one costs each start of a training the compilation of a function.
        opened: tuple[FileHandle, str] | None = self._files.get(key)
        if opened is not None:
            _, etag_opened = opened
            if etag_opened == current:
                return opened
        try:
            descriptor = self._store.open_same(key, current)
        except StoreError:  # perhaps the process has no descriptors left: a read needs one too
            self.close()
            return None
        if descriptor is None:
            return None
        handle = FileHandle(descriptor)
        opened = handle, current
        self._files.put(key, opened, 1)
        return opened


def _most_files() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    each = 1 if _NO_DESCRIPTOR else 2  # before Python 3.13 a map holds its own descriptor
    return KEPT_FILES if limit == resource.RLIM_INFINITY else max(1, min(KEPT_FILES, limit // (4 * each)))
