"""Names of all metrics of a root, and their values from a `RootReader`.

Labels come from the store: they are cleaned and cut, and stay distinct.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import loader

from ..text import clean
from ..usage.prices import PriceTable
from .conditions import RUN_STATES
from .cost_reader import CostReader
from .record_facts import is_known
from .root_reader import RootReader
from .run_reader import RunReader

PREFIX = "penstock_"
MOST_LABEL = 200
"""Most characters of a label's value."""
GAUGES = {
    "version_samples": ("Live samples in the newest version.", ("dataset",)),
    "version_timestamp_seconds": ("Time at which the newest version was published.", ("dataset",)),
    "slice_samples": ("Samples in the newest number of a slice.", ("dataset", "slice")),
    "training_step": ("Last recorded step.", ("run",)),
    "training_last_step_timestamp_seconds": ("Time at which the last step was delivered.", ("run",)),
    "training_starts": ("Starts of the run.", ("run",)),
    "training_failures": ("Failed starts of the run.", ("run",)),
    "training_goodput_ratio": ("Share of the run's time that made new steps, by its record.", ("run",)),
    "training_waiting_ratio": (
        "Share of the steps' time that training waited for data, in its newest five minutes.",
        ("run",),
    ),
    "training_substituted": ("Samples that were substituted or masked.", ("run",)),
    "training_not_finite_steps": ("Steps with a metric that is NaN or infinite.", ("run",)),
    "training_checkpoint_step": ("Step of the newest checkpoint.", ("run",)),
    "training_checkpoint_timestamp_seconds": ("Time of the newest checkpoint.", ("run",)),
    "training_state": ("1 for the state of the run, 0 for the others.", ("run", "state")),
    "dataset_stored_bytes": ("Bytes of the dataset's versions in the root.", ("dataset",)),
    "dataset_freed_bytes": ("Bytes that retiring all versions of the dataset frees.", ("dataset",)),
    "dataset_requests": ("Requests of trainings that read it, in 90 days.", ("dataset",)),
    "dataset_read_bytes": ("Bytes read by trainings that read it, in 90 days.", ("dataset",)),
    "dataset_gpu_seconds": ("GPU-seconds of trainings that read it, in 90 days.", ("dataset",)),
    "dataset_stored_price": ("Price of the stored bytes for a month.", ("dataset", "currency")),
    "dataset_read_price": ("Price of its trainings in 90 days.", ("dataset", "currency")),
    "node_suspects": ("Nodes with signs against them.", ()),
    "up": ("Whether the last reading of the part was whole.", ("part",)),
    "scrape_seconds": ("Seconds of the last reading of the part.", ("part",)),
}
"""Metric name -> help text and label names."""


class Labels:
    """Texts from the store as values of a label: one line, bounded, and distinct."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}
        self._values = set[str]()

    def value(self, text: str) -> str:
        """Return the value for a text; the same for the same text."""
        known = self._shown.get(text)
        if known is not None:
            return known
        cleaned = clean(text, MOST_LABEL)
        value = cleaned
        number = 2
        # Two series of one name would make the whole scrape invalid.
        while value in self._values:
            value = f"{cleaned}~{number}"
            number += 1
        self._values.add(value)
        self._shown[text] = value
        return value


class Families:
    """Metrics with their values. root: value of a further label of all of them; None for none."""

    def __init__(self, *, has_root: bool = False) -> None:
        self.root: str | None = None
        """Root of the values that are added next; None if the metrics have no such label."""
        self._by_name: dict[str, GaugeMetricFamily] = {}
        for name, (text, labels) in GAUGES.items():
            if has_root:
                labels = (*labels, "root")
            self._by_name[name] = GaugeMetricFamily(
                PREFIX + name,
                text,
                labels=labels,
            )

    def add(self, name: str, labels: Sequence[str], value: float) -> None:
        """Add a value of a metric."""
        # The last label, as the families have it.
        own = list(labels)
        if self.root is not None:
            own.append(self.root)
        self._by_name[name].add_metric(own, value)

    def all(self) -> list[GaugeMetricFamily]:
        """Return all metrics, those without a value too."""
        return list(self._by_name.values())


class RootCollector(Collector):
    """Collector of the figures of roots, which reads what is new on each scrape, one at a time.

    With several roots each metric has the label `root`. on_error: called with each part that could not be read whole,
    and the reason.
    """

    def __init__(
        self,
        roots: Sequence[loader.Root],
        on_error: Callable[[str, str], object] = lambda part, error: None,
        *,
        has_cost: bool = False,
        prices: PriceTable | None = None,
    ) -> None:
        """has_cost: True reads the cost of datasets, once an hour. prices: None exports no prices."""
        self._readers: dict[str, RootReader] = {}
        for root in roots:
            cost = None
            if has_cost:
                cost = CostReader(root, prices)
            self._readers[root.url] = RootReader(root, cost=cost)
        self._on_error = on_error
        self._lock = Lock()

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values. Does not read the store."""
        return Families().all()

    def collect(self) -> Iterator[Metric]:
        has_root = len(self._readers) > 1
        families = Families(has_root=has_root)
        with self._lock:
            roots = Labels()
            for url, reader in self._readers.items():
                if has_root:
                    families.root = roots.value(url)
                reader.read()
                add_figures(families, reader)
                for part, error in reader.errors.items():
                    self._on_error(part, error)
        yield from families.all()


