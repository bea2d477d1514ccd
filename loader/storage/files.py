"""Upload and download whole files."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from mmap import ACCESS_READ, mmap

from ..errors import AlreadyExists, Changed
from .disk.folder_files import disk_error, upload_size, write_all
from .shared.memory_budget import MemoryBudget
from .store import ObjectInfo, Store, is_local, is_there, unfinished_name
from .stream import PieceReader

READ_BYTES = 256 * 2**10
"""Bytes read at once, few enough to be in the processor's cache when hashed."""
HELD_BYTES = 64 * 2**20
"""Largest file that is uploaded from memory, in bytes."""
_room = MemoryBudget(2**30, idle=0)

Seen = Callable[[memoryview], object]
"""Called with every byte in order, in pieces that are valid during the call, such as a hash's `update`."""


def upload(store: Store, path: str | os.PathLike[str], key: str, *, seen: Seen | None = None) -> int:
    """Upload the file `path` to `key`, whole or not at all, and return its size.

    seen: receives the bytes. A file above 64 MiB is read once for `seen` and again for the upload. Uses the file's size
    in memory, up to 64 MiB, and up to 1 GiB for all uploads of a process.

    Raises: ObjectNotFound; InvalidStore for a directory; Changed if the file is written meanwhile (above 64 MiB: only
    with `seen`); as `put_file` and `seen`.
    """
    source, target = os.fspath(path), f"{store.url}/{key}"
    nbytes = upload_size(source, target)
    if seen is None:
        store.put_file(key, source)
    elif nbytes <= HELD_BYTES:
        put_held(store, key, source, nbytes, seen)
    else:
        with _room.memory(READ_BYTES) as lent:
            state = _read(source, target, nbytes, lent.view, seen)
        store.put_file(key, source)
        if _state(os.stat(source)) != state:
            raise _written_to(source, target)
    return nbytes


def create(store: Store, path: str | os.PathLike[str], key: str) -> None:
    """Upload the file `path` to `key`, which must be free or already hold these bytes.

    Above 64 MiB a bucket receives a multipart upload, which cannot be conditional, so the key is checked first.

    Raises: AlreadyExists if the key holds other bytes; as `put_if_absent` and `put_file`.
    """
    source, target = os.fspath(path), f"{store.url}/{key}"
    nbytes = upload_size(source, target)
    if nbytes <= HELD_BYTES:
        with _room.memory(nbytes) as lent:
            _read(source, target, nbytes, lent.view, None)
            store.put_if_absent(key, lent.view)
            lent.is_free = True
    elif is_local(store):
        with (
            open(source, "rb") as file,
            mmap(file.fileno(), 0, access=ACCESS_READ) as data,
            memoryview(data) as view,
        ):
            store.put_if_absent(key, view)
    elif is_there(store, key):
        raise AlreadyExists(f"{target}: the key already holds another object; choose another key")
    else:
        store.put_file(key, source)


def put_held(store: Store, key: str, path: str, nbytes: int, seen: Seen | None = None) -> None:
    """Upload a file of `nbytes` from memory, by one request."""
    with _room.memory(nbytes) as lent:
        _read(path, f"{store.url}/{key}", nbytes, lent.view, seen)
        store.put(key, lent.view)
        lent.is_free = True


def _read(path: str, target: str, nbytes: int, memory: memoryview, seen: Seen | None) -> tuple[int, ...]:
    done = 0
    with ExitStack() as stack:
        with _disk("read", path):
            file = stack.enter_context(open(path, "rb", buffering=0))
            state = _state(os.fstat(file.fileno()))
        while done < nbytes:
            at = done % len(memory)
            with _disk("read", path):
                count = file.readinto(memory[at : at + min(READ_BYTES, nbytes - done)])
            if not count:
                break
            if seen is not None:
                seen(memory[at : at + count].toreadonly())
            done += count
        with _disk("read", path):
            if done < nbytes or file.read(1) or _state(os.fstat(file.fileno())) != state:
                raise _written_to(path, target)
    return state


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ino


def _written_to(path: str, target: str) -> Changed:
    return Changed(
        f"{path} was written to while it was uploaded to {target}: wait for its writer, then upload again"
    )


def download(
    store: Store,
    key: str,
    path: str | os.PathLike[str],
    *,
    info: ObjectInfo | None = None,
    seen: Seen | None = None,
) -> ObjectInfo:
    """Download an object to the file `path`, whole or not at all, and return the object's info.

    info: a recent listing's entry, which saves a request; Changed if the object was replaced since. Requests have at
    most 4 MiB, three at once, in 12 MiB of memory. With more than four direct S3 downloads at once, each uses single
    requests of 64 MiB. Each request is retried within the store's budget.

    Raises: ObjectNotFound; Changed; as `get_range` and `seen`; disk errors as StoreError.
    """
    target = os.fspath(path)
    temporary = os.path.join(os.path.dirname(target), unfinished_name())
    pieces = PieceReader(store, key, info)
    try:
        with _disk("write", target):
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            while piece := pieces.next():
                if seen is not None:
                    seen(piece.toreadonly())
                with _disk("write", target):
                    write_all(descriptor, piece)
        finally:
            os.close(descriptor)
        with _disk("write", target):
            os.replace(temporary, target)
    finally:
        pieces.close()
        with suppress(FileNotFoundError):  # already renamed, or never created
            os.unlink(temporary)
    return pieces.info


@contextmanager
def _disk(verb: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise disk_error(verb, path, error) from error
