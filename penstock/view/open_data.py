"""One viewer's open versions, training runs and cached values, bounded in number, bytes and time."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Event, Thread
from typing import Any, Generic, TypeVar

import loader
from loader.api.plans import open_retired
from loader.dataset.root import root_in_store
from loader.dataset.versions.samples_table import import_polars
from loader.errors import InvalidRuntime, ObjectNotFound, PenstockError, StoreError
from loader.order.slots import rank_slice
from loader.run.trail.trail_outline import list_runs
from loader.storage.mirror import primary_store
from loader.storage.requests import try_once

from ..upkeep.exclusion import exclude
from . import open_items
from .board.cost_table import DatasetCosts
from .board.home_record import Board, HomeRecord
from .facets.version_columns import VersionColumns
from .inspect.run_overview import RunOverview, run_overview, unavailable_overview
from .inspect.sample_slices import SliceSearch
from .inspect.shown_batch import PICTURED_SLOTS, ShownBatch, show_batch
from .inspect.slice_trainings import SliceTrainings
from .inspect.slices_record import SlicePageRecord, slice_page_record
from .inspect.slot_record import SlotRecord, slot_record, slot_values
from .inspect.step_record import StepRecord, functions, step_record, step_values
from .kinds.kind import Media
from .kinds.stored_bytes import release_memory
from .lru_cache import LruCache
from .open_items import OpenRun, OpenVersion, nbytes
from .outage import Outage
from .raw_source import RawSource
from .replays.idle_replays import IdleReplays, RankStep
from .replays.metrics_file import MetricsFile
from .replays.recipe_process import RecipeProcess
from .replays.replayed_values import Digests, SlotValues, slot_itself
from .replays.replays import Replayers, Replays
from .replays.training import Training
from .run_goodputs import RunGoodputs
from .sample_relations import RunSearch

MOST_OPEN = 8
"""Most open versions, each with a lease, and training runs."""
IDLE_S = 600.0
"""Seconds until an unused version is released."""
HOME_S = 5.0
"""Seconds until the first page's record is made again."""
SWEEP_S = 60.0
"""Seconds between searches for unused versions."""
RUNS_S = 60.0
"""Seconds until the root's runs are listed again."""
RETRY_S = 60.0
"""Seconds until an incomplete step or slot is replayed again."""
VALUES_BYTES = 96 * 2**20
"""Cached steps, and cached slots, in bytes."""
MEDIA_BYTES = 48 * 2**20
"""Cached images and audio, in bytes."""
EPISODES_BYTES = 384 * 2**20
"""Open episodes and streams' summaries, in bytes: any episode fits, or each request opens it."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _CachedValues(Generic[T]):
    value: T
    trouble: str
    failed: bool
    n_answers: int
    at_s: float


class OpenData:
    """A viewer's open versions and training runs, and values for its pages. Thread-safe."""

    def __init__(
        self,
        root: loader.Root,
        recipe: str | None = None,
        *,
        quiet: bool = False,
        metrics: Mapping[str, MetricsFile] | None = None,
        raw: RawSource | None = None,
    ) -> None:
        """Open a root. recipe: the training's "module:function"; None shows decoded values.

        quiet: drops the recipe's output. metrics: run or plan hash -> its metrics.
        """
        self.root, self.recipe, self.raw = root, recipe, raw
        self._metrics = dict(metrics or {})
        self.outage = Outage()
        # Run logs and ledgers are read from the primary. Mirrors may serve versions while the primary is down.
        self._primary = self.outage if primary_store(root.store) is root.store else Outage()
        self._process = RecipeProcess(root, recipe, quiet=quiet, outage=self._primary) if recipe else None
        self.replayers = Replayers(plain=Replays(root, cut=True, outage=self._primary), recipe=self._process)
        self._plans = Replays(root, outage=self._primary)
        self._versions = LruCache[OpenVersion](MOST_OPEN)
        self._runs = LruCache[OpenRun](MOST_OPEN)
        self._batches = LruCache[_CachedValues[ShownBatch]](VALUES_BYTES, lambda entry: entry.value.nbytes)
        self._slots = LruCache[_CachedValues[SlotValues]](
            VALUES_BYTES, lambda entry: nbytes([entry.value.decoded, entry.value.trained])
        )
        self.media = LruCache[Any](MEDIA_BYTES, nbytes)
        self.episodes = LruCache[Any](EPISODES_BYTES, nbytes)
        """Open episodes, which hold their versions, and streams' summaries."""
        self.columns = VersionColumns()
        """Cached columns of open versions."""
        self.slice_search = SliceSearch(root, self.version)
        self.slice_trainings = SliceTrainings()
        self._goodputs = RunGoodputs()
        self._board = Board(self._goodputs)
        self._home = LruCache[HomeRecord](1)
        self.costs = DatasetCosts()
        self._overviews = LruCache[tuple[float, RunOverview]](MOST_OPEN)
        self._closed = Event()
        self._listed_runs: tuple[float, tuple[str, ...]] = -math.inf, ()
        Thread(target=self._sweep, name="penstock-view-idle", daemon=True).start()
        self._idle_replays = IdleReplays(self._prepare_columns, self._replay_ahead)

    def start(self) -> None:
        """Start the recipe process, before the first request."""
        if self._process is not None:
            Thread(target=self._start_recipe, name="penstock-view-recipe", daemon=True).start()

    def _start_recipe(self) -> None:
        assert self._process is not None
        with suppress(PenstockError):  # the first step tries again, and shows the error
            self._process.start()

    def recipe_state(self) -> str:
        """Return a message while the recipe process is starting; else ""."""
        seconds = None if self._process is None else self._process.starting_s
        if seconds is None:
            return ""
        return f"--recipe {self.recipe} is starting: importing its module ({seconds:.0f} s)."

    def answer(self, make: Callable[[], T]) -> T:
        """Return `make`'s result. If an object is missing, reopen everything and retry, to find the reason.

        During a known outage, requests are not retried. Raises: as `make`.
        """
        try:
            with try_once() if self.outage.is_known else nullcontext():
                return make()
        except ObjectNotFound:
            self.episodes.clear()
            self._versions.clear()
            self._plans.close()
            return make()

    def home(self) -> HomeRecord:
        """Return the first page's record, made at most a few seconds ago. Raises: StoreError."""

        def is_fresh(record: HomeRecord) -> bool:
            return time.time() - record.read_us / 1e6 < HOME_S

        home = self._home.get("/", lambda: self._primary.ask(lambda: self._board.record(self.root)), is_fresh)
        return replace(home, cost=self.costs.known)

    def overview(self, training: Training) -> RunOverview:
        """Return a run's overview, read at most a few seconds ago; with the reason if the store does not answer."""
        store = primary_store(self.root.store)

        def make() -> tuple[float, RunOverview]:
            overview = self._primary.ask(lambda: run_overview(training, store, self._goodputs))
            return time.monotonic(), overview

        def is_fresh(entry: tuple[float, RunOverview]) -> bool:
            return time.monotonic() - entry[0] < open_items.FRESH_S

        try:
            _, overview = self._overviews.get(training.name, make, is_fresh)
        except StoreError as error:
            return unavailable_overview(training, str(error))
        return overview

    def version(self, dataset: str, number: int) -> loader.Version:
        """Return a version, even a retired one as long as its data exists.

        Raises: VersionNotFound; VersionRetired; Denied; errors from opening.
        """
        self._idle_replays.interrupt()
        ref = f"{dataset}@{number}"

        def open_version() -> OpenVersion:
            # A separate Root on the same store, so that its lease ends with the last reference to the version.
            own_root = root_in_store(self.root.store, self.root.verify, self.root)
            known = self.root.log.known
            if known is not None:
                own_root.log.resume(known)  # then it reads new entries only
            return OpenVersion(open_retired(own_root, ref))

        entry = self._versions.get(ref, lambda: self.outage.ask(open_version))
        if entry.is_due() and self._is_retired(ref):
            self._versions.forget(ref)
            entry = self._versions.get(ref, lambda: self.outage.ask(open_version))
        return entry.version

    def slice_page(self, dataset: str, name: str) -> SlicePageRecord:
        """Return the newest number of a slice, and what the dataset's newest version has of it.

        Raises: SliceNotFound; VersionNotFound; Corrupt.
        """
        newest = self.root.state.newest(dataset)
        number = newest.number if newest is not None else self.root.record(dataset, retired=True).number
        return slice_page_record(self.version(dataset, number), name)

    def _is_retired(self, ref: str) -> bool:
        try:
            return self.outage.ask(lambda: self.root.record(ref, retired=True)).retired is not None
        except StoreError:
            return False  # if the page needs the store, it shows the outage

    def training(self, name: str) -> Training:
        """Return a run whose log was read at most a few seconds ago."""
        self._idle_replays.interrupt()
        return self._training(name)

    def trainings(self) -> list[Training]:
        """Return the open runs by name."""
        return sorted((run.fresh() for run in self._runs.values()), key=lambda training: training.name)

    def run_search(self, first: str | None = None) -> RunSearch:
        """Return a search through the open runs for a sample.

        first: run from which on to open and search others; None searches only open ones.
        """
        opened, error = self.trainings(), ""
        try:
            runs = self.run_names()
        except StoreError as failed:
            runs, error = (), str(failed)
        names = {one.name for one in opened}
        others = [run for run in runs if run not in names]
        if first is None:
            return RunSearch(opened, others, error=error, newest_first=runs)
        if first in others:  # otherwise another page has opened it meanwhile
            begin = others.index(first)
            others = [*others[begin:], *others[:begin]]
        return RunSearch(opened, others, lambda run: Training(self.root, run, self._plans), error, runs)

    def run_names(self) -> tuple[str, ...]:
        """Return the root's runs, newest first, as listed at most a minute ago. Raises: StoreError."""
        # Listing all run logs may be slow.
        at_s, runs = self._listed_runs
        if time.monotonic() - at_s > RUNS_S:
            listed = self._primary.ask(lambda: list_runs(primary_store(self.root.store)))
            runs = tuple(run.run for run in listed)
            self._listed_runs = time.monotonic(), runs
        return runs

    def _training(self, name: str) -> Training:
        def open_run() -> OpenRun:
            training = Training(self.root, name, self._plans, metrics=self._metrics.get(name))
            return OpenRun(training, self._primary)

        return self._runs.get(name, lambda: self._primary.ask(open_run)).fresh()

    def batch(self, name: str, step: int, rank: int, world_size: int) -> tuple[ShownBatch, str]:
        """Return (a rank's part of a step, recipe error or "").

        If no other request follows within a second, the neighbouring steps are replayed too.
        """
        self._idle_replays.forget()
        result = self._batch(self.training(name), step, rank, world_size)
        self._idle_replays.follow(RankStep(name, step, rank, world_size))
        return result

    def _batch(
        self,
        training: Training,
        step: int,
        rank: int,
        world_size: int,
        digests: Digests | None = None,
    ) -> tuple[ShownBatch, str]:
        """digests: the containing part's; None looks up this part's."""
        digests = training.part_digests(step, rank, world_size) if digests is None else digests
        cached = self._batches.get(
            (training.name, training.plan(step).hash, step, rank, world_size, digests),
            lambda: self._replay(
                lambda: step_values(training, self.replayers, step, rank, world_size, show_batch, digests),
                lambda batch: bool(batch.errors) or not batch.settled,
            ),
            self._is_valid,
        )
        return cached.value, cached.trouble

    def thumbnails(
        self, name: str, step: int, rank: int, world_size: int, slot: int
    ) -> tuple[Mapping[str, Media], str]:
        """Return (field -> a slot's thumbnail, recipe error or "").

        A part includes thumbnails of its first slots; later ones are made in groups. Raises: InvalidRuntime.
        """
        batch, trouble = self.batch(name, step, rank, world_size)
        if not batch.first_slot <= slot < batch.first_slot + len(batch.slots):
            slots = [batch.first_slot, batch.first_slot + len(batch.slots) - 1]
            part = f"rank {batch.rank} of {batch.world_size} has slots {slots[0]} to {slots[1]}"
            raise InvalidRuntime(f"slot = {slot}; {part}", what="slot", given=slot, accepted=slots)
        if slot >= batch.first_slot + batch.n_pictured:
            training = self.training(name)
            digests = training.part_digests(step, rank, world_size)
            pieces = -(-len(batch.slots) // PICTURED_SLOTS)  # each is the part of a rank of a larger world
            n_slots = training.plan(step).batch_size(step)
            n_ranks = world_size * pieces
            ranks = range(rank * pieces, (rank + 1) * pieces)
            piece = next(one for one in ranks if slot < rank_slice(n_slots, one, n_ranks).stop)
            batch, trouble = self._batch(training, step, piece, n_ranks, digests)
        return batch.slots[slot - batch.first_slot].thumbnails, trouble

    def slot(self, name: str, step: int, slot: int) -> tuple[SlotValues, str]:
        """Return (a slot, recipe error or "")."""
        training = self.training(name)
        cached = self._slots.get(
            (name, training.plan(step).hash, step, slot, training.part_digests(step)),
            lambda: self._replay(
                lambda: slot_values(training, self.replayers, step, slot, slot_itself),
                lambda values: bool(values.error) or not values.settled,
            ),
            self._is_valid,
        )
        return cached.value, cached.trouble

    def _replay(self, make: Callable[[], tuple[T, str]], lacks: Callable[[T], bool]) -> _CachedValues[T]:
        value, trouble = self._primary.ask(make)
        if self._process is None or trouble:  # the value was decoded in this process
            release_memory()
        n_answers = 0 if self._process is None else self._process.n_answers
        return _CachedValues(value, trouble, bool(trouble) or lacks(value), n_answers, time.monotonic())

    def _is_valid(self, cached: _CachedValues[Any]) -> bool:
        """Return whether values may be reused. Failed ones expire, at once if the recipe has answered since."""
        if not cached.failed:
            return True
        same = self._process is None or cached.n_answers == self._process.n_answers
        return same and time.monotonic() - cached.at_s < RETRY_S

    def step_record(self, training: Training, step: int, rank: int, world_size: int) -> StepRecord:
        """Return the record of a rank's part of a step."""
        batch, trouble = self.batch(training.name, step, rank, world_size)
        return step_record(training, batch, functions(training, self.replayers, step, trouble), trouble)

    def slot_record(
        self, training: Training, step: int, slot: int, search_from: str | None = None
    ) -> tuple[SlotRecord, SlotValues]:
        """Return a slot's record and values. search_from: first run of `run_search`."""
        values, trouble = self.slot(training.name, step, slot)
        record = slot_record(
            training,
            values,
            trouble,
            self.run_search(search_from),
            self.slice_search,
            functions=functions(training, self.replayers, step, trouble),
            part=partial(self._batch, training, step),
        )
        return record, values

    def cached(self, kept: LruCache[Any], key: Hashable, make: Callable[[], T]) -> T:
        """Return a value of `media` or `episodes`, or make it with the root's store."""
        value: T = kept.get(key, lambda: self.outage.ask(make))
        return value

    def ask_primary(self, make: Callable[[], T]) -> T:
        """Return `make`'s result, which reads the primary's records, not a mirror's. Raises: as `make`."""
        return self._primary.ask(make)

    def exclude(
        self, samples: Iterable[tuple[str, str]], *, reason: str, by: str, page: str
    ) -> tuple[str, ...]:
        """Publish each dataset without the samples, and return the new versions' names. Raises: as `exclude`.

        samples: (version, key), looked up in each dataset's newest given version. page: address or command to record.
        """
        refs: dict[str, str] = {}
        keys: dict[str, list[str]] = defaultdict(list)
        for version, key in samples:
            dataset, _, number = version.partition("@")
            if dataset not in refs or int(number) > int(refs[dataset].partition("@")[2]):
                refs[dataset] = version
            keys[dataset].append(key)
        return tuple(
            exclude(self.root, ref, list(dict.fromkeys(keys[dataset])), reason=reason, by=by, page=page)[
                1
            ].name
            for dataset, ref in refs.items()
        )

    def stop(self) -> None:
        """Kill the recipe process, which may hang, without waiting."""
        if self._process is not None:
            self._process.stop()

    def close(self) -> None:
        """Release versions, runs and processes."""
        self._closed.set()
        self._idle_replays.close()
        self.stop()
        self._runs.clear()
        self.episodes.clear()
        self._versions.clear()
        self._plans.close()
        self.replayers.close()

    def _prepare_columns(self) -> None:
        import_polars()  # otherwise the first filter would wait for this import
        self.columns.read_ahead()

    def _replay_ahead(self, part: RankStep) -> None:
        training = self._training(part.run)
        if part.step >= 0 and (training.trail is None or part.step <= training.last_step):
            self._batch(training, part.step, part.rank, part.world_size)

    def _sweep(self) -> None:
        while not self._closed.wait(SWEEP_S):
            self.episodes.drop_idle(IDLE_S)
            self._versions.drop_idle(IDLE_S)
