"""Pick a window's values on one clock: int64 nanoseconds, rounded down, and rounded before they are compared.

A window is rejected if its anchor has no clock for its times, or with pad="inside" if a stream shows nothing.
"""

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from ...errors import DecodeFailed, InvalidPlan
from ...modalities.video.packet_table import StreamFacts
from ...modalities.video.timeline import Timeline
from ...order.random.keyed_permutation import I64
from ...order.sources.window_layout import Offsets, WindowLayout


class Picked(NamedTuple):
    """A field's values in a window."""

    number: I64
    """int64 [k], or [windows, k]: number of the value in its stream, or of the frame in its video."""
    is_pad: np.ndarray
    """bool [k]: outside of the episode, or too old."""
    age_ns: I64 | None
    """int64 [k]: wanted time less the value's own; None without clocks."""
    is_old: np.ndarray | None = None
    """bool [k]: padding for its age; None without clocks."""
    share: np.ndarray | None = None
    """float64 [k]: share of the next value, for "linear"."""


def check_clock(clock: Any, n: int) -> I64:
    """Return a clock, int64 [n]. Raises: DecodeFailed unless it ascends strictly."""
    if not isinstance(clock, np.ndarray):
        raise DecodeFailed(
            f"a clock is {type(clock).__name__}; int64 [{n}] is needed, a time for each row",
            what="clock",
            given=type(clock).__name__,
            accepted=f"int64 [{n}]",
        )
    if clock.dtype != np.int64 or clock.shape != (n,):
        shape = list(clock.shape)
        raise DecodeFailed(
            f"a clock is {clock.dtype} {shape}; int64 [{n}] is needed, a time for each row",
            what="clock",
            given=[str(clock.dtype), *shape],
            accepted=f"int64 [{n}]",
        )
    descents = np.flatnonzero(clock[1:] <= clock[:-1])
    if len(descents):
        row = int(descents[0]) + 1
        raise DecodeFailed(
            f"a clock does not ascend: row {row} is at {clock[row]} ns, after {clock[row - 1]} ns",
            what=f"row {row}",
            given=int(clock[row]),
            accepted=f"more than {clock[row - 1]} ns",
        )
    if n:
        _check_range(clock)
    return clock


def check_times(times: I64) -> I64:
    """Return the times of a clock's blocks. Raises: DecodeFailed unless they ascend."""
    # The last two are the first and the last row of the last block, which may have one row.
    descents = np.flatnonzero(times[1:-1] <= times[:-2])
    if len(descents):
        raise DecodeFailed(
            f"a clock does not ascend: block {int(descents[0]) + 1}",
            what=f"block {int(descents[0]) + 1}",
            accepted="ascending times",
        )
    if times[-1] < times[-2]:
        raise DecodeFailed(
            f"a clock does not ascend: block {len(times) - 2}",
            what=f"block {len(times) - 2}",
            accepted="ascending times",
        )
    _check_range(times)
    return times


def _check_range(clock: I64) -> None:
    """Raise DecodeFailed unless differences of an ascending clock's times fit into int64."""
    largest = max(abs(int(clock[0])), abs(int(clock[-1])))
    if largest > 2**62:
        raise DecodeFailed(
            f"a clock runs from {clock[0]} to {clock[-1]} ns; up to 2^62 ns are accepted",
            what="clock",
            given=(int(clock[0]), int(clock[-1])),
            accepted="up to 2^62 ns",
        )


def frame_times(timeline: Timeline) -> I64:
    return ticks_ns(timeline.times, timeline.time_base)


def end_ns(video: Timeline | StreamFacts) -> int:
    return int(ticks_ns(np.array([video.end_pts], np.int64), video.time_base)[0])


