"""The reads that the next steps need, computed from the order and fetched as pages or as ranges."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Unpack

import numpy as np

from ...cache.answers import Absence, Grant
from ...cache.cached_store import CachedStore
from ...cache.memory import MemoryPages
from ...dataset.reading.places import Map
from ...modalities.video.packet_table import SUFFIX
from ...order.random.keyed_permutation import I64
from ...storage import Blob, ByteRange, RangeReader, ReadLimits
from ..recipe.document_pieces import find_pieces
from ..recipe.rank_slots import Locate, LocatedSamples, real_slots
from ..recipe.recipe import Recipe, window_views
from ..recipe.video_packet_reads import Group
from .read_ahead import Claim

if TYPE_CHECKING:
    from ...cache.overflow import FolderWithMemory


class Extents(NamedTuple):
    """Byte ranges [offset, offset + nbytes) of one object; int64 arrays of one length."""

    offset: I64
    """int64 [n]: first byte."""
    nbytes: I64
    """int64 [n]: number of bytes."""


Steps = Callable[[int], Mapping[int, Mapping[str, Extents]] | None]
"""Step -> view -> shard path -> ranges to read; None after the last step."""


class RankFuture:
    """Computes the ranges that a rank reads in a step.

    videos: source -> the groups of its video fields. Fields with packet tables are skipped.
    end: first step that is not made; None for an endless run.
    """

    def __init__(
        self,
        recipe: Recipe,
        videos: Mapping[int, Sequence[Group]],
        end: int | None,
        run: Map,
    ) -> None:
        self._recipe = recipe
        self._end = end
        self._run = run
        fields: dict[int, tuple[str, ...]] = {}
        windows = window_views(recipe.plan)
        for source, view in recipe.stored.items():
            parted: set[str] = set()
            for group in videos[source]:
                parted |= {field for field in group if field + SUFFIX in view.version.fields}
            windowed = windows[source]
            if windowed is not None:
                parted |= set(windowed.layout.at)
            fields[source] = tuple(field for field in view.fields if field not in parted)
        self._locate = Locate(recipe.stored, fields, dict.fromkeys(fields), windows)

    def __call__(self, step: int) -> dict[int, dict[str, Extents]] | None:
        """Return view -> shard path -> ranges; None after the last step."""
        if self._end is not None and step >= self._end:
            return None
        slots, rows = real_slots(self._recipe, step)
        if not len(rows):
            return None
        if self._recipe.plan.pack is not None:
            pieces = find_pieces(self._recipe.plan, step, slots, rows)
            slots = pieces.documents
            rows = np.flatnonzero(~pieces.is_masked)
        out = {}
        for located in self._locate(slots, rows, self._run):
            out.update(by_path(located))
        return dict(sorted(out.items()))


def by_path(located: LocatedSamples) -> dict[int, dict[str, Extents]]:
    extents_of: dict[int, dict[str, list[Extents]]] = {}
    for at in located.places.fields.values():
        for shard, rows_of_shard in at.by_shard():
            paths = extents_of.setdefault(located.kind.sources[shard.version], {})
            paths.setdefault(shard.path, []).append(
                Extents(at.offset[rows_of_shard], at.nbytes[rows_of_shard])
            )
    return {
        source: {
            path: Extents(*(np.concatenate(column) for column in zip(*extents, strict=True)))
            for path, extents in paths.items()
        }
        for source, paths in extents_of.items()
    }


class ObjectPage(NamedTuple):
    store: CachedStore
    """Store that the page is read from."""
    key: str
    number: int
    """The page's number in the object."""


