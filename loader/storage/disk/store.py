"""Store objects in a directory on a disk, through the operating system.

fsspec's `mode="create"` checks existence, then writes, and loses races. Here a create fsyncs a temporary file and
publishes it under its key by `os.link`, which succeeds only once. Options: none. The URL is a path or file:///path
(percent-decoded, RFC 8089). Symbolic links are followed.
"""

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import BinaryIO, Unpack
from urllib.parse import unquote, urlsplit

from ...errors import AlreadyExists, Changed, Corrupt, InvalidStore, ObjectNotFound
from ..requests import count_request
from ..spec import Opened, StoreSpec
from ..store import (
    TEMPORARY,
    Blob,
    ByteRange,
    ObjectInfo,
    Piece,
    ReadLimits,
    Refuse,
    Store,
    check_key,
    check_prefix,
    check_span,
    log_refusals,
)
from ..stream import BufferedRange, cut, merge_pieces, neighbours, plan_reads, slice_reads
from .folder_files import (
    NewFile,
    disk_error,
    fsync_directory,
    hard_link_error,
    upload_size,
    walk,
    walk_entries,
    write_all,
)

_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_TYPE_BITS = 0o170000  # of a mode: the type of the file


def open_local(url: str, options: Mapping[str, object], spec: StoreSpec) -> Store:
    """Open a local folder. Raises: InvalidStore for a file, another host's file:// URL, `~`, or an option."""
    if options:
        raise InvalidStore(
            f"{url}: a directory takes no options, got {sorted(options)}; leave them out",
            what="options",
            where=url,
            given=sorted(options),
            accepted="none",
        )
    path = _url_path(url)
    if re.match(r"~[^/]*(/|$)", path):
        raise InvalidStore(f"{url!r}: '~' is not expanded here; write the path in full")
    if "\0" in path:
        raise InvalidStore(f"{url!r} holds a NUL character, which no path does")
    try:
        root = os.path.abspath(path)
    except OSError as error:
        raise InvalidStore(
            f"{url!r} is relative, and the working directory is gone ({error.strerror}): give a full path, or run in "
            "a folder that exists"
        ) from error
    if os.path.exists(root) and not os.path.isdir(root):
        raise InvalidStore(
            f"{root} is a file; a store is a directory",
            what="store",
            where=root,
            given="a file",
            accepted="a directory",
        )
    return LocalStore(root, StoreSpec(url=root, options={}, dropped=spec.dropped))


