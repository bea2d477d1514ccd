"""The choice between pages and ranges for a loader's remote sources."""

from collections.abc import Sequence
from typing import Any

from ...cache.memory import MemoryPages, Sets
from ...dataset.versions.version import Version, View
from ...local_ranks import node_count
from ...order.plan import PlannedSource
from ...order.sources.packing import PackedView
from ..recipe.recipe import Recipe

REQUEST_BYTES = 64 * 2**10
"""A request's cost in bytes: the largest gap that `plan_reads` bridges."""
RANGES_BYTES = 256 * 2**20
"""Most bytes of ranges that wait for later batches. A folder has them in addition, a memory within its limit."""
RANGES_STEPS = 16
OVERFLOW_BYTES = RANGES_BYTES
"""Most bytes of pages in memory beside a folder, instead of ranges."""
CLAIM_HALVES = 0.5
"""Fraction of a page from which a batch fetches all of it, if pages are read ahead."""
CLAIM_ALL = 0.0
"""The same if only ranges are read ahead, which bring no pages."""
CLAIM_NONE = 2.0
"""The same if pages cost more than they save. Pages that are in the cache are used."""


class ReadChoice:
    """The choice for the remote sources of a recipe.

    remote: indexes of the sources in the plan. limit: bytes of the cache.

    is_folder: the ranks of a node share the cache; otherwise it belongs to one rank.

    can_overflow: memory may hold pages that the folder does not keep.

    peers: nodes that keep pages for each other, else 0.
    """

    def __init__(
        self,
        recipe: Recipe,
        remote: Sequence[int],
        page_bytes: int,
        limit: int,
        *,
        is_folder: bool,
        can_overflow: bool,
        peers: int = 0,
    ) -> None:
        planned = list(recipe.plan.sources.values())
        self._recipe = recipe
        self._page_bytes = page_bytes
        self._limit = limit * max(1, peers)
        self._is_folder = is_folder
        self._peers = peers
        self.sources = [planned[i] for i in remote]
        self.views = [recipe.stored[i] for i in remote]
        self.caches = recipe.world.world_size
        """Number of caches that the ranks have together."""
        if peers:
            self.caches = 1  # a page leaves the bucket once for all of them
        elif is_folder:
            self.caches = min(node_count(), recipe.world.world_size)
        self._stored = shard_bytes(self.views)
        self._live = working_set_bytes(
            self.sources,
            self.views,
            page_bytes,
            self.caches,
        )
        self.pays = pages_pay(
            self.sources,
            self.views,
            page_bytes,
            self.caches,
        )
        """True if whole pages cost less than ranges."""
        self.live_of_rank = working_set_bytes(
            self.sources,
            self.views,
            page_bytes,
            recipe.world.world_size,
        )
        """Bytes of the pages that this rank reads side by side."""
        self.in_pages = self.pays and self._has_room(can_overflow=can_overflow)
        """True if pages are read ahead, False if ranges are."""
        if peers and recipe.plan.pack is None:
            # A page stays at its peer. Reading it ahead asks the peer once more than its ranges, and brings nothing.
            self.in_pages = False
        self.range_bytes = min(limit, RANGES_BYTES)
        """Most bytes of ranges that are read ahead."""

    def _has_room(self, *, can_overflow: bool) -> bool:
        """Return whether each page that is read ahead can stay until its last use."""
        if not self._is_folder:
            return self._live <= self._limit
        if self._stored <= self._limit:
            return True
        # A folder keeps a fixed share. The other pages that are read side by side are in this rank's memory.
        overflow = 1.0 - self._limit / self._stored
        return can_overflow and self.live_of_rank * overflow <= OVERFLOW_BYTES

    @property
    def live_pages(self) -> int:
        """Number of pages that are read side by side."""
        return -(-self._live // self._page_bytes)

    @property
    def fraction(self) -> float:
        """Fraction of a page from which a batch fetches all of it."""
        if self.in_pages:
            return CLAIM_HALVES
        if self.pays:
            return CLAIM_ALL
        return CLAIM_NONE

    def divide(self, memory: MemoryPages, sets: Sets) -> None:
        """Divide a memory among ranges that are read ahead, pages that stay, and pages that are needed next."""
        if self.in_pages:
            if self._stored > self._limit:
                memory.keep_share(self._limit - self._live, sets, by_need=True)
            return
        if self._recipe.plan.pack is not None:
            self.range_bytes = 0  # nothing is read ahead
        elif self.pays:
            batch = self._recipe.plan.batch_range[1]
            world_size = self._recipe.world.world_size
            needed = read_ahead_bytes(
                self.views,
                RANGES_STEPS,
                batch,
                world_size,
            )
            slack = needed // 4  # samples differ in size
            self.range_bytes = min(self.range_bytes, needed + slack)
        memory.limit_bytes = self._limit - self.range_bytes
        memory.keep_share(memory.limit_bytes, sets, by_need=False)

    def describe(self) -> str:
        """Return the choice with its reasons, for the log."""
        manner = "by ranges, some steps ahead"
        if self.in_pages:
            manner = "in pages, ahead of their next use"
        elif self.pays and self._peers:
            manner += f", and {self._peers} nodes keep pages for each other"
        elif self.pays:
            manner += ", and the cache keeps a fixed share of the pages"
        elif self._is_folder:
            manner += f"; no page is kept: on {self.caches} nodes whole pages cost more than they save. Name its peers"
        return (
            f"{manner}: the data has {self._stored} bytes, the pages that are read side by side have about "
            f"{self._live}, the cache has room for {self._limit}"
        )


def working_set_bytes(
    sources: Sequence[PlannedSource],
    views: Sequence[View],
    page_bytes: int,
    world_size: int = 1,
) -> int:
    """Return the cache size in bytes with which every page of these sources is fetched once per epoch.

    world_size: ranks that share the chunks; 1 if all use the cache.
    """
    live: dict[str, int] = {}
    stored: dict[str, dict[str, int]] = {}
    for source, view in zip(sources, views, strict=True):
        version = view.version
        shape = source.shape
        bodies = group_bodies(view)
        whole = {group: int(body["nbytes"]) for group, body in bodies.items()}
        stored.setdefault(version.id, {}).update(whole)
        # A predicate spreads a chunk over more of the shard, at most a page for each of its samples.
        alone = 0
        for body in bodies.values():
            rows = max(body["n_rows"], 1)
            sample_bytes = -(-body["nbytes"] // rows)
            alone += sample_bytes + page_bytes
        if isinstance(source.view, PackedView):  # a sequence's documents may be anywhere in their block
            needed = sum(whole.values())
        elif shape.chunk == 1:
            needed = shape.n * alone
        else:
            group_bytes = sum(whole.values())
            per_sample = min(-(-group_bytes // shape.n), alone)
            sample_bytes = shape.live_samples * per_sample
            chunk_bytes = shape.lanes * shape.rounds_h * page_bytes
            needed = -(-sample_bytes // world_size)
            needed += -(-chunk_bytes // world_size)
        live[version.id] = live.get(version.id, 0) + needed
    total = 0
    for id, needed in live.items():
        whole_bytes = sum(stored[id].values())
        total += min(needed, whole_bytes)
    return total


def pages_pay(
    sources: Sequence[PlannedSource],
    views: Sequence[View],
    page_bytes: int,
    world_size: int,
) -> bool:
    """Return whether pages cost this rank less than ranges in an epoch, if each request costs REQUEST_BYTES.

    In a full shuffle a rank uses one in `world_size` samples of a page; in chunks it uses all.
    """
    by_page = 0.0
    by_range = 0.0
    for source, view in zip(sources, views, strict=True):
        n: float = len(view)  # documents, in a packed source
        if source.shape.chunk == 1:
            n /= world_size
        for body in group_bodies(view).values():
            rows = max(body["n_rows"], 1)
            chosen = _selected_bytes(view, body)
            by_range += n * (chosen / rows + REQUEST_BYTES)
            all_pages = -(-body["nbytes"] // page_bytes)
            pages = min(all_pages, n)
            by_page += min(body["nbytes"], pages * page_bytes)
            by_page += pages * REQUEST_BYTES
    return by_page <= by_range


def read_ahead_bytes(views: Sequence[View], steps: int, batch: int, world_size: int) -> int:
    """Return the bytes of the samples that a rank reads in `steps` steps of `batch` slots."""
    per_sample = 0
    for view in views:
        nbytes = 0
        for body in group_bodies(view).values():
            rows = max(body["n_rows"], 1)
            chosen = _selected_bytes(view, body)
            nbytes += -(-chosen // rows)
        per_sample = max(per_sample, nbytes)
    slots = -(-batch // world_size)
    return steps * slots * per_sample


def _selected_bytes(view: View, body: dict[str, Any]) -> int:
    """Return the bytes of a group's fields that a view reads."""
    chosen = 0
    for field, nbytes in body["field_nbytes"].items():
        if field in view.fields:
            chosen += nbytes
    return chosen


def shard_bytes(views: Sequence[View]) -> int:
    """Return the bytes of all shards of these views' groups."""
    stored: dict[tuple[str, str], int] = {}
    for view in views:
        for group, body in group_bodies(view).items():
            stored[view.version.id, group] = int(body["nbytes"])
    return sum(stored.values())


def group_bodies(view: View) -> dict[str, dict[str, Any]]:
    version: Version = view.version
    bodies: dict[str, dict[str, Any]] = {}
    for field in view.fields:
        group = version.group_of(field)
        bodies[group] = version.manifest["groups"][group]
    return bodies
