"""First step of a dataset's iterations, shared with the worker processes of a DataLoader."""

import fcntl
import os
import struct
import weakref
from collections.abc import Callable
from multiprocessing.context import get_spawning_popen
from tempfile import mkstemp

_STEP = struct.Struct("<q")  # the whole memory: one int64


class SharedStart:
    """A step in memory that workers share with the process of the DataLoader, which may only move it before they begin.

    Each worker that begins locks the memory until it ends. The lock belongs to its process, so a killed worker leaves
    none behind. A forked worker inherits the memory, a spawned one opens it by the descriptor of its parent.
    """

    def __init__(self, step: int = 0) -> None:
        self._own(_new_memory())
        self._put(step)

    @property
    def step(self) -> int:
        """The step, without a lock."""
        return int(_STEP.unpack(os.pread(self._file, _STEP.size, 0))[0])

    def move(self, step: int) -> bool:
        """Set the step and return True; return False, without effect, if a worker process has begun and lives."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        try:
            self._put(step)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
        return True

    def begin(self) -> int:
        """Return the step, which can no longer move while this process lives."""
        fcntl.lockf(self._file, fcntl.LOCK_SH)
        return self.step

    def _own(self, file: int) -> None:
        """Take a descriptor, and close it with this object."""
        self._file = file
        weakref.finalize(self, os.close, file)

    def _put(self, step: int) -> None:
        os.pwrite(self._file, _STEP.pack(step), 0)

    def __reduce__(self) -> tuple[Callable[..., "SharedStart"], tuple[int, ...]]:
        if get_spawning_popen() is None:
            return SharedStart, (self.step,)  # a copy of its own
        return _open_parent_memory, (self.step, os.getpid(), self._file)


def _new_memory() -> int:
    """Return a descriptor of an empty file without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("penstock-start")
    file, path = mkstemp(prefix="penstock-start-")
    os.unlink(path)
    return file


def _open_parent_memory(step: int, parent: int, descriptor: int) -> SharedStart:
    """Return a start over a parent process's memory, for a spawned worker; with a memory of its own if that is gone."""
    try:
        file = os.open(f"/proc/{parent}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return SharedStart(step)  # the parent has ended, or this is not Linux
    start = SharedStart.__new__(SharedStart)  # without __init__, which would make a new memory
    start._own(file)
    return start
