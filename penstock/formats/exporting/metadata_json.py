"""Metadata and provenance of a sample as one JSON document."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any


def metadata_json(columns: Mapping[str, Any]) -> bytes:
    """Return columns as JSON, names sorted: times as ISO 8601 text, NaN and infinities as Python writes them."""
    text = json.dumps(columns, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=_text)
    return text.encode()


def _text(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"a {type(value).__name__} is in no column of a samples table")
