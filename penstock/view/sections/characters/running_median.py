"""The running median of a metric, one value entering and one leaving a step."""

from bisect import insort

from .metric_values import Values


def running_median(values: Values) -> list[float | None]:
    """Return the median of the values around each step, as a browser draws it; None without any."""
    half = max(2, round(len(values) / 120))
    window: list[float] = []  # known values around a step, ascending
    medians: list[float | None] = []
    for position in range(-half, len(values)):
        entering = position + half
        leaving = position - half - 1
        if entering < len(values):
            _insert(window, values[entering])
        if leaving >= 0:
            _remove(window, values[leaving])
        if position < 0:
            continue
        median = None
        if window:
            median = window[len(window) // 2]
        medians.append(median)
    return medians


def _insert(window: list[float], value: float | None) -> None:
    if value is not None:
        insort(window, value)


def _remove(window: list[float], value: float | None) -> None:
    if value is not None:
        window.remove(value)
