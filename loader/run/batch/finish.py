"""Batches out of a rank's slots: fields, identities, digest and counts of each step, and the unreadable slots."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...dataset.reading.places import SamplePlaces
from ...dataset.reading.sample_digest import sample_crcs
from ...errors import Corrupt
from ...order.random.keyed_permutation import I64
from ...order.steps.slots import delivered_hashes, slot_identities
from ..recipe.rank_slots import Located, RankSlots
from ..recipe.recipe import Recipe
from .batch import Batch, Keys, SlotIds, fields_nbytes
from .columns import Columns
from .step_metrics import MAKING, StepMetrics
from .substitution import Substitution, masked


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Delivered:
    """Samples delivered for a batch, a row each. Their values lie in the batch's columns."""

    keys: Keys
    """Key of the delivered sample per row; "" at padding."""
    crcs: I64
    """int64 [rows]: CRC-32C that the digest is made of; anything at padding."""
    substitutions: list[Substitution]
    """Replaced corrupt samples."""


def delivered_of(n: int, delivered: Sequence[Located], substitutions: list[Substitution]) -> Delivered:
    """Return the samples of n rows. Those that come later replace earlier ones."""
    keys = Keys(partial(_keys, n, [(one.rows, one.places) for one in delivered]))
    return Delivered(keys=keys, crcs=crcs_of(n, delivered), substitutions=substitutions)


def crcs_of(n: int, delivered: Sequence[Located]) -> I64:
    """Return int64 [n]: the CRC-32C of each row's sample over its fields. Later ones replace earlier ones."""
    crcs = np.zeros(n, np.int64)
    for one in delivered:
        crcs[one.rows] = sample_crcs({field: at.crc32c for field, at in one.places.fields.items()})
    return crcs


def masked_row(recipe: Recipe, mine: RankSlots, one: Located, number: int, error: Corrupt) -> Substitution:
    """Return the entry of a sample that cannot be read any more, and is masked. Raises: the error of the only one."""
    row = int(one.rows[number])
    if mine.valid.sum() == 1:
        raise error
    address, slot = one.places.address(number), int(mine.number[row])
    return masked(recipe.plan, mine.step_of(row), mine.slots, row, slot, address, error)


def _keys(n: int, delivered: Sequence[tuple[I64, SamplePlaces]]) -> list[str]:
    """Return the key of each of n rows, "" where none was delivered; later samples of a row replace earlier ones."""
    keys = [""] * n
    for rows, places in delivered:
        for row, key in zip(rows.tolist(), places.keys(), strict=True):
            keys[row] = key
    return keys


Collate = Callable[..., tuple[dict[str, Any], Any]]


class Finish:
    """Finishes batches of a recipe. collate: makes fields and mask of columns (`collate.collate`)."""

    def __init__(self, recipe: Recipe, collate: Collate) -> None:
        self._recipe, self._collate = recipe, collate
        self._names = recipe.plan.source_names

    def __call__(self, mine: RankSlots, columns: Columns, made: Delivered, seen: StepMetrics) -> list[Batch]:
        """Return the batch of each step."""
        if mine.n_padded:
            out = [self._padding(mine, columns)]
        else:
            out = self._samples(mine, columns, made, seen)
        for name in out[0].stats:
            seen.count(name, int(sum([batch.stats[name] for batch in out])))
        return out

    def _samples(self, mine: RankSlots, columns: Columns, made: Delivered, seen: StepMetrics) -> list[Batch]:
        steps = np.repeat(np.array(mine.steps, np.uint64), np.diff(mine.starts))
        hashes = delivered_hashes(
            steps, mine.number, slot_identities(self._recipe.plan, mine.slots), made.crcs
        )
        hashes[~mine.valid] = 0
        digests = np.add.reduceat(hashes, mine.starts[:-1])
        real = np.add.reduceat(mine.valid, mine.starts[:-1], dtype=np.int64)
        names, slots = self._names, mine.slots
        sources = np.where(mine.valid, slots.source, np.int32(-1))
        ordinals = np.where(mine.valid, slots.ordinal, -1)
        of_source = np.bincount(slots.source[mine.valid], minlength=len(names))
        for name, count in zip(names, of_source.tolist(), strict=True):
            seen.samples[name] = seen.samples.get(name, 0) + count
        out = []
        for (step, rows), (fields, mask), batch, digest, n in zip(
            mine.parts(),
            self._collated(mine, columns),
            mine.batches,
            digests.tolist(),
            real.tolist(),
            strict=True,
        ):
            ids = SlotIds(names=names, source=sources[rows], keys=made.keys, rows=rows)
            out.append(self._batch(step, ids, ordinals[rows], fields, mask, digest, n, batch))
        for one in made.substitutions:
            out[mine.steps.index(one.step)].substitutions.append(one)
        return out

    def _collated(self, mine: RankSlots, columns: Columns) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yield the fields and mask of each step: cut out of those of all steps, where that makes no difference."""
        framework, parts = self._recipe.framework, [rows for _, rows in mine.parts()]
        if len(parts) > 1 and framework != "jax" and columns.is_even:
            fields, mask = self._collate(columns, framework)
            cut = [_cut(values, parts) for values in (mask, *fields.values())]
            for one, *values in zip(*cut, strict=True):
                yield dict(zip(fields, values, strict=True)), one
            return
        for part in columns.parts(parts):
            yield self._collate(part, framework)

    def _padding(self, mine: RankSlots, columns: Columns) -> Batch:
        """Return the batch of a rank without samples, in the shapes of another's, with the substitutions made there."""
        fields, mask = self._collate(Columns(mine.n_padded), self._recipe.framework, like=columns)
        padding = np.full(mine.n_padded, -1)
        ids = SlotIds.of(self._names, padding.astype(np.int32), [""] * mine.n_padded)
        return self._batch(mine.steps[0], ids, padding, fields, mask, 0, 0, mine.batches[0])

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
        plan, nbytes = self._recipe.plan, fields_nbytes(fields)
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
            bucket=None if plan.buckets is None else plan.bucket(step),
            stats={"batches": 1, "samples": n_real, "decoded_bytes": nbytes},
        )


def _cut(values: Any, parts: list[slice]) -> Sequence[Any]:
    """Return a column, or a mask, in parts."""
    if not hasattr(values, "unsafe_split_with_sizes"):
        return [values[rows] for rows in parts]
    # A tensor's, at half the cost of slices; as of slices, each may be written into where gradients are wanted.
    cut: Sequence[Any] = values.unsafe_split_with_sizes([rows.stop - rows.start for rows in parts])
    return cut


def told(batches: list[Batch], seen: StepMetrics) -> list[Batch]:
    """Return batches that were made together, each with its cost in `stats`.

    The cost is its own counts, and an even share of the common seconds and counts. The first batches have the remainder
    of a count that does not divide.
    """
    n = len(batches)
    counts = {name: amount for name, amount in seen.totals().items() if name not in batches[0].stats}
    common = {MAKING[stage]: spent / n for stage, spent in seen.seconds.items()}
    common |= {name: amount // n for name, amount in counts.items()}
    for batch in batches:
        batch.stats = common | batch.stats
        batch.slowest = seen.slowest.get(batch.step)
    for name, amount in counts.items():
        for batch in batches[: amount % n]:
            batch.stats[name] += 1
    return batches
