"""Make steps for one rank: plan, address, fetch, verify, decode, transform, collate."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ...cache.spec import CacheSpec, PageMemory
from ...dataset.reading.sample_places import Map
from ...dataset.shards.address import SampleAddress
from ...errors import Corrupt
from ...modalities import Decoder
from ...order.digests import delivered_digest, slot_identities
from ...order.slots import Slots
from ...storage.requests import count_requests, patient
from ..batch.array_pool import KEPT, ArrayPool
from ..batch.batch import Batch, StepMetrics, step_metrics, use_metrics
from ..batch.collate import collate, gather_columns
from ..batch.columns import EXAMPLE, Allocate, BatchRow, Columns
from ..batch.finish import Delivered, DeliveredSamples, Finish, build_delivered, row_crcs, with_costs
from ..batch.frameworks import import_framework
from ..batch.substitution import Substitution, UnreadableSample, find_substitute, in_order, mask_row
from ..metrics import Metrics
from ..recipe.rank_slots import LocatedSamples, RankSlots, SlotPlanner
from ..recipe.recipe import Recipe
from ..recipe.video_groups import video_groups
from .fetch import Fetch, Fetched
from .many_samples import ManySamples, OneSample
from .node_reads import NodeReads

if TYPE_CHECKING:
    from ..items.item_rows import ItemRows
    from ..items.item_samples import SourceSamples
    from .each_sample import TakeSample
    from .packed_slots import PackedSlots
    from .stored_sequences import StoredSequences


logger = logging.getLogger(__name__)


class SubstituteFinder:
    """Finds substitutes for unreadable samples; thread-safe."""

    def __init__(
        self,
        recipe: Recipe,
        fetch: Fetch,
        one_sample: OneSample,
        parallel_map: Map,
    ) -> None:
        self._recipe = recipe
        self._fetch = fetch
        self._one_sample = one_sample
        self._map = parallel_map

    def __call__(
        self,
        rank_slots: RankSlots,
        unreadable: UnreadableSample,
        batch_row: BatchRow,
    ) -> tuple[LocatedSamples, dict[str, Any], list[Substitution]]:
        """Return (first readable substitute, located by itself; its values; the substitutions tried).

        Writes the substitute's ordinals and attempt into `rank_slots.slots`. batch_row: as for `OneSample`.

        Raises: the sample's own error, if no substitute is readable or allowed.
        """
        if not self._recipe.substitute:
            raise unreadable.error
        slots = rank_slots.slots
        row = unreadable.row

        def make_candidate() -> tuple[tuple[LocatedSamples, dict[str, Any]] | Corrupt, SampleAddress]:
            """Return the sample that `slots` has in the row now, or its error; and its address."""
            with step_metrics().time_stage("address"):
                alone = self._fetch.locate.again(slots, row, self._map)
            fetched = self._fetch(slots, alone, None)
            sample: dict[str, Any] | Corrupt | None = fetched.bad.get(0)
            if sample is None:
                sample = self._one_sample(slots, alone, 0, fetched.payloads[0], batch_row)
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
            unreadable.address,
            unreadable.error,
            make_candidate,
        )
        return alone, sample, tried


class Assembler:
    """Makes one recipe's batches; thread-safe. Keeps only pinned ETags; its reads may be cached.

    end: first step that is not made; nothing from it on is read ahead.
    allocate: memory for a batch's arrays, if batches are for another process: their arrays stay numpy's. None for
    batches of this process.
    kept: blocks of freed memory that are kept for later batches of this process.
    """

    def __init__(
        self,
        recipe: Recipe,
        metrics: Metrics,
        parallel_map: Map,
        cache: CacheSpec | None = None,
        allocate: Allocate | None = None,
        end: int | None = None,
        kept: int = KEPT,
    ) -> None:
        self.recipe = recipe
        self._metrics = metrics
        self._map = parallel_map
        if allocate is None:
            self._allocate: Allocate = ArrayPool(kept)
            self._finish = Finish(recipe, collate)
            self._framework = recipe.framework
        else:
            self._allocate = allocate
            self._finish = Finish(recipe, gather_columns)
            self._framework = "numpy"
        stored_recipe = recipe.before_layout()
        decoders = stored_recipe.decoders()
        videos = {source: video_groups(view, decoders[source]) for source, view in recipe.stored.items()}
        if cache is None:
            cache = PageMemory(limit_bytes=0)
        self._reads = NodeReads(cache, recipe, videos, metrics, parallel_map, end)
        self._fetch = Fetch(stored_recipe, decoders, videos, self._reads, parallel_map)
        self._plan_slots = SlotPlanner(recipe, end, self._fetch.locate)
        self._has_transform = stored_recipe.transform is not None
        self._one_sample = OneSample(stored_recipe, decoders, self._fetch)
        self._samples = ManySamples(stored_recipe, decoders, self._one_sample)
        self._find_substitute = SubstituteFinder(recipe, self._fetch, self._one_sample, parallel_map)
        self._packed = _make_packed_slots(recipe, decoders, self._fetch, parallel_map)
        self._lay_out = _make_stored_sequences(recipe, stored_recipe)  # None without `loader.laid_out`
        self._list_fields = recipe.list_fields
        self._items = _item_rows(recipe, is_sent=allocate is not None)  # None without datasets
        self._has_succeeded = False  # whether any batch was made so far

    def dismiss(self) -> None:
        self._reads.dismiss()

    def close(self) -> None:
        self._reads.close()
        self._fetch.close()
        self.close_datasets()

    def close_datasets(self) -> None:
        """Close the datasets that are open here; the next item opens its dataset again."""
        if self._items is not None:
            self._items.close()

    def batch(self, step: int, *, alone: bool = False) -> Batch:
        """Return the rank's part of a step. With `alone`, reads nothing ahead.

        Raises: errors of reading, decoding and the transform, with the sample's address; Corrupt if no substitute is
        allowed or readable.
        """
        (batch,) = self._make_steps([step], alone=alone)
        return batch

    def digest(self, step: int) -> int:
        """Return the digest of the rank's part of a step, assuming that all its samples are readable.

        Costs index look-ups. Reads no media, except registered bytes that are not sealed. Items of datasets have no
        stored checksums: they are made.
        """
        (rank_slots,) = self._plan_slots([step])
        if rank_slots.n_padded:  # the part is all padding
            return 0
        rows = rank_slots.real_rows
        # Digests belong to no batch: these metrics are discarded.
        with use_metrics(StepMetrics([step])):
            if self._packed is not None:
                crcs = self._packed.crcs(rank_slots)
            else:
                parts = self._fetch.locate(rank_slots.slots, rows, self._map)
                for part in parts:
                    self._fetch.fill_unknown_crcs(part)
                crcs = row_crcs(len(rank_slots), parts)
                if self._items is not None:
                    crcs += self._items.crcs(rank_slots)
        identities = slot_identities(self.recipe.plan, rank_slots.slots)
        return delivered_digest(step, rank_slots.number[rows], identities[rows], crcs[rows])

    def batches(self, steps: Sequence[int]) -> Iterator[Batch]:
        """Yield the rank's parts of consecutive steps, made together to share a step's fixed cost.

        If that fails, makes them one by one: so the steps before the bad one are yielded, and its error is its own.
        """
        if len(steps) > 1 and self._packed is None:
            try:
                batches = self._make_steps(steps)
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

        with use_metrics(StepMetrics([step])):
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
        """Pass each sample to `take`; return the samples delivered. skip_missing: as for `each`."""
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
                self._map,
            )
            if self._lay_out is not None:
                take = self._lay_out.before(take)
            stored = each(rank_slots, take)
            if items is None:
                return stored
            from ..items.each_item import merge_samples

            return merge_samples(stored, items)

        columns = Columns(len(rank_slots), self._allocate, self._list_fields)
        delivered = self._packed(rank_slots, columns)
        values = {name: columns.values(name) for name in columns.names()}
        for row in np.flatnonzero(columns.mask()).tolist():
            sample = {name: column[row] for name, column in values.items()}
            take(row, sample)
        return delivered

    def _make_steps(self, steps: Sequence[int], *, alone: bool = False) -> list[Batch]:
        """Return the rank's parts of consecutive steps, with their costs. With `alone`, reads nothing ahead."""
        metrics = StepMetrics(steps)
        is_first = alone or self._reads.begin(steps)
        patience: AbstractContextManager[None] = nullcontext()
        if not self._has_succeeded:  # a store throttles ranks that start together, for minutes
            patience = patient()
        page_waits: AbstractContextManager[None] = nullcontext()
        if is_first:  # a first batch reads only the bytes that it needs
            page_waits = self._reads.waiting_for_no_page()
        is_complete = False
        batches: list[Batch] = []
        try:
            with patience, use_metrics(metrics), count_requests(metrics.traffic), page_waits:
                with metrics.time_stage("plan"):
                    planned = self._plan_slots(steps)
                for rank_slots in planned:
                    batches += self._make_batches(rank_slots)
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

    def _make_batches(self, rank_slots: RankSlots) -> list[Batch]:
        """Return a batch for each step of `rank_slots`."""
        metrics = step_metrics()
        metrics.step_of = None  # a single step needs no look-up
        if len(rank_slots.steps) > 1:
            metrics.step_of = rank_slots.step_of
        columns = Columns(len(rank_slots), self._allocate, self._list_fields)
        delivered_items: list[SourceSamples] = []
        if self._packed is not None:
            delivered = self._packed(rank_slots, columns)
        else:
            delivered, delivered_items = self._deliver(rank_slots, columns)
        import_framework(self._framework)  # takes seconds the first time, so outside `collate`
        with metrics.time_stage("collate"):
            if self._lay_out is not None:
                self._lay_out(columns, delivered.keys)
            batches = self._finish(rank_slots, columns, delivered)
            if self._items is not None:
                # A `collate` of the dataset gets whole batches.
                self._items.complete(batches, rank_slots, delivered_items)
        return batches

    def _deliver(
        self, rank_slots: RankSlots, columns: Columns
    ) -> "tuple[DeliveredSamples, list[SourceSamples]]":
        """Put the slots' samples, or their substitutes, into the columns.

        Return all samples delivered, with their substitutions; and, of these, the items of datasets.
        """
        slots = rank_slots.slots
        with step_metrics().time_stage("address"):
            parts = rank_slots.located  # empty unless the samples were located ahead
            if not parts:
                parts = self._fetch.locate(slots, rank_slots.real_rows, self._map)

        # Fetch and decode what is stored.
        early_columns = None  # nothing may be written into the columns before a transform
        if not self._has_transform:
            early_columns = columns
        fetched_parts = [self._fetch(slots, part, early_columns) for part in parts]
        unreadable: list[UnreadableSample] = []
        for part, fetched in zip(parts, fetched_parts, strict=True):
            errors = self._decode(slots, part, fetched, columns)
            for number, error in errors.items():
                unreadable.append(UnreadableSample(part, number, error))

        # Make the items of datasets.
        delivered: list[Delivered] = [*parts]
        delivered_items: list[SourceSamples] = []
        substitutions: list[Substitution] = []
        if self._items is not None:
            delivered_items, substitutions = self._items(rank_slots, columns)
            delivered += delivered_items

        # Replace unreadable samples, in order of row.
        unreadable.sort(key=attrgetter("row"))
        substitutes, sample_substitutions = self._substitute(rank_slots, unreadable, columns)
        delivered += substitutes  # later ones overwrite the row's identity
        substitutions += sample_substitutions
        if delivered_items:
            # Items come before stored samples, each in order of slot: put all in this order.
            substitutions = in_order(substitutions)
        return build_delivered(len(columns), delivered, substitutions), delivered_items

    def _substitute(
        self,
        rank_slots: RankSlots,
        unreadable: Sequence[UnreadableSample],
        columns: Columns,
    ) -> tuple[list[LocatedSamples], list[Substitution]]:
        """Put substitutes of unreadable samples into the columns. Return them, located, and the substitutions tried."""
        substitutes: list[LocatedSamples] = []
        substitutions: list[Substitution] = []
        for bad in unreadable:
            if self.recipe.recorded is not None:  # a replay has the recorded substitutes, and draws no others
                substitution = mask_row(
                    self.recipe.plan,
                    rank_slots,
                    bad.row,
                    bad.address,
                    bad.error,
                )
                substitutions.append(substitution)
                continue
            batch_row = BatchRow(columns, bad.row)
            substitute, sample, substitutions_tried = self._find_substitute(rank_slots, bad, batch_row)
            batch_row.put(sample, self._samples.names(bad.located, sample))
            substitutes.append(substitute)
            substitutions += substitutions_tried
        return substitutes, substitutions

    def _decode(
        self,
        slots: Slots,
        located: LocatedSamples,
        fetched: Fetched,
        columns: Columns,
    ) -> dict[int, Corrupt]:
        """Decode the payloads into the columns. Return number -> error of each unreadable sample.

        Empties `fetched.payloads`, so that bytes are freed once they are decoded.
        """
        bad = dict(fetched.bad)
        needs_no_decoder = np.ones(len(located.rows), bool)  # all values are in the columns
        needs_no_decoder[[*fetched.payloads, *bad]] = False
        columns.put_names(located.rows[needs_no_decoder], located.kind.names)
        payloads = {number: payload for number, payload in fetched.payloads.items() if number not in bad}
        fetched.payloads.clear()
        bad |= self._samples(slots, located, payloads, columns)
        return bad


def _item_rows(recipe: Recipe, *, is_sent: bool) -> "ItemRows | None":
    """Return the maker of datasets' items; None if no source is a dataset."""
    if not recipe.has_items:
        return None
    from ..items.item_rows import ItemRows  # only for datasets
    from ..items.item_samples import source_items

    return ItemRows(recipe, source_items(recipe, is_sent=is_sent))


def _make_packed_slots(
    recipe: Recipe,
    decoders: Sequence[Mapping[str, Decoder]],
    fetch: Fetch,
    parallel_map: Map,
) -> "PackedSlots | None":
    """Return the maker of packed sequences; None if the plan is not packed."""
    if recipe.plan.pack is None:
        return None
    from .packed_slots import PackedSlots  # 5 ms, only for packed plans

    return PackedSlots(recipe, decoders, fetch, parallel_map)


def _make_stored_sequences(recipe: Recipe, stored_recipe: Recipe) -> "StoredSequences | None":
    """Return what lays out stored sequences; None without `loader.laid_out`. stored_recipe: `Recipe.before_layout`."""
    if stored_recipe is recipe:
        return None
    from .stored_sequences import StoredSequences

    return StoredSequences(recipe)
