"""What the loader has done and who waited for whom: counters and one wait histogram per stage.

Named as Prometheus names them; `fetch_wait_seconds` high: the store starves the decoders; `decode_seconds`
high: the processor does; `consumer_wait_seconds` high: the training step waits.
"""

import threading
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

BOUNDS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
STAGES = {
    "plan": "plan_seconds",
    "fetch": "fetch_wait_seconds",
    "decode": "decode_seconds",
    "collate": "collate_seconds",
    "consumer": "consumer_wait_seconds",
}
"""Stage -> its histogram's name."""
CACHE_COUNTERS = ("hits", "misses", "written_bytes", "evicted", "corrupt", "failed")
COUNTERS = (
    *("batches", "samples", "fetched_bytes", "decoded_bytes", "refetched", "substituted"),
    *(f"cache_{name}" for name in CACHE_COUNTERS),
)
"""refetched: reads repeated because of a wrong checksum, a short answer or bytes that did not decode; anything but 0 is
a failing disk or network. substituted: corrupt samples for which others were handed out. cache_*: of the node cache:
pages found and pages fetched, what was written to it, pages evicted, pages that were not what was written, and what its
disk refused."""


class Metrics:
    """Thread-safe; `snapshot` gives plain numbers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._sums = dict.fromkeys(STAGES, 0.0)
        self._buckets = {stage: [0] * (len(BOUNDS_S) + 1) for stage in STAGES}

    def count(self, name: str, amount: int = 1) -> None:
        with self._lock:
            self._counts[name] += amount

    def observe(self, stage: str, seconds: float) -> None:
        with self._lock:
            self._sums[stage] += seconds
            self._buckets[stage][bisect_left(BOUNDS_S, seconds)] += 1

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self.observe(stage, perf_counter() - start)

    def snapshot(self) -> dict[str, float]:
        """`<counter>_total`, and of each stage's histogram `_sum`, `_count`, `_p50`, `_p99` (bucket bounds)."""
        with self._lock:
            out: dict[str, float] = {f"{name}_total": value for name, value in self._counts.items()}
            for stage, buckets in self._buckets.items():
                name = STAGES[stage]
                out[f"{name}_sum"] = self._sums[stage]
                out[f"{name}_count"] = sum(buckets)
                out[f"{name}_p50"] = _quantile(buckets, 0.5)
                out[f"{name}_p99"] = _quantile(buckets, 0.99)
            return out


def _quantile(buckets: list[int], q: float) -> float:
    """The upper bound of the bucket that holds the q-quantile; 0 without observations."""
    wanted, seen = q * sum(buckets), 0
    for count, bound in zip(buckets, (*BOUNDS_S, float("inf")), strict=True):
        seen += count
        if count and seen >= wanted:
            return bound
    return 0.0
