"""A worker's answer to the trainer: one task's batches, packed together, or an error; metrics and logs.

Making a batch of tokens takes 100 us, of which pickling it by itself is a third. So each attribute is sent once for all
batches, and arrays cut from one array are sent as one.
"""

import logging
import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate, chain, pairwise
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ...dataset.reading.read_faults import ReadFault
from ...errors import WorkerFailed
from ..batch.batch import Batch, SlowSample
from ..batch.columns import Allocate, BytesColumn
from ..batch.slot_ids import Ids, SlotIds
from ..metrics import Totals
from .batch_memory import dumps

LEAST_BYTES = 4096
"""Fewest bytes of samples that are joined; fewer stay in the pickle."""

_UINT8 = np.dtype(np.uint8)
_CUT = ("ids", "sources", "ordinals", "mask", "fields", "slowest")
_SENT = [one.name for one in fields(Batch) if one.name not in _CUT]
_SLOW = [one.name for one in fields(SlowSample)]
_slow_values = attrgetter(*_SLOW)


class _FieldColumn(Protocol):
    """A field's values in all batches."""

    def parts(self, ends: Sequence[int]) -> list[Any]:
        """Return the field of each batch. ends: first slot of each batch, then the number of slots."""


@dataclass(frozen=True, slots=True)
class _Whole:
    array: np.ndarray

    def parts(self, ends: Sequence[int]) -> list[np.ndarray]:
        return [self.array[begin:end] for begin, end in pairwise(ends)]


@dataclass(frozen=True, slots=True)
class _Joined:
    memory: np.ndarray
    """uint8 [bytes]."""
    ends: list[int]
    """Offset of each item, then of the end."""

    def parts(self, ends: Sequence[int]) -> list[list[bytes]]:
        data = self.memory.data
        values = [data[begin:end].tobytes() for begin, end in pairwise(self.ends)]
        return [values[begin:end] for begin, end in pairwise(ends)]


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Bytes of samples in one block of memory, which become `bytes` on demand."""

    memory: np.ndarray
    """uint8 [bytes]."""
    begin: np.ndarray
    sizes: np.ndarray

    def parts(self, ends: Sequence[int]) -> list[BytesColumn]:
        whole = BytesColumn(self.memory, self.begin, self.sizes)
        return [whole[begin:end] for begin, end in pairwise(ends)]


@dataclass(frozen=True, slots=True)
class _Apart:
    values: list[Any]

    def parts(self, ends: Sequence[int]) -> list[Any]:
        return self.values


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatches:
    """Several batches, packed into few values."""

    ends: list[int]
    """First slot of each batch, then the number of slots."""
    attributes: dict[str, list[Any]]
    """Attribute -> its value in each batch."""
    slowest: list[tuple[Any, ...] | None]
    """Each batch's `Batch.slowest` as values, or None."""
    ids: Ids | SlotIds
    """Identities of all slots."""
    sources: np.ndarray
    """int32 [slots]: `Batch.sources`."""
    ordinals: np.ndarray
    """int64 [slots]: `Batch.ordinals`."""
    mask: np.ndarray
    """bool [slots]: `Batch.mask`."""
    columns: dict[str, _FieldColumn]
    """Field -> values; empty if batches have different fields."""
    apart: list[dict[str, Any]]
    """Field -> values for each batch, if their fields differ."""

    def batches(self) -> list[Batch]:
        parts = self.apart or [{} for _ in self.slowest]
        for name, column in self.columns.items():
            for part, value in zip(parts, column.parts(self.ends), strict=True):
                part[name] = value
        attributes = [
            dict(zip(self.attributes, values, strict=True))
            for values in zip(*self.attributes.values(), strict=True)
        ]
        return [
            Batch(
                **rest,
                ids=self.ids[begin:end],
                sources=self.sources[begin:end],
                ordinals=self.ordinals[begin:end],
                mask=self.mask[begin:end],
                fields=part,
                slowest=None if slow is None else SlowSample(**dict(zip(_SLOW, slow, strict=True))),
            )
            for (begin, end), rest, part, slow in zip(
                pairwise(self.ends), attributes, parts, self.slowest, strict=True
            )
        ]


def packed(batches: Sequence[Batch], allocate: Allocate) -> PackedBatches | None:
    """Return numpy batches, packed, or None. allocate: memory in the segment."""
    if not batches:
        return None
    first, *others = batches
    alike = all(list(batch.fields) == list(first.fields) for batch in others)
    columns = {
        name: _column([batch.fields[name] for batch in batches], allocate) for name in first.fields if alike
    }
    return PackedBatches(
        ends=[0, *accumulate(map(len, batches))],
        attributes={name: [getattr(batch, name) for batch in batches] for name in _SENT},
        slowest=[None if batch.slowest is None else _slow_values(batch.slowest) for batch in batches],
        ids=_ids(batches),
        sources=np.concatenate([batch.sources for batch in batches]),
        ordinals=np.concatenate([batch.ordinals for batch in batches]),
        mask=np.concatenate([batch.mask for batch in batches]),
        columns=columns,
        apart=[] if alike else [batch.fields for batch in batches],
    )


