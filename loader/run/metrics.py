"""What the loader has done and who waited for whom: counters and one wait histogram per stage.

Named as Prometheus names them; `fetch_wait_seconds` high: the store starves the decoders;
`decode_wait_seconds` high: the processor does; `consumer_wait_seconds` high: the training step waits.
"""

import threading
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

BOUNDS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
STAGES = ("plan", "fetch", "decode", "collate", "consumer")


class Metrics:
    """Thread-safe; `snapshot` gives plain numbers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = dict.fromkeys(
            ("batches", "samples", "fetched_bytes", "decoded_bytes"), 0
        )
        self._sums = dict.fromkeys(STAGES, 0.0)
        self._buckets = {stage: [0] * (len(BOUNDS_S) + 1) for stage in STAGES}

    def count(self, name: str, amount: int = 1) -> None:
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + amount

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
        """`<counter>_total`, and per stage `<stage>_wait_seconds_sum`, `_count`, `_p50`, `_p99` (bucket bounds)."""
        with self._lock:
            out: dict[str, float] = {f"{name}_total": value for name, value in self._counts.items()}
            for stage, buckets in self._buckets.items():
                out[f"{stage}_wait_seconds_sum"] = self._sums[stage]
                out[f"{stage}_wait_seconds_count"] = sum(buckets)
                out[f"{stage}_wait_seconds_p50"] = _quantile(buckets, 0.5)
                out[f"{stage}_wait_seconds_p99"] = _quantile(buckets, 0.99)
            return out


def _quantile(buckets: list[int], q: float) -> float:
    """The upper bound of the bucket that holds the q-quantile; 0 without observations."""
    wanted, seen = q * sum(buckets), 0
    for count, bound in zip(buckets, (*BOUNDS_S, float("inf")), strict=True):
        seen += count
        if count and seen >= wanted:
            return bound
    return 0.0
