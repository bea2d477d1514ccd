"""Page claims: one process fetches a page, the others wait for it.

Claims only save requests: a killed owner's claim costs a wait, and a page fetched twice is the same page.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress

from .folder import file_mode

CLAIM_S = 5.0
"""Seconds for which a claim is respected: far longer than a range read."""
POLL_S = 0.005


class Claims:
    """The claims of one cache folder. Methods raise OSError."""

    def __init__(self, folder: str, *, shared: bool = False) -> None:
        self._mode = file_mode(shared)
        self._folder = os.path.join(folder, "claims")

    def take(self, name: str) -> bool:
        """Return whether the caller is to fetch this page. An old claim is replaced."""
        path = os.path.join(self._folder, name)
        for _ in range(2):
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._mode))
                return True
            age_s = self._age_s(name)
            if age_s is None:
                continue
            if 0 <= age_s < CLAIM_S:
                return False
            self.release(name)
        return False

    def is_taken(self, name: str) -> bool:
        """Return whether a page has a claim that is not too old."""
        age_s = self._age_s(name)
        return age_s is not None and 0 <= age_s < CLAIM_S

    def release(self, name: str) -> None:
        """Give a claim back; one that is gone is no error."""
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self._folder, name))

    def wait(self, name: str, arrived: Callable[[], bool]) -> None:
        """Wait until the page has arrived, or its claim is gone or expired."""
        path, deadline_s = os.path.join(self._folder, name), time.monotonic() + CLAIM_S
        while not arrived() and os.path.exists(path) and time.monotonic() < deadline_s:
            time.sleep(POLL_S)

    def _age_s(self, name: str) -> float | None:
        try:
            return time.time() - os.stat(os.path.join(self._folder, name)).st_mtime
        except FileNotFoundError:
            return None
