"""Copies of torch tensors: plain to any device, or on a CUDA stream out of page-locked memory.

Each segment of the worker processes is page-locked at its first copy, within a common bound. Other memory goes through
one page-locked buffer. Locking each batch by itself was rejected: it costs more than the copy.
"""

import logging
from abc import abstractmethod
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch

from ...cores import rank_memory_bytes
from ..batch.batch import Batch
from ..workers.batch_memory import MemorySegment, find_segment
from .device_backend import Copy, DeviceBackend, Finished, batch_tensors, is_tensor, rebuilt

logger = logging.getLogger(__name__)

SHARE = 8
"""Segments use at most 1 / SHARE of this rank's memory."""
ROOM = 5 / 4
"""Buffer size relative to the first batch: the next may be a little larger."""
ALIGN = 64
"""Alignment in bytes: a cache line, and more than any dtype needs."""


class Locking(Protocol):
    """A device's calls for page-locked memory."""

    def register(self, address: int, nbytes: int) -> None:
        """Page-lock memory of this process. Raises: RuntimeError if the device refuses."""

    def unregister(self, address: int) -> None:
        """Undo `register`, before the memory is unmapped."""

    def page_locked(self, nbytes: int) -> Any:
        """Return a tensor uint8 [nbytes] in new page-locked memory. Raises: RuntimeError if memory runs out."""


class PageLocked:
    """Page-locked segments and the buffer. Only the copy thread may use it."""

    def __init__(self, device: Locking, bound_bytes: int | None = None) -> None:
        self._device = device
        if bound_bytes is None:
            self._bound = rank_memory_bytes() // SHARE
        else:
            self._bound = bound_bytes
        self._segments: list[MemorySegment] = []  # in order of address
        self._may_register = self._may_stage = True
        self._buffer: Any = None
        self._used = 0

    @property
    def nbytes(self) -> int:
        return sum(segment.nbytes for segment in self._segments)

    def holds(self, address: int) -> bool:
        """Return whether the memory at an address is page-locked. The first call for a segment locks it."""
        if self._find_segment(address) is not None:
            return True
        if not self._may_register or (segment := find_segment(address)) is None:
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
        # The segment keeps its memory mapped until `unregister`, even if its pool has dropped it.
        insort(self._segments, segment, key=_address)
        return True

    def kept(self, value: Any) -> Any:
        """Return an array or tensor for the host: a copy if it is in a page-locked segment."""
        if is_tensor(value):
            if self._find_segment(value.data_ptr()) is not None:
                return value.clone()
            return value
        if self._find_segment(value.ctypes.data) is not None:
            return value.copy()
        return value

    def begin(self, tensors: Iterable[Any]) -> None:
        """Prepare to copy tensors once the previous copy has ended; make the buffer large enough."""
        self._forget_dropped()
        self._used = 0
        needed = sum(_align(one.nbytes) for one in tensors if not self.holds(one.data_ptr()))
        if needed and self._may_stage and (self._buffer is None or len(self._buffer) < needed):
            self._buffer = None  # frees the old buffer first: never two at once
            try:
                self._buffer = self._device.page_locked(_align(int(needed * ROOM)))
            except RuntimeError as error:
                self._may_stage = False
                logger.warning(
                    "a page-locked buffer of %d bytes is refused (%s): batches are copied to the device from "
                    "pageable memory, which is slower (said once)",
                    needed,
                    error,
                )

    def source(self, tensor: Any) -> Any:
        """Return the tensor where the device can read it: in its own memory or in the buffer."""
        if self._buffer is None or not self._may_stage or self._find_segment(tensor.data_ptr()) is not None:
            return tensor
        end = self._used + tensor.nbytes
        place = self._buffer[self._used : end].view(tensor.dtype).view(tensor.shape)
        self._used = _align(end)
        return place.copy_(tensor)

    def close(self) -> None:
        for segment in self._segments:
            self._unregister(segment)
        self._segments.clear()
        self._buffer = None
        self._may_register = False
        self._may_stage = False

    def _find_segment(self, address: int) -> MemorySegment | None:
        place = bisect_right(self._segments, address, key=_address) - 1
        if place < 0:
            return None
        segment = self._segments[place]
        if address < segment.address + segment.nbytes:
            return segment
        return None

    def _forget_dropped(self) -> None:
        dropped = [segment for segment in self._segments if segment.is_dropped]
        for segment in dropped:
            self._segments.remove(segment)
            self._unregister(segment)

    def _unregister(self, segment: MemorySegment) -> None:
        try:
            self._device.unregister(segment.address)
        except RuntimeError as error:
            logger.warning("memory stays page-locked: %s", error)


