"""Bins of numbers: up to 32 between the smallest and the largest, with short edges."""

import math
from typing import Any

import numpy as np

MOST_BINS = 32
LOG_RATIO = 20
"""Bins are logarithmic if the 90th percentile is this many times the median."""
Numbers = np.ndarray[Any, Any]


def bin_edges(numbers: Numbers) -> tuple[Numbers, str]:
    """Return (ascending edges of the numbers' type, "linear" or "log"); no edges if there are no numbers.

    numbers: finite. Bin i lies between edges i and i + 1. The first edge is the smallest number, the last the largest.
    The last bin contains its upper end, and has both ends equal if it is one number.
    """
    dtype = numbers.dtype
    if not len(numbers):
        return numbers, ""
    low = numbers.min()
    high = numbers.max()
    if low == high:
        edges = np.array(
            [low, high],
            dtype,
        )
        return edges, "linear"
    if _is_whole(numbers):
        first, last = _whole_ends(numbers)
        if last - first < MOST_BINS:
            # Each whole number has its own bin.
            steps = range(
                first,
                last + 1,
            )
            edges = np.array(
                [*steps, last],
                dtype,
            )
            return edges, "linear"
    if _is_skewed(numbers):
        scale = "log"
        inner = _logarithmic(numbers)
    else:
        scale = "linear"
        inner = _linear(numbers)
    with np.errstate(over="ignore"):
        # An edge beyond a float32 becomes infinite, and is dropped.
        edges = np.array(
            inner,
            dtype,
        )
    # Rounding may move an edge to or beyond an end.
    is_inside = (edges > low) & (edges < high)
    edges = edges[is_inside]
    ends = np.array(
        [low, high],
        dtype,
    )
    edges = np.concatenate([ends, edges])
    ascending = np.unique(edges)
    return ascending, scale


def _is_whole(numbers: Numbers) -> bool:
    return np.issubdtype(
        numbers.dtype,
        np.integer,
    )


def _whole_ends(numbers: Numbers) -> tuple[int, int]:
    # In Python's numbers: the span of a column of 64 bits need not fit into 64 bits.
    low = numbers.min()
    high = numbers.max()
    return int(low), int(high)


def _is_skewed(numbers: Numbers) -> bool:
    n = len(numbers)
    middle = n // 2
    ninth = n * 9 // 10
    # The two order statistics need no whole sort.
    ordered = np.partition(
        numbers,
        [middle, ninth],
    )
    median = float(ordered[middle])
    percentile = float(ordered[ninth])
    # A logarithmic scale has no place for negative numbers.
    if median < 0 or percentile <= 0:
        return False
    return percentile >= LOG_RATIO * median


def _linear(numbers: Numbers) -> list[Any]:
    """Return the inner edges of bins of equal width."""
    edges: list[Any] = []
    steps = range(
        1,
        MOST_BINS,
    )
    if _is_whole(numbers):
        first, last = _whole_ends(numbers)
        span = last - first
        for i in steps:
            distance = span * i // MOST_BINS
            edges.append(first + distance)
        return edges
    # Each end is divided: the difference of large numbers would be infinite.
    low = float(numbers.min()) / MOST_BINS
    high = float(numbers.max()) / MOST_BINS
    width = high - low
    for i in steps:
        from_low = low * (MOST_BINS - i)
        from_high = high * i
        edge = _round_edge(
            from_low + from_high,
            width,
        )
        edges.append(edge)
    return edges


def _logarithmic(numbers: Numbers) -> list[Any]:
    """Return the inner edges of bins of equal ratio. Zero and less have one bin below."""
    is_positive = numbers > 0
    positive = numbers[is_positive]
    least = float(positive.min())
    n = MOST_BINS
    edges = []
    if len(positive) < len(numbers):
        # The bin of zero and less ends at the smallest positive number.
        edges.append(least)
        n -= 1
    start = math.log(least)
    most = float(numbers.max())
    end = math.log(most)
    step = (end - start) / n
    for i in range(
        1,
        n,
    ):
        exponent = start + step * i
        exact = math.exp(exponent)
        short = f"{exact:.3g}"
        edges.append(float(short))
    if not _is_whole(numbers):
        return edges
    # Whole ends above 2^53 are not floats: what rounding moved beyond them would not fit the type.
    first, last = _whole_ends(numbers)
    whole = [math.ceil(edge) for edge in edges]
    return [edge for edge in whole if first < edge < last]


def _round_edge(edge: float, width: float) -> float:
    """Return an edge with the digits that a hundredth of a bin's width needs."""
    if not width:
        return edge
    magnitude = math.log10(width)
    # Two digits below the width: its hundredth.
    digits = 2 - math.floor(magnitude)
    # 10 to this power is not a float.
    if abs(digits) > 300:
        return edge
    return round(
        edge,
        digits,
    )
