"""Make steps for one rank: plan, address, fetch, verify, decode, transform, collate."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ...cache.spec import CacheSpec, PageMemory
from ...dataset.reading.places import Map
from ...dataset.shards.address import SampleAddress
from ...errors import Corrupt, DecodeFailed
from ...modalities import Decoder
from ...order.digests import delivered_digest, slot_identities
from ...order.random.keyed_permutation import I64
from ...order.slots import Slots
from ...storage.requests import counted, patient
from ..batch.batch import Batch, StepMetrics, measured_by, step_metrics
from ..batch.collate import (
    Delivered,
    DeliveredSamples,
    Finish,
    collate,
    crcs_of,
    delivered_of,
    gathered,
    import_framework,
    with_costs,
)
from ..batch.columns import EXAMPLE, KEPT, Allocate, ArrayPool, BatchRow, Columns
from ..batch.substitution import Substitution, find_substitute, in_order, masked_row
from ..metrics import Metrics
from ..recipe.rank_slots import LocatedSamples, RankSlots, SlotPlanner
from ..recipe.recipe import Recipe
from ..recipe.video_packet_reads import groups_of
from .fetch import Fetch, Fetched
from .many_samples import ManySamples, OneSample
from .node_reads import NodeReads

if TYPE_CHECKING:
    from ..items.item_rows import ItemRows
    from ..items.item_samples import SourceSamples
    from .each_sample import TakeSample
    from .packed_slots import PackedSlots


logger = logging.getLogger(__name__)


class Substitute:
    def __init__(
        self,
        recipe: Recipe,
        fetch: Fetch,
        one_sample: OneSample,
        run: Map,
    ) -> None:
        self._recipe = recipe
        self._fetch = fetch
        self._one_sample = one_sample
        self._run = run

    def __call__(
        self,
        rank_slots: RankSlots,
        located: LocatedSamples,
        number: int,
        error: Corrupt,
        batch_row: BatchRow,
    ) -> tuple[LocatedSamples, dict[str, Any], list[Substitution]]:
        """Return a slot's first readable substitute, its values, and the substitutions tried.

        Writes the substitute into `rank_slots`. Raises: the slot's own error, if no substitute is readable or allowed.
        """
        if not self._recipe.substitute:
            raise error
        slots = rank_slots.slots
        row = int(located.rows[number])

        def make() -> tuple[tuple[LocatedSamples, dict[str, Any]] | Corrupt, SampleAddress]:
            with step_metrics().timed("address"):
                alone = self._fetch.locate.again(slots, row, self._run)
            sample = self._sample(slots, alone, batch_row)
            address = alone.places.address(0)
            if isinstance(sample, Corrupt):
                return sample, address
            return (alone, sample), address

        (alone, sample), tried = find_substitute(
            self._recipe.plan,
            rank_slots.step_of(row),
            int(rank_slots.number[row]),
            slots,
            row,
            located.places.address(number),
            error,
            make,
        )
        return alone, sample, tried

    def _sample(
        self,
        slots: Slots,
        located: LocatedSamples,
        batch_row: BatchRow,
    ) -> dict[str, Any] | Corrupt:
        fetched = self._fetch(slots, located, None)
        error = fetched.bad.get(0)
        if error is not None:
            return error
        return self._one_sample(
            slots,
            located,
            number=0,
            payload=fetched.payloads[0],
            batch_row=batch_row,
        )


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
        self.recipe = recipe
        self._metrics = metrics
        self._run = run
        is_for_this_process = allocate is None
        self._allocate = allocate or ArrayPool(kept)
        self._finish = Finish(recipe, collate if is_for_this_process else gathered)
        self._framework = recipe.framework if is_for_this_process else "numpy"
        decoders = recipe.decoders()
        videos = {source: groups_of(view, decoders[source]) for source, view in recipe.stored.items()}
        if cache is None:
            cache = PageMemory(limit_bytes=0)
        self._reads = NodeReads(
            cache,
            recipe,
            videos,
            metrics,
            run,
            end,
        )
        self._fetch = Fetch(
            recipe,
            decoders,
            videos,
            self._reads,
            run,
        )
        self._plan_slots = SlotPlanner(recipe, end, self._fetch.locate)
        self._one_sample = OneSample(recipe, decoders, self._fetch)
        self._samples = ManySamples(recipe, decoders, self._one_sample)
        self._substitute = Substitute(recipe, self._fetch, self._one_sample, run)
        self._packed = _packed_slots(recipe, decoders, self._fetch, run)
        self._items = _item_rows(recipe)
        self._has_succeeded = False

    def dismiss(self) -> None:
        self._reads.dismiss()

    def close(self) -> None:
        self._reads.close()
        self._fetch.close()
        if self._items is not None:
            self._items.close()

    def batch(self, step: int, *, alone: bool = False) -> Batch:
        """Return the rank's part of a step. With `alone`, reads nothing ahead.

        Raises: errors of reading, decoding and the transform, with the sample's address; Corrupt if no substitute is
        allowed or readable.
        """
        (batch,) = self._together([step], alone=alone)
        return batch

    def digest(self, step: int) -> int:
        """Return the digest of the rank's part of a step, assuming that all its samples are readable.

        Costs index look-ups. Reads no media, except registered bytes that are not sealed. Items of datasets have no
        stored checksums: they are made.
        """
        (rank_slots,) = self._plan_slots([step])
        if rank_slots.n_padded:
            return 0
        rows = rank_slots.real_rows
        # Digests belong to no batch: these metrics are discarded.
        with measured_by(StepMetrics([step])):
            if self._packed is not None:
                crcs = self._packed.crcs(rank_slots)
            else:
                parts = self._fetch.locate(rank_slots.slots, rows, self._run)
                for part in parts:
                    self._fetch.fill_unknown_crcs(part)
                crcs = crcs_of(len(rank_slots), parts)
                if self._items is not None:
                    crcs += self._item_crcs(self._items, rank_slots)
        identities = slot_identities(self.recipe.plan, rank_slots.slots)
        return delivered_digest(step, rank_slots.number[rows], identities[rows], crcs[rows])

    def _item_crcs(self, items: "ItemRows", rank_slots: RankSlots) -> I64:
        """Return int64 [rows]: the CRC-32C of each item, and 0 at other rows. Raises: Corrupt for a damaged item."""
        delivered = items.each(rank_slots, lambda row, sample: None)
        for substitution in delivered.substitutions:
            raise DecodeFailed(substitution.error)
        return delivered.crcs

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

    def each(self, step: int, take: "TakeSample", *, skip_missing: bool = False) -> Batch:
        """Pass each sample of the rank's part of a step to `take`; return the part's batch without fields.

        A part that is all padding has one row, EXAMPLE: another rank's sample, which supplies the shapes. skip_missing:
        True leaves out the samples of datasets that the plan was opened without.
        """
        (rank_slots,) = self._plan_slots([step])
        import_framework(self._framework)

        def take_numbered(row: int, sample: dict[str, Any]) -> None:
            if rank_slots.n_padded:
                row = EXAMPLE
            take(row, sample)

        with measured_by(StepMetrics([step])):
            delivered = self._each_sample(rank_slots, take_numbered, skip_missing)
            without_fields = Columns(len(rank_slots))
            without_fields.put_names(rank_slots.real_rows, ())
            (batch,) = self._finish(rank_slots, without_fields, delivered)
        return batch

    def _each_sample(
        self,
        rank_slots: RankSlots,
        take: "TakeSample",
        skip_missing: bool,
    ) -> DeliveredSamples:
        if self._packed is None:
            from .each_sample import EachSample  # only for replays

            items: DeliveredSamples | None = None
            if self._items is not None:
                items = self._items.each(rank_slots, take, skip_missing=skip_missing)
            each = EachSample(
                self.recipe,
                self._fetch,
                self._one_sample,
                self._samples,
                self._run,
            )
            stored = each(rank_slots, take)
            if items is None:
                return stored
            from ..items.each_item import merged_samples

            return merged_samples(stored, items)
        columns = Columns(len(rank_slots), self._allocate)
        delivered = self._packed(rank_slots, columns)
        values = {name: columns.values(name) for name in columns.names()}
        for row in np.flatnonzero(columns.mask()).tolist():
            sample = {name: column[row] for name, column in values.items()}
            take(row, sample)
        return delivered

    def _together(self, steps: Sequence[int], *, alone: bool = False) -> list[Batch]:
        metrics = StepMetrics(steps)
        is_first = alone or self._reads.begin(steps)
        patience: AbstractContextManager[None] = nullcontext()
        if not self._has_succeeded:
            patience = patient()
        page_waits: AbstractContextManager[None] = nullcontext()
        if is_first:
            page_waits = self._reads.waiting_for_no_page()
        is_complete = False
        batches: list[Batch] = []
        try:
            with patience, measured_by(metrics), counted(metrics.traffic), page_waits:
                with metrics.timed("plan"):
                    planned = self._plan_slots(steps)
                for rank_slots in planned:
                    batches += self._make(rank_slots)
            is_complete = True
            self._has_succeeded = True
        finally:
            if not alone:
                for step in steps:
                    self._reads.done(step)
            # Steps that fail together are made again one by one, and measured then.
            if is_complete or len(steps) == 1:
                self._metrics.add(metrics)
        return with_costs(batches, metrics)

    def _make(self, rank_slots: RankSlots) -> list[Batch]:
        metrics = step_metrics()
        metrics.step_of = rank_slots.step_of if len(rank_slots.steps) > 1 else None
        columns = Columns(len(rank_slots), self._allocate)
        delivered_items: list[SourceSamples] = []
        if self._packed is not None:
            delivered = self._packed(rank_slots, columns)
        else:
            delivered, delivered_items = self._plain(rank_slots, columns)
        import_framework(self._framework)  # takes seconds the first time, so outside `collate`
        with metrics.timed("collate"):
            batches = self._finish(rank_slots, columns, delivered)
            if self._items is not None:
                self._items.complete(batches, rank_slots, delivered_items)
        return batches

    def _plain(
        self, rank_slots: RankSlots, columns: Columns
    ) -> "tuple[DeliveredSamples, list[SourceSamples]]":
        slots = rank_slots.slots
        parts = rank_slots.located
        with step_metrics().timed("address"):
            if not parts:
                parts = self._fetch.locate(slots, rank_slots.real_rows, self._run)
        # Nothing may be written into the columns before a transform.
        early = columns if self.recipe.transform is None else None
        fetched = [self._fetch(slots, part, early) for part in parts]
        bad: list[tuple[int, LocatedSamples, int, Corrupt]] = []  # row, samples, number, error
        for part, data in zip(parts, fetched, strict=True):
            for number, error in self._decoded(slots, part, data, columns).items():
                bad.append((int(part.rows[number]), part, number, error))
        delivered: list[Delivered] = [*parts]
        delivered_items: list[SourceSamples] = []
        substitutions: list[Substitution] = []
        if self._items is not None:
            delivered_items, substitutions = self._items(rank_slots, columns)
            delivered += delivered_items
        for row, part, number, error in sorted(bad, key=itemgetter(0)):
            if self.recipe.recorded is not None:
                address = part.places.address(number)
                substitution = masked_row(
                    self.recipe.plan,
                    rank_slots,
                    row,
                    address,
                    error,
                )
                substitutions.append(substitution)
                continue
            batch_row = BatchRow(columns, row)
            alone, sample, tried = self._substitute(
                rank_slots,
                part,
                number,
                error,
                batch_row,
            )
            batch_row.put(sample, self._samples.names(part, sample))
            delivered.append(alone)  # later ones overwrite the row's identity
            substitutions += tried
        if delivered_items:
            substitutions = in_order(substitutions)
        return delivered_of(len(columns), delivered, substitutions), delivered_items

    def _decoded(
        self,
        slots: Slots,
        located: LocatedSamples,
        fetched: Fetched,
        columns: Columns,
    ) -> dict[int, Corrupt]:
        bad = dict(fetched.bad)
        is_whole = np.ones(len(located.rows), bool)  # samples that need no decoder
        is_whole[[*fetched.payloads, *bad]] = False
        columns.put_names(located.rows[is_whole], located.kind.names)
        payloads = {number: payload for number, payload in fetched.payloads.items() if number not in bad}
        fetched.payloads.clear()  # so that bytes are freed once they are decoded
        bad |= self._samples(slots, located, payloads, columns)
        return bad


def _item_rows(recipe: Recipe) -> "ItemRows | None":
    if not recipe.has_items:
        return None
    from ..items.item_rows import ItemRows  # only for datasets
    from ..items.item_samples import source_items

    return ItemRows(recipe, source_items(recipe))


def _packed_slots(
    recipe: Recipe,
    decoders: Sequence[Mapping[str, Decoder]],
    fetch: Fetch,
    run: Map,
) -> "PackedSlots | None":
    if recipe.plan.pack is None:
        return None
    from .packed_slots import PackedSlots  # 5 ms, only for packed plans

    return PackedSlots(recipe, decoders, fetch, run)