class LocalStore(Opened):
    """Objects are the files below one directory. An etag combines modification time, inode and size."""

    def __init__(self, root: str, spec: StoreSpec) -> None:
        super().__init__(spec, root)
        self._base = root if root.endswith("/") else f"{root}/"

    @property
    def disk(self) -> "LocalStore":
        return self

    @property
    def is_on_network(self) -> bool:
        from .mounts import is_network_folder  # only a loader asks

        return is_network_folder(self._base)

    def get(self, key: str) -> Blob:
        return self._read(key, 0, nbytes=None, etag=None)

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        check_span(key, offset, nbytes)
        return self._read(key, offset, nbytes, etag)

    def get_ranges(
        self, key: str, spans: Sequence[ByteRange], *, etag: str | None = None, **limits: Unpack[ReadLimits]
    ) -> list[Blob]:
        reads = plan_reads(spans, **limits)
        descriptor, status = self._open(key)
        try:
            current = self._check_pin(key, status, etag)
            data = [self._pread(key, descriptor, status.st_size, *read) for read in reads]
        finally:
            os.close(descriptor)
        return [Blob(piece, current) for piece in slice_reads(spans, reads, data)]

    def read_each(
        self, key: str, spans: Sequence[tuple[int, int]], *, etag: str | None = None
    ) -> tuple[list[bytes], str]:
        """Return the bytes of (offset, nbytes) spans in order, and the file's etag. Raises: as `get_ranges`."""
        runs = neighbours(spans)
        descriptor, status = self._open(key)
        try:
            current = self._check_pin(key, status, etag)
            count_request(len(runs))
            with _disk(self._base + key):
                data = [os.pread(descriptor, nbytes, offset) for offset, nbytes, _ in runs]
            for i, (offset, nbytes, _) in enumerate(runs):
                if len(data[i]) != nbytes:  # a long span, or the end of the file
                    data[i] = self._pread(key, descriptor, status.st_size, offset, nbytes)
        finally:
            os.close(descriptor)
        return cut(spans, runs, data), current

    def read_into(self, key: str, pieces: Sequence[Piece], *, etag: str | None = None) -> str:
        """Fill the buffers of pieces from one file, and return its etag. Pieces sorted by offset share reads.

        Raises: ObjectNotFound; Changed; Corrupt if the file ends too early; some buffers are then filled.
        """
        runs = merge_pieces(pieces)
        short = list[BufferedRange]()
        descriptor, status = self._open(key)
        try:
            current = self._check_pin(key, status, etag)
            count_request(len(runs))
            with _disk(self._base + key):
                for run in runs:
                    if os.preadv(descriptor, run.buffers, run.offset) != run.nbytes:
                        short.append(run)
            for run in short:  # longer than the kernel reads at once, or than the file
                offset = run.offset
                for buffer in run.buffers:
                    view = memoryview(buffer).cast("B")
                    view[:] = self._pread(key, descriptor, status.st_size, offset, len(view))
                    offset += len(view)
        finally:
            os.close(descriptor)
        return current

    def etag_of(self, key: str, etag: str | None = None) -> str:
        path = self._base + check_key(key)
        try:
            status = os.stat(path)
        except OSError as error:
            raise disk_error("read", path, error) from error
        return self._check_pin(key, status, etag)

    def open_same(self, key: str, etag: str) -> int | None:
        descriptor, status = self._open(key)
        if _etag(status) != etag:
            os.close(descriptor)
            return None
        return descriptor

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._write(key, lambda out: write_all(out, memoryview(data)), os.replace)

    def put_if_absent(self, key: str, data: bytes | memoryview) -> None:
        try:
            self._write(key, lambda out: write_all(out, memoryview(data)), _link)
        except AlreadyExists:
            # Perhaps this process's own: a network disk may lose the response to a successful link.
            if self._held(key) != data:
                raise
            # The writer that linked it may have failed or died before the name was durable.
            target = self._base + key
            try:
                fsync_directory(os.path.dirname(target))
            except OSError as error:
                raise disk_error("write", target, error) from error

    def put_file(self, key: str, path: str) -> None:
        upload_size(path, self._base + check_key(key))
        self._write(key, lambda out: _copy_all(out, path), os.replace)

    def open_new(self, key: str) -> NewFile:
        return NewFile(self._base + check_key(key))

    def head(self, key: str) -> ObjectInfo:
        descriptor, status = self._open(key)
        os.close(descriptor)
        return _info(key, status)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        for key, status in walk(self._base, check_prefix(prefix), start_after, log_refusals(self.url)):
            yield _info(key, status)

    def list_keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys of `list`. Looks at no file: that takes half the time of `list`."""
        for key, _ in walk_entries(self._base, check_prefix(prefix), None, log_refusals(self.url)):
            yield key

    def list_place(
        self, prefix: str, start_after: str, refuse: Refuse, *, seek: bool = False, outside: bool = False
    ) -> Iterator[ObjectInfo]:
        """List as `store.list_place` does; a walk always starts after `start_after`."""
        for key, status in walk(self._base, check_prefix(prefix), start_after, refuse, inside=not outside):
            yield _info(key, status)

    def list_with_unfinished(self, prefix: str = "") -> Iterator[ObjectInfo]:
        log = log_refusals(self.url)
        for key, status in walk(self._base, check_prefix(prefix), None, log, unfinished=True):
            yield _info(key, status)

    def list_in_place(self, prefix: str = "", top: str = "") -> Iterator[tuple[ObjectInfo, bool]]:
        """Yield the files of `list_with_unfinished`, except those behind a symbolic link below the folder `top`.

        Each such link is yielded with True.
        """
        log = log_refusals(self.url)
        for key, status in walk(
            self._base, check_prefix(prefix), None, log, unfinished=True, top=check_prefix(top)
        ):
            yield _info(key, status), stat.S_ISLNK(status.st_mode)

    def delete_in_place(self, paths: Iterable[str], top: str = "") -> None:
        """Delete paths from `list_in_place`, but no links; a missing path is not an error.

        Raises: InvalidStore for other paths, for links and for paths below links.
        """
        for path in paths:
            folder, _, name = path.rpartition("/")
            if path != name or not name.startswith(TEMPORARY):  # else it is at the top
                if name.startswith(TEMPORARY):  # no key, but its folder's path is one
                    check_key(folder)
                else:
                    check_key(path)
            _unlink_in_place(self._base + check_prefix(top), path.removeprefix(top))

    def delete_many(self, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                os.unlink(self._base + check_key(key))
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                continue
            except OSError as error:
                raise disk_error("delete", self._base + key, error) from error

    def copy(self, src: str, dst: str) -> None:
        check_key(dst)
        descriptor, _ = self._open(src)
        os.close(descriptor)
        self._write(dst, lambda out: _copy_all(out, self._base + src), os.replace)

    def open_stream(self, key: str) -> BinaryIO:
        descriptor, _ = self._open(key)  # an open file stays the same object even if its name is replaced
        return open(descriptor, "rb", buffering=2**20)

    def close(self) -> None:
        """Do nothing: no file stays open between calls."""

    def _open(self, key: str) -> tuple[int, os.stat_result]:
        """Return (descriptor of a key's file, which the caller closes; its status)."""
        path = self._base + check_key(key)
        try:
            descriptor = _open_file(path)
        except OSError as error:
            raise disk_error("read", path, error) from error
        status = os.fstat(descriptor)
        if status.st_mode & _TYPE_BITS != stat.S_IFREG:
            os.close(descriptor)
            raise ObjectNotFound(f"{path} is not a file; the store has no object at that key")
        return descriptor, status

    def _read(self, key: str, offset: int, nbytes: int | None, etag: str | None) -> Blob:
        descriptor, status = self._open(key)
        try:
            current = self._check_pin(key, status, etag)
            nbytes_read = status.st_size if nbytes is None else nbytes
            data = self._pread(key, descriptor, status.st_size, offset, nbytes_read)
            return Blob(data, current)
        finally:
            os.close(descriptor)

    def _pread(self, key: str, descriptor: int, file_bytes: int, offset: int, nbytes: int) -> bytes:
        """Read a range of an open file. file_bytes: its size when it was opened. Raises: Corrupt; as `disk_error`."""
        count_request()
        try:
            data = os.pread(descriptor, nbytes, offset)
            if len(data) < nbytes:  # the kernel stops at 2 GiB and at the end of the file
                data = _pread_rest(descriptor, data, offset, nbytes)
        except OSError as error:
            raise disk_error("read", self._base + key, error) from error
        # The second condition is for an empty range, which has its length wherever it lies.
        if len(data) != nbytes or offset > file_bytes:
            raise Corrupt(
                f"{self._base}{key}[{offset}:{offset + nbytes}]: the file ends at byte {file_bytes}",
                what="bytes",
                where=f"{self._base}{key}",
                given=file_bytes,
                accepted=offset + nbytes,
            )
        return data

    def _check_pin(self, key: str, status: os.stat_result, etag: str | None) -> str:
        current = _etag(status)
        if etag is not None and etag != current:
            raise Changed(
                f"{self._base}{key}: the file was replaced since it was first read (etag {etag}, now {current}); "
                "where only its times changed, start again; else restore it. Other programs must not write to a root",
                what="etag",
                where=f"{self._base}{key}",
                given=current,
                accepted=etag,
            )
        return current

    def _held(self, key: str) -> bytes | None:
        try:
            return self.get(key).data
        except ObjectNotFound:
            return None

    def _write(self, key: str, fill: Callable[[int], None], publish: Callable[[str, str], None]) -> None:
        new = self.open_new(key)
        try:
            new.fill(fill)
            new.finish(publish)
        finally:
            new.close()


@contextmanager
def _disk(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise disk_error("read", path, error) from error


def _url_path(url: str) -> str:
    if "://" not in url:
        return url
    parts = urlsplit(url.replace("?", "%3F").replace("#", "%23"))
    if parts.netloc not in ("", "localhost"):
        raise InvalidStore(
            f"{url!r} names the host {parts.netloc!r}; write file:///absolute/path, with three slashes"
        )
    return unquote(parts.path)


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    modified_us = status.st_mtime_ns // 1000
    return ObjectInfo(key=key, nbytes=status.st_size, etag=_etag(status), modified_us=modified_us)


def _etag(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns:x}-{status.st_ino:x}-{status.st_size:x}"


def _link(temporary: str, target: str) -> None:
    try:
        os.link(temporary, target)
    except FileExistsError as error:
        if os.path.isdir(target):
            raise disk_error("write", target, IsADirectoryError(error.errno, "is a directory")) from error
        message = f"{target}: the key already holds another object; choose another key"
        raise AlreadyExists(message, what="key", where=target, given="another object") from error
    except OSError as error:
        raise hard_link_error(target, error) from error


def _copy_all(descriptor: int, path: str) -> None:
    import shutil  # 3 ms that readers save

    with open(path, "rb") as source, open(descriptor, "wb", closefd=False) as out:
        shutil.copyfileobj(source, out, 2**20)


def _open_file(path: str) -> int:
    """Return a file's descriptor; opening a pipe does not block."""
    try:
        return os.open(path, _OPEN_FLAGS | os.O_NONBLOCK)
    except BlockingIOError:  # a file server holds a lease on the file for another machine
        return os.open(path, _OPEN_FLAGS)


def _pread_rest(descriptor: int, data: bytes, offset: int, nbytes: int) -> bytes:
    pieces = [data]
    count = len(data)
    while count < nbytes and pieces[-1]:
        pieces.append(os.pread(descriptor, nbytes - count, offset + count))
        count += len(pieces[-1])
    return b"".join(pieces)


def _unlink_in_place(base: str, path: str) -> None:
    """Delete a file below a folder, but nothing behind a link; a missing file is not an error."""
    # Opens each folder relative to its parent, so that it follows no link that appears meanwhile.
    *folders, name = path.split("/")
    try:
        descriptor = os.open(base, _FOLDER_FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise disk_error("delete", base + path, error) from error
    try:
        for depth, folder in enumerate(folders, 1):
            _check_no_link(descriptor, folder, base + "/".join(folders[:depth]), base + path)
            inner = os.open(folder, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        _check_no_link(descriptor, name, base + path, base + path)
        os.unlink(name, dir_fd=descriptor)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return
    except OSError as error:
        if error.errno == errno.ELOOP:  # became a link since it was checked
            raise _link_error(base + path, base + path) from error
        raise disk_error("delete", base + path, error) from error
    finally:
        os.close(descriptor)


def _check_no_link(descriptor: int, name: str, link: str, path: str) -> None:
    if stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
        raise _link_error(link, path)


def _link_error(link: str, path: str) -> InvalidStore:
    return InvalidStore(
        f"{path} was not deleted: {link} is a symbolic link, and what lies behind one may be another owner's; delete "
        "it there by hand, or mount that folder here in place of the link",
        what="symbolic link",
        where=path,
        given=link,
    )
