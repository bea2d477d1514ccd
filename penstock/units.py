"""Format and parse counts, bytes and durations; the time."""

import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from loader.errors import InvalidRuntime

DAY_US = 86_400 * 1_000_000
WEEK_US = 7 * DAY_US
# Python's dates end there.
_YEAR_10000_US = 253_402_300_800 * 10**6
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


def elapsed_us(begun_s: float) -> int:
    """Return the microseconds since a value of `perf_counter`."""
    return round((time.perf_counter() - begun_s) * 1e6)


def utc_us() -> int:
    """Return UTC microseconds since 1970."""
    return time.time_ns() // 1000


def size(nbytes: float) -> str:
    """Format such as '3.4 MiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            if unit == "B":
                return f"{nbytes:.0f} {unit}"
            return f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def number(value: float, digits: int = 4) -> str:
    """Format '0.04167', '12,345', '1.2e-07', 'nan'."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        if abs(value) < 1e15:
            return f"{value:,.0f}"
        return f"{value:.{digits}g}"
    return f"{value:.{digits}g}"


def share(part: float, whole: float) -> str:
    """Format '12.3 %', '< 0.1 %', '> 99.9 %'. Only nothing is '0 %', only all '100 %'."""
    if not whole or not part:
        return "0 %"
    percent = 100 * part / whole
    if percent < 0.1:
        return "< 0.1 %"
    if part < whole and percent > 99.9:
        return "> 99.9 %"
    return f"{percent:.1f} %" if part < whole else "100 %"


def length(seconds: float) -> str:
    """Format seconds: '2.5 s', '3:07 min', '1:02:03 h', '1,234 h'."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    if minutes < 6000:
        return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d} h"
    return f"{seconds / 3600:,.0f} h"


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


def utc_day(microseconds: int) -> str:
    """Return the day of a time, such as 2026-07-01."""
    return f"{datetime.fromtimestamp(microseconds / 1e6, UTC):%Y-%m-%d}"


def minute(microseconds: int) -> str:
    """Format microseconds since 1970 as "2026-01-02 03:04", UTC; as a number where no calendar has that time."""
    if not 0 <= microseconds < _YEAR_10000_US:
        return f"{microseconds:,} us"
    return f"{datetime.fromtimestamp(microseconds / 1e6, UTC):%Y-%m-%d %H:%M}"


def second(microseconds: int) -> str:
    """Format microseconds since 1970 as "2026-01-02 03:04:05", UTC."""
    return f"{datetime.fromtimestamp(microseconds / 1e6, UTC):%Y-%m-%d %H:%M:%S}"


def _is_number(text: str) -> bool:
    """Return whether a text is digits with at most one point. `isdigit` also accepts "²", which is no number."""
    digits = text.replace(".", "", 1)
    return digits.isascii() and digits.isdigit()


def parse_length(text: str) -> float:
    """Parse '90s', '30m', '72h' or '7d' as seconds. Raises: InvalidRuntime."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    number = text[:-1]
    unit = text[-1:]
    if unit not in units or not _is_number(number):
        raise InvalidRuntime(
            f"{text!r} is not a length of time; accepted: a number with s, m, h or d, such as 72h",
            what="length of time",
            given=text,
            accepted="a number with s, m, h or d",
        )
    return float(number) * units[unit]


def parse_size(text: str) -> int:
    """Parse '4096', '10GiB' or '2TiB' as bytes, up to 2**63 - 1. Raises: InvalidRuntime."""
    units = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
    unit = next((unit for unit in units if text.endswith(unit)), "")
    number = text.removesuffix(unit).strip()
    if not _is_number(number):
        raise InvalidRuntime(
            f"{text!r} is not a size; accepted: bytes, or a number with KiB, MiB, GiB or TiB",
            what="size",
            given=text,
            accepted="bytes, or a number with KiB, MiB, GiB or TiB",
        )
    # Stored as int64.
    return int(min(float(number) * units.get(unit, 1), 2**63 - 1))


def shorten_list(values: Sequence[int] | Sequence[str], most: int = 12) -> str:
    """List the first numbers or names, and count the others."""
    listed = ", ".join(map(str, values[:most]))
    if len(values) > most:
        return f"{listed} and {len(values) - most} more"
    return listed
