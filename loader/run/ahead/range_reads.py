"""The ranges that the next steps need, read some steps ahead and held until a batch takes them."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from contextvars import copy_context
from threading import Lock
from typing import NamedTuple, Unpack

from ...cache.cached_store import CachedStore
from ...storage import Blob, ByteRange, RangeReader, ReadLimits
from ...storage.threads import DaemonPool
from .next_reads import Extents, Steps
from .read_ahead import Claim

Blobs = Sequence[Blob] | None
"""A blob per range; None if the read failed."""


Piece = tuple[int, str, ByteRange]
"""(number of the view, object key, range): one range, by which a batch asks for it."""
WASTED_MAX = 256
"""Wasted ranges, beyond those used, at which reading ahead stops: a seek wastes some."""


class Ranges(NamedTuple):
    """Ranges of one object."""

    step: int
    """Step that needs the ranges."""
    view: int
    """Number of the view."""
    key: str
    """Object key."""
    spans: Sequence[ByteRange]
    nbytes: int
    """Bytes of the ranges together."""
    blobs: "Future[Blobs]"
    """Data of the ranges, once read."""


APART_STEPS = 16
"""Steps whose objects are read side by side after a start, or after a read of the bucket.

As many steps are read ahead. Then pages are all in caches, and one call for a step costs a tenth of one per object.
"""
TOGETHER_SHARE = 0.25
"""Largest share of the memory for ranges that one call may read."""
MISSES_AT_ONCE = 8
"""Objects that one call for a step reads side by side, if the caches lack their pages.

