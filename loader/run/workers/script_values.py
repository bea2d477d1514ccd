"""Values of the training script that its transform and decoders read, and whether they changed.

A worker process gets a copy of them when it starts, and keeps it: a curriculum that the script moves on in a global
would stand still there in silence. So `auto` compares them with those at the first batch before it starts workers, and
twice a second afterwards. Values are compared by a hash of their pickles, because most objects define no `==`.

The search follows the functions that the transform calls, within the user's own modules: globals by bytecode, variables
around a function, attributes of classes, the state of objects. It misses what `getattr` finds.
"""

import dis
import functools
import hashlib
import pickle
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from time import perf_counter
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from ...errors import Unpicklable
from ..recipe.decode import ByBucket
from ..recipe.recipe import Recipe
from .startup_message import CAPTURE_BYTES, refuse_gpu

MOST_ITEMS, MOST_OBJECTS = 1000, 10_000
"""Items of a container, and objects in all, that are searched for functions."""
MOST_SENT_BYTES = 2**20
"""Largest pickle of a module's global that is compared with a worker's."""
READ = "which the transform or a decoder reads"
MOST_SHOWN = 60
"""Characters of a value in an error."""
EVERY_S, COST_SHARE = 0.5, 0.01
"""Seconds between two comparisons, unless one costs more than this share of them."""
_STORES = ("STORE_GLOBAL", "DELETE_GLOBAL")
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_BY_IDENTITY = (
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


@dataclass(frozen=True, slots=True)
class _Fingerprint:
    digest: bytes
    """Hash of the pickle; empty if the value cannot be compared."""
    obstacle: str
    """Reason why it cannot be compared, or ""."""
    identified: tuple[object, ...]
    """Values that the pickle names by their address, which another may get once they are gone."""


@dataclass(frozen=True, slots=True)
class _ReadValue:
    name: str
    """Description for a person, such as "the global LEVEL of train"."""
    place: Mapping[str, Any]
    """Namespace that holds the value, such as a module's."""
    key: str
    """Name in `place`."""
    fingerprint: _Fingerprint
    """Fingerprint at the first batch."""


class SentValue(NamedTuple):
    """A global of a module that workers import by name."""

    module: str
    """Name of the module."""
    key: str
    """Name of the global."""
    data: bytes
    """Pickle of its value in the training."""


class ScriptValues:
    """The values that a recipe's transform and decoders read, as they are now."""

    def __init__(self, recipe: Recipe) -> None:
        begin_s = perf_counter()
        self._values = [
            _ReadValue(name, place, key, _fingerprint(place.get(key)))
            for name, place, key in _ValueSearch(recipe).places()
        ]
        self._wait_from(begin_s)

    def obstacle(self) -> str | None:
        """Return a value that cannot be compared with a later one, as text; None if there is none."""
        for value in self._values:
            if value.fingerprint.obstacle:
                return f"{value.name}, {READ}, cannot be compared with a later one ({value.fingerprint.obstacle})"
        return None

    def change(self) -> str | None:
        """Return the first value that is another one now, as text; None if there is none."""
        begin_s = perf_counter()
        text = next(filter(None, map(_change, self._values)), None)
        self._wait_from(begin_s)
        return text

    def change_if_due(self) -> str | None:
        """Return `change()` at times that cost the training less than COST_SHARE; None in between."""
        return self.change() if self._values and perf_counter() >= self._next_s else None

    def sent(self) -> tuple[SentValue, ...]:
        """Return the globals of modules that a worker process imports anew, for `check_values` there."""
        values: list[SentValue] = []
        for value in self._values:
            module = str(value.place.get("__name__"))
            is_global = module in sys.modules and vars(sys.modules[module]) is value.place
            if not is_global or module == "__main__":  # workers get the script by value
                continue
            with suppress(Exception):
                data = pickle.dumps(value.place[value.key], 5)
                if len(data) <= MOST_SENT_BYTES:
                    values.append(SentValue(module, value.key, data))
        return tuple(values)

    def _wait_from(self, begin_s: float) -> None:
        end_s = perf_counter()
        self._next_s = end_s + max(EVERY_S, (end_s - begin_s) / COST_SHARE)


def check_values(sent: Sequence[SentValue]) -> None:
    """Compare the training's globals with the ones that this process imported by itself.

    Raises: Unpicklable naming the first one that differs.
    """
    for value in sent:
        own = getattr(import_module(value.module), value.key, None)
        if pickle.dumps(own, 5) == value.data:
            continue
        theirs = pickle.loads(value.data)  # noqa: S301 - from the trainer
        try:
            is_equal = bool(own == theirs)  # a set's order differs from process to process
        except Exception:  # noqa: BLE001 - a user's `==`; arrays have no single answer
            is_equal = False
        if not is_equal:
            raise Unpicklable(
                f"the global {value.key} of {value.module} is {_short(theirs)} in the training, and {_short(own)} in a "
                "worker process, which imports the module anew; pass it to the transform instead"
            )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def _change(value: _ReadValue) -> str | None:
    if value.fingerprint.obstacle:
        return None
    now = _fingerprint(value.place.get(value.key))
    if now.digest == value.fingerprint.digest:
        return None
    return f"{value.name}, {READ}, changed since the first batch"


class _ValueSearch:
    """Finds the places of a recipe's values. Each function, class and object is searched once."""

    def __init__(self, recipe: Recipe) -> None:
        self._places: dict[tuple[int, str], tuple[str, Mapping[str, Any], str]] = {}
        self._own: set[tuple[int, str]] = set()
        self._done: dict[int, object] = {}
        self._pending: list[object] = []
        functions: dict[str, object] = {"transform": recipe.transform}
        if isinstance(recipe.decode, Mapping):
            functions |= {f"decode[{field!r}]": decoder for field, decoder in recipe.decode.items()}
        for name, function in [*functions.items()]:
            if isinstance(function, ByBucket) and isinstance(function.of, Mapping):
                functions |= {f"{name} of bucket {label!r}": value for label, value in function.of.items()}
        for name, function in functions.items():
            if function is None:
                continue
            self._pending.append(function)
            if not isinstance(function, _BY_IDENTITY) and not _is_penstocks(type(function)):
                # An object's own state, such as the strength of an augmentation.
                self._add(f"the state of {name}", {name: function}, name)

    def places(self) -> Iterator[tuple[str, Mapping[str, Any], str]]:
        """Yield (description, namespace, name in it) of each value."""
        while self._pending and len(self._done) < MOST_OBJECTS:
            value = self._pending.pop()
            if id(value) not in self._done:
                self._done[id(value)] = value
                self._visit(value)
        for place, entry in self._places.items():
            if place not in self._own:
                yield entry

    def _add(self, name: str, place: Mapping[str, Any], key: str) -> None:
        self._places.setdefault((id(place), key), (name, place, key))

    def _visit(self, value: object) -> None:
        if isinstance(value, functools.partial):
            self._pending += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, ByBucket):
            self._pending += value.of.values() if isinstance(value.of, Mapping) else [value.of]
        elif isinstance(value, MethodType):
            self._pending += [value.__func__, value.__self__]
        elif isinstance(value, FunctionType):
            self._visit_function(value)
        elif isinstance(value, type):
            self._visit_class(value)
        elif isinstance(value, staticmethod | classmethod | functools._lru_cache_wrapper):
            self._pending.append(value.__wrapped__)
        elif isinstance(value, property):
            self._pending.append(value.fget)
        elif isinstance(value, Mapping):
            self._pending += list(islice(value.values(), MOST_ITEMS))
        elif isinstance(value, list | tuple):
            self._pending += value[:MOST_ITEMS]
        elif hasattr(value, "__dict__") and not isinstance(value, _BY_IDENTITY):
            self._pending += [type(value), *vars(value).values()]

    def _visit_class(self, kind: type) -> None:
        if not _is_of_the_user(kind.__module__):
            return
        self._pending += kind.__bases__
        attributes = vars(kind)
        for name, value in attributes.items():
            self._pending.append(value)
            is_described = hasattr(type(value), "__get__")  # a method, or a slot
            if not name.startswith(("__", "_abc_")) and not is_described:
                self._add(f"the class attribute {kind.__qualname__}.{name}", attributes, name)

    def _visit_function(self, function: FunctionType) -> None:
        self._pending.append(getattr(function, "__wrapped__", None))
        namespace = function.__globals__
        is_of_the_user = _is_of_the_user(namespace.get("__name__"))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._visit_cell(f"the variable {name} of {function.__qualname__}", cell, is_read=is_of_the_user)
        if is_of_the_user:
            for code in _codes(function.__code__):
                self._visit_code(code, namespace)

    def _visit_cell(self, name: str, cell: CellType, *, is_read: bool) -> None:
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            return
        self._pending.append(value)
        if is_read and not isinstance(value, _BY_IDENTITY):
            self._add(name, _CellValue(cell), "")

    def _visit_code(self, code: CodeType, namespace: dict[str, Any]) -> None:
        module: ModuleType | None = None  # of the user, and loaded by the instruction before
        for step in dis.get_instructions(code):
            if step.opname in _STORES:  # such as a cache: each process has its own
                self._own.add((id(namespace), step.argval))
            value: Any = None
            if step.opname in _LOADS and step.argval in namespace:
                value = self._visit_global(namespace, step.argval)
            elif module is not None and step.opname in _ATTRIBUTES and step.argval in vars(module):
                value = self._visit_global(vars(module), step.argval)
            is_module = isinstance(value, ModuleType) and _is_of_the_user(value.__name__)
            module = value if is_module else None

    def _visit_global(self, namespace: dict[str, Any], name: str) -> Any:
        value = namespace[name]
        if not isinstance(value, ModuleType):
            self._pending.append(value)
            module = namespace.get("__name__", "__main__")
            where = "the script" if module == "__main__" else module
            self._add(f"the global {name} of {where}", namespace, name)
        return value


