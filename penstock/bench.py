"""Measure how fast a version loads: each stage, all stages, the limiting stage, and advice."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import loader
from loader.cores import n_cores
from loader.errors import InvalidRuntime
from loader.native import KIND
from loader.run.batch.batch import MAKING
from loader.run.metrics import CONSUMER, COPYING, find_bottleneck, stage_seconds

from .progress import progress

MIN_BATCHES = 4
"""Fewest measured batches, besides the first, which reads indexes."""

ADVICE = {
    "plan": "larger batches, or fewer sources: planning costs the same for every batch",
    "indexes": "larger parts when the version is written, and fewer groups: each part and group has an index",
    "store": "reads of neighbours together (loader.source(view, chunk=...)), fewer or smaller fields; of a remote root "
    "a node cache (cache=), or a root nearer by; of small samples on a disk larger batches",
    "copying": "fewer or smaller fields, or narrower types (float16, uint16): the samples are in memory already, and "
    "copying them takes the time; of small samples larger batches, or several in one (pack)",
    "peers": "larger caches, or a faster network between the nodes: see `penstock cache ls`",
    "checksums": "fewer or smaller fields; checksums are never left out",
    "decoder": "smaller media in the version (the size that is trained at), fewer frames or a smaller size to decode "
    "(loader.video, loader.image), or fields that are decoded ahead (add_group)",
    "transform": "a cheaper transform, or its result stored as a field (add_group)",
    "collate": "smaller fields, or one shape for all samples: unequal ones are copied one by one",
    "consumer": "nothing in the loader: it is faster than its consumer",
}
"""Limiting stage -> change that helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Rate of one stage or all; None if the time was too short."""

    seconds: float
    """Seconds per batch."""
    samples_per_second: float | None
    bytes_per_second: float | None
    """Stored bytes per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    version: str
    """Version name."""
    fields: Sequence[str]
    """Loaded fields."""
    n_samples: int
    """Samples in the view."""
    batch: int
    """Samples per batch."""
    workers: int
    """Threads of `together`."""
    stages: Mapping[str, Rate]
    """Stage -> rate in one thread, without a transform."""
    alone: Rate
    """Rate with one thread."""
    together: Rate
    """Rate with `workers` threads."""
    limited_by: str | None
    """Slowest stage in one thread; None if unknown."""
    advice: Sequence[str]
    """Changes that help."""
    native: str
    """`loader.native.KIND`."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def bench(
    version: loader.Version,
    fields: Sequence[str],
    *,
    batch: int,
    seconds: float,
    workers: int | None = None,
    where_present: bool = False,
) -> Bench:
    """Load shuffled batches for about `seconds`, half the time in one thread. Samples repeat only if there are few.

    workers: None chooses as `Loader` does. where_present: leave out samples that lack the fields.
    Raises: InvalidRuntime; InvalidPlan; FieldNotFound; EmptyView; errors of reading and decoding.
    """
    if not 0 < seconds < float("inf"):
        raise InvalidRuntime(f"seconds = {seconds!r}; a number above 0 is needed")
    view = version.select(*fields, where_present=where_present)
    plan = loader.plan({version.dataset: view}, seed=0, global_batch=batch, allow_repeats=True)
    chosen_workers: int | Literal["auto"] = "auto"
    if workers is not None:
        chosen_workers = workers
    several = _BenchRun(plan, workers=chosen_workers, first_step=0, seconds=seconds / 2)
    # It goes on behind the first run, with samples that are not cached yet.
    single = _BenchRun(plan, workers=0, first_step=several.next_step, seconds=seconds / 2)
    alone = stage_seconds(single.after, single.before)
    # Without workers, no batch is made ahead.
    limit = find_bottleneck(single.after, single.before, ahead=False)
    return Bench(
        version=version.name,
        fields=list(fields),
        n_samples=len(view),
        batch=batch,
        workers=several.n_workers,
        stages={stage: single.rate(alone[stage]) for stage in MAKING if stage != "transform"},
        alone=single.rate(single.elapsed_s),
        together=several.rate(several.elapsed_s),
        limited_by=limit,
        advice=_advice(limit, workers),
        native=KIND,
    )


class _BenchRun:
    """Batches of a plan, loaded for a time by one loader, and its metrics before and after.

    first_step: step of the first batch, which reads indexes and is not measured.
    """

    def __init__(
        self, plan: loader.Plan, *, workers: int | Literal["auto"], first_step: int, seconds: float
    ) -> None:
        # Damage ends the run: a substitute would be reported to the pipeline.
        with loader.Loader(plan, 0, 1, workers=workers, framework="numpy", on_corrupt="raise") as batches:
            batches.seek(first_step)
            next(batches)
            self.before = batches.metrics()
            what = "each stage"
            if batches.workers:
                what = f"{batches.workers} workers"
            begun = time.perf_counter()
            self._batches = 0
            self._samples = 0.0
            self._nbytes = 0.0
            for delivery in progress(
                _deliveries(batches, seconds), what, _Delivery.microseconds, round(seconds * 1e6)
            ):
                self._batches += 1  # only delivered batches, not prefetched ones
                self._samples += delivery.stats["samples"]
                self._nbytes += delivery.stats["fetched_bytes"]
            self.elapsed_s = time.perf_counter() - begun
            self.after = batches.metrics()
            self.next_step = batches.step
            # Read at the end: `auto` may have changed them.
            self.n_workers = batches.workers

    def rate(self, seconds: float) -> Rate:
        return Rate(
            seconds=seconds / self._batches,
            samples_per_second=self._samples / seconds if seconds > 0 else None,
            bytes_per_second=self._nbytes / seconds if seconds > 0 else None,
        )


class _Delivery(NamedTuple):
    seconds: float
    stats: Mapping[str, float]

    def microseconds(self) -> int:
        return int(1e6 * self.seconds)


def _deliveries(batches: loader.Loader, seconds: float) -> Iterator[_Delivery]:
    begun = before = time.perf_counter()
    for n_taken, batch in enumerate(batches, 1):
        now = time.perf_counter()
        yield _Delivery(now - before, batch.stats)
        before = now
        if now - begun >= seconds and n_taken >= MIN_BATCHES:
            return


def _advice(limit: str | None, workers: int | None) -> list[str]:
    if limit is None:
        return []
    cores = n_cores()
    # (a second thread waits for the first one's lock while it copies)
    more = limit not in (CONSUMER, COPYING) and workers is not None and workers < cores
    return [*([f"more workers: {workers} now, {cores} cores are here"] if more else []), ADVICE[limit]]
