"""The folder of a node cache, and its page files: names, bytes, and atomic writes.

The folder must be empty or a node cache already. It belongs to one user, mode 700, unless shared explicitly.

- `penstock-cache.json`: marker, created first
- `pages/<last 2 hex>/<name>`: whole pages
- `writing/<random>`: files being written
- `claims/<name>`: empty file: a process is fetching this page
- `wanted/<id>`: a set of objects that loaders read (`object_sets.py`)
- `loaders/<random>`: sign of a running loader (`running_loaders.py`)
- `held`: the bytes that all this takes (`room.py`)

A page is bytes [i * page_bytes, (i + 1) * page_bytes) of one object. The first 16 digits of its name are a hash of the
object's identity, its SHA-256, so every root, mirror and URL shares it. The other 24 are a hash of the identity, the
page size and i; the last 8 are the page's rank. The file is a header of 16 bytes (magic, length, CRC-32C of name and
data; little-endian) and the data.

Pages of format 1, whose names are one hash, belong to no object that is read, and are deleted first.
"""

import hashlib
import os
import re
import secrets
import stat
import struct
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from ..dataset.shards.shard import crc32c
from ..errors import InvalidRuntime
from ..storage import ByteRange
from ..storage.disk.folder_files import write_all
from .page_cache import Buffer

MARKER = "penstock-cache.json"
NEWEST_FORMAT = 2
_FORMAT_NUMBER = re.compile(rb'"format": ?([0-9]{1,9})')
FORMAT = b'{"format": 2}\n'
ROOT_MARKER = "penstock.json"
LANDING_MARKER = "_origins.json"
"""File that a landing location may contain besides its objects."""
FOLDERS = ("pages", "writing", "claims", "wanted", "loaders")
FORMER_HINTS = "hints"
"""Folder of format 1."""


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
    entries = os.listdir(path)
    if entries and MARKER not in entries:
        raise InvalidRuntime(
            f"the cache folder {path} holds other things ({min(entries)} ...); a cache throws files away, so it needs "
            "an empty folder of its own",
            what="cache",
            where=path,
            given=min(entries),
            accepted="an empty folder",
        )
    current_mode = stat.S_IMODE(os.stat(path).st_mode)
    if not shared and current_mode & 0o077:
        os.chmod(path, current_mode & ~0o077)  # earlier releases left it readable by others
    if not entries:
        write_new(os.path.join(path, MARKER), FORMAT, file_mode(shared))
    for folder in FOLDERS:
        with suppress(FileExistsError):
            os.mkdir(os.path.join(path, folder), mode)
    if entries:
        _upgrade(path, file_mode(shared))


def _upgrade(path: str, mode: int) -> None:
    """Make a folder of an earlier format one of this format. Raises: InvalidRuntime for a later format; OSError."""
    marker = os.path.join(path, MARKER)
    with open(marker, "rb") as file:
        text = file.read(1024)
    if text == FORMAT:
        return
    number = 1  # also if a process was killed before it wrote the marker
    match = _FORMAT_NUMBER.search(text)
    if match is not None:
        number = int(match[1])
    if number > NEWEST_FORMAT:
        raise InvalidRuntime(
            f"the cache folder {path} has format {number}, and this penstock reads formats up to {NEWEST_FORMAT}: use "
            "another folder, or the newer penstock",
            what="format",
            where=path,
            given=number,
            accepted=NEWEST_FORMAT,
        )
    hints = os.path.join(path, FORMER_HINTS)
    with suppress(OSError):
        for entry in list(os.scandir(hints)):
            os.unlink(entry.path)
        os.rmdir(hints)
    write_whole(os.path.join(path, "writing"), marker, mode, FORMAT)


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
    link = os.lstat(path)
    status = os.stat(path)
    user = os.geteuid()
    # A link of the administrator's leads to a folder, which this user must own nevertheless.
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (user, 0):
        why = f"is a link that user {link.st_uid} made"
        fault = {"what": "owner of the link", "given": link.st_uid}
    elif status.st_uid != user:
        why = f"belongs to user {status.st_uid}"
        fault = {"what": "owner", "given": status.st_uid}
    elif status.st_mode & 0o022:
        mode = stat.S_IMODE(status.st_mode)
        why = f"has the mode {mode:o}: others may write there"
        fault = {"what": "mode", "given": mode}
    else:
        return
    raise InvalidRuntime(
        f"the cache folder {path} {why}, and this process runs as user {user}: anyone who writes there decides what a "
        "training reads. Name a folder that is not there yet (it is made with the mode 700), or empty this one, make "
        "it yours and chmod 700; where users who trust one another share it: loader.NodeCache(path=..., shared=True)",
        where=path,
        **fault,
    )


