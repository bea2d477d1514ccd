"""Refuse windows whose anchor has no clock for their times, and windows in which a stream shows nothing."""

import numpy as np

from ...errors import DecodeFailed, InvalidPlan
from ...order.random.keyed_permutation import I64
from ...order.sources.window_layout import WindowLayout
from .episode_clocks import Picked, too_old


def check_steps(layout: WindowLayout) -> None:
    """Raise InvalidPlan if a layout whose anchor has no clock has times, ages or language."""
    without = f"{layout.anchor!r} has no clock: its rows are steps"
    if layout.max_age_ns is not None:
        raise InvalidPlan(f"windows: max_age: {without}, so values have no age")
    if layout.text:
        raise InvalidPlan(f"windows: text: {without}, and language has times")
    for field, offsets in layout.at.items():
        if offsets.unit == "ns" and any(offsets.values):
            raise InvalidPlan(f"windows: at[{field!r}] has times, and {without}; use loader.rows")


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

    place: of the field, for the message. anchor: the anchor's clock. starts_ns: first time of the field's clock.
    end_ns: when a video without a clock of its own ends.
    """
    outside = picked.is_pad
    if picked.age_ns is not None:
        outside = outside & ~np.asarray(too_old(picked.age_ns, layout.max_age_ns))
    if not outside.any():
        return
    use = 'use pad="mask"'
    if anchor is None or picked.age_ns is None:
        raise DecodeFailed(f"{place} has no row for row {row} of {layout.anchor}; {use}")
    now, first, last = int(anchor[row]), int(anchor[0]), int(anchor[-1])
    if end_ns is not None and now >= end_ns:
        why = f"it ends {_seconds(last - end_ns)} s before {layout.anchor}"
    elif now < starts_ns:
        why = f"it begins {_seconds(starts_ns - first)} s after {layout.anchor}"
    else:
        why = f"it has fewer rows than {layout.anchor}"
    raise DecodeFailed(
        f"{place} shows nothing at {_seconds(now - first)} s: {why}; filter by clock_skew_ns or {use}"
    )


def _seconds(ns: int) -> str:
    """Return a time in seconds, to the nearest millisecond."""
    return f"{ns / 10**9:.3f}".rstrip("0").rstrip(".")
