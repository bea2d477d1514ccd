"""Arrays of a startup message, which lie in memory once for all worker processes.

    [head][pickles][arrays][offset of each array][number and size of each buffer]

A pickle copies an array into each process. This one holds the array's number, shape and strides, and the bytes lie
behind it. Each worker maps them privately: it shares their pages until it writes to one, as after a fork. Addresses
identify arrays, so views of one base are written once and share memory again in the worker.

A `np.memmap` is opened again by its path. Subclasses of arrays, and arrays of objects, stay in the pickle.
"""

import ctypes
import mmap
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import IO, Any, NamedTuple

import numpy as np

from ...errors import InvalidRuntime

LEAST_BYTES = 512
"""Fewest bytes of an array outside the pickle, unless it is a view: a smaller one costs less as a copy."""
SPARSE = 2
"""A view that spans more than SPARSE times its own bytes is copied, instead of all that it spans."""

_ALIGN = 64  # bytes: a cache line
_HEAD = Struct("<4q")
_PAGE = mmap.PAGESIZE
_CHUNK_BYTES = 2**30

Int64 = np.ndarray[Any, np.dtype[np.int64]]


class _Head(NamedTuple):
    """Start of the memory."""

    offsets_at: int
    """Position of the table of offsets."""
    n_offsets: int
    """Number of arrays and buffers."""
    buffers_at: int
    """Position of the table of buffers."""
    n_buffers: int
    """Number of buffers that objects other than arrays wrote."""


class Span(NamedTuple):
    """Memory from its lowest to its highest byte."""

    low: int
    high: int


class OutsideArrays:
    """Collects the arrays of one pickler, and writes them behind its pickles."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        # An array that was copied for the pickle lives until it is written; its address would be used again.
        self._alive: list[object] = []
        self._buffers: list[tuple[int, int]] = []  # (number, size in bytes) in the order of the pickle
        self._files: dict[int, Any] = {}  # address of a mapping -> its file

    def reduced(self, value: Any) -> Any:
        """Return how the pickle names an array or tensor; NotImplemented for any other value."""
        kind = type(value)
        if kind is np.ndarray or kind is np.memmap:
            return self._reduced_array(value)
        torch: Any = sys.modules.get("torch")
        # The attributes are missing while torch is being imported.
        if kind is getattr(torch, "Tensor", None):
            return self._reduced_tensor(value, torch)
        if kind is getattr(torch, "UntypedStorage", None):
            return self._reduced_storage(value)
        storage_module = getattr(torch, "storage", None)
        if kind is not getattr(storage_module, "TypedStorage", None):
            return NotImplemented
        # Parameters and subclasses of Tensor are pickled as storages.
        untyped = value._untyped_storage
        if untyped.device.type != "cpu":
            return NotImplemented
        return _typed_storage, (untyped, value.dtype)

    def take_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        """Keep the memory of another object, such as an Arrow table; return True if it stays in the pickle."""
        raw = buffer.raw()
        if raw.nbytes < LEAST_BYTES:
            return True
        address = np.frombuffer(raw, np.uint8).ctypes.data
        number = self._add(Span(address, address + raw.nbytes), buffer)
        self._buffers.append((number, raw.nbytes))
        return False

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, each byte once."""
        _, sizes, _ = _groups(self._spans)
        return int(sizes.sum())

    def write(self, file: IO[bytes]) -> None:
        """Write the arrays behind the pickles, then the tables, and the head last."""
        lows, sizes, group_of_span = _groups(self._spans)
        begin = _aligned(file.tell(), _PAGE)
        # [groups]: each begins where its address began within a cache line, so that views stay as aligned as they were
        lead = lows % _ALIGN
        lines = (lead + sizes + _ALIGN - 1) // _ALIGN
        room = lines * _ALIGN
        ends = begin + np.cumsum(room)
        places = ends - room + lead
        for low, size, place in zip(lows.tolist(), sizes.tolist(), places.tolist(), strict=True):
            _pad(file, place)
            _write_memory(file, low, size)
        addresses = np.array([span.low for span in self._spans], np.int64)
        inside_group = addresses - lows[group_of_span]
        offsets: Int64 = places[group_of_span] + inside_group
        offsets_at = _aligned(file.tell(), _ALIGN)
        _pad(file, offsets_at)
        file.write(offsets.tobytes())
        buffers_at = file.tell()
        buffers = np.array(self._buffers, np.int64)
        file.write(buffers.tobytes())
        head = _Head(
            offsets_at=offsets_at,
            n_offsets=len(offsets),
            buffers_at=buffers_at,
            n_buffers=len(self._buffers),
        )
        file.seek(0)
        file.write(_HEAD.pack(*head))

    def _add(self, span: Span, owner: object) -> int:
        number = len(self._spans)
        self._spans.append(span)
        self._alive.append(owner)
        return number

    def _reduced_array(self, array: np.ndarray) -> Any:
        if array.dtype.hasobject or not array.nbytes:
            return NotImplemented
        # A small view stays a view: a dataset may write by it.
        if array.nbytes < LEAST_BYTES and array.base is None:
            return NotImplemented
        mapped = self._reduced_file(array)
        if mapped is not None:
            return mapped
        if type(array) is np.memmap:
            # The pickle would copy it into each process.
            return _as_memmap, (np.asarray(array),)
        span = _span(array)
        if span.high - span.low > SPARSE * array.nbytes:
            array = array.copy(order="K")
            span = _span(array)
        number = self._add(span, array)
        first = array.ctypes.data - span.low  # above 0 for negative strides
        strides: tuple[int, ...] | None = None
        if not array.flags.c_contiguous:
            strides = array.strides
        arguments = (
            number,
            array.shape,
            array.dtype,
            first,
            strides,
            array.flags.writeable,
        )
        return _array, arguments

    def _reduced_tensor(self, tensor: Any, torch: Any) -> Any:
        if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            return NotImplemented
        if tensor.requires_grad or tensor.is_conj() or tensor.is_neg():
            return NotImplemented
        if not tensor.numel():
            return NotImplemented
        nbytes = _tensor_extent(tensor)
        if nbytes > SPARSE * tensor.nbytes:
            tensor = tensor.contiguous()
            nbytes = tensor.nbytes
        low = tensor.data_ptr()
        number = self._add(Span(low, low + nbytes), tensor)
        arguments = (
            number,
            nbytes,
            tensor.dtype,
            tuple(tensor.shape),
            tensor.stride(),
        )
        return _tensor, arguments

    def _reduced_storage(self, storage: Any) -> Any:
        if storage.device.type != "cpu":
            return NotImplemented
        nbytes = storage.nbytes()
        if not nbytes:
            return _empty_storage, ()
        low = storage.data_ptr()
        number = self._add(Span(low, low + nbytes), storage)
        return _storage, (number, nbytes)

    def _reduced_file(self, array: np.ndarray) -> Any:
        """Return how the pickle names an array over a mapped file; None if it is none, or if its file may differ."""
        mapped = _memmap_below(array)
        if mapped is None or mapped.mode == "c":  # a private mapping may hold changes that its file lacks
            return None
        path = Path(mapped.filename)
        if not path.is_file():
            return None
        mapping = np.frombuffer(mapped._mmap, np.uint8)
        start = mapping.ctypes.data
        file = self._files.get(start)
        if file is None:
            mode = "r" if mapped.mode == "r" else "r+"  # "w+" would empty the file
            file = _MappedFile(str(path), mode)
            self._files[start] = file
            self._alive.append(mapped)
        # A mapping begins at a whole page of the file.
        into_page = mapped.offset % mmap.ALLOCATIONGRANULARITY
        begin = mapped.offset - into_page
        first = begin + array.ctypes.data - start
        high = _span(array).high
        end = begin + high - start
        arguments = (
            file,
            end,
            first,
            array.shape,
            array.dtype,
            array.strides,
            array.flags.writeable,
            type(array) is np.memmap,
        )
        return _array_of_file, arguments