def _address(segment: MemorySegment) -> int:
    return segment.address


def _align(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


class PlainCopies(DeviceBackend):
    """Copies to a torch device whose streams are not used, such as "mps": each copy ends before the next."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def copy(self, batch: Batch) -> tuple[Batch, Copy]:
        moved = self.moved(batch)
        return moved, Finished(sum(tensor.nbytes for tensor in batch_tensors(moved)))

    def moved(self, batch: Batch) -> Batch:
        return batch.to(self.device)


class StreamedCopies(DeviceBackend):
    """Copies from page-locked memory, which run while the copy thread continues. Subclasses call the device."""

    def __init__(self, bound_bytes: int | None = None) -> None:
        self._locked = PageLocked(self, bound_bytes)

    @abstractmethod
    def register(self, address: int, nbytes: int) -> None: ...

    @abstractmethod
    def unregister(self, address: int) -> None: ...

    @abstractmethod
    def page_locked(self, nbytes: int) -> Any: ...

    @abstractmethod
    def start(self, tensor: Any) -> Any:
        """Return the tensor on the device. From page-locked memory its values arrive later."""

    @abstractmethod
    def started(self, tensors: list[Any]) -> Copy:
        """Return one copy that covers all tensors started since the last call. tensors: on the device."""

    def copy(self, batch: Batch) -> tuple[Batch, Copy]:
        """Return the batch with tensors on the device, and a copy that ends once all their values have arrived."""
        host_tensors = [tensor for tensor in batch_tensors(batch) if _has_memory(tensor)]
        self._locked.begin(host_tensors)
        on_device: list[Any] = []

        def move(tensor: Any) -> Any:
            if _has_memory(tensor):
                source = self._locked.source(tensor)
            else:
                source = tensor
            on_device.append(self.start(source))
            return on_device[-1]

        keep = None
        if self._locked.nbytes:  # what stays on the host must not keep the memory of a segment
            keep = self._locked.kept
        try:
            moved = rebuilt(batch, move, keep)
        except BaseException:
            self.started(on_device).wait()  # the copies already started still read the host's memory
            raise
        return moved, self.started(on_device)

    def close(self) -> None:
        self._locked.close()


def _has_memory(tensor: Any) -> bool:
    return bool(str(tensor.layout) == "torch.strided" and tensor.device.type == "cpu" and tensor.nbytes)


PORTABLE = 1
"""cudaHostRegisterPortable: page-locked for every context of the process."""


class CudaCopy:
    """A copy on the stream of `CudaCopies`."""

    def __init__(self, event: torch.cuda.Event, device: torch.device, tensors: list[torch.Tensor]) -> None:
        self._event = event
        self._device = device
        self._tensors = tensors
        self.nbytes = sum(tensor.nbytes for tensor in tensors)

    def wait(self) -> None:
        self._event.synchronize()

    def hand_over(self) -> None:
        """Make the caller's current stream, and the allocator for it, wait for the copy.

        Without `record_stream` a dropped tensor's memory would serve the next copy while queued kernels still read it.
        """
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._event)
        for tensor in self._tensors:
            tensor.record_stream(stream)
        self._tensors = []


class CudaCopies(StreamedCopies):
    """Copies to a CUDA device; torch for ROCm has the same calls."""

    def __init__(self, device: torch.device, bound_bytes: int | None = None) -> None:
        super().__init__(bound_bytes)
        self.device = device
        self._stream: torch.cuda.Stream | None = None

    @contextmanager
    def entered(self) -> Iterator[object]:
        """Select the device and a new stream, both for this thread only."""
        torch.cuda.set_device(self.device)
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            yield None

    def register(self, address: int, nbytes: int) -> None:
        self._check(_cudart().cudaHostRegister(address, nbytes, PORTABLE))

    def unregister(self, address: int) -> None:
        self._check(_cudart().cudaHostUnregister(address))

    def page_locked(self, nbytes: int) -> Any:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def start(self, tensor: Any) -> Any:
        """Start a copy on the stream from `entered`. For pageable memory the driver waits."""
        return tensor.to(self.device, non_blocking=True)

    def started(self, tensors: list[Any]) -> Copy:
        """Return the copy, with an event on which a thread sleeps instead of spinning."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return CudaCopy(event, self.device, tensors)

    def moved(self, batch: Any) -> Any:
        return batch.to(self.device)

    def _check(self, code: Any) -> None:
        if int(code) == 0:
            return
        # CUDA keeps the error for this thread's next kernel launch, which would raise it as its own.
        with suppress(RuntimeError):
            torch.ones(1, device=self.device)
        raise torch.cuda.CudaError(int(code))


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
