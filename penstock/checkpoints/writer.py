"""A StorageWriter for `torch.distributed.checkpoint`: each rank writes parts, the coordinator writes the marker."""

import io
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from pickle import UnpicklingError
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from loader import Root
from loader.errors import Conflict, InvalidField, InvalidRuntime, StoreError
from loader.storage import is_there
from loader.storage.mirror import primary_store

from . import marker, retention
from .dtypes import content, dtype_name
from .marker import Checkpoint, StoredObject
from .parts import (
    ITEM_BYTES,
    PART_BYTES,
    Index,
    StoredPiece,
    Tensor,
    TensorPiece,
    contiguous_boxes,
    encode_index,
    pack_parts,
    piece_name,
    seal_part,
)
from .ranks import AT_ONCE, map_in_order
from .retention import CheckpointRetention


class CheckpointWriter(StorageWriter):
    """Saves one step: `torch.distributed.checkpoint.save(state, storage_writer=writer)`, or `async_save`.

    A few parts at a time are in memory. Replaces no object: part names are random, and the marker is created last.

    facts: additional fields for the marker.

    Raises, wrapped in torch's exception: Conflict if the step is not above the newest; InvalidField; StoreError.
    """

    on_set_up: Callable[[], object] | None = None
    """Called at a save's start."""
    on_committed: Callable[[], object] | None = None
    """Called on the coordinator as soon as the checkpoint is whole."""
    at_once = AT_ONCE
    """Parts of this rank in memory at a time."""

    def __init__(
        self,
        root: Root,
        run: str,
        step: int,
        *,
        facts: Mapping[str, Any] | None = None,
        keep: CheckpointRetention | None = None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        super().__init__()
        self._root = root
        self._store = primary_store(root.store)
        self._run = marker.check_run(run)
        self._step = step
        self._facts = dict(facts or {})
        self._keep = keep or CheckpointRetention()
        self._part_bytes = part_bytes
        # Values other than tensors, in torch.save's bytes: sized when parts are packed, written later.
        self._values: dict[dcp.MetadataIndex, memoryview] = {}

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Raise InvalidRuntime if torch's checkpoint id names another step."""
        if checkpoint_id is not None and str(checkpoint_id) != str(self._step):
            message = f"checkpoint_id = {checkpoint_id!r}; this writer saves step {self._step}: leave it out"
            raise InvalidRuntime(message, what="checkpoint_id", given=checkpoint_id, accepted=self._step)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Raise InvalidRuntime if collectives are disabled."""
        if not kwargs.get("use_collectives", True):
            raise InvalidRuntime(
                "use_collectives=False: a checkpoint has one marker for all ranks; leave it out"
            )
        if self.on_set_up is not None:
            self.on_set_up()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Create the root and check the step, on the coordinator. Raises: Conflict; NotARoot."""
        self._root.create()
        self._check_newest()
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's parts, several at a time."""
        attempt = secrets.token_hex(8)
        self._values = {}  # a save that failed may have left some
        stored: dict[dcp.MetadataIndex, list[StoredPiece]] = {item.index: [] for item in plan.items}
        parts = enumerate(pack_parts(self._pieces(plan, planner), self._part_bytes))

        def write(numbered: tuple[int, list[TensorPiece]]) -> tuple[list[TensorPiece], Sequence[StoredPiece]]:
            number, pieces = numbered
            # The attempt is random, so a repeated save never overwrites parts of one that a marker may name.
            name = f"{attempt}-{number:05d}.safetensors"
            contents = [self._content(piece, planner) for piece in pieces]
            return pieces, self.store_part(name, pieces, contents)

        for pieces, placed in map_in_order(write, parts, at_once=self.at_once):
            for piece, where in zip(pieces, placed, strict=True):
                stored[piece.item.index].append(where)
        self._values = {}  # frees their memory
        results = [
            WriteResult(index=name, size_in_bytes=sum(one.nbytes for one in places), storage_data=places)
            for name, places in stored.items()
        ]
        done: Future[list[WriteResult]] = Future()
        # torch sends this list to the coordinator, where `_check_same` compares the ranks' runs and steps.
        done.set_result(_RankResults(self._run, self._step, results))
        return done

    def finish(self, metadata: dcp.Metadata, results: list[list[WriteResult]]) -> None:
        """Write index and marker, then apply retention, on the coordinator.

        Raises: InvalidRuntime if ranks save different steps or runs; Conflict.
        """
        self._check_same(results)
        contents = _index(metadata, [result for each in results for result in each])
        data = encode_index(contents)
        stored = StoredObject(
            name=f"{secrets.token_hex(8)}-index.json", nbytes=len(data), sha256=marker.sha256(data)
        )
        self.store_object(stored, data)
        checkpoint = Checkpoint(
            run=self._run,
            step=self._step,
            at_us=time.time_ns() // 1000,
            world_size=len(results),
            index=stored,
            parts=tuple(contents.parts()),
            **self._facts,
        )
        self.commit(checkpoint)

    def store_part(
        self,
        name: str,
        pieces: Sequence[TensorPiece],
        contents: Sequence[memoryview],
    ) -> Sequence[StoredPiece]:
        """Store a part; return the locations of its pieces. A near save overrides it. Raises: StoreError."""
        data, placed = seal_part(name, pieces, contents)
        part = placed[0].part  # the same of all its pieces
        self.store_object(part, data)
        return placed

    def store_object(self, stored: StoredObject, data: bytes | memoryview) -> None:
        """Store a part or the index. Raises: StoreError."""
        self._store.put(marker.part_key(self._run, self._step, stored.name), data)

    def commit(self, checkpoint: Checkpoint) -> None:
        """Write the marker, then apply retention, on the coordinator. Raises: Conflict; StoreError."""
        self._check_newest()
        key = marker.marker_key(self._run, self._step)
        # Created once: of two processes that save the step, one gets AlreadyExists.
        self._store.put_if_absent(key, marker.encode(checkpoint))
        try:
            committed = marker.steps(self._store, self._run)
        except StoreError as error:
            error.add_note(
                f"step {self._step} of run {self._run!r} is committed, unless another process saved a later one"
            )
            raise
        later = [step for step in committed if step > self._step]
        # A listing may still show a deleted marker, which must not invalidate this checkpoint.
        if newest := next(filter(self._has_marker, reversed(later)), None):
            # Another process has saved a later step, and may have deleted these parts.
            self._store.delete_many([key])
            raise self._conflict(newest)
        if self.on_committed is not None:
            self.on_committed()
        retention.apply(self._store, self._keep, checkpoint)

    def _check_same(self, results: Sequence[Sequence[WriteResult]]) -> None:
        """Raise InvalidRuntime unless all ranks saved this step of this run."""
        for rank, written in enumerate(results):
            assert isinstance(written, _RankResults)
            if (written.run, written.step) != (self._run, self._step):
                raise InvalidRuntime(
                    f"{self._store.url}: rank {rank} saves step {written.step} of run {written.run!r}, the coordinator "
                    f"step {self._step} of run {self._run!r}, and nothing was committed: let every rank save the same "
                    "step of the same run",
                    what=f"rank {rank}",
                    where=self._store.url,
                    given=[written.run, written.step],
                    accepted=[self._run, self._step],
                )

    def _check_newest(self) -> None:
        newest = max(marker.steps(self._store, self._run), default=None)
        if newest is not None and newest >= self._step:
            raise self._conflict(newest)

    def _has_marker(self, step: int) -> bool:
        return is_there(self._store, marker.marker_key(self._run, step))

    def _conflict(self, newest: int) -> Conflict:
        return Conflict(
            f"{self._store.url}: run {self._run!r} has a checkpoint of step {newest}, and its steps only go up; "
            f"step {self._step} was not saved: a training that goes back to an earlier step is a run of its own",
            what="step",
            where=f"{self._store.url}: run {self._run!r}",
            given=self._step,
            accepted=f"more than {newest}",
        )

    def _pieces(self, plan: SavePlan, planner: SavePlanner) -> Iterator[TensorPiece]:
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO:
                yield self._value(item, planner)
            else:
                yield from _boxes(item, self._part_bytes)

    def _value(self, item: WriteItem, planner: SavePlanner) -> TensorPiece:
        """Return the piece of a value that is no tensor, and keep its bytes for `_content`."""
        resolved = planner.resolve_data(item)
        assert isinstance(resolved, io.BytesIO)
        name = item.index.fqn
        data = bytes(resolved.getbuffer())
        check_value(name, data)
        self._values[item.index] = memoryview(data)
        nbytes = len(data)
        return TensorPiece(
            item=item, label=name, dtype="U8", within=(), offsets=(), sizes=(nbytes,), nbytes=nbytes
        )

    def _content(self, piece: TensorPiece, planner: SavePlanner) -> memoryview:
        """Return the bytes of a piece. Raises: InvalidField if the planner returns other ones than it planned."""
        if piece.item.type == WriteItemType.BYTE_IO:
            return self._values[piece.item.index]
        tensor = planner.resolve_data(piece.item)
        assert isinstance(tensor, torch.Tensor)
        for axis, (start, size) in enumerate(zip(piece.within, piece.sizes, strict=True)):
            tensor = tensor.narrow(axis, start, size)
        data = content(tensor)
        if len(data) != piece.nbytes:
            raise InvalidField(
                f"{piece.label}: its planner promised {piece.nbytes} bytes of {piece.dtype} and returned "
                f"{len(data)} of {tensor.dtype}; make create_local_plan match resolve_data"
            )
        return data


class _RankResults(list[WriteResult]):
    """A rank's results, with the run and step that it saves."""

    def __init__(self, run: str, step: int, results: Iterable[WriteResult]) -> None:
        super().__init__(results)
        self.run = run
        self.step = step


def check_value(name: str, data: bytes) -> None:
    """Raise InvalidField for a value that torch.load does not load with weights_only=True."""
    try:
        # Loaded at the save: a value that cannot be loaded must fail today, not after the crash.
        torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, ValueError, EOFError) as error:
        message = (
            f"{name} is not a tensor, number, text, list or dict: checkpoints hold nothing that runs code "
            f"when it is loaded ({str(error).splitlines()[0]}); save its state_dict() instead"
        )
        raise InvalidField(message, what=name, accepted="a tensor, number, text, list or dict") from error


