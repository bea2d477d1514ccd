"""List a folder's files in key order, write them atomically, and translate their errors."""

import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ...errors import AlreadyExists, Forbidden, InvalidStore, ObjectNotFound, StoreError, Transient
from ...json_text import is_text
from ..store import TEMPORARY, Refuse, key_fault, temporary_name

# link(2) states EPERM for a file system without hard links.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_AGAIN = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR}


def disk_error(verb: str, path: str, error: OSError) -> StoreError:
    """Return the error for a system call that failed. verb: "read", "write", "list" or "delete"."""
    why = f"cannot {verb} {path}: {error.strerror or error}"
    number = error.errno
    # The name of the errno: its text depends on the C library and the language.
    code = errno.errorcode.get(number or 0, type(error).__name__)
    fault = {"what": "object", "where": path, "given": code}
    if isinstance(error, NotADirectoryError) and verb == "write":
        return InvalidStore(
            f"{why}; part of that path is a file, and a disk cannot hold 'a' and 'a/b': choose another key",
            **fault,
        )
    leads_nowhere = number == errno.ELOOP and verb == "read"  # a link to itself is treated as a dangling link
    if isinstance(error, FileNotFoundError | NotADirectoryError) or leads_nowhere:
        if verb == "write" and error.filename not in (None, path):
            return ObjectNotFound(f"cannot write {path}: there is no file {error.filename}", **fault)
        return ObjectNotFound(f"{path}: there is no such object", **fault)
    if isinstance(error, IsADirectoryError) or number == errno.ENOTEMPTY:
        return InvalidStore(f"{why}; other objects lie below that key: choose another key", **fault)
    if isinstance(error, PermissionError) or number == errno.EROFS:
        return Forbidden(
            f"{why}; this process runs as user id {os.geteuid()}: check owner and mode of the directory, "
            "and whether the file system is mounted read-only",
            **fault,
        )
    if number in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            f"{why}; nothing was stored: free space or raise the quota there (`df {os.path.dirname(path)}`), "
            "then run the same command again",
            **fault,
        )
    if number in (errno.EMFILE, errno.ENFILE):
        return StoreError(
            f"{why}; raise the limit of open files (`ulimit -n`) or read with fewer threads", **fault
        )
    if number == errno.ENAMETOOLONG:
        return InvalidStore(f"{why}; a segment of a key on a disk is at most 255 bytes", **fault)
    if number in _AGAIN:
        return Transient(f"{why}; the disk or its server did not answer: check it, then try again", **fault)
    return StoreError(f"{why} (errno {number})", **fault)


def upload_size(path: str, target: str) -> int:
    """Return the size of a local file to upload. Raises: ObjectNotFound; InvalidStore; Forbidden."""
    try:
        # Opened for its size too: a file that cannot be read is refused before the upload.
        with open(path, "rb") as source:
            return os.fstat(source.fileno()).st_size
    except FileNotFoundError:
        raise ObjectNotFound(
            f"cannot write {target}: there is no file {path}", what="file", where=path, given="no file"
        ) from None
    except IsADirectoryError:
        raise InvalidStore(f"cannot write {target}: {path} is a directory; upload its files") from None
    except OSError as error:
        raise disk_error("read", path, error) from error


def hard_link_error(path: str, error: OSError) -> OSError | StoreError:
    """Return the error for a failed link: `error`, or InvalidStore if the file system has no hard links."""
    if error.errno not in _NO_LINKS:
        return error
    return InvalidStore(
        f"cannot create {path}: its file system has no hard links ({error.strerror}), so a create-only write "
        "cannot be safe there; keep the root on a POSIX file system or in a bucket",
        what="hard link",
        where=path,
        given=errno.errorcode.get(error.errno or 0),
    )


DIRECT_BYTES = 2 * 2**20
"""Smallest write, in bytes, that bypasses the page cache: its copy costs as much as a fast disk."""
DIRECT_ALIGNMENT = 4096
"""Alignment of direct writes, in bytes, in memory and file."""
MOST_VANISHED_FOLDERS = 20
"""Most times that a writer makes its folder again because another process removed it while it was empty."""
_DIRECT = getattr(os, "O_DIRECT", 0)  # Linux only


def make_directories(path: str) -> None:
    """Make directories as `os.makedirs` does, and make each new entry durable in its parent. Raises: OSError."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_directories(parent)
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path) from None
        # Another writer made it, and may not have reached the next line.
    fsync_directory(parent)


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all of `data`, even if the system accepts less at once. Raises: OSError."""
    while data:
        data = data[os.write(descriptor, data) :]


