"""Values of the training script that its transform and decoders read, and whether they changed.

A worker process gets a copy of them when it starts, and keeps it: a curriculum that the script moves on in a global
would stand still there in silence. So `auto` compares them with the values at the first batch before it starts workers,
and twice a second afterwards. Values are compared by a hash of their pickles, because most objects define no `==`.
"""

import copyreg
import hashlib
import io
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from time import perf_counter
from types import MappingProxyType
from typing import Any

from ...errors import Unpicklable
from ..recipe.recipe import Recipe
from .startup_message import CAPTURE_BYTES, SentValue, refuse_gpu
from .value_search import BY_IDENTITY, ValuePlace, value_places

EVERY_S = 0.5
"""Seconds between two comparisons, unless one takes long."""
COST_SHARE = 0.01
"""Largest share of the training's time that comparisons take."""
MOST_SENT_BYTES = 2**20
"""Largest pickle of a module's global that is compared with a worker's."""
MOST_SHOWN = 60
"""Characters of a value in an error."""
READ = "which the transform or a decoder reads"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Hash of a value, to compare with a later one."""

    digest: bytes
    """Hash of the pickle; empty if the value cannot be compared."""
    obstacle: str
    """Reason why it cannot be compared, or ""."""
    identified: tuple[object, ...]
    """Values that the pickle names by their address, which another may get once they are gone."""


@dataclass(frozen=True, slots=True)
class _ScriptValue:
    place: ValuePlace
    fingerprint: Fingerprint
    """Fingerprint at the first batch."""

    def changes(self) -> bool:
        """Return whether the value is another one now."""
        if self.fingerprint.obstacle:
            return False
        now = fingerprint(self.place.value())
        return now.digest != self.fingerprint.digest


class ScriptValues:
    """The values that a recipe's transform and decoders read, as they are now."""

    def __init__(self, recipe: Recipe) -> None:
        begin_s = perf_counter()
        self._values: list[_ScriptValue] = []
        for place in value_places(recipe):
            self._values.append(_ScriptValue(place, fingerprint(place.value())))
        self._measure_wait(begin_s)

    def obstacle(self) -> str | None:
        """Return a value that cannot be compared with a later one, as text; None if there is none."""
        for value in self._values:
            reason = value.fingerprint.obstacle
            if reason:
                return f"{value.place.name}, {READ}, cannot be compared with a later one ({reason})"
        return None

    def change(self) -> str | None:
        """Return the first value that is another one now, as text; None if there is none."""
        begin_s = perf_counter()
        text: str | None = None
        for value in self._values:
            if value.changes():
                text = f"{value.place.name}, {READ}, changed since the first batch"
                break
        self._measure_wait(begin_s)
        return text

    def change_if_due(self) -> str | None:
        """Return `change()` at times that cost the training less than COST_SHARE; None in between."""
        if not self._values or perf_counter() < self._next_s:
            return None
        return self.change()

    def sent(self) -> tuple[SentValue, ...]:
        """Return the globals of modules that a worker process imports anew, for `check_values` there."""
        values: list[SentValue] = []
        for value in self._values:
            sent_value = _send_value(value.place)
            if sent_value is not None:
                values.append(sent_value)
        return tuple(values)

    def _measure_wait(self, begin_s: float) -> None:
        end_s = perf_counter()
        cost_s = end_s - begin_s
        self._next_s = end_s + max(EVERY_S, cost_s / COST_SHARE)


def _send_value(place: ValuePlace) -> SentValue | None:
    """Return a module's global, unless it is large or cannot be pickled."""
    module = str(place.namespace.get("__name__"))
    if module == "__main__" or module not in sys.modules:  # workers get the script by value
        return None
    if vars(sys.modules[module]) is not place.namespace:
        return None
    try:
        data = pickle.dumps(place.value(), 5)
    except Exception:  # noqa: BLE001 - pickling an object of the user's may raise anything
        return None
    if len(data) > MOST_SENT_BYTES:
        return None
    return SentValue(module, place.key, data)


def check_values(sent: Sequence[SentValue]) -> None:
    """Compare the training's globals with the ones that this process imported by itself.

    Raises: Unpicklable naming the first one that differs.
    """
    for value in sent:
        module = import_module(value.module)
        own = getattr(module, value.key, None)
        if pickle.dumps(own, 5) == value.data:
            continue
        theirs = pickle.loads(value.data)  # noqa: S301 - from the trainer
        if not _is_equal(own, theirs):
            raise Unpicklable(
                f"the global {value.key} of {value.module} is {_short(theirs)} in the training, and {_short(own)} in a "
                "worker process, which imports the module anew; pass it to the transform instead",
                what=value.key,
                where=value.module,
                given=_short(own),
                accepted=_short(theirs),
            )


def _is_equal(own: Any, theirs: Any) -> bool:
    """Return whether both are equal by `==`: the order of a set differs from process to process."""
    try:
        return bool(own == theirs)
    except Exception:  # noqa: BLE001 - a user's `==`; arrays have no single answer
        return False


def _short(value: object) -> str:
    text = repr(value)
    if len(text) > MOST_SHOWN:
        text = f"{text[:MOST_SHOWN]}..."
    return text


class _TooLarge(Exception): ...


class _HashFile:
    """A file that keeps the hash of its bytes only."""

    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self._nbytes = 0

    def write(self, data: Any) -> int:
        nbytes = memoryview(data).nbytes
        self._nbytes += nbytes
        if self._nbytes > CAPTURE_BYTES:
            raise _TooLarge(f"it holds more than {CAPTURE_BYTES // 2**20} MiB")
        self.hash.update(data)
        return nbytes


class _FingerprintPickler(pickle.Pickler):
    def __init__(self, file: _HashFile) -> None:
        super().__init__(file, 5)
        self.identified: list[object] = []

    def reducer_override(self, value: Any) -> Any:
        """Return how to pickle a value: (function, its arguments), or NotImplemented for the usual way.

        Values that are compared by identity are pickled as their addresses, and held, so that no new value gets one.
        """
        refuse_gpu(value)
        if value is _address:
            # Itself a function, and so compared by identity: without this it would be pickled as a call of itself.
            return NotImplemented
        if isinstance(value, MappingProxyType):  # pickle refuses it
            return dict, (dict(value),)
        if not isinstance(value, BY_IDENTITY) and not _is_opaque(value):
            return NotImplemented
        self.identified.append(value)
        return _address, (id(value),)


def _is_opaque(value: object) -> bool:
    """Return whether a value is the same only if it is the same object, because no pickle holds what is in it.

    Compiled parsers and decoders are such values: a `struct.Struct`, a decompressor, a lookup in a database. Each
    process imports its own. Files and iterators are no such values: their positions move as they are read.
    """
    kind = type(value)
    if kind in copyreg.dispatch_table:  # such as a regular expression
        return False
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__:
        return False
    if kind.__module__ == "builtins" or isinstance(value, io.IOBase) or hasattr(kind, "__next__"):
        return False
    try:
        value.__reduce_ex__(5)
    except TypeError:  # "cannot pickle 'X' object"
        return True
    return False


def _address(number: int) -> int:
    """Stand for a value in a pickle that nothing loads."""
    return number


def fingerprint(value: object) -> Fingerprint:
    """Return the fingerprint of a value as it is now."""
    file = _HashFile()
    pickler = _FingerprintPickler(file)
    try:
        pickler.dump(value)
    except Exception as error:  # noqa: BLE001 - pickling an object of the user's may raise anything
        return Fingerprint(b"", f"{type(error).__name__}: {error}", ())
    return Fingerprint(file.hash.digest(), "", tuple(pickler.identified))
