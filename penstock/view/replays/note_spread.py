"""Spread of a note's values over a run, which single spikes do not widen."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_MAD_PER_SIGMA = 0.6745
"""Median absolute deviation of a normal distribution, in standard deviations (Rousseeuw and Croux 1993)."""


class Spread(NamedTuple):
    """Middle and width of the finite values of a note."""

    n: int
    """Finite values."""
    median: float
    """Their median; NaN where there is none."""
    sigma: float
    """1.4826 * median absolute deviation: the standard deviation, were they normal; NaN where there is none."""


def spread_of(values: NDArray[Any]) -> Spread:
    """Return the spread of numbers of any shape. Those that are not finite are left out."""
    known = np.asarray(values, np.float64)
    known = known[np.isfinite(known)]
    if not len(known):
        return Spread(0, np.nan, np.nan)
    median = float(np.median(known))
    return Spread(len(known), median, float(np.median(np.abs(known - median))) / _MAD_PER_SIGMA)
