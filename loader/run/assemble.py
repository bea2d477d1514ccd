"""One step for one rank: plan, address, fetch, verify, decode, transform, collate. A pure function of the plan."""

from collections.abc import Mapping
from time import perf_counter
from typing import Any

import numpy as np

from ..cache.spec import NodeCache
from ..dataset.address import SampleAddress
from ..dataset.read import Map
from ..errors import Corrupt
from ..order.digest import delivered_digest, slot_identities
from ..storage.traffic import counted
from .addresses import addresses_of, sample_crc
from .batch import Batch, fields_nbytes
from .collate import Allocate, BatchRows, collate, gathered
from .decode import decoders
from .fetch import Fetch, Fetched
from .metrics import Metrics
from .node_reads import NodeReads
from .one_sample import OneSample
from .rank_slots import RankSlots, rank_slots, real_slots
from .recipe import Recipe
from .step_metrics import StepMetrics
from .substitute import Substitute
from .substitution import Substitution
from .video_reads import groups_of


class Assembler:
    """Makes batches of one recipe; thread-safe. Keeps pinned ETags, nothing else; what it reads may lie in a cache.

    allocate: where a batch's large arrays shall lie; given, batches are made for another process, and stay numpy's.
    """

    def __init__(
        self,
        recipe: Recipe,
        metrics: Metrics,
        run: Map,
        cache: NodeCache | None = None,
        allocate: Allocate | None = None,
    ) -> None:
        self.recipe, self._metrics, self._run = recipe, metrics, run
        self._allocate = allocate
        self._views = recipe.views
        wanted = dict.fromkeys(field for view in self._views for field in view.fields)
        by_field = decoders(list(wanted), recipe.decode)
        videos = [groups_of(view, by_field) for view in self._views]
        self._reads = NodeReads(cache, recipe.plan, self._views, metrics)
        self._fetch = Fetch(recipe, by_field, videos, self._reads, run)
        self._one_sample = OneSample(recipe, by_field, self._fetch)
        self._substitute = Substitute(recipe, self._fetch, self._one_sample, run)

    def close(self) -> None:
        """Tell the cache's other users that this one is gone."""
        self._reads.close()

    def batch(self, step: int) -> Batch:
        """The rank's part of the global batch of a step. Raises: the leaves of `loader.errors` that reading,
        decoding and the transform raise, each with the sample's address; Corrupt where nothing may be, or nothing
        readable is, substituted."""
        seen = StepMetrics(step)
        try:
            with counted(seen.traffic):
                return self._made(step, seen)
        finally:
            self._metrics.add(seen)

    def _made(self, step: int, seen: StepMetrics) -> Batch:
        recipe, plan = self.recipe, self.recipe.plan
        with seen.timed("plan"):
            mine = rank_slots(recipe, step)
        slots, real = mine.slots, mine.real
        with seen.timed("address"):
            addresses = addresses_of(self._views, slots, mine.wanted, self._run)
        data = self._fetch(slots, addresses, seen)
        with seen.timed("address"):
            self._reads.look_ahead(step, self._future)
        substitutions: list[Substitution] = []
        samples = self._samples(mine, addresses, data, substitutions, seen)
        with seen.timed("collate"):
            rows: list[Mapping[str, Any] | None] = [samples.get(slot) for slot in mine.mine.tolist()]
            like = next(iter(samples.values())) if mine.shape_only else None
            finished = collate if self._allocate is None else gathered
            fields, mask = finished(rows, recipe.framework, like=like)
        names = plan.source_names
        ids = [
            (names[slots.source[slot]], addresses[slot].key) if ok else None
            for slot, ok in zip(mine.mine.tolist(), mine.valid.tolist(), strict=True)
        ]
        digest = delivered_digest(
            step,
            real,
            slot_identities(plan, slots)[real],
            np.array([sample_crc(addresses[slot]) for slot in real.tolist()], np.int64),
        )
        nbytes = fields_nbytes(fields)
        seen.count("batches")
        seen.count("samples", len(real))
        seen.count("decoded_bytes", nbytes)
        for index, made in enumerate(np.bincount(slots.source[real], minlength=len(names)).tolist()):
            seen.samples[names[index]] = made
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
            substitutions=[]
            if mine.shape_only
            else substitutions,  # the slot is another rank's, which lists it
            stats=seen.stats(),
            slowest=seen.slowest,
        )

    def _future(self, step: int) -> list[SampleAddress]:
        """Where the rank's samples of a step lie; none after the last epoch."""
        slots, real = real_slots(self.recipe, step)
        return list(addresses_of(self._views, slots, real, self._run).values())

    def _samples(
        self,
        mine: RankSlots,
        addresses: dict[int, SampleAddress],
        data: dict[int, Fetched],
        substitutions: list[Substitution],
        seen: StepMetrics,
    ) -> dict[int, dict[str, Any]]:
        """slot -> decoded sample; arrays of the rank's own slots lie in the batch's memory. For a corrupt sample a
        substitute is decoded, and takes its place in the slots and `addresses`."""
        rows, first = BatchRows(len(mine.mine), self._allocate or np.empty), int(mine.mine[0])
        out: dict[int, dict[str, Any]] = {}
        placing_s = 0.0
        for slot, address in list(addresses.items()):
            sample = self._one_sample(mine.slots, slot, address, data.pop(slot), seen)
            if isinstance(sample, Corrupt):
                sample = self._substitute(mine.slots, slot, addresses, sample, substitutions, seen)
            start = perf_counter()
            out[slot] = rows.take(slot - first, sample) if 0 <= slot - first < len(rows) else sample
            placing_s += perf_counter() - start
        seen.spent("collate", placing_s)
        return out
