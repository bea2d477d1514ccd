"""Figures of a run log for metrics, from its objects in any order: last step, waits, metrics that are not finite.

An object is read once, and only its sums stay: memory does not grow with the length of a run.
"""

import math
from collections import deque
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loader.run.trail.row_numbers import row_numbers
from loader.run.trail.step_rows import NOTE

from .recent_waits import THIRD_US, THIRDS, WaitedTime

MOST_STEPS = 100_000
"""Most steps in memory with a metric that is not finite, or with substituted samples."""
MEDIAN_OBJECTS = 32
"""Newest objects whose steps give the median time of a step."""
SECOND_US = 1_000_000
Int64s = NDArray[np.int64]
_COLUMNS = {
    "step": pa.int64(),
    "at_us": pa.int64(),
    "substituted": pa.int64(),
    "wait_us": pa.int64(),
    "start": pa.string(),
}


class TrailFacts:
    """Figures of one run's log, of one recorded rank."""

    def __init__(self) -> None:
        self.last_step = -1
        self.last_us = 0
        self.metric = ""
        """A metric that is not finite; "" if all are."""
        self._bad: dict[int, int] = {}  # step -> time of its newest try with such a metric, us
        self._substituted: dict[tuple[int, int], int] = {}  # (step, its time in us) -> substituted samples
        self._medians_us: deque[float] = deque(maxlen=MEDIAN_OBJECTS)
        # Second since 1970 -> seconds of waiting and of steps that ended in it.
        self._waited: dict[int, tuple[float, float]] = {}

    @property
    def not_finite(self) -> tuple[int, ...]:
        """Steps with a metric that is NaN or infinite, ascending."""
        return tuple(sorted(self._bad))

    @property
    def substituted(self) -> int:
        """Samples that were substituted or masked."""
        return sum(self._substituted.values())

    @property
    def median_step_s(self) -> float:
        """Median seconds between two steps; NaN if unknown."""
        if not self._medians_us:
            return math.nan
        median_us = np.median(self._medians_us)
        return float(median_us) / 1e6

    @property
    def waited(self) -> list[WaitedTime]:
        """Waiting in the newest minutes, by second."""
        times = list[WaitedTime]()
        for second, (wait_s, step_s) in self._waited.items():
            time = WaitedTime(
                second * SECOND_US,
                wait_s,
                step_s,
            )
            times.append(time)
        return times

    def add(
        self,
        data: bytes,
        where: str,
    ) -> None:
        """Add an object of the run log. Raises: Corrupt; FormatTooNew."""
        table = row_numbers(data, where, _COLUMNS)
        if not len(table):
            return
        # All int64 [n], in the order of delivery.
        at_us = table["at_us"].to_numpy()
        order = np.argsort(at_us, kind="stable")
        table = table.take(order)
        at_us = at_us[order]
        step = table["step"].to_numpy()
        self.last_step = max(
            self.last_step,
            int(step.max()),
        )
        self.last_us = max(self.last_us, int(at_us[-1]))
        self._add_metrics(
            table,
            step,
            at_us,
        )
        self._add_substituted(
            table,
            step,
            at_us,
        )
        self._add_times(
            table,
            step,
            at_us,
        )

    def _add_metrics(
        self,
        table: pa.Table,
        step: Int64s,
        at_us: Int64s,
    ) -> None:
        has_metric = np.zeros(len(step), bool)
        is_bad = np.zeros(len(step), bool)
        for name in table.column_names:
            if not name.startswith(NOTE):
                continue
            column = table[name].combine_chunks()
            is_set = column.is_valid().to_numpy(zero_copy_only=False)
            values = column.fill_null(0.0).to_numpy()
            is_wrong = ~np.isfinite(values)
            has_metric |= is_set
            is_bad |= is_wrong
            if is_wrong.any():
                self.metric = self.metric or name.removeprefix(NOTE)
        is_good = has_metric & ~is_bad
        self._drop_repeated(
            step[is_good],
            at_us[is_good],
        )
        for number, tried_us in _pairs(step[is_bad], at_us[is_bad]):
            if len(self._bad) < MOST_STEPS:
                self._bad[number] = tried_us

    def _drop_repeated(
        self,
        step: Int64s,
        at_us: Int64s,
    ) -> None:
        """Drop steps that were made again: a step counts by its newest try."""
        if not self._bad:
            return
        for number, tried_us in _pairs(step, at_us):
            bad_us = self._bad.get(number)
            if bad_us is not None and bad_us < tried_us:
                del self._bad[number]

    def _add_substituted(
        self,
        table: pa.Table,
        step: Int64s,
        at_us: Int64s,
    ) -> None:
        n = table["substituted"].to_numpy()
        rows = np.flatnonzero(n > 0)
        places = _pairs(step[rows], at_us[rows])
        for place, count in zip(places, n[rows].tolist(), strict=True):
            # A row is in two objects if it got metrics later.
            if len(self._substituted) < MOST_STEPS:
                self._substituted[place] = count

    def _add_times(
        self,
        table: pa.Table,
        step: Int64s,
        at_us: Int64s,
    ) -> None:
        """Add the durations and waits of an object's steps. step, at_us: int64 [rows], ascending in time."""
        start = np.asarray(
            table["start"].to_pylist(),
            dtype=object,
        )
        wait_us = table["wait_us"].to_numpy()
        # A step's duration is the time since the row before. So only rows count that follow a step of the same start;
        # a start's first wait lies before its first step.
        is_next = np.diff(step) == 1  # [rows - 1]: of each row but the first
        is_same_start = start[1:] == start[:-1]
        follows = is_next & is_same_start
        if not follows.any():
            return
        took_us = np.diff(at_us)[follows]
        median_us = np.median(took_us)
        self._medians_us.append(float(median_us))
        self._add_waits(
            at_us[1:][follows],
            wait_us[1:][follows],
            took_us,
        )

    def _add_waits(
        self,
        ended_us: Int64s,
        wait_us: Int64s,
        took_us: Int64s,
    ) -> None:
        """Add the waiting of steps to the second in which each ended. All are int64 [n]."""
        # A third more than is counted: clocks of two starts may differ.
        begun_us = self.last_us - (THIRDS + 1) * THIRD_US
        oldest = begun_us // SECOND_US
        # int64 [distinct seconds], and the place of each step's second in it.
        seconds, place = np.unique(
            ended_us // SECOND_US,
            return_inverse=True,
        )
        wait_s = np.bincount(place, wait_us / 1e6)
        step_s = np.bincount(place, took_us / 1e6)
        sums = zip(
            wait_s.tolist(),
            step_s.tolist(),
            strict=True,
        )
        for second, (own_wait_s, own_step_s) in zip(seconds.tolist(), sums, strict=True):
            known_wait_s, known_step_s = self._waited.get(
                second,
                (0.0, 0.0),
            )
            self._waited[second] = (
                known_wait_s + own_wait_s,
                known_step_s + own_step_s,
            )
        for second in list(self._waited):
            if second < oldest:
                del self._waited[second]


def _pairs(step: Int64s, at_us: Int64s) -> Iterator[tuple[int, int]]:
    """Return (step, time) of rows as whole numbers."""
    return zip(
        step.tolist(),
        at_us.tolist(),
        strict=True,
    )
