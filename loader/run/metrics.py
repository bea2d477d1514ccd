"""Counters, a wait histogram per stage, the status line and the bottleneck.

Stages of a batch are `batch.MAKING` and five more. In `handover` the batch waits for the training. In `consumer` the
training, which consumes it, waits for the batch. In `busy` the training works. In `room` threads wait because enough
batches are ahead. In `copy` the batch goes to a device.

peers: the part of fetch that waits for other nodes. A batch waits for reads of other threads. So this part is an
estimate, by the share of peers in the time of all reads since the batch before.

The bottleneck is training if it waited for less than WAITS of its time, else the threads' largest stage.
"""

import heapq
import sys
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from time import monotonic, perf_counter, thread_time
from typing import TextIO

from .batch.batch import MAKING, Batch, SlowSample, StepMetrics

BOUNDS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
STAGES = {
    **MAKING,
    "peers": "peer_wait_seconds",
    "handover": "handover_wait_seconds",
    "room": "room_wait_seconds",
    "copy": "device_copy_seconds",
    "consumer": "consumer_wait_seconds",
    "busy": "consumer_busy_seconds",
}
"""Stage -> its histogram's name."""
COUNTERS = {
    "batches": "Batches made, also ahead of the consumer.",
    "samples": "Samples in the batches made.",
    "consumed_batches": "Batches delivered to the consumer.",
    "consumed_samples": "Samples delivered to the consumer.",
    "fetched_bytes": "Bytes of fields read from the store.",
    "fetch_busy_us": "Microseconds of reading in which it copied bytes, and waited for no store.",
    "unverified_bytes": "Bytes of fields without a checksum: registered, and not sealed.",
    "decoded_bytes": "Bytes of the batches made.",
    "requests": "Requests to the store, also for indexes, and repeated ones.",
    "retries": "Requests repeated because the store failed or throttled.",
    "fallbacks": "Reads from another store than the nearest, in a root with mirrors.",
    "refetched": "Reads repeated because of a wrong checksum, a short response or bytes that did not decode.",
    "substituted": "Corrupt samples that were substituted.",
    "device_bytes": "Bytes of batches copied to the device.",
    "ahead_bytes": "Bytes read from the store ahead of the batches that need them.",
    "ahead_failed": "Reads ahead that failed; a batch that needs them reads them again.",
    "cache_hits": "Pages found in the cache.",
    "cache_misses": "Pages, or pieces of them, read from the store.",
    "cache_written_bytes": "Bytes put into the cache.",
    "cache_evicted": "Pages evicted from the cache.",
    "cache_corrupt": "Damaged pages in the node cache.",
    "cache_failed": "Reads and writes that the disk of the node cache refused.",
    "cache_peer_hits": "Pages found at other nodes.",
    "cache_peer_bytes": "Bytes read from other nodes.",
    "cache_peer_misses": "Pages that other nodes were asked for and did not have.",
    "cache_peer_down": "Requests to other nodes that failed, or were not sent because the node had failed.",
    "cache_peer_us": "Microseconds that reads waited for other nodes, in all threads.",
    "cache_store_us": "Microseconds that reads through a cache waited for the store, in all threads.",
}
"""Counter -> what it counts."""
SLOWEST = 16
"""Number of slow steps to remember."""
READS = 256
"""Number of reads whose median is the latency of reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Plain numbers since the loader was created."""

    counts: dict[str, int]
    """Name -> count."""
    sums: dict[str, float]
    """Stage -> total seconds."""
    buckets: dict[str, list[int]]
    """Stage -> observations per bucket of BOUNDS_S, the last one above all bounds."""
    samples: dict[str, int]
    """Source -> samples made."""
    reads_s: list[float]
    """Seconds of the newest reads."""