def _boxes(item: WriteItem, part_bytes: int) -> Iterator[TensorPiece]:
    """Yield a shard of a tensor as pieces, each a box of contiguous elements of at most `part_bytes` bytes."""
    name = item.index.fqn
    data = item.tensor_data
    assert data is not None
    if data.properties.layout != torch.strided:
        message = f"{name} has the layout {data.properties.layout}; save it as a dense tensor"
        raise InvalidField(message, what=name, given=data.properties.layout, accepted="a dense tensor")
    dtype = dtype_name(name, data.properties.dtype)
    width = ITEM_BYTES[dtype]
    for within, sizes in contiguous_boxes(data.chunk.sizes, max(1, part_bytes // width)):
        offsets = tuple(a + b for a, b in zip(data.chunk.offsets, within, strict=True))
        yield TensorPiece(
            item=item,
            label=piece_name(name, offsets, sizes, data.size),
            dtype=dtype,
            within=within,
            offsets=offsets,
            sizes=sizes,
            nbytes=prod(sizes) * width,
        )


def _index(metadata: dcp.Metadata, results: Sequence[WriteResult]) -> Index:
    """Return the index of what all ranks wrote. results: of all ranks, with the stored pieces of each item."""
    places: dict[str, list[StoredPiece]] = {name: [] for name in metadata.state_dict_metadata}
    for result in results:
        places[result.index.fqn] += result.storage_data
    tensors = {}
    values = {}
    for name, kind in metadata.state_dict_metadata.items():
        if isinstance(kind, dcp.TensorStorageMetadata):
            dtype = dtype_name(name, kind.properties.dtype)
            tensors[name] = Tensor(dtype=dtype, sizes=tuple(kind.size), pieces=tuple(places[name]))
        else:
            # torch plans a value on one rank only.
            (values[name],) = places[name]
    paths = metadata.planner_data or {}
    return Index(tensors=tensors, values=values, paths={name: tuple(path) for name, path in paths.items()})
