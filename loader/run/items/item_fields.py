"""Turn an item of a dataset into a sample: field -> value."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import InvalidSample

SINGLE = "item"
"""Field of an item that is neither a mapping nor a tuple."""
ACCEPTED = "a mapping, a tuple or a single value is needed"


def fields_of(
    item: Any,
    names: Sequence[str] | None,
    dataset: Any = None,
) -> dict[str, Any]:
    """Return the fields of an item.

    A mapping keeps its names, and a mapping inside adds them with dots: "a.b". A named tuple has its own names, and
    another tuple `names`, or "0", "1", and so on. Any other value is the field "item". PIL images become uint8 arrays
    [height, width] or [height, width, channels].

    Raises: InvalidSample for None, an iterator, the dataset itself, a name that is no string or occurs twice, and a
    tuple with another number of entries than `names`.
    """
    _refuse(item, dataset)
    named: Mapping[Any, Any]
    if isinstance(item, Mapping):
        named = item
    elif isinstance(item, tuple):
        entry_names = _names_of(item, names)
        named = dict(zip(entry_names, item, strict=True))
    else:
        named = {SINGLE: item}
    fields: dict[str, Any] = {}
    for name, value in _flat(named, ""):
        if name in fields:
            raise InvalidSample(f"it has the field {name!r} twice; rename one of them")
        fields[name] = _array_of_image(value)
    if not fields:
        raise InvalidSample("it is empty; a mapping or tuple with at least one value is needed")
    return fields


def _refuse(
    item: Any,
    dataset: Any,
) -> None:
    if item is None:
        raise InvalidSample(
            f"it is None, as if __getitem__ had no return, or a filter dropped the item; {ACCEPTED}"
        )
    if item is dataset:
        raise InvalidSample(f"it is the dataset itself; {ACCEPTED}")
    if isinstance(item, Iterator):
        kind = type(item).__name__
        raise InvalidSample(
            f"it is a {kind}, which can be read once only; {ACCEPTED}, such as list(...) of it"
        )


def _names_of(
    item: tuple[Any, ...],
    names: Sequence[str] | None,
) -> Sequence[str]:
    own_names: Sequence[str] | None = getattr(item, "_fields", None)
    if own_names is not None:
        return own_names
    if names is None:
        return [str(number) for number in range(len(item))]
    if len(names) != len(item):
        raise InvalidSample(
            f"it is a tuple of {len(item)} values, and fields = {tuple(names)} names {len(names)}; name each of them"
        )
    return names


def _flat(
    named: Mapping[Any, Any],
    prefix: str,
) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) for each value of a mapping and of the mappings in it."""
    for name, value in named.items():
        if not isinstance(name, str):
            raise InvalidSample(f"it has the field {prefix}{name!r}; a field's name is a string")
        if isinstance(value, Mapping):
            inner_prefix = f"{prefix}{name}."
            yield from _flat(value, inner_prefix)
        else:
            yield f"{prefix}{name}", value


def _array_of_image(value: Any) -> Any:
    """Return a PIL image as an array, and any other value as it is."""
    # Only a dataset that imported PIL returns its images.
    image_module = sys.modules.get("PIL.Image")
    image_type = getattr(image_module, "Image", None)
    if image_type is None:
        return value
    if isinstance(value, image_type):
        return np.array(value)
    return value
