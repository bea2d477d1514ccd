"""Run a training's recipe, whose code may hang or crash, in a process that is restarted on demand."""

import atexit
import multiprocessing
import os
import pickle
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Lock
from typing import cast

import loader
from loader.errors import InvalidRuntime, PenstockError, TransformFailed, WorkerFailed
from loader.run.replay import Functions
from loader.run.workers.forked_children import cover_children
from loader.run.workers.parent_watch import (
    ParentWatch,
    default_handlers,
    descriptor_of_parent,
    stay_alive,
    survive_stop_signals,
)
from loader.storage.requests import retry_while

from ..kinds.stored_bytes import release_memory
from ..outage import Outage
from .recipe_function import FORM, error_text, load_recipe, load_tokenizers
from .replayed_values import Digests, Setting, SlotValues, StepPart, T, Take
from .replays import ReplayedPart, Replays

LIMIT_S = 30.0
"""Seconds of a request."""
START_S = 120.0
"""Seconds to start the process and import the recipe; a cold `import torch` takes many."""
CHECK_S = 0.5
"""Seconds between checks that the process lives; a forked child may keep its end of the pipe open."""


def serve_recipe(
    pipe: Connection,
    root: loader.Root,
    recipe: str,
    quiet: bool,
    viewer: int,
    patience_s: float,
) -> None:
    """Answer requests until the pipe closes or the viewer ends.

    viewer: its process id. patience_s: seconds to retry a failing store, below the viewer's limit.
    """
    with suppress(OSError):
        os.setpgid(0, 0)  # its own process group, so that all its children can be killed with it
    survive_stop_signals([signal.SIGINT])
    cover_children(stay_alive, default_handlers([signal.SIGINT]))
    ParentWatch(socket.socket(fileno=os.dup(pipe.fileno())), descriptor_of_parent(viewer))
    _redirect_prints(os.open(os.devnull, os.O_WRONLY) if quiet else 2)
    # One thread, as in torch's DataLoader workers: on a busy machine, joining threads after each small operation
    # takes twenty times as long. The recipe or the environment may set more.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Each request fills a new batch, and faulting in 4 KiB pages would take longer than filling it.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        replays = Replays(
            root,
            load_recipe(recipe),
            load_tokenizers(recipe),
            title=f"--recipe {recipe}",
        )
    except PenstockError as error:
        pipe.send_bytes(_pickle_answer(False, error))
        return
    pipe.send_bytes(_pickle_answer(True, None))
    with suppress(EOFError, OSError):  # the viewer is gone
        while True:
            verb, arguments = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from the viewer
            try:
                with retry_while(lambda spent_s: spent_s < patience_s):
                    answer = _pickle_answer(True, getattr(replays, verb)(*arguments))
            except PenstockError as error:
                answer = _pickle_answer(False, error)
            except Exception as error:  # noqa: BLE001 - of the user's code: shown in place of its value
                message = f"--recipe {recipe}: {error_text(error)}"
                answer = _pickle_answer(False, TransformFailed(message, what="--recipe", where=recipe))
            pipe.send_bytes(answer)
            del answer
            if verb == "part":
                release_memory()
    replays.close()