def write_direct(descriptor: int, data: memoryview) -> None:
    """Write all of `data`, bypassing the page cache if the file system can. Raises: OSError."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    begin = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _DIRECT)
        write_all(descriptor, data)
    except OSError as error:
        if error.errno != errno.EINVAL:  # unsupported by the file system, or at this offset
            raise
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    n_written = os.lseek(descriptor, 0, os.SEEK_CUR) - begin
    write_all(descriptor, data[n_written:])


def fsync_directory(path: str) -> None:
    """Make a directory's names durable, so that they survive a power failure. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):  # some network file systems do not support it
            raise
    finally:
        os.close(descriptor)


class NewFile:
    """A file written next to its target and renamed in one step. `close` deletes an unfinished file."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._folder = os.path.dirname(target)
        self._temporary = f"{self._folder}/{temporary_name()}"
        with self._words():
            self._descriptor: int | None = self._open()

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        n_vanished = 0
        while True:
            try:
                make_directories(self._folder)
                return os.open(self._temporary, flags, 0o666)
            except FileNotFoundError:  # another process removed the folder, which was empty for a moment
                n_vanished += 1
                if n_vanished > MOST_VANISHED_FOLDERS:
                    raise

    def write(self, data: memoryview) -> None:
        """Append bytes, bypassing the page cache if they are many and aligned."""
        n_direct = 0
        if len(data) >= DIRECT_BYTES:
            n_direct = len(data) - len(data) % DIRECT_ALIGNMENT
            self.fill(lambda out: write_direct(out, data[:n_direct]))
        self.fill(lambda out: write_all(out, data[n_direct:]))

    def fill(self, work: Callable[[int], None]) -> None:
        with self._words():
            assert self._descriptor is not None
            work(self._descriptor)

    def finish(self, publish: Callable[[str, str], None] = os.replace) -> None:
        """Make the file durable, and call `publish(temporary, target)` to name it."""
        with self._words():
            assert self._descriptor is not None
            os.fsync(self._descriptor)
            self._close()
            publish(self._temporary, self._target)
            _unlink_if_there(self._temporary)
            fsync_directory(self._folder)

    def close(self) -> None:
        with self._words():
            self._close()
            _unlink_if_there(self._temporary)

    def _close(self) -> None:
        descriptor = self._descriptor
        self._descriptor = None
        if descriptor is not None:
            os.close(descriptor)

    @contextmanager
    def _words(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, AlreadyExists | InvalidStore):
                raise
            raise disk_error("write", self._target, error) from error


def _unlink_if_there(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return  # os.replace moved it


FILE, FOLDER = "file", "folder"
_SNAPSHOT = re.compile(r"(.*/)snapshots/[^/]+/", re.DOTALL)
"""A snapshot in Hugging Face's cache: links to files in the folder "blobs" next to "snapshots"."""


