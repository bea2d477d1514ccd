"""Limit the memory of transfers, and reuse it: allocating memory costs as much as hashing it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition

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
    """Set to True by the user when done. While False, a request may still write, and the memory is not reused."""


class MemoryBudget:
    """Limits the bytes that all threads hold together; a larger request takes the whole budget. Thread-safe.

    idle: number of blocks kept while none is lent.
    """

    def __init__(self, nbytes: int, idle: int = KEPT) -> None:
        self._all, self._idle = nbytes, idle
        self.begin_anew()
        begins_anew(self)

    def begin_anew(self) -> None:
        self._free_bytes, self._lent = self._all, 0
        self._changed = Condition()
        self._spare: list[bytearray] = []  # counted in the budget; most recently used last

    @contextmanager
    def for_bytes(self, nbytes: int) -> Iterator[None]:
        """Wait until there is room for `nbytes`."""
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
                reserved = min((nbytes if spare is None else 0) + extra, self._all)
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
            is_kept = len(memory) >= KEPT_BYTES and reserved == len(memory) + extra
            is_kept = is_kept and lent.is_free and _let_go(lent.view)
            with self._changed:
                self._lent -= 1
            self._give_back(reserved - len(memory) if is_kept else reserved, memory if is_kept else None)

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
    """Release the view; return False if a client still reads through it."""
    try:
        view.release()
    except BufferError:
        return False
    return True