def _pickle_answer(answered: bool, value: object) -> bytes:
    if isinstance(value, BaseException):
        value = _plain(value)
    try:
        return pickle.dumps((answered, value), pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001 - of the user's classes
        return pickle.dumps((False, _unsendable(error)))


def _unsendable(error: Exception) -> TransformFailed:
    fault = f"{type(error).__name__}: {error}"
    message = f"a value of the transform cannot leave its process: {fault}"
    return TransformFailed(message, what="value of the transform", given=fault)


def _plain(error: BaseException) -> BaseException:
    # The causes' classes may exist only in the recipe.
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _redirect_prints(file: int) -> None:
    os.dup2(file, 1)
    os.dup2(file, 2)


class RecipeProcess:
    """A `Replayer` in a separate process. Thread-safe."""

    def __init__(
        self,
        root: loader.Root,
        recipe: str,
        *,
        limit_s: float = LIMIT_S,
        quiet: bool = False,
        outage: Outage | None = None,
    ) -> None:
        """recipe: "module:function" or "file.py:function". Raises: InvalidRuntime for other forms.

        quiet: drops output, which otherwise goes to stderr. outage: of the root's store.
        """
        module, _, function = recipe.rpartition(":")
        if not module or not function.isidentifier():
            raise InvalidRuntime(f"--recipe {recipe!r}; {FORM}", what="--recipe", given=recipe, accepted=FORM)
        self.recipe = recipe
        self.n_answers = 0
        """If it grew, a failed value may now succeed."""
        self._root = root
        self._limit_s = limit_s
        self._quiet = quiet
        self._outage = outage or Outage()
        self._lock = Lock()
        self._stopped = False
        self._starting_at: float | None = None
        """Monotonic time of the spawn, while starting; else None."""
        self._functions: dict[Setting, Functions] = {}
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None
        atexit.register(self.stop)

    def start(self) -> None:
        """Spawn the process unless it lives. Raises: the recipe's errors; WorkerFailed."""
        with self._lock:
            if self._process is None or not self._process.is_alive():
                self._start_process()

    @property
    def starting_s(self) -> float | None:
        """Seconds since the spawn, while starting; else None."""
        at = self._starting_at
        if at is None:
            return None
        return time.monotonic() - at

    def slot(
        self, setting: Setting, step: int, slot: int, take: Take[SlotValues, T], digests: Digests = ()
    ) -> T:
        return cast(T, self._request("slot", setting, step, slot, take, digests))

    def part(
        self, setting: Setting, place: StepPart, take: Take[ReplayedPart, T], digests: Digests = ()
    ) -> T:
        return cast(T, self._request("part", setting, place, take, digests))

    def inspect(self, setting: Setting, take: Callable[[loader.Replay], T]) -> T:
        return cast(T, self._request("inspect", setting, take))

    def functions(self, setting: Setting) -> Functions:
        functions = self._functions.get(setting)
        if functions is None:  # constant for the life of the process, which imports modules only once
            functions = self._functions[setting] = cast(Functions, self._request("functions", setting))
        return functions

    def stop(self) -> None:
        """Kill the process for good, without waiting, so signal handlers may call it."""
        self._stopped = True
        self._kill()

    def close(self) -> None:
        """End the process; a request in progress fails."""
        self.stop()
        atexit.unregister(self.stop)
        with self._lock:
            self._end()

    def _request(self, verb: str, *arguments: object) -> object:
        with self._lock:
            return self._outage.ask(lambda: self._exchange(verb, arguments))

    def _exchange(self, verb: str, arguments: tuple[object, ...]) -> object:
        try:
            pipe = None
            if self._process is not None and self._process.is_alive():
                pipe = self._pipe
            pipe = pipe or self._start_process()
            pipe.send_bytes(pickle.dumps((verb, arguments)))
            answered, value = self._answer(pipe, self._limit_s)
        except (EOFError, OSError) as error:
            self._end()
            raise WorkerFailed(
                f"the process of --recipe {self.recipe} died while making a {verb}; the next request "
                "starts another",
                what="process of --recipe",
                where=self.recipe,
                given=f"died while making a {verb}",
            ) from error
        except BaseException:  # even Ctrl-C, because the next request would receive this answer
            self._end()
            raise
        self.n_answers += answered
        if not answered:
            raise cast(BaseException, value)
        return value

    def _start_process(self) -> Connection:
        self._starting_at = time.monotonic()
        try:
            return self._spawn()
        finally:
            self._starting_at = None

    def _spawn(self) -> Connection:
        """Start a process, and wait until it has imported the recipe. Raises: the recipe's errors; WorkerFailed."""
        self._end()
        self._functions.clear()
        if self._is_stopped():
            message = f"the process of --recipe {self.recipe} ended with the viewer"
            raise WorkerFailed(message, what="process of --recipe", where=self.recipe, given="ended")
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=serve_recipe,
            args=(
                theirs,
                self._root,
                self.recipe,
                self._quiet,
                os.getpid(),
                # Its retries end before the limit, so that the store's error is the answer.
                self._limit_s / 2,
            ),
        )  # not a daemon, which could not start processes; `stop` kills it at exit
        # Ctrl-C reaches every process in the terminal. The new process unblocks it after installing a handler.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        self._pipe = ours
        if self._is_stopped():  # `stop` was called while the process was starting
            self._kill()
        try:
            answered, value = self._answer(ours, START_S)
        except (EOFError, OSError) as error:
            self._end()
            raise WorkerFailed(
                f"the process of --recipe {self.recipe} died while starting: importing the module, or calling "
                "the function, ended it. Check its output; the next request starts another",
                what="process of --recipe",
                where=self.recipe,
                given="died while starting",
            ) from error
        if not answered:
            self._end()
            raise cast(BaseException, value)
        return ours

    def _answer(self, pipe: Connection, limit_s: float) -> tuple[bool, object]:
        """Return (True, value), or (False, error to raise). The process must have been started."""
        assert self._process is not None
        until = time.monotonic() + limit_s
        while not pipe.poll(min(CHECK_S, max(0.0, until - time.monotonic()))):
            if not self._process.is_alive() and not pipe.poll():
                raise EOFError
            if time.monotonic() >= until:
                self._end()
                raise WorkerFailed(
                    f"--recipe {self.recipe} did not answer in {limit_s:g} s; its process was ended, and the next "
                    "request starts another. Stored and decoded values are shown without it",
                    what="seconds of --recipe",
                    where=self.recipe,
                    given=limit_s,
                )
        data = pipe.recv_bytes()
        try:
            return cast(tuple[bool, object], pickle.loads(data))  # noqa: S301 - from our own process
        except Exception as error:  # noqa: BLE001 - a class of the recipe's module, which is not imported here
            return False, _unsendable(error)

    def _is_stopped(self) -> bool:
        return self._stopped

    def _kill(self) -> None:
        process = self._process
        if process is None or process.pid is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # in case it has not created its group yet

    def _end(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            self._kill()
            self._process.join()
            self._process = None
