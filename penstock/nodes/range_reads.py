"""Read ranges of objects again and again, and count the CRC-32C of what comes.

As a process: JSON on standard input ({"root", "ranges": [[address, begin, end], ...], "reads", "limit_s"}), the counts
on standard output. A watcher starts it on a node and compares the counts with its own reads.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import loader
from loader.dataset.shards.shard import crc32c
from loader.errors import PenstockError
from loader.json_text import parse_json_object
from loader.storage import Store

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
        return {"crcs": [dict(counter) for counter in self.crcs], "failed": self.failed, "error": self.error}

    @staticmethod
    def from_json(body: dict[str, Any]) -> "RangeReads":
        """Return the counts of another process. Raises: KeyError, TypeError, ValueError."""
        crcs = [Counter({str(crc): int(times) for crc, times in counter.items()}) for counter in body["crcs"]]
        if any(times < 0 for counter in crcs for times in counter.values()):
            raise ValueError("a count is below 0")
        return RangeReads(crcs=crcs, failed=int(body["failed"]), error=str(body["error"])[:500])


def read_ranges(store: Store, ranges: Sequence[ObjectRange], reads: int, limit_s: float) -> RangeReads:
    """Read the ranges in turn, `reads` times in all, or until the seconds are over."""
    crcs, errors, until_s = [Counter[str]() for _ in ranges], list[str](), time.monotonic() + limit_s
    numbers = iter(range(reads))

    def read(_: int) -> None:
        for number in numbers:
            if time.monotonic() > until_s:
                return
            address, begin, end = ranges[number % len(ranges)]
            try:
                data = store.get_range(address, begin, end - begin).data
            except PenstockError as error:
                errors.append(f"{address}: {error}")
            else:
                crcs[number % len(ranges)][f"{crc32c(data):08x}"] += 1

    if ranges:
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="penstock-ranges") as pool:
            list(pool.map(read, range(AT_ONCE)))
    return RangeReads(crcs=crcs, failed=len(errors), error=errors[-1] if errors else "")


def request_text(root: str, ranges: Iterable[ObjectRange], reads: int, limit_s: float) -> str:
    """Return the standard input of this module as a process."""
    return json.dumps({"root": root, "ranges": [*ranges], "reads": reads, "limit_s": limit_s})


def main() -> int:
    """Read the ranges of the standard input."""
    request = parse_json_object(sys.stdin.read())
    ranges = [ObjectRange(str(address), int(begin), int(end)) for address, begin, end in request["ranges"]]
    with loader.Root(str(request["root"])) as root:
        result = read_ranges(root.store, ranges, int(request["reads"]), float(request["limit_s"]))
    print(json.dumps(result.to_json()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
