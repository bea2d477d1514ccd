"""Settings for a store, from its measurements: a pure function, so that it can be argued with."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .speed import READ_BYTES, Speed, whole_size

WIDTH = 118
"""Letters of a line of text."""
ENOUGH = 0.9
"""Share of the best rate: more requests in flight than this takes only make each of them wait."""
LONG_S = 0.002
"""Seconds; a request that takes longer is worth a cache and larger reads."""
PAGES_IN_FLIGHT = 32
"""Pages of 1 MiB that a loader reads ahead (docs/cache.md)."""
DEFAULT_PREFETCH_BYTES = 512 * 2**20
MOST_PREFETCH_GIB = 4
DEFAULT_CONCURRENCY = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Recommended settings."""

    options: Mapping[str, Any]
    """Options of `loader.Root`; those that were given and may be shown are among them."""
    loader: Mapping[str, Any]
    """Arguments of `loader.Loader`."""
    read_bytes: int
    """Bytes that one read should fetch at least to reach most of the bandwidth."""
    reasons: Sequence[str]
    """A line for each recommendation."""

    def to_lines(self, url: str) -> list[str]:
        """Return Python to paste, and the reasons."""
        given = "".join(f", {name}={value!r}" for name, value in self.loader.items())
        lines = [
            "recommended settings",
            *(f"  {line}" for line in self._root(url)),
            f"  loader.Loader(plan{given})",
        ]
        for reason in self.reasons:
            lines += textwrap.wrap(reason, WIDTH, initial_indent="  - ", subsequent_indent="    ")
        return lines

    def _root(self, url: str) -> list[str]:
        """Return the call that opens the root: one line, or one for each option."""
        options = f", options={dict(self.options)!r}" if self.options else ""
        if len(line := f"root = loader.Root({url!r}{options})") <= WIDTH:
            return [line]
        each = (f"        {name!r}: {value!r}," for name, value in self.options.items())
        return ["root = loader.Root(", f"    {url!r},", "    options={", *each, "    },", ")"]


def advise(
    speeds: Sequence[Speed],
    *,
    local: bool,
    given: Mapping[str, Any] | None = None,
    throttled: int | None = None,
) -> Advice | None:
    """Return settings; None where no small reads were measured. local: a folder of this machine.

    given: options without secrets, which stay; throttled: the least concurrency at which the store throttled, or None.
    """
    given = given or {}
    small = [one for one in speeds if one.verb == "read" and one.nbytes == READ_BYTES[0]]
    if not small:
        return None
    single = min(small, key=lambda one: one.concurrency)
    wanted = _enough(small)
    most = max(one.bytes_per_second for one in speeds if one.verb == "read")
    read_bytes = _read_bytes(speeds, wanted.concurrency, most)
    reasons = [
        f"{wanted.concurrency} requests at once give {wanted.requests_per_second:,.0f}/s of "
        f"{whole_size(small[0].nbytes)}, {wanted.requests_per_second / single.requests_per_second:.1f} times what one "
        f"gives; {'more add less than a tenth' if throttled is None else 'the best that was not throttled'}",
        f"reads of {whole_size(read_bytes)} reach half of the best rate, {most / 1e6:,.0f} MB/s, or more: for smaller "
        f"samples loader.source(view, chunk=n), n samples together about {whole_size(read_bytes)}",
    ]
    if local:
        reasons.append(
            "a folder is read directly: no cache, no options; these rates are of files in memory, not of a cold disk"
        )
        return Advice(options=given, loader={"workers": "auto"}, read_bytes=read_bytes, reasons=reasons)
    at_once = max(PAGES_IN_FLIGHT, wanted.concurrency)
    if throttled is not None:
        at_once = half_of(throttled)
        reasons.append(f"it throttled at {throttled} at once: half as many are asked for")
    elif wanted.concurrency >= DEFAULT_CONCURRENCY:
        at_once = 2 * DEFAULT_CONCURRENCY
        reasons.append(
            f"it still grows at {DEFAULT_CONCURRENCY} at once: twice as many may be tried; a store that throttles "
            "is asked by fewer"
        )
    loader: dict[str, Any] = {"workers": "auto"}
    if single.median_s > LONG_S:
        loader["cache"] = "/local-disk/penstock-cache"
        pages = min(PAGES_IN_FLIGHT, at_once)
        ahead = pages * 2**20 / single.median_s
        reasons.append(
            f"a request takes {1e3 * single.median_s:.1f} ms: a folder on a local disk keeps what is read for every "
            f"rank of the machine and for later epochs; {pages} pages read ahead bring "
            f"{min(ahead, most) / 1e6:,.0f} MB/s at most"
        )
    if most > DEFAULT_PREFETCH_BYTES:
        loader["prefetch"] = min(int(most / 2**30 + 1), MOST_PREFETCH_GIB) * 2**30
        reasons.append(
            "prefetch: batches of about a second of the best rate, so that one slow second stops nobody"
        )
    options = {**given, "max_concurrency": at_once}
    return Advice(options=options, loader=loader, read_bytes=read_bytes, reasons=reasons)


def half_of(throttled: int) -> int:
    """Return the concurrency to use where `throttled` was too much."""
    return max(1, throttled // 2)


def _enough(small: Sequence[Speed]) -> Speed:
    """Return the least concurrency that reaches nearly the best rate."""
    best = max(one.requests_per_second for one in small)
    return min(
        (one for one in small if one.requests_per_second >= ENOUGH * best), key=lambda one: one.concurrency
    )


def _read_bytes(speeds: Sequence[Speed], concurrency: int, most: float) -> int:
    """Return the smallest read that reaches half of the best bandwidth, at that concurrency or less."""
    fast = [
        one.nbytes
        for one in speeds
        if one.verb == "read" and one.concurrency <= concurrency and one.bytes_per_second >= most / 2
    ]
    return min(fast, default=READ_BYTES[-1])
