"""Whole numbers that decide data."""

from ..errors import InvalidPlan

MAX_GLOBAL_BATCH = 2**31


def whole(name: str, value: object, low: int, high: int) -> int:
    """value as an int in [low, high]. Raises InvalidPlan."""
    number = value.__index__() if hasattr(value, "__index__") and not isinstance(value, bool) else None
    if number is None or not low <= number <= high:
        raise InvalidPlan(f"{name} = {value!r}: a whole number from {low} to {high} is needed")
    return int(number)