def _refuse_sources(path: str) -> None:
    folder = os.path.realpath(path)
    while True:
        for marker, what in ((ROOT_MARKER, "a penstock root"), (LANDING_MARKER, "a landing place")):
            if os.path.exists(os.path.join(folder, marker)):
                raise InvalidRuntime(
                    f"the cache folder {path} lies in {folder}, which is {what}; nothing but its own data may lie "
                    "there: use a folder elsewhere on a local disk",
                    what="cache",
                    where=path,
                    given=what,
                )
        above = os.path.dirname(folder)
        if above == folder:
            return
        folder = above


OBJECT_DIGITS = 16
"""First hex digits of a page's name, which all pages of one object share."""
PAGE_DIGITS = 24
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


class OpenPage(NamedTuple):
    """A page's open file. The caller closes it."""

    descriptor: int
    nbytes: int
    """Bytes of the page, which begin at HEADER_BYTES of the file."""
    identity: Identity


class Pages:
    """The page files of one cache folder. Raises: OSError, which callers handle.

    shared: trust other users' pages; otherwise ignore them.
    """

    def __init__(self, folder: str, *, shared: bool = False) -> None:
        self._pages = os.path.join(folder, "pages")
        self._writing = os.path.join(folder, "writing")
        self._mode = file_mode(shared)
        self._user: int | None = None
        if not shared:
            self._user = os.geteuid()

    def path(self, name: str) -> str:
        return os.path.join(self._pages, name[-2:], name)

    def read(
        self, name: str, cuts: Sequence[slice], verified: Identity | None
    ) -> tuple[list[bytes], Identity] | None:
        """Return (a page's bytes per cut, file identity); None if it is missing.

        A file other than `verified` is checked first.

        Raises: BadPage; OSError.
        """
        opened = self._open(name)
        if opened is None:
            return None
        descriptor, status = opened
        try:
            identity = self._own_identity(name, status)
            if identity == verified:
                pieces = [_pread(descriptor, cut.start, cut.stop) for cut in cuts]
            else:
                data = _check_page(name, os.pread(descriptor, status.st_size, 0))
                pieces = [bytes(data[cut]) for cut in cuts]
            touch(descriptor, status)
        finally:
            os.close(descriptor)
        for piece, cut in zip(pieces, cuts, strict=True):
            if len(piece) != cut.stop - cut.start:
                raise BadPage(f"page {name} ends too early")
        return pieces, identity

    def open(self, name: str, verified: Identity | None) -> "OpenPage | None":
        """Open a page's file, after a check of its bytes unless it is `verified`; None if it is missing.

        Raises: BadPage; OSError.
        """
        opened = self._open(name)
        if opened is None:
            return None
        descriptor, status = opened
        try:
            identity = self._own_identity(name, status)
            if identity != verified:
                _check_page(name, os.pread(descriptor, status.st_size, 0))
            touch(descriptor, status)
        except BaseException:
            os.close(descriptor)
            raise
        return OpenPage(descriptor, status.st_size - HEADER_BYTES, identity)

    def _open(self, name: str) -> tuple[int, os.stat_result] | None:
        """Return the descriptor and status of a page's file; None if it is missing."""
        try:
            descriptor = os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        try:
            return descriptor, os.fstat(descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def _own_identity(self, name: str, status: os.stat_result) -> Identity:
        """Return a file's identity. Raises: BadPage if another user wrote it."""
        if self._user not in (None, status.st_uid):
            raise BadPage(f"page {name} is user {status.st_uid}'s")
        return Identity(status.st_ino, status.st_mtime_ns)

    def write(self, name: str, data: bytes) -> None:
        """Publish a page once all its bytes are written, not durably. Raises: OSError, and leaves nothing behind."""
        header = _HEADER.pack(_MAGIC, len(data), page_checksum(name, data))
        write_whole(self._writing, self.path(name), self._mode, header, data)

    def exists(self, name: str) -> bool:
        return os.path.exists(self.path(name))

    def discard(self, name: str) -> int:
        """Delete a page; return the bytes that this frees."""
        path = self.path(name)
        try:
            nbytes = os.stat(path, follow_symlinks=False).st_size
            os.unlink(path)
        except FileNotFoundError:
            return 0
        return nbytes


@lru_cache(maxsize=2**14)
def object_prefix(identity: str) -> str:
    """Return the 16 hex digits that begin the names of an object's pages."""
    return hashlib.blake2b(identity.encode(), digest_size=OBJECT_DIGITS // 2).hexdigest()


@lru_cache(maxsize=2**14)
def page_name(identity: str, page_bytes: int, number: int) -> str:
    """Return the name, 40 hex digits, of page `number` of an object."""
    text = f"{identity} {page_bytes} {number}"
    page = hashlib.blake2b(text.encode(), digest_size=PAGE_DIGITS // 2).hexdigest()
    return object_prefix(identity) + page


def former_page_name(sha256: str, page_bytes: int, number: int) -> str:
    """Return the name of a page in a folder of format 1."""
    text = f"{sha256} {page_bytes} {number}"
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


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


def page_checksum(name: str, data: bytes | memoryview) -> int:
    """Return the CRC-32C of a page's name and data, as its header has it."""
    return crc32c(name.encode() + struct.pack("<I", crc32c(data)))


def _check_page(name: str, file: bytes) -> memoryview:
    data = memoryview(file)[HEADER_BYTES:]
    checksum = page_checksum(name, data)
    if file[:HEADER_BYTES] != _HEADER.pack(_MAGIC, len(data), checksum):
        error = BadPage(f"page {name} is not what was written")
        if len(file) >= HEADER_BYTES:
            error.checksums = _HEADER.unpack_from(file)[2], checksum
        raise error
    return data


def _pread(descriptor: int, start: int, stop: int) -> bytes:
    return os.pread(descriptor, stop - start, HEADER_BYTES + start)


def touch(descriptor: int, status: os.stat_result) -> None:
    """Record the use in a page file's access time, whatever the mount options."""
    now_ns = time.time_ns()
    if now_ns - status.st_atime_ns > TOUCH_S * 10**9:
        with suppress(PermissionError):  # another user's page: its owner tracks its use
            os.utime(descriptor, ns=(now_ns, status.st_mtime_ns))


class PageCuts:
    """Spans of one object, cut at page boundaries."""

    def __init__(self, spans: Sequence[tuple[int, int]], page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self.end = 0
        """End of the last span."""
        self._whole: list[Buffer] = [b""] * len(spans)
        self._split: dict[int, dict[int, Buffer]] = {}  # for spans in several pages: page -> bytes
        cuts: dict[int, list[tuple[int, slice]]] = {}
        for i, span in enumerate(spans):
            start, nbytes = span
            stop = start + nbytes
            if stop > self.end:
                self.end = stop
            number, low = divmod(start, page_bytes)
            high = low + nbytes
            if high <= page_bytes:
                if nbytes:
                    cut = slice(low, high)
                    cuts_of_page = cuts.setdefault(number, [])
                    cuts_of_page.append((i, cut))
                continue
            self._split[i] = {}
            while start < stop:
                number, low = divmod(start, page_bytes)
                rest = stop - start
                high = min(page_bytes, low + rest)
                cut = slice(low, high)
                cuts_of_page = cuts.setdefault(number, [])
                cuts_of_page.append((i, cut))
                start += high - low
        self.cuts: dict[int, list[tuple[int, slice]]] = {}
        """Page -> (span number, bytes of the page), ascending."""
        for number in sorted(cuts):
            self.cuts[number] = cuts[number]

    def take(self, number: int, pieces: Sequence[Buffer]) -> None:
        """Take the bytes of a page's cuts."""
        cuts = self.cuts[number]
        for (i, _), piece in zip(cuts, pieces, strict=True):
            if i in self._split:
                self._split[i][number] = piece
            else:
                self._whole[i] = piece

    def spans(self, numbers: Iterable[int]) -> list[ByteRange]:
        """Return the ranges of the object that the cuts of some pages are."""
        spans: list[ByteRange] = []
        for number in numbers:
            page_start = number * self._page_bytes
            for _, cut in self.cuts[number]:
                start = page_start + cut.start
                nbytes = cut.stop - cut.start
                span = ByteRange(start, nbytes)
                spans.append(span)
        return spans

    def joined(self) -> list[Buffer]:
        """Return the bytes of each span."""
        for i, pieces in self._split.items():
            ordered = [pieces[number] for number in sorted(pieces)]
            self._whole[i] = b"".join(ordered)
        return self._whole
