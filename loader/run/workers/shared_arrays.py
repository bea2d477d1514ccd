"""Arrays of a startup message, which lie in memory once for all worker processes.

    [head][pickles][arrays][offset of each array][number and size of each buffer]

A pickle copies an array into each process. This one holds the array's number, shape and strides, and the bytes lie
after it. Each worker maps them privately: it shares their pages until it writes to one, as after a fork. Addresses
identify arrays, so views of one base are written once and share memory again in the worker.

A `np.memmap` is opened again by its path. Subclasses of arrays, and arrays of objects, stay in the pickle.
"""

import ctypes
import mmap
import pickle
import sys
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from .shared_array_reads import (
    HEAD,
    MappedFile,
    MemoryHead,
    array_of_file,
    as_memmap,
    empty_storage,
    make_typed_storage,
    outside_array,
    outside_storage,
    outside_tensor,
)

LEAST_BYTES = 512
"""Fewest bytes of an array outside the pickle, unless it is a view: a smaller one costs less as a copy."""
SPARSE = 2
"""A view that spans more than SPARSE times its own bytes is copied, instead of all that it spans."""

_ALIGN = 64  # bytes: a cache line
_PAGE = mmap.PAGESIZE
_CHUNK_BYTES = 2**30

Int64 = np.ndarray[Any, np.dtype[np.int64]]


class AddressRange(NamedTuple):
    """Memory from its lowest to its highest byte."""

    low: int
    high: int


class OutsideArrays:
    """Collects the arrays of one pickler, and writes them after its pickles."""

    def __init__(self) -> None:
        self._spans: list[AddressRange] = []
        # An array that was copied for the pickle lives until it is written; its address would be used again.
        self._alive: list[object] = []
        self._buffers: list[tuple[int, int]] = []  # (number, size in bytes) in the order of the pickle
        self._files: dict[int, Any] = {}  # address of a mapping -> its file

    def reduce_value(self, value: Any) -> Any:
        """Return how the pickle names an array or tensor; NotImplemented for any other value."""
        kind = type(value)
        if kind is np.ndarray or kind is np.memmap:
            return self._reduce_array(value)
        torch: Any = sys.modules.get("torch")
        # The attributes are missing while torch is being imported.
        if kind is getattr(torch, "Tensor", None):
            return self._reduce_tensor(value, torch)
        if kind is getattr(torch, "UntypedStorage", None):
            return self._reduce_storage(value)
        storage_module = getattr(torch, "storage", None)
        if kind is not getattr(storage_module, "TypedStorage", None):
            return NotImplemented
        # Parameters and subclasses of Tensor are pickled as storages.
        untyped = value._untyped_storage
        if untyped.device.type != "cpu":
            return NotImplemented
        return make_typed_storage, (untyped, value.dtype)

    def take_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        """Keep the memory of another object, such as an Arrow table; return True if it stays in the pickle."""
        raw = buffer.raw()
        if raw.nbytes < LEAST_BYTES:
            return True
        low = np.frombuffer(raw, np.uint8).ctypes.data
        high = low + raw.nbytes
        number = self._add(low, high, buffer)
        self._buffers.append((number, raw.nbytes))
        return False

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, each byte once."""
        _, sizes, _ = _groups(self._spans)
        return int(sizes.sum())

    def write(self, file: IO[bytes]) -> None:
        """Write the arrays after the pickles, then the tables, and the head last."""
        lows, sizes, group_of_span = _groups(self._spans)
        end_of_pickles = file.tell()
        begin = _align(end_of_pickles, _PAGE)
        # [groups]: each begins where its address began within a cache line, so that views stay as aligned as they were
        lead = lows % _ALIGN
        lines = (lead + sizes + _ALIGN - 1) // _ALIGN
        room = lines * _ALIGN
        ends = begin + np.cumsum(room)
        places = ends - room + lead
        groups = zip(
            lows.tolist(),
            sizes.tolist(),
            places.tolist(),
            strict=True,
        )
        for low, size, place in groups:
            _pad(file, place)
            _write_memory(file, low, size)
        listed = [span.low for span in self._spans]
        addresses = np.array(listed, np.int64)
        inside_group = addresses - lows[group_of_span]
        offsets: Int64 = places[group_of_span] + inside_group
        end_of_arrays = file.tell()
        offsets_at = _align(end_of_arrays, _ALIGN)
        _pad(file, offsets_at)
        file.write(offsets.tobytes())
        buffers_at = file.tell()
        buffers = np.array(self._buffers, np.int64)
        file.write(buffers.tobytes())
        head = MemoryHead(
            offsets_at=offsets_at,
            n_offsets=len(offsets),
            buffers_at=buffers_at,
            n_buffers=len(self._buffers),
        )
        packed = HEAD.pack(*head)
        file.seek(0)
        file.write(packed)

    def _add(
        self,
        low: int,
        high: int,
        owner: object,
    ) -> int:
        """Keep a range of memory and what owns it; return its number."""
        number = len(self._spans)
        span = AddressRange(low, high)
        self._spans.append(span)
        self._alive.append(owner)
        return number

    def _reduce_array(self, array: np.ndarray) -> Any:
        if array.dtype.hasobject or not array.nbytes:
            return NotImplemented
        # A small view stays a view: a dataset may write by it.
        if array.nbytes < LEAST_BYTES and array.base is None:
            return NotImplemented
        mapped = self._reduce_file(array)
        if mapped is not None:
            return mapped
        if type(array) is np.memmap:
            # numpy's pickle would copy it into each process.
            plain = np.asarray(array)
            return as_memmap, (plain,)
        span = _span(array)
        if span.high - span.low > SPARSE * array.nbytes:
            array = array.copy(order="K")
            span = _span(array)
        number = self._add(span.low, span.high, array)
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
        return outside_array, arguments

    def _reduce_tensor(self, tensor: Any, torch: Any) -> Any:
        if tensor.device.type != "cpu":
            return NotImplemented
        if tensor.layout is not torch.strided or tensor.is_quantized:
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
        high = low + nbytes
        number = self._add(low, high, tensor)
        arguments = (
            number,
            nbytes,
            tensor.dtype,
            tuple(tensor.shape),
            tensor.stride(),
        )
        return outside_tensor, arguments

    def _reduce_storage(self, storage: Any) -> Any:
        if storage.device.type != "cpu":
            return NotImplemented
        nbytes = storage.nbytes()
        if not nbytes:
            return empty_storage, ()
        low = storage.data_ptr()
        high = low + nbytes
        number = self._add(low, high, storage)
        return outside_storage, (number, nbytes)

    def _reduce_file(self, array: np.ndarray) -> Any:
        """Return how the pickle names an array over a mapped file; None if it is none, or if its file may differ."""
        mapped = _base_memmap(array)
        if mapped is None or mapped.mode == "c":  # a private mapping may hold changes that its file lacks
            return None
        path = Path(mapped.filename)
        if not path.is_file():
            return None
        mapping = np.frombuffer(mapped._mmap, np.uint8)
        start = mapping.ctypes.data
        file = self._files.get(start)
        if file is None:
            mode = "r"
            if mapped.mode != "r":
                mode = "r+"  # "w+" would empty the file
            file = MappedFile(str(path), mode)
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
        return array_of_file, arguments


def _base_memmap(array: np.ndarray) -> Any:
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


def _span(array: np.ndarray) -> AddressRange:
    low = array.ctypes.data
    high = low + array.itemsize
    for n, stride in zip(array.shape, array.strides, strict=True):
        extent = (n - 1) * stride
        if extent < 0:
            low += extent
        else:
            high += extent
    return AddressRange(low, high)


def _tensor_extent(tensor: Any) -> int:
    """Return the bytes from a tensor's first to its last value."""
    last = 0
    for n, stride in zip(tensor.shape, tensor.stride(), strict=True):
        last += (n - 1) * stride
    nbytes: int = (last + 1) * tensor.element_size()
    return nbytes


