"""Copies of torch's tensors: plain ones to any device, and ones on a stream out of page-locked memory."""

from abc import abstractmethod
from typing import Any

from ..batch.batch import Batch
from .device_backend import Copy, DeviceBackend, Finished, rebuilt, tensors_in
from .page_locked import PageLocked


class PlainCopies(DeviceBackend):
    """Copies to a device of torch whose streams this package does not use, such as "mps": each ends before the next."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def copy(self, batch: Batch) -> tuple[Batch, Copy]:
        """Return the batch on the device."""
        moved = self.moved(batch)
        return moved, Finished(sum(tensor.nbytes for tensor in tensors_in(moved)))

    def moved(self, batch: Batch) -> Batch:
        """Return the batch on the device."""
        return batch.to(self.device)


class StreamedCopies(DeviceBackend):
    """Copies that go on while the copy thread does not wait: of page-locked memory, on a stream of their own.

    The methods without a body are the device's. `register`, `unregister` and `page_locked` are those of `Locking`.
    """

    def __init__(self, bound_bytes: int | None = None) -> None:
        """bound_bytes: of page-locked segments; None: a share of the memory of this rank."""
        self._locked = PageLocked(self, bound_bytes)

    @abstractmethod
    def register(self, address: int, nbytes: int) -> None: ...

    @abstractmethod
    def unregister(self, address: int) -> None: ...

    @abstractmethod
    def page_locked(self, nbytes: int) -> Any: ...

    @abstractmethod
    def start(self, tensor: Any) -> Any:
        """Return the tensor on the device. Its values come later, if the tensor lies in page-locked memory."""

    @abstractmethod
    def started(self, tensors: list[Any]) -> Copy:
        """Return the copy of all tensors since the last call. tensors: on the device."""

    def copy(self, batch: Batch) -> tuple[Batch, Copy]:
        """Begin a copy, as `DeviceBackend.copy`."""
        plain = [tensor for tensor in tensors_in(batch) if _has_memory(tensor)]
        self._locked.begin(plain)
        on_device: list[Any] = []

        def move(tensor: Any) -> Any:
            source = self._locked.source(tensor) if _has_memory(tensor) else tensor
            on_device.append(self.start(source))
            return on_device[-1]

        try:
            moved = rebuilt(batch, move, self._locked.kept if self._locked.nbytes else None)
        except BaseException:
            self.started(on_device).wait()  # the copies that have begun still read the host's memory
            raise
        return moved, self.started(on_device)

    def close(self) -> None:
        """Unlock all memory."""
        self._locked.close()


def _has_memory(tensor: Any) -> bool:
    """Return whether a tensor lies in memory of the host, value after value; sparse ones do not."""
    return bool(str(tensor.layout) == "torch.strided" and tensor.device.type == "cpu" and tensor.nbytes)
