"""Decide by measured times whether a node reads slowly. Pure: no store, no clock.

The node and healthy ones read the same ranges in the same seconds, in rounds of other ranges, so a slow store or a slow
sample slows all of them. The node is slow if it is slow in each round, beside each healthy node.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .suspects import SLOW_TIMES

ROUNDS = 2
RANGES = 32
"""Rounds of a measurement, and ranges of a round, each read once: no cache of a node has them yet."""
LEAST_RANGES = 8
"""Fewest ranges of a median: times of reads differ by half of themselves."""
LEAST_S = 0.002
"""Differences below these seconds are the node's processors at work, not its reads."""
HEALTHY_NODES = 2
"""Most healthy nodes that read beside the suspect."""
LEAST_READ_S = 1e-6
"""Shorter reads count as this long, so that no ratio is infinite."""
Times = Sequence[float | None]
"""Seconds of the read of each range; None for a range that was not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowness:
    """Outcome of a measurement."""

    is_slow: bool
    """True if the node is slow beside each healthy one, in each round."""
    is_measured: bool
    """False if there were too few reads to compare."""
    read_s: float = 0.0
    """Median seconds of the node's reads."""
    healthy_s: float = 0.0
    """Median seconds of the slowest healthy node's reads."""


class RoundTimes(NamedTuple):
    """A round of a node beside one healthy node, by the ranges that both read."""

    read_s: float
    """Median seconds of the node's reads."""
    healthy_s: float
    """Median seconds of the healthy node's reads."""
    ratio: float
    """Median over the ranges, node by healthy one: a sample that is slow by itself is slow on both."""
    longer_s: float
    """Median difference over the ranges, in seconds."""

    @property
    def is_slow(self) -> bool:
        """True if the node is slow in this round."""
        return self.ratio >= SLOW_TIMES and self.longer_s >= LEAST_S


def slowness(own: Sequence[Times], healthy: Mapping[str, Sequence[Times]]) -> Slowness:
    """Return how slow a node is. own, healthy: times of each round, of the node and of each healthy one."""
    unknown = Slowness(is_slow=False, is_measured=False)
    compared = list[RoundTimes]()
    for rounds in healthy.values():
        if len(rounds) != len(own):
            return unknown
        for own_times, other_times in zip(own, rounds, strict=True):
            comparison = _compare(own_times, other_times)
            # Too few reads beside any one node prove nothing.
            if comparison is None:
                return unknown
            compared.append(comparison)
    if not compared:
        return unknown
    least = compared[0]
    is_slow = True
    for comparison in compared:
        is_slow = is_slow and comparison.is_slow
        # The mildest comparison is the one that a person should see.
        if comparison.ratio < least.ratio:
            least = comparison
    return Slowness(
        is_slow=is_slow,
        is_measured=True,
        read_s=least.read_s,
        healthy_s=least.healthy_s,
    )


def _compare(own: Times, other: Times) -> RoundTimes | None:
    """Return the comparison over the ranges that both read; None if these are too few."""
    own_s = list[float]()
    other_s = list[float]()
    ratios = list[float]()
    longer_s = list[float]()
    for own_read_s, other_read_s in zip(own, other, strict=False):
        if own_read_s is None or other_read_s is None:
            continue
        own_s.append(own_read_s)
        other_s.append(other_read_s)
        ratios.append(own_read_s / max(other_read_s, LEAST_READ_S))
        longer_s.append(own_read_s - other_read_s)
    if len(ratios) < LEAST_RANGES:
        return None
    return RoundTimes(
        read_s=statistics.median(own_s),
        healthy_s=statistics.median(other_s),
        ratio=statistics.median(ratios),
        longer_s=statistics.median(longer_s),
    )
