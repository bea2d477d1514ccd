"""Find the attribute of a dataset that cannot be pickled."""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

MOST_PARTS = 64
"""Parts of one object that are tried; a list of a million items has none that differs from the first."""
MOST_DEPTH = 8
MOST_TRIES = 500


def unpicklable_part(value: Any, pickles: Callable[[Any], bool]) -> tuple[str, Any]:
    """Return (path, part) of the innermost part that cannot be pickled, such as (".reader.lock", the lock).

    The path is "" for the value itself. pickles: returns whether a part can be pickled.
    """
    path = ""
    tries = 0
    for _ in range(MOST_DEPTH):
        for step, part in islice(_parts(value), MOST_PARTS):
            tries += 1
            if tries > MOST_TRIES:
                return path, value
            if not pickles(part):
                path += step
                value = part
                break
        else:
            return path, value
    return path, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (step of the path, part) of an object's attributes, or a container's items."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f"[{key!r}]", item
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield f"[{number}]", item
    else:
        for name, attribute in getattr(value, "__dict__", {}).items():
            yield f".{name}", attribute
