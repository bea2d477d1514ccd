"""Roots, versions, trainings and values that a viewer holds open: bounded in number, bytes and time."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event, Lock, Thread
from typing import Any, Generic, TypeVar

import loader
from loader.api.plans import opened_anyway
from loader.dataset.root import root_over
from loader.dataset.versions.samples_table import import_polars
from loader.errors import InvalidRuntime, ObjectNotFound, PenstockError, StoreError
from loader.order.steps.slots import rank_slice
from loader.run.replay import Functions
from loader.run.trail.read_trail import trail_runs
from loader.storage.mirror.store import primary_of
from loader.storage.shared.requests import tried_once

from .freed_memory import give_back
from .inspect.shown_batch import PICTURED_SLOTS, ShownBatch, shown_batch
from .inspect.slot_record import slot_values
from .inspect.step_record import step_values
from .kept import Kept
from .kinds.kind import Media
from .outage import Outage
from .raw_source import RawSource
from .replays.metrics_file import MetricsFile
from .replays.recipe_process import RecipeProcess
from .replays.replayed_values import SlotValues, Told, slot_itself
from .replays.replays import Replayers, Replays
from .replays.training import Training
from .samples.held_steps import AskedRuns

MOST_OPEN = 8
"""Versions, and trainings, that are held open; each version has a lease."""
IDLE_S = 600.0
"""Seconds after which a version that nobody looked at is given back."""
SWEEP_S = 60.0
"""Seconds between looks for such versions."""
FRESH_S = 10.0
"""Seconds after which a run's trail is looked at again, as it may be training, and whether a version was retired."""
RUNS_S = 60.0
"""Seconds after which the runs of the root are listed again."""
RETRY_S = 60.0
"""Seconds after which a step or slot that could not be made whole is made again."""
AHEAD_S = 1.0
"""Seconds without a question, after which the steps beside the last one are made: most people go on to them."""
VALUES_BYTES = 96 * 2**20
"""Steps and slots that are kept."""
MEDIA_BYTES = 48 * 2**20
"""Pictures and sounds that are kept."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Look(Generic[T]):
    """A slot, or a part of a step, with the reason why it is without the recipe, and when it was made."""

    value: T
    trouble: str
    failed: bool
    n_answers: int
    at_s: float


class _Version:
    """An open version. A collector may delete its data once it is retired, whoever holds it open."""

    def __init__(self, version: loader.Version) -> None:
        self.version, self._looked_at = version, time.monotonic()

    def is_due(self) -> bool:
        """Return whether it is time to look whether it was retired; then nobody else is told so for a while."""
        if time.monotonic() - self._looked_at <= FRESH_S:
            return False
        self._looked_at = time.monotonic()
        return True


class _Run:
    """A training, read again when its trail may be longer."""

    def __init__(self, training: Training, outage: Outage) -> None:
        """outage: of the store that has the trail."""
        self.training, self._read_at, self._outage = training, time.monotonic(), outage
        self._whole_at, self._lock = datetime.now(UTC), Lock()

    def fresh(self) -> Training:
        """Return the training. While somebody reads its trail again, others have it as it was.

        Of a store that does not give it, it is as it was, and says so.
        """
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
    """Open versions and trainings of a viewer, and pages made of them. Thread-safe."""

    def __init__(
        self,
        root: loader.Root,
        recipe: str | None = None,
        *,
        quiet: bool = False,
        metrics: Mapping[str, MetricsFile] | None = None,
        raw: RawSource | None = None,
    ) -> None:
        """recipe: the training's function, "module:function"; None shows decoded values.

        quiet: True drops the text that the recipe's process prints: a terminal shows pages.
        metrics: run or hash of a plan -> its metrics of another tool.
        raw: place of raw objects that may be fetched; None for none.
        """
        self.root, self.recipe, self.raw = root, recipe, raw
        self._metrics = dict(metrics or {})
        self.outage = Outage()
        # Trails and ledgers are the primary's: mirrors may answer for versions meanwhile.
        self._primary = self.outage if primary_of(root.store) is root.store else Outage()
        self._process = RecipeProcess(root, recipe, quiet=quiet, outage=self._primary) if recipe else None
        self.replayers = Replayers(plain=Replays(root, cut=True, outage=self._primary), recipe=self._process)
        self._plans = Replays(root, outage=self._primary)
        self._versions = Kept[_Version](MOST_OPEN)
        self._runs = Kept[_Run](MOST_OPEN)
        self._batches = Kept[_Look[ShownBatch]](VALUES_BYTES, lambda one: one.value.nbytes)
        self._slots = Kept[_Look[SlotValues]](
            VALUES_BYTES, lambda one: nbytes([one.value.decoded, one.value.trained])
        )
        self.media = Kept[Any](MEDIA_BYTES, nbytes)
        self._closed, self._asked = Event(), Event()
        self._listed_runs: tuple[float, tuple[str, ...]] = -math.inf, ()
        self._last: tuple[str, int, int, int] | None = None
        Thread(target=self._sweep, name="penstock-view-idle", daemon=True).start()
        Thread(target=self._look_ahead, name="penstock-view-ahead", daemon=True).start()

    def start(self) -> None:
        """Start the recipe's process, so that it has imported its module before the first step is asked for."""
        if self._process is not None:
            Thread(target=self._start_recipe, name="penstock-view-recipe", daemon=True).start()

    def _start_recipe(self) -> None:
        assert self._process is not None
        with suppress(PenstockError):  # the first step starts it again, and tells what is wrong with it
            self._process.start()

    def recipe_state(self) -> str:
        """Return the state of the recipe's process in words; "" unless it is starting."""
        seconds = None if self._process is None else self._process.starting_s
        if seconds is None:
            return ""
        return f"--recipe {self.recipe} is starting: its module is being imported ({seconds:.0f} s)."

    def answer(self, make: Callable[[], T]) -> T:
        """Return what `make` makes of versions and trainings. Raises: as `make`.

        Where an object is missing it is called again, with all of them opened anew: a collector may have taken it, and
        opening tells the reason. A store that did not answer a moment ago is asked once, whatever its budget.
        """
        try:
            with tried_once() if self.outage.is_known else nullcontext():
                return make()
        except ObjectNotFound:
            self._versions.clear()
            self._plans.close()
            return make()

    def version(self, dataset: str, number: int) -> loader.Version:
        """Return a version, also a retired one while its data is there; that is looked at again every few seconds.

        Raises: VersionNotFound; VersionRetired; Denied; errors of opening.
        """
        self._asked.set()
        ref = f"{dataset}@{number}"

        def opened() -> _Version:
            # A root of its own, over the same store: its lease is given back with the last reference to the version.
            return _Version(opened_anyway(root_over(self.root.store, self.root.verify), ref))

        found = self._versions.get(ref, lambda: self.outage.ask(opened))
        if found.is_due() and self._is_retired(ref):
            self._versions.forget(ref)
            found = self._versions.get(ref, lambda: self.outage.ask(opened))
        return found.version

    def _is_retired(self, ref: str) -> bool:
        try:
            return self.outage.ask(lambda: self.root.record(ref, retired=True)).retired is not None
        except StoreError:
            return False  # of a store that does not answer: the page tells it where it needs the store

    def training(self, name: str) -> Training:
        """Return a training, with a trail that is a few seconds old at most. Raises: RunNotFound; errors of opening."""
        self._asked.set()
        return self._training(name)

    def trainings(self) -> list[Training]:
        """Return the trainings that are open, by name."""
        return sorted((one.fresh() for one in self._runs.values()), key=lambda one: one.name)

    def asked(self, first: str | None = None) -> AskedRuns:
        """Return the trainings that are open, which are asked for a sample, with the names of the root's other runs.

        first: the run from which on others are opened and asked too; None asks the open ones alone.
        """
        opened, error = self.trainings(), ""
        try:
            runs = self._all_runs()
        except StoreError as failed:
            runs, error = (), str(failed)
        names = {one.name for one in opened}
        others = [run for run in runs if run not in names]
        if first is None:
            return AskedRuns(opened, others, error=error)
        ordered = sorted(others, key=lambda run: (run < first, run))
        return AskedRuns(opened, ordered, lambda run: Training(self.root, run, self._plans), error)

    def _all_runs(self) -> tuple[str, ...]:
        """Return the runs of the root, as they were a minute ago at most: a listing of all trails may be long."""
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
        """Return a rank's part of a step, and the reason why it is without the recipe.

        After a second without another question the parts of the steps beside it are made.
        """
        self._last = None
        found = self._batch(self.training(name), step, rank, world_size)
        self._last = name, step, rank, world_size
        self._asked.set()
        return found

    def part(self, training: Training, step: int, rank: int, world_size: int) -> tuple[ShownBatch, str]:
        """Return as `batch`, for a page of something else: no steps are made after it."""
        return self._batch(training, step, rank, world_size)

    def _batch(
        self,
        training: Training,
        step: int,
        rank: int,
        world_size: int,
        told: Sequence[Told] | None = None,
    ) -> tuple[ShownBatch, str]:
        """told: of the part that this one is a piece of; None for its own."""
        told = training.told(step, rank, world_size) if told is None else told
        look = self._batches.get(
            (training.name, training.plan(step).hash, step, rank, world_size, told),
            lambda: self._look(
                lambda: step_values(training, self.replayers, step, rank, world_size, shown_batch, told),
                lambda one: bool(one.errors) or not one.settled,
            ),
            self._holds,
        )
        return look.value, look.trouble

    def thumbnails(
        self, name: str, step: int, rank: int, world_size: int, slot: int
    ) -> tuple[Mapping[str, Media], str]:
        """Return field -> thumbnail of a slot of a rank's part, and the reason why it is without the recipe.

        Those of the first slots come with the part. Others are made a few together: as parts of more ranks. Raises:
        InvalidRuntime for no such slot.
        """
        batch, trouble = self.batch(name, step, rank, world_size)
        if not batch.first_slot <= slot < batch.first_slot + len(batch.slots):
            raise InvalidRuntime(
                f"slot = {slot}; rank {batch.rank} of {batch.world_size} has slots {batch.first_slot} to "
                f"{batch.first_slot + len(batch.slots) - 1}"
            )
        if slot >= batch.first_slot + batch.n_pictured:
            training, pieces = self.training(name), -(-len(batch.slots) // PICTURED_SLOTS)
            told = training.told(step, rank, world_size)
            n, world_size = training.plan(step).batch_size(step), world_size * pieces
            within = range(rank * pieces, (rank + 1) * pieces)
            piece = next(one for one in within if slot < rank_slice(n, one, world_size).stop)
            batch, trouble = self._batch(training, step, piece, world_size, told)
        return batch.slots[slot - batch.first_slot].thumbnails, trouble

    def slot(self, name: str, step: int, slot: int) -> tuple[SlotValues, str]:
        """Return a slot, and the reason why it is without the recipe."""
        training = self.training(name)
        look = self._slots.get(
            (name, training.plan(step).hash, step, slot, training.told(step)),
            lambda: self._look(
                lambda: slot_values(training, self.replayers, step, slot, slot_itself),
                lambda one: bool(one.error) or not one.settled,
            ),
            self._holds,
        )
        return look.value, look.trouble

    def _look(self, make: Callable[[], tuple[T, str]], lacks: Callable[[T], bool]) -> _Look[T]:
        value, trouble = self._primary.ask(make)
        if self._process is None or trouble:  # it was decoded here
            give_back()
        n_answers = 0 if self._process is None else self._process.n_answers
        return _Look(value, trouble, bool(trouble) or lacks(value), n_answers, time.monotonic())

    def _holds(self, look: _Look[Any]) -> bool:
        """Return whether a look may be kept: one that failed is made again, at once if the recipe answered since."""
        if not look.failed:
            return True
        same = self._process is None or look.n_answers == self._process.n_answers
        return same and time.monotonic() - look.at_s < RETRY_S

    def functions(self, training: Training, step: int, trouble: str) -> Functions | None:
        """Return facts of the recipe's functions; None without a recipe, or where it failed."""
        recipe = self.replayers.recipe
        return None if recipe is None or trouble else recipe.functions(training.setting(step, recipe=True))

    def stop(self) -> None:
        """End the recipe's process, which may hang: what waits for it goes on without. Does not wait."""
        if self._process is not None:
            self._process.stop()

    def close(self) -> None:
        """Give everything back."""
        self._closed.set()
        self._asked.set()
        self.stop()
        self._runs.clear()
        self._versions.clear()
        self._plans.close()
        self.replayers.close()

    def _look_ahead(self) -> None:
        """Make ready for the likely next questions, whenever nobody asks for anything."""
        while self._asked.wait() and not self._closed.is_set():
            self._asked.clear()
            if self._asked.wait(AHEAD_S):
                continue
            with suppress(PenstockError):
                import_polars()  # the first filter of a version would wait for it
            if self._last is None:
                continue
            (name, step, rank, world_size), self._last = self._last, None
            for beside in (step + 1, step - 1):
                if not self._asked.is_set():
                    with suppress(PenstockError):  # whoever asks for that step is told what is wrong with it
                        self._make_ahead(name, beside, rank, world_size)

    def _make_ahead(self, name: str, step: int, rank: int, world_size: int) -> None:
        """Make a rank's part of a step, if there is one. Nobody has asked for it: it counts as no question."""
        training = self._training(name)
        if step >= 0 and (training.trail is None or step <= training.last_step):
            self._batch(training, step, rank, world_size)

    def _sweep(self) -> None:
        while not self._closed.wait(SWEEP_S):
            self._versions.drop_idle(IDLE_S)


def nbytes(value: Any) -> int:
    """Return about how many bytes a value holds."""
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
