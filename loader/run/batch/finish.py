"""Finish the batches of a rank: fields, mask, identities, digest and costs of each step."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...dataset.reading.sample_places import Int64s
from ...dataset.shards.shard import crc32c
from ...order.digests import slot_hashes, slot_identities
from ...order.random.keyed_permutation import I64
from ..recipe.rank_slots import RankSlots
from ..recipe.recipe import Recipe
from .batch import MAKING, Batch, StepMetrics, fields_nbytes, step_metrics
from .columns import Columns
from .slot_ids import Keys, SlotIds
from .substitution import Substitution

U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
FieldCrcs = Mapping[str, Int64s]
"""Field name -> int64 [n]: CRC-32C of the field of each of n samples."""
SampleNumbers = I64 | slice
Collated = tuple[dict[str, Any], Any]
"""(fields, mask)"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeliveredSamples:
    """Samples delivered for a batch, one per row. Their values are in the batch's columns."""

    keys: Keys
    """Key per row; "" at padding."""
    crcs: I64
    """int64 [rows]: CRC-32C for the digest; arbitrary at padding."""
    substitutions: list[Substitution]
    """Substitutions for corrupt samples."""
    totals: dict[str, int] = field(default_factory=dict)
    """`Batch.totals`."""


class Delivered(Protocol):
    """Samples of one kind that were delivered in a batch."""

    @property
    def rows(self) -> I64:
        """int64 [n]: row of each sample in the batch."""

    def keys(self) -> list[str]:
        """Return the key of each sample."""

    def field_crcs(self) -> Iterator[tuple[SampleNumbers, FieldCrcs]]:
        """Yield (numbers, field -> CRC-32C of each) for samples that have the same fields."""


def build_delivered(
    n: int, delivered: Sequence[Delivered], substitutions: list[Substitution]
) -> DeliveredSamples:
    keys = Keys(partial(_keys, n, delivered))
    return DeliveredSamples(keys=keys, crcs=row_crcs(n, delivered), substitutions=substitutions)


def row_crcs(n: int, delivered: Sequence[Delivered]) -> I64:
    """Return int64 [n]: the CRC-32C over the fields of each row's last sample."""
    crcs = np.zeros(n, np.int64)
    for samples in delivered:
        for numbers, by_field in samples.field_crcs():
            crcs[samples.rows[numbers]] = sample_crcs(by_field)
    return crcs


def _keys(n: int, delivered: Sequence[Delivered]) -> list[str]:
    keys = [""] * n
    for samples in delivered:
        for row, key in zip(samples.rows.tolist(), samples.keys(), strict=True):
            keys[row] = key
    return keys


Collate = Callable[..., Collated]
"""`collate`, or a function that returns the same as another framework's arrays."""


