"""Search for the values that a transform reads of its script: globals, closures, attributes of classes, own state.

The search follows the functions that the transform calls, within the user's own modules; globals are found by
bytecode. It misses what `getattr` finds.
"""

import dis
import functools
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from ..recipe.decode import ByBucket
from ..recipe.recipe import Recipe

MOST_ITEMS = 1000
"""Items of a container that are searched for functions."""
MOST_OBJECTS = 10_000
"""Objects that are searched in all."""
BY_IDENTITY = (
    FunctionType,
    BuiltinFunctionType,
    ModuleType,
    type,
    functools._lru_cache_wrapper,
    type(threading.Lock()),
    type(threading.RLock()),
    threading.local,
)
"""Types whose values are the same only if they are the same object. Each process has its own locks."""
_STORES = ("STORE_GLOBAL", "DELETE_GLOBAL")
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_OURS = ("loader", "penstock")
_INSTALLED = frozenset({"site-packages", "dist-packages"})


class ValuePlace(NamedTuple):
    """Place of a value of the script, which is read again later."""

    name: str
    """Description for a person, such as "the global LEVEL of train"."""
    namespace: Mapping[str, Any]
    """Namespace that holds the value, such as a module's."""
    key: str
    """Name in the namespace."""

    def value(self) -> Any:
        return self.namespace.get(self.key)


def value_places(recipe: Recipe) -> list[ValuePlace]:
    """Return the places of the values that the recipe's transform and decoders read."""
    search = _ValueSearch()
    for name, function in _functions(recipe).items():
        search.begin(name, function)
    return search.places()


def _functions(recipe: Recipe) -> dict[str, object]:
    """Return the transform and the decoders, by description."""
    functions: dict[str, object] = {}
    if recipe.transform is not None:
        functions["transform"] = recipe.transform
    if isinstance(recipe.decode, Mapping):
        for field, decoder in recipe.decode.items():
            functions[f"decode[{field!r}]"] = decoder
    for name, function in list(functions.items()):
        if isinstance(function, ByBucket) and isinstance(function.of, Mapping):
            for label, value in function.of.items():
                functions[f"{name} of bucket {label!r}"] = value
    return functions


class _ValueSearch:
    """Finds places. Each function, class and object is searched once."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, str], ValuePlace] = {}
        # Globals that the transform assigns, such as a cache: each process has its own.
        self._assigned: set[tuple[int, str]] = set()
        self._searched: dict[int, object] = {}
        self._pending: list[object] = []

    def begin(self, name: str, function: object) -> None:
        self._pending.append(function)
        if isinstance(function, BY_IDENTITY):
            return
        package = type(function).__module__.partition(".")[0]
        if package in _OURS:
            return
        # An object's own state, such as the strength of an augmentation.
        namespace = {name: function}
        self._add_place(f"the state of {name}", namespace, name)

    def places(self) -> list[ValuePlace]:
        while self._pending and len(self._searched) < MOST_OBJECTS:
            value = self._pending.pop()
            if id(value) not in self._searched:
                self._searched[id(value)] = value
                self._search(value)
        places: list[ValuePlace] = []
        for key, place in self._places.items():
            if key not in self._assigned:
                places.append(place)
        return places

    def _add_place(self, name: str, namespace: Mapping[str, Any], key: str) -> None:
        place = ValuePlace(name, namespace, key)
        self._places.setdefault((id(namespace), key), place)

    def _search(self, value: object) -> None:
        if isinstance(value, FunctionType):
            self._search_function(value)
        elif isinstance(value, type):
            self._search_class(value)
        else:
            self._pending += _parts(value)

    def _search_class(self, kind: type) -> None:
        if not is_of_the_user(kind.__module__):
            return
        self._pending += kind.__bases__
        attributes = vars(kind)
        for name, value in attributes.items():
            # Searched even if not compared itself: a method reads other values.
            self._pending.append(value)
            if name.startswith(("__", "_abc_")):
                continue
            if hasattr(type(value), "__get__"):  # a method, or a slot
                continue
            description = f"the class attribute {kind.__qualname__}.{name}"
            self._add_place(description, attributes, name)

    def _search_function(self, function: FunctionType) -> None:
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            self._pending.append(wrapped)
        namespace = function.__globals__
        is_user_code = is_of_the_user(namespace.get("__name__"))
        cells = function.__closure__ or ()
        names = function.__code__.co_freevars
        for name, cell in zip(names, cells, strict=True):
            description = f"the variable {name} of {function.__qualname__}"
            # (the cells of a library's decorator hold the user's function)
            self._search_cell(description, cell, is_read=is_user_code)
        if not is_user_code:
            return
        for code in _codes(function.__code__):
            self._search_code(code, namespace)

    def _search_cell(self, name: str, cell: CellType, *, is_read: bool) -> None:
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            return
        self._pending.append(value)
        if is_read and not isinstance(value, BY_IDENTITY):
            self._add_place(name, _CellNamespace(cell), "")

    def _search_code(self, code: CodeType, namespace: dict[str, Any]) -> None:
        module: ModuleType | None = None  # of the user, and loaded by the instruction before
        for step in dis.get_instructions(code):
            if step.opname in _STORES:
                self._assigned.add((id(namespace), step.argval))
            value: Any = None
            if step.opname in _LOADS:
                value = self._search_global(namespace, step.argval)
            elif module is not None and step.opname in _ATTRIBUTES:
                value = self._search_global(vars(module), step.argval)
            module = None
            if isinstance(value, ModuleType) and is_of_the_user(value.__name__):
                module = value

    def _search_global(self, namespace: dict[str, Any], name: str) -> Any:
        """Add a global unless it is a module; return its value."""
        if name not in namespace:
            return None
        value = namespace[name]
        if isinstance(value, ModuleType):
            return value
        self._pending.append(value)
        module = namespace.get("__name__", "__main__")
        if module == "__main__":
            module = "the script"
        self._add_place(f"the global {name} of {module}", namespace, name)
        return value


class _CellNamespace(dict[str, Any]):
    """A function's cell as a namespace."""

    def __init__(self, cell: CellType) -> None:
        super().__init__()
        self._cell = cell

    def get(self, key: str, default: Any = None) -> Any:
        return self._cell.cell_contents


def _parts(value: object) -> list[object]:
    """Return objects inside, some of which the transform may call."""
    match value:
        case functools.partial():
            return [
                value.func,
                *value.args,
                *value.keywords.values(),
            ]
        case ByBucket():
            return [value.of]
        case MethodType():
            return [
                value.__func__,
                value.__self__,
            ]
        case staticmethod() | classmethod() | functools._lru_cache_wrapper():
            return [value.__wrapped__]
        case property():
            return [value.fget]
        case Mapping():
            items = islice(value.values(), MOST_ITEMS)
            return list(items)
        case list() | tuple():
            items = islice(value, MOST_ITEMS)
            return list(items)
    if isinstance(value, BY_IDENTITY):
        return []
    if not hasattr(value, "__dict__"):
        return []
    attributes = vars(value)
    return [
        type(value),
        *attributes.values(),
    ]


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code, and the code of functions inside."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


@lru_cache(maxsize=1024)
def is_of_the_user(module: str | None) -> bool:
    """Return whether a module is the script or lies beside it: not penstock's, Python's or an installed package's."""
    if module is None:
        return False
    if module == "__main__":
        return True
    top = module.partition(".")[0]
    if top in _OURS or top in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return True
    return _INSTALLED.isdisjoint(Path(file).parts)
