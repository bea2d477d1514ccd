"""Anonymous shared memory: no name that could be left behind; it is gone with the last process that holds it."""

import ctypes
import mmap
import os
import weakref


class Segment:
    """`nbytes` of memory behind a file descriptor, mapped here. Arrays over it keep the mapping after `close`."""

    def __init__(self, number: int, fd: int, nbytes: int) -> None:
        """Map the memory, and take the descriptor over. number: its name for trainer and workers. Raises: OSError."""
        self.number, self.fd, self.nbytes = number, fd, nbytes
        self._close_fd = weakref.finalize(self, os.close, fd)
        self._close_fd.atexit = False
        self.memory = mmap.mmap(fd, nbytes)

    @property
    def address(self) -> int:
        """Address of the first byte in this process."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    @property
    def is_dropped(self) -> bool:
        """True after `close`: no batch will come in this memory any more."""
        return not self._close_fd.alive

    def close(self) -> None:
        """Close the descriptor: it will not be sent to anybody any more."""
        self._close_fd()


def new_segment(nbytes: int) -> Segment:
    """Return a segment of at least so many bytes, without a number yet. Raises: OSError."""
    whole = max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
    fd = os.memfd_create("penstock-batch", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, whole)
    except OSError:
        os.close(fd)
        raise
    return Segment(-1, fd, whole)