class PagesAhead:
    """Pages in the order of their next use.

    memory: memory for pages, which are claimed there when they are planned; None without.

    overflow: the folder with that memory, whose claims live no longer than the fetch; None without.

    pages: returns the number of all pages.
    """

    def __init__(
        self,
        steps: Steps,
        stores: Mapping[int, CachedStore],
        page_bytes: int,
        memory: MemoryPages | None,
        pages: Callable[[], int],
        overflow: "FolderWithMemory | None" = None,
    ) -> None:
        self._steps = steps
        self._stores = stores
        self._page_bytes = page_bytes
        self._memory = memory
        self._pages = pages
        self._overflow = overflow
        self._nonces: dict[ObjectPage, Hashable] = {}  # of the claims on memory

    def units(self, step: int) -> Sequence[ObjectPage] | None:
        if self._memory is not None and len(self._memory) >= self._in_all:
            return []
        pages_of_step = self._steps(step)
        if pages_of_step is None:
            return None
        return [
            ObjectPage(self._stores[view], key, number)
            for view, shards in pages_of_step.items()
            if view in self._stores
            for key, extents in shards.items()
            if self._stores[view].has_pages(key)
            for number in pages_of(extents, self._page_bytes)
        ]

    @cached_property
    def _in_all(self) -> int:
        return self._pages()

    def expect(self, step: int, units: Sequence[ObjectPage]) -> None:
        if self._memory is not None:
            self._memory.needs(step, [page.store.page_name(page.key, page.number) for page in units])

    def claim(self, unit: ObjectPage) -> Claim:
        if self._overflow is None and self._memory is not None:
            answer = unit.store.claim(unit.key, unit.number)
            if not isinstance(answer, Grant | Absence) or answer is Absence.COMING:
                return Claim.NEEDLESS
        else:
            if unit.store.is_here(unit.key, unit.number):
                return Claim.NEEDLESS
            answer = Absence.NOT_KEPT
            if self._overflow is not None:
                name = unit.store.page_name(unit.key, unit.number)
                nbytes = unit.store.page_nbytes(unit.key, unit.number)
                answer = self._overflow.claim_memory(name, nbytes)
        if answer is Absence.NO_ROOM:
            return Claim.NO_ROOM
        if isinstance(answer, Grant):
            self._nonces[unit] = answer.nonce
        return Claim.GRANTED

    def fetch(self, unit: ObjectPage) -> int:
        """Fetch a page into the memory that it has, else into the folder if that keeps it."""
        nonce = self._nonces.pop(unit, None)
        if nonce is not None:
            return unit.store.keep(unit.key, unit.number, nonce, self._memory)
        folder = None
        if self._overflow is not None:
            folder = self._overflow.folder
        answer = unit.store.claim(unit.key, unit.number, folder)
        if isinstance(answer, Grant):
            return unit.store.keep(unit.key, unit.number, answer.nonce, folder)
        return 0

    def give_back(self, unit: ObjectPage) -> None:
        nonce = self._nonces.pop(unit, None)
        if nonce is not None:
            unit.store.give_back(unit.key, unit.number, nonce, self._memory)

    def passed(self, step: int) -> None:
        if self._memory is not None:
            self._memory.passed(step)

    def forget(self) -> None:
        if self._memory is not None:
            self._memory.forget()


def pages_of(extents: Extents, page_bytes: int) -> list[int]:
    is_read = extents.nbytes > 0
    low = extents.offset[is_read] // page_bytes
    high = (extents.offset[is_read] + extents.nbytes[is_read] - 1) // page_bytes
    most = int((high - low).max(initial=0))
    numbers = np.minimum(low[:, None] + np.arange(most + 1), high[:, None])
    return sorted(set(numbers.ravel().tolist()))


Blobs = Sequence[Blob] | None
"""A blob per range; None if the read failed."""


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
    blobs: "Future[Blobs]"
    """Data of the ranges, once read."""


APART_STEPS = 16
"""Steps whose objects are read side by side after a start, or after a read of the bucket.

As many steps are read ahead. Then pages are all in caches, and one call for a step costs a tenth of one per object.
"""
TOGETHER_SHARE = 0.25
"""Largest share of the memory for ranges that one call may read."""


