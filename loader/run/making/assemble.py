"""Make steps for one rank: plan, address, fetch, verify, decode, transform, collate."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ...cache.spec import CacheSpec, PageMemory
from ...dataset.reading.verified_bucket_reads import Map
from ...errors import Corrupt
from ...modalities import Decoder
from ...order.digests import delivered_digest, slot_identities
from ...order.slots import Slots
from ...order.substitutes import substitutes
from ...storage.requests import counted, patient
from ..batch.batch import Batch, StepMetrics
from ..batch.collate import (
    DeliveredSamples,
    Finish,
    collate,
    crcs_of,
    delivered_of,
    gathered,
    import_framework,
    masked_row,
    with_costs,
)
from ..batch.columns import EXAMPLE, KEPT, Allocate, ArrayPool, BatchRow, Columns
from ..batch.substitution import Substitution, error_text, stage_of
from ..metrics import Metrics
from ..recipe.rank_slots import LocatedSamples, RankSlots, SlotPlanner
from ..recipe.recipe import Recipe
from ..recipe.video_packet_reads import groups_of
from .fetch import Fetch, Fetched, NodeReads
from .many_samples import EachSample, ManySamples, OneSample, TakeSample

if TYPE_CHECKING:
    from .packed_slots import PackedSlots


logger = logging.getLogger(__name__)


class Substitute:
    def __init__(self, recipe: Recipe, fetch: Fetch, one_sample: OneSample, run: Map) -> None:
        self._recipe = recipe
        self._fetch, self._one_sample, self._run = fetch, one_sample, run

    def __call__(
        self,
        rank_slots: RankSlots,
        located: LocatedSamples,
        number: int,
        error: Corrupt,
        batch_row: BatchRow,
        seen: StepMetrics,
    ) -> tuple[LocatedSamples, dict[str, Any], list[Substitution]]:
        """Return a slot's first readable substitute, its values, and the substitutions tried.

        Writes the substitute into `rank_slots`. Raises: the slot's own error, if no substitute is readable or allowed.
        """
        if not self._recipe.substitute:
            raise error
        plan, slots = self._recipe.plan, rank_slots.slots
        row, source = int(located.rows[number]), int(located.source[number])
        step, position = rank_slots.step_of(row), int(slots.position[row])
        substitutions: list[Substitution] = []
        why, bad = error, located.places.address(number)
        for attempt, view_ordinal, ordinal in substitutes(
            plan, step, source, position, int(slots.attempt[row])
        ):
            slots.attempt[row], slots.view_ordinal[row], slots.ordinal[row] = attempt, view_ordinal, ordinal
            with seen.timed("address"):
                alone = self._fetch.locate.again(slots, row, self._run)
            substitutions.append(
                Substitution(
                    step=step,
                    slot=int(rank_slots.number[row]),
                    source=plan.source_names[source],
                    epoch=int(slots.epoch[row]),
                    position=position,
                    attempt=attempt,
                    stage=stage_of(why),
                    error=error_text(why),
                    address=bad,
                    substitute=alone.places.key(0),
                    substitute_ordinal=ordinal,
                )
            )
            fetched = self._fetch(slots, alone, None, seen)
            sample = fetched.bad.get(0) or self._one_sample(
                slots, alone, 0, fetched.payloads[0], batch_row, seen
            )
            if not isinstance(sample, Corrupt):
                return alone, sample, substitutions
            why, bad = sample, alone.places.address(0)
        error.add_note(f"all of its substitutes are corrupt too, the last: {why}")
        raise error


class Assembler:
    """Makes one recipe's batches; thread-safe. Keeps only pinned ETags; its reads may be cached.

    end: first step that is not made; nothing from it on is read ahead.
    allocate: memory for a batch's arrays. If given, batches are for another process, and their arrays stay numpy's.
    """

    def __init__(
        self,
        recipe: Recipe,
        metrics: Metrics,
        run: Map,
        cache: CacheSpec | None = None,
        allocate: Allocate | None = None,
        end: int | None = None,
        kept: int = KEPT,
    ) -> None:
        self.recipe, self._metrics, self._run = recipe, metrics, run
        self._allocate = allocate or ArrayPool(kept)
        by_field = recipe.decoders()
        videos = [groups_of(view, own) for view, own in zip(recipe.views, by_field, strict=True)]
        self._reads = NodeReads(cache or PageMemory(limit_bytes=0), recipe, videos, metrics, run, end)
        self._fetch = Fetch(recipe, by_field, videos, self._reads, run)
        one_sample = OneSample(recipe, by_field, self._fetch)
        self._samples = ManySamples(recipe, by_field, one_sample)
        self._one_sample = one_sample
        self._packed = None if recipe.plan.pack is None else _packed(recipe, by_field, self._fetch, run)
        self._substitute = Substitute(recipe, self._fetch, one_sample, run)
        self._planned = SlotPlanner(recipe, end, self._fetch.locate)
        self._finish = Finish(recipe, collate if allocate is None else gathered)
        self._framework = recipe.framework if allocate is None else "numpy"
        self._made_one = False

    def dismiss(self) -> None:
        self._reads.dismiss()

    def close(self) -> None:
        self._reads.close()
        self._fetch.close()

    def batch(self, step: int, *, alone: bool = False) -> Batch:
        """Return the rank's part of a step. With `alone`, reads nothing ahead.

        Raises: errors of reading, decoding and the transform, with the sample's address; Corrupt if no substitute is
        allowed or readable.
        """
        (batch,) = self._together([step], alone=alone)
        return batch

    def digest(self, step: int) -> int:
        """Return the digest of the rank's part of a step, assuming that all its samples are readable.

        Costs index look-ups. Reads no media, except registered bytes that are not sealed.
        """
        (rank_slots,) = self._planned([step])
        if rank_slots.n_padded:
            return 0
        if self._packed is not None:
            crcs = self._packed.crcs(rank_slots)
        else:
            located = self._fetch.locate(rank_slots.slots, rank_slots.real_rows, self._run)
            for part in located:
                self._fetch.learn(part, StepMetrics([step]))
            crcs = crcs_of(len(rank_slots), located)
        identities = slot_identities(self.recipe.plan, rank_slots.slots)
        return delivered_digest(
            step,
            rank_slots.number[rank_slots.real_rows],
            identities[rank_slots.real_rows],
            crcs[rank_slots.real_rows],
        )

    def batches(self, steps: Sequence[int]) -> Iterator[Batch]:
        """Yield the rank's parts of consecutive steps, made together to share a step's fixed cost."""
        if len(steps) > 1 and self._packed is None:
            try:
                batches = self._together(steps)
            except KeyboardInterrupt:
                raise
            except BaseException:
                logger.debug("steps %s are made one by one", steps, exc_info=True)
            else:
                yield from batches
                return
        for step in steps:
            yield self.batch(step)

    def each(self, step: int, take: TakeSample) -> Batch:
        """Pass each sample of the rank's part of a step to `take`; return the part's batch without fields.

        A part that is all padding has one row, EXAMPLE: another rank's sample, which supplies the shapes.
        """
        seen = StepMetrics([step])
        (rank_slots,) = self._planned([step])
        import_framework(self._framework)

        def numbered(row: int, sample: dict[str, Any]) -> None:
            take(EXAMPLE if rank_slots.n_padded else row, sample)

        if self._packed is None:
            each = EachSample(self.recipe, self._fetch, self._one_sample, self._samples, self._run)
            delivered = each(rank_slots, numbered, seen)
        else:
            whole = Columns(len(rank_slots), self._allocate)
            delivered = self._packed(rank_slots, whole, seen)
            values = {name: whole.values(name) for name in whole.names()}
            for row in np.flatnonzero(whole.mask()).tolist():
                numbered(row, {name: column[row] for name, column in values.items()})
        empty = Columns(len(rank_slots))
        empty.put_names(rank_slots.real_rows, ())
        return self._finish(rank_slots, empty, delivered, seen)[0]

    def _together(self, steps: Sequence[int], *, alone: bool = False) -> list[Batch]:
        seen = StepMetrics(steps)
        first = True if alone else self._reads.begin(steps)
        is_complete = False
        try:
            begun = nullcontext() if self._made_one else patient()
            with begun, counted(seen.traffic), self._reads.waiting_for_no_page() if first else nullcontext():
                with seen.timed("plan"):
                    planned = self._planned(steps)
                batches = [batch for rank_slots in planned for batch in self._make(rank_slots, seen)]
            is_complete = self._made_one = True
        finally:
            if not alone:
                for step in steps:
                    self._reads.done(step)
            if is_complete or len(steps) == 1:
                self._metrics.add(seen)
        return with_costs(batches, seen)

    def _make(self, rank_slots: RankSlots, seen: StepMetrics) -> list[Batch]:
        seen.step_of = rank_slots.step_of if len(rank_slots.steps) > 1 else None
        columns = Columns(len(rank_slots), self._allocate)
        delivered = (self._packed or self._plain)(rank_slots, columns, seen)
        import_framework(self._framework)  # takes seconds the first time, so outside `collate`
        with seen.timed("collate"):
            return self._finish(rank_slots, columns, delivered, seen)

    def _plain(self, rank_slots: RankSlots, columns: Columns, seen: StepMetrics) -> DeliveredSamples:
        with seen.timed("address"):
            parts = rank_slots.located or self._fetch.locate(
                rank_slots.slots, rank_slots.real_rows, self._run
            )
        # Nothing may be written into the columns before a transform.
        early = columns if self.recipe.transform is None else None
        fetched = [self._fetch(rank_slots.slots, part, early, seen) for part in parts]
        bad = [
            (int(part.rows[number]), part, number, error)
            for part, data in zip(parts, fetched, strict=True)
            for number, error in self._decoded(rank_slots.slots, part, data, columns, seen).items()
        ]
        instead = []
        substitutions: list[Substitution] = []
        for row, part, number, error in sorted(bad, key=itemgetter(0)):
            if self.recipe.recorded is not None:
                substitutions.append(masked_row(self.recipe, rank_slots, part, number, error))
                rank_slots.valid[row] = False
                continue
            batch_row = BatchRow(columns, int(part.rows[number]))
            single, sample, tried = self._substitute(rank_slots, part, number, error, batch_row, seen)
            batch_row.put(sample, self._samples.names(part, sample))
            instead.append(single)
            substitutions += tried
        delivered = [*parts, *instead]
        return delivered_of(len(columns), delivered, substitutions)

    def _decoded(
        self, slots: Slots, located: LocatedSamples, fetched: Fetched, columns: Columns, seen: StepMetrics
    ) -> dict[int, Corrupt]:
        bad = dict(fetched.bad)
        whole = np.ones(len(located.rows), bool)
        whole[[*fetched.payloads, *bad]] = False
        columns.put_names(located.rows[whole], located.kind.names)
        payloads = {number: payload for number, payload in fetched.payloads.items() if number not in bad}
        fetched.payloads.clear()
        return bad | self._samples(slots, located, payloads, columns, seen)


def _packed(
    recipe: Recipe, by_field: Sequence[Mapping[str, Decoder]], fetch: Fetch, run: Map
) -> "PackedSlots":
    from .packed_slots import PackedSlots  # 5 ms, only for packed plans

    return PackedSlots(recipe, by_field, fetch, run)
