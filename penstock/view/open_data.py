"""Roots, versions, trainings and values that a viewer holds open: bounded in number, bytes and time."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock, RLock
from typing import Any, Generic, TypeVar

import loader
from loader.dataset.root import root_over
from loader.run.replay import Functions

from .inspect.slot_record import slot_values
from .inspect.step_record import step_values
from .replays.recipe_process import RecipeProcess
from .replays.replayed_values import BatchValues, SlotValues
from .replays.replays import Replayers, Replays
from .replays.training import Training

MOST_OPEN = 8
"""Versions, and trainings, that are held open; each has a lease."""
IDLE_S = 600.0
"""Seconds after which a version that nobody looked at is given back."""
FRESH_S = 10.0
"""Seconds after which a run's trail is read again: it may be training."""
VALUES_BYTES = 192 * 2**20
"""Values of steps and slots that are kept."""
MEDIA_BYTES = 48 * 2**20
"""Pictures and sounds that are kept."""

T = TypeVar("T")


class ByBytes(Generic[T]):
    """The last made values, up to a number of bytes. Two requests for one key make it once. Thread-safe."""

    def __init__(self, limit: int, nbytes: Callable[[T], int]) -> None:
        self._limit, self._nbytes = limit, nbytes
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._total = 0
        self._lock, self._making = Lock(), dict[Hashable, RLock]()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of a key, made where it is not kept."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
            mine = self._making.setdefault(key, RLock())
        with mine:
            with self._lock:
                if key in self._kept:
                    return self._kept[key][0]
            try:
                made = make()
                self._keep(key, made)
            finally:
                with self._lock:
                    self._making.pop(key, None)
            return made

    def _keep(self, key: Hashable, made: T) -> None:
        n = self._nbytes(made)
        with self._lock:
            self._kept[key] = made, n
            self._total += n
            while self._total > self._limit and self._kept:
                self._total -= self._kept.popitem(last=False)[1][1]


class OpenData:
    """Open versions and trainings of a viewer, and values made of them. Thread-safe."""

    def __init__(self, root: loader.Root, recipe: str | None = None, *, quiet: bool = False) -> None:
        """recipe: the training's function, "module:function"; None shows decoded values.

        quiet: True drops the text that the recipe's process prints: a terminal shows pages.
        """
        self.root, self.recipe = root, recipe
        self.replayers = Replayers(
            plain=Replays(root), recipe=RecipeProcess(root, recipe, quiet=quiet) if recipe else None
        )
        self._versions: OrderedDict[str, tuple[loader.Version, float]] = OrderedDict()
        self._trainings: OrderedDict[str, tuple[Training, float]] = OrderedDict()
        self._lock = RLock()
        self._batches = ByBytes[tuple[BatchValues, str]](VALUES_BYTES, lambda one: nbytes(one[0].slots))
        self._slots = ByBytes[tuple[SlotValues, str]](
            VALUES_BYTES, lambda one: nbytes([one[0].decoded, one[0].trained])
        )
        self.media = ByBytes[Any](MEDIA_BYTES, nbytes)

    def version(self, dataset: str, number: int) -> loader.Version:
        """Return a version, also a retired one. Raises: VersionNotFound; errors of opening."""
        ref = f"{dataset}@{number}"
        with self._lock:
            found = self._versions.pop(ref, None)
            # A root of its own, over the same store: its lease is given back with the last reference to the version.
            version = (
                root_over(self.root.store, self.root.verify).open(ref, retired=True)
                if found is None
                else found[0]
            )
            self._versions[ref] = version, time.monotonic()
            self._sweep()
            return version

    def training(self, name: str) -> Training:
        """Return a training, with a trail that is a few seconds old at most. Raises: RunNotFound; errors of opening."""
        with self._lock:
            found = self._trainings.pop(name, None)
            if found is None or (time.monotonic() - found[1] > FRESH_S and not name.startswith("p-")):
                if found is not None:
                    found[0].close()
                found = Training(self.root, name), time.monotonic()
            self._trainings[name] = found
            while len(self._trainings) > MOST_OPEN:
                self._trainings.popitem(last=False)[1][0].close()
            return found[0]

    def batch(self, name: str, step: int, rank: int, world_size: int) -> tuple[BatchValues, str]:
        """Return a rank's part of a step, and the reason why it is without the recipe."""
        training = self.training(name)
        return self._batches.get(
            (name, training.plan(step).hash, step, rank, world_size),
            lambda: step_values(training, self.replayers, step, rank, world_size),
        )

    def slot(self, name: str, step: int, slot: int) -> tuple[SlotValues, str]:
        """Return a slot, and the reason why it is without the recipe."""
        training = self.training(name)
        return self._slots.get(
            (name, training.plan(step).hash, step, slot),
            lambda: slot_values(training, self.replayers, step, slot),
        )

    def functions(self, training: Training, step: int, trouble: str) -> Functions | None:
        """Return facts of the recipe's functions; None without a recipe, or where it failed."""
        recipe = self.replayers.recipe
        return None if recipe is None or trouble else recipe.functions(training.setting(step, recipe=True))

    def close(self) -> None:
        """Give everything back."""
        with self._lock:
            for training, _ in self._trainings.values():
                training.close()
            self._trainings.clear()
            self._versions.clear()
            self.replayers.close()

    def _sweep(self) -> None:
        now = time.monotonic()
        for ref, (_, used) in list(self._versions.items()):
            if len(self._versions) > MOST_OPEN or now - used > IDLE_S:
                del self._versions[ref]


def nbytes(value: Any) -> int:
    """Return about how many bytes a value holds."""
    if isinstance(value, bytes | str):
        return len(value)
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if isinstance(value, dict):
        return sum(map(nbytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(nbytes, value))
    return 64
