"""The code of a training's recipe, in a process of its own: it is imported and called, and answers questions."""

import importlib
import importlib.util
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import loader
from loader.errors import InvalidRuntime, PenstockError, TransformFailed
from loader.run.workers.parent_watch import Watch, descriptor_of_parent
from loader.storage.shared.requests import tried_while

from ..freed_memory import give_back
from .replays import Replays

FORM = "accepted: module:function, such as train:recipe, or file.py:function"


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
    except SystemExit as error:
        raise TransformFailed(
            f"--recipe {recipe} ended its process (SystemExit: {error}): its module is imported, so what starts the "
            "training stands below `if __name__ == '__main__':`"
        ) from error
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
        sys.path.insert(0, os.getcwd())  # as python -m does: a train.py beside the caller
        return importlib.import_module(module)
    path = Path(module)
    if not path.is_file():
        raise InvalidRuntime(f"--recipe {module}: there is no such file; {FORM}")
    sys.path.insert(0, str(path.resolve().parent))  # as python does: modules beside it
    names, folder = [path.stem], path.resolve().parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    if len(names) > 1:  # of a package: its relative imports are those of `python -m`
        sys.path.insert(0, str(folder))
        return importlib.import_module(".".join(names))
    name = path.stem if path.stem not in sys.modules else f"penstock_recipe_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # its name ends in .py
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made  # so that functions of it can be pickled, and find their module
    spec.loader.exec_module(made)
    return made


def serve_recipe(
    pipe: Connection, root: loader.Root, recipe: str, quiet: bool, viewer: int, patience_s: float
) -> None:
    """Answer questions until the other end is closed, or the viewer's process is gone.

    patience_s: seconds in which a store that fails is asked again: its error is told before the viewer gives up.
    """
    with suppress(OSError):
        os.setpgid(0, 0)  # with all that it starts one group, which is ended together
    # (Processes that it starts would inherit SIG_IGN.)
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    Watch(socket.socket(fileno=os.dup(pipe.fileno())), descriptor_of_parent(viewer))
    _print_to(os.open(os.devnull, os.O_WRONLY) if quiet else 2)
    # As in the workers of torch's DataLoader: threads that meet at the end of each small operation on a sample take
    # twenty times as long on a busy machine. The recipe, or the environment, may ask for more.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # A batch is touched for the first time at every look: in pages of 4 KiB that takes longer than to fill it.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
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
                with tried_while(lambda spent_s: spent_s < patience_s):
                    answer = _packed(True, getattr(replays, verb)(*given))
            except PenstockError as error:
                answer = _packed(False, error)
            except Exception as error:  # noqa: BLE001 - of the user's code, told where its value would be
                answer = _packed(False, TransformFailed(f"{type(error).__name__}: {error}"))
            pipe.send_bytes(answer)
            del answer
            if verb in ("batch", "part"):
                give_back()
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


def _print_to(file: int) -> None:
    """Let everything that is printed go there: the viewer's stdout may be JSON."""
    os.dup2(file, 1)
    os.dup2(file, 2)
