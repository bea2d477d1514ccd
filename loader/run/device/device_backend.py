"""The protocol between the copy thread and a device, and the walk over a batch's values."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from ..batch.batch import Batch
from ..batch.columns import BytesColumn
from ..batch.nested_values import leaves, with_changed_leaves
from ..batch.slot_ids import SlotIds

PLAIN = frozenset((bytes, str, int, float, bool, type(None)))
"""Types of values that contain no array."""


class Copy(Protocol):
    @property
    def nbytes(self) -> int:
        """Number of bytes to copy."""

    def wait(self) -> None:
        """Block until the device has read the host's memory."""

    def hand_over(self) -> None:
        """Make the caller's later work on the device wait for the copy, without blocking."""


class Finished:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def wait(self) -> None:
        """Return immediately."""

    hand_over = wait


class DeviceBackend(ABC):
    """Copies batches to one device. Only `moved` and `Copy.hand_over` are called outside the copy thread."""

    def entered(self) -> AbstractContextManager[object]:
        """Return the copy thread's context: it selects device and stream."""
        return nullcontext()

    @abstractmethod
    def copy(self, batch: Batch) -> tuple[Batch, Copy]:
        """Start a copy. Return the batch on the device, and the copy.

        The caller keeps `batch` until `Copy.wait` returns.
        """

    @abstractmethod
    def moved(self, batch: Batch) -> Batch:
        """Return the batch on the device, copied by the calling thread."""

    def checksum_source(self, host: Batch, moved: Batch) -> Batch:
        """Return the batch whose values the run log records."""
        return host

    def close(self) -> None:  # noqa: B027 - a device that keeps nothing
        """Release the host's memory. The copy thread calls it, inside `entered`, after the last `wait`."""


def is_tensor(value: object) -> bool:
    """Return whether a value is a torch tensor, without importing torch."""
    return hasattr(value, "pin_memory")


def is_torch_tensor(value: object) -> bool:
    """Return whether a value is a torch tensor; a class of the user's may have `pin_memory` too."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(value, kind)


def batch_tensors(batch: Batch) -> list[Any]:
    """Return the tensors that a copy of the batch moves: mask, columns, list items, and what `collate` made."""
    arrays: list[Any] = []

    def note(value: Any) -> Any:
        arrays.append(value)
        return value

    _each(batch.mask, note, None)
    for value in batch.fields.values():
        _each(value, note, None)
    arrays += filter(is_torch_tensor, leaves(batch.collated))
    return arrays


def rebuilt(batch: Batch, move: Callable[[Any], Any], keep: Callable[[Any], Any] | None) -> Batch:
    """Return the batch with `move` applied to its tensors, which are columns or list items.

    keep: applied to every other array, also in containers, that may use the loader's memory; None if none does.
    """
    fields = {name: _each(value, move, keep) for name, value in batch.fields.items()}
    out = with_values(batch, fields, _each(batch.mask, move, keep))
    out.collated = with_changed_leaves(batch.collated, partial(_collate_leaf, move, keep))
    if keep is not None:
        out.sources = keep(batch.sources)
        out.ordinals = keep(batch.ordinals)
        ids = out.__dict__["ids"]
        if isinstance(ids, SlotIds):
            out.ids = replace(ids, source=keep(ids.source))
    return out


def with_values(batch: Batch, fields: dict[str, Any], mask: Any) -> Batch:
    return replace(batch, ids=batch.__dict__["ids"], mask=mask, fields=fields)


def _each(value: Any, move: Callable[[Any], Any], keep: Callable[[Any], Any] | None) -> Any:
    """Return a column with its tensors moved. move, keep: as for `rebuilt`."""
    if is_tensor(value):
        return move(value)
    if type(value) is list:
        if {*map(type, value)} <= PLAIN:
            return value
        return [_each(item, move, keep) for item in value]
    if keep is None:
        return value
    return _keep_values(value, keep)


def _collate_leaf(
    move: Callable[[Any], Any],
    keep: Callable[[Any], Any] | None,
    leaf: Any,
) -> Any:
    if is_torch_tensor(leaf):
        return move(leaf)
    is_array = isinstance(leaf, np.ndarray)
    if is_array and keep is not None:
        return keep(leaf)
    return leaf


def _keep_values(value: Any, keep: Callable[[Any], Any]) -> Any:
    """Return a value with `keep` applied to all arrays in it."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, np.ndarray) or is_tensor(value):
        return keep(value)
    if isinstance(value, BytesColumn):
        return _keep_bytes(value, keep)
    if type(value) is dict:
        return {name: _keep_values(item, keep) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_keep_values(item, keep) for item in value)
    return value


def _keep_bytes(column: BytesColumn, keep: Callable[[Any], Any]) -> BytesColumn:
    """Return a column whose bytes are in kept memory: only the block from the first used byte to the last."""
    memory, begin, sizes = column.parts()
    first = int(np.min(begin, initial=len(memory), where=sizes > 0))
    end = int(np.max(begin + sizes, initial=first, where=sizes > 0))
    return BytesColumn(keep(memory[first:end]), np.where(sizes > 0, begin - first, 0), sizes.copy())
