"""Claims in a cache folder: which process fetches a page."""

import os
import time
from contextlib import suppress

from .pages import file_mode

CLAIM_S = 5.0
"""Seconds for which a claim is valid: far longer than a range read."""

ClaimFile = tuple[int, int]
"""Identifies a claim: the inode of its file, and the time of its creation in ns since 1970."""


class Claims:
    """The claims of one cache folder. Methods raise OSError."""

    def __init__(self, folder: str, *, shared: bool = False) -> None:
        self._mode = file_mode(shared)
        self._folder = os.path.join(folder, "claims")

    def take(self, name: str) -> ClaimFile | None:
        """Claim a page; None if another reader has claimed it."""
        path = self._path(name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        for _ in range(2):
            with suppress(FileExistsError):
                descriptor = os.open(path, flags, self._mode)
                try:
                    return _identity(os.fstat(descriptor))
                finally:
                    os.close(descriptor)
            if self.is_taken(name):
                return None
            with suppress(FileNotFoundError):  # it has expired, unless its owner has just released it
                os.unlink(path)
        return None

    def is_taken(self, name: str) -> bool:
        """Return whether a page has a claim that has not expired."""
        try:
            status = os.stat(self._path(name))
        except FileNotFoundError:
            return False
        age_s = time.time() - status.st_mtime
        return 0 <= age_s < CLAIM_S

    def is_current(self, name: str, nonce: ClaimFile) -> bool:
        """Return whether a claim still is the page's claim."""
        try:
            return _identity(os.stat(self._path(name))) == nonce
        except FileNotFoundError:
            return False

    def release(self, name: str, nonce: ClaimFile) -> None:
        """End a claim. Another reader's claim of the page, after this one expired, stays."""
        if self.is_current(name, nonce):
            with suppress(FileNotFoundError):
                os.unlink(self._path(name))

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)


def _identity(status: os.stat_result) -> ClaimFile:
    return status.st_ino, status.st_mtime_ns
