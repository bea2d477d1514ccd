"""Record of the first page. Its cost does not grow with the length of runs or the size of datasets."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

import loader
from loader.dataset.log.state import VersionRecord
from loader.errors import PenstockError, StoreError
from loader.run.trail.trail_outline import ListedRun, list_runs
from loader.storage import Store
from loader.storage.mirror import primary_store
from loader.storage.threads import DaemonPool

from ...metrics.node_signs import NodeSignReader
from ...train.submitting import RunBrief
from ..json_record import JsonRecord
from ..lru_cache import LruCache
from ..run_goodputs import RunGoodputs
from .attention import AttentionItem, attention_items
from .cost_table import CostTable
from .dataset_cards import DatasetCard, dataset_card
from .training_lines import TrainingLine, run_briefs, training_line, with_goodput
from .unpublished import UnpublishedDataset, unpublished_datasets

_log = logging.getLogger(__name__)
MOST_TRAININGS = 12
"""Runs whose log is read: the newest ones. The others are listed by name."""
MOST_DATASETS = 24
"""Datasets with a card: those with the newest versions."""
AT_ONCE = 8
"""Runs and datasets read at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionLine(JsonRecord):
    number: int
    retired: bool
    """True if it is retired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeRecord(JsonRecord):
    root: str
    """Root URL."""
    runs: tuple[str, ...]
    """Runs with a run log, sorted."""
    datasets: Mapping[str, tuple[VersionLine, ...]]
    """Versions, newest first."""
    attention: tuple[AttentionItem, ...]
    """Conditions that need a person, the worst first."""
    trainings: tuple[TrainingLine, ...]
    """The newest runs, the one with the newest step first."""
    cards: tuple[DatasetCard, ...]
    """The datasets with the newest versions, by name."""
    unpublished: tuple[UnpublishedDataset, ...]
    """Datasets without a version, by name."""
    read_us: int
    """When the root was read, in UTC microseconds."""
    cost: CostTable | None = None
    """Cost of the datasets; None until a person opens its page."""


class Board:
    """Makes the first page's record, and keeps what never changes: objects of run logs, and manifests."""

    def __init__(self, goodputs: RunGoodputs | None = None) -> None:
        """goodputs: shared with runs' pages; None for its own."""
        if goodputs is None:
            goodputs = RunGoodputs()
        self._goodputs = goodputs
        self._lines = LruCache[TrainingLine](4 * MOST_TRAININGS)
        self._cards = LruCache[DatasetCard](4 * MOST_DATASETS)
        self._nodes: dict[str, NodeSignReader] = {}
        self._nodes_lock = Lock()

    def record(self, root: loader.Root) -> HomeRecord:
        """Return the record of a root now. Raises: StoreError if its state or its run logs cannot be listed."""
        now_s = time.time()
        primary = primary_store(root.store)
        state = root.state
        names = root.datasets()
        listed = list_runs(primary)
        by_run = run_briefs(primary)

        def line_of(run: ListedRun) -> TrainingLine:
            return self._training(root, primary, run, by_run, now_s)

        def card_of(name: str) -> DatasetCard:
            return self._card(root, name)

        def newest_commit(name: str) -> int:
            return state.versions(name)[-1].n

        by_commit = sorted(names, key=newest_commit, reverse=True)
        newest_datasets = by_commit[:MOST_DATASETS]
        newest_runs = listed[:MOST_TRAININGS]
        with DaemonPool(AT_ONCE, "penstock-view-home") as pool:
            lines = pool.map(line_of, newest_runs)
            cards = pool.map(card_of, newest_datasets)
            trainings = sorted(lines, key=_newest_step)
            datasets = sorted(cards, key=_name)
        unpublished = unpublished_datasets(root.store, names)
        suspects = self._suspects(primary, now_s)
        return HomeRecord(
            root=root.url,
            runs=tuple(sorted(run.run for run in listed)),
            datasets={name: _version_lines(state.versions(name)) for name in names},
            attention=attention_items(trainings, datasets, now_s, unpublished, suspects),
            trainings=tuple(trainings),
            cards=tuple(datasets),
            unpublished=unpublished,
            read_us=round(now_s * 1e6),
        )

    def _suspects(self, store: Store, now_s: float) -> Mapping[str, Sequence[str]]:
        """Return node -> failed checks against it. Costs two listings, and a request for each new check or case.

        Other signs need the intervals of all runs: `penstock node suspects` and the metrics have them.
        """
        now_us = round(now_s * 1e6)
        with self._nodes_lock:
            reader = self._nodes.setdefault(store.url, NodeSignReader(store))
            try:
                reader.read_checks(now_us)
                reader.read_cases()
            except StoreError:
                raise
            except PenstockError as error:  # one damaged check hides no other node
                _log.warning("%s", error)
            return reader.suspects([], now_us)

    def _training(
        self,
        root: loader.Root,
        store: Store,
        listed: ListedRun,
        by_run: Mapping[str, RunBrief],
        now_s: float,
    ) -> TrainingLine:
        brief = by_run.get(listed.run)
        recorded = None
        if brief is not None:
            recorded = brief.record_key
        # A new version may have the id that the run's plan names.
        key = (listed, recorded, root.state.n)
        line = self._lines.get(key, lambda: training_line(root, store, listed, brief))
        # Not cached: a launcher's times go on while nothing is recorded.
        line = with_goodput(line, store, brief, self._goodputs)
        # A run becomes stalled by silence, which changes no object.
        return line.at(now_s)

    def _card(self, root: loader.Root, name: str) -> DatasetCard:
        versions = root.state.versions(name)
        newest = versions[-1]
        n_retired = sum(version.retired is not None for version in versions)
        # Cards change with the newest version or a retirement, and with nothing else that is cached.
        key = (root.url, name, newest.id, n_retired)
        try:
            card = self._cards.get(key, lambda: dataset_card(root, name))
            return card.with_batches(root)
        except StoreError:
            raise
        except PenstockError as error:  # one damaged manifest hides no other dataset
            return DatasetCard.unreadable(name, newest.number, str(error))


def _newest_step(line: TrainingLine) -> tuple[int, str]:
    return -line.last_us, line.run


def _name(card: DatasetCard) -> str:
    return card.dataset


def _version_lines(versions: Sequence[VersionRecord]) -> tuple[VersionLine, ...]:
    lines = []
    for version in reversed(versions):
        is_retired = version.retired is not None
        lines.append(VersionLine(number=version.number, retired=is_retired))
    return tuple(lines)