class Finish:
    """Makes a rank's batches, one per step, from the columns of all of them."""

    def __init__(self, recipe: Recipe, collate: Collate) -> None:
        self._recipe = recipe
        self._collate = collate
        self._names = recipe.plan.source_names

    def __call__(
        self,
        rank_slots: RankSlots,
        columns: Columns,
        delivered: DeliveredSamples,
    ) -> list[Batch]:
        if rank_slots.n_padded:
            batches = [self._padding(rank_slots, columns)]
        else:
            batches = self._samples(rank_slots, columns, delivered)
        for batch in batches:
            batch.totals = delivered.totals
        metrics = step_metrics()
        for name in batches[0].stats:
            total = int(sum([batch.stats[name] for batch in batches]))
            metrics.count(name, total)
        return batches

    def _samples(
        self,
        rank_slots: RankSlots,
        columns: Columns,
        delivered: DeliveredSamples,
    ) -> list[Batch]:
        slots = rank_slots.slots
        is_real = rank_slots.valid
        digests = self._digests(rank_slots, delivered)
        n_real = np.add.reduceat(is_real, rank_slots.starts[:-1], dtype=np.int64)
        sources = np.where(is_real, slots.source, np.int32(-1))
        ordinals = np.where(is_real, slots.ordinal, -1)
        self._count_samples(slots.source[is_real])
        batches = []
        for (step, rows), (fields, mask), global_batch, digest, n in zip(
            rank_slots.parts(),
            self._collated(rank_slots, columns),
            rank_slots.batches,
            digests.tolist(),
            n_real.tolist(),
            strict=True,
        ):
            ids = SlotIds(names=self._names, source=sources[rows], keys=delivered.keys, rows=rows)
            batch = self._batch(step, ids, ordinals[rows], fields, mask, digest, n, global_batch)
            batches.append(batch)
        for substitution in delivered.substitutions:
            number = rank_slots.steps.index(substitution.step)
            batch = batches[number]
            batch.substitutions.append(substitution)
        return batches

    def _digests(self, rank_slots: RankSlots, delivered: DeliveredSamples) -> U64:
        """Return uint64 [steps]: the sum of the hashes of a step's real slots, modulo 2**64."""
        steps = np.array(rank_slots.steps, np.uint64)
        slots_per_step = np.diff(rank_slots.starts)
        identities = slot_identities(self._recipe.plan, rank_slots.slots)
        hashes = slot_hashes(
            np.repeat(steps, slots_per_step),
            rank_slots.number,
            identities,
            delivered.crcs,
        )
        hashes[~rank_slots.valid] = 0
        first_slots = rank_slots.starts[:-1]
        digests: U64 = np.add.reduceat(hashes, first_slots)
        return digests

    def _count_samples(self, sources: NDArray[np.int32]) -> None:
        """Add these samples to the metrics of their sources. sources: int32 [samples], source numbers."""
        counts = np.bincount(sources, minlength=len(self._names))
        samples = step_metrics().samples
        for name, count in zip(self._names, counts.tolist(), strict=True):
            samples[name] = samples.get(name, 0) + count

    def _collated(self, rank_slots: RankSlots, columns: Columns) -> Iterator[Collated]:
        """Yield (fields, mask) of each step."""
        framework = self._recipe.framework
        parts = [rows for _, rows in rank_slots.parts()]
        if len(parts) > 1 and framework != "jax" and columns.is_even:
            # All steps at once, and then their parts: a collation costs the same for one step as for many.
            fields, mask = self._collate(columns, framework)
            masks = _cut(mask, parts)
            columns_of_parts = [_cut(values, parts) for values in fields.values()]
            for part_mask, *values in zip(masks, *columns_of_parts, strict=True):
                part_fields = dict(zip(fields, values, strict=True))
                yield part_fields, part_mask
            return
        for part in columns.parts(parts):
            yield self._collate(part, framework)

    def _padding(self, rank_slots: RankSlots, columns: Columns) -> Batch:
        """Return a batch of padding, with the fields and shapes of `columns`."""
        n_slots = rank_slots.n_padded
        fields, mask = self._collate(Columns(n_slots), self._recipe.framework, like=columns)
        padding = np.full(n_slots, -1)
        no_source = padding.astype(np.int32)
        no_keys = [""] * n_slots
        ids = SlotIds.of(self._names, no_source, no_keys)
        step = rank_slots.steps[0]
        global_batch = rank_slots.batches[0]
        return self._batch(step, ids, padding, fields, mask, digest=0, n_real=0, global_batch=global_batch)

    def _batch(
        self,
        step: int,
        ids: SlotIds,
        ordinals: I64,
        fields: dict[str, Any],
        mask: Any,
        digest: int,
        n_real: int,
        global_batch: int,
    ) -> Batch:
        bucket = None
        if self._recipe.plan.buckets is not None:
            bucket = self._recipe.plan.bucket(step)
        nbytes = fields_nbytes(fields)
        return Batch(
            step=step,
            ids=ids,
            sources=ids.source,
            ordinals=ordinals,
            mask=mask,
            weight=n_real * self._recipe.world.world_size / global_batch,
            digest=digest,
            fields=fields,
            nbytes=nbytes,
            bucket=bucket,
            stats={"batches": 1, "samples": n_real, "decoded_bytes": nbytes},
        )


