"""Make the samples of a replayed recipe one by one, in order, in bounded memory."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import copy_context
from operator import attrgetter
from typing import Any

import numpy as np

from ...dataset.reading.sample_places import Map
from ...errors import Corrupt
from ...order.random.keyed_permutation import I64
from ...storage.threads import DaemonPool
from ..batch.finish import DeliveredSamples, build_delivered
from ..batch.substitution import UnreadableSample, mask_row
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
        parallel_map: Map,
    ) -> None:
        self._recipe = recipe
        self._fetch = fetch
        self._map = parallel_map
        self._one_sample = one_sample
        self._names = samples.names

    def __call__(self, rank_slots: RankSlots, take: TakeSample) -> DeliveredSamples:
        """Pass every readable sample in the slots to `take`. Return the samples delivered.

        Masks the rows of unreadable samples in `rank_slots`. Raises: Corrupt if none is readable; errors of `take`.
        """
        delivered: list[LocatedSamples] = []
        unreadable: list[UnreadableSample] = []
        with DaemonPool(1, "penstock-sample") as pool:
            for rows in self._groups_of_rows(rank_slots):
                for located in self._fetch.locate(rank_slots.slots, rows, self._map):
                    delivered.append(located)
                    unreadable += self._pass_samples(rank_slots, located, take, pool)

        substitutions = []
        unreadable.sort(key=attrgetter("row"))
        for bad in unreadable:
            substitution = mask_row(
                self._recipe.plan,
                rank_slots,
                bad.row,
                bad.address,
                bad.error,
            )
            substitutions.append(substitution)
        return build_delivered(len(rank_slots), delivered, substitutions)

    def _pass_samples(
        self,
        rank_slots: RankSlots,
        located: LocatedSamples,
        take: TakeSample,
        pool: DaemonPool,
    ) -> list[UnreadableSample]:
        """Pass the readable samples to `take`, in order; return the others.

        While `take` uses a sample, the pool makes the next one, if that is small.
        """
        fetched = self._fetch(rank_slots.slots, located, None)
        n = len(located.rows)
        is_small = _nbytes(located) <= MOST_AHEAD_BYTES  # bool [n]

        def make(number: int) -> dict[str, Any] | Corrupt:
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

        unreadable: list[UnreadableSample] = []
        ahead: Future[dict[str, Any] | Corrupt] | None = None  # the sample at hand, if the pool makes it
        for number in range(n):
            if ahead is None:
                sample = make(number)
            else:
                sample = ahead.result()
            ahead = None
            following = number + 1
            if following < n and is_small[following]:
                # The pool's thread does not inherit the metrics of the step.
                ahead = pool.submit(copy_context().run, make, following)

            if isinstance(sample, Corrupt):
                unreadable.append(UnreadableSample(located, number, sample))
            else:
                row = int(located.rows[number])
                names = self._names(located, sample)
                take(row, {name: sample[name] for name in names})
            del sample  # before the next one is made, if that one is large
        return unreadable

    def _groups_of_rows(self, rank_slots: RankSlots) -> Iterator[I64]:
        """Yield the real rows in groups of at most MOST_STORED_BYTES, each of at least one row."""
        nbytes = np.zeros(len(rank_slots), np.int64)  # [rows]: stored bytes of the row's sample
        for located in self._fetch.locate(rank_slots.slots, rank_slots.real_rows, self._map):
            nbytes[located.rows] = _nbytes(located)
        rows = rank_slots.real_rows  # those not yet yielded
        bytes_to_end = np.cumsum(nbytes[rows])  # [rows not yet yielded]: stored bytes up to the end of each
        while len(rows):
            n_fit = int(np.searchsorted(bytes_to_end, MOST_STORED_BYTES, "right"))
            n = max(1, n_fit)
            yield rows[:n]
            rows = rows[n:]
            bytes_to_end = bytes_to_end[n:] - bytes_to_end[n - 1]


def _nbytes(located: LocatedSamples) -> I64:
    """Return each sample's stored size, over all of its fields."""
    field_nbytes = [places.nbytes for places in located.places.fields.values()]
    total: I64 = np.sum(field_nbytes, axis=0, dtype=np.int64)
    return total
