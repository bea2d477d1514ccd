"""A process of its own for a training's recipe: code of the user's can hang or crash it, and nothing else.

The process is spawned by `start`, or at the first question. One that does not answer within the limit is killed, and
the next question starts another.
"""

import atexit
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Lock
from typing import cast

import loader
from loader.errors import InvalidRuntime, TransformFailed, WorkerFailed
from loader.run.replay import Functions

from ..outage import Outage
from .recipe_code import FORM, serve_recipe
from .replayed_values import BatchValues, PartValues, Setting, SlotValues, T, Take, Told

LIMIT_S = 30.0
"""Seconds that a question may take; the first one also imports the recipe's module."""
START_S = 120.0
"""Seconds that the start may take: `import torch` alone is many on a cold disk."""
LOOK_S = 0.5
"""Seconds between looks whether the process lives: a child that it forked may hold its end of the pipe open."""


class RecipeProcess:
    """A `Replayer` through a recipe, in a process of its own. Thread-safe."""

    def __init__(
        self,
        root: loader.Root,
        recipe: str,
        *,
        limit_s: float = LIMIT_S,
        quiet: bool = False,
        outage: Outage | None = None,
    ) -> None:
        """recipe: "module:function" or "file.py:function", of no arguments. Raises: InvalidRuntime for another form.

        quiet: True drops the text that it prints; else it goes to stderr. outage: of the root's store, shared with
        others that ask it.
        """
        module, _, function = recipe.rpartition(":")
        if not module or not function.isidentifier():
            raise InvalidRuntime(f"--recipe {recipe!r}; {FORM}")
        self.recipe = recipe
        self.n_answers = 0
        """Questions that were answered: a value that failed before may be had by now."""
        self._root, self._limit_s, self._quiet = root, limit_s, quiet
        self._outage = outage or Outage()
        self._lock, self._stopped = Lock(), False
        self._starting_at: float | None = None
        self._functions: dict[Setting, Functions] = {}
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None
        atexit.register(self.stop)

    def start(self) -> None:
        """Spawn the process, unless it lives, and wait for it. Raises: errors of the recipe; WorkerFailed."""
        with self._lock:
            if self._process is None or not self._process.is_alive():
                self._started()

    @property
    def starting_s(self) -> float | None:
        """Seconds since the process was spawned, while it imports the recipe's module; None at other times."""
        at = self._starting_at
        return None if at is None else time.monotonic() - at

    def slot(
        self, setting: Setting, step: int, slot: int, take: Take[SlotValues, T], told: Sequence[Told] = ()
    ) -> T:
        """Return what `take` makes of a slot, in the process."""
        return cast(T, self._ask("slot", setting, step, slot, take, told))

    def batch(
        self,
        setting: Setting,
        step: int,
        rank: int,
        world_size: int,
        take: Take[BatchValues, T],
        told: Sequence[Told] = (),
    ) -> T:
        """Return what `take` makes of a rank's part of a step, in the process."""
        return cast(T, self._ask("batch", setting, step, rank, world_size, take, told))

    def part(
        self,
        setting: Setting,
        step: int,
        rank: int,
        world_size: int,
        take: Take[PartValues, T],
        told: Sequence[Told] = (),
    ) -> T:
        """Return what `take` makes of a rank's part of a step, slot by slot, in the process."""
        return cast(T, self._ask("part", setting, step, rank, world_size, take, told))

    def functions(self, setting: Setting) -> Functions:
        """Return facts of the recipe's decoders and transforms."""
        found = self._functions.get(setting)
        if found is None:  # of the process's life: its modules are imported once
            found = self._functions[setting] = cast(Functions, self._ask("functions", setting))
        return found

    def stop(self) -> None:
        """Kill the process, and start none any more. Does not wait, so that a signal's handler may call it."""
        self._stopped = True
        self._kill()

    def close(self) -> None:
        """End the process: a question that it is at fails."""
        self.stop()
        atexit.unregister(self.stop)
        with self._lock:
            self._end()

    def _ask(self, verb: str, *given: object) -> object:
        with self._lock:
            return self._outage.ask(lambda: self._asked(verb, given))

    def _asked(self, verb: str, given: tuple[object, ...]) -> object:
        try:
            pipe = self._pipe if self._process is not None and self._process.is_alive() else None
            pipe = pipe or self._started()
            pipe.send_bytes(pickle.dumps((verb, given)))
            answered, value = self._answer(pipe, self._limit_s)
        except (EOFError, OSError) as error:
            self._end()
            raise WorkerFailed(
                f"the process of --recipe {self.recipe} died while it made a {verb}; the next question "
                "starts another"
            ) from error
        except BaseException:  # Ctrl-C, too: the answer would be taken for that of the next question
            self._end()
            raise
        self.n_answers += answered
        if not answered:
            raise cast(BaseException, value)
        return value

    def _started(self) -> Connection:
        self._starting_at = time.monotonic()
        try:
            return self._spawned()
        finally:
            self._starting_at = None

    def _spawned(self) -> Connection:
        self._end()
        self._functions.clear()
        if self._is_stopped():
            raise WorkerFailed(f"the process of --recipe {self.recipe} is ended, as the viewer is")
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=serve_recipe,
            args=(theirs, self._root, self.recipe, self._quiet, os.getpid(), self._limit_s / 2),
        )  # no daemon: those may start no processes. `stop` at exit ends it
        # Ctrl-C goes to every process of the terminal: this one hears it only once it can pass over it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._pipe = ours
        if self._is_stopped():  # meanwhile
            self._kill()
        try:
            answered, value = self._answer(ours, START_S)
        except (EOFError, OSError) as error:
            self._end()
            raise WorkerFailed(
                f"the process of --recipe {self.recipe} died while it was started: importing the module, or calling "
                "the function, ended it. Its output may say more; the next question starts another"
            ) from error
        if not answered:
            self._end()
            raise cast(BaseException, value)
        return ours

    def _answer(self, pipe: Connection, limit_s: float) -> tuple[bool, object]:
        """Return (True, value) or (False, error). Raises: EOFError; WorkerFailed past the limit."""
        assert self._process is not None
        until = time.monotonic() + limit_s
        while not pipe.poll(min(LOOK_S, max(0.0, until - time.monotonic()))):
            if not self._process.is_alive() and not pipe.poll():
                raise EOFError
            if time.monotonic() >= until:
                self._end()
                raise WorkerFailed(
                    f"--recipe {self.recipe} gave no answer in {limit_s:g} s; its process was ended, and the next "
                    "question starts another. Stored and decoded values are shown without it"
                )
        data = pipe.recv_bytes()
        try:
            return cast(tuple[bool, object], pickle.loads(data))  # noqa: S301 - of our own process
        except Exception as error:  # noqa: BLE001 - a class of the recipe's module, which is not imported here
            told = f"a value of the transform cannot leave its process: {type(error).__name__}: {error}"
            return False, TransformFailed(told)

    def _is_stopped(self) -> bool:
        return self._stopped

    def _kill(self) -> None:
        """Kill the process, and those that it started: they are of one group."""
        process = self._process
        if process is None or process.pid is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # before it has made the group

    def _end(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            self._kill()
            self._process.join()
            self._process = None
