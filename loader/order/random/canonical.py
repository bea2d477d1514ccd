"""Canonical JSON: one text per content, so that a hash names it.

Whole numbers that decide data.
"""

import hashlib
import json
from typing import Any

from ...errors import InvalidPlan

MAX_GLOBAL_BATCH = 2**31


def whole(name: str, value: object, low: int, high: int) -> int:
    """value as an int in [low, high]. Raises InvalidPlan."""
    number = value.__index__() if hasattr(value, "__index__") and not isinstance(value, bool) else None
    if number is None or not low <= number <= high:
        raise InvalidPlan(f"{name} = {value!r}: a whole number from {low} to {high} is needed")
    return int(number)


def canonical_json(content: dict[str, Any]) -> bytes:
    """UTF-8 JSON with sorted keys, no spaces, no escapes beyond JSON's own and no floats.

    Raises InvalidPlan: a float (its text is not the same everywhere) or anything JSON does not hold.
    """
    _refuse_floats(content, "plan")
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8")


def content_hash(prefix: str, content: dict[str, Any]) -> str:
    """`<prefix>-` + sha256 of the canonical JSON, in hex."""
    return f"{prefix}-{hashlib.sha256(canonical_json(content)).hexdigest()}"


def _refuse_floats(value: object, where: str) -> None:
    if isinstance(value, dict):
        for name, part in value.items():
            if not isinstance(name, str):
                raise InvalidPlan(f"{where}: key {name!r} is not a string, and JSON holds no other")
            _refuse_floats(part, f"{where}.{name}")
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            _refuse_floats(part, f"{where}[{number}]")
    elif value is not None and not isinstance(value, str | int):
        raise InvalidPlan(
            f"{where} = {value!r} is a {type(value).__name__}: only strings, whole numbers, true, false, "
            "null, lists and objects are hashed; write a fraction as a string"
        )
