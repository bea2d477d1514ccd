"""One viewer's open versions, training runs and cached values, bounded in number, bytes and time."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import nullcontext, suppress
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from threading import Event, Lock, Thread
from typing import Any, Generic, TypeVar

import loader
from loader.api.plans import opened_anyway
from loader.dataset.root import root_over
from loader.dataset.versions.samples_table import import_polars
from loader.errors import InvalidRuntime, ObjectNotFound, PenstockError, StoreError
from loader.order.slots import rank_slice
from loader.run.trail.read_trail import trail_runs
from loader.storage.mirror import primary_of
from loader.storage.requests import tried_once

from ..upkeep.exclusion import exclude
from .inspect.shown_batch import PICTURED_SLOTS, ShownBatch, shown_batch
from .inspect.slot_record import SlotRecord, slot_record, slot_values
from .inspect.step_record import StepRecord, functions, step_record, step_values
from .kinds.kind import Media
from .kinds.stored_bytes import release_memory
from .lru_cache import LruCache
from .outage import Outage
from .raw_source import RawSource
from .replays.metrics_file import MetricsFile
from .replays.recipe_process import RecipeProcess
from .replays.replayed_values import Digests, SlotValues, slot_itself
from .replays.replays import Replayers, Replays
from .replays.training import Training
from .sample_relations import RunSearch

MOST_OPEN = 8
"""Most open versions, each with a lease, and training runs."""
IDLE_S = 600.0
"""Seconds until an unused version is released."""
SWEEP_S = 60.0
"""Seconds between searches for unused versions."""
FRESH_S = 10.0
"""Seconds until a run log is read again, and a version checked for retirement."""
RUNS_S = 60.0
"""Seconds until the root's runs are listed again."""
RETRY_S = 60.0
"""Seconds until an incomplete step or slot is replayed again."""
AHEAD_S = 1.0
"""Idle seconds until the last step's neighbours, which most users open next, are replayed."""
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


class _Version:
    """An open version. Garbage collection may delete a retired one's data."""

    def __init__(self, version: loader.Version) -> None:
        self.version, self._checked_at = version, time.monotonic()

    def is_due(self) -> bool:
        """Return whether the caller should check for retirement; other threads then get False for a while."""
        if time.monotonic() - self._checked_at <= FRESH_S:
            return False
        self._checked_at = time.monotonic()
        return True