def ticks_ns(ticks: I64, base: Fraction) -> I64:
    """Return int64 nanoseconds, rounded down, at most 2^62 from zero. base: seconds of a tick."""
    numerator = base.numerator
    denominator = base.denominator
    if len(ticks) and int(np.abs(ticks).max()) * numerator < 2**62 and denominator < 2**33:
        seconds, rest = np.divmod(ticks * numerator, denominator)
        if int(np.abs(seconds).max()) < 2**33:  # no product overflows
            ns: I64 = seconds * 10**9 + rest * 10**9 // denominator
            return ns
    exact = [tick * numerator * 10**9 // denominator for tick in ticks.tolist()]
    bounded = [min(max(ns, -(2**62)), 2**62) for ns in exact]
    return np.array(bounded, np.int64)


def by_steps(offsets: Offsets, row: int | I64, n: int) -> Picked:
    """Return values of a field without a clock: row k of each field is one step.

    row: row of the anchor, or int64 [windows, 1]. n: number of the field's rows.
    """
    steps = np.zeros(len(offsets.values), np.int64)
    if offsets.unit == "rows":
        steps = np.array(offsets.values, np.int64)
    rows = row + steps
    is_pad = (rows < 0) | (rows >= n)
    return Picked(np.clip(rows, 0, n - 1), is_pad, None)


def by_clock(
    offsets: Offsets,
    rule: str,
    clock: Any,
    now_ns: int | I64,
    episode: tuple[int, int],
    max_age_ns: int | None,
    end: int | None = None,
) -> Picked:
    """Return values of a field with a clock (int64 [n], n >= 1, ascending; or `BlockedRows` of one).

    now_ns: time of the anchor's row, or int64 [windows, 1] for arrays [windows, k].
    episode: times of the anchor's first and last row.
    end: when a video ends.
    """
    n = len(clock)
    if offsets.unit == "rows":
        row_now = clock.searchsorted(now_ns, side="right") - 1
        rows = row_now + np.array(offsets.values, np.int64)
        index = np.clip(rows, 0, n - 1)
        age = now_ns - clock[index]
        is_old = too_old(age, max_age_ns)
        is_outside = (rows < 0) | (rows >= n)
        return Picked(index, is_outside | is_old, age, is_old)
    times = now_ns + np.array(offsets.values, np.int64)
    before = clock.searchsorted(times, side="right") - 1
    index = np.clip(before, 0, n - 1)
    share = None
    if rule != "last":
        after = np.clip(before + 1, 0, n - 1)
        from_last = times - clock[index]
        if rule == "nearest":
            to_next = np.abs(clock[after] - times)
            index = np.where(to_next < np.abs(from_last), after, index)
        else:
            has_both = (before >= 0) & (before < n - 1)
            gap = np.where(has_both, clock[after] - clock[index], 1)
            share = np.where(has_both, from_last / gap, 0.0)
    age = times - clock[index]
    first, last = episode
    is_pad = (times < first) | (times > last) | (times < clock[0])
    if end is not None:
        is_pad |= times >= end
    # "nearest" may pick a later value, whose age is below 0: its distance counts.
    if rule == "nearest":
        distance = np.abs(age)
    else:
        distance = age
    is_old = too_old(distance, max_age_ns)
    return Picked(index, is_pad | is_old, age, is_old, share)


def too_old(age: I64, max_age_ns: int | None) -> np.ndarray:
    """Return whether values are padding for their age: bool, shaped as `age`."""
    if max_age_ns is None:
        return np.zeros(np.shape(age), bool)
    return np.asarray(age > max_age_ns)


def stream_values(stream: Any, picked: Picked) -> np.ndarray:
    """Return a stream's values, [k, ...] in its dtype. stream: an array, or `BlockedRows` of one."""
    values: np.ndarray = stream[picked.number]
    if picked.share is None or not picked.share.any():
        return values
    next_number = np.minimum(picked.number + 1, len(stream) - 1)
    after = stream[next_number]
    value_dims = [1] * (stream.ndim - 1)
    share = picked.share.reshape(*picked.share.shape, *value_dims)
    change = after.astype(np.float64) - values
    mixed = values.astype(np.float64) + change * share
    return np.where(share > 0, mixed, values).astype(stream.dtype)


def check_steps(layout: WindowLayout) -> None:
    """Raise InvalidPlan if a layout has times, ages or language, but its anchor has no clock."""
    without = f"{layout.anchor!r} has no clock: its rows are steps"
    if layout.max_age_ns is not None:
        raise InvalidPlan(
            f"windows: max_age: {without}, so values have no age",
            what="max_age",
            where=layout.anchor,
            accepted="an anchor with a clock",
        )
    if layout.text:
        raise InvalidPlan(
            f"windows: text: {without}, and language has times",
            what="text",
            where=layout.anchor,
            accepted="an anchor with a clock",
        )
    for field, offsets in layout.at.items():
        if offsets.unit == "ns" and any(offsets.values):
            raise InvalidPlan(
                f"windows: at[{field!r}] has times, and {without}; use loader.rows",
                what=f"at[{field!r}]",
                where=layout.anchor,
                accepted="loader.rows",
            )


def check_inside(
    place: str,
    picked: Picked,
    layout: WindowLayout,
    anchor: I64 | None,
    row: int,
    starts_ns: int,
    end_ns: int | None,
) -> None:
    """Raise DecodeFailed if a value of a window that must fit is outside of its stream.

    place: the field's place, for messages. anchor: the anchor's clock. starts_ns: first time of the field's clock.
    end_ns: when a video without a clock of its own ends.
    """
    outside = picked.is_pad
    # A value older than `max_age` is masked as lost, not outside: the stream goes on after it.
    if picked.is_old is not None:
        outside = outside & ~picked.is_old
    if not outside.any():
        return
    use = 'use pad="mask"'
    if anchor is None or picked.age_ns is None:
        raise DecodeFailed(
            f"{place} has no row for row {row} of {layout.anchor}; {use}",
            what=f"row {row}",
            where=place,
            accepted="a row of the stream",
        )
    now = int(anchor[row])
    first = int(anchor[0])
    last = int(anchor[-1])
    if end_ns is not None and now >= end_ns:
        why = f"it ends {_seconds(last - end_ns)} s before {layout.anchor}"
    elif now < starts_ns:
        why = f"it begins {_seconds(starts_ns - first)} s after {layout.anchor}"
    else:
        why = f"it has fewer rows than {layout.anchor}"
    raise DecodeFailed(
        f"{place} shows nothing at {_seconds(now - first)} s: {why}; filter by clock_skew_ns or {use}",
        what=f"{_seconds(now - first)} s",
        where=place,
        given=why,
    )


def _seconds(ns: int) -> str:
    return f"{ns / 10**9:.3f}".rstrip("0").rstrip(".")