class _MappedFile:
    """A file that each process maps by its path."""

    def __init__(self, path: str, mode: str) -> None:
        self.path = path
        self.mode = mode
        self._bytes: Any = None

    def __reduce__(self) -> Any:
        return _MappedFile, (self.path, self.mode)

    def bytes(self, end: int) -> Any:
        """Return the mapping, uint8. Raises: InvalidRuntime if the file ends before `end`; OSError."""
        if self._bytes is None:
            self._bytes = np.memmap(self.path, np.uint8, self.mode)  # type: ignore[call-overload]
        if len(self._bytes) < end:
            raise InvalidRuntime(
                f"{self.path} has {len(self._bytes)} bytes now, and the dataset's array ends at {end}: it was "
                "replaced or cut while the dataset had it open; open the dataset again"
            )
        return self._bytes


class ArrayUnpickler(pickle.Unpickler):
    """Reads the pickles of a memory whose arrays `OutsideArrays` wrote."""

    def __init__(self, memory: mmap.mmap) -> None:
        """memory: mapped privately; arrays over it keep it."""
        head = _Head(*_HEAD.unpack_from(memory))
        self._memory = memory
        offsets = np.frombuffer(memory, np.int64, head.n_offsets, head.offsets_at)
        self._offsets: Any = memoryview(
            offsets.data
        )  # its items are Python's integers, at a third of the time
        pairs = np.frombuffer(memory, np.int64, 2 * head.n_buffers, head.buffers_at)
        numbers_and_sizes: list[list[int]] = pairs.reshape(-1, 2).tolist()
        super().__init__(memory, buffers=self._buffers(numbers_and_sizes))

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__ and name in _OF_MEMORY:
            return getattr(self, name)
        return super().find_class(module, name)

    def _buffers(self, numbers_and_sizes: list[list[int]]) -> Iterator[memoryview]:
        whole = memoryview(self._memory)
        for number, size in numbers_and_sizes:
            offset = self._offsets[number]
            yield whole[offset : offset + size]

    def _array(
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

    def _tensor(
        self,
        number: int,
        nbytes: int,
        dtype: Any,
        size: tuple[int, ...],
        stride: tuple[int, ...],
    ) -> Any:
        flat = self._flat_tensor(number, nbytes)
        return flat.view(dtype).as_strided(size, stride)

    def _storage(self, number: int, nbytes: int) -> Any:
        return self._flat_tensor(number, nbytes).untyped_storage()

    def _flat_tensor(self, number: int, nbytes: int) -> Any:
        import torch

        return torch.frombuffer(
            self._memory,
            dtype=torch.uint8,
            count=nbytes,
            offset=self._offsets[number],
        )


def _array(*arguments: Any) -> Any:
    """Name of `ArrayUnpickler._array` in a pickle."""
    raise NotImplementedError


def _tensor(*arguments: Any) -> Any:
    """Name of `ArrayUnpickler._tensor` in a pickle."""
    raise NotImplementedError


def _storage(*arguments: Any) -> Any:
    """Name of `ArrayUnpickler._storage` in a pickle."""
    raise NotImplementedError


_OF_MEMORY = frozenset({"_array", "_tensor", "_storage"})


def _empty_storage() -> Any:
    import torch

    return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]