def _ids(batches: Sequence[Batch]) -> Ids | SlotIds:
    identities = [vars(batch)["ids"] for batch in batches]
    if not all(type(value) is SlotIds for value in identities):
        return list(chain.from_iterable(batch.ids for batch in batches))
    keys = list(chain.from_iterable(value.list_keys() for value in identities))
    return SlotIds.of(identities[0].names, np.concatenate([value.source for value in identities]), keys)


def _column(values: list[Any], allocate: Allocate) -> _FieldColumn:
    whole = _whole(values)
    if whole is not None:
        return _Whole(whole)
    if all(type(column) is BytesColumn for column in values):
        parts = [column.parts() for column in values]
        if all(memory is parts[0][0] for memory, _, _ in parts):
            return _Bytes(
                parts[0][0], *(np.concatenate(column) for column in list(zip(*parts, strict=True))[1:])
            )
    if all(type(column) is list for column in values):
        flat = list(chain.from_iterable(values))
        if set(map(type, flat)) == {bytes} and sum(map(len, flat)) >= LEAST_BYTES:
            return _join_values(flat, allocate)
    return _Apart(values)


def _whole(values: list[Any]) -> np.ndarray | None:
    first = values[0]
    if type(first) is not np.ndarray or not first.nbytes:
        return None
    if len(values) == 1:
        return first
    at = first.ctypes.data
    for value in values:
        if (
            type(value) is not np.ndarray
            or value.base is not first.base
            or value.dtype != first.dtype
            or value.shape[1:] != first.shape[1:]
            or not value.flags.c_contiguous
            or value.ctypes.data != at
        ):
            return None
        at += value.nbytes
    shape = (sum(map(len, values)), *first.shape[1:])
    return as_strided(first, shape, (first.nbytes // len(first), *first.strides[1:]))


def _join_values(values: list[bytes], allocate: Allocate) -> _Joined:
    ends = [0, *accumulate(map(len, values))]
    memory = allocate((ends[-1],), _UINT8)
    data = memory.data
    for value, (begin, end) in zip(values, pairwise(ends), strict=True):
        data[begin:end] = value
    return _Joined(memory, ends)


class WorkerTraceback(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


@dataclass(frozen=True, slots=True, kw_only=True)
class PickledError:
    """An error for the trainer: pickled, and as text."""

    pickled: bytes | None
    """Pickled error, or None."""
    name: str
    """Name of its type."""
    text: str
    trace: str
    """Its traceback, as text."""

    @staticmethod
    def of(error: BaseException) -> "PickledError":
        try:
            pickled = dumps(error)
        except Exception:  # noqa: BLE001 - pickling a user's error may raise anything
            pickled = None
        return PickledError(
            pickled=pickled,
            name=type(error).__qualname__,
            text=str(error),
            trace="".join(traceback.format_exception(error)),
        )

    def restored(self) -> BaseException:
        """Return the error with its type, text and notes, or a WorkerFailed with its text."""
        error: object = None
        try:
            if self.pickled is not None:
                error = pickle.loads(self.pickled)  # noqa: S301 - from a worker of ours
        except Exception:  # noqa: BLE001 - not every pickled error can be restored
            error = None
        if not isinstance(error, BaseException) or str(error) != self.text:
            error = WorkerFailed(
                f"a worker process raised {self.name}: {self.text} (the error itself could not be sent: give its class "
                "an __init__ that takes its args, at the top level of a module)"
            )
        error.__cause__ = WorkerTraceback(self.trace)
        return error


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """A worker's answer to a task."""

    packed: PackedBatches | None = None
    """Batches of the first steps, or None."""
    error: PickledError | None = None
    """Error of the step after them; None if all were made."""
    made_s: float
    """`perf_counter` at the end, a clock that all processes share."""
    took_s: float = 0.0
    """Seconds until `made_s`."""
    totals: Totals
    """Metrics since the previous outcome."""
    logged: list[tuple[str, int, str]] = field(default_factory=list)
    """(logger, level, text) since the previous outcome."""
    faults: list[ReadFault] = field(default_factory=list)
    """Wrong reads since the previous outcome."""


class LogCollector(logging.Handler):
    """Keeps the worker's logs for the trainer's handlers."""

    def __init__(self) -> None:
        super().__init__()
        self._records: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._records.append((record.name, record.levelno, record.getMessage()))
        except Exception:  # noqa: BLE001 - arguments that do not fit the format, as in every handler
            self.handleError(record)

    def drain(self) -> list[tuple[str, int, str]]:
        drained = self._records
        self._records = []
        return drained


def log_again(logged: list[tuple[str, int, str]]) -> None:
    for name, level, text in logged:
        logging.getLogger(name).log(level, "%s", text)