def _cut(values: Any, parts: list[slice]) -> Sequence[Any]:
    if not hasattr(values, "unsafe_split_with_sizes"):
        return [values[rows] for rows in parts]
    # Half the cost of slicing a tensor; like slices, parts may be written to while gradients are recorded.
    sizes = [rows.stop - rows.start for rows in parts]
    cut: Sequence[Any] = values.unsafe_split_with_sizes(sizes)
    return cut


def with_costs(batches: list[Batch], metrics: StepMetrics) -> list[Batch]:
    """Return batches made together, each with its cost in `stats`: its own counts, and a share of the common ones."""
    n_batches = len(batches)
    own_counts = batches[0].stats
    counts = metrics.totals()
    for name in own_counts:
        counts.pop(name, None)
    shares: dict[str, float] = {}
    for stage, seconds in metrics.seconds.items():
        shares[MAKING[stage]] = seconds / n_batches
    for name, amount in counts.items():
        shares[name] = amount // n_batches
    for batch in batches:
        batch.stats = shares | batch.stats
        batch.slowest = metrics.slowest.get(batch.step)
    for name, amount in counts.items():
        remainder = amount % n_batches
        for batch in batches[:remainder]:
            batch.stats[name] += 1
    return batches


def term_table(bit_term: Callable[[int], int]) -> U32:
    """Return uint32 [4, 256]: the term for each value of each byte of a 32-bit number.

    bit_term: bit 0 to 31 -> its term. A CRC is linear: the term of a number is the XOR of the terms of its bits.
    """
    table = np.zeros((4, 256), np.uint32)
    for bit in range(32):
        byte, low = divmod(bit, 8)
        first = 1 << low  # the values from here to twice of it have this bit as their highest
        term = np.uint32(bit_term(bit))
        terms = table[byte]
        terms[first : 2 * first] = terms[:first] ^ term
    return table


def look_up_terms(table: U32, numbers: NDArray[np.integer]) -> U32:
    """Return the term of each 32-bit number: uint32 [n]. table: `term_table`."""
    lowest = numbers & 0xFF
    terms: U32 = table[0][lowest]  # a copy
    for byte in range(1, 4):
        values = (numbers >> (8 * byte)) & 0xFF
        terms ^= table[byte][values]
    return terms


def sample_crcs(crcs: FieldCrcs) -> Int64s:
    """Return int64 [n]: one CRC-32C per sample over its fields, sorted by name. crcs: field -> int64 [n].

    The message has, for each field: name, zero byte, CRC-32C of the bytes as little-endian uint32. Its CRC is the CRC
    of the message with zeros for all checksums, XORed with each checksum's term. O(fields) array operations.
    """
    names = sorted(crcs)
    n_samples = len(crcs[names[0]])
    blank, tables = _tables(tuple(names))
    message_crcs = np.full(n_samples, blank, np.uint32)
    for name, table in zip(names, tables, strict=True):
        message_crcs ^= look_up_terms(table, crcs[name])
    return message_crcs.astype(np.int64)


@lru_cache(maxsize=256)
def _tables(names: tuple[str, ...]) -> tuple[int, list[U32]]:
    """Return (CRC of the message with zeros for checksums, one table of terms per name)."""
    stretches = [name.encode() + bytes(5) for name in names]  # a zero byte, and a checksum of 4 zero bytes
    message = b"".join(stretches)
    blank = crc32c(message)

    def bit_term(end: int, bit: int) -> int:
        """Return what one bit of the checksum that ends at `end` changes in the CRC."""
        checksum = (1 << bit).to_bytes(4, "little")
        changed = message[: end - 4] + checksum + message[end:]
        return crc32c(changed) ^ blank

    ends = accumulate(map(len, stretches))
    tables = []
    for end in ends:
        table = term_table(partial(bit_term, end))
        tables.append(table)
    return blank, tables
