"""A process of its own for a training's recipe: code of the user's can hang or crash it, and nothing else.

The process is spawned at the first question. One that does not answer within the limit is killed, and the next question
starts another.
"""

import importlib
import importlib.util
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import Any, cast

import loader
from loader.errors import InvalidRuntime, PenstockError, TransformFailed, WorkerFailed
from loader.run.replay import Functions

from .replayed_values import BatchValues, Setting, SlotValues, T, Take
from .replays import Replays

LIMIT_S = 30.0
"""Seconds that a question may take; the first one also imports the recipe's module."""
START_S = 120.0
"""Seconds that the start may take: `import torch` alone is many on a cold disk."""
_FORM = "accepted: module:function, such as train:recipe, or file.py:function"


class RecipeProcess:
    """A `Replayer` through a recipe, in a process of its own. Thread-safe."""

    def __init__(
        self, root: loader.Root, recipe: str, *, limit_s: float = LIMIT_S, quiet: bool = False
    ) -> None:
        """recipe: "module:function" or "file.py:function", of no arguments. Raises: InvalidRuntime for another form.

        quiet: True drops the text that it prints.
        """
        module, _, function = recipe.rpartition(":")
        if not module or not function.isidentifier():
            raise InvalidRuntime(f"--recipe {recipe!r}; {_FORM}")
        self.recipe = recipe
        self._root, self._limit_s, self._quiet = root, limit_s, quiet
        self._lock = Lock()
        self._functions: dict[Setting, Functions] = {}
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None

    def slot(self, setting: Setting, step: int, slot: int, take: Take[SlotValues, T]) -> T:
        """Return what `take` makes of a slot, in the process."""
        return cast(T, self._ask("slot", setting, step, slot, take))

    def batch(self, setting: Setting, step: int, rank: int, world_size: int, take: Take[BatchValues, T]) -> T:
        """Return what `take` makes of a rank's part of a step, in the process."""
        return cast(T, self._ask("batch", setting, step, rank, world_size, take))

    def functions(self, setting: Setting) -> Functions:
        """Return facts of the recipe's decoders and transforms."""
        found = self._functions.get(setting)
        if found is None:  # of the process's life: its modules are imported once
            found = self._functions[setting] = cast(Functions, self._ask("functions", setting))
        return found

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _ask(self, verb: str, *given: object) -> object:
        with self._lock:
            pipe = self._pipe if self._process is not None and self._process.is_alive() else None
            pipe = pipe or self._start()
            try:
                pipe.send_bytes(pickle.dumps((verb, given)))
                answered, value = self._answer(pipe, self._limit_s)
            except (EOFError, OSError) as error:
                self._end()
                raise WorkerFailed(
                    f"the process of --recipe {self.recipe} died while it made a {verb}; the next question "
                    "starts another"
                ) from error
        if not answered:
            raise cast(BaseException, value)
        return value

    def _start(self) -> Connection:
        self._end()
        self._functions.clear()
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=_serve, args=(theirs, self._root, self.recipe, self._quiet), daemon=True
        )
        self._process.start()
        theirs.close()
        self._pipe = ours
        answered, value = self._answer(ours, START_S)
        if not answered:
            self._end()
            raise cast(BaseException, value)
        return ours

    def _answer(self, pipe: Connection, limit_s: float) -> tuple[bool, object]:
        """Return (True, value) or (False, error). Raises: EOFError; WorkerFailed past the limit."""
        if not pipe.poll(limit_s):
            self._end()
            raise WorkerFailed(
                f"--recipe {self.recipe} gave no answer in {limit_s:g} s; its process was ended, and the next "
                "question starts another. Stored and decoded values are shown without it"
            )
        return cast(tuple[bool, object], pickle.loads(pipe.recv_bytes()))  # noqa: S301 - of our own process

    def _end(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def load_recipe(recipe: str) -> Mapping[str, Any]:
    """Import a recipe and call it. Raises: InvalidRuntime; TransformFailed where the user's code raises."""
    module, _, name = recipe.rpartition(":")
    function: Callable[[], Any] | None
    try:
        function = getattr(_imported(module), name, None)
        found = function() if callable(function) else None
    except PenstockError:
        raise
    except Exception as error:
        raise TransformFailed(f"--recipe {recipe} raised {type(error).__name__}: {error}") from error
    if not isinstance(found, Mapping):
        said = "there is no such function" if function is None else f"it gave {type(found).__name__}"
        raise InvalidRuntime(
            f"--recipe {recipe}: {said}; a function without arguments is needed that returns the Loader's arguments, "
            "such as {'decode': True, 'transform': augment}"
        )
    return found


def load_tokenizers(recipe: str) -> Mapping[str, Any]:
    """Return field -> tokenizer, of the function `tokenizers` beside a recipe; nothing where there is none.

    Raises: InvalidRuntime; TransformFailed where the user's code raises.
    """
    function = getattr(_imported(recipe.rpartition(":")[0]), "tokenizers", None)
    if not callable(function):
        return {}
    try:
        found = function()
    except Exception as error:
        raise TransformFailed(
            f"tokenizers() of --recipe {recipe} raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, Mapping):
        raise InvalidRuntime(
            f"tokenizers() of --recipe {recipe} gave {type(found).__name__}; a dict of field -> tokenizer is needed, "
            "such as {'tokens.npy': tokenizer}, which has decode(list of ids)"
        )
    return found


@cache  # a file that is run again makes other classes of the same names
def _imported(module: str) -> Any:
    if not module.endswith(".py"):
        sys.path.insert(0, "")  # as python -m does: a train.py beside the caller
        return importlib.import_module(module)
    path = Path(module)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InvalidRuntime(f"--recipe {module}: there is no such file; {_FORM}")
    made = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = made  # so that functions of it can be pickled, and find their module
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(made)
    return made


def _serve(pipe: Connection, root: loader.Root, recipe: str, quiet: bool) -> None:
    """Answer questions until the other end is closed."""
    if quiet:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    # As in the workers of torch's DataLoader: threads that meet at the end of each small operation on a sample take
    # twenty times as long on a busy machine. The recipe, or the environment, may ask for more.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        replays = Replays(root, load_recipe(recipe), load_tokenizers(recipe))
    except PenstockError as error:
        pipe.send_bytes(_packed(False, error))
        return
    pipe.send_bytes(_packed(True, None))
    with suppress(EOFError, OSError):  # the viewer is gone
        while True:
            verb, given = pickle.loads(pipe.recv_bytes())  # noqa: S301 - of the viewer
            try:
                answer = _packed(True, getattr(replays, verb)(*given))
            except PenstockError as error:
                answer = _packed(False, error)
            except Exception as error:  # noqa: BLE001 - of the user's code, told where its value would be
                answer = _packed(False, TransformFailed(f"{type(error).__name__}: {error}"))
            pipe.send_bytes(answer)
    replays.close()


def _packed(answered: bool, value: object) -> bytes:
    if isinstance(value, BaseException):
        value = _plain(value)
    try:
        return pickle.dumps((answered, value), pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001 - of the user's classes
        told = f"a value of the transform cannot leave its process: {type(error).__name__}: {error}"
        return pickle.dumps((False, TransformFailed(told)))


def _plain(error: BaseException) -> BaseException:
    """Return the error without its causes, which may be of classes that only the recipe knows."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
