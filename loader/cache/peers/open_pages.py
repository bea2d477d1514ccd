"""Open files of pages that a server sends often.

Opening and closing a page's file takes 5 us of the 80 us that a server took for 100 kB. A file that was deleted or
changed is opened anew: takedowns count on it. A reference to a page keeps its file open, so that no thread sends
another file's bytes.
"""

import os
from contextlib import suppress

from ...storage.threads import SizedLru
from ..pages import OpenPage, touch

OPEN_PAGES = 256
"""Most files. Those of deleted pages take room on the disk until `close_deleted`, at most as many."""


class OpenPageFile:
    """A page's open file, which is closed with the last reference."""

    __slots__ = ("descriptor", "identity", "nbytes")

    def __init__(self, page: OpenPage) -> None:
        self.descriptor = page.descriptor
        self.nbytes = page.nbytes
        self.identity = page.identity

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self.descriptor)

    def is_current(self) -> bool:
        """Return whether the file is still the page's, and unchanged since its bytes were checked."""
        status = os.fstat(self.descriptor)
        if not status.st_nlink or status.st_mtime_ns != self.identity.mtime_ns:
            return False
        touch(self.descriptor, status)
        return True


class OpenPages:
    """The open files of pages. Thread-safe."""

    def __init__(self) -> None:
        self._files = SizedLru(OPEN_PAGES)

    def get(self, name: str) -> OpenPageFile | None:
        """Return a page's open file; None if there is none, or if it is not current."""
        file: OpenPageFile | None = self._files.get(name)
        if file is None or file.is_current():
            return file
        self.close(name)
        return None

    def add(self, name: str, page: OpenPage) -> OpenPageFile:
        """Keep a page's file open, and return it."""
        file = OpenPageFile(page)
        self._files.put(name, file)
        return file

    def close(self, name: str) -> None:
        """Close a page's file, once no thread sends it."""
        self._files.discard(name)

    def close_deleted(self) -> None:
        """Close the files of pages that were deleted: they take room on the disk."""
        for name, file in self._files.items():
            if not file.is_current():
                self._files.discard(name)
