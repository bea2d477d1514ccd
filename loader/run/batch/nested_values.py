"""Values in containers: such as a collate function returns, and lists with an array per slot."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .columns import PADDED


def with_changed_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a value of the same containers, with `change` applied to all else in them."""
    if isinstance(value, Mapping):
        changed = {name: with_changed_leaves(inner, change) for name, inner in value.items()}
        if type(value) is dict:
            return changed
        # A class of its own, such as a tokenizer's output, may need other arguments than a dict.
        clone: Any = copy.copy(value)
        clone.update(changed)
        return clone
    if isinstance(value, list | tuple):
        items = [with_changed_leaves(inner, change) for inner in value]
        if hasattr(value, "_fields"):  # a named tuple
            return type(value)(*items)
        return type(value)(items)
    return change(value)


def leaves(value: Any) -> Iterator[Any]:
    """Yield everything in a value's dicts, lists and tuples."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


def nested_nbytes(value: Any) -> int:
    """Return the bytes of arrays, tensors, bytes and strings in a value's containers."""
    total = 0
    for leaf in leaves(value):
        if isinstance(leaf, bytes | str):
            total += len(leaf)
        else:
            total += int(getattr(leaf, "nbytes", 0))
    return total


def list_column(values: Sequence[Any], examples: Sequence[Any]) -> list[Any]:
    """Return each slot's value, or an empty array at padding. examples: values of slots that are not padding."""
    first = examples[0]
    empty = empty_like(first)
    column = []
    for value in values:
        if value is PADDED:
            value = empty
        column.append(value)
    return column


def empty_like(example: Any) -> Any:
    """Return an array without rows, of an array's dtype and further dimensions; None for any other value."""
    if not isinstance(example, np.ndarray):
        return None
    if example.ndim == 0:
        return None
    row_shape = example.shape[1:]
    return np.empty(
        (0, *row_shape),
        example.dtype,
    )