class Metrics:
    """Cumulative metrics; thread-safe. Costs a few microseconds per batch."""

    def __init__(self, sources: Iterable[str] = ()) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._sums = dict.fromkeys(STAGES, 0.0)
        self._buckets = {stage: [0] * (len(BOUNDS_S) + 1) for stage in STAGES}
        self._samples = dict.fromkeys(sources, 0)
        self._slowest: list[tuple[float, float, int, SlowSample]] = []  # a heap: the shortest wait first
        self._peer_us = self._store_us = 0  # counts at the step before
        self._reads_s = deque[float](maxlen=READS)
        self._is_remote = False

    def count(self, name: str, amount: int = 1) -> None:
        with self._lock:
            self._counts[name] += amount

    def observe(self, stage: str, seconds: float) -> None:
        with self._lock:
            self._observe(stage, seconds)

    def add(self, step: StepMetrics) -> None:
        """Add what making some steps together cost. Each stage counts once per step, with an equal share."""
        with self._lock:
            for name, amount in step.totals().items():
                self._counts[name] += amount
            for stage, seconds in step.seconds.items():
                self._observe(stage, seconds / len(step.steps), len(step.steps))
            peer_share = self._peer_share()
            if peer_share > 0:
                peers_s = step.seconds.get("fetch", 0.0) * peer_share
                self._observe("peers", peers_s / len(step.steps), len(step.steps))
            for source, amount in step.samples.items():
                self._samples[source] = self._samples.get(source, 0) + amount
            requests_s = step.traffic.latencies_s
            self._is_remote |= bool(requests_s)
            # A shard of a remote store may lie in a cache: its requests say how fast the store is.
            self._reads_s.extend(requests_s if self._is_remote else step.reads_s)

    def reads(self, seconds: Collection[float]) -> None:
        """Add the seconds of requests to a remote store that were read ahead."""
        with self._lock:
            self._is_remote |= bool(seconds)
            self._reads_s.extend(seconds)

    def copied(self, nbytes: int, seconds: float) -> None:
        """Add a copy of a batch to a device."""
        with self._lock:
            self._counts["device_bytes"] += nbytes
            self._observe("copy", seconds)

    def consumed(self, batch: Batch, busy_s: float | None) -> None:
        """Add a batch delivered `busy_s` after the previous one (None for the first)."""
        with self._lock:
            self._counts["consumed_batches"] += 1
            self._counts["consumed_samples"] += int(batch.stats.get("samples", 0))
            self._observe("consumer", batch.wait_s)
            if "handover_wait_seconds" in batch.stats:
                self._observe("handover", batch.stats["handover_wait_seconds"])
            if busy_s is not None:
                self._observe("busy", busy_s)
            if batch.slowest is not None:
                self._remember(replace(batch.slowest, wait_s=batch.wait_s))

    def slowest(self) -> list[SlowSample]:
        """Return the slowest sample from each of the SLOWEST steps with the longest waits, the longest first."""
        with self._lock:
            return [entry[-1] for entry in sorted(self._slowest, reverse=True)]

    def totals(self) -> Totals:
        with self._lock:
            return self._totals()

    def drain(self) -> Totals:
        """Return the totals since the last call, and begin again at zero."""
        with self._lock:
            totals = self._totals()
            self._counts = dict.fromkeys(self._counts, 0)
            self._sums = dict.fromkeys(self._sums, 0.0)
            self._buckets = {stage: [0] * len(counts) for stage, counts in self._buckets.items()}
            self._samples = dict.fromkeys(self._samples, 0)
            self._peer_us = self._store_us = 0
            self._reads_s.clear()
            return totals

    def merge(self, totals: Totals) -> None:
        """Add the totals of another process, or of an earlier loader."""
        with self._lock:
            for name, amount in totals.counts.items():
                self._counts[name] += amount
            for stage, seconds in totals.sums.items():
                self._sums[stage] += seconds
                for index, amount in enumerate(totals.buckets[stage]):
                    self._buckets[stage][index] += amount
            for source, amount in totals.samples.items():
                self._samples[source] = self._samples.get(source, 0) + amount
            self._reads_s.extend(totals.reads_s)

    def succeed(self, earlier: "Metrics") -> None:
        """Add what a loader counted that this one continues, its slowest samples included."""
        self.merge(earlier.totals())
        with earlier._lock:
            slowest = list(earlier._slowest)
        with self._lock:
            self._slowest = heapq.nlargest(SLOWEST, [*self._slowest, *slowest])
            heapq.heapify(self._slowest)

    def snapshot(self) -> dict[str, float]:
        """Return the metrics by name, as `Loader.metrics` does.

        `<counter>_total`; for each stage's histogram `_sum`, `_count`, `_p50`, `_p99` (bucket bounds).
        `samples_per_second`, `fetched_bytes_per_second`: rates over the time that the consumer has waited and worked.
        `read_latency_seconds`: median of the last READS requests to remote stores, else of reads of shards.
        """
        seen = self.totals()
        out: dict[str, float] = {f"{name}_total": value for name, value in seen.counts.items()}
        for stage, buckets in seen.buckets.items():
            name = STAGES[stage]
            out[f"{name}_sum"] = seen.sums[stage]
            out[f"{name}_count"] = sum(buckets)
            out[f"{name}_p50"] = _quantile(buckets, 0.5)
            out[f"{name}_p99"] = _quantile(buckets, 0.99)
        elapsed_s = seen.sums["consumer"] + seen.sums["busy"]
        for name, counted in (("samples", "consumed_samples"), ("fetched_bytes", "fetched_bytes")):
            out[f"{name}_per_second"] = seen.counts[counted] / elapsed_s if elapsed_s else 0.0
        out["read_latency_seconds"] = _median(seen.reads_s)
        return out

    def _totals(self) -> Totals:
        return Totals(
            counts=dict(self._counts),
            sums=dict(self._sums),
            buckets={stage: list(counts) for stage, counts in self._buckets.items()},
            samples=dict(self._samples),
            reads_s=list(self._reads_s),
        )

    def _peer_share(self) -> float:
        """Return the share of other nodes in the time that reads took since the last call."""
        peer_us = self._counts["cache_peer_us"] - self._peer_us
        store_us = self._counts["cache_store_us"] - self._store_us
        self._peer_us += peer_us
        self._store_us += store_us
        if peer_us:
            return peer_us / (peer_us + store_us)
        return 0.0

    def _observe(self, stage: str, seconds: float, times: int = 1) -> None:
        """Add to a stage's histogram. seconds: of each of `times` steps. The caller has the lock."""
        self._sums[stage] += seconds * times
        self._buckets[stage][bisect_left(BOUNDS_S, seconds)] += times

    def _remember(self, slow: SlowSample) -> None:
        """Keep a step's slowest sample if its wait is one of the SLOWEST longest."""
        number = self._counts["consumed_batches"]  # breaks ties: samples have no order
        entry = (slow.wait_s, slow.seconds, number, slow)
        if len(self._slowest) < SLOWEST:
            heapq.heappush(self._slowest, entry)
        else:
            heapq.heappushpop(self._slowest, entry)


