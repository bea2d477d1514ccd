"""Page-locked memory of the host, which a device reads without the processor: shared segments and one buffer.

A segment of the worker processes is page-locked once, when the first batch in it is copied, as long as all of them
together stay within a bound. It serves copies alone: `kept` takes everything that stays on the host out of it. Other
memory, and all memory where page-locking is refused, is first copied into the buffer. Locking each batch by itself was
rejected: it costs more than the copy.
"""

import logging
from bisect import bisect_right, insort
from collections.abc import Iterable
from typing import Any, Protocol

from ...cores import rank_memory_bytes
from ..workers.ring import segment_at
from ..workers.shared_memory import Segment
from .device_backend import is_tensor

logger = logging.getLogger(__name__)

SHARE = 8
"""Segments take one part in so many of the memory of this rank at most."""
ROOM = 5 / 4
"""Size of the buffer over that of the batch: the next one may be a little larger."""
ALIGN = 64
"""Bytes: a line of cache, and more than any dtype asks for."""


class Locking(Protocol):
    """The calls of a device for page-locked memory."""

    def register(self, address: int, nbytes: int) -> None:
        """Page-lock memory of this process. Raises: RuntimeError where the device refuses."""

    def unregister(self, address: int) -> None:
        """Undo `register`, before the memory is unmapped. Raises: RuntimeError."""

    def page_locked(self, nbytes: int) -> Any:
        """Return a tensor uint8 [nbytes] in new page-locked memory. Raises: RuntimeError where there is none."""


class PageLocked:
    """For the copy thread alone."""

    def __init__(self, device: Locking, bound_bytes: int | None = None) -> None:
        """bound_bytes: of all segments together; None: a share of the memory of this rank."""
        self._device = device
        self._bound = rank_memory_bytes() // SHARE if bound_bytes is None else bound_bytes
        self._segments: list[Segment] = []  # in the order of addresses
        self._may_register = self._may_stage = True
        self._buffer: Any = None
        self._used = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the page-locked segments."""
        return sum(segment.nbytes for segment in self._segments)

    def holds(self, address: int) -> bool:
        """Return whether the memory at an address is page-locked; a segment is locked at its first look."""
        if self._segment_at(address) is not None:
            return True
        if not self._may_register or (segment := segment_at(address)) is None:
            return False
        if self.nbytes + segment.nbytes > self._bound:
            return False
        try:
            self._device.register(segment.address, segment.nbytes)
        except RuntimeError as error:
            self._may_register = False
            logger.warning(
                "shared memory of worker processes cannot be page-locked (%s): batches are copied to the device "
                "through one buffer (said once)",
                error,
            )
            return False
        # The segment keeps its memory mapped until `unregister`, also where its pool has dropped it.
        insort(self._segments, segment, key=_address)
        return True

    def kept(self, value: Any) -> Any:
        """Return an array or tensor that stays on the host: a copy, if it lies in a page-locked segment."""
        if is_tensor(value):
            return value.clone() if self._segment_at(value.data_ptr()) is not None else value
        return value.copy() if self._segment_at(value.ctypes.data) is not None else value

    def begin(self, tensors: Iterable[Any]) -> None:
        """Begin a copy of tensors, when the one before has ended: the buffer is free, and large enough."""
        self._forget_dropped()
        self._used = 0
        needed = sum(_aligned(one.nbytes) for one in tensors if not self.holds(one.data_ptr()))
        if needed and self._may_stage and (self._buffer is None or len(self._buffer) < needed):
            self._buffer = None  # at most one is held
            try:
                self._buffer = self._device.page_locked(_aligned(int(needed * ROOM)))
            except RuntimeError as error:
                self._may_stage = False
                logger.warning(
                    "no page-locked buffer of %d bytes can be had (%s): batches are copied to the device from "
                    "pageable memory, which is slower (said once)",
                    needed,
                    error,
                )

    def source(self, tensor: Any) -> Any:
        """Return the tensor where the device is to read it: in its own memory or in the buffer."""
        if self._buffer is None or not self._may_stage or self._segment_at(tensor.data_ptr()) is not None:
            return tensor
        end = self._used + tensor.nbytes
        place = self._buffer[self._used : end].view(tensor.dtype).view(tensor.shape)
        self._used = _aligned(end)
        return place.copy_(tensor)

    def close(self) -> None:
        """Unlock everything. No copy may be on its way."""
        for segment in self._segments:
            self._unregister(segment)
        self._segments.clear()
        self._buffer, self._may_register, self._may_stage = None, False, False

    def _segment_at(self, address: int) -> Segment | None:
        place = bisect_right(self._segments, address, key=_address) - 1
        if place < 0:
            return None
        segment = self._segments[place]
        return segment if address < segment.address + segment.nbytes else None

    def _forget_dropped(self) -> None:
        """Unlock the segments that their pool has dropped: no batch will come in them."""
        dropped = [segment for segment in self._segments if segment.is_dropped]
        for segment in dropped:
            self._segments.remove(segment)
            self._unregister(segment)

    def _unregister(self, segment: Segment) -> None:
        try:
            self._device.unregister(segment.address)
        except RuntimeError as error:
            logger.warning("memory stays page-locked: %s", error)


def _address(segment: Segment) -> int:
    return segment.address


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN
