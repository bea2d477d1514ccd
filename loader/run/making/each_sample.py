"""Make the samples of a replayed recipe one by one, in order, in bounded memory."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from ...dataset.reading.places import Map
from ...errors import Corrupt
from ...order.random.keyed_permutation import I64
from ...storage.threads import DaemonPool
from ..batch.collate import DeliveredSamples, delivered_of
from ..batch.substitution import masked_row
from ..recipe.rank_slots import LocatedSamples, RankSlots
from ..recipe.recipe import Recipe
from .fetch import Fetch
from .many_samples import ManySamples, OneSample

MOST_STORED_BYTES = 2**26
"""Stored bytes that are read together, unless one sample is larger."""
MOST_AHEAD_BYTES = 2**20
"""Largest stored size of a sample that is made while the previous one is used."""

TakeSample = Callable[[int, dict[str, Any]], object]
"""Function of a row and its sample (field -> value)."""


class EachSample:
    """Makes a replayed recipe's samples, in order.

    Memory: MOST_STORED_BYTES, a decoded sample, and the next one up to MOST_AHEAD_BYTES.
    """

    def __init__(
        self,
        recipe: Recipe,
        fetch: Fetch,
        one_sample: OneSample,
        samples: ManySamples,
        run: Map,
    ) -> None:
        self._recipe = recipe
        self._fetch = fetch
        self._run = run
        self._one_sample = one_sample
        self._names = samples.names

    def __call__(self, rank_slots: RankSlots, take: TakeSample) -> DeliveredSamples:
        """Pass every sample in the slots to `take`; return the samples delivered, unreadable ones masked.

        Raises: Corrupt if none is readable; errors of `take`.
        """
        delivered: list[LocatedSamples] = []
        bad: list[tuple[int, LocatedSamples, int, Corrupt]] = []  # row, samples, number, error

        def give(
            located: LocatedSamples,
            number: int,
            sample: dict[str, Any] | Corrupt,
        ) -> None:
            row = int(located.rows[number])
            if isinstance(sample, Corrupt):
                bad.append((row, located, number, sample))
                return
            names = self._names(located, sample)
            take(row, {name: sample[name] for name in names})

        with DaemonPool(1, "penstock-sample") as pool:
            for rows in self._together(rank_slots):
                for located in self._fetch.locate(rank_slots.slots, rows, self._run):
                    delivered.append(located)
                    self._each(rank_slots, located, partial(give, located), pool)
        substitutions = []
        bad.sort(key=itemgetter(0))
        for row, located, number, error in bad:
            address = located.places.address(number)
            substitution = masked_row(
                self._recipe.plan,
                rank_slots,
                row,
                address,
                error,
            )
            substitutions.append(substitution)
        return delivered_of(len(rank_slots), delivered, substitutions)

    def _each(
        self,
        rank_slots: RankSlots,
        located: LocatedSamples,
        give: Callable[[int, dict[str, Any] | Corrupt], None],
        pool: DaemonPool,
    ) -> None:
        fetched = self._fetch(rank_slots.slots, located, None)
        n = len(located.rows)
        is_small = _nbytes(located) <= MOST_AHEAD_BYTES  # bool [n]
        ahead: Future[dict[str, Any] | Corrupt] | None = None

        def sample_of(number: int) -> dict[str, Any] | Corrupt:
            payload = fetched.payloads.pop(number, {})
            error = fetched.bad.get(number)
            if error is not None:
                return error
            return self._one_sample(
                rank_slots.slots,
                located,
                number,
                payload,
                None,
            )

        for number in range(n):
            if ahead is None:
                sample = sample_of(number)
            else:
                sample = ahead.result()
            ahead = None
            following = number + 1
            if following < n and is_small[following]:
                # The pool's thread does not inherit the metrics of the step.
                ahead = pool.submit(copy_context().run, sample_of, following)
            give(number, sample)
            del sample  # before the next one is made, if that one is large

    def _together(self, rank_slots: RankSlots) -> Iterator[I64]:
        """Yield the real rows in runs of at most MOST_STORED_BYTES, each of at least one row."""
        nbytes = np.zeros(len(rank_slots), np.int64)  # [rows]: stored bytes of the row's sample
        for located in self._fetch.locate(rank_slots.slots, rank_slots.real_rows, self._run):
            nbytes[located.rows] = _nbytes(located)
        rows = rank_slots.real_rows
        bytes_to_end = np.cumsum(nbytes[rows])  # [rows left]: stored bytes up to the end of each
        while len(rows):
            n_fit = int(np.searchsorted(bytes_to_end, MOST_STORED_BYTES, "right"))
            n = max(1, n_fit)
            yield rows[:n]
            rows = rows[n:]
            bytes_to_end = bytes_to_end[n:] - bytes_to_end[n - 1]


def _nbytes(located: LocatedSamples) -> I64:
    """Return each sample's stored size, over all of its fields."""
    of_fields = [places.nbytes for places in located.places.fields.values()]
    total: I64 = np.sum(of_fields, axis=0, dtype=np.int64)
    return total
