"""Cost of making one batch, and the sample of it that took longest."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

from ...dataset.reading.shard_read import ShardRead
from ...dataset.shards.address import SampleAddress
from ...storage import Span
from ...storage.shared.requests import Traffic

MAKING = {
    "plan": "plan_seconds",
    "address": "address_seconds",
    "fetch": "fetch_wait_seconds",
    "verify": "verify_seconds",
    "decode": "decode_seconds",
    "transform": "transform_seconds",
    "collate": "collate_seconds",
}
"""Stage of making a batch -> its metric. They follow each other in the thread that makes the batch; where a pool reads,
`verify` adds up its threads, and `fetch` is the wait for the pool less that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowSample:
    """The sample that took longest in one stage of a step."""

    step: int
    """Global step."""
    stage: str
    """Stage of `MAKING`, such as "fetch" or "decode"."""
    seconds: float
    """Time of the sample in that stage; for "fetch", of one read of one shard."""
    source: str
    """Name of the plan's source."""
    key: str
    """Key of the sample; for "fetch", of the first wanted sample of the read."""
    version: str
    """Name of the version, such as "photos@3"."""
    path: str
    """Path of the shard, relative to the root."""
    offset: int
    """First byte of the read; for other stages than "fetch", of the sample's largest field."""
    nbytes: int
    """Bytes of the read; for other stages than "fetch", of the sample's largest field."""
    wait_s: float = 0.0
    """Seconds that the consumer waited for the step's batch."""


class StepMetrics:
    """Filled while the batches of some steps are made together; thread-safe, since a pool may read for them."""

    def __init__(self, steps: Sequence[int]) -> None:
        self.steps = steps
        self.traffic = Traffic()
        self.seconds: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self.samples: dict[str, int] = {}
        """Per source."""
        self.slowest: dict[int, SlowSample] = {}
        """By step."""
        self.step_of: Callable[[int], int] | None = None
        """Row of what is being made -> its step; None: all are of the first."""
        self._lock = threading.Lock()

    def count(self, name: str, amount: int = 1) -> None:
        with self._lock:
            self.counts[name] = self.counts.get(name, 0) + amount

    def spent(self, stage: str, seconds: float) -> None:
        with self._lock:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self.spent(stage, perf_counter() - start)

    @contextmanager
    def timed_fetch(self) -> Iterator[None]:
        """Time a block as `timed("fetch")`, less the seconds of `verify` inside."""
        start, before = perf_counter(), self.seconds.get("verify", 0.0)
        try:
            yield
        finally:
            verified = self.seconds.get("verify", 0.0) - before
            self.spent("fetch", max(0.0, perf_counter() - start - verified))

    def sample(
        self, stage: str, seconds: float, source: str, address: Callable[[], SampleAddress], row: int
    ) -> None:
        """Note that a stage is done with the sample of a row; a context manager would cost three times as much."""
        self.spent(stage, seconds)
        step = self.steps[0] if self.step_of is None else self.step_of(row)
        before = self.slowest.get(step)
        if before is None or seconds > before.seconds:
            self.slow(stage, seconds, source, address, step)

    def read(self, source: str, read: ShardRead) -> None:
        """Note one shard's share of a fetch; of steps made together, the first has it."""
        self.spent("verify", read.verify_s)
        self.slow("fetch", read.fetch_s, source, read.first, self.steps[0], (read.path, read.span))

    def slow(
        self,
        stage: str,
        seconds: float,
        source: str,
        address: Callable[[], SampleAddress],
        step: int,
        read: tuple[str, Span] | None = None,
    ) -> None:
        """Keep a sample if none of its step was slower.

        Without the shard and bytes that were read, it has the place of its largest field. `address` is called only for
        a sample that is kept.
        """
        with self._lock:
            before = self.slowest.get(step)
            if before is not None and seconds <= before.seconds:
                return
            at = address()
            if not at.fields:
                return
            if read is None:
                place = max(at.fields.values(), key=lambda one: one.nbytes)
                read = place.path, Span(place.offset, place.nbytes)
            path, span = read
            self.slowest[step] = SlowSample(
                step=step,
                stage=stage,
                seconds=seconds,
                source=source,
                key=at.key,
                version=at.version,
                path=path,
                offset=span.offset,
                nbytes=span.nbytes,
            )

    def totals(self) -> dict[str, int]:
        """Return counter -> amount, with the stores' counts."""
        traffic = self.traffic
        seen = {"requests": traffic.requests, "retries": traffic.retries, "fallbacks": traffic.fallbacks}
        return {**self.counts, **seen}
