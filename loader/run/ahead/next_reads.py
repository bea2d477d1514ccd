"""The reads that the next steps need, computed from the order, and the pages that have them."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...cache.cached_store import CachedStore
from ...cache.memory import MemoryPages
from ...cache.page_cache import Absence, Grant
from ...dataset.reading.sample_places import Map
from ...modalities.video.packet_table import SUFFIX
from ...order.random.keyed_permutation import I64
from ..recipe.document_pieces import find_pieces
from ..recipe.rank_slots import Locate, LocatedSamples, SlotPlanner, real_slots
from ..recipe.recipe import Recipe, window_views
from ..recipe.video_groups import Group
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
            parted: set[str] = set()  # fields of which a sample reads only parts: frames, or rows of a window
            for group in videos[source]:
                parted.update(field for field in group if field + SUFFIX in view.version.fields)
            windowed = windows[source]
            if windowed is not None:
                parted |= set(windowed.layout.at)
            fields[source] = tuple(field for field in view.fields if field not in parted)
        self._locate = Locate(recipe.stored, fields, dict.fromkeys(fields), windows)
        self._plan_slots = SlotPlanner(recipe, end, self._locate)

    def __call__(self, step: int) -> dict[int, dict[str, Extents]] | None:
        """Return view -> shard path -> ranges; None after the last step."""
        if self._end is not None and step >= self._end:
            return None
        samples = self._samples(step)
        if samples is None:
            return None
        out: dict[int, dict[str, Extents]] = {}
        for located in samples:
            out.update(by_path(located))
        return dict(sorted(out.items()))

    def _samples(self, step: int) -> Sequence[LocatedSamples] | None:
        """Return the samples that a step reads; None after the last step."""
        # A look-up for many steps costs a twentieth of one for each.
        planned = self._plan_slots.planned_ahead([step])
        if planned is not None and planned.located is not None:
            return planned.located
        slots, rows = real_slots(self._recipe, step)
        if not len(rows):
            return None
        if self._recipe.plan.pack is not None:
            pieces = find_pieces(self._recipe.plan, step, slots, rows)
            slots = pieces.documents
            rows = np.flatnonzero(~pieces.is_masked)
        return self._locate(slots, rows, self._run)


def by_path(located: LocatedSamples) -> dict[int, dict[str, Extents]]:
    """Return source -> shard path -> the ranges of the samples' fields."""
    by_source: dict[int, dict[str, list[Extents]]] = {}
    for at in located.places.fields.values():
        for shard, rows_of_shard in at.by_shard():
            source = located.kind.sources[shard.version]
            paths = by_source.setdefault(source, {})
            extents = Extents(at.offset[rows_of_shard], at.nbytes[rows_of_shard])
            paths.setdefault(shard.path, []).append(extents)
    joined: dict[int, dict[str, Extents]] = {}
    for source, paths in by_source.items():
        joined[source] = {path: _joined(extents) for path, extents in paths.items()}
    return joined


def _joined(extents: Sequence[Extents]) -> Extents:
    """Return the ranges of several fields of a shard as one."""
    if len(extents) == 1:
        return extents[0]
    offset = np.concatenate([one.offset for one in extents])
    nbytes = np.concatenate([one.nbytes for one in extents])
    return Extents(offset, nbytes)


class ObjectPage(NamedTuple):
    store: CachedStore
    """Store that the page is read from."""
    key: str
    number: int
    """The page's number in the object."""


class PagesAhead:
    """Pages in the order of their next use.

    memory: memory for pages, which are claimed there when they are planned. None if pages are only in a folder.

    overflow: the folder that `memory` belongs to. A page that it keeps is claimed there by the fetch, because the claim
    expires soon (`claims.CLAIM_S`). None without a folder, or if the folder has no memory.

    count_pages: returns the number of all pages of the views.
    """

    def __init__(
        self,
        steps: Steps,
        stores: Mapping[int, CachedStore],
        page_bytes: int,
        memory: MemoryPages | None,
        count_pages: Callable[[], int],
        overflow: "FolderWithMemory | None" = None,
    ) -> None:
        self._steps = steps
        self._stores = stores
        self._page_bytes = page_bytes
        self._memory = memory
        self._count_pages = count_pages
        self._overflow = overflow
        self._nonces: dict[ObjectPage, Hashable] = {}  # of the claims on memory that `fetch` has not ended

    def units(self, step: int) -> Sequence[ObjectPage] | None:
        if self._memory is not None and len(self._memory) >= self._n_pages:
            return []  # all pages are in memory: the steps need not be planned
        pages_of_step = self._steps(step)
        if pages_of_step is None:
            return None
        pages: list[ObjectPage] = []
        for view, shards in pages_of_step.items():
            store = self._stores.get(view)
            if store is None:
                continue
            for key, extents in shards.items():
                if store.has_pages(key):
                    numbers = extent_pages(extents, self._page_bytes)
                    pages.extend(ObjectPage(store, key, number) for number in numbers)
        return pages

    @cached_property
    def _n_pages(self) -> int:
        """Number of all pages. Counted once it is needed: that reads the lists of shards."""
        return self._count_pages()

    def expect(self, step: int, units: Sequence[ObjectPage]) -> None:
        if self._memory is not None:
            self._memory.needs(step, [page.store.page_name(page.key, page.number) for page in units])

    def claim(self, unit: ObjectPage) -> Claim:
        if self._overflow is None and self._memory is not None:
            answer = unit.store.claim(unit.key, unit.number)
            has_page = not isinstance(answer, Grant | Absence)
            if has_page or answer is Absence.COMING:
                return Claim.NEEDLESS
        else:
            # Nothing is claimed in the folder: `fetch` does.
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
        """Fetch a page into the memory that `claim` reserved, else into the folder. Return the bytes read.

        Returns 0 if the folder has the page meanwhile, does not keep it, or another reader fetches it.
        """
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


def extent_pages(extents: Extents, page_bytes: int) -> list[int]:
    """Return the numbers of the pages that have bytes of an object's ranges, ascending."""
    is_read = extents.nbytes > 0
    offset = extents.offset[is_read]
    nbytes = extents.nbytes[is_read]
    last_byte = offset + nbytes - 1
    low = offset // page_bytes  # [ranges]: first page of each
    high = last_byte // page_bytes  # [ranges]: last page of each
    most = int((high - low).max(initial=0))
    # [ranges, most + 1]: the pages of each range; a shorter one repeats its last page.
    following = low[:, None] + np.arange(most + 1)
    numbers = np.minimum(following, high[:, None])
    return sorted(set(numbers.ravel().tolist()))