class RangesAhead:
    """Reads the next batches' ranges ahead and holds at most `limit_bytes` of them. Thread-safe.

    A unit is the ranges of one object, or the ranges of all objects of a view while the caches have all pages.

    stores: view -> its store.
    """

    def __init__(self, steps: Steps, stores: Mapping[int, RangeReader], limit_bytes: int) -> None:
        self._steps = steps
        self._stores = stores
        self._limit_bytes = limit_bytes
        self._lock = Lock()
        self._held: dict[tuple[int, str, ByteRange], tuple[Ranges, int]] = {}
        self._of_step: dict[int, list[Ranges]] = {}
        self.taken_bytes = 0
        self._used = self._wasted = 0  # numbers of ranges
        self._origin_reads = -1  # at the last look; a start counts as a read
        self._together_from = 0  # first step whose objects are read by one call

    def units(self, step: int) -> Sequence[tuple[Ranges, ...]] | None:
        shards_of_view = self._steps(step)
        if shards_of_view is None:
            return None
        units: list[tuple[Ranges, ...]] = []
        for view, shards in shards_of_view.items():
            if view not in self._stores:
                continue
            ranges = [Ranges(step, view, key, _spans(extents), Future()) for key, extents in shards.items()]
            if self._are_read_together(step, ranges):
                units.append(tuple(ranges))
            else:
                units.extend(zip(ranges))
        return units

    def _are_read_together(self, step: int, ranges: Sequence[Ranges]) -> bool:
        """Return whether one call reads a step's ranges: one after the other, if the bucket has them."""
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
        return sum(map(_nbytes, ranges)) <= TOGETHER_SHARE * self._limit_bytes

    def expect(self, step: int, units: Sequence[tuple[Ranges, ...]]) -> None: ...

    def claim(self, unit: tuple[Ranges, ...]) -> Claim:
        unit_bytes = sum(map(_nbytes, unit))
        with self._lock:
            if self._wasted > self._used + WASTED_MAX:
                return Claim.NO_ROOM
            if self.taken_bytes + unit_bytes > self._limit_bytes:
                return Claim.NO_ROOM
            for ranges in unit:
                for number, span in enumerate(ranges.spans):
                    self._drop(ranges.view, ranges.key, span)
                    self._held[ranges.view, ranges.key, span] = ranges, number
                    self.taken_bytes += span.nbytes
                self._of_step.setdefault(ranges.step, []).append(ranges)
        return Claim.GRANTED

    def fetch(self, unit: tuple[Ranges, ...]) -> int:
        try:
            missing: Sequence[Ranges] = unit
            if len(unit) > 1:
                missing = self._take_cached(unit)
            for ranges in missing:
                blobs = self._stores[ranges.view].get_ranges(ranges.key, ranges.spans)
                ranges.blobs.set_result(blobs)
        finally:
            self.give_back(unit)
        return sum(map(_nbytes, unit))

    def _take_cached(self, unit: tuple[Ranges, ...]) -> list[Ranges]:
        """Set the data of all ranges of a view that its cache has, by one call; return the others."""
        store = self._stores[unit[0].view]
        assert isinstance(store, CachedStore)
        blobs_of_unit = store.get_cached_ranges([(ranges.key, ranges.spans) for ranges in unit])
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
                ranges.blobs.set_result(None)

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

    def take(self, view: int, key: str, spans: Sequence[ByteRange]) -> list[Blob | None]:
        """Return each range that was read ahead, after waiting for pending reads; None for others."""
        with self._lock:
            pieces = [self._drop(view, key, span) for span in spans]
            self._used += sum(piece is not None for piece in pieces)
        results = []
        for piece in pieces:
            blobs = piece and piece[0].blobs.result()
            results.append(blobs[piece[1]] if piece and blobs else None)
        return results

    def is_read(self, view: int, key: str, span: tuple[int, int]) -> bool:
        """Return whether a range was read ahead and waits in memory."""
        piece = self._held.get((view, key, ByteRange(*span)))
        return piece is not None and piece[0].blobs.done()

    def _drop(self, view: int, key: str, span: ByteRange) -> tuple[Ranges, int] | None:
        blob = self._held.pop((view, key, span), None)
        if blob is not None:
            self.taken_bytes -= span.nbytes
        return blob


class AheadReader:
    """Returns a view's ranges from those read ahead, and reads the others from its store."""

    def __init__(self, ahead: RangesAhead, view: int, store: RangeReader) -> None:
        self._ahead = ahead
        self._view = view
        self._store = store

    @property
    def url(self) -> str:
        return self._store.url

    def is_read_ahead(self, key: str, span: tuple[int, int]) -> bool:
        return self._ahead.is_read(self._view, key, span)

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        return self._store.get_range(key, offset, nbytes, etag)

    def get_ranges(
        self, key: str, spans: Sequence[ByteRange], *, etag: str | None = None, **limits: Unpack[ReadLimits]
    ) -> list[Blob]:
        """Return the ranges, as every store does.

        A range whose ETag is not the pinned one is read again from the store, which raises the error.
        """
        blobs = self._ahead.take(self._view, key, [ByteRange(*span) for span in spans])
        held = [blob if blob is None or etag in (None, blob.etag) else None for blob in blobs]
        missing = [span for span, blob in zip(spans, held, strict=True) if blob is None]
        read = iter(self._store.get_ranges(key, missing, etag=etag, **limits) if missing or not held else ())
        return [next(read) if blob is None else blob for blob in held]


def _spans(extents: Extents) -> list[ByteRange]:
    return list(map(ByteRange, extents.offset.tolist(), extents.nbytes.tolist()))


def _nbytes(ranges: Ranges) -> int:
    return sum([span.nbytes for span in ranges.spans])
