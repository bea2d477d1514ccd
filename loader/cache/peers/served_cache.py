"""A node's cache as its server uses it: open files of pages, lists of other nodes' objects, figures."""

import os
import secrets
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from ..node_cache import TOUCH_S, Count, OpenCache
from ..object_sets import FOLDER
from ..pages import OBJECT_DIGITS, BadPage, Identity
from ..room import scan
from ..spec import NodeCache
from .open_pages import OpenPageFile, OpenPages

SETS_BYTES = 24 * 2**20
"""Most bytes of lists of objects that a server accepts: 1.5 million objects. One at a time is in memory whole."""
UNUSED_SET_S = 3 * TOUCH_S
"""Age in seconds at which a list makes room for another: its readers send it again."""


class ServedCache(OpenCache):
    """The cache of a folder that a server answers from. Thread-safe."""

    def __init__(self, spec: NodeCache, count: Count) -> None:
        self._open_pages = OpenPages()
        super().__init__(spec, count)

    def open_page(self, name: str) -> OpenPageFile | None:
        """Return a page's open file; None if it is missing or corrupt. A file's bytes are checked once.

        Raises: OSError.
        """
        # A file may be closed to make room for others and stay verified: opening it again costs no check.
        file = self._open_pages.get(name)
        if file is not None:
            return file
        verified: Identity | None = self._verified.get(name)
        try:
            opened = self._pages.open(name, verified)
        except BadPage as error:
            self._report_bad(name, error)
            return None
        if opened is None:
            return None
        self._verified.put(name, opened.identity)
        return self._open_pages.add(name, opened)

    def discard_wrong(self, name: str) -> bool:
        """Read a page's file again, and delete it if its bytes are wrong. Return whether they are."""
        self._open_pages.close(name)
        self._verified.discard(name)
        return self.open_page(name) is None

    def beat(self) -> None:
        super().beat()
        self._open_pages.close_deleted()

    def object_pages(self, prefixes: Collection[str]) -> list[str]:
        """Return the names of all pages of objects. O(pages). prefixes: 16 hex digits each. Raises: OSError."""
        names: list[str] = []
        for page in scan(self._folder):
            prefix = page.name[:OBJECT_DIGITS]
            if prefix in prefixes:
                names.append(page.name)
        return names

    def touch_set(self, set_id: str) -> bool:
        """Record that a reader needs a set of objects; return whether its list is here.

        set_id: 32 hex digits, which name the file of the list.
        """
        path = self._set_path(set_id)
        try:
            age_s = time.time() - os.stat(path).st_mtime
            if abs(age_s) > TOUCH_S:
                os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def make_room_for_set(self, nbytes: int) -> bool:
        """Delete lists of objects that no reader asks for, the oldest first, until another one fits.

        Return whether it does.
        """
        folder = os.path.join(self._folder, FOLDER)
        lists: list[tuple[float, int, str]] = []
        for entry in os.scandir(folder):
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                listed = (
                    status.st_mtime,
                    status.st_size,
                    entry.path,
                )
                lists.append(listed)
        stored = sum(size for _, size, _ in lists)
        now_s = time.time()
        for touched_s, size, path in sorted(lists):
            if stored + nbytes <= SETS_BYTES:
                break
            age_s = now_s - touched_s
            if age_s > UNUSED_SET_S:
                with suppress(OSError):
                    os.unlink(path)
                    stored -= size
        return stored + nbytes <= SETS_BYTES

    def adopt_set(self, set_id: str, path: str) -> None:
        """Move the file of a list of objects, whose hash is `set_id`, to its place. Raises: OSError."""
        os.rename(path, self._set_path(set_id))
        self._next_beat_s = 0.0  # the share changes

    def temporary_file(self) -> tuple[str, int]:
        """Create a file of this folder's disk; return its path and descriptor. Raises: OSError."""
        path = os.path.join(self._folder, "writing", secrets.token_hex(8))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        return path, descriptor

    def reopen_share(self) -> None:
        """Take pages again that were refused when there was less room."""
        self.share.begin_epoch()

    def running_loaders(self) -> int:
        """Return the number of running users of the folder: its loaders and this server."""
        return len(self._running)

    def status(self) -> dict[str, Any]:
        """Return the folder's figures as JSON values. O(pages)."""
        pages = 0
        with suppress(OSError):
            pages = sum(1 for _ in scan(self._folder))
        return {
            "pages": pages,
            "bytes": self._room.held_bytes(),
            "limit_bytes": self.limit_bytes,
            "share": min(1.0, self.share.share),
            "loaders": len(self._running) - 1,  # without this server, which has a sign as they do
        }

    def _set_path(self, set_id: str) -> str:
        return os.path.join(self._folder, FOLDER, set_id)
