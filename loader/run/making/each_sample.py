"""The samples of a step one by one: each is decoded, transformed, given away, and let go."""

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import numpy as np

from ...dataset.reading.read_fields import Map
from ...errors import Corrupt
from ...order.random.keyed_permutation import I64
from ..batch.finish import Delivered, delivered_of, masked_row
from ..batch.step_metrics import StepMetrics
from ..recipe.rank_slots import Located, RankSlots
from ..recipe.recipe import Recipe
from .fetch import Fetch
from .many_samples import ManySamples
from .one_sample import OneSample

MOST_STORED_BYTES = 2**26
"""Stored bytes that are read together, unless one sample has more."""

TakeSample = Callable[[int, dict[str, Any]], object]
"""Function of a row and its sample, field -> value."""


class EachSample:
    """Makes samples of a recipe that looks back, in order. Memory: MOST_STORED_BYTES and a decoded sample."""

    def __init__(
        self, recipe: Recipe, fetch: Fetch, one_sample: OneSample, samples: ManySamples, run: Map
    ) -> None:
        self._recipe, self._fetch, self._run = recipe, fetch, run
        self._one_sample, self._names = one_sample, samples.names

    def __call__(self, mine: RankSlots, take: TakeSample, seen: StepMetrics) -> Delivered:
        """Give every sample of the slots to `take`, and return what was delivered.

        A sample that cannot be read is masked. Raises: Corrupt where none can be; errors of `take`, and of a store that
        does not answer.
        """
        delivered: list[Located] = []
        bad: list[tuple[int, Located, int, Corrupt]] = []
        for rows in self._together(mine):
            for one in self._fetch.locate(mine.slots, rows, self._run):
                delivered.append(one)
                fetched, at = self._fetch(mine.slots, one, None, seen), one.rows.tolist()
                for number in range(len(at)):
                    payload = fetched.payloads.pop(number, {})
                    sample = fetched.bad.get(number) or self._one_sample(
                        mine.slots, one, number, payload, None, seen
                    )
                    if isinstance(sample, Corrupt):
                        bad.append((at[number], one, number, sample))
                    else:
                        take(at[number], {name: sample[name] for name in self._names(one, sample)})
        substitutions = []
        bad.sort(key=itemgetter(0))
        for row, one, number, error in bad:
            substitutions.append(masked_row(self._recipe, mine, one, number, error))
            mine.valid[row] = False
        return delivered_of(len(mine), delivered, substitutions)

    def _together(self, mine: RankSlots) -> Iterator[I64]:
        """Yield rows whose samples are read together."""
        nbytes = np.zeros(len(mine), np.int64)
        for one in self._fetch.locate(mine.slots, mine.wanted, self._run):
            nbytes[one.rows] = np.sum([at.nbytes for at in one.places.fields.values()], axis=0)
        rows, before = mine.wanted, np.cumsum(nbytes[mine.wanted])
        while len(rows):
            n = max(1, int(np.searchsorted(before, MOST_STORED_BYTES, "right")))
            yield rows[:n]
            rows, before = rows[n:], before[n:] - before[n - 1]
