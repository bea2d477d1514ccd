"""Ranges read ahead: where pages would not be used again in time, the very ranges that the next batches ask for."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import starmap
from threading import Lock
from typing import NamedTuple, Unpack

from ...cache.cached_store import Claim
from ...order.random.keyed_permutation import I64
from ...storage import Blob, RangeReader, ReadLimits, Span
from .next_reads import Steps

Blobs = Sequence[Blob] | None
"""A blob per range that was read; None where it could not be."""


WASTED_MAX = 256
"""Ranges that may be read in vain before that counts: a seek leaves some."""


class Ranges(NamedTuple):
    """Ranges that one step reads of one object."""

    step: int
    """The step."""
    view: int
    """Number of the view."""
    key: str
    """Key of the object."""
    spans: Sequence[Span]
    """The ranges."""
    blobs: "Future[Blobs]"
    """Result of the read."""


class RangesAhead:
    """Reads the ranges of the next batches and holds them until they are asked for: at most `limit_bytes`. Thread-safe.

    stores: view -> the store it is read from.

    It stops where more of what it held was passed than was taken. In a process that makes every n-th batch, or where
    the transform reads something else, it would read in vain.
    """

    def __init__(self, steps: Steps, stores: Mapping[int, RangeReader], limit_bytes: int) -> None:
        self._steps, self._stores, self._limit_bytes = steps, stores, limit_bytes
        self._lock = Lock()
        self._held: dict[tuple[int, str, Span], tuple[Ranges, int]] = {}
        self._of_step: dict[int, list[Ranges]] = {}
        self.taken_bytes = 0
        self._used = self._wasted = 0  # ranges

    def units(self, step: int) -> Sequence[Ranges] | None:
        units = self._steps(step)
        if units is None:
            return None
        return [
            Ranges(step, view, key, [*starmap(Span, zip(*map(_list, extents), strict=True))], Future())
            for view, shards in units.items()
            if view in self._stores
            for key, extents in shards.items()
        ]

    def expect(self, step: int, units: Sequence[Ranges]) -> None:
        """Do nothing: what is fetched is for one step."""

    def claim(self, unit: Ranges) -> Claim:
        with self._lock:
            if self._wasted > self._used + WASTED_MAX:
                return Claim.NO_ROOM
            if self.taken_bytes + sum(span.nbytes for span in unit.spans) > self._limit_bytes:
                return Claim.NO_ROOM
            for number, span in enumerate(unit.spans):
                self._drop(unit.view, unit.key, span)
                self._held[unit.view, unit.key, span] = unit, number
                self.taken_bytes += span.nbytes
            self._of_step.setdefault(unit.step, []).append(unit)
        return Claim.GRANTED

    def fetch(self, unit: Ranges) -> int:
        blobs: Blobs = None
        try:
            blobs = self._stores[unit.view].get_ranges(unit.key, unit.spans)
        finally:
            unit.blobs.set_result(blobs)
        return sum(span.nbytes for span in unit.spans)

    def give_back(self, unit: Ranges) -> None:
        unit.blobs.set_result(None)

    def passed(self, step: int) -> None:
        with self._lock:
            for earlier in [earlier for earlier in self._of_step if earlier < step]:
                for unit in self._of_step.pop(earlier):
                    for span in unit.spans:
                        if self._held.get((unit.view, unit.key, span), (None,))[0] is unit:
                            self._drop(unit.view, unit.key, span)
                            self._wasted += 1

    def forget(self) -> None:
        with self._lock:
            self._held.clear()
            self._of_step.clear()
            self.taken_bytes = 0

    def take(self, view: int, key: str, spans: Sequence[Span]) -> list[Blob | None]:
        """Return each range that was read ahead, or is being read, which is waited for; None for others.

        They are the caller's now.
        """
        with self._lock:
            pieces = [self._drop(view, key, span) for span in spans]
            self._used += sum(piece is not None for piece in pieces)
        results = []
        for piece in pieces:
            blobs = piece and piece[0].blobs.result()
            results.append(blobs[piece[1]] if piece and blobs else None)
        return results

    def _drop(self, view: int, key: str, span: Span) -> tuple[Ranges, int] | None:
        blob = self._held.pop((view, key, span), None)
        if blob is not None:
            self.taken_bytes -= span.nbytes
        return blob


class AheadReader:
    """Reads a view's ranges from what was read ahead, and the others from its store."""

    def __init__(self, ahead: RangesAhead, view: int, store: RangeReader) -> None:
        self._ahead, self._view, self._store = ahead, view, store

    @property
    def url(self) -> str:
        return self._store.url

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        """Return a range from the store: a reader asks for one range when the bytes it got before were wrong."""
        return self._store.get_range(key, offset, nbytes, etag)

    def get_ranges(
        self, key: str, spans: Sequence[Span], *, etag: str | None = None, **limits: Unpack[ReadLimits]
    ) -> list[Blob]:
        """Return the ranges, as every store.

        A range read ahead of another object than the pinned one is read again, and refused.
        """
        blobs = self._ahead.take(self._view, key, [Span(*span) for span in spans])
        held = [blob if blob is None or etag in (None, blob.etag) else None for blob in blobs]
        missing = [span for span, blob in zip(spans, held, strict=True) if blob is None]
        read = iter(self._store.get_ranges(key, missing, etag=etag, **limits) if missing or not held else ())
        return [next(read) if blob is None else blob for blob in held]


def _list(values: I64) -> list[int]:
    out: list[int] = values.tolist()
    return out