Eight calls run side by side, and a store admits 64 requests.
"""


GROUP_STEPS = 4
"""Steps whose ranges are read by one call: a call to another node costs 0.2 ms, whatever it brings."""
GROUP_BYTES = 2**21
"""Bytes with which a call has enough."""


class RangesAhead:
    """Reads the next batches' ranges ahead and holds at most `limit_bytes` of them. Thread-safe.

    A unit is what one call fetches: the `Ranges` of one object. While the caches have all pages, it is the `Ranges` of
    a view's objects with pages in up to `GROUP_STEPS` steps.

    stores: view -> its store.
    """

    def __init__(
        self,
        steps: Steps,
        stores: Mapping[int, RangeReader],
        limit_bytes: int,
    ) -> None:
        self._steps = steps
        self._stores = stores
        self._limit_bytes = limit_bytes
        self._most_call_bytes = TOGETHER_SHARE * limit_bytes
        self._lock = Lock()
        self._held: dict[Piece, tuple[Ranges, int]] = {}
        """Piece -> (the ranges of its object, its number among them), from `claim` until a batch takes it."""
        self._of_step: dict[int, dict[Piece, None]] = {}
        """Step -> its pieces in `_held`, in order. A piece of two steps belongs to the later one."""
        self.taken_bytes = 0
        self._used = 0  # pieces that a batch took
        self._wasted = 0  # pieces whose step passed before a batch took them
        # The stores' reads of the origin at the last step planned. A start counts as a read: -1 equals no number.
        self._origin_reads = -1
        self._together_from = 0  # first step whose objects are read by one call
        # The group: ranges of some steps in a row, planned and not yet in a unit, because one call reads all.
        self._group: dict[int, list[Ranges]] = {}  # by view
        self._group_end = 0  # step after the last one in the group
        self._group_bytes = 0

    def units(self, step: int) -> Sequence[tuple[Ranges, ...]] | None:
        if step != self._group_end:  # after a seek
            self._end_group()
        self._group_end = step + 1
        shards_of_view = self._steps(step)
        if shards_of_view is None:
            return self._end_group() or None  # None ends the planning: not before the last group is read
        units: list[tuple[Ranges, ...]] = []
        for view, shards in shards_of_view.items():
            if view not in self._stores:
                continue
            ranges_of_view: list[Ranges] = []
            step_bytes = 0
            for key, extents in shards.items():
                spans = _spans(extents)
                nbytes = sum(span.nbytes for span in spans)
                ranges = Ranges(
                    step,
                    view,
                    key,
                    spans,
                    nbytes,
                    Future(),
                )
                ranges_of_view.append(ranges)
                step_bytes += nbytes
            if self._group_bytes + step_bytes > self._most_call_bytes:
                units += self._end_group()
            if not self._are_read_together(step, step_bytes):
                units += self._end_group()
                units.extend(zip(ranges_of_view))  # a unit for each object
                continue
            group = self._group.setdefault(view, [])
            for ranges in ranges_of_view:
                if self._has_pages(ranges):
                    group.append(ranges)
                    self._group_bytes += ranges.nbytes
                else:
                    units.append((ranges,))
        is_last = step % GROUP_STEPS == GROUP_STEPS - 1
        if is_last or self._group_bytes >= GROUP_BYTES:
            units += self._end_group()
        return units

    def _end_group(self) -> list[tuple[Ranges, ...]]:
        """Return a unit for each view of the steps that waited."""
        units = [tuple(ranges) for ranges in self._group.values() if ranges]
        self._group.clear()
        self._group_bytes = 0
        return units

    def _has_pages(self, ranges: Ranges) -> bool:
        store = self._stores[ranges.view]
        return isinstance(store, CachedStore) and store.has_pages(ranges.key)

    def _are_read_together(self, step: int, step_bytes: int) -> bool:
        """Return whether one call reads a step's ranges: only if no store has read its origin lately.

        Such a call asks twice for pages that the caches lack. step_bytes: of the step's ranges in one view.
        """
        origin_reads = 0
        for store in self._stores.values():
            if not isinstance(store, CachedStore):
                return False
            origin_reads += store.origin_reads
        if origin_reads != self._origin_reads:
            self._origin_reads = origin_reads
            self._together_from = step + APART_STEPS
        if step < self._together_from:
            return False
        return step_bytes <= self._most_call_bytes

    def expect(self, step: int, units: Sequence[tuple[Ranges, ...]]) -> None: ...

    def claim(self, unit: tuple[Ranges, ...]) -> Claim:
        unit_bytes = _unit_bytes(unit)
        with self._lock:
            if self._wasted > self._used + WASTED_MAX:
                return Claim.NO_ROOM
            if self.taken_bytes + unit_bytes > self._limit_bytes:
                return Claim.NO_ROOM
            for ranges in unit:
                pieces_of_step = self._of_step.setdefault(ranges.step, {})
                for number, span in enumerate(ranges.spans):
                    piece = (ranges.view, ranges.key, span)
                    self._drop(piece)  # an earlier step's: the later one holds it for longer
                    self._held[piece] = (ranges, number)
                    pieces_of_step[piece] = None
                    self.taken_bytes += span.nbytes
        return Claim.GRANTED

    def fetch(self, unit: tuple[Ranges, ...]) -> int:
        try:
            missing: Sequence[Ranges] = unit
            if len(unit) > 1:
                missing = self._take_cached(unit)
            if missing:
                self._read_at_once(missing)
        finally:
            self.give_back(unit)
        return _unit_bytes(unit)

    def _read_at_once(self, missing: Sequence[Ranges]) -> None:
        """Read the ranges of some objects side by side. Raises: as the store, once all reads have ended."""
        first, *others = missing
        if not others:
            self._read(first)
            return
        with DaemonPool(MISSES_AT_ONCE - 1, "penstock-missing") as pool:
            reads: list[Future[None]] = []
            for ranges in others:
                # The context counts requests, and limits retries.
                context = copy_context()
                read = pool.submit(context.run, self._read, ranges)
                reads.append(read)
            self._read(first)
            for read in reads:
                read.result()

    def _read(self, ranges: Ranges) -> None:
        """Read the ranges of one object from its store."""
        store = self._stores[ranges.view]
        blobs = store.get_ranges(ranges.key, ranges.spans)
        with suppress(InvalidStateError):  # given back, because the process ends
            ranges.blobs.set_result(blobs)

    def _take_cached(self, unit: tuple[Ranges, ...]) -> list[Ranges]:
        """Set the data of all ranges of a view that its cache has, by one call; return the others."""
        store = self._stores[unit[0].view]
        assert isinstance(store, CachedStore)
        requests = [(ranges.key, ranges.spans) for ranges in unit]
        blobs_of_unit = store.get_cached_ranges(requests)
        missing: list[Ranges] = []
        for ranges, blobs in zip(unit, blobs_of_unit, strict=True):
            if blobs is None:
                missing.append(ranges)
            else:
                ranges.blobs.set_result(blobs)
        return missing

    def give_back(self, unit: tuple[Ranges, ...]) -> None:
        """Let batches read what this unit did not."""
        for ranges in unit:
            if not ranges.blobs.done():
                with suppress(InvalidStateError):  # read meanwhile
                    ranges.blobs.set_result(None)

    def passed(self, step: int) -> None:
        with self._lock:
            past_steps = [past for past in self._of_step if past < step]
            for past in past_steps:
                wasted = list(self._of_step[past])  # no batch took them
                for piece in wasted:
                    self._drop(piece)
                self._wasted += len(wasted)
                del self._of_step[past]

    def forget(self) -> None:
        with self._lock:
            self._held.clear()
            self._of_step.clear()
            self.taken_bytes = 0

    def take(self, view: int, key: str, spans: Sequence[ByteRange]) -> list[Blob | None]:
        """Return each range that was read ahead, after waiting for pending reads; None for others."""
        pieces: list[tuple[Ranges, int] | None] = []
        with self._lock:
            for span in spans:
                piece = (view, key, span)
                held = self._drop(piece)
                pieces.append(held)
                if held is not None:
                    self._used += 1
        results: list[Blob | None] = []
        for held in pieces:
            blob = None
            if held is not None:
                ranges, number = held
                blobs = ranges.blobs.result()
                if blobs:
                    blob = blobs[number]
            results.append(blob)
        return results

    def is_read(self, view: int, key: str, span: tuple[int, int]) -> bool:
        """Return whether a range was read ahead and waits in memory."""
        piece = (view, key, ByteRange(*span))
        held = self._held.get(piece)
        return held is not None and held[0].blobs.done()

    def _drop(self, piece: Piece) -> tuple[Ranges, int] | None:
        """Release a piece's memory; return its entry in `_held`, None without one. The caller has the lock."""
        held = self._held.pop(piece, None)
        if held is not None:
            _, _, span = piece
            self.taken_bytes -= span.nbytes
            ranges, _ = held
            del self._of_step[ranges.step][piece]
        return held


