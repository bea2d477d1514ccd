"""One step for one rank: plan, address, fetch, verify, decode, transform, collate. A pure function of the plan."""

from collections.abc import Mapping
from contextlib import nullcontext
from operator import itemgetter
from time import perf_counter
from typing import Any

import numpy as np

from ..cache.spec import CacheSpec, PageMemory
from ..cache.store import waiting_for_no_page
from ..dataset.read import Map
from ..dataset.sample_crc import sample_crcs
from ..errors import Corrupt
from ..order.digest import delivered_digest, slot_identities
from ..order.slots import Slots
from ..storage.traffic import counted
from .batch import Batch, fields_nbytes
from .collate import collate, gathered
from .columns import Allocate, Columns, Room
from .decode import decoders
from .delivered import Delivered
from .fetch import Fetch, Fetched
from .located import Located, located
from .metrics import Metrics
from .node_reads import NodeReads
from .one_sample import OneSample
from .packed_slots import PackedSlots
from .rank_slots import RankSlots, rank_slots
from .recipe import Recipe
from .step_metrics import StepMetrics
from .substitute import Substitute
from .substitution import Substitution
from .video_reads import groups_of, times_field


class Assembler:
    """Makes batches of one recipe; thread-safe. Keeps pinned ETags, nothing else; what it reads may lie in a cache.

    end: the first step that is not made, for which nothing is read ahead. allocate: where a batch's arrays shall lie;
    given, batches are made for another process, and stay numpy's.
    """

    def __init__(
        self,
        recipe: Recipe,
        metrics: Metrics,
        run: Map,
        cache: CacheSpec | None = None,
        allocate: Allocate | None = None,
        end: int | None = None,
    ) -> None:
        self.recipe, self._metrics, self._run = recipe, metrics, run
        self._allocate = allocate
        self._views = recipe.views
        wanted = dict.fromkeys(field for view in self._views for field in view.fields)
        by_field = decoders(list(wanted), recipe.decode)
        videos = [groups_of(view, by_field) for view in self._views]
        self._reads = NodeReads(cache or PageMemory(limit_bytes=0), recipe, videos, metrics, run, end)
        self._fetch = Fetch(recipe, by_field, videos, self._reads, run)
        self._one_sample = OneSample(recipe, by_field, self._fetch)
        packed = recipe.plan.pack is not None
        self._packed = PackedSlots(recipe, by_field, self._fetch, run) if packed else None
        self._substitute = Substitute(recipe, self._fetch, self._one_sample, run)

    def dismiss(self) -> None:
        """Read nothing ahead any more; does not wait for what is on its way."""
        self._reads.dismiss()

    def close(self) -> None:
        """Read nothing ahead any more, and tell the cache's other users that this one is gone."""
        self._reads.close()

    def batch(self, step: int, *, alone: bool = False) -> Batch:
        """The rank's part of the global batch of a step. alone: the steps after it are not read ahead.

        Raises: the leaves of `loader.errors` that reading, decoding and the transform raise, each with the sample's
        address; Corrupt where nothing may be, or nothing readable is, substituted."""
        seen = StepMetrics(step)
        first = alone or self._reads.begin(step)
        try:
            with counted(seen.traffic), waiting_for_no_page() if first else nullcontext():
                return self._made(step, seen)
        finally:
            if not alone:
                self._reads.done(step)
            self._metrics.add(seen)

    def _made(self, step: int, seen: StepMetrics) -> Batch:
        recipe, plan = self.recipe, self.recipe.plan
        with seen.timed("plan"):
            mine = rank_slots(recipe, step)
        slots, real, n_slots = mine.slots, mine.real, len(mine.mine)
        columns = Columns(mine.n_rows, self._allocate or np.empty)
        made = (self._packed or self._plain)(mine, columns, seen)
        with seen.timed("collate"):
            finished = collate if self._allocate is None else gathered
            fields, mask = (
                finished(Columns(n_slots), recipe.framework, like=columns)
                if mine.shape_only
                else finished(columns, recipe.framework)
            )
        names = plan.source_names
        sources = slots.source[mine.mine].tolist()
        ids: list[tuple[str, str] | None] = [None] * n_slots
        crcs = np.zeros(0, np.int64)
        if not mine.shape_only:
            crcs = made.crcs[mine.valid]
            for row in np.flatnonzero(mine.valid).tolist():
                ids[row] = (names[sources[row]], made.keys[row])
        digest = delivered_digest(step, real, slot_identities(plan, slots)[real], crcs)
        nbytes = fields_nbytes(fields)
        seen.count("batches")
        seen.count("samples", len(real))
        seen.count("decoded_bytes", nbytes)
        for index, count in enumerate(np.bincount(slots.source[real], minlength=len(names)).tolist()):
            seen.samples[names[index]] = count
        weight = len(real) * recipe.world.world_size / len(slots)
        return Batch(
            step=step,
            ids=ids,
            mask=mask,
            weight=weight,
            digest=digest,
            fields=fields,
            nbytes=nbytes,
            bucket=plan.bucket(step),
            # A slot that only tells shapes is another rank's, which lists it.
            substitutions=[] if mine.shape_only else made.substitutions,
            stats=seen.stats(),
            slowest=seen.slowest,
        )

    def _plain(self, mine: RankSlots, columns: Columns, seen: StepMetrics) -> Delivered:
        """A stored sample per slot. For a corrupt one a substitute is decoded, and takes its place in the slots."""
        with seen.timed("address"):
            wanted = located(self._views, mine.slots, mine.wanted, mine.first, self._run)
        # Nothing may be put into the columns ahead of a transform.
        early = columns if self.recipe.transform is None else None
        fetched = [self._fetch(mine.slots, one, early, seen) for one in wanted]
        bad = [
            (one.slots[number], one, number, error)
            for one, found in zip(wanted, fetched, strict=True)
            for number, error in self._decoded(mine.slots, one, found, columns, seen).items()
        ]
        instead = []
        substitutions: list[Substitution] = []
        for _, one, number, error in sorted(bad, key=itemgetter(0)):
            room = Room(columns, one.rows[number])
            alone, sample, tried = self._substitute(mine.slots, one, number, error, room, seen)
            room.put(sample, self._names(one, sample))
            instead.append(alone)
            substitutions += tried
        keys, crcs = [""] * len(columns), np.zeros(len(columns), np.int64)
        for one in [*wanted, *instead]:
            for row, key in zip(one.rows, one.places.keys(), strict=True):
                keys[row] = key
            crcs[one.rows] = sample_crcs({field: at.crc32c for field, at in one.places.fields.items()})
        return Delivered(keys=keys, crcs=crcs, substitutions=substitutions)

    def _decoded(
        self, slots: Slots, wanted: Located, fetched: Fetched, columns: Columns, seen: StepMetrics
    ) -> dict[int, Corrupt]:
        """Put the samples of one source into the columns. Number of each corrupt one -> why it is."""
        bad = dict(fetched.bad)
        whole = [number for number, rest in enumerate(fetched.payloads) if not rest and number not in bad]
        columns.put_names([wanted.rows[number] for number in whole], self._views[wanted.source].fields)
        placing_s = 0.0
        for number, payload in enumerate(fetched.payloads):
            if not payload or number in bad:
                continue
            fetched.payloads[number] = {}  # its bytes are not held once it is decoded
            room = Room(columns, wanted.rows[number])
            sample = self._one_sample(slots, wanted, number, payload, room, seen)
            if isinstance(sample, Corrupt):
                bad[number] = sample
                continue
            start = perf_counter()
            room.put(sample, self._names(wanted, sample))
            placing_s += perf_counter() - start
        seen.spent("collate", placing_s)
        return bad

    def _names(self, wanted: Located, sample: Mapping[str, Any]) -> tuple[str, ...]:
        """The fields of a sample of which some values may be in the columns already."""
        if self.recipe.transform is not None:
            return tuple(sample)
        fields = self._views[wanted.source].fields
        if all(name in fields for name in sample):
            return fields
        with_times = (name for field in fields for name in (field, times_field(field)))
        return tuple(name for name in with_times if name in fields or name in sample)
