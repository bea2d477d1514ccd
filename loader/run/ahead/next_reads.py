"""The reads that the next steps need, computed from the order and fetched as pages or as ranges."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from itertools import starmap
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from ...cache.answers import Absence, Grant
from ...cache.cached_store import CachedStore
from ...cache.memory import MemoryPages
from ...dataset.reading.places import Map
from ...dataset.versions.version import Version
from ...dataset.versions.view import View
from ...modalities.video.packet_table import SUFFIX
from ...order.plan import PlannedSource
from ...order.random.keyed_permutation import I64
from ...order.sources.packing import PackedView
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
            slots, rows = pieces.documents, np.flatnonzero(~pieces.is_masked)
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
        self._steps, self._stores, self._page_bytes = steps, stores, page_bytes
        self._memory, self._pages = memory, pages
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
        folder = self._overflow.folder if self._overflow is not None else None
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


REQUEST_BYTES = 64 * 2**10
"""A request's cost in bytes: the largest gap that `plan_reads` bridges."""


def working_set_bytes(
    sources: Sequence[PlannedSource], views: Sequence[View], page_bytes: int, world_size: int = 1
) -> int:
    """Return the cache size in bytes with which every page of these sources is fetched once per epoch.

    world_size: ranks that share the chunks; 1 if all use the cache.
    """
    live: dict[str, int] = {}
    stored: dict[str, dict[str, int]] = {}
    for source, view in zip(sources, views, strict=True):
        version, shape = view.version, source.shape
        bodies = group_bodies(view)
        whole = {group: int(body["nbytes"]) for group, body in bodies.items()}
        stored.setdefault(version.id, {}).update(whole)
        # A predicate spreads a chunk over more of the shard, at most a page for each of its samples.
        alone = sum(-(-body["nbytes"] // max(body["n_rows"], 1)) + page_bytes for body in bodies.values())
        if isinstance(source.view, PackedView):  # a sequence's documents may be anywhere in their block
            needed = sum(whole.values())
        elif shape.chunk == 1:
            needed = shape.n * alone
        else:
            per_sample = min(-(-sum(whole.values()) // shape.n), alone)
            needed = -(-shape.live_samples * per_sample // world_size)
            needed += -(-shape.lanes * shape.rounds_h * page_bytes // world_size)
        live[version.id] = live.get(version.id, 0) + needed
    return sum(min(needed, sum(stored[version].values())) for version, needed in live.items())


def pages_pay(
    sources: Sequence[PlannedSource], views: Sequence[View], page_bytes: int, world_size: int
) -> bool:
    """Return whether pages cost this rank less than ranges in an epoch, if each request costs REQUEST_BYTES.

    In a full shuffle a rank uses one in `world_size` samples of a page; in chunks it uses all.
    """
    by_page = by_range = 0.0
    for source, view in zip(sources, views, strict=True):
        n = len(view) / (world_size if source.shape.chunk == 1 else 1)  # documents, in a packed source
        for body in group_bodies(view).values():
            rows = max(body["n_rows"], 1)
            chosen = sum(nbytes for field, nbytes in body["field_nbytes"].items() if field in view.fields)
            by_range += n * (chosen / rows + REQUEST_BYTES)
            pages = min(-(-body["nbytes"] // page_bytes), n)
            by_page += min(body["nbytes"], pages * page_bytes) + pages * REQUEST_BYTES
    return by_page <= by_range


def read_ahead_bytes(views: Sequence[View], steps: int, batch: int, world_size: int) -> int:
    """Return the bytes of the samples that a rank reads in `steps` steps of `batch` slots."""
    per_sample = 0
    for view in views:
        nbytes = 0
        for body in group_bodies(view).values():
            chosen = sum(size for field, size in body["field_nbytes"].items() if field in view.fields)
            nbytes += -(-chosen // max(body["n_rows"], 1))
        per_sample = max(per_sample, nbytes)
    return steps * -(-batch // world_size) * per_sample


def stored_bytes(views: Sequence[View]) -> int:
    """Return the bytes of all shards of these views' groups."""
    stored: dict[tuple[str, str], int] = {}
    for view in views:
        for group, body in group_bodies(view).items():
            stored[view.version.id, group] = int(body["nbytes"])
    return sum(stored.values())


def group_bodies(view: View) -> dict[str, dict[str, Any]]:
    version: Version = view.version
    return {group: version.manifest["groups"][group] for group in map(version.group_of, view.fields)}


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


class RangesAhead:
    """Reads the next batches' ranges ahead and holds at most `limit_bytes` of them. Thread-safe.

    stores: view -> its store.
    """

    def __init__(self, steps: Steps, stores: Mapping[int, RangeReader], limit_bytes: int) -> None:
        self._steps, self._stores, self._limit_bytes = steps, stores, limit_bytes
        self._lock = Lock()
        self._held: dict[tuple[int, str, ByteRange], tuple[Ranges, int]] = {}
        self._of_step: dict[int, list[Ranges]] = {}
        self.taken_bytes = 0
        self._used = self._wasted = 0  # numbers of ranges

    def units(self, step: int) -> Sequence[Ranges] | None:
        units = self._steps(step)
        if units is None:
            return None
        return [
            Ranges(step, view, key, [*starmap(ByteRange, zip(*map(_list, extents), strict=True))], Future())
            for view, shards in units.items()
            if view in self._stores
            for key, extents in shards.items()
        ]

    def expect(self, step: int, units: Sequence[Ranges]) -> None: ...

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

    def _drop(self, view: int, key: str, span: ByteRange) -> tuple[Ranges, int] | None:
        blob = self._held.pop((view, key, span), None)
        if blob is not None:
            self.taken_bytes -= span.nbytes
        return blob


class AheadReader:
    """Returns a view's ranges from those read ahead, and reads the others from its store."""

    def __init__(self, ahead: RangesAhead, view: int, store: RangeReader) -> None:
        self._ahead, self._view, self._store = ahead, view, store

    @property
    def url(self) -> str:
        return self._store.url

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


def _list(values: I64) -> list[int]:
    out: list[int] = values.tolist()
    return out
