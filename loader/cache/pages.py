"""The folder of a node cache, and its page files: names, bytes, and atomic writes.

The folder must be empty or a node cache already. It belongs to one user, mode 700, unless shared explicitly.

- `penstock-cache.json`: marker, created first
- `pages/<2 hex>/<name>`: whole pages
- `writing/<random>`: pages and hints being written
- `claims/<name>`: empty file: a process is fetching this page
- `hints/<random>`: pages that one running loader needs next

A page is bytes [i * page_bytes, (i + 1) * page_bytes) of one object. Its name is a hash of the object's SHA-256, so
every root, mirror and URL shares it. The file is a header of 16 bytes (magic, length, CRC-32C of name and data;
little-endian) and the data.
"""

import hashlib
import os
import secrets
import stat
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from ..dataset.shards.shard import crc32c
from ..errors import InvalidRuntime
from ..storage.disk.folder_files import write_all

MARKER = "penstock-cache.json"
FORMAT = b'{"format": 1}\n'
ROOT_MARKER = "penstock.json"
LANDING_MARKER = "_origins.json"
"""File that a landing location may contain besides its objects."""
FOLDERS = ("pages", "writing", "claims", "hints")


def make_place(path: str, *, shared: bool = False) -> None:
    """Make the folder a node cache, for this user only unless `shared`.

    Raises: InvalidRuntime if the folder has other content, or another user can write pages to it; OSError.
    """
    _refuse_sources(path)
    mode = folder_mode(file_mode(shared))
    with suppress(FileExistsError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mkdir(path, mode)
    if not shared:
        _refuse_others(path)
    there = os.listdir(path)
    if there and MARKER not in there:
        raise InvalidRuntime(
            f"the cache folder {path} holds other things ({min(there)} ...); a cache throws files away, so it needs an "
            "empty folder of its own"
        )
    if not shared and (mode_now := stat.S_IMODE(os.stat(path).st_mode)) & 0o077:
        os.chmod(path, mode_now & ~0o077)  # earlier releases left it readable by others
    if not there:
        write_new(os.path.join(path, MARKER), FORMAT, file_mode(shared))
    for folder in FOLDERS:
        with suppress(FileExistsError):
            os.mkdir(os.path.join(path, folder), mode)


def file_mode(shared: bool) -> int:
    return 0o666 if shared else 0o600


def folder_mode(mode: int) -> int:
    return mode | (mode & 0o444) >> 2


def write_new(path: str, data: bytes, mode: int) -> None:
    """Write a small file, unless another process already did. Raises: OSError."""
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as file:
            file.write(data)


def _refuse_others(path: str) -> None:
    """Raise InvalidRuntime unless this user owns the folder and only this user can write to it; OSError."""
    link, status, user = os.lstat(path), os.stat(path), os.geteuid()
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (user, 0):
        why = f"is a link that user {link.st_uid} made"
    elif status.st_uid != user:
        why = f"belongs to user {status.st_uid}"
    elif status.st_mode & 0o022:
        why = f"has the mode {stat.S_IMODE(status.st_mode):o}: others may write there"
    else:
        return
    raise InvalidRuntime(
        f"the cache folder {path} {why}, and this process runs as user {user}: anyone who writes there decides what a "
        "training reads. Name a folder that is not there yet (it is made with the mode 700), or empty this one, make "
        "it yours and chmod 700; where users who trust one another share it: loader.NodeCache(path=..., shared=True)"
    )


def _refuse_sources(path: str) -> None:
    folder = os.path.realpath(path)
    while True:
        for marker, what in ((ROOT_MARKER, "a penstock root"), (LANDING_MARKER, "a landing place")):
            if os.path.exists(os.path.join(folder, marker)):
                raise InvalidRuntime(
                    f"the cache folder {path} lies in {folder}, which is {what}; nothing but its own data may lie "
                    "there: use a folder elsewhere on a local disk"
                )
        above = os.path.dirname(folder)
        if above == folder:
            return
        folder = above


NAME_BYTES = 20
_MAGIC = b"penstck1"
_HEADER = struct.Struct("<8sII")
HEADER_BYTES = _HEADER.size
TOUCH_S = 60
"""A read updates a page's time of last use if that is older, in seconds."""


class BadPage(ValueError):
    """A page file whose bytes are not those written."""

    checksums: tuple[int, int] | None = None


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
        return os.path.exists(self.path(name))

    def discard(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.path(name))


@lru_cache(maxsize=2**14)
def page_name(sha256: str, page_bytes: int, number: int) -> str:
    """Return the name, 40 hex digits, of page `number` of the object with this SHA-256."""
    text = f"{sha256} {page_bytes} {number}"
    return hashlib.blake2b(text.encode(), digest_size=NAME_BYTES).hexdigest()


def write_whole(writing: str, target: str, mode: int, *pieces: bytes) -> None:
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
