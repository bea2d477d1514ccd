"""Name the values of a state whose stored names are equal."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from loader.errors import InvalidField

Path = tuple[str, ...]
"""Keys that lead to a value."""


@contextmanager
def names_apart(state: Mapping[str, Any]) -> Iterator[None]:
    """Raise InvalidField instead of torch's ValueError if two values share a name."""
    try:
        yield
    except ValueError as error:
        paths: dict[str, Path] = {}
        for path in _paths(state):
            name = ".".join(path)
            other = paths.setdefault(name, path)
            if other != path:
                raise InvalidField(
                    f"the state's values at {_subscripts(other)} and {_subscripts(path)} would both be stored as "
                    f"{name!r}, because torch joins the keys of nested dicts with dots: rename one of them",
                    what=name,
                    given=[_subscripts(other), _subscripts(path)],
                    accepted="one value of a name",
                ) from error
        # Another ValueError of torch, which names its cause itself.
        raise


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the keys that lead to each value of a nested state. path: keys of `value` itself."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _paths(inner, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _paths(inner, (*path, str(number)))
    else:
        yield path


def _subscripts(path: Path) -> str:
    return "".join(f"[{key!r}]" for key in path)
