"""Page files: names, bytes, and atomic writes.

A page is bytes [i * page_bytes, (i + 1) * page_bytes) of one object. Its name is a hash of the object's SHA-256, so
every root, mirror and URL shares it. The file is a header of 16 bytes (magic, length, CRC-32C of name and data;
little-endian) and the data.
"""

import hashlib
import os
import secrets
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from ..dataset.shards.shard import crc32c
from ..storage.disk.folder_files import write_all
from .folder import file_mode, folder_mode

NAME_BYTES = 20
_MAGIC = b"penstck1"
_HEADER = struct.Struct("<8sII")
HEADER_BYTES = _HEADER.size
TOUCH_S = 60
"""A read updates a page's time of last use if that is older, in seconds."""


class BadPage(ValueError):
    """A page file whose bytes are not those written."""

    checksums: tuple[int, int] | None = None
    """CRC-32C in its header, and of its name and bytes; None if the page is not damaged, or too short."""


class Identity(NamedTuple):
    """Identifies the file of a verified page; a different file is checked again."""

    inode: int
    """Inode number."""
    mtime_ns: int
    """Time of the last change, in ns since 1970."""


class Pages:
    """The page files of one cache folder. Raises: OSError, which callers handle.

    shared: trust other users' pages; otherwise ignore them.
    """

    def __init__(self, folder: str, *, shared: bool = False) -> None:
        self._pages, self._writing = os.path.join(folder, "pages"), os.path.join(folder, "writing")
        self._mode, self._user = file_mode(shared), None if shared else os.geteuid()

    def path(self, name: str) -> str:
        """Return the path for a page name, whether the page exists or not."""
        return os.path.join(self._pages, name[:2], name)

    def read(
        self, name: str, cuts: Sequence[slice], verified: Identity | None
    ) -> tuple[list[bytes], Identity] | None:
        """Return (a page's bytes per cut, file identity); None if it is missing.

        A file other than `verified` is checked first.

        Raises: BadPage; OSError.
        """
        try:
            descriptor = os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        try:
            status = os.fstat(descriptor)
            if self._user not in (None, status.st_uid):
                raise BadPage(f"page {name} is user {status.st_uid}'s")
            identity = Identity(status.st_ino, status.st_mtime_ns)
            if identity == verified:
                pieces = [_pread(descriptor, cut.start, cut.stop) for cut in cuts]
            else:
                data = _checked(name, os.pread(descriptor, status.st_size, 0))
                pieces = [bytes(data[cut]) for cut in cuts]
            _touch(descriptor, status)
        finally:
            os.close(descriptor)
        if any(len(piece) != cut.stop - cut.start for piece, cut in zip(pieces, cuts, strict=True)):
            raise BadPage(f"page {name} ends too early")
        return pieces, identity

    def write(self, name: str, data: bytes) -> None:
        """Publish a page once all its bytes are written, not durably. Raises: OSError, and leaves nothing behind."""
        header = _HEADER.pack(_MAGIC, len(data), _checksum(name, data))
        write_whole(self._writing, self.path(name), self._mode, header, data)

    def exists(self, name: str) -> bool:
        """Return whether a page with this name exists now."""
        return os.path.exists(self.path(name))

    def discard(self, name: str) -> None:
        """Remove a page; a missing one is no error. Raises: OSError."""
        with suppress(FileNotFoundError):
            os.unlink(self.path(name))


@lru_cache(maxsize=2**14)
def page_name(sha256: str, page_bytes: int, number: int) -> str:
    """Return the name, 40 hex digits, of page `number` of the object with this SHA-256."""
    text = f"{sha256} {page_bytes} {number}"
    return hashlib.blake2b(text.encode(), digest_size=NAME_BYTES).hexdigest()


def write_whole(writing: str, target: str, mode: int, *pieces: bytes) -> None:
    """Write a file that appears whole or not at all. Raises: OSError, and leaves nothing behind.

    mode: file mode before the umask; new folders get `folder_mode(mode)`.
    """
    temporary = os.path.join(writing, secrets.token_hex(8))
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            for piece in pieces:
                write_all(descriptor, memoryview(piece))
        finally:
            os.close(descriptor)
        try:
            os.rename(temporary, target)
        except FileNotFoundError:
            _make_folder(os.path.dirname(target), folder_mode(mode))
            os.rename(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _make_folder(path: str, mode: int) -> None:
    """Make a folder and its parents with this mode before the umask."""
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        return
    except FileNotFoundError:
        _make_folder(os.path.dirname(path), mode)
        _make_folder(path, mode)


def _checksum(name: str, data: bytes | memoryview) -> int:
    return crc32c(name.encode() + struct.pack("<I", crc32c(data)))


def _checked(name: str, file: bytes) -> memoryview:
    data = memoryview(file)[HEADER_BYTES:]
    checksum = _checksum(name, data)
    if file[:HEADER_BYTES] != _HEADER.pack(_MAGIC, len(data), checksum):
        error = BadPage(f"page {name} is not what was written")
        if len(file) >= HEADER_BYTES:
            error.checksums = _HEADER.unpack_from(file)[2], checksum
        raise error
    return data


def _pread(descriptor: int, start: int, stop: int) -> bytes:
    return os.pread(descriptor, stop - start, HEADER_BYTES + start)


def _touch(descriptor: int, status: os.stat_result) -> None:
    """Record the use in the file's access time, whatever the mount options."""
    now_ns = time.time_ns()
    if now_ns - status.st_atime_ns > TOUCH_S * 10**9:
        with suppress(PermissionError):  # another user's page: its owner tracks its use
            os.utime(descriptor, ns=(now_ns, status.st_mtime_ns))
