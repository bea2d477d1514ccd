"""Texts at an episode's cursor: the row or frame of each field, its age, and how far an action is from its state."""

import math
from collections.abc import Iterable, Mapping

from ...units import number as number_text
from .lanes import Lane

Values = Mapping[str, tuple[float | int | bool, ...]]
"""Field -> the row of a stream."""


def track_text(number: int, *, is_camera: bool, pts_s: float | None, age_ns: int | None, is_pad: bool) -> str:
    """Return text such as "frame 28, pts 1.1660 s, 34 ms old, padding"."""
    kind = "row"
    if is_camera:
        kind = "frame"
    parts = [f"{kind} {number}"]
    if pts_s is not None:
        parts.append(f"pts {pts_s:.4f} s")
    if age_ns is not None:
        age = _age(age_ns)
        parts.append(f"{age} old")
    if is_pad:
        parts.append("padding")
    return ", ".join(parts)


def row_text(row: int, anchor_name: str) -> str:
    """Return the anchor's row in force, or why there is none. row: -1 before the first."""
    if not anchor_name:
        return "no stream has rows and times"
    if row < 0:
        return "before the first"
    return f"{row:,} of {anchor_name}"


def farthest_text(lanes: Iterable[Lane], values: Values) -> str:
    """Return the action's dimension that is farthest from the state's; "" without both."""
    largest = 0.0
    text = ""
    for lane in lanes:
        state_row = values.get(lane.field, ())
        action_row = values.get(lane.dashed, ())
        n_both = min(len(state_row), len(action_row))  # a row lists no more than its first 512 values
        for offset, label in enumerate(lane.labels):
            dim = lane.first + offset
            if dim >= n_both:
                break
            distance = float(action_row[dim]) - float(state_row[dim])
            if not math.isfinite(distance):
                continue
            size = abs(distance)
            if not text or size > largest:
                largest = size
                amount = number_text(distance, 3)
                text = f"{lane.name} {label} {amount}"
    return text


def _age(nanoseconds: int) -> str:
    size = abs(nanoseconds)
    if size < 1000:
        return f"{nanoseconds} ns"
    # Long delays stay in ms: they compare with the periods of cameras.
    unit = "ms"
    scale = 1_000_000
    if size < scale:
        unit = "µs"
        scale = 1000
    value = nanoseconds / scale
    amount = f"{value:,.1f}".removesuffix(".0")
    return f"{amount} {unit}"
