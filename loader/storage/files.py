"""Upload and download whole files, in memory that is limited and reused: allocating costs as much as hashing."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from threading import Condition

from ..errors import AlreadyExists, Changed
from .disk.folder_files import disk_error, upload_size, write_all
from .store import ObjectInfo, Store, is_local, is_there, temporary_name
from .stream import PieceReader
from .threads import begins_anew

KEPT_BYTES = 256 * 2**10
"""Blocks below this size, in bytes, are not kept for reuse."""
KEPT = 32


@dataclass(slots=True, kw_only=True)
class Lent:
    """Memory that is valid only within the context."""

    view: memoryview
    """View of the bytes, uninitialized."""
    is_free: bool = False
    """True once the user is done. While False, a request may still write, and the memory is not reused."""


class MemoryBudget:
    """Limits the bytes that all threads hold together; a larger request takes the whole budget. Thread-safe.

    idle: number of blocks kept while none is lent.
    """

    def __init__(self, nbytes: int, idle: int = KEPT) -> None:
        self._all = nbytes
        self._idle = idle
        self.begin_anew()
        begins_anew(self)

    def begin_anew(self) -> None:
        self._free_bytes = self._all
        self._lent = 0  # blocks in use
        self._changed = Condition()
        self._spare: list[bytearray] = []  # counted in the budget; most recently used last

    @contextmanager
    def for_bytes(self, nbytes: int) -> Iterator[None]:
        reserved = min(nbytes, self._all)
        with self._changed:
            while self._free_bytes < reserved:
                self._make_room()
            self._free_bytes -= reserved
        try:
            yield
        finally:
            self._give_back(reserved)

    @contextmanager
    def memory(self, nbytes: int, extra: int = 0) -> Iterator[Lent]:
        """Wait for `nbytes` of memory plus `extra` bytes of budget. Reused memory is at most twice as large."""
        with self._changed:
            while True:
                spare = self._fitting(nbytes)
                needed = extra
                if spare is None:
                    needed += nbytes  # a spare block is counted already
                reserved = min(needed, self._all)
                if self._free_bytes >= reserved:
                    break
                self._make_room()  # nothing is reserved meanwhile, so threads cannot deadlock
            self._free_bytes -= reserved
            self._lent += 1
            if spare is not None:
                self._spare = [one for one in self._spare if one is not spare]  # (bytes are not compared)
                reserved += len(spare)
        try:
            memory = bytearray(nbytes) if spare is None else spare
        except MemoryError:
            with self._changed:
                self._lent -= 1
            self._give_back(reserved)
            raise
        lent = Lent(view=memoryview(memory)[:nbytes])
        try:
            yield lent
        finally:
            # A block larger than the whole budget was not reserved whole, and is not kept.
            is_kept = len(memory) >= KEPT_BYTES and reserved == len(memory) + extra
            is_kept = is_kept and lent.is_free and _let_go(lent.view)
            with self._changed:
                self._lent -= 1
            if is_kept:
                self._give_back(reserved - len(memory), memory)
            else:
                self._give_back(reserved)

    def _fitting(self, nbytes: int) -> bytearray | None:
        fitting = [one for one in self._spare if nbytes <= len(one) <= 2 * nbytes]
        return min(fitting, key=len, default=None)

    def _make_room(self) -> None:
        if self._spare:
            self._free_bytes += len(self._spare.pop(0))
        else:
            self._changed.wait()

    def _give_back(self, nbytes: int, memory: bytearray | None = None) -> None:
        with self._changed:
            self._free_bytes += nbytes
            if memory is not None:
                self._spare.append(memory)
            while len(self._spare) > (KEPT if self._lent else self._idle):
                self._free_bytes += len(self._spare.pop(0))
            self._changed.notify_all()


def _let_go(view: memoryview) -> bool:
    """Release a view; return False if another object still refers to its memory."""
    try:
        view.release()
    except BufferError:
        return False
    return True


READ_BYTES = 256 * 2**10
"""Bytes read at once, few enough to be in the processor's cache when hashed."""
HELD_BYTES = 64 * 2**20
"""Largest file that is uploaded from memory, in bytes."""
_room = MemoryBudget(2**30, idle=0)

Seen = Callable[[memoryview], object]
"""Called with every byte in order, in pieces that are valid during the call, such as a hash's `update`."""


def upload(store: Store, path: str | os.PathLike[str], key: str, *, seen: Seen | None = None) -> int:
    """Upload the file `path` to `key`, whole or not at all, and return its size.

    seen: receives the bytes.

    Raises: ObjectNotFound; InvalidStore for a directory; Changed if the file is written meanwhile (above 64 MiB: only
    with `seen`); as `put_file` and `seen`.
    """
    source = os.fspath(path)
    target = f"{store.url}/{key}"
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
            raise _change_error(source, target)
    return nbytes


def create(store: Store, path: str | os.PathLike[str], key: str) -> None:
    """Upload the file `path` to `key`, which must be free or already hold these bytes.

    Above 64 MiB a bucket receives a multipart upload, which cannot be conditional, so the key is checked first.

    Raises: AlreadyExists if the key holds other bytes; as `put_if_absent` and `put_file`.
    """
    source = os.fspath(path)
    target = f"{store.url}/{key}"
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
                raise _change_error(path, target)
    return state


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ino


def _change_error(path: str, target: str) -> Changed:
    message = (
        f"{path} was written to while it was uploaded to {target}: wait for its writer, then upload again"
    )
    return Changed(message, what="file", where=target, given=path)


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
    most 4 MiB, three at once, in 12 MiB of memory.

    Raises: ObjectNotFound; Changed; as `get_range` and `seen`; disk errors as StoreError.
    """
    target = os.fspath(path)
    temporary = os.path.join(os.path.dirname(target), temporary_name())
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
