"""A device on the CPU that reads the host's memory as late as the protocol allows, by its address, as CUDA may."""

import ctypes
import threading

import torch

from loader.run.device.torch_copies import StreamedCopies


class DelayedCopy:
    """Copies when somebody waits for it, or gets the batch."""

    def __init__(self, device, reads, nbytes):
        self._device, self._reads, self.nbytes = device, reads, nbytes
        self._lock = threading.Lock()

    def wait(self):
        self._do()

    def hand_over(self):
        self._device.handed_by.append(threading.current_thread())
        self._do()

    def _do(self):
        with self._lock:
            for address, tensor in self._reads:
                ctypes.memmove(tensor.data_ptr(), address, tensor.nbytes)
            self._reads = []


class DelayedCopies(StreamedCopies):
    """Memory is page-locked where a test lets it be; what is read from other memory is read at once."""

    def __init__(self, *, bound_bytes=2**40, registers=True, locks=True):
        super().__init__(bound_bytes)
        self.registers, self.locks = registers, locks
        self.locked = {}
        self.most_locked = 0
        self.buffers = []
        self.unlocked = 0
        self.pageable = 0
        self.handed_by, self.copied_by = [], set()
        self.closed = threading.Event()
        self._reads = []

    def register(self, address, nbytes):
        if not self.registers:
            raise RuntimeError("operation not permitted (800)")
        assert address not in self.locked
        ctypes.string_at(address + nbytes - 1, 1)  # it is mapped
        self.locked[address] = nbytes
        self.most_locked = max(self.most_locked, sum(self.locked.values()))

    def unregister(self, address):
        ctypes.string_at(address + self.locked.pop(address) - 1, 1)
        self.unlocked += 1

    def page_locked(self, nbytes):
        if not self.locks:
            raise RuntimeError("out of memory (2)")
        self.buffers.append(torch.zeros(nbytes, dtype=torch.uint8))
        return self.buffers[-1]

    def start(self, tensor):
        self.copied_by.add(threading.current_thread())
        address = tensor.data_ptr()
        if not self._is_locked(address) or not tensor.is_contiguous():
            self.pageable += 1
            return tensor.clone()
        out = torch.empty_like(tensor)
        self._reads.append((address, out))
        return out

    def started(self, tensors):
        reads, self._reads = self._reads, []
        return DelayedCopy(self, reads, sum(tensor.nbytes for tensor in tensors))

    def moved(self, batch):
        self.copied_by.add(threading.current_thread())
        return batch.to("cpu")

    def close(self):
        super().close()
        self.closed.set()

    def _is_locked(self, address):
        spans = [*self.locked.items(), *((one.data_ptr(), one.nbytes) for one in self.buffers)]
        return any(start <= address < start + nbytes for start, nbytes in spans)
