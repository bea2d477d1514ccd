"""Prometheus metrics of the pipeline, computed from the root by `python -m dagster_project.metrics`.

All are gauges. Runs report nothing themselves, so a crashed run leaves no gap.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import loader
from loader.dataset.versions.version import open_record

from .batches import STANDINGS, IngestBatch, IngestBatches, backlog
from .release.lag import Lag, lag_of

PREFIX = "penstock_pipeline_"
_GAUGES = {
    "objects": ("Raw objects of batches, by outcome.", ("dataset", "outcome")),
    "refused_objects": (
        "Objects that gave no sample, by outcome and reason.",
        ("dataset", "outcome", "code"),
    ),
    "batches": ("Batches, by state.", ("dataset", "standing")),
    "bytes": ("Bytes of raw objects, by state of their batches.", ("dataset", "standing")),
    "backlog_objects": ("Objects that are neither trainable nor refused, nor stopped.", ("dataset",)),
    "backlog_oldest_seconds": ("Time since the oldest batch of the backlog landed.", ("dataset",)),
    "landed_timestamp_seconds": ("Time at which the newest batch landed.", ("dataset",)),
    "version": ("Number of the newest version.", ("dataset",)),
    "version_samples": ("Samples in the newest version.", ("dataset",)),
    "version_timestamp_seconds": ("Time at which the newest version was published.", ("dataset",)),
    "arrival_to_version_seconds": (
        "Time from arrival to version, of the newest version's objects.",
        ("dataset", "quantile"),
    ),
    "up": ("Whether the last reading of the dataset succeeded.", ("dataset",)),
}
"""Metric name -> help text and label names."""


class PipelineCollector(Collector):
    """Collector that reads the root on each scrape, one scrape at a time.

    A dataset that fails exports only `up` = 0, because old numbers would look current. on_error: called with the
    dataset and its error.
    """

    def __init__(
        self, root: loader.Root, datasets: Sequence[str], on_error: Callable[[str, Exception], None]
    ) -> None:
        self._root, self._on_error = root, on_error
        self._books = {dataset: IngestBatches(dataset) for dataset in datasets}
        self._versions: dict[str, tuple[int, int, Lag | None]] = {}
        self._lock = Lock()

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values. Does not read the store."""
        return list(_families().values())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all datasets."""
        with self._lock:
            families = _families()
            for dataset, book in self._books.items():
                self._count(families, dataset, book)
            yield from families.values()

    def _count(self, families: dict[str, GaugeMetricFamily], dataset: str, book: IngestBatches) -> None:
        try:
            batches, version = book.current(self._root), self._newest(dataset)
        except Exception as error:  # noqa: BLE001 - the scrape goes on, and on_error reports it
            self._on_error(dataset, error)
            families["up"].add_metric([dataset], 0)
            return
        families["up"].add_metric([dataset], 1)
        _count_batches(families, dataset, batches)
        if version is not None:
            number, n_samples, published_us, lag = version
            families["version"].add_metric([dataset], number)
            families["version_samples"].add_metric([dataset], n_samples)
            families["version_timestamp_seconds"].add_metric([dataset], published_us / 1e6)
            if lag is not None:
                for quantile, value in (("0.5", lag.median_s), ("0.95", lag.p95_s), ("1", lag.max_s)):
                    families["arrival_to_version_seconds"].add_metric([dataset, quantile], value)

    def _newest(self, dataset: str) -> tuple[int, int, int, Lag | None] | None:
        # The columns are number, samples, publication time and lag.
        record = self._root.state.newest(dataset)
        if record is None:
            return None
        if record.id not in self._versions:
            version = open_record(self._root.store, record)
            facts = (len(version), int(version.manifest["created_us"]), lag_of(self._root, record))
            self._versions[record.id] = facts
        return (record.number, *self._versions[record.id])


def _families() -> dict[str, GaugeMetricFamily]:
    return {
        name: GaugeMetricFamily(PREFIX + name, text, labels=labels)
        for name, (text, labels) in _GAUGES.items()
    }


def _count_batches(
    families: dict[str, GaugeMetricFamily], dataset: str, batches: Sequence[IngestBatch]
) -> None:
    outcomes: Counter[str] = Counter()
    refused: Counter[tuple[str, str]] = Counter()
    for batch in batches:
        outcomes["used"] += batch.used
        refused.update(batch.refused)
    for (outcome, _), count in refused.items():
        outcomes[outcome] += count
    outcomes["undecided"] = sum(batch.objects for batch in batches) - outcomes.total()
    for outcome, count in sorted(outcomes.items()):
        families["objects"].add_metric([dataset, outcome], count)
    for (outcome, code), count in sorted(refused.items()):
        families["refused_objects"].add_metric([dataset, outcome, code], count)
    for standing in STANDINGS:
        those = [batch for batch in batches if batch.standing == standing]
        families["batches"].add_metric([dataset, standing], len(those))
        families["bytes"].add_metric([dataset, standing], sum(batch.nbytes for batch in those))
    waiting = backlog(batches)
    families["backlog_objects"].add_metric([dataset], sum(batch.objects for batch in waiting))
    landed = [batch.landed_at_us for batch in waiting if batch.landed_at_us]
    oldest_s = time.time() - min(landed) / 1e6 if landed else 0.0
    families["backlog_oldest_seconds"].add_metric([dataset], max(0.0, oldest_s))
    newest_us = max((batch.landed_at_us for batch in batches), default=0)
    families["landed_timestamp_seconds"].add_metric([dataset], newest_us / 1e6)
