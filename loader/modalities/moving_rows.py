"""Find the rows of an episode's stream at which a robot moves."""

from typing import Any

import numpy as np

from ..errors import DecodeFailed, InvalidRuntime

Array = np.ndarray[Any, np.dtype[Any]]
_NS_PER_MS = 10**6


def moving_rows(
    values: Array,
    clock: Array | None = None,
    *,
    still: float = 0.02,
    idle_ms: int = 500,
    idle_rows: int = 15,
) -> Array:
    """Return bool [n]: False at the idle rows of a stream, for `loader.windows(..., keep=)`.

    A stream is idle while each dimension stays within `still` times the widest range of any dimension, since one that
    never moves has only noise. The first row of an idle time is not idle. O(n * dims * log of the longest idle time).

    - values: numbers [n, ...], such as an episode's actions
    - clock: int64 [n], ascending times in ns, or None
    - still: share of the widest range, 0 to below 1
    - idle_ms: shortest idle time in ms, with a clock
    - idle_rows: shortest idle run in rows, without a clock

    Raises: InvalidRuntime for a setting out of range; DecodeFailed for values that are not rows of numbers, and for a
    clock of another length or that does not ascend.
    """
    if not (0 <= still < 1 and idle_ms >= 1 and idle_rows >= 1):
        raise InvalidRuntime(
            f"moving_rows(still={still}, idle_ms={idle_ms}, idle_rows={idle_rows}); accepted: still from 0 to below 1, "
            "idle_ms and idle_rows of at least 1",
            what="still, idle_ms, idle_rows",
            given=[still, idle_ms, idle_rows],
            accepted="still from 0 to below 1, idle_ms and idle_rows of at least 1",
        )
    if not values.ndim or not len(values) or values.dtype.kind not in "biuf":
        raise DecodeFailed(
            f"{values.dtype} {list(values.shape)} are not rows of numbers",
            what="values",
            given=f"{values.dtype} {list(values.shape)}",
        )
    n = len(values)
    rows = values.reshape(n, -1).astype(np.float64)  # [n, dims]
    # [n]: last row of the shortest idle time that begins at each row; n if the stream ends before
    if clock is None:
        last = np.arange(n) + idle_rows
    else:
        _check_clock(clock, n)
        idle_until = clock + idle_ms * _NS_PER_MS
        last = np.searchsorted(clock, idle_until)
    starts = np.flatnonzero(last < n)
    is_idle = _idle_intervals(rows, starts, last[starts], still)
    idle_starts = starts[is_idle]
    idle_ends = last[idle_starts]
    # Each idle time begins and ends an interval; a row is idle inside at least one. Its first row is not idle.
    edges = np.zeros(n + 1, np.int64)
    np.add.at(edges, idle_starts + 1, 1)
    np.add.at(edges, idle_ends + 1, -1)
    n_idle_times = np.cumsum(edges[:-1])  # [n]: idle times that cover each row
    moving: Array = n_idle_times == 0
    return moving


def _check_clock(clock: Array, n: int) -> None:
    is_form = clock.dtype == np.int64 and clock.shape == (n,)
    if not is_form or (np.diff(clock) <= 0).any():
        raise DecodeFailed(
            f"the clock is {clock.dtype} {list(clock.shape)}; accepted: int64 [{n}], ascending strictly",
            what="clock",
            given=f"{clock.dtype} {list(clock.shape)}",
            accepted=f"int64 [{n}], ascending strictly",
        )


def _idle_intervals(rows: Array, starts: Array, stops: Array, still: float) -> Array:
    """Return bool [starts]: whether every dimension of rows [n, dims] stays still from a start to its stop, inclusive.

    Extents of 2^k rows come from extents of 2^(k-1): O(rows * log of the longest).
    """
    is_finite = np.isfinite(rows)
    finite = np.where(is_finite, rows, np.nan)  # an infinite range would hold every movement
    greatest = np.fmax.reduce(finite)  # [dims]
    least = np.fmin.reduce(finite)
    widest = np.fmax.reduce(greatest - least, initial=0.0)
    spread = still * widest
    n_rows = stops - starts + 1
    levels = np.log2(n_rows).astype(np.int64)  # [starts]: greatest k with 2^k rows in the interval
    highest_level = int(levels.max(initial=-1))
    low = rows  # [n - 2^k + 1, dims]: the smallest value of the 2^k rows from each row on
    high = rows
    within = np.zeros(len(starts), bool)
    for level in range(highest_level + 1):
        size = 2**level
        if level:
            half = size // 2
            low = np.minimum(low[:-half], low[half:])
            high = np.maximum(high[:-half], high[half:])
        own = np.flatnonzero(levels == level)
        first = starts[own]
        second = stops[own] + 1 - size  # two overlapping blocks of 2^k rows cover the interval
        top = np.maximum(high[first], high[second])  # [own, dims]
        bottom = np.minimum(low[first], low[second])
        with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN: not within
            is_within = top - bottom <= spread
        within[own] = is_within.all(axis=1)
    return within