def _groups(spans: list[AddressRange]) -> tuple[Int64, Int64, Int64]:
    """Return (lowest address [groups], bytes [groups], group [spans]) of spans of which some overlap."""
    if not spans:
        none = np.empty(0, np.int64)
        return none, none, none
    n = len(spans)
    low_high = np.array(spans, np.int64)  # [n, 2]
    low, high = low_high.T
    order = np.argsort(low, kind="stable")
    lows = low[order]
    highs = high[order]
    # [n]: highest byte of this span and all before
    tops = np.maximum.accumulate(highs)
    is_first = np.ones(n, bool)
    is_first[1:] = lows[1:] >= tops[:-1]
    firsts = np.flatnonzero(is_first)
    ends = np.append(firsts[1:], n)
    lasts = ends - 1
    group_lows = lows[firsts]
    sizes = tops[lasts] - group_lows
    group_of_span = np.empty(n, np.int64)
    group_of_span[order] = np.cumsum(is_first) - 1
    return group_lows, sizes, group_of_span


def _align(position: int, to: int) -> int:
    return (position + to - 1) // to * to


def _pad(file: IO[bytes], position: int) -> None:
    missing = position - file.tell()
    file.write(bytes(missing))


def _write_memory(file: IO[bytes], address: int, nbytes: int) -> None:
    for begin in range(0, nbytes, _CHUNK_BYTES):
        size = min(_CHUNK_BYTES, nbytes - begin)
        chunk = (ctypes.c_char * size).from_address(address + begin)
        file.write(chunk)