def add_figures(families: Families, reader: RootReader) -> None:
    """Add what a reader has read."""
    _add_datasets(families, reader)
    runs = Labels()
    for run in reader.runs.values():
        _add_run(families, runs.value(run.run), run, reader.read_s)
    families.add("node_suspects", [], len(reader.suspects))
    if reader.cost is not None:
        _add_cost(families, reader.cost)
    for part in reader.parts:
        is_whole = part not in reader.errors
        families.add("up", [part], int(is_whole))
        families.add("scrape_seconds", [part], reader.seconds.get(part, 0.0))


def _add_datasets(families: Families, reader: RootReader) -> None:
    datasets = Labels()
    for name, version in reader.versions.items():
        label = datasets.value(name)
        families.add("version_samples", [label], version.n_samples)
        families.add("version_timestamp_seconds", [label], version.created_us / 1e6)
    # Names of slices repeat between datasets: one object gives equal names the same label.
    slices = Labels()
    for (dataset, name), record in reader.slices.items():
        labels = [datasets.value(dataset), slices.value(name)]
        families.add("slice_samples", labels, record.n_samples)


def _add_cost(families: Families, cost: CostReader) -> None:
    datasets = Labels()
    for row in cost.rows:
        label = datasets.value(row.name)
        families.add("dataset_stored_bytes", [label], row.nbytes)
        families.add("dataset_freed_bytes", [label], row.frees)
        families.add("dataset_requests", [label], row.requests)
        families.add("dataset_read_bytes", [label], row.read_nbytes)
        families.add("dataset_gpu_seconds", [label], row.gpu_hours * 3600)
        prices = cost.prices
        if prices is None:
            continue
        priced = [label, prices.currency]
        read = prices.training_price(row.gpu_hours, row.requests, row.read_nbytes)
        families.add("dataset_stored_price", priced, prices.storage_price(row.nbytes))
        families.add("dataset_read_price", priced, read)


def _add_run(families: Families, run: str, reader: RunReader, now_s: float) -> None:
    trail = reader.trail
    record = reader.record
    checkpoint_step, checkpoint_us = record.checkpoint
    figures = {
        "step": max(trail.last_step, record.step),
        "goodput_ratio": record.goodput(),
        "waiting_ratio": reader.waiting,
        "substituted": trail.substituted,
        "not_finite_steps": len(trail.not_finite),
    }
    if record.attempts:
        figures["starts"] = len(record.attempts)
        figures["failures"] = record.failures()
    if reader.last_us:
        figures["last_step_timestamp_seconds"] = reader.last_us / 1e6
    if checkpoint_us:
        figures["checkpoint_step"] = checkpoint_step
        figures["checkpoint_timestamp_seconds"] = checkpoint_us / 1e6
    for name, figure in figures.items():
        # A rule must not take an unknown share for a bad one.
        if is_known(figure):
            families.add(f"training_{name}", [run], figure)
    state = reader.state(now_s)
    for name in RUN_STATES:
        families.add("training_state", [run, name], int(name == state))
