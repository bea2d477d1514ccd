"""Records as JSON, identical for a page's `.json` address, a command's --json and tests."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


class JsonRecord:
    """Base class of records, frozen dataclasses; each field is a key of the JSON."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible values: "nan", "inf" or "-inf" for non-finite numbers, the length for bytes."""
        return {one.name: plain(getattr(self, one.name)) for one in fields(self)}  # type: ignore[arg-type]


def plain(value: object) -> Any:
    # A run's chart has thousands of numbers: `isinstance` with a union of types takes twice as long.
    kind = type(value)
    if kind is float and math.isfinite(value):  # type: ignore[arg-type]
        return value
    if value is None or kind is int or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | np.floating):
        if math.isfinite(value):
            return float(value)
        return str(float(value))
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, bytes):
        return {"nbytes": len(value)}
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range):
        return [plain(one) for one in value]
    return str(value)