def _median(values: list[float]) -> float:
    # (`statistics` takes 3 ms to import)
    if values:
        return sorted(values)[len(values) // 2]
    return 0.0


def _quantile(buckets: list[int], q: float) -> float:
    """Return the upper bound, in s, of the bucket with a quantile; 0 for an empty histogram. buckets: as BOUNDS_S."""
    target = q * sum(buckets)
    n_below = 0
    for count, bound in zip(buckets, (*BOUNDS_S, float("inf")), strict=True):
        n_below += count
        if count and n_below >= target:
            return bound
    return 0.0


WAITS = 0.1
"""Share of the consumer's time below which waits are only the hand-over."""

COPIES = 0.25
"""Share of reading without a wait, from which on it copies. (Threads that copy also wait for the lock.)"""

CONSUMER, COPYING, PEERS = "consumer", "copying", "peers"
"""Bottlenecks besides `LIMITS`: the training itself, samples in memory already, which are copied, and other nodes."""
LIMITS = {
    "plan": "plan",
    "address": "indexes",
    "fetch": "store",
    "verify": "checksums",
    "decode": "decoder",
    "transform": "transform",
    "collate": "collate",
}
"""Stage -> name of the bottleneck."""


def find_bottleneck(
    metrics: Mapping[str, float], before: Mapping[str, float] | None = None, *, ahead: bool = True
) -> str | None:
    """Return the bottleneck: a value of LIMITS, "consumer", "copying" or "peers"; None without measurements.

    metrics: result of `Loader.metrics`. before: an earlier result, to judge the time since. ahead: whether batches are
    made ahead.
    """
    spent = stage_seconds(metrics, before)
    waited = spent["consumer"]
    busy = spent["busy"]
    slowest = max(MAKING, key=lambda stage: spent[stage])
    if waited + busy <= 0 or spent[slowest] <= 0:
        return None
    if ahead:
        consumer = waited < WAITS * (waited + busy)
    else:
        consumer = busy > spent[slowest]
    if consumer:
        return CONSUMER
    if slowest == "fetch":
        name = "fetch_busy_us_total"
        busy_us = metrics.get(name, 0.0) - (before.get(name, 0.0) if before else 0.0)
        if busy_us / 1e6 >= COPIES * spent["fetch"]:
            return COPYING
        if spent["peers"] > spent["fetch"] / 2:
            return PEERS
    return LIMITS[slowest]


def stage_seconds(
    metrics: Mapping[str, float], before: Mapping[str, float] | None = None
) -> dict[str, float]:
    # (copies to a device run parallel to both sides)
    names = {stage: f"{name}_sum" for stage, name in STAGES.items() if stage != "copy"}
    return {stage: metrics[name] - (before[name] if before else 0.0) for stage, name in names.items()}


EVERY_S = 0.5
"""Seconds between two writes to a terminal."""
_SHOWN = 3


class Status:
    """Formats the status line; each covers the time since the previous one."""

    def __init__(self) -> None:
        self._before: Mapping[str, float] | None = None

    def line(self, step: int, metrics: Mapping[str, float], *, executor: str, ahead: bool = True) -> str:
        """Return a status line such as this one.

        step 1,234  812 samples/s  95.0 MB/s  training waits 61 %  workers: fetch 58 % ...  limited by: store

        executor: as `Loader.executor`. ahead: whether batches are made ahead.
        """
        before = self._before
        self._before = dict(metrics)
        spent = stage_seconds(metrics, before)
        elapsed_s = spent["consumer"] + spent["busy"]
        if elapsed_s <= 0:
            return f"step {step:,}"

        def rate(counter: str) -> float:
            return (metrics[counter] - (before[counter] if before else 0.0)) / elapsed_s

        work = {stage: spent[stage] for stage in (*MAKING, "peers", "room")}
        work["fetch"] -= work["peers"]
        whole = sum(work.values())
        largest = sorted(work, key=lambda stage: -work[stage])[:_SHOWN]
        shares = " ".join(
            f"{stage} {work[stage] / whole:.0%}" for stage in largest if work[stage] > 0.005 * whole
        )
        who = "workers"
        if executor == "processes":
            who = "worker processes"
        parts = [
            f"step {step:,}",
            f"{rate('consumed_samples_total'):,.0f} samples/s",
            f"{rate('fetched_bytes_total') / 1e6:,.1f} MB/s",
            f"training waits {spent['consumer'] / elapsed_s:.0%}",
            f"{who}: {shares}" if shares else "",
            f"limited by: {limit}" if (limit := find_bottleneck(metrics, before, ahead=ahead)) else "",
        ]
        return "  ".join(part for part in parts if part).replace("%", " %")


def show_progress(
    batches: Iterator[Batch], line: Callable[[], str], stream: TextIO | None = None, every_s: float = EVERY_S
) -> Iterator[Batch]:
    """Yield the batches; if `stream` (stderr) is a terminal, write `line()` there at most once per `every_s`."""
    if stream is None:
        out = sys.stderr
    else:
        out = stream
    if not out.isatty():
        yield from batches
        return
    width = 0
    last_s = monotonic()
    try:
        for batch in batches:
            yield batch
            del batch  # the next one needs the memory
            if monotonic() - last_s >= every_s:
                text = line()
                last_s = monotonic()
                out.write(f"\r{text:<{width}}")
                out.flush()
                width = len(text)
    finally:
        if width:
            out.write("\n")
            out.flush()


class StepTiming:
    """For the thread that takes the batches: `request`, `receive` and `deliver` once for each batch."""

    def __init__(self) -> None:
        self._requested_s = 0.0
        self._computed_s = 0.0
        self._delivered_s: float | None = None
        self._delivered_cpu_s = thread_time()

    def request(self) -> None:
        self._requested_s = perf_counter()
        cpu_s = thread_time()
        self._computed_s = cpu_s - self._delivered_cpu_s

    def receive(self) -> tuple[float, float | None, float]:
        """Return the seconds of the training's wait, of its work before (None before the first batch), and CPU seconds.

        The CPU seconds are its thread's during that work.
        """
        received_s = perf_counter()
        waited_s = received_s - self._requested_s
        if self._delivered_s is None:
            return waited_s, None, 0.0
        busy_s = self._requested_s - self._delivered_s
        # Threads that share a loader have CPU seconds of their own.
        computed_s = max(0.0, self._computed_s)
        computed_s = min(busy_s, computed_s)
        return waited_s, busy_s, computed_s

    def deliver(self) -> None:
        self._delivered_s = perf_counter()
        self._delivered_cpu_s = thread_time()
