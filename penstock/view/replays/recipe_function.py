"""Import the code that --recipe names: a training's decoders and transform, its tokenizers and its datasets.

Only a command line names such code; a stored plan, a run log or a request never does.
"""

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import loader
from loader.errors import EmptyView, InvalidPlan, InvalidRuntime, PenstockError, PlanMismatch, TransformFailed
from loader.order.sources.items_view import ItemsView, escape_text

FORM = "accepted: module:function, such as train:recipe, or file.py:function"
RETURNS = (
    "name a function without arguments that returns the Loader's arguments, such as {'decode': True, 'transform': "
    "augment}, and the plan's datasets, such as {'items': {'photos': Photos()}}; or only the dataset"
)
MOST_CAUSES = 4
"""Causes of an error that are shown."""


def load_recipe(recipe: str) -> Mapping[str, Any]:
    """Return a recipe's Loader arguments, with its datasets as "items".

    Raises: InvalidRuntime; TransformFailed if its module or function raises.
    """
    function = _recipe_function(recipe)
    try:
        result = function()
    except PenstockError:
        raise
    except (Exception, SystemExit) as error:
        raise _failure(recipe, error) from error
    if isinstance(result, Mapping):
        return result
    is_text = isinstance(result, str | bytes)
    has_items = hasattr(result, "__getitem__") and hasattr(result, "__len__")
    is_dataset = has_items and not is_text
    if isinstance(result, ItemsView) or is_dataset:
        return {"items": result}
    kind = type(result).__name__
    message = f"--recipe {recipe}: it returned {kind}; {RETURNS}"
    raise InvalidRuntime(message, what="result of --recipe", where=recipe, given=kind)


def _recipe_function(recipe: str) -> Callable[[], Any]:
    """Import the recipe's module; return its function. Raises: as `load_recipe`."""
    module, _, name = recipe.rpartition(":")
    try:
        imported = _import_module(module)
    except PenstockError:
        raise
    except ImportError as error:
        folder = os.getcwd()
        if module.endswith(".py"):
            folder = str(Path(module).resolve().parent)
        raise TransformFailed(
            f"--recipe {recipe}: the module {module!r} cannot be imported from the folder {folder}: "
            f"{error_text(error)}",
            what="module",
            where=folder,
            given=module,
        ) from error
    except (Exception, SystemExit) as error:
        raise _failure(recipe, error) from error
    function: Callable[[], Any] | None = getattr(imported, name, None)
    if not callable(function):
        message = f"--recipe {recipe}: there is no such function; {RETURNS}"
        raise InvalidRuntime(message, what="function", where=module, given=name)
    return function


def _failure(recipe: str, error: BaseException) -> TransformFailed:
    if isinstance(error, SystemExit):
        return TransformFailed(
            f"--recipe {recipe} ended its process (SystemExit: {error}): its module is imported, so start the "
            "training below `if __name__ == '__main__':`",
            what="--recipe",
            where=recipe,
            given=f"SystemExit: {error}",
        )
    message = f"--recipe {recipe} raised {error_text(error)}"
    return TransformFailed(message, what="--recipe", where=recipe, given=f"{type(error).__name__}: {error}")


def error_text(error: BaseException) -> str:
    """Return an error of the user's code as one text: its notes, the line that raised it, and its causes."""
    kind = type(error).__name__
    notes = getattr(error, "__notes__", ())
    parts = [f"{kind}: {error}", *notes]
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        last = frames[-1]
        parts.append(f"raised in {last.name} at {last.filename}:{last.lineno}")
    cause = error.__cause__ or error.__context__
    for _ in range(MOST_CAUSES):
        if cause is None:
            break
        kind = type(cause).__name__
        parts.append(f"caused by {kind}: {cause}")
        cause = cause.__cause__ or cause.__context__
    return "; ".join(parts)


def load_tokenizers(recipe: str) -> Mapping[str, Any]:
    """Return field -> tokenizer, of `tokenizers` in the recipe's module.

    Raises: InvalidRuntime; TransformFailed if the user's code raises.
    """
    module, _, _ = recipe.rpartition(":")
    imported = _import_module(module)
    function = getattr(imported, "tokenizers", None)
    if not callable(function):
        return {}
    try:
        by_field = function()
    except Exception as error:
        raise TransformFailed(
            f"tokenizers() of --recipe {recipe} raised {type(error).__name__}: {error}",
            what="tokenizers()",
            where=recipe,
            given=f"{type(error).__name__}: {error}",
        ) from error
    if not isinstance(by_field, Mapping):
        raise InvalidRuntime(
            f"tokenizers() of --recipe {recipe} returned {type(by_field).__name__}; return a dict "
            "of field -> tokenizer with decode(list of ids), such as {'tokens.npy': tokenizer}",
            what="tokenizers()",
            where=recipe,
            given=type(by_field).__name__,
            accepted="a dict",
        )
    return by_field


