"""JSON: objects, lists, numbers, booleans, null, and class labels with their names."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .array_values import as_array, shape_text
from .kind import Facts, Kind, Mark, mark, type_name
from .text import MAX_LINES, limit_line

MAX_DEPTH = 12
"""Deepest level shown; below it, the number of items."""
MAX_DIGITS = 60
"""Most digits shown of an integer."""
MAX_EXAMINED = 100_000
"""Nested values examined for faults."""
_LABEL_WORD = "cls"


def fits(value: Any, facts: Facts) -> bool:
    """Return whether a value is JSON, or a class label of any library's integer type."""
    plain = isinstance(value, dict | list | tuple | int | float) and not isinstance(value, np.generic)
    return value is None or plain or _label(value, facts) is not None


def _label(value: object, facts: Facts) -> int | None:
    if facts.word != _LABEL_WORD and facts.labels is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    array = as_array(value)
    if array is not None and array.size == 1 and array.dtype.kind in "iu":
        return int(array.reshape(()))
    return None


def _name(label: int, facts: Facts) -> str | None:
    labels = facts.labels
    if labels is None or isinstance(labels, Mapping):
        if labels is None:
            return None
        return labels.get(label)
    if 0 <= label < len(labels):
        return labels[label]
    return None


def lines(value: Any, facts: Facts) -> tuple[str, ...]:
    label = _label(value, facts)
    if label is not None:
        name = _name(label, facts)
        if name is None:
            return (_whole(label),)
        # The folder of objects at the top has the name "", which would be an empty place in the line.
        shown = limit_line(str(name)) or "''"
        return (f"{_whole(label)}: {shown}",)
    out: list[str] = []
    for line in _walk(value, "", 0):
        if len(out) == MAX_LINES:
            out.append("…")
            break
        out.append(limit_line(line))
    return tuple(out)


def marks(value: Any, facts: Facts) -> tuple[Mark, ...]:
    label = _label(value, facts)
    if label is not None:
        if facts.labels is None or _name(label, facts) is not None:
            return ()
        return (mark("out_of_range", f"label {_whole(label)} is none of the {len(facts.labels):,} classes"),)
    if isinstance(value, dict | list | tuple) and not value:
        return (mark("empty", "no items"),)
    floats = [one for one in _leaves(value) if isinstance(one, float)]
    out = []
    if nan := sum(map(math.isnan, floats)):
        out.append(mark("nan", f"{nan:,} of {len(floats):,} numbers are NaN"))
    if infinite := sum(map(math.isinf, floats)):
        out.append(mark("infinite", f"{infinite:,} of {len(floats):,} numbers are infinite"))
    return tuple(out)


def _leaves(value: object) -> Iterator[object]:
    """Yield up to MAX_EXAMINED leaves, even if a value contains itself."""
    stack = [value]
    n = 0
    # A stack, not recursion: JSON may nest deeper than Python's limit.
    while stack and n < MAX_EXAMINED:
        n += 1
        item = stack.pop()
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)
        else:
            yield item


def _walk(value: object, head: str, depth: int) -> Iterator[str]:
    indent = "  " * depth
    if not isinstance(value, dict | list | tuple):
        yield f"{indent}{head}{_leaf(value)}"
        return
    brackets = "{}" if isinstance(value, dict) else "[]"
    if not value or depth == MAX_DEPTH:
        inside = ""
        if value:
            inside = f" {len(value):,} items "
        yield f"{indent}{head}{brackets[0]}{inside}{brackets[1]}"
        return
    yield f"{indent}{head}{brackets[0]}"
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{_leaf(key)}: ", depth + 1)
    else:
        for item in value:
            yield from _walk(item, "", depth + 1)
    yield f"{indent}{brackets[1]}"


def _leaf(value: object) -> str:
    if isinstance(value, str):
        return f'"{limit_line(value)}"'
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return _whole(value)
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, bytes | bytearray):
        return f"{len(value):,} bytes"
    return shape_text(value) or type_name(value)


def _whole(value: int) -> str:
    # By its bits: Python refuses to print integers beyond 4,300 digits.
    if value.bit_length() <= MAX_DIGITS * math.log2(10):
        return str(int(value))
    return f"a whole number of about {int(value.bit_length() * math.log10(2)) + 1:,} digits"


JSON = Kind(name="json", fits=fits, lines=lines, marks=marks)
