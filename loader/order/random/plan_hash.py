"""Check whole numbers that decide data; compute the hashes that name plans."""

import hashlib
from typing import Any

from ...errors import InvalidPlan
from ...json_text import canonical_json
from ...keywords import whole_number

MAX_GLOBAL_BATCH = 2**31


def int_in_range(
    name: str,
    value: object,
    low: int,
    high: int,
) -> int:
    """Return value as an int. Raises InvalidPlan if it is not in [low, high]."""
    return whole_number(
        name,
        value,
        low,
        high,
        InvalidPlan,
    )


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
