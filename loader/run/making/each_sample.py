"""The samples of a step one by one: each is decoded, transformed, given away, and let go.

The next one is made meanwhile by another thread. User code is in one thread at a time.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from ...dataset.reading.verified_bucket_reads import Map
from ...errors import Corrupt
from ...order.random.keyed_permutation import I64
from ...storage.shared.threads import DaemonPool
from ..batch.finish import Delivered, delivered_of, masked_row
from ..batch.step_metrics import StepMetrics
from ..recipe.rank_slots import Located, RankSlots
from ..recipe.recipe import Recipe
from .fetch import Fetch
from .many_samples import ManySamples
from .one_sample import OneSample

MOST_STORED_BYTES = 2**26
"""Stored bytes that are read together, unless one sample has more."""
MOST_AHEAD_BYTES = 2**20
"""Stored bytes of a sample that is made while the last one is looked at; a larger one waits until that is gone."""

TakeSample = Callable[[int, dict[str, Any]], object]
"""Function of a row and its sample, field -> value."""


class EachSample:
    """Makes samples of a recipe that looks back, in order.

    Memory: MOST_STORED_BYTES, a decoded sample, and the next one where it has at most MOST_AHEAD_BYTES.
    """

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

        def give(one: Located, number: int, sample: dict[str, Any] | Corrupt) -> None:
            row = int(one.rows[number])
            if isinstance(sample, Corrupt):
                bad.append((row, one, number, sample))
            else:
                take(row, {name: sample[name] for name in self._names(one, sample)})

        with DaemonPool(1, "penstock-sample") as pool:
            for rows in self._together(mine):
                for one in self._fetch.locate(mine.slots, rows, self._run):
                    delivered.append(one)
                    self._each(mine, one, partial(give, one), pool, seen)
        substitutions = []
        bad.sort(key=itemgetter(0))
        for row, one, number, error in bad:
            substitutions.append(masked_row(self._recipe, mine, one, number, error))
            mine.valid[row] = False
        return delivered_of(len(mine), delivered, substitutions)

    def _each(
        self,
        mine: RankSlots,
        one: Located,
        give: Callable[[int, dict[str, Any] | Corrupt], None],
        pool: DaemonPool,
        seen: StepMetrics,
    ) -> None:
        """Give the samples of one kind by their numbers, or why they are corrupt. pool: one thread."""
        fetched, n = self._fetch(mine.slots, one, None, seen), len(one.rows)
        small = _nbytes(one) <= MOST_AHEAD_BYTES
        ahead: Future[dict[str, Any] | Corrupt] | None = None

        def made(number: int) -> dict[str, Any] | Corrupt:
            payload = fetched.payloads.pop(number, {})
            return fetched.bad.get(number) or self._one_sample(mine.slots, one, number, payload, None, seen)

        for number in range(n):
            sample = made(number) if ahead is None else ahead.result()  # the one before is gone by now
            ahead = pool.submit(made, number + 1) if number + 1 < n and small[number + 1] else None
            give(number, sample)

    def _together(self, mine: RankSlots) -> Iterator[I64]:
        """Yield rows whose samples are read together."""
        nbytes = np.zeros(len(mine), np.int64)
        for one in self._fetch.locate(mine.slots, mine.wanted, self._run):
            nbytes[one.rows] = _nbytes(one)
        rows, before = mine.wanted, np.cumsum(nbytes[mine.wanted])
        while len(rows):
            n = max(1, int(np.searchsorted(before, MOST_STORED_BYTES, "right")))
            yield rows[:n]
            rows, before = rows[n:], before[n:] - before[n - 1]


def _nbytes(one: Located) -> I64:
    """Return the stored bytes of each sample."""
    found: I64 = np.sum([at.nbytes for at in one.places.fields.values()], axis=0, dtype=np.int64)
    return found
