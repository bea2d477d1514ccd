"""Prometheus metrics of the pipeline, and the ones of `penstock metrics`, computed from the root.

python -m dagster_project.metrics --listen 127.0.0.1:9464          # serve /metrics
python -m dagster_project.metrics --textfile /var/lib/node_exporter/penstock.prom      # status 1: a dataset failed
"""

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import loader
from assets.arrivals.batches import STANDINGS, IngestBatch, IngestBatches, backlog
from assets.release.lag import Lag, version_lag
from assets.spec import DatasetSpec
from dagster_project.datasets import specs
from dagster_project.own_datasets import load_datasets
from loader.dataset.versions.version import Version
from loader.errors import InvalidRuntime
from penstock.metrics.exporter import parse_address, serve, write_textfile
from penstock.metrics.families import RootCollector
from penstock.usage.prices import PriceTable, read_prices
from penstock.verbs.verb import argument_type

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
    """Collector that reads the root on each scrape, one at a time.

    A dataset that fails exports only `up` = 0. on_error: called with the dataset and its error.
    """

    def __init__(
        self,
        root: loader.Root,
        datasets: Mapping[str, Sequence[str]],
        on_error: Callable[[str, Exception], None],
    ) -> None:
        """datasets: name -> stages of its features."""
        self._root = root
        self._on_error = on_error
        self._books = {dataset: IngestBatches(dataset, features) for dataset, features in datasets.items()}
        self._versions: dict[str, _VersionFacts] = {}  # id of a version -> its facts, which never change
        self._lock = Lock()

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values. Does not read the store."""
        return list(_families().values())

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            families = _families()
            for dataset, book in self._books.items():
                self._count(families, dataset, book)
            yield from families.values()

    def _count(self, families: dict[str, GaugeMetricFamily], dataset: str, book: IngestBatches) -> None:
        try:
            batches = book.current(self._root)
            newest = self._newest(dataset)
        except Exception as error:  # noqa: BLE001 - the scrape goes on, and on_error reports it
            self._on_error(dataset, error)
            families["up"].add_metric([dataset], 0)
            return
        families["up"].add_metric([dataset], 1)
        _count_batches(families, dataset, batches)
        if newest is not None:
            _count_version(families, dataset, newest)

    def _newest(self, dataset: str) -> "_VersionFacts | None":
        """Return the facts of a dataset's newest version; None before the first."""
        record = self._root.state.newest(dataset)
        if record is None:
            return None
        if record.id not in self._versions:
            version = Version.of_record(self._root.store, record)
            self._versions[record.id] = _VersionFacts(
                number=record.number,
                n_samples=len(version),
                published_us=int(version.manifest["created_us"]),
                lag=version_lag(self._root, record),
            )
        return self._versions[record.id]


class _VersionFacts(NamedTuple):
    """Figures of a version."""

    number: int
    n_samples: int
    published_us: int
    """Time of the publication, UTC microseconds."""
    lag: Lag | None
    """None if no arrivals are recorded."""


def _families() -> dict[str, GaugeMetricFamily]:
    return {
        name: GaugeMetricFamily(PREFIX + name, text, labels=labels)
        for name, (text, labels) in _GAUGES.items()
    }


def _count_version(families: dict[str, GaugeMetricFamily], dataset: str, version: _VersionFacts) -> None:
    families["version"].add_metric([dataset], version.number)
    families["version_samples"].add_metric([dataset], version.n_samples)
    families["version_timestamp_seconds"].add_metric([dataset], version.published_us / 1e6)
    lag = version.lag
    if lag is None:
        return
    for quantile, value in (("0.5", lag.median_s), ("0.95", lag.p95_s), ("1", lag.max_s)):
        families["arrival_to_version_seconds"].add_metric([dataset, quantile], value)


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
    oldest_s = 0.0
    if landed:
        oldest_s = time.time() - min(landed) / 1e6
    families["backlog_oldest_seconds"].add_metric([dataset], max(0.0, oldest_s))
    newest_us = max((batch.landed_at_us for batch in batches), default=0)
    families["landed_timestamp_seconds"].add_metric([dataset], newest_us / 1e6)


_log = logging.getLogger("penstock.metrics")


def _feature_stages(spec: DatasetSpec) -> Sequence[str]:
    try:
        return [feature.stage for feature in spec.features]
    except Exception as error:  # noqa: BLE001 - a user's featurizer, which the definitions report as broken
        _log.error("features of %s are not counted: %s: %s", spec.name, type(error).__name__, error)
        return ()


def main(arguments: list[str] | None = None) -> int:
    """Serve metrics until a signal; with --textfile, write them once."""
    parser = argparse.ArgumentParser(
        prog="python -m dagster_project.metrics", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--root", help="path or URL (default: PENSTOCK_ROOT)")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--listen", type=argument_type(parse_address), metavar="HOST:PORT")
    where.add_argument("--textfile", metavar="FILE", help="write one file, for node_exporter's collector")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="further host name",
    )
    parser.add_argument("--cost", action="store_true", help="also the cost of datasets, read once an hour")
    parser.add_argument(
        "--prices",
        type=_prices,
        metavar="FILE",
        help="with --cost: TOML file of prices",
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    failed = list[str]()

    def on_error(dataset: str, error: Exception) -> None:
        failed.append(dataset)
        _log.error("%s: %s", dataset, error)

    def on_part_error(part: str, error: str) -> None:
        failed.append(part)

    own, broken = load_datasets()
    for entry in broken:
        _log.error("dataset not loaded: %s: %s", entry.where, entry.error)
    datasets = {spec.name: _feature_stages(spec) for spec in (*specs(), *(one.spec for one in own))}
    with loader.Root(options.root) as root:
        figures = RootCollector([root], on_part_error, has_cost=options.cost, prices=options.prices)
        collectors = [PipelineCollector(root, datasets, on_error), figures]
        if options.textfile:
            write_textfile(collectors, options.textfile)
            return int(bool(failed))
        serve(collectors, options.listen, allow_hosts=options.allow_host, announce=_log.info)
    return 0


def _prices(path: str) -> PriceTable:
    try:
        return read_prices(path)
    except InvalidRuntime as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
