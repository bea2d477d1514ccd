"""Every call to CUDA: a stream for copies, its events, and page-locked memory. ROCm's torch has the same calls."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from .device_backend import Copy
from .torch_copies import StreamedCopies

PORTABLE = 1
"""cudaHostRegisterPortable: page-locked for every context of the process."""


class CudaCopy:
    """A copy on the stream of `CudaCopies`."""

    def __init__(self, event: torch.cuda.Event, device: torch.device, tensors: list[torch.Tensor]) -> None:
        """event: recorded on the stream after the copy of `tensors`, which lie on the device."""
        self._event, self._device, self._tensors = event, device, tensors
        self.nbytes = sum(tensor.nbytes for tensor in tensors)

    def wait(self) -> None:
        """Block until the copy has ended; releases the interpreter's lock."""
        self._event.synchronize()

    def hand_over(self) -> None:
        """Let the caller's current stream wait for the copy, and the allocator for that stream.

        Without `record_stream`, memory of a tensor that the training has dropped would serve the next copy while
        kernels that read it are still queued.
        """
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._event)
        for tensor in self._tensors:
            tensor.record_stream(stream)
        self._tensors = []


class CudaCopies(StreamedCopies):
    """Copies to a CUDA device."""

    def __init__(self, device: torch.device, bound_bytes: int | None = None) -> None:
        """device: with its index."""
        super().__init__(bound_bytes)
        self.device = device
        self._stream: torch.cuda.Stream | None = None

    @contextmanager
    def entered(self) -> Iterator[object]:
        """Choose the device and a new stream for this thread; both choices are a thread's own."""
        torch.cuda.set_device(self.device)
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            yield None

    def register(self, address: int, nbytes: int) -> None:
        """Page-lock memory. Raises: RuntimeError (torch.cuda.CudaError) where the driver refuses."""
        self._check(_cudart().cudaHostRegister(address, nbytes, PORTABLE))

    def unregister(self, address: int) -> None:
        """Unlock memory that is still mapped. Raises: RuntimeError (torch.cuda.CudaError)."""
        self._check(_cudart().cudaHostUnregister(address))

    def page_locked(self, nbytes: int) -> Any:
        """Return a tensor in page-locked memory of torch's own allocator. Raises: RuntimeError."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def start(self, tensor: Any) -> Any:
        """Begin a copy on the stream of `entered`. The driver itself waits where the memory is pageable."""
        return tensor.to(self.device, non_blocking=True)

    def started(self, tensors: list[Any]) -> Copy:
        """Return the copy, with an event for which a thread sleeps instead of spinning."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return CudaCopy(event, self.device, tensors)

    def moved(self, batch: Any) -> Any:
        """Return the batch on the device, on the caller's current stream."""
        return batch.to(self.device)

    def _check(self, code: Any) -> None:
        """Raise torch.cuda.CudaError unless a call succeeded."""
        if int(code) == 0:
            return
        # CUDA keeps the error for this thread's next launch of a kernel, which would raise it as its own.
        with suppress(RuntimeError):
            torch.ones(1, device=self.device)
        raise torch.cuda.CudaError(int(code))


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
