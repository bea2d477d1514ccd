"""Read ranges of objects again and again, and count the CRC-32C of what comes.

As a process: JSON on standard input ({"root", "ranges": [[address, begin, end], ...], "reads", "limit_s", "at_once"}),
the counts on standard output. A watcher starts it on a node and compares the counts with its own reads.
"""

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import loader
from loader.dataset.shards.shard import crc32c
from loader.errors import PenstockError
from loader.json_text import parse_json_object
from loader.storage import Store
from loader.storage.threads import DaemonPool

AT_ONCE = 8
"""Reads in flight."""


class ObjectRange(NamedTuple):
    """Bytes of an object."""

    address: str
    """Key of the object."""
    begin: int
    """First byte."""
    end: int
    """Byte after the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeReads:
    """Checksums that ranges came with."""

    crcs: Sequence[Counter[str]]
    """Per range: CRC-32C, 8 hex digits -> number of reads."""
    first_s: Sequence[float | None] = ()
    """Per range: seconds of its first read; None without one."""
    failed: int = 0
    """Reads that the store did not answer."""
    error: str = ""
    """Last error of the store."""

    @property
    def reads(self) -> int:
        """Number of answered reads."""
        return sum(counter.total() for counter in self.crcs)

    def to_json(self) -> dict[str, Any]:
        """Return the counts for another process."""
        crcs = [dict(counter) for counter in self.crcs]
        return {"crcs": crcs, "first_s": [*self.first_s], "failed": self.failed, "error": self.error}

    @staticmethod
    def from_json(body: dict[str, Any]) -> "RangeReads":
        """Return the counts of another process. Raises: one of `DAMAGED` for a damaged one."""
        crcs = [Counter({str(crc): int(times) for crc, times in counter.items()}) for counter in body["crcs"]]
        if any(times < 0 for counter in crcs for times in counter.values()):
            raise ValueError("a count is below 0")
        first_s = [None if seconds is None else float(seconds) for seconds in body["first_s"]]
        if not all(seconds is None or 0 <= seconds < math.inf for seconds in first_s):
            raise ValueError("seconds of a read are not a number")
        failed = int(body["failed"])
        error = str(body["error"])[:500]
        return RangeReads(crcs=crcs, first_s=first_s, failed=failed, error=error)


def read_ranges(
    store: Store, ranges: Sequence[ObjectRange], reads: int, limit_s: float, at_once: int = AT_ONCE
) -> RangeReads:
    """Read the ranges in turn, `reads` times in all, or until the seconds are over. at_once: reads in flight."""
    crcs = [Counter[str]() for _ in ranges]
    first_s: list[float | None] = [None] * len(ranges)
    errors = list[str]()
    until_s = time.monotonic() + limit_s
    numbers = iter(range(reads))

    def read(_: int) -> None:
        # All threads take from one iterator, so a slow read holds up one thread only.
        for number in numbers:
            if time.monotonic() > until_s:
                return
            place = number % len(ranges)
            address, begin, end = ranges[place]
            begun_s = time.perf_counter()
            try:
                data = store.get_range(address, begin, end - begin).data
            except PenstockError as error:
                errors.append(f"{address}: {error}")
            else:
                # Only the first read of a range: later ones may come from a cache on the way.
                if number < len(ranges):
                    first_s[place] = time.perf_counter() - begun_s
                crcs[place][f"{crc32c(data):08x}"] += 1

    if ranges:
        with DaemonPool(at_once, "penstock-ranges") as pool:
            list(pool.map(read, range(at_once)))
    error = ""
    if errors:
        error = errors[-1]
    return RangeReads(crcs=crcs, first_s=first_s, failed=len(errors), error=error)


def request_text(
    root: str, ranges: Iterable[ObjectRange], reads: int, limit_s: float, at_once: int = AT_ONCE
) -> str:
    """Return the standard input of this module as a process."""
    request = {"root": root, "ranges": [*ranges], "reads": reads, "limit_s": limit_s, "at_once": at_once}
    return json.dumps(request)


def main() -> int:
    """Read the ranges of the standard input."""
    request = parse_json_object(sys.stdin.read())
    ranges = [ObjectRange(str(address), int(begin), int(end)) for address, begin, end in request["ranges"]]
    with loader.Root(str(request["root"])) as root:
        reads = int(request["reads"])
        limit_s = float(request["limit_s"])
        at_once = int(request.get("at_once", AT_ONCE))
        result = read_ranges(root.store, ranges, reads, limit_s, at_once)
    print(json.dumps(result.to_json()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
