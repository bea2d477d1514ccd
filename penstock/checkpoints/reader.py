"""`torch.distributed.checkpoint`'s StorageReader over a store: the byte ranges that a rank needs, all verified."""

import io
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from loader.errors import CheckpointMismatch, Corrupt, InvalidField, InvalidRuntime
from loader.storage import Span, Store, is_local

from .boxes import extent, strides
from .dtypes import DTYPES, fill
from .index import Index
from .marker import Checkpoint
from .parts import BLOCK_BYTES, ITEM_BYTES, PART_BYTES, Placed, checksums
from .several import several
from .writer import check_value

_SHOWN = 5
_REQUEST_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """first, count: the run of the piece's elements that holds what is asked for."""

    item: ReadItem
    piece: Placed
    dtype: str
    first: int
    count: int

    @property
    def span(self) -> Span:
        """Whole blocks of the part."""
        width = ITEM_BYTES[self.dtype]
        low = self.first * width // BLOCK_BYTES * BLOCK_BYTES
        high = -(-(self.first + self.count) * width // BLOCK_BYTES) * BLOCK_BYTES
        return Span(self.piece.offset + low, min(high, self.piece.nbytes) - low)


class Reader(StorageReader):
    """Loads one checkpoint: `torch.distributed.checkpoint.load(state, storage_reader=reader)`, at any number of ranks.

    Of a tensor's piece the blocks are read that hold what this rank needs of it, a few parts at a time in memory.
    Values that are no tensors are only unpickled after torch.load took them with weights_only=True. partial: do
    without entries that the state to fill does not have; else they are CheckpointMismatch, since an optimizer that
    was not used yet has none, and would lose its moments without a word.
    """

    def __init__(self, store: Store, checkpoint: Checkpoint, index: Index, *, partial: bool = False) -> None:
        super().__init__()
        self._store, self._checkpoint, self._index, self._partial = store, checkpoint, index, partial
        self._pieces = {
            (name, piece.offsets): piece for name, tensor in index.tensors.items() for piece in tensor.pieces
        }

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """No id alone says which store is meant."""
        return False

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Raises: InvalidRuntime for an id other than the reader's step."""
        if checkpoint_id is not None and str(checkpoint_id) != str(self._checkpoint.step):
            raise InvalidRuntime(
                f"checkpoint_id = {checkpoint_id!r}; this reader loads step {self._checkpoint.step}: leave it out"
            )

    def read_metadata(self, *args: Any, **kwargs: Any) -> dcp.Metadata:
        """What the index says, in torch's words: each stored piece is a chunk."""
        found: dict[str, dcp.STORAGE_TYPES] = {
            name: dcp.BytesStorageMetadata() for name in self._index.values
        }
        for name, tensor in self._index.tensors.items():
            found[name] = dcp.TensorStorageMetadata(
                properties=dcp.TensorProperties(dtype=DTYPES[tensor.dtype]),
                size=torch.Size(tensor.sizes),
                chunks=[
                    dcp.ChunkStorageMetadata(offsets=torch.Size(one.offsets), sizes=torch.Size(one.sizes))
                    for one in tensor.pieces
                ],
            )
        return dcp.Metadata(state_dict_metadata=found, planner_data=dict(self._index.paths))

    def set_up_storage_reader(
        self, metadata: dcp.Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Nothing: the index is here."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """On the coordinator. Raises: CheckpointMismatch."""
        asked = {item.storage_index.fqn for plan in plans for item in plan.items}
        stored = {name for name, tensor in self._index.tensors.items() if tensor.pieces} | set(
            self._index.values
        )
        left = sorted(stored - asked)
        if left and not self._partial:
            more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
            raise CheckpointMismatch(
                f"{self._where} also has {', '.join(left[:_SHOWN])}{more}, which the state to load into has not; an "
                "optimizer has no state before its first step: load through penstock.checkpoints.TrainingState; to do "
                "without these, partial=True"
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill the state. Raises: Corrupt, with the address, for bytes that are not those that were written."""
        by_part: dict[str, list[_Wanted]] = {}
        for item in plan.items:
            if item.type == LoadItemType.TENSOR and 0 in item.lengths:
                continue  # this rank's share of the tensor is empty
            wanted = self._wanted(item)
            by_part.setdefault(wanted.piece.part.name, []).append(wanted)
        for read in several(self._read, by_part.values()):
            for wanted, data in read:
                if wanted.item.type == LoadItemType.BYTE_IO:
                    planner.load_bytes(wanted.item, self._value(wanted, data))
                else:
                    target = planner.resolve_tensor(wanted.item).detach()
                    fill(target, DTYPES[wanted.dtype], self._box(wanted, data))
                    planner.commit_tensor(wanted.item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @property
    def _where(self) -> str:
        return (
            f"{self._store.url}: checkpoint of step {self._checkpoint.step} of run {self._checkpoint.run!r}"
        )

    def _wanted(self, item: ReadItem) -> _Wanted:
        name = item.storage_index.fqn
        if item.type == LoadItemType.BYTE_IO:
            piece = self._index.values[name]
            return _Wanted(item=item, piece=piece, dtype="U8", first=0, count=piece.nbytes)
        assert item.storage_index.offset is not None
        piece = self._pieces[name, tuple(item.storage_index.offset)]
        first, count = extent(piece.sizes, item.storage_offsets, item.lengths)
        return _Wanted(
            item=item, piece=piece, dtype=self._index.tensors[name].dtype, first=first, count=count
        )

    def _read(self, wanted: list[_Wanted]) -> list[tuple[_Wanted, bytes]]:
        """Blocks of one part. What does not fit its checksum is read once more."""
        key = self._checkpoint.key(wanted[0].piece.part)
        spans = [one.span for one in wanted]
        # A network is asked for bounded ranges; of a disk, one read is one buffer, where several would be joined.
        most = PART_BYTES if is_local(self._store) else _REQUEST_BYTES
        found = self._store.get_ranges(key, spans, max_span=most)
        out = []
        for one, blob in zip(wanted, found, strict=True):
            data = blob.data
            if not _sound(one, data):
                data = self._store.get_range(key, *one.span).data
                if not _sound(one, data):
                    low, nbytes = one.span
                    address = f"{self._store.url}/{key}[{low}:{low + nbytes}] {one.item.storage_index.fqn!r}"
                    raise Corrupt(
                        f"{self._where}: {address} is not what was written, read twice; load an earlier step, or "
                        "restore the file"
                    )
            out.append((one, data))
        return out

    def _value(self, wanted: _Wanted, data: bytes) -> io.BytesIO:
        try:
            check_value(wanted.item.storage_index.fqn, data)
        except InvalidField as error:
            raise Corrupt(f"{self._where}: {error}") from error
        return io.BytesIO(data)

    def _box(self, wanted: _Wanted, data: bytes) -> "np.ndarray[Any, Any]":
        """What is asked for, as whole numbers as wide as the elements: a view of the bytes."""
        width = ITEM_BYTES[wanted.dtype]
        begin = wanted.piece.offset + wanted.first * width - wanted.span.offset
        steps = tuple(step * width for step in strides(wanted.piece.sizes))
        shape = tuple(wanted.item.lengths)
        return np.ndarray(shape, np.dtype(f"i{width}"), data, begin, steps)


def _sound(wanted: _Wanted, data: bytes) -> bool:
    first = (wanted.span.offset - wanted.piece.offset) // BLOCK_BYTES
    sums = checksums(memoryview(data))
    return sums == wanted.piece.crc32c[first : first + len(sums)]