def _typed_storage(untyped: Any, dtype: Any) -> Any:
    import torch

    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]


def _as_memmap(array: np.ndarray) -> np.ndarray:
    return array.view(np.memmap)


def _array_of_file(
    file: _MappedFile,
    end: int,
    first: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    strides: tuple[int, ...],
    is_writable: bool,
    is_memmap: bool,
) -> np.ndarray:
    whole = file.bytes(end)
    one_value = whole[first : first + dtype.itemsize].view(dtype)
    array: np.ndarray = np.lib.stride_tricks.as_strided(
        one_value, shape, strides, subok=True, writeable=is_writable
    )
    if is_memmap:
        return array
    return np.asarray(array)


def _memmap_below(array: np.ndarray) -> Any:
    """Return the `np.memmap` of a file that an array lies in, or None."""
    mapped: Any = None
    base: Any = array
    while isinstance(base, np.ndarray):
        if type(base) is np.memmap and base.filename is not None:
            mapped = base
        base = base.base
    if mapped is None or base is not mapped._mmap:
        return None
    return mapped


def _span(array: np.ndarray) -> Span:
    low = array.ctypes.data
    high = low + array.itemsize
    for n, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += (n - 1) * stride
        else:
            high += (n - 1) * stride
    return Span(low, high)


def _tensor_extent(tensor: Any) -> int:
    """Return the bytes from a tensor's first to its last value."""
    last = 0
    for n, stride in zip(tensor.shape, tensor.stride(), strict=True):
        last += (n - 1) * stride
    nbytes: int = (last + 1) * tensor.element_size()
    return nbytes


def _groups(spans: list[Span]) -> tuple[Int64, Int64, Int64]:
    """Return (lowest address [groups], bytes [groups], group [spans]) of spans of which some overlap."""
    if not spans:
        none = np.empty(0, np.int64)
        return none, none, none
    low_high = np.array(spans, np.int64)  # [n, 2]
    order = np.argsort(low_high[:, 0], kind="stable")
    lows = low_high[order, 0]
    # [n]: highest byte of this span and all before
    highs = np.maximum.accumulate(low_high[order, 1])
    is_first = np.ones(len(lows), bool)
    is_first[1:] = lows[1:] >= highs[:-1]
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(lows)) - 1
    group_lows = lows[firsts]
    sizes = highs[lasts] - group_lows
    group_of_span = np.empty(len(lows), np.int64)
    group_of_span[order] = np.cumsum(is_first) - 1
    return group_lows, sizes, group_of_span


def _aligned(position: int, to: int) -> int:
    return (position + to - 1) // to * to


def _pad(file: IO[bytes], position: int) -> None:
    file.write(bytes(position - file.tell()))


def _write_memory(file: IO[bytes], address: int, nbytes: int) -> None:
    for begin in range(0, nbytes, _CHUNK_BYTES):
        size = min(_CHUNK_BYTES, nbytes - begin)
        chunk = (ctypes.c_char * size).from_address(address + begin)
        file.write(chunk)


HEAD_BYTES = _HEAD.size
"""Bytes before the pickles, which `OutsideArrays.write` fills last."""


def mapped_privately(fd: int) -> mmap.mmap:
    """Map a memory: a write changes this process's own copy of a page."""
    return mmap.mmap(fd, os.fstat(fd).st_size, access=mmap.ACCESS_COPY)