@cache  # running a file twice would define its classes twice
def _import_module(module: str) -> Any:
    if not module.endswith(".py"):
        sys.path.insert(0, os.getcwd())  # as `python -m` does, to find a train.py in the working directory
        return importlib.import_module(module)
    path = Path(module)
    if not path.is_file():
        message = f"--recipe {module}: there is no such file; {FORM}"
        raise InvalidRuntime(message, what="file of --recipe", given=module)
    sys.path.insert(0, str(path.resolve().parent))  # as python does, to find modules in the script's folder
    names = [path.stem]  # of the package's folders, then of the module
    folder = path.resolve().parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    if len(names) > 1:  # in a package, relative imports work as with `python -m`
        sys.path.insert(0, str(folder))
        return importlib.import_module(".".join(names))
    name = path.stem
    if name in sys.modules:
        name = f"penstock_recipe_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # because the name ends in .py
    assert spec.loader is not None
    imported = importlib.util.module_from_spec(spec)
    sys.modules[name] = imported  # pickle looks up functions here
    spec.loader.exec_module(imported)
    return imported


class RecipeDatasets:
    """The datasets of a recipe, each opened once in this process."""

    def __init__(self, recipe: Mapping[str, Any], title: str) -> None:
        """recipe: result of `load_recipe`. title: text that names it in errors."""
        self._recipe = recipe
        self._title = title
        self._views: dict[str, ItemsView] = {}

    def of_plan(self, plan: "loader.Plan") -> dict[str, ItemsView]:
        """Return name of the data -> its dataset, for `loader.open_plan(items=)`.

        Raises: PlanMismatch if the recipe lacks a dataset of the plan; as `loader.items`; errors of the user's code,
        with a note that names the dataset.
        """
        views: dict[str, ItemsView] = {}
        for source, planned in plan.sources.items():
            if not isinstance(planned.view, ItemsView):
                continue
            name = planned.view.name
            if name not in self._views:
                dataset = self._dataset(plan, source, name)
                self._views[name] = self._open(name, dataset)
            views[name] = self._views[name]
        return views

    def _dataset(self, plan: "loader.Plan", source: str, name: str) -> Any:
        named = self._recipe.get("items")
        if named is not None and not isinstance(named, Mapping):
            # One dataset without a name can only be the plan's only one.
            names: set[str] = set()
            for planned in plan.sources.values():
                if isinstance(planned.view, ItemsView):
                    names.add(planned.view.name)
            if len(names) == 1:
                return named
            shown_names = [f"'{escape_text(other)}'" for other in sorted(names)]
            listed = ", ".join(shown_names)
            raise PlanMismatch(
                f"{self._title} returns one dataset, and the plan has {listed}; return a dict of name -> dataset"
            )
        if named is None:
            arguments = inspect.signature(loader.Loader).parameters
            named = {key: value for key, value in self._recipe.items() if key not in arguments}
        for key in (name, source):
            if key in named:
                return named[key]
        listed = ", ".join(repr(key) for key in named) or "none"
        raise PlanMismatch(
            f"{self._title} returns no dataset for source '{escape_text(source)}' of the plan, which is "
            f"'{escape_text(name)}'; it has {listed}. Return {{'items': {{name: dataset}}}}"
        )

    def _open(self, name: str, dataset: Any) -> ItemsView:
        try:
            if isinstance(dataset, ItemsView):
                view = dataset
            else:
                view = loader.items(dataset)
            source = view.source
            if source is None or not source.is_factory:
                return view
            # Called here once: each replay would call it again.
            opened = replace(source, dataset=source.dataset(), is_factory=False)
        except (InvalidPlan, EmptyView) as error:
            kind = type(error)
            raise kind(f"{self._title}, dataset '{escape_text(name)}': {error}") from error
        except PenstockError:
            raise
        except Exception as error:
            error.add_note(f"while opening the dataset '{escape_text(name)}' of {self._title}")
            raise
        return view.over(opened)