class _CellValue(dict[str, Any]):
    """A function's cell as a namespace."""

    def __init__(self, cell: CellType) -> None:
        super().__init__()
        self._cell = cell

    def get(self, key: str, default: Any = None) -> Any:
        return self._cell.cell_contents


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code, and the code of functions inside."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _is_penstocks(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("loader", "penstock")


@lru_cache(maxsize=1024)
def _is_of_the_user(module: str | None) -> bool:
    """Return whether a module is the script or lies beside it: not penstock's, Python's or an installed package's."""
    if module == "__main__":
        return True
    top = (module or "loader").partition(".")[0]
    if top in ("loader", "penstock") or top in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return not {"site-packages", "dist-packages"} & set(Path(file).parts)


class _TooLarge(Exception): ...


class _HashFile:
    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self._nbytes = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._nbytes += size
        if self._nbytes > CAPTURE_BYTES:
            raise _TooLarge(f"it holds more than {CAPTURE_BYTES // 2**20} MiB")
        self.hash.update(data)
        return size


class _Pickler(pickle.Pickler):
    def __init__(self, file: _HashFile) -> None:
        super().__init__(file, 5)
        self.identified: list[object] = []

    def reducer_override(self, value: Any) -> Any:
        refuse_gpu(value)
        if isinstance(value, _BY_IDENTITY) and value is not _address:
            self.identified.append(value)
            return _address, (id(value),)
        return NotImplemented


def _address(number: int) -> int:
    """Stand for a value in a pickle that nothing loads."""
    return number


def _fingerprint(value: object) -> _Fingerprint:
    file = _HashFile()
    pickler = _Pickler(file)
    try:
        pickler.dump(value)
    except Exception as error:  # noqa: BLE001 - pickling an object of the user's may raise anything
        return _Fingerprint(b"", f"{type(error).__name__}: {error}", ())
    return _Fingerprint(file.hash.digest(), "", tuple(pickler.identified))
