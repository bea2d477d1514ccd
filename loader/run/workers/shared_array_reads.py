"""Reads a startup message's arrays from the memory that all worker processes map (`shared_arrays`)."""

import mmap
import os
import pickle
from collections.abc import Iterator
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from ...errors import InvalidRuntime

HEAD = Struct("<4q")
HEAD_BYTES = HEAD.size
"""Bytes before the pickles, which are written last."""


class MemoryHead(NamedTuple):
    """Start of the memory."""

    offsets_at: int
    """Position of the table of offsets."""
    n_offsets: int
    """Number of arrays and buffers."""
    buffers_at: int
    """Position of the table of buffers."""
    n_buffers: int
    """Number of buffers that objects other than arrays wrote."""


class MappedFile:
    """A file that each process maps by its path."""

    def __init__(self, path: str, mode: str) -> None:
        self.path = path
        self.mode = mode
        self._bytes: Any = None

    def __reduce__(self) -> Any:
        return MappedFile, (self.path, self.mode)

    def bytes(self, end: int) -> Any:
        """Return the mapping, uint8. Raises: InvalidRuntime if the file ends before `end`; OSError."""
        if self._bytes is None:
            self._bytes = np.memmap(self.path, np.uint8, self.mode)  # type: ignore[call-overload]
        if len(self._bytes) < end:
            raise InvalidRuntime(
                f"{self.path} has {len(self._bytes)} bytes now, and the dataset's array ends at {end}: it was "
                "replaced or cut while the dataset had it open; open the dataset again",
                what="dataset's array",
                where=self.path,
                given=len(self._bytes),
                accepted=end,
            )
        return self._bytes


class ArrayUnpickler(pickle.Unpickler):
    """Reads the pickles of a memory whose arrays `OutsideArrays` wrote."""

    def __init__(self, memory: mmap.mmap) -> None:
        """memory: mapped privately; arrays over it keep it."""
        head = MemoryHead(*HEAD.unpack_from(memory))
        self._memory = memory
        offsets = np.frombuffer(memory, np.int64, head.n_offsets, head.offsets_at)
        # Its items are Python's integers, at a third of an array's time.
        self._offsets: Any = memoryview(offsets.data)
        pairs = np.frombuffer(memory, np.int64, 2 * head.n_buffers, head.buffers_at)
        numbers_and_sizes: list[list[int]] = pairs.reshape(-1, 2).tolist()
        super().__init__(memory, buffers=self._buffers(numbers_and_sizes))

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__ and name in _OF_MEMORY:
            own: Any = getattr(self, name)
            return own
        return super().find_class(module, name)

    def _buffers(self, numbers_and_sizes: list[list[int]]) -> Iterator[memoryview]:
        whole = memoryview(self._memory)
        for number, size in numbers_and_sizes:
            offset = self._offsets[number]
            yield whole[offset : offset + size]

    def outside_array(
        self,
        number: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        first: int,
        strides: tuple[int, ...] | None,
        is_writable: bool,
    ) -> np.ndarray:
        offset = self._offsets[number] + first
        array: np.ndarray = np.ndarray(shape, dtype, self._memory, offset, strides)
        if not is_writable:
            array.flags.writeable = False
        return array

    def outside_tensor(
        self,
        number: int,
        nbytes: int,
        dtype: Any,
        size: tuple[int, ...],
        stride: tuple[int, ...],
    ) -> Any:
        flat = self._flat_tensor(number, nbytes)
        return flat.view(dtype).as_strided(size, stride)

    def outside_storage(self, number: int, nbytes: int) -> Any:
        return self._flat_tensor(number, nbytes).untyped_storage()

    def _flat_tensor(self, number: int, nbytes: int) -> Any:
        import torch

        return torch.frombuffer(
            self._memory,
            dtype=torch.uint8,
            count=nbytes,
            offset=self._offsets[number],
        )


def outside_array(*arguments: Any) -> Any:
    """Stand for `ArrayUnpickler.outside_array` in a pickle."""
    raise NotImplementedError


def outside_tensor(*arguments: Any) -> Any:
    """Stand for `ArrayUnpickler.outside_tensor` in a pickle."""
    raise NotImplementedError


def outside_storage(*arguments: Any) -> Any:
    """Stand for `ArrayUnpickler.outside_storage` in a pickle."""
    raise NotImplementedError


_OF_MEMORY = frozenset({"outside_array", "outside_tensor", "outside_storage"})


def empty_storage() -> Any:
    import torch

    return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]


def make_typed_storage(untyped: Any, dtype: Any) -> Any:
    import torch

    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]


def as_memmap(array: np.ndarray) -> np.ndarray:
    mapped: np.ndarray = array.view(np.memmap)
    return mapped


def array_of_file(
    file: MappedFile,
    end: int,
    first: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    strides: tuple[int, ...],
    is_writable: bool,
    is_memmap: bool,
) -> np.ndarray:
    """Return an array over a mapped file.

    end: bytes of the file that the array needs. first: position of its first value. is_memmap: False for an ndarray.
    """
    whole = file.bytes(end)
    first_bytes = whole[first : first + dtype.itemsize]
    first_value = first_bytes.view(dtype)
    array: np.ndarray = np.lib.stride_tricks.as_strided(
        first_value,
        shape,
        strides,
        subok=True,
        writeable=is_writable,
    )
    if is_memmap:
        return array
    return np.asarray(array)


def map_private(fd: int) -> mmap.mmap:
    """Map a memory: a write changes this process's own copy of a page."""
    return mmap.mmap(fd, os.fstat(fd).st_size, access=mmap.ACCESS_COPY)