class AheadReader:
    """Returns a view's ranges from those read ahead, and reads the others from its store."""

    def __init__(
        self,
        ahead: RangesAhead,
        view: int,
        store: RangeReader,
    ) -> None:
        self._ahead = ahead
        self._view = view
        self._store = store

    @property
    def url(self) -> str:
        return self._store.url

    def is_read_ahead(self, key: str, span: tuple[int, int]) -> bool:
        return self._ahead.is_read(self._view, key, span)

    def get_range(
        self,
        key: str,
        offset: int,
        nbytes: int,
        etag: str | None = None,
    ) -> Blob:
        return self._store.get_range(key, offset, nbytes, etag)

    def get_ranges(
        self,
        key: str,
        spans: Sequence[ByteRange],
        *,
        etag: str | None = None,
        **limits: Unpack[ReadLimits],
    ) -> list[Blob]:
        """Return the ranges, as every store does.

        A range whose ETag is not the pinned one is read again from the store, which raises the error.
        """
        ranges = [ByteRange(*span) for span in spans]
        pieces = self._ahead.take(self._view, key, ranges)
        missing: list[ByteRange] = []
        for number, blob in enumerate(pieces):
            if blob is not None and etag is not None and blob.etag != etag:
                pieces[number] = None
            if pieces[number] is None:
                missing.append(ranges[number])
        read: list[Blob] = []
        if missing or not ranges:
            read = self._store.get_ranges(
                key,
                missing,
                etag=etag,
                **limits,
            )
        rest = iter(read)
        blobs: list[Blob] = []
        for blob in pieces:
            if blob is None:
                blob = next(rest)
            blobs.append(blob)
        return blobs


def _spans(extents: Extents) -> list[ByteRange]:
    """Return the ranges as objects, in the same order."""
    offsets = extents.offset.tolist()
    sizes = extents.nbytes.tolist()
    return list(map(ByteRange, offsets, sizes))


def _unit_bytes(unit: Sequence[Ranges]) -> int:
    return sum(ranges.nbytes for ranges in unit)