def walk(
    base: str,
    prefix: str,
    start_after: str | None,
    refuse: Refuse,
    *,
    unfinished: bool = False,
    top: str | None = None,
    inside: bool = False,
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the keys of `walk_entries` with the stats of their files. Arguments and errors are the same."""
    entries = walk_entries(
        base,
        prefix,
        start_after,
        refuse,
        unfinished=unfinished,
        top=top,
        inside=inside,
    )
    follows = top is None
    for key, entry in entries:
        try:
            yield key, entry.stat(follow_symlinks=follows)
        except FileNotFoundError:
            continue  # deleted since the directory was read
        except OSError as error:
            raise disk_error("list", base + key, error) from error


def walk_entries(
    base: str,
    prefix: str,
    start_after: str | None,
    refuse: Refuse,
    *,
    unfinished: bool = False,
    top: str | None = None,
    inside: bool = False,
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield keys below `base` (ends in '/') that start with `prefix` and sort after `start_after`, with entries.

    Keys are ordered as whole strings: 'a.b' < 'a/b'.

        refuse: receives each name that is not a valid key, and each link that is not followed.
        unfinished: also yield unfinished files.
        top: a folder ("" or ending in '/') below which links are yielded instead of followed.
        inside: refuse links that lead out of `base` or to a parent folder.

    Raises: Forbidden; Transient.
    """
    folder = prefix[: prefix.rfind("/") + 1] if top is None else top
    extent = _real_folders(base) if inside else ()
    tree = _Tree(base, prefix, start_after, refuse, unfinished, top is None, extent)
    if not extent:
        yield from tree.files(folder, ())
    elif tree.holds(real := os.path.realpath(base + folder)):
        yield from tree.files(folder, (real,))
    else:
        refuse(folder.rstrip("/"), _OUTSIDE)


NOT_UTF8 = "its name is not UTF-8, as every key is: rename it"
_OUTSIDE = (
    "a link out of the place: replace it by a copy of its target (cp -rL), or name the target as a place"
)


def _real_folders(base: str) -> tuple[str, ...]:
    """Return the real folders, each ending in '/', that links in a location may lead to."""
    real = os.path.join(os.path.realpath(base), "")
    if snapshot := _SNAPSHOT.fullmatch(real):
        blobs = f"{snapshot[1]}blobs"
        if os.path.realpath(blobs) == blobs:
            return real, f"{blobs}/"
    return (real,)


@dataclass(frozen=True, slots=True)
class _Tree:
    """The arguments of `walk`."""

    base: str
    prefix: str
    start_after: str | None
    refuse: Refuse
    unfinished: bool
    follows: bool
    extent: tuple[str, ...]

    def holds(self, real: str) -> bool:
        return os.path.join(real, "").startswith(self.extent)

    def files(self, folder: str, chain: tuple[str, ...]) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Yield the files below a folder. chain: real paths of the folder and its parents, if links are judged."""
        prefix = self.prefix
        after = self.start_after
        for key, entry in self._entries(folder):
            if key.endswith("/"):
                may_match = key.startswith(prefix) or prefix.startswith(key)
                may_match = may_match and (after is None or key > after or after.startswith(key))
                if may_match and (inner := self._link_chain(key, entry, chain)) is not None:
                    yield from self.files(key, inner)
            elif key.startswith(prefix) or (not self.follows and prefix.startswith(f"{key}/")):
                if after is not None and key <= after:
                    continue
                if self.extent and entry.is_symlink() and not self.holds(os.path.realpath(self.base + key)):
                    self.refuse(key, _OUTSIDE)
                    continue
                yield key, entry

    def _link_chain(
        self, key: str, entry: os.DirEntry[str], chain: tuple[str, ...]
    ) -> tuple[str, ...] | None:
        if not self.extent:
            return chain
        if not entry.is_symlink():
            return (*chain, os.path.join(chain[-1], entry.name))
        real = os.path.realpath(self.base + key)
        if not self.holds(real):
            self.refuse(key.rstrip("/"), _OUTSIDE)
        elif real in chain:
            self.refuse(key.rstrip("/"), "a link to a folder that it lies in: remove it")
        else:
            return (*chain, real)
        return None

    def _entries(self, folder: str) -> list[tuple[str, os.DirEntry[str]]]:
        """Return (path, entry) of a folder's entries that may match, sorted; a folder's path ends in '/'."""
        prefix = self.prefix
        start_after = self.start_after or ""
        follows = self.follows
        matching: list[tuple[str, os.DirEntry[str]]] = []
        try:
            with os.scandir(self.base + folder) as entries:
                for entry in entries:
                    path = folder + entry.name
                    if not (path.startswith(prefix) or prefix.startswith(path)):
                        continue
                    # Neither this path nor one below it sorts after `start_after`.
                    if path + "/" <= start_after and not start_after.startswith(path):
                        continue
                    kind = entry_kind(entry, follows=follows, judged=bool(self.extent))
                    is_file = kind == FILE or (not follows and entry.is_symlink())
                    is_unfinished = entry.name.startswith(TEMPORARY)
                    if is_unfinished and not (self.unfinished and is_file):
                        continue
                    if not is_text(entry.name):
                        named = os.fsencode(path).decode(errors="backslashreplace")
                        self.refuse(named, NOT_UTF8)
                    elif not is_unfinished and (fault := key_fault(path)):
                        self.refuse(path, fault)
                    elif kind == FOLDER:
                        matching.append((path + "/", entry))
                    elif is_file:
                        matching.append((path, entry))
                    elif self.extent:
                        self.refuse(path, skip_reason(entry))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            if error.errno == errno.ELOOP:
                return []  # forty links on the path: a link to its own parent folder
            raise disk_error("list", self.base + folder, error) from error
        matching.sort(key=lambda item: item[0])
        return matching


def entry_kind(entry: os.DirEntry[str], *, follows: bool = True, judged: bool = False) -> str:
    """Return FILE, FOLDER, or "" for anything else, such as a looping link. Raises: OSError.

    judged: "" also for a link with an unreadable target.
    """
    try:
        if entry.is_dir(follow_symlinks=follows):
            return FOLDER
        return FILE if entry.is_file(follow_symlinks=follows) else ""
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG) or (judged and entry.is_symlink()):
            return ""
        raise


def skip_reason(entry: os.DirEntry[str]) -> str:
    """Return the reason why an entry that is neither a file nor a folder is not listed."""
    try:
        entry.stat()
    except FileNotFoundError:
        return "a link to what is not there: mount or restore that, or remove the link"
    except OSError as error:
        return f"a link that cannot be followed ({error.strerror}): remove it, or copy in what it leads to"
    return "neither a file nor a folder: move it elsewhere"
