"""Units of the numbers on plots."""

_TIME_UNITS = {
    "h": 3600.0,
    "min": 60.0,
}
"""Name -> seconds, the longest first."""
_BYTE_UNITS = {
    "GiB": 2**30,
    "MiB": 2**20,
    "KiB": 2**10,
}
"""Name -> bytes, the largest first."""
_PREFIXES = {
    "T": 1e12,
    "G": 1e9,
    "M": 1e6,
}
"""Letter -> factor, the largest first."""


def time_unit(most_s: float) -> tuple[str, float]:
    """Return (name, seconds) of the unit in which times up to `most_s` are written."""
    for name, seconds in _TIME_UNITS.items():
        # 1.5 h reads better as 90 min.
        if most_s >= 2 * seconds:
            return name, seconds
    return "s", 1.0


def byte_unit(nbytes: int) -> tuple[str, int]:
    """Return (name, bytes) of the largest unit that is not above `nbytes`."""
    for name, size in _BYTE_UNITS.items():
        if nbytes >= size:
            return name, size
    return "bytes", 1


def short_number(n: float, digits: int) -> str:
    """Return 12.3M for 12,345,678. digits: decimal places of a number below ten million."""
    for letter, factor in _PREFIXES.items():
        if n >= 10 * factor:
            scaled = n / factor
            return f"{scaled:,.1f}{letter}"
    return f"{n:,.{digits}f}"
