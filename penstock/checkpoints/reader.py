"""A StorageReader for `torch.distributed.checkpoint` that reads and verifies the byte ranges that a rank needs."""

import io
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from loader.errors import (
    CheckpointMismatch,
    Corrupt,
    CorruptCheckpoint,
    InvalidField,
    InvalidRuntime,
    ObjectNotFound,
)
from loader.storage import ByteRange, RangeReader, Store
from loader.storage.store import as_disk

from . import marker
from .dtypes import DTYPES, bytes_of, check_torch, fill, is_plain
from .marker import Checkpoint, StoredObject
from .parts import BLOCK_BYTES, ITEM_BYTES, REQUEST_BYTES, Index, StoredPiece, checksums, extent, strides
from .ranks import map_in_order
from .writer import check_value

_SHOWN = 5
_GAP_BYTES = 64 * 2**10


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadBlock:
    """first, count: range of the piece's elements that covers the item's box."""

    item: ReadItem
    piece: StoredPiece
    dtype: str
    first: int
    count: int

    @property
    def span(self) -> ByteRange:
        width = ITEM_BYTES[self.dtype]
        # Rounded to whole blocks, since a checksum covers a block.
        low = self.first * width // BLOCK_BYTES * BLOCK_BYTES
        high = -(-(self.first + self.count) * width // BLOCK_BYTES) * BLOCK_BYTES
        return ByteRange(self.piece.offset + low, min(high, self.piece.nbytes) - low)


class _ReadTarget(NamedTuple):
    """A block and its tensor, None for a value. memory: the tensor's, if read straight into it."""

    block: _ReadBlock
    target: torch.Tensor | None
    memory: memoryview | None


class CheckpointReader(StorageReader):
    """Loads a checkpoint on any number of ranks: `torch.distributed.checkpoint.load(state, storage_reader=reader)`.

    Reads only the blocks that this rank needs, a few parts at a time. Values other than tensors must load with
    torch.load's weights_only=True.

    partial: True ignores stored entries that the state lacks. The default raises CheckpointMismatch: an optimizer could
    lose its moments silently.

    reads: the store through a cache, for the parts. None reads them from the store.

    Raises: MissingDependency if torch's weights_only=True is not safe.
    """

    def __init__(
        self,
        store: Store,
        checkpoint: Checkpoint,
        index: Index,
        *,
        partial: bool = False,
        reads: RangeReader | None = None,
    ) -> None:
        super().__init__()
        check_torch()
        self._reads = store if reads is None else reads
        self._store = store
        self._checkpoint = checkpoint
        self._index = index
        self._partial = partial
        self._pieces = {
            (name, piece.offsets): piece for name, tensor in index.tensors.items() for piece in tensor.pieces
        }

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Raise InvalidRuntime if torch's checkpoint id names another step."""
        if checkpoint_id is not None and str(checkpoint_id) != str(self._checkpoint.step):
            raise InvalidRuntime(
                f"checkpoint_id = {checkpoint_id!r}; this reader loads step {self._checkpoint.step}: leave it out"
            )

    def read_metadata(self, *args: Any, **kwargs: Any) -> dcp.Metadata:
        """Return torch's metadata, with one chunk per piece."""
        entries: dict[str, dcp.STORAGE_TYPES] = {
            name: dcp.BytesStorageMetadata() for name in self._index.values
        }
        for name, tensor in self._index.tensors.items():
            entries[name] = dcp.TensorStorageMetadata(
                properties=dcp.TensorProperties(dtype=DTYPES[tensor.dtype]),
                size=torch.Size(tensor.sizes),
                chunks=[
                    dcp.ChunkStorageMetadata(offsets=torch.Size(one.offsets), sizes=torch.Size(one.sizes))
                    for one in tensor.pieces
                ],
            )
        return dcp.Metadata(state_dict_metadata=entries, planner_data=dict(self._index.paths))

    def set_up_storage_reader(
        self, metadata: dcp.Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Do nothing."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Check all plans, on the coordinator. Raises: CheckpointMismatch."""
        requested = {item.storage_index.fqn for plan in plans for item in plan.items}
        stored = {name for name, tensor in self._index.tensors.items() if tensor.pieces} | set(
            self._index.values
        )
        unread = sorted(stored - requested)
        if unread and not self._partial:
            more = ""
            if len(unread) > _SHOWN:
                more = f" and {len(unread) - _SHOWN} more"
            raise CheckpointMismatch(
                f"{self._where} also has {', '.join(unread[:_SHOWN])}{more}, which the state to fill lacks; an "
                "optimizer has no state before its first step: load through penstock.checkpoints.TrainingState; pass "
                "partial=True to ignore these",
                what="state",
                where=self._where,
                given=unread,
                accepted="partial=True",
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill the state. From a disk, whole pieces are read straight into the tensors.

        Raises: CorruptCheckpoint for missing or damaged bytes; discard the state.
        """
        by_part: dict[str, list[_ReadBlock]] = {}
        for item in plan.items:
            if item.type == LoadItemType.TENSOR and 0 in item.lengths:
                continue  # this rank's share of the tensor is empty
            block = self._item_block(item)
            by_part.setdefault(block.piece.part.name, []).append(block)
        parts = list(by_part.values())
        if self._reads is not self._store:
            parts = _rotate(parts)
        reads = map_in_order(self._read, (_read_targets(part, planner) for part in parts))
        with closing(reads):  # after an error, no thread may read into the state
            for request, data in chain.from_iterable(reads):
                if request.target is None:
                    planner.load_bytes(request.block.item, self._value(request.block, data))
                    continue
                if data is not None:
                    fill(request.target, DTYPES[request.block.dtype], self._box(request.block, data))
                planner.commit_tensor(request.block.item, request.target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @property
    def _where(self) -> str:
        return (
            f"{self._reads.url}: checkpoint of step {self._checkpoint.step} of run {self._checkpoint.run!r}"
        )

    def _item_block(self, item: ReadItem) -> _ReadBlock:
        """Return the stored bytes that an item of torch's plan needs."""
        name = item.storage_index.fqn
        if item.type == LoadItemType.BYTE_IO:
            piece = self._index.values[name]
            return _ReadBlock(item=item, piece=piece, dtype="U8", first=0, count=piece.nbytes)
        assert item.storage_index.offset is not None
        piece = self._pieces[name, tuple(item.storage_index.offset)]
        first, count = extent(piece.sizes, item.storage_offsets, item.lengths)
        return _ReadBlock(
            item=item, piece=piece, dtype=self._index.tensors[name].dtype, first=first, count=count
        )

    def _read(self, requests: list[_ReadTarget]) -> list[tuple[_ReadTarget, memoryview | bytes | None]]:
        """Return a part's blocks, None for a block read in place. A damaged one is read twice."""
        part = requests[0].block.piece.part
        key = self._checkpoint.key(part)
        try:
            reads = self._blocks(key, requests)
        except CorruptCheckpoint:
            raise  # of near reads, which look at each copy
        except (ObjectNotFound, Corrupt) as error:
            raise self._damage_error(part, str(error)) from error
        out: list[tuple[_ReadTarget, memoryview | bytes | None]] = []
        for request, read in zip(requests, reads, strict=True):
            block = request.block
            data = None
            if read is not request.memory:
                data = read
            if not _is_intact(block, read):
                # Once more: a wrong transfer differs from damage in the store, and costs one request.
                data = self._reads.get_range(key, *block.span).data
                if not _is_intact(block, data):
                    low, nbytes = block.span
                    address = (
                        f"{self._store.url}/{key}[{low}:{low + nbytes}] {block.item.storage_index.fqn!r}"
                    )
                    raise self._damage_error(part, f"{address} is not what was written, read twice")
            out.append((request, data))
        return out

    def _damage_error(self, part: StoredObject, problem: str) -> CorruptCheckpoint:
        """Return the error of a damaged part. Raises: CheckpointNotFound if the checkpoint was deleted meanwhile."""
        key = self._checkpoint.key(part)
        try:
            nbytes = self._store.head(key).nbytes
        except ObjectNotFound:
            marker.read(self._store, self._checkpoint.run, self._checkpoint.step)
            problem = f"{self._store.url}/{key} is missing; {part.nbytes:,} bytes were written"
        else:
            if nbytes != part.nbytes:
                problem = f"{self._store.url}/{key} has {nbytes:,} bytes; {part.nbytes:,} were written"
        return marker.damaged(self._store, self._checkpoint.run, self._checkpoint.step, part.name, problem)

    def _blocks(self, key: str, requests: list[_ReadTarget]) -> Sequence[memoryview | bytes]:
        """Return the bytes of each request, read into its memory if it has one and the store is a disk."""
        disk = as_disk(self._reads)
        spans = [one.block.span for one in requests]
        if disk is None:
            return [
                blob.data
                for blob in self._reads.get_ranges(key, spans, max_gap=_GAP_BYTES, max_span=REQUEST_BYTES)
            ]
        buffers: list[memoryview] = []
        for request, span in zip(requests, spans, strict=True):
            buffer = request.memory
            if buffer is None:
                # numpy allocates large pages: filling them takes a third of the time that reading as bytes takes.
                buffer = np.empty(span.nbytes, np.uint8).data
            buffers.append(buffer)
        disk.read_into(key, [(*span, [buffer]) for span, buffer in zip(spans, buffers, strict=True)])
        return buffers

    def _value(self, block: _ReadBlock, data: memoryview | bytes | None) -> io.BytesIO:
        """Return a value that is no tensor as torch's planner takes it. Raises: Corrupt."""
        assert data is not None
        try:
            # torch's planner unpickles values without weights_only, so a forged one must end here.
            check_value(block.item.storage_index.fqn, bytes(data))
        except InvalidField as error:
            raise Corrupt(
                f"{self._where}: {error}", what=block.item.storage_index.fqn, where=self._where
            ) from error
        return io.BytesIO(data)

    def _box(self, block: _ReadBlock, data: memoryview | bytes) -> "np.ndarray[Any, Any]":
        """Return a view of the item's box as integers of its element width."""
        width = ITEM_BYTES[block.dtype]
        begin = block.piece.offset + block.first * width - block.span.offset
        steps = tuple(step * width for step in strides(block.piece.sizes))
        shape = tuple(block.item.lengths)
        # The box's rows lie as far apart as in the whole piece; numpy skips what is between.
        return np.ndarray(shape, np.dtype(f"i{width}"), data, begin, steps)


def _rotate(parts: list[list[_ReadBlock]]) -> list[list[_ReadBlock]]:
    """Return the parts, beginning with another one on each rank: ranks of one cache bring different parts."""
    from torch import distributed

    if not parts or not distributed.is_initialized():
        return parts
    first = distributed.get_rank() * len(parts) // distributed.get_world_size()
    return parts[first:] + parts[:first]


def _read_targets(part: list[_ReadBlock], planner: LoadPlanner) -> list[_ReadTarget]:
    """Return the blocks of a part by offset, each with the tensor that it goes to; None for a value."""
    out = []
    for block in sorted(part, key=lambda item: item.span.offset):
        target = None
        memory = None
        is_value = block.item.type == LoadItemType.BYTE_IO
        if not is_value:
            target = planner.resolve_tensor(block.item).detach()
            memory = _memory(block, target)
        out.append(_ReadTarget(block, target, memory))
    return out


def _memory(block: _ReadBlock, target: torch.Tensor) -> memoryview | None:
    """Return the tensor's memory if the block can be read right into it."""
    if not (is_plain(target, DTYPES[block.dtype]) and target.is_contiguous()):
        return None
    # Only a whole piece fills the tensor without a gap.
    if block.span.nbytes == target.nbytes:
        return bytes_of(target)
    return None


def _is_intact(block: _ReadBlock, data: memoryview | bytes) -> bool:
    first = (block.span.offset - block.piece.offset) // BLOCK_BYTES
    sums = checksums(memoryview(data))
    return sums == block.piece.crc32c[first : first + len(sums)]
