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
from .delivered import Delivered
from .fetch import Fetch
from .metrics import Metrics
from .node_reads import NodeReads
from .one_sample import OneSample
from .packed_slots import PackedSlots
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
        packed = recipe.plan.pack is not None
        self._packed = PackedSlots(recipe, by_field, self._fetch, run) if packed else None
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
        substitutions: list[Substitution] = []
        rows_of = BatchRows(len(mine.mine), self._allocate or np.empty)
        made = (self._packed or self._plain)(mine, rows_of, substitutions, seen)
        with seen.timed("address"):
            self._reads.look_ahead(step, self._future)
        samples = made.samples
        with seen.timed("collate"):
            rows: list[Mapping[str, Any] | None] = [samples.get(slot) for slot in mine.mine.tolist()]
            like = next(iter(samples.values())) if mine.shape_only else None
            finished = collate if self._allocate is None else gathered
            fields, mask = finished(rows, recipe.framework, like=like)
        names = plan.source_names
        ids = [
            (names[slots.source[slot]], made.keys[slot]) if ok else None
            for slot, ok in zip(mine.mine.tolist(), mine.valid.tolist(), strict=True)
        ]
        digest = delivered_digest(
            step,
            real,
            slot_identities(plan, slots)[real],
            np.array([made.crcs[slot] for slot in real.tolist()], np.int64),
        )
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
            substitutions=[]
            if mine.shape_only
            else substitutions,  # the slot is another rank's, which lists it
            stats=seen.stats(),
            slowest=seen.slowest,
        )

    def _future(self, step: int) -> list[SampleAddress]:
        """Where the rank's samples of a step lie; none after the last epoch."""
        slots, real = real_slots(self.recipe, step)
        if self._packed is not None:
            return self._packed.addresses(step, slots, real)
        return list(addresses_of(self._views, slots, real, self._run).values())

    def _plain(
        self, mine: RankSlots, rows: BatchRows, substitutions: list[Substitution], seen: StepMetrics
    ) -> Delivered:
        """A stored sample per slot; arrays of the rank's own slots lie in the batch's memory. For a corrupt sample a
        substitute is decoded, and takes its place in the slots."""
        with seen.timed("address"):
            addresses = addresses_of(self._views, mine.slots, mine.wanted, self._run)
        data = self._fetch(mine.slots, addresses, seen)
        first, out = int(mine.mine[0]), {}
        placing_s = 0.0
        for slot, address in list(addresses.items()):
            sample = self._one_sample(mine.slots, slot, address, data.pop(slot), seen)
            if isinstance(sample, Corrupt):
                sample = self._substitute(mine.slots, slot, addresses, sample, substitutions, seen)
            start = perf_counter()
            out[slot] = rows.take(slot - first, sample) if 0 <= slot - first < len(rows) else sample
            placing_s += perf_counter() - start
        seen.spent("collate", placing_s)
        return Delivered(
            samples=out,
            keys={slot: address.key for slot, address in addresses.items()},
            crcs={slot: sample_crc(address) for slot, address in addresses.items()},
        )
