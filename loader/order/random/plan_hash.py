"""Check whole numbers that decide data; compute the hashes that name plans."""

import hashlib
from typing import Any

from ...errors import InvalidPlan
from ...json_text import canonical_json

MAX_GLOBAL_BATCH = 2**31


def check_int(
    name: str,
    value: object,
    low: int,
    high: int,
) -> int:
    """Return value as an int. Raises InvalidPlan if it is not in [low, high]."""
    number: int | None = None
    is_bool = isinstance(value, bool)  # Python counts True as 1
    if hasattr(value, "__index__") and not is_bool:  # accepts numpy's integers
        number = value.__index__()
    if number is None or not low <= number <= high:
        raise InvalidPlan(
            f"{name} = {value!r}: a whole number from {low} to {high} is needed",
            what=name,
            given=value,
            accepted=f"a whole number from {low} to {high}",
        )
    return int(number)


def plan_json(content: dict[str, Any]) -> bytes:
    """Return canonical JSON. Raises: InvalidPlan for a float, or anything else that JSON cannot hold."""
    try:
        return canonical_json(content, "plan")
    except TypeError as error:
        raise InvalidPlan(str(error), what="plan", given=str(error)) from error


def content_hash(prefix: str, content: dict[str, Any]) -> str:
    body = plan_json(content)
    digest = hashlib.sha256(body).hexdigest()
    return f"{prefix}-{digest}"
