"""Extend weekly totals by a straight line, with the band in which a single future week falls.

Ordinary least squares, and its prediction interval for one response: mean + t(n-2) s sqrt(1 + 1/n + (x - m)^2 / Sxx).
Source: NIST/SEMATECH e-Handbook of Statistical Methods, 4.5.1.2. Student's t by Abramowitz and Stegun, 26.7.5.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import Any, NamedTuple

from ..units import WEEK_US

LEAST_WEEKS = 6
"""Fewer weeks are too little history."""
CONFIDENCE = 0.95
"""Probability that a week falls inside its band, if the line holds."""
FULL = 0.85
"""Share of what is installed at which a cluster or a store counts as full."""
FAR_WEEKS = 520
"""Longest forecast, in weeks."""


class Band(NamedTuple):
    """Forecast of one week."""

    low: float
    """Lower end of its band."""
    mean: float
    """Value of the line."""
    high: float
    """Upper end of its band."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A straight line over weekly totals."""

    weeks: int
    """Weeks of history."""
    mean: float
    """Mean of the totals."""
    slope: float
    """Growth per week."""
    error: float
    """Residual standard deviation of a week."""

    def week(self, ahead: int) -> Band:
        """Return the forecast of a week. ahead: 1 for the week after the history."""
        n = self.weeks
        centre = (n - 1) / 2
        x = n - 1 + ahead - centre  # weeks from the middle of the history
        mean = self.mean + self.slope * x
        # In variances of a week: the week itself, the line's height, and the line's slope.
        variances = 1 + 1 / n + x * x / _spread(n)
        quantile = student_t(CONFIDENCE, n - 2)  # the line takes two degrees of freedom
        half = quantile * self.error * sqrt(variances)
        return Band(low=mean - half, mean=mean, high=mean + half)

    def passes(self, limit: float) -> tuple[int | None, int | None]:
        """Return the weeks ahead in which the line and the band's upper end pass a limit; None: not in 10 years."""
        by_line: int | None = None
        by_band: int | None = None
        for ahead in range(1, FAR_WEEKS + 1):
            band = self.week(ahead)
            if by_line is None and band.mean > limit:
                by_line = ahead
            if by_band is None and band.high > limit:
                by_band = ahead
        return by_line, by_band


def _spread(n: int) -> float:
    """Return the sum of squared distances of 0 to n - 1 from their mean: Sxx."""
    return n * (n * n - 1) / 12


def forecast(totals: Sequence[float]) -> Forecast | None:
    """Return the line over weekly totals, oldest first; None below six weeks, counted from the first use."""
    # Weeks of nothing before the first use would tilt the line.
    first = 0
    while first < len(totals) and not totals[first]:
        first += 1
    used = totals[first:]
    n = len(used)
    if n < LEAST_WEEKS:
        return None
    mean = sum(used) / n
    centre = (n - 1) / 2
    offsets = [week - centre for week in range(n)]
    covariation = sum(x * total for x, total in zip(offsets, used, strict=True))
    slope = covariation / _spread(n)
    residuals = sum((total - mean - slope * x) ** 2 for x, total in zip(offsets, used, strict=True))
    error = sqrt(residuals / (n - 2))  # the line takes two degrees of freedom
    return Forecast(weeks=n, mean=mean, slope=slope, error=error)


def student_t(confidence: float, freedom: int) -> float:
    """Return the two-sided quantile of Student's t: within 0.1 % for 4 degrees of freedom or more."""
    z: float = NormalDist().inv_cdf((1 + confidence) / 2)
    # The expansion 26.7.5 around the normal quantile; term k is divided by freedom ** k.
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160,
    )
    correction = sum(term / float(freedom) ** power for power, term in enumerate(terms, 1))
    return z + correction


def outlook(
    what: str, totals: Sequence[float], limit: float | None, until_us: int, unit: str
) -> tuple[dict[str, Any], str]:
    """Return a forecast as JSON and as a line. limit: total that counts as full, in the same unit; None if unknown.

    until_us: UTC microseconds at which the last week ended.
    """
    line = forecast(totals)
    body: dict[str, Any] = {"what": what, "unit": unit, "weeks": list(totals), "limit": limit}
    if line is None:
        body["problem"] = "too little history"
        return body, f"{what}: too little history (below {LEAST_WEEKS} weeks)"
    band = line.week(1)
    body |= {"slope": line.slope, "next_week": band._asdict()}
    low = max(0.0, band.low)  # a total is never negative, but the band of a short history may be
    text = f"{what}: {line.weeks} weeks, {line.slope:+,.1f} {unit} a week; next week {band.mean:,.1f}"
    text += f" ({low:,.1f} to {band.high:,.1f})"
    if limit is None:
        return body, text
    by_line, by_band = line.passes(limit)
    day = _day(until_us, by_line)
    earliest_day = _day(until_us, by_band)
    body |= {"full_in_week_of": day, "full_at_the_earliest": earliest_day}
    full = "not in 10 years"
    if day:
        full = f"in the week of {day}"
    text += f"; passes {limit:,.1f} {unit} {full}"
    if earliest_day:
        text += f", at the earliest {earliest_day}"
    return body, text


def _day(until_us: int, ahead: int | None) -> str | None:
    """Return the day on which a week ahead begins."""
    if ahead is None:
        return None
    begin_us = until_us + (ahead - 1) * WEEK_US
    return time.strftime("%Y-%m-%d", time.gmtime(begin_us / 1e6))
