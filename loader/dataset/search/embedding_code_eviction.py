"""Room for files of codes in a cache folder: the ones used the longest ago are deleted first.

Without a loader that uses the folder, only searches evict. With one, both do: a search writes a missing file again.
"""

import os
import time
from collections import defaultdict
from contextlib import suppress
from operator import attrgetter
from pathlib import Path

ABANDONED_S = 60.0
"""Age at which a file under a temporary name is of a killed search: it is written in less time."""
_FINISHED = (".faiss", ".codes", ".json")


class _SegmentFiles:
    """Files of one segment: they are of no use without each other."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.nbytes = 0
        self.used_ns = 0
        """Time of last use, in ns since 1970."""


def make_room(folder: Path, nbytes: int) -> list[str]:
    """Delete files until `nbytes` more fit into half of the disk's free space, which counts the codes as free.

    Returns the paths of the deleted files. A file that another process has mapped stays readable for it.
    """
    segments: dict[str, _SegmentFiles] = defaultdict(_SegmentFiles)
    abandoned: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            # Another search may delete the file meanwhile.
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                stem, ending = os.path.splitext(entry.name)
                if ending in _FINISHED:
                    segment = segments[stem]
                    segment.paths.append(entry.path)
                    segment.nbytes += status.st_size
                    segment.used_ns = max(segment.used_ns, status.st_atime_ns)
                elif time.time() - status.st_mtime > ABANDONED_S:
                    abandoned.append(entry.path)
    deleted = _delete(abandoned)
    total = 0
    for segment in segments.values():
        total += segment.nbytes
    limit = (free_bytes(folder) + total) // 2
    oldest_first = sorted(
        segments.values(),
        key=attrgetter("used_ns"),
    )
    for segment in oldest_first:
        if total + nbytes <= limit:
            break
        deleted += _delete(segment.paths)
        total -= segment.nbytes
    return deleted


def free_bytes(folder: Path) -> int:
    """Return the bytes that a user may still write to the disk of a folder."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def _delete(paths: list[str]) -> list[str]:
    """Delete files, and return the paths of the deleted ones: files of another user stay."""
    deleted: list[str] = []
    for path in paths:
        with suppress(OSError):
            os.unlink(path)
            deleted.append(path)
    return deleted
