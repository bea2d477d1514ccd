"""JSON objects of a root, as they are read to be rewritten."""

import json
from typing import Any

from loader.errors import Corrupt


def json_object(data: bytes, path: str, url: str) -> dict[str, Any]:
    """What lies at a path of the store at `url`. Raises: Corrupt for what is no JSON object."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{url}/{path} is no JSON ({error}); restore it from a mirror, or delete it") from error
    if not isinstance(body, dict):
        raise Corrupt(f"{url}/{path} is no JSON object; restore it from a mirror, or delete it")
    return body