class _Run:
    def __init__(self, training: Training, outage: Outage) -> None:
        self.training, self._read_at, self._outage = training, time.monotonic(), outage
        self._whole_at, self._lock = datetime.now(UTC), Lock()

    def fresh(self) -> Training:
        """Return the run, refreshed if due; marked stale during an outage."""
        if time.monotonic() - self._read_at > FRESH_S and self._lock.acquire(blocking=False):
            try:
                self._read_again()
            finally:
                self._read_at = time.monotonic()
                self._lock.release()
        return self.training

    def _read_again(self) -> None:
        stale = ""
        try:
            self.training = self._outage.ask(self.training.refreshed)
            self._whole_at = datetime.now(UTC)
        except StoreError as error:
            stale = f"the trail is as it was read at {self._whole_at:%Y-%m-%d %H:%M:%S} UTC: {error}"
        if stale != self.training.stale:
            self.training = copy(self.training)
            self.training.stale = stale


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
        self._primary = self.outage if primary_of(root.store) is root.store else Outage()
        self._process = RecipeProcess(root, recipe, quiet=quiet, outage=self._primary) if recipe else None
        self.replayers = Replayers(plain=Replays(root, cut=True, outage=self._primary), recipe=self._process)
        self._plans = Replays(root, outage=self._primary)
        self._versions = LruCache[_Version](MOST_OPEN)
        self._runs = LruCache[_Run](MOST_OPEN)
        self._batches = LruCache[_CachedValues[ShownBatch]](VALUES_BYTES, lambda entry: entry.value.nbytes)
        self._slots = LruCache[_CachedValues[SlotValues]](
            VALUES_BYTES, lambda entry: nbytes([entry.value.decoded, entry.value.trained])
        )
        self.media = LruCache[Any](MEDIA_BYTES, nbytes)
        self.episodes = LruCache[Any](EPISODES_BYTES, nbytes)
        """Open episodes, which hold their versions, and streams' summaries."""
        self._closed, self._requested = Event(), Event()
        self._listed_runs: tuple[float, tuple[str, ...]] = -math.inf, ()
        self._last: tuple[str, int, int, int] | None = None
        Thread(target=self._sweep, name="penstock-view-idle", daemon=True).start()
        Thread(target=self._replay_ahead, name="penstock-view-ahead", daemon=True).start()

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
            with tried_once() if self.outage.is_known else nullcontext():
                return make()
        except ObjectNotFound:
            self.episodes.clear()
            self._versions.clear()
            self._plans.close()
            return make()

    def version(self, dataset: str, number: int) -> loader.Version:
        """Return a version, even a retired one as long as its data exists.

        Raises: VersionNotFound; VersionRetired; Denied; errors from opening.
        """
        self._requested.set()
        ref = f"{dataset}@{number}"

        def open_version() -> _Version:
            # A separate Root on the same store, so that its lease ends with the last reference to the version.
            return _Version(opened_anyway(root_over(self.root.store, self.root.verify), ref))

        entry = self._versions.get(ref, lambda: self.outage.ask(open_version))
        if entry.is_due() and self._is_retired(ref):
            self._versions.forget(ref)
            entry = self._versions.get(ref, lambda: self.outage.ask(open_version))
        return entry.version

    def _is_retired(self, ref: str) -> bool:
        try:
            return self.outage.ask(lambda: self.root.record(ref, retired=True)).retired is not None
        except StoreError:
            return False  # if the page needs the store, it shows the outage

    def training(self, name: str) -> Training:
        """Return a run whose log was read at most a few seconds ago."""
        self._requested.set()
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
            runs = self._all_runs()
        except StoreError as failed:
            runs, error = (), str(failed)
        names = {one.name for one in opened}
        others = [run for run in runs if run not in names]
        if first is None:
            return RunSearch(opened, others, error=error)
        ordered = sorted(others, key=lambda run: (run < first, run))
        return RunSearch(opened, ordered, lambda run: Training(self.root, run, self._plans), error)

    def _all_runs(self) -> tuple[str, ...]:
        # Listing all run logs may be slow.
        at_s, runs = self._listed_runs
        if time.monotonic() - at_s > RUNS_S:
            runs = tuple(self._primary.ask(lambda: trail_runs(primary_of(self.root.store))))
            self._listed_runs = time.monotonic(), runs
        return runs

    def _training(self, name: str) -> Training:
        def opened() -> _Run:
            training = Training(self.root, name, self._plans, metrics=self._metrics.get(name))
            return _Run(training, self._primary)

        return self._runs.get(name, lambda: self._primary.ask(opened)).fresh()

    def batch(self, name: str, step: int, rank: int, world_size: int) -> tuple[ShownBatch, str]:
        """Return (a rank's part of a step, recipe error or "").

        If no other request follows within a second, the neighbouring steps are replayed too.
        """
        self._last = None
        result = self._batch(self.training(name), step, rank, world_size)
        self._last = name, step, rank, world_size
        self._requested.set()
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
                lambda: step_values(training, self.replayers, step, rank, world_size, shown_batch, digests),
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
            raise InvalidRuntime(
                f"slot = {slot}; rank {batch.rank} of {batch.world_size} has slots {batch.first_slot} to "
                f"{batch.first_slot + len(batch.slots) - 1}"
            )
        if slot >= batch.first_slot + batch.n_pictured:
            training, pieces = self.training(name), -(-len(batch.slots) // PICTURED_SLOTS)
            digests = training.part_digests(step, rank, world_size)
            n, world_size = training.plan(step).batch_size(step), world_size * pieces
            within = range(rank * pieces, (rank + 1) * pieces)
            piece = next(one for one in within if slot < rank_slice(n, one, world_size).stop)
            batch, trouble = self._batch(training, step, piece, world_size, digests)
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
        self._requested.set()
        self.stop()
        self._runs.clear()
        self.episodes.clear()
        self._versions.clear()
        self._plans.close()
        self.replayers.close()

    def _replay_ahead(self) -> None:
        while self._requested.wait() and not self._closed.is_set():
            self._requested.clear()
            if self._requested.wait(AHEAD_S):
                continue
            with suppress(PenstockError):
                import_polars()  # otherwise the first filter would wait for this import
            if self._last is None:
                continue
            (name, step, rank, world_size), self._last = self._last, None
            for neighbour in (step + 1, step - 1):
                if not self._requested.is_set():
                    with suppress(PenstockError):  # the error is shown when that step is requested
                        self._make_ahead(name, neighbour, rank, world_size)

    def _make_ahead(self, name: str, step: int, rank: int, world_size: int) -> None:
        training = self._training(name)
        if step >= 0 and (training.trail is None or step <= training.last_step):
            self._batch(training, step, rank, world_size)

    def _sweep(self) -> None:
        while not self._closed.wait(SWEEP_S):
            self.episodes.drop_idle(IDLE_S)
            self._versions.drop_idle(IDLE_S)


def nbytes(value: Any) -> int:
    """Return a value's approximate bytes."""
    if isinstance(value, bytes | str):
        return len(value)
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if isinstance(value, Media):
        return len(value.data)
    if isinstance(value, dict):
        return sum(map(nbytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(nbytes, value))
    return 64
