"""JSON objects of a root, as they are read to be rewritten."""

from typing import Any

from loader.errors import Corrupt
from loader.json_text import DamagedJson, parse_json_object


def json_object(data: bytes, path: str, url: str) -> dict[str, Any]:
    """What lies at a path of the store at `url`. Raises: Corrupt for what is no JSON object."""
    try:
        return parse_json_object(data)
    except DamagedJson as error:
        raise Corrupt(
            f"{url}/{path} is no JSON object ({error}); restore it from a mirror, or delete it"
        ) from error
